"""Where results are kept on the lock server, the script that stores one releases the lock as well."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import datetime, timezone
from typing import Any

import pytest
from celery.backends.redis import RedisBackend
from celery.signals import task_success

from celery_redislock.embedded import EmbeddedServer
from celery_redislock.running import finish
from tests.facts import wait_until
from tests.faults import Fault, FaultyProxy
from tests.integration.watched_shop import PATIENCE, WatchedShop
from tests.unit.shop import raising

pytestmark = [
    pytest.mark.law(5),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]

ShopMaker = Callable[..., WatchedShop]


@pytest.fixture
def open_shop(tcp_server: EmbeddedServer, prefix: str) -> Iterator[ShopMaker]:
    """Opens a shop whose results are on its lock server; ``asked`` there is every script it has sent."""
    shops: list[WatchedShop] = []

    def open_shop(url: str = f"redis://127.0.0.1:{tcp_server.port}/0", **settings: Any) -> WatchedShop:
        of_results = {"result_backend": url, "accept_content": ["json", "pickle", "yaml"]}
        shops.append(shop := WatchedShop(url, tcp_server.redis_url, prefix, **{**of_results, **settings}))
        return shop

    yield open_shop
    for shop in shops:
        with closing(shop):
            shop.app.backend.client.close()


def asked_of(shop: WatchedShop) -> list[str]:
    """Return the names of the scripts a shop sends from now on."""
    asked: list[str] = []
    begin = shop.locked_on._scripts.begin

    def noted(operation: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(operation)
        return begin(operation, *args, **kwargs)

    shop.locked_on._scripts.begin = noted
    return asked


def key_of(shop: WatchedShop, task_id: str = "t") -> str:
    """Return where Celery keeps a result."""
    return str(shop.app.backend.get_key_for_task(task_id).decode())


def run(shop: WatchedShop, task: Any, *args: Any, **options: Any) -> Any:
    """Publish a call under the id ``t``, and run it."""
    task.apply_async(args, task_id="t", **options)
    return shop.run()


def succeed(account_id: int = 7) -> dict[str, Any]:
    return {"ä": [account_id, None]}


def fail(account_id: int = 7) -> None:
    raise ValueError(account_id)


def return_what_nobody_encodes() -> object:
    return object()


def return_much() -> str:
    return "x" * 300_000


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "extended": {"result_extended": True},
    "for ever": {"result_expires": 0},
    "for ever too": {"result_expires": None},
    "for a while": {"result_expires": 100, "result_failure_expires": 50},
    "yaml": {"result_serializer": "yaml"},
    "pickle": {"result_serializer": "pickle"},
    "compressed": {"result_compression": "gzip"},
}


@pytest.mark.parametrize("body", [succeed, fail])
@pytest.mark.parametrize("settings", SETTINGS)
def test_what_is_stored_and_announced_is_what_celery_stores(
    open_shop: ShopMaker, monkeypatch: pytest.MonkeyPatch, settings: str, body: Callable[..., Any]
) -> None:
    """The same bytes for the same time, on the same channel, in every form that Celery knows."""
    shop = open_shop(**SETTINGS[settings])
    task = shop.unique(body, track_started=True)
    shop.app.now = lambda: datetime(2026, 1, 1, tzinfo=timezone.utc)
    backend, key = shop.app.backend, key_of(shop)
    channel = shop.client.pubsub(ignore_subscribe_messages=True)
    asked = asked_of(shop)
    seen = []
    for joining in (lambda *_: None, finish._joining):  # Celery's own way, and then ours
        monkeypatch.setattr(finish, "_joining", joining)
        asked.clear()
        shop.client.delete(key)
        channel.subscribe(key)
        run(shop, task)
        announced = []
        wait_until(lambda heard=announced: heard.append(channel.get_message()) or len(heard) > 9, PATIENCE)
        channel.unsubscribe(key)
        told = [each["data"] for each in announced if each is not None]
        seen.append((shop.client.get(key), told, shop.client.ttl(key) // 10, [*asked]))
        assert shop.is_free()
    channel.close()

    (value, told, left, _), ours = seen
    is_in_one = isinstance(backend.encode({}), str)
    assert ours == (
        value,
        told,
        left,
        ["acquire", "acquire", "release_and_store" if is_in_one else "release"],
    )
    assert told[-1] == value


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (return_what_nobody_encodes, {}),
        (fail, {"lock_period": 600}),
        (fail, {"ignore_result": True, "store_errors_even_if_ignored": True}),
    ],
    ids=["a result that cannot be encoded", "with its period", "although results are ignored"],
)
def test_a_failure_is_stored_and_releases_in_one_step(open_shop: ShopMaker, body: Any, options: Any) -> None:
    """Whatever is stored as the end does: nobody sees the failure before the job can be run again."""
    shop = open_shop()
    task = shop.unique(body, **options)
    asked = asked_of(shop)
    run(shop, task)
    assert shop.state("t") == "FAILURE"
    assert asked == ["acquire", "acquire", "release_and_store"]
    assert task.lock_for().holder() is None
    assert shop.is_free()


def test_the_result_of_another_task_releases_nothing(open_shop: ShopMaker) -> None:
    """Only the run's own is its end: here one is stored while its own is being encoded."""
    shop = open_shop()
    holders = []

    class Storing:
        def __json__(self) -> str:
            shop.app.backend.store_result("other", 1, "SUCCESS", request=task.request)
            holders.append(task.lock_for().holder())
            return "stored"

    def body(account_id: int = 7) -> Storing:
        return Storing()

    task = shop.unique(body)
    run(shop, task)

    assert shop.state("other") == shop.state("t") == "SUCCESS"
    assert holders
    assert None not in holders
    assert shop.is_free()


