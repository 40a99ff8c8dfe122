"""A whole task's life beside a lock server in trouble: paused, restarted, full, a replica, loading."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_redislock import LockKeyError, LockLost, LockUnavailable
from tests.facts import wait_until
from tests.history import violations
from tests.integration.visits import Visits
from tests.integration.watched_shop import PATIENCE, SOCKET_TIMEOUT, NextCustomer, WatchedShop
from tests.servers import EmbeddedServer
from tests.stores import server_names, start_server

#: Seconds from a server's return until what is owed to it must have been given back.
SECONDS_LATER = 5.0

ShopMaker = Callable[..., WatchedShop]


@pytest.fixture(
    params=[name for name in server_names() if "://" not in name], ids=lambda n: n.rpartition("/")[2]
)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A lock server that forgets everything when it ends."""
    server = start_server(request.param)
    yield server
    server.stop()


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A lock server that writes down what it is told."""
    with EmbeddedServer(data_dir=tmp_path) as server:
        yield server


@pytest.fixture
def shop_on(prefix: str) -> Iterator[ShopMaker]:
    """Opens a shop with its locks on a server."""
    with ExitStack() as stack:
        yield lambda server, **settings: stack.enter_context(
            closing(WatchedShop(server.url, server.redis_url, prefix, **{"redislock_ttl": 3.0, **settings}))
        )


class Sale:
    """One task on one key: what happens while its body is on is a test's, and so is what it finds later."""

    def __init__(self, shop: WatchedShop, meanwhile: Callable[[Any], None], **options: Any) -> None:
        """Declare it; somebody waits for its key from its beginning."""
        self._shop = shop
        shop.door = self.door = NextCustomer(shop, "sale:thing")

        def body(task: Any, thing: str) -> str:
            with shop.at_work(task, "sale"):
                meanwhile(task)
            return "sold"

        self.task = shop.unique(body, bind=True, lock_key="sale:{thing}", **options)

    def publish_and_run(self) -> Any:
        """Return what the task returned."""
        self.task.delay("thing")
        return self._shop.run()

    def is_over(self) -> None:
        """Assert that everything is over, and was as the law has it."""
        shop = self._shop
        self.door.come()
        assert self.door.is_served()
        assert wait_until(shop.is_free, PATIENCE)
        assert violations(shop.history) == []


def renewed(task: Any) -> bool:
    """Whether the lease is confirmed once more, from now on, before it is lost."""
    before = task.lease.deadline
    return (
        wait_until(lambda: task.lease.deadline > before or task.lease.lost, PATIENCE) and not task.lease.lost
    )


class TestPaused:
    """SIGSTOP: connections open, nothing answered; what was sent is carried out when it goes on."""

    def test_for_less_than_a_lease_is_noticed_by_nobody(
        self, server: EmbeddedServer, shop_on: ShopMaker
    ) -> None:
        def pause(task: Any) -> None:
            server.pause()
            time.sleep(1.0)
            server.resume()
            assert renewed(task)
            task.lease.check()

        shop = shop_on(server)
        sale = Sale(shop, pause)

        assert sale.publish_and_run() == "sold"
        sale.is_over()
        assert sale.door.got_at >= shop.over_at

    def test_for_longer_than_a_lease_is_told_to_the_body_at_its_deadline(
        self, server: EmbeddedServer, shop_on: ShopMaker
    ) -> None:
        told: list[float] = []

        def pause(task: Any) -> None:
            server.pause()
            assert wait_until(lambda: task.lease.lost, PATIENCE)
            told.append(task.lease._clock() - task.lease.deadline)
            time.sleep(0.3)  # until the server, too, has let it expire
            server.resume()
            assert sale.door.is_served()
            with pytest.raises(LockLost):
                task.lease.check()

        sale = Sale(shop_on(server), pause, lock_ttl=1.0)

        assert sale.publish_and_run() == "sold"
        assert told[0] < 0.5
        sale.is_over()


