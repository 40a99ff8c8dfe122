"""Claim and publish in one step, where the lock server is the broker; and where not, the claim before."""

import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import Any

import pytest
import redis
from celery import Celery
from celery.signals import before_task_publish
from kombu import Connection, Exchange, Queue
from kombu import __version__ as kombu_version
from kombu.exceptions import EncodeError

from celery_redislock import LockUnavailable, SingletonTask
from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.locks import connect
from celery_redislock.locks.store import LARGEST, Grant
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.publishing import passage
from celery_redislock.publishing.call import Call
from tests.faults import Fault, FaultyProxy
from tests.integration.stores import ABOUT, RedisCase, granted, refused
from tests.servers import EmbeddedServer
from tests.tiers import slow
from tests.trips import Trips

#: Seconds.
SOCKET_TIMEOUT = 0.5

A, B = "job-a/abcdefghijkl", "job-b/mnopqrstuvwx"

#: Claims and publishes until it is killed: a number each, told before it begins.
PUBLISHER = """
import sys
from tests.integration.test_claim_and_publish import Shop
shop = Shop(sys.argv[1], name=sys.argv[2])
for number in range(int(sys.argv[3]), 100_000):
    print(number, flush=True)
    shop.pay.delay(number)
"""


#: Tells kombu's version, and what one publish asks for.
PUBLISH_ONE = """
import kombu, sys
from tests.integration.test_claim_and_publish import Shop
shop = Shop(sys.argv[1]).warm_up()
shop.pay.delay(1)
print(kombu.__version__, shop.asked)
"""


def pay(number: int, text: str = "") -> None:
    """What is never run here."""


class Shop:
    """An app whose broker and lock server are one; it writes down what it asks for."""

    def __init__(self, url: str, *, name: str | None = None, **conf: Any) -> None:
        self.name = name or f"shop-{secrets.token_hex(4)}"
        self.app = Celery(self.name, broker=url, set_as_current=False)
        settings = {
            "redislock_prefix": self.name,
            "redislock_socket_timeout": SOCKET_TIMEOUT,
            "task_default_queue": self.name,
            "task_ignore_result": True,
        }
        self.app.conf.update({**settings, **conf})
        self.pay = self.app.task(base=SingletonTask, lock_key="n:{number}", name="pay")(pay)
        self.store: Any = declaration_of(self.pay).store
        self.asked: list[str] = []
        for verb in ("acquire", "begin", "claim_and_push", "inspect"):
            self._write_down(verb)

    def _write_down(self, verb: str) -> None:
        ask = getattr(self.store, verb)

        def asked(*args: Any, **terms: Any) -> Any:
            self.asked.append(verb)
            return ask(*args, **terms)

        setattr(self.store, verb, asked)

    def warm_up(self) -> "Shop":
        """Connect, and let the server know the script: what is asked for from now on is the rule."""
        self.pay.delay(-1)
        self.asked.clear()
        return self

    def held(self) -> set[str]:
        """Return the names that are held."""
        return set(self.store.names()) - {"n:-1"}

    def messages(self, client: Any, queue: str | None = None) -> int:
        """Return how many messages there are, the first one not counted."""
        return int(client.llen(queue or self.name)) - (queue is None)


@pytest.fixture(autouse=True)
def _refused_none() -> None:
    """Each test's names are new to the process."""
    passage._refused.clear()


@pytest.fixture
def client(tcp_server: EmbeddedServer) -> Iterator[Any]:
    """A client that goes round the proxy."""
    with redis.Redis.from_url(tcp_server.redis_url) as client:
        yield client


@pytest.fixture
def shop(proxy: FaultyProxy) -> Shop:
    """A shop behind the proxy."""
    return Shop(proxy.url).warm_up()


# --- one step --------------------------------------------------------------------------------


def test_a_publish_asks_the_server_once_in_all(shop: Shop, client: Any) -> None:
    """Law 10: claim and message are one trip."""
    trips = Trips(client)

    shop.pay.delay(1)

    assert (trips(), shop.asked) == ({"evalsha": 1}, ["claim_and_push"])
    assert (shop.held(), shop.messages(client)) == ({"n:1"}, 1)