#: What is there, whether Celery would store over it, and whether the script can tell.
BEFORE: Mapping[str, tuple[object, bool]] = {
    "success": ({"status": "SUCCESS", "result": "first"}, False),
    "success, written otherwise": ({"result": "first", "status": "SUCCESS"}, False),
    "failure": ({"status": "FAILURE", "result": {"exc_type": "KeyError", "exc_message": ["x"]}}, True),
    "a state of one's own": ({"status": "HALF-WAY", "result": 1}, True),
    "another letter": ({"status": "ÄHM", "result": 1}, True),
    "started, written otherwise": ({"result": None, "status": "STARTED"}, True),
    "empty": (None, True),
}


@pytest.mark.parametrize("before", BEFORE)
def test_a_result_never_replaces_a_recorded_success(open_shop: ShopMaker, before: str) -> None:
    """What Celery decides from what is there, the script decides, or leaves to Celery."""
    shop = open_shop()
    task = shop.unique(succeed)
    meta, is_replaced = BEFORE[before]
    shop.client.set(key_of(shop), "" if meta is None else json.dumps(meta))
    asked = asked_of(shop)
    run(shop, task)
    after = json.loads(shop.client.get(key_of(shop)))
    assert (after == meta) is not is_replaced
    assert asked[-1] == "release_and_store"
    assert shop.is_free()


class Derived(RedisBackend):
    """Somebody's own."""


def _in_another_database(shop: WatchedShop, task: Any) -> None:
    shop.app.conf.result_backend = shop.app.conf.result_backend[:-1] + "1"


def _as_another_user(shop: WatchedShop, task: Any) -> None:
    shop.app.conf.result_backend = shop.app.conf.result_backend.replace("//", "//default:x@")


def _of_another_class(shop: WatchedShop, task: Any) -> None:
    task.backend = Derived(app=shop.app, url=shop.app.conf.result_backend)


def _of_another_celery(shop: WatchedShop, task: Any) -> None:
    def _store_result(self: Any, *args: Any, **kwargs: Any) -> Any:
        return stores(self, *args, **kwargs)

    stores, RedisBackend._store_result = RedisBackend._store_result, _store_result


def _with(**options: Any) -> Callable[[WatchedShop, Any], dict[str, Any]]:
    return lambda shop, _: {
        name: shop.other.si() if given == "other" else given for name, given in options.items()
    }


@pytest.mark.parametrize(
    ("how", "body"),
    [
        (_in_another_database, succeed),
        (_as_another_user, succeed),
        (_of_another_class, succeed),
        (_of_another_celery, succeed),
        (_with(link="other"), succeed),
        (_with(link_error="other"), succeed),
        (_with(ignore_result=True), succeed),
        (_with(), return_much),
    ],
    ids=[
        *("another database", "another user", "another class", "another Celery"),
        *("a link", "an errback", "no result", "a large result"),
    ],
)
def test_elsewhere_a_release_comes_first(open_shop: ShopMaker, monkeypatch: Any, how: Any, body: Any) -> None:
    """A backend elsewhere is left alone. A link is published before the result is stored.

    What is not stored releases nothing; and a large result may take longer than the lock server is given.
    """
    monkeypatch.setattr(RedisBackend, "_store_result", RedisBackend._store_result)
    shop = open_shop()
    shop.other = shop.app.task(succeed, name="other", shared=False)
    task = shop.unique(body)
    options = how(shop, task) or {}
    asked = asked_of(shop)
    assert run(shop, task, **options) == body() or body is succeed
    assert asked[:3] == ["acquire", "acquire", "release"]
    assert len(asked) == 3 or "link" in options
    if body is succeed and not options:
        assert "_store_result" not in task.backend.__dict__
    assert shop.is_free()


