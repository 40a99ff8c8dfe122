"""A task beside a lock server in trouble, in one process; ``test_law_9_server_trouble`` has workers."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_redislock import LockKeyError, LockLost
from tests.facts import wait_until
from tests.history import violations
from tests.integration.visits import Visits
from tests.integration.watched_shop import PATIENCE, NextCustomer, WatchedShop
from tests.servers import EmbeddedServer
from tests.stores import server_names, start_server

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


class TestPaused:
    """SIGSTOP: connections open, nothing answered; what was sent is carried out when it goes on."""

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

    @pytest.mark.parametrize("operation", ["start", "hand_on", "inspect"])
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
    """``noeviction``: nothing more is accepted."""

    def test_a_retry_keeps_its_lock(self, server: EmbeddedServer, shop_on: ShopMaker) -> None:
        def retry(task: Any) -> None:
            if not task.request.retries:
                _fill(shop)
                raise task.retry(countdown=0)

        shop = shop_on(server)
        sale = Sale(shop, retry)
        sale.publish_and_run()
        assert sale.task.lock_for("thing").holder().state == "queued"
        shop.serve()

        assert shop.ran == ["sale"]
        _fill(shop, on=False)
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
        assert len(shop.watchdog._debts) == 0

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
        assert len(shop.watchdog._debts) == 0


def _do_nothing(task: Any) -> None:
    """Sell at once."""


def _raw_key(shop: WatchedShop) -> str:
    return f"{shop.prefix}:{{sale:thing}}:lock"


def _fill(shop: WatchedShop, *, on: bool = True) -> None:
    shop.client.config_set("maxmemory-policy", "noeviction")
    shop.client.config_set("maxmemory", 1 if on else 0)


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