@pytest.mark.parametrize("task_id", ["é-1", 'a"b', "a\\b", "a\0b"], ids=ascii)
def test_whatever_a_task_id_is_made_of_its_claim_goes_with_its_message(shop: Shop, task_id: str) -> None:
    """Law 1: the header of such a message has the id escaped."""
    results = [shop.pay.apply_async((1,), task_id=one) for one in (task_id, f"{task_id}-2")]

    assert [result.is_duplicate for result in results] == [False, True]
    assert shop.asked == ["claim_and_push"] * 2


def test_queue_priority_and_prefix_stay_kombus(proxy: FaultyProxy, client: Any) -> None:
    """The key that kombu would push to."""
    options = {"global_keyprefix": f"{secrets.token_hex(4)}:", "priority_steps": [0, 5]}
    shop = Shop(proxy.url, broker_transport_options=options).warm_up()

    shop.pay.apply_async((1,), queue="other", priority=7)

    assert client.llen(f"{options['global_keyprefix']}other\x06\x165") == 1
    with shop.app.connection_for_read() as connection:
        message = shop.app.amqp.queues["other"](connection.default_channel).get(no_ack=True)
    assert message.headers["task"] == "pay"
    assert (shop.asked, shop.held()) == (["claim_and_push"], {"n:1"})


def test_a_refused_call_pushes_nothing_and_the_next_ones_of_its_task_are_asked_for_first(
    proxy: FaultyProxy,
) -> None:
    """No message is made in vain twice; and no subscription stays of the one that was."""
    shop = Shop(proxy.url, result_backend=proxy.url, task_ignore_result=False).warm_up()
    first = shop.pay.delay(1)
    consumer = shop.app.backend.result_consumer
    subscribed = set(consumer.subscribed_to)

    results = [shop.pay.delay(1) for _ in range(2)]

    assert [(result.id, result.is_duplicate) for result in results] == [(first.id, True)] * 2
    assert shop.asked == ["claim_and_push", "claim_and_push", "begin"]
    assert consumer.subscribed_to == subscribed
    shop.pay.lock_for(1).release(reason="a test")
    shop.asked.clear()
    assert not any(shop.pay.delay(number).is_duplicate for number in range(1, 4))
    assert shop.asked == ["begin", "claim_and_push", "claim_and_push"]


def test_the_first_publish_asks_who_holds_before_it_connects_to_the_broker(proxy: FaultyProxy) -> None:
    """Law 9: a broker that is away is waited for much longer than a lock server."""
    shop = Shop(proxy.url)

    shop.pay.delay(1)

    assert shop.asked == ["inspect", "claim_and_push"]


def test_a_claim_that_has_its_message_says_so(shop: Shop) -> None:
    """Law 2: nobody need wait for a publish that may still fail."""
    shop.pay.delay(1)

    assert shop.store.inspect("n:1").about["published"]


# --- nothing, or both ------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.RESET_IN_REPLY], ids=str)
def test_a_lost_answer_is_asked_for_again_and_pushes_once(
    shop: Shop, proxy: FaultyProxy, client: Any, fault: Fault
) -> None:
    """Law 2; plain Celery pushes twice there."""
    proxy.fail(fault, of="claim_and_push")

    result = shop.pay.delay(1)

    assert (proxy.fired, result.is_duplicate) == (1, False)
    assert (shop.held(), shop.messages(client)) == ({"n:1"}, 1)


@pytest.mark.parametrize("fault", [Fault.SILENCE, Fault.BLACK_HOLE], ids=str)
def test_without_an_answer_claim_and_message_are_both_there_or_neither(
    shop: Shop, proxy: FaultyProxy, client: Any, fault: Fault
) -> None:
    """Laws 2 and 9: it is not known, and said; nothing is owed, as a message must keep its claim."""
    proxy.fail(fault, of="claim_and_push", at=(1, 2))

    with pytest.raises(LockUnavailable, match=r"it is not known whether pay.* was published"):
        shop.pay.delay(1)

    there = fault is Fault.SILENCE
    assert (shop.held(), shop.messages(client)) == ({"n:1"} if there else set(), int(there))
    assert not watchdog_of(shop.store)._debts
    assert shop.pay.delay(1).is_duplicate is there