@pytest.mark.parametrize("is_derived", [True, False])
def test_a_backend_that_was_changed_since_is_left_alone(open_shop: ShopMaker, *, is_derived: bool) -> None:
    """Law 2: results are stored where the task keeps them now."""
    shop = open_shop()
    task, url = shop.unique(succeed), shop.app.conf.result_backend
    run(shop, task)
    task.backend = (Derived if is_derived else RedisBackend)(app=shop.app, url=url[:-1] + "1")
    asked = asked_of(shop)
    run(shop, task)
    assert asked == ["acquire", "acquire", "release"]
    assert task.backend.get_task_meta("t")["status"] == "SUCCESS"
    task.backend.client.delete(key_of(shop))
    task.backend.client.close()


class Slow:
    """A result that takes its time to be encoded."""

    def __init__(self, takes: Callable[[], object]) -> None:
        self.takes = takes

    def __json__(self) -> bool:
        return bool(self.takes())


@pytest.mark.law(1)
def test_the_lock_is_kept_alive_until_the_result_is_sent(open_shop: ShopMaker) -> None:
    """A result may take longer to be encoded than a lease lives."""
    shop = open_shop()

    def return_slowly() -> Slow:
        return Slow(lambda: wait_until(lambda: shop.watchdog.renewals > 3, PATIENCE) and shop.locks())

    task = shop.unique(return_slowly, lock_ttl=0.5)
    assert run(shop, task) is True
    assert shop.is_free()


@pytest.mark.law(8)
def test_a_message_that_can_come_again_leaves_its_mark_with_the_result(open_shop: ShopMaker) -> None:
    """Who sees the result finds the mark ``ending``; then it says so."""
    shop = open_shop()
    task = shop.unique(succeed, acks_late=True)

    def marks() -> list[bytes]:
        return [shop.client.get(name) for name in shop.client.scan_iter(f"{shop.prefix}:*mark:*")]

    seen = []
    with_result = task_success.connect(lambda **_: seen.append((shop.state("t"), marks())), weak=False)
    asked = asked_of(shop)
    try:
        run(shop, task)
    finally:
        task_success.disconnect(with_result)

    assert seen == [("SUCCESS", [b"ending"])]
    assert asked == ["acquire", "acquire", "release_and_store"]
    assert wait_until(lambda: marks() == [b"1"], PATIENCE)


@pytest.mark.law(4)
@pytest.mark.parametrize("trouble", ["another type", "never stored"])
def test_a_result_that_is_not_stored_releases_the_lock(open_shop: ShopMaker, trouble: str) -> None:
    """``task_postrun`` releases. The result's trouble is Celery's to tell."""
    shop = open_shop()
    shop.unique(succeed).apply_async(task_id="t")
    if trouble == "another type":
        shop.client.lpush(key_of(shop), "not a result")
        told: Any = pytest.raises(Exception, match="WRONGTYPE")
    else:
        shop.app.backend.store_result = raising(RuntimeError)
        told = pytest.warns(RuntimeWarning, match="RuntimeError")
    with told:
        shop.run()
    assert shop.is_free()
    shop.client.delete(key_of(shop))


@pytest.mark.law(9)
@pytest.mark.parametrize("calls", [(1,), (1, 2)], ids=["once", "twice"])
@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name)
def test_no_fault_loses_a_result_or_leaves_a_lock(
    open_shop: ShopMaker,
    proxy: FaultyProxy,
    caplog: pytest.LogCaptureFixture,
    fault: Fault,
    calls: tuple[int, ...],
) -> None:
    """Asked twice, the script does once what it does; unanswered, the release is owed and Celery stores."""
    shop = open_shop(proxy.url)
    task = shop.unique(succeed)
    run(shop, task)
    shop.client.delete(key_of(shop))
    proxy.delay = 0.5
    proxy.fail(fault, of="release_and_store", at=calls)
    began = time.monotonic()
    run(shop, task)

    assert proxy.fired
    assert time.monotonic() - began < PATIENCE
    assert shop.meta("t")["result"] == succeed()
    assert wait_until(shop.is_free, PATIENCE)
    assert "no longer held" not in caplog.text
