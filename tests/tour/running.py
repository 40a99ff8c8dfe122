"""A worker runs it.

What a worker logs, and what tasks end with. A task that is put off goes back to its queue with a new time to
start: it keeps its id, its retries, its links and its place in a workflow.
"""

from types import SimpleNamespace
from typing import Any

from celery import chain, signals
from kombu import Exchange, Queue

from celery_redislock.header import HEADER, Header
from celery_redislock.testing import hold
from tests.tour.guide import Guide, Sender, no_broker
from tests.tour.stop import stop
from tests.unit.shop import Shop

__all__: list[str] = []

KEY = "account:7"


def sync(account_id: int) -> int:
    """What most tasks here do."""
    return account_id


def double(number: int) -> int:
    """What comes next."""
    return 2 * number


@stop("A worker's settings endanger locks")
def endangered(guide: Guide) -> None:
    """Checked when a worker starts, and the reason why one does not: `redislock_check`."""
    shop = guide.shop()
    shop.unique(sync).lock_ttl = "long"
    shop.unique(sync, name="shop.second")
    shop.app.conf.update(
        redislock_check="error", redislock_tll=5, lock_ttl=60, redislock_max_hlod=1, REDISLOCK_TTL=60
    )
    guide.patch.setattr(shop.store, "eviction_policy", lambda: "allkeys-lru")
    signals.worker_init.send(sender=Sender(shop.app))


@stop("A task's options endanger its lock together")
def risky(guide: Guide) -> None:
    """They can be honoured, but hardly do what was meant. Told when a worker starts."""
    shop = guide.shop(redislock_socket_timeout=5.0)
    shop.unique(sync, lock_ttl=10, lock_max_hold=60, time_limit=300)
    signals.worker_init.send(sender=Sender(shop.app))


@stop("A duplicate is skipped when it starts")
def skipped(guide: Guide) -> None:
    """It was published by `send_task` or another language, so nobody looked at the lock then.

    Its state is `REVOKED`, and `get()` raises `TaskRevokedError`.
    """
    shop = guide.shop()
    task = shop.unique(sync, lock_key=KEY)
    with hold(task, 7):
        result = shop.app.send_task("shop.sync", (7,))
        shop.run()
    result.get()


@stop("A duplicate fails when it starts")
def refused(guide: Guide) -> None:
    """With `on_conflict={"server": "raise"}`."""
    shop = guide.shop()
    task = shop.unique(sync, lock_key=KEY, on_conflict={"server": "raise"})
    with hold(task, 7):
        shop.app.send_task("shop.sync", (7,))
        guide.say(shop.run())


@stop("A duplicate comes back later")
def comes_back(guide: Guide) -> None:
    """With `on_conflict="retry"`, the default of `while_executing`: after `lock_retry_delay`."""
    shop = guide.shop()
    task = shop.unique(sync, lock_key=KEY, lock="while_executing")
    task.delay(7)
    with hold(task, 7):
        shop.run()


@stop("A message waits for its own task id")
def waits_for_itself(guide: Guide) -> None:
    """The broker delivered a message again while its first delivery runs; or the id was published twice."""
    shop = guide.shop()
    task = shop.unique(sync, lock_key=KEY)
    for running in (True, False):
        task.apply_async((7,), task_id="t1")
        message = shop.message()
        shop.store.force_release(KEY)
        with hold(task, 7, task_id="t1", running=running):
            shop.run(shop.receive(message, redelivered=running))
        shop.messages()


@stop("A message that every worker was sent")
def was_broadcast(guide: Guide) -> None:
    """From a fanout exchange: one worker runs it."""
    shop = guide.shop()
    queues = [Queue(shop.queue), Queue("everywhere", Exchange("news", type="fanout"))]
    shop.app.conf.task_queues = queues
    task = shop.unique(sync, lock_key=KEY)
    with hold(task, 7, task_id="t1"):
        shop.app.send_task("shop.sync", (7,), task_id="t1")
        message = shop.message()
        message.delivery_info["exchange"] = "news"
        shop.run(shop.receive(message))


@stop("A message that every worker was sent has to wait")
def broadcast_waits(guide: Guide) -> None:
    """Each time it is put off every worker gets it from each of the others: soon that are many."""
    shop = guide.shop()
    shop.app.conf.task_queues = [Queue("everywhere", Exchange("news", type="fanout"))]
    task = shop.unique(sync, lock="while_executing", lock_key=KEY)
    shop.app.send_task("shop.sync", (7,), task_id="t1", queue=Queue(shop.queue))
    message = shop.message()
    message.delivery_info["exchange"] = "news"
    with hold(task, 7, task_id="t2"):
        shop.run(shop.receive(message))