def test_run_publishes_without_a_claim_where_nobody_answers(
    shop: Shop, proxy: FaultyProxy, client: Any
) -> None:
    """``on_lock_error="run"``."""
    proxy.fail(Fault.BLACK_HOLE, of="claim_and_push", at=(1, 2))

    result = shop.pay.apply_async((1,), on_lock_error="run")

    assert not result.is_duplicate
    assert (shop.held(), shop.messages(client)) == (set(), 1)


def test_a_server_that_is_away_is_no_lock_server_in_time_and_leaves_nothing(client: Any) -> None:
    """Laws 2 and 9: neither claim nor message, and the same error as from a lock server of its own."""
    server = EmbeddedServer(port=0)
    with server:
        url = f"redis://127.0.0.1:{server.port}/0"
        shop = Shop(url, result_backend=url, task_ignore_result=False).warm_up()
        server.kill()
        with pytest.raises(LockUnavailable):
            shop.pay.delay(1)
        server.restart()

        assert not shop.pay.delay(1).is_duplicate


def test_without_a_connection_it_is_known_that_nothing_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server went away between the look at its connection and the message."""
    with EmbeddedServer(port=0) as server:
        shop = Shop(f"redis://127.0.0.1:{server.port}/0").warm_up()
    shop.store.close()
    monkeypatch.setattr(type(shop.store), "is_open", True)

    with pytest.raises(LockUnavailable, match=r"refused.*pay.* was not published"):
        shop.pay.delay(1)

    assert shop.asked == ["claim_and_push"]


def test_a_lock_server_that_is_away_is_asked_before_celery_waits_for_its_results_there(
    proxy: FaultyProxy,
) -> None:
    """Law 9: Celery subscribes to a result before it publishes, with twenty attempts a second apart."""
    with EmbeddedServer(port=0) as server:
        shop = Shop(
            proxy.url, redislock_url=server.url, result_backend=server.url, task_ignore_result=False
        ).warm_up()
    began = time.monotonic()

    with pytest.raises(LockUnavailable):
        shop.pay.delay(1)

    assert time.monotonic() - began < 2 * SOCKET_TIMEOUT + 3
    assert shop.asked[-1] == "begin"


def test_an_error_of_the_callers_claims_nothing(shop: Shop, client: Any) -> None:
    """A body that cannot be encoded."""
    with pytest.raises(EncodeError, match="not JSON serializable"):
        shop.pay.apply_async((1, object()))

    assert (shop.asked, shop.held(), shop.messages(client)) == ([], set(), 0)


@pytest.mark.parametrize("db", [0, 1], ids=["one step", "elsewhere"])
def test_an_error_after_the_message_has_left_leaves_its_claim(
    proxy: FaultyProxy, client: Any, db: int
) -> None:
    """Law 1: where there is a message there is its claim, whatever Celery does next."""
    locks = f"{proxy.url.removesuffix('/0')}/{db}"
    shop = Shop(proxy.url, redislock_url=locks, task_send_sent_event=True).warm_up()

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    shop.app.amqp._event_dispatcher.publish = fail

    with pytest.raises(ZeroDivisionError):
        shop.pay.delay(1)

    assert (shop.held(), shop.messages(client)) == ({"n:1"}, 1)


def test_a_publish_that_is_interrupted_at_once_costs_the_next_nothing(shop: Shop, client: Any) -> None:
    """Also where it has left its passage behind, on a producer of the pool."""
    with shop.app.producer_pool.acquire() as producer:
        producer._publish = passage.Passage.__new__(passage.Passage).publish
        producer._publish.__self__.call = Call(shop.pay, None, (0,), {}, None, {})
        producer._publish.__self__._publish = type(producer)._publish.__get__(producer)

        shop.app.send_task("another", producer=producer)
        assert not shop.pay.apply_async((1,), producer=producer).is_duplicate

    assert (shop.held(), shop.messages(client)) == ({"n:1"}, 2)


def test_a_repeated_request_opens_no_period_for_a_message_that_was_dropped(shop: Shop) -> None:
    """Law 2: nothing ran, and nothing will, so nothing refuses."""
    ask = partial(shop.store.claim_and_push, "k", A, 60.0, about=ABOUT, period=60.0, queue="q", text="m")
    granted(ask())
    shop.store.release("k", A, period_of=A)

    assert granted(ask()).repeated
    assert shop.store.inspect("k") is None


def test_a_killed_publisher_leaves_every_claim_with_its_message(
    tcp_server: EmbeddedServer, client: Any
) -> None:
    """Law 2: killed at any moment, a hundred times over."""
    name, number, url = f"shop-{secrets.token_hex(4)}", 0, f"redis://127.0.0.1:{tcp_server.port}/0"
    for _ in range(6):
        command = [sys.executable, "-c", PUBLISHER, url, name, str(number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as publisher:
            assert publisher.stdout is not None
            for line in publisher.stdout:
                number = int(line) + 1
                if number % 37 == 36:
                    publisher.send_signal(signal.SIGKILL)
                    break
    shop = Shop(url, name=name)

    held = set(shop.store.names(limit=10_000))
    queued = client.lrange(name, 0, -1)
    assert number > 200
    assert len(held) == len(queued)


def test_a_message_that_was_pushed_is_not_pushed_again_after_its_run(server_case: RedisCase) -> None:
    """A request that is repeated late: its job has run, and perhaps somebody else holds by now."""
    case = server_case
    for name, holder in (("free", None), ("taken", B), ("held", A)):
        queue = f"{case.prefix}-{name}"
        terms: dict[str, Any] = {"queue": queue, "text": "{}", "about": ABOUT, "period": None}
        assert not granted(case.redis.claim_and_push(name, A, 30.0, **terms)).repeated
        if holder != A:
            case.redis.release(name, A)
        if holder == B:
            case.redis.acquire(name, B, 30.0, about=ABOUT)

        answer = case.redis.claim_and_push(name, A, 30.0, **terms)

        assert granted(answer).repeated
        assert case.client.llen(queue) == 1
        assert case.holder(name) == holder
        case.client.delete(queue)


@pytest.mark.parametrize("is_held", [True, False])
def test_a_period_refuses_a_step_and_begins_with_one(server_case: RedisCase, *, is_held: bool) -> None:
    """``lock_period``, as an acquire does."""
    case = server_case
    queue = f"{case.prefix}-queue"
    terms: dict[str, Any] = {"queue": queue, "text": "{}", "about": ABOUT, "period": 60.0}
    assert isinstance(case.redis.claim_and_push("n", A, 30.0, **terms), Grant)
    if not is_held:
        case.redis.release("n", A)

    hold = refused(case.redis.claim_and_push("n", B, 30.0, **terms)).hold

    assert (hold.token, hold.is_period) == (A, not is_held)
    assert case.client.llen(queue) == 1
    assert case.redis.names() == ["n"]
    case.redis.release("n", A, period_of=A)
    assert isinstance(case.redis.claim_and_push("n", B, 30.0, **terms), Grant)
    case.client.delete(queue)


@pytest.mark.parametrize("forbidden", ["-zadd", "-time", "-lpush"])
def test_what_a_server_refuses_has_pushed_nothing(plain_case: RedisCase, forbidden: str) -> None:
    """Laws 1 and 2: it is published another way then, and a message that was pushed would be there twice."""
    case = plain_case
    acl: Any = partial(case.client.execute_command, "ACL")
    acl("SETUSER", case.prefix, "on", "nopass", "~*", "&*", "+@all", forbidden)
    try:
        url = case.url.replace("://", f"://{case.prefix}:x@", 1)
        terms: Any = {"queue": f"{case.prefix}-queue", "text": "{}", "about": ABOUT, "period": 60.0}
        with closing(connect(url, prefix=case.prefix)) as store, pytest.raises(LockUnavailable) as caught:
            store.claim_and_push("n", A, 30.0, **terms)
    finally:
        acl("DELUSER", case.prefix)

    assert caught.value.was_refused
    assert case.client.llen(f"{case.prefix}-queue") == 0
    if forbidden == "-lpush":
        assert case.keys() == []


def test_a_queue_that_is_no_list_leaves_no_claim(shop: Shop, client: Any) -> None:
    """Law 2: the message cannot be pushed, so there is none."""
    client.set("no list", "1")

    with pytest.raises(Exception, match="WRONGTYPE"):
        shop.pay.apply_async((1,), queue="no list")

    assert shop.held() == set()


# --- the other way ---------------------------------------------------------------------------


def _receiving() -> AbstractContextManager[Any]:
    class Receiving:
        def __enter__(self) -> None:
            before_task_publish.connect(self.hear)

        def __exit__(self, *_: object) -> None:
            before_task_publish.disconnect(self.hear)

        def hear(self, **_: object) -> None:
            """Hear of a publish."""

    return Receiving()


OTHER_WAYS: dict[str, dict[str, Any]] = {
    "a receiver is told before": {"within": _receiving},
    "replicas must confirm": {"conf": {"redislock_min_replicas": 1}, "fails": True},
    "another database": {"db": 1},
    "a named exchange": {
        "conf": {"task_queues": [Queue("topics", Exchange("topics", type="topic"), routing_key="a.#")]},
        "options": {"queue": "topics"},
        "queue": "topics",
    },
    "a queue that expires": {
        "conf": {"task_queues": [Queue("soon", expires=60)]},
        "options": {"queue": "soon"},
        "queue": "soon",
    },
    "a fanout": {
        "conf": {"task_queues": [Queue("all", Exchange("all", type="fanout"))]},
        "options": {"queue": "all"},
        "queue": "all",
        "count": 0,
    },
    "a large message": {"kwargs": {"text": "x" * LARGEST}},
    "a connection of the caller's": {"options": lambda url: {"connection": Connection(url)}},
}


@pytest.mark.parametrize("way", OTHER_WAYS)
def test_elsewhere_the_claim_is_asked_for_before_the_message(
    proxy: FaultyProxy, client: Any, way: str
) -> None:
    """The other way, with the same outcome."""
    row = OTHER_WAYS[way]
    locks = proxy.url.removesuffix("/0") + f"/{row.get('db', 0)}"
    shop = Shop(proxy.url, redislock_url=locks, **row.get("conf", {}))
    options = row.get("options", {})
    options = options(proxy.url) if callable(options) else options
    with row.get("within", nullcontext)():
        if row.get("fails"):
            with pytest.raises(LockUnavailable, match="replicas"):
                shop.pay.delay(1)
            assert "claim_and_push" not in shop.asked
            return
        shop.warm_up()
        results = [shop.pay.apply_async((1,), row.get("kwargs", {}), **options) for _ in range(2)]

    assert [result.is_duplicate for result in results] == [False, True]
    assert "claim_and_push" not in shop.asked
    assert (shop.held(), shop.messages(client, row.get("queue"))) == ({"n:1"}, row.get("count", 1))


@pytest.fixture
def away(proxy: FaultyProxy) -> Shop:
    """A shop whose locks are in another database than the broker's messages."""
    return Shop(proxy.url, redislock_url=proxy.url.removesuffix("/0") + "/1").warm_up()


