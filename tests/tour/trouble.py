"""The lock server is in trouble.

What happens then is `on_lock_error`: a publish raises, a worker tries for `redislock_start_timeout` and puts
the task off; or both go on without a lock. Whatever could not be given back is given back as soon as the
server answers, or expires.
"""

from typing import Any

import redis
from celery import signals

from celery_redislock import LockUnavailable, SingletonTask
from celery_redislock.header import HEADER, Header
from celery_redislock.locks import Lock, RedisStore
from celery_redislock.locks.connection import Connections
from celery_redislock.locks.connection import pool_of
from tests.clocks import ManualClock
from tests.faults import Fault, faulty_proxy
from tests.tour.guide import Guide, Sender, no_broker
from tests.tour.stop import stop
from tests.unit.shop import no_patience

__all__: list[str] = []

KEY = "account:7"
#: Nobody listens there.
NOBODY = "redis://bob:secret@127.0.0.1:1/3"


def sync(account_id: int) -> int:
    """What most tasks here do."""
    return account_id


@stop("It refuses connections")
def refuses_connections(guide: Guide) -> None:
    """Nothing was published. The error has `server`, `operation` and `reason`."""
    guide.configured(redislock_url=NOBODY).unique(sync).delay(7)


@stop("It does not answer")
def does_not_answer(guide: Guide) -> None:
    """A call is bounded by twice `redislock_socket_timeout`. Whether it took effect is found out later."""
    proxy = guide.later.enter_context(faulty_proxy(guide.port))
    proxy.fail(Fault.SILENCE, of="claim", at=range(1000))
    task = guide.configured(redislock_url=proxy.url, redislock_socket_timeout=0.2).unique(sync)
    _refused_because("no answer in time", task)


def _refused_because(reason: str, task: Any) -> None:
    """Call until it is refused for this reason: a machine that stands still may be too late even to greet."""
    while True:
        try:
            task.delay(7)
        except LockUnavailable as error:
            if reason in error.reason:
                raise


@stop("It is slow to greet")
def slow_to_greet(guide: Guide) -> None:
    """A new connection begins with a few questions and answers, and they count, too."""

    class Hasty(ManualClock):
        def __call__(self) -> float:
            self.advance(1.0)
            return super().__call__()

    connections = Connections(pool_of(guide.url), socket_timeout=1.0)
    Lock(RedisStore(connections, clock=Hasty()), "nightly").acquire()


@stop("It is out of memory")
def out_of_memory(guide: Guide) -> None:
    """It still gives locks back; give it more memory, or the locks a server of their own."""
    client = redis.Redis.from_url(guide.url)
    guide.later.callback(client.close)
    guide.later.callback(client.config_set, "maxmemory", "0")
    client.config_set("maxmemory", "1")
    guide.configured(redislock_url=guide.url).unique(sync).delay(7)


@stop("Too few replicas confirm a lock")
def too_few_replicas(guide: Guide) -> None:
    """With `redislock_min_replicas`. The lock was put back as it was."""
    settings = {"redislock_min_replicas": 1, "redislock_socket_timeout": 0.4}
    task = guide.configured(redislock_url=guide.url, **settings).unique(sync)
    _refused_because("replicas", task)


@stop("A task is published without a lock")
def published_without(guide: Guide) -> None:
    """With `on_lock_error="run"`; and always what somebody waits for: a retry, a part of a workflow."""
    guide.configured(redislock_url=NOBODY).unique(sync, on_lock_error="run").delay(7)


@stop("A retry's claim is not renewed")
def published_without_renewal(guide: Guide) -> None:
    """It is published all the same; should the claim expire meanwhile, another one may be accepted."""
    shop = guide.shop()
    task = shop.unique(sync, lock_key=KEY)
    header = Header(KEY, "t1/x", claimed=True)
    shop.store.failures = 1
    task.apply_async((7,), task_id="t1", headers={HEADER: header.dumps()}, retries=1)


@stop("A task runs without its lock")
def runs_without(guide: Guide) -> None:
    """With `on_lock_error="run"`: another one may run at the same time."""
    shop = guide.configured(redislock_url=NOBODY)
    task = shop.unique(sync, lock_key=KEY, on_lock_error="run")
    with shop.running(task, args=(7,)):
        task(7)