class TestRestarted:
    def test_with_its_data_it_is_noticed_by_nobody(self, durable: EmbeddedServer, shop_on: ShopMaker) -> None:
        def restart(task: Any) -> None:
            durable.kill()
            durable.restart()
            assert renewed(task)

        shop = shop_on(durable)
        sale = Sale(shop, restart, lock_ttl=10.0)

        assert sale.publish_and_run() == "sold"
        sale.is_over()
        assert sale.door.got_at >= shop.over_at

    def test_without_its_data_a_running_body_learns_that_it_lost_its_lock(
        self, server: EmbeddedServer, shop_on: ShopMaker
    ) -> None:
        """No promise keeps the next one out here; but it has the larger fence, and the first one is told."""
        fences: list[int] = []

        def restart(task: Any) -> None:
            server.restart()
            assert sale.door.is_served()
            assert wait_until(lambda: task.lease.lost, PATIENCE)
            fences.append(task.lease.fence)

        shop = shop_on(server)
        sale = Sale(shop, restart)

        assert sale.publish_and_run() == "sold"
        assert shop.history[0].fence is not None
        assert fences[0] < shop.history[0].fence
        assert wait_until(shop.is_free, PATIENCE)

    def test_without_its_data_no_queued_task_is_lost(
        self, server: EmbeddedServer, shop_on: ShopMaker
    ) -> None:
        sale = Sale(shop_on(server), _do_nothing)
        sale.task.delay("thing")
        server.restart()

        assert sale._shop.run() == "sold"
        sale.is_over()


class TestDownAtTheEnd:
    """The release is owed."""

    @pytest.mark.parametrize("trouble", ["kill", "pause"])
    def test_the_lock_is_free_seconds_after_the_server_is_back(
        self, durable: EmbeddedServer, shop_on: ShopMaker, trouble: str
    ) -> None:
        """Laws 4 and 9: the outcome is not held up, and no TTL is waited out."""
        shop = shop_on(durable)
        sale = Sale(shop, lambda _task: getattr(durable, trouble)(), lock_ttl=60.0)
        assert sale.publish_and_run() == "sold"
        held_up = time.monotonic()
        durable.restart() if trouble == "kill" else durable.resume()
        back = time.monotonic()

        assert wait_until(shop.is_free, SECONDS_LATER)
        assert held_up <= back
        sale.is_over()

    @pytest.mark.parametrize("trouble", ["kill", "pause"])
    def test_a_retry_is_published_all_the_same(
        self, durable: EmbeddedServer, shop_on: ShopMaker, trouble: str
    ) -> None:
        """Laws 2 and 7: its message goes without a claim, and runs when the server is back."""

        def retry(task: Any) -> None:
            if not task.request.retries:
                getattr(durable, trouble)()
                raise task.retry(countdown=0)

        shop = shop_on(durable)
        sale = Sale(shop, retry, lock_ttl=60.0)
        sale.publish_and_run()
        durable.restart() if trouble == "kill" else durable.resume()
        shop.serve()

        assert shop.ran == ["sale"]
        sale.is_over()


class TestAbused:
    """What somebody else does to a server that is well."""

    def test_scripts_flushed_every_ten_milliseconds_cost_nothing(
        self, server: EmbeddedServer, shop_on: ShopMaker
    ) -> None:
        # None goes unanswered for this: a machine that stands still is no lost script.
        shop = shop_on(server, redislock_socket_timeout=5.0)
        visits = Visits(shop, "transfer", "raise")
        with _again_and_again(server, lambda client: client.script_flush(), every=0.01) as done:
            told = [visits.pay(name) for name in visits.names * 10]

        assert done[0] > 30
        assert shop.unanswered == 0
        assert all(visit.was_published and visit.was_exclusive for visit in told)
        assert violations(shop.history) == []

    @pytest.mark.parametrize("operation", ["start", "transfer", "inspect"])
    def test_connections_killed_every_few_milliseconds_lose_no_task_and_leave_no_lock(
        self, server: EmbeddedServer, shop_on: ShopMaker, operation: str
    ) -> None:
        """Law 9: two kills in one call are an error that is told; the rest is nobody's business."""
        shop = shop_on(server)
        visits = Visits(shop, operation, "raise")
        with _again_and_again(server, _kill_the_others, every=0.003) as done:
            told = [visits.pay(name) for name in visits.names * 3]

        assert done[0] > 30
        assert len(shop.ran) == sum(visit.was_published for visit in told)
        assert violations(shop.history) == []
        assert wait_until(shop.is_free, PATIENCE)