def test_elsewhere_the_message_is_built_while_the_lock_server_answers(
    away: Shop, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 10: the time of one, not of both; and it leaves after the answer was read."""
    steps: list[str] = []
    begin = away.store.begin

    def begun(*args: Any, **terms: Any) -> Any:
        steps.append("asked")
        read = begin(*args, **terms)

        def answered() -> Any:
            steps.append("answered")
            return read()

        return answered

    monkeypatch.setattr(away.store, "begin", begun)
    monkeypatch.setattr(type(away.app.tasks["pay"]), "shadow_name", lambda *_: steps.append("built"))

    results = [away.pay.delay(1) for _ in range(3)]

    assert [result.is_duplicate for result in results] == [False, True, True]
    assert steps == [*["asked", "built", "answered"] * 2, "asked", "answered"]
    assert away.messages(client) == 1


def test_elsewhere_a_message_that_cannot_be_built_leaves_no_claim(away: Shop, client: Any) -> None:
    """Law 2: what was asked for meanwhile is released, at once."""
    with pytest.raises(EncodeError):
        away.pay.apply_async((1, object()))

    assert (away.asked, away.held(), away.messages(client)) == (["begin"], set(), 0)
    assert not watchdog_of(away.store)._debts


def test_a_step_that_the_server_refuses_is_taken_apart_from_then_on(
    shop: Shop, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a user may not push; a DEBUG line says so once."""
    caplog.set_level(logging.DEBUG, "celery_redislock")

    def refuse(*_: Any, **__: Any) -> None:
        shop.asked.append("claim_and_push")
        error = LockUnavailable(shop.store.server, "claim_and_push", "NOPERM")
        error.was_refused = True
        raise error

    shop.store.claim_and_push = refuse

    results = [shop.pay.delay(number) for number in (1, 2, 1)]

    assert [result.is_duplicate for result in results] == [False, False, True]
    assert shop.asked == ["claim_and_push", "begin", "begin", "begin"]
    assert (shop.held(), shop.messages(client)) == ({"n:1", "n:2"}, 2)
    assert caplog.text.count("takes no messages") == 1


def test_an_unknown_kombu_is_used_the_other_way(
    proxy: FaultyProxy, client: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its channel puts a message by another command; a DEBUG line says so."""
    from kombu.transport.redis import Channel

    def put(channel: Any, queue: str, message: Any, **_: Any) -> None:
        with channel.conn_or_acquire() as anybody:
            anybody.execute_command("LPUSH", queue, "{}")

    caplog.set_level(logging.DEBUG, "celery_redislock")
    monkeypatch.setattr(Channel, "_put", put)
    shop = Shop(proxy.url).warm_up()

    shop.pay.delay(1)

    assert shop.asked == ["begin"]
    assert (shop.held(), shop.messages(client)) == ({"n:1"}, 1)
    assert "not as it is known here" in caplog.text


def test_a_publish_within_a_publish_through_the_same_producer_keeps_claims_apart(
    shop: Shop, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 1: the claim of one never goes with the message of another."""
    with shop.app.producer_pool.acquire(block=True) as producer:

        def name(_: Any, args: Any, *__: Any) -> None:
            if args == (1,):
                shop.pay.apply_async((2,), producer=producer)
                assert (shop.held(), shop.messages(client)) == ({"n:2"}, 1)

        monkeypatch.setattr(type(shop.app.tasks["pay"]), "shadow_name", name)
        shop.pay.apply_async((1,), producer=producer)

    assert (shop.held(), shop.messages(client)) == ({"n:1", "n:2"}, 2)
    assert shop.asked.count("claim_and_push") == 1
    assert "_publish" not in producer.__dict__


def test_publishes_that_meet_on_one_channel_keep_claims_apart(shop: Shop, client: Any) -> None:
    """Law 1: as where threads have producers of their own on one connection."""
    push = shop.store.claim_and_push
    with shop.app.connection_for_write() as connection:
        one, other = (shop.app.amqp.Producer(connection) for _ in range(2))

        def meet(name: str, *args: Any, **terms: Any) -> Any:
            if name == "n:1":
                results = [shop.pay.apply_async((2,), producer=other) for _ in range(2)]
                assert [result.is_duplicate for result in results] == [False, True]
            return push(name, *args, **terms)

        shop.store.claim_and_push = meet
        shop.pay.apply_async((1,), producer=one)
        assert "_put" not in connection.default_channel.__dict__

    assert (shop.held(), shop.messages(client)) == ({"n:1", "n:2"}, 2)


@pytest.mark.parametrize("release", [slow("5.5.2"), slow("5.5.*"), slow("5.6.*"), "installed"])
def test_kombu_has_the_seam(
    proxy: FaultyProxy, tmp_path_factory: pytest.TempPathFactory, release: str
) -> None:
    """Each one from the lowest supported version on, with the Celery of its time."""
    place = tmp_path_factory.mktemp("kombu")
    if release != "installed":
        celery = "5.5.0" if release == "5.5.2" else release
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place)]
        subprocess.run([*pip, f"kombu=={release}", f"celery=={celery}"], check=True, timeout=120)
    program = [sys.executable, "-c", PUBLISH_ONE, proxy.url]

    done = subprocess.check_output(
        program, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(place)}
    )

    version, asked = done.split(maxsplit=1)
    assert version.startswith(release.rstrip("*") if release != "installed" else kombu_version)
    assert asked.strip() == "['claim_and_push']"