@stop("A task runs in place without its lock")
def runs_in_place_without(guide: Guide) -> None:
    """In eager mode with `redislock_eager` and `on_lock_error="run"`."""
    shop = guide.configured(redislock_url=NOBODY, task_always_eager=True, redislock_eager=True)
    shop.unique(sync, lock_key=KEY, on_lock_error="run").delay(7)


@stop("A task runs in place")
def does_not_run_in_place(guide: Guide) -> None:
    """Nobody would deliver it again, so the error is raised."""
    shop = guide.shop(task_always_eager=True, redislock_eager=True)
    task = shop.unique(sync, lock_key=KEY)
    no_patience(guide.patch)
    guide.patch.setattr(shop.store, "acquire", _away)
    task.delay(7).get()


def _away(*_: object, **__: object) -> None:
    raise LockUnavailable("redis://127.0.0.1:1/3", "acquire", "Connection refused")


@stop("A task cannot start")
def cannot_start(guide: Guide) -> None:
    """After `redislock_start_timeout` it is put off, and tried again after `lock_retry_delay`."""
    no_patience(guide.patch)
    shop = guide.configured(redislock_url=NOBODY)
    shop.unique(sync, lock_key=KEY)
    shop.app.send_task("shop.sync", (7,))
    shop.run()


@stop("A task cannot start, and the broker is gone as well")
def broker_gone_too(guide: Guide) -> None:
    """With early acknowledgement the message is gone, so the task fails; with `acks_late` it goes back."""
    no_patience(guide.patch)
    guide.patch.setattr("celery_redislock.redeliver.redeliver", no_broker)
    shop = guide.configured(redislock_url=NOBODY)
    task = shop.unique(sync, lock_key=KEY)
    with shop.running(task, args=(7,)):
        task(7)


@stop("A worker starts without it")
def worker_starts_without(guide: Guide) -> None:
    """With `redislock_check="error"` it would not start."""
    shop = guide.configured(redislock_url=NOBODY)
    shop.unique(sync)
    signals.worker_init.send(sender=Sender(shop.app))


@stop("It deletes keys when it is short of memory")
def evicts(guide: Guide) -> None:
    """Told when a worker starts."""
    client = redis.Redis.from_url(guide.url)
    guide.later.callback(client.close)
    guide.later.callback(client.config_set, "maxmemory-policy", "noeviction")
    client.config_set("maxmemory-policy", "allkeys-lru")
    shop = guide.configured(redislock_url=guide.url)
    shop.unique(sync)
    signals.worker_init.send(sender=Sender(shop.app))


@stop("A key was overwritten while its task ran")
def overwritten(guide: Guide) -> None:
    """Another program put something else under the lock's name; the task's outcome counts all the same."""

    def overwrite(account_id: int) -> int:
        guide.put_a_list(KEY)
        return account_id

    shop = guide.configured(redislock_url=guide.url)
    task = shop.unique(overwrite, lock_key=KEY)
    with shop.running(task, args=(7,)):
        task(7)


@stop("A key was overwritten while its message was on its way")
def claim_overwritten(guide: Guide) -> None:
    """Its claim was to be given back, because the task could not be published after all."""
    shop = guide.configured(redislock_url=guide.url)

    def fail(*_: Any, **__: Any) -> None:
        guide.put_a_list(KEY)
        no_broker()

    task = shop.unique(sync, lock_key=KEY)
    guide.patch.setattr(shop.app, "send_task", fail)
    task.delay(7)


@stop("A claim cannot be given back")
def claim_not_given_back(guide: Guide) -> None:
    """The task's `before_start` raised, and its options are wrong on this worker."""

    class Careful(SingletonTask):
        abstract = True

        def before_start(self, task_id: str, *_: Any) -> None:
            raise ValueError(task_id)

    shop = guide.shop()
    task = shop.unique(sync, base=Careful, lock_key=KEY)
    task.delay(7)
    task.lock_ttl = "long"
    shop.run()


@stop("No done mark could be written")
def no_done_mark(guide: Guide) -> None:
    """Only for what a done mark is for: `acks_late`, and a result that is ignored or cannot be read."""
    shop = guide.shop()
    task = shop.unique(sync, lock_key=KEY, acks_late=True, ignore_result=True)
    task.apply_async((7,), link=shop.unique(sync, name="shop.next", lock=None).si(1))
    sending = shop.app.send_task

    def send(*args: Any, **kwargs: Any) -> Any:
        shop.store.failures = 1
        return sending(*args, **kwargs)

    guide.patch.setattr(shop.app, "send_task", send)
    shop.run()