class TestOutOfMemory:
    """``noeviction``: nothing more may be written."""

    def test_a_lock_is_given_back_and_no_other_granted(
        self, server: EmbeddedServer, shop_on: ShopMaker
    ) -> None:
        shop = shop_on(server)
        sale = Sale(shop, lambda _task: _fill(shop))
        assert sale.publish_and_run() == "sold"

        assert shop.locks() == []
        with pytest.raises(LockUnavailable, match=r"OOM|maxmemory"):
            sale.task.delay("thing")
        assert shop.messages() == []
        _fill(shop, on=False)
        sale.is_over()

    def test_a_queued_task_waits_until_there_is_memory(
        self, server: EmbeddedServer, shop_on: ShopMaker
    ) -> None:
        shop = shop_on(server)
        sale = Sale(shop, _do_nothing)
        sale.task.delay("thing")
        _fill(shop)
        shop.serve_once()
        assert shop.ran == []
        _fill(shop, on=False)
        shop.serve()

        assert shop.ran == ["sale"]
        sale.is_over()

    def test_a_retry_is_not_lost(self, server: EmbeddedServer, shop_on: ShopMaker) -> None:
        def retry(task: Any) -> None:
            if not task.request.retries:
                _fill(shop)
                raise task.retry(countdown=0)

        shop = shop_on(server)
        sale = Sale(shop, retry)
        sale.publish_and_run()
        assert wait_until(lambda: shop.locks() == [], SECONDS_LATER)  # releases are carried out
        _fill(shop, on=False)
        shop.serve()

        assert shop.ran == ["sale"]
        sale.is_over()


class TestReadOnly:
    """The server became the replica of a master that is dead."""

    @pytest.mark.parametrize("stale", ["yes", "no"])
    def test_the_lock_is_given_back_when_it_is_a_primary_again(
        self, server: EmbeddedServer, shop_on: ShopMaker, stale: str
    ) -> None:
        """``READONLY``, and ``MASTERDOWN`` where a replica does not serve stale data."""

        def demote(_task: Any) -> None:
            shop.client.config_set("replica-serve-stale-data", stale)
            shop.client.replicaof("127.0.0.1", "1")

        shop = shop_on(server)
        sale = Sale(shop, demote, lock_ttl=60.0)
        assert sale.publish_and_run() == "sold"
        began = time.monotonic()
        with pytest.raises(LockUnavailable, match=r"(?i)read.?only|MASTERDOWN|master"):
            sale.task.delay("thing")
        assert time.monotonic() - began < 2 * SOCKET_TIMEOUT + 2.0
        assert shop.messages() == []
        shop.client.replicaof("NO", "ONE")

        assert wait_until(shop.is_free, SECONDS_LATER)
        sale.is_over()


class TestLoading:
    @pytest.fixture
    def slow_loader(self, tmp_path: Path) -> Iterator[EmbeddedServer]:
        """A server that reads its file slowly (``key-load-delay``, in µs)."""
        with EmbeddedServer(data_dir=tmp_path, extra_args=["--key-load-delay", "300"]) as server:
            yield server

    def test_what_happens_while_it_loads_is_made_good_when_it_has_loaded(
        self, slow_loader: EmbeddedServer, shop_on: ShopMaker
    ) -> None:
        """``LOADING``, between stretches of silence."""

        def load(_task: Any) -> None:
            restart.start()
            assert wait_until(lambda: _is_loading(slow_loader), 30)

        shop = shop_on(slow_loader)
        restart = threading.Thread(target=slow_loader.restart)
        sale = Sale(shop, load, lock_ttl=60.0)
        other = shop.unique(_nothing, name="shop.other")
        _write(shop, 10_000)
        sale.task.delay("thing")
        first = other.delay()
        shop.serve_once()
        with pytest.raises(LockUnavailable):
            other.apply_async(task_id="a third")
        assert restart.is_alive()
        restart.join(60)
        shop.serve()

        assert shop.ran == ["sale"]
        assert shop.state(first.id) == "SUCCESS"
        assert wait_until(shop.is_free, SECONDS_LATER)
        sale.is_over()