@stop("A message waits for its own window")
def waits_for_its_window(guide: Guide) -> None:
    """A task id was published again before `lock_period` had passed."""
    shop = guide.shop()
    task = shop.unique(sync, lock_key=KEY, lock_period=60, on_conflict={"client": "retry"})
    for _ in range(2):
        task.apply_async((7,), task_id="t1")
        shop.run()


@stop("A workflow's task waits for the holder")
def member_waits(guide: Guide) -> None:
    """A chain, group or chord is not broken by a duplicate in it: it takes the holder's outcome, or runs.

    The holder's lock is free a moment before its outcome is recorded, hence the second look.
    """
    shop = guide.shop()
    task = _chained(shop)
    shop.app.backend.store_result("somebody-else", None, "STARTED")
    shop.run()
    shop.app.backend.store_result("somebody-else", 21, "SUCCESS")
    shop.run()
    assert task.name


@stop("A workflow's task fails as the holder did")
def member_fails(guide: Guide) -> None:
    """Its outcome is the holder's, whether good or bad."""
    shop = guide.shop()
    _chained(shop)
    shop.app.backend.store_result("somebody-else", ValueError("no funds"), "FAILURE")
    guide.say(shop.run())


def _chained(shop: Shop) -> Any:
    """A chain's first task that met its holder at publish, and was put off by a worker."""
    task = shop.unique(sync, lock_key=KEY)
    follow = shop.unique(double, name="shop.double", lock=None)
    with hold(task, 7):
        chain(task.s(7), follow.s()).apply_async(task_id="last")
        shop.run()
    return task


@stop("A message was delivered twice")
def delivered_again(guide: Guide) -> None:
    """The broker did so, after a lost connection or its visibility timeout; the first delivery is done."""
    _deliver_twice(guide)


@stop("A message was delivered twice, and results are ignored")
def delivered_again_unrecorded(guide: Guide) -> None:
    """With `acks_late` a done mark tells that the first delivery is done."""
    _deliver_twice(guide, ignore_result=True)


def _deliver_twice(guide: Guide, **options: Any) -> None:
    shop = guide.shop()
    shop.unique(sync, lock_key=KEY, acks_late=True, **options).delay(7)
    message = shop.message()
    shop.run(shop.receive(message))
    shop.run(shop.receive(message, redelivered=True))


@stop("A message that may be a copy looks twice")
def copy_looks_twice(guide: Guide) -> None:
    """Its claim was gone, so another delivery of it may be about to record its outcome."""
    shop = guide.shop()
    task = shop.unique(sync, lock_key=KEY, acks_late=True)
    task.delay(7)
    shop.store.force_release(KEY)
    shop.run(redelivered=True)


@stop("The claim was gone when the task started")
def claim_gone(guide: Guide) -> None:
    """Until it started, the key was free: another one may have run meanwhile."""
    shop = guide.shop()
    task = shop.unique(sync, lock_key=KEY)
    task.delay(7)
    shop.store.force_release(KEY)
    shop.run()


@stop("A task's options are wrong on the worker only")
def wrong_on_worker(guide: Guide) -> None:
    """Publisher and worker run different code. The task fails, and its lock is given back."""
    shop = guide.shop()
    task = shop.unique(sync, lock_key=KEY)
    task.delay(7)
    task.lock_ttl = "long"
    guide.say(shop.run())


@stop("A message cannot be put off")
def not_put_off(guide: Guide) -> None:
    """The broker cannot be reached. With `acks_late` the message is delivered again, else the task fails."""
    shop = guide.shop()
    for number, acks_late in enumerate((True, False)):
        task = shop.unique(
            sync, name=f"shop.sync{number or ''}", lock_key=KEY, lock="while_executing", acks_late=acks_late
        )
        task.delay(7)
    for message in shop.messages():
        request = shop.receive(message)
        guide.patch.setattr(shop.app, "producer_or_acquire", no_broker)
        with hold(task, 7):
            outcome = shop.run(request)
        if isinstance(outcome, OSError):
            guide.say(outcome)


@stop("A retry cannot be published")
def retry_not_published(guide: Guide) -> None:
    """As in plain Celery the message is rejected; its lock is given back. Celery logs the broker's error."""
    shop = guide.shop()

    def fail(self: Any, account_id: int) -> None:
        guide.patch.setattr(shop.app, "send_task", no_broker)
        self.retry(countdown=50)

    task = shop.unique(fail, bind=True, lock_key=KEY)
    with shop.running(task, args=(7,)):
        task(7)


@stop("A claim of a message nobody will run")
def unwanted(guide: Guide) -> None:
    """A worker got a message of a task it does not know, and cannot find the lock server."""
    shop = guide.shop()
    header = Header(KEY, "t1/x", claimed=True)
    shop.app.conf.redislock_prefix = "not allowed"
    message = SimpleNamespace(headers={"id": "t1", HEADER: header.dumps()})
    signals.task_unknown.send(sender=Sender(shop.app), message=message)