class TestWrongType:
    """Somebody keeps a list where the lock should be."""

    def test_nothing_is_published_and_the_error_names_the_key(
        self, server: EmbeddedServer, shop_on: ShopMaker
    ) -> None:
        shop = shop_on(server)
        sale = Sale(shop, _do_nothing)
        shop.client.rpush(_raw_key(shop), "something")

        with pytest.raises(LockKeyError, match="sale:thing"):
            sale.task.delay("thing")
        assert shop.messages() == []
        assert shop.watchdog.owes == 0

    def test_a_message_published_without_a_claim_fails_visibly(
        self, server: EmbeddedServer, shop_on: ShopMaker
    ) -> None:
        shop = shop_on(server)
        sale = Sale(shop, _do_nothing)
        shop.app.send_task(sale.task.name, ("thing",), task_id="t1")
        shop.client.rpush(_raw_key(shop), "something")

        assert isinstance(shop.run(), LockKeyError)
        assert shop.state("t1") == "FAILURE"

    def test_overwritten_under_a_body_it_is_left_alone_and_the_loss_told(
        self, server: EmbeddedServer, shop_on: ShopMaker
    ) -> None:
        """Law 3: the outcome is the body's; what is not ours is not touched."""

        def overwrite(task: Any) -> None:
            shop.client.delete(_raw_key(shop))
            shop.client.rpush(_raw_key(shop), "something")
            assert wait_until(lambda: task.lease.lost, PATIENCE)

        shop = shop_on(server)
        sale = Sale(shop, overwrite, lock_ttl=0.9)
        shop.door = None

        assert sale.publish_and_run() == "sold"
        assert shop.client.lrange(_raw_key(shop), 0, -1) == [b"something"]
        assert shop.watchdog.owes == 0


def _do_nothing(task: Any) -> None:
    """Sell at once."""


def _nothing() -> None:
    """Have a lock of one's own."""


def _raw_key(shop: WatchedShop) -> str:
    return f"{shop.prefix}:{{sale:thing}}:lock"


def _fill(shop: WatchedShop, *, on: bool = True) -> None:
    shop.client.config_set("maxmemory-policy", "noeviction")
    shop.client.config_set("maxmemory", 1 if on else 0)


def _write(shop: WatchedShop, number: int) -> None:
    with shop.client.pipeline(transaction=False) as pipeline:
        for each in range(number):
            pipeline.set(f"{shop.prefix}:ballast:{each}", "ballast", px=600_000)
        pipeline.execute()


def _is_loading(server: EmbeddedServer) -> bool:
    with suppress(redis.ConnectionError), closing(_once(server)) as client:
        client.ping()
        return False
    return True


def _once(server: EmbeddedServer) -> redis.Redis:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    client: redis.Redis = redis.Redis.from_url(
        server.redis_url, retry=Retry(NoBackoff(), 0), socket_timeout=5.0
    )
    return client


def _kill_the_others(client: redis.Redis) -> None:
    client.client_kill_filter(_type="normal", skipme=True)


@contextmanager
def _again_and_again(
    server: EmbeddedServer, act: Callable[[redis.Redis], object], *, every: float
) -> Iterator[list[int]]:
    """Do it to the server for the block; yields how often it has been done."""
    ended, done = threading.Event(), [0]
    deadline = time.monotonic() + 60

    def abuse() -> None:
        with closing(_once(server)) as client:
            while not ended.wait(every) and time.monotonic() < deadline:
                act(client)
                done[0] += 1

    thread = threading.Thread(target=abuse, daemon=True)
    thread.start()
    try:
        yield done
    finally:
        ended.set()
        thread.join(PATIENCE)
