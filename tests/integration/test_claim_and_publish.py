"""Claim and publish in one step, where the lock server is the broker; and where not, the claim before."""

import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import redis
from celery import Celery
from celery.app.trace import build_tracer
from celery.signals import before_task_publish
from kombu import Connection, Exchange, Queue
from kombu import __version__ as kombu_version
from kombu.exceptions import EncodeError

from celery_redislock import DuplicateTask, LockKeyError, LockUnavailable, SingletonTask
from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.locks import connect, keylock
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.publishing import claim
from celery_redislock.publishing.message import TICK, tick_id, tick_token
from celery_redislock.store.store import LARGEST
from tests.faults import Fault, FaultyProxy
from tests.servers import EmbeddedServer
from tests.stores import ABOUT, RedisCase, granted, refused
from tests.tiers import slow
from tests.trips import Trips
from tests.unit.shop import Shop, carried, raising

#: Seconds.
SOCKET_TIMEOUT = 0.5

A, B = "job-a/abcdefghijkl", "job-b/mnopqrstuvwx"

#: Claims and publishes until it is killed: a number each, told before it begins.
PUBLISHER = """
import sys
from tests.integration.test_claim_and_publish import Publisher
shop = Publisher(sys.argv[1], name=sys.argv[2])
for number in range(int(sys.argv[3]), 100_000):
    print(number, flush=True)
    shop.pay.delay(number)
"""


#: Tells kombu's version, and what one publish asks for.
PUBLISH_ONE = """
import kombu, sys
from tests.integration.test_claim_and_publish import Publisher
shop = Publisher(sys.argv[1]).warm_up()
shop.pay.delay(1)
print(kombu.__version__, shop.asked)
"""


#: One due time of an entry of a schedule, and the identity of its message.
A_TICK = "shop/pay@2026-06-01T12:00:00+00:00"
TICK_ID = tick_id(A_TICK)
TICK_TOKEN = f"{TICK_ID}/{TICK_ID[-12:]}"


def pay(number: int, text: str = "") -> None:
    """What is never run here."""


class Publisher(Shop):
    """A shop whose broker and lock server are one; it writes down what it asks for."""

    def __init__(self, url: str, **settings: Any) -> None:
        """Open it; it connects to nothing."""
        defaults = {
            "broker_url": url,
            "redislock_socket_timeout": SOCKET_TIMEOUT,
            "task_publish_retry": True,
            "task_ignore_result": True,
        }
        super().__init__(in_memory=False, **{**defaults, **settings})
        self.url = url
        self.app.conf.redislock_prefix = self.queue
        self.pay = self.unique(pay, name="pay", lock_key="n:{number}")
        self.store: Any = declaration_of(self.pay).store
        self.asked: list[str] = []
        for verb in ("acquire", "begin", "claim_and_push", "inspect", "look"):
            self._write_down(verb)

    def _write_down(self, verb: str) -> None:
        ask = getattr(self.store, verb)

        def asked(*args: Any, **terms: Any) -> Any:
            self.asked.append(verb)
            return ask(*args, **terms)

        setattr(self.store, verb, asked)

    def warm_up(self) -> "Publisher":
        """Connect, and let the server know the script: what is asked for from now on is the rule."""
        self.pay.delay(-1)
        self.messages()
        self.pay.lock_for(-1).release(reason="warm")
        self.asked.clear()
        return self

    def names(self) -> set[str]:
        """Return the names that are held."""
        return set(self.store.names())

    def count(self, client: Any, queue: str | None = None) -> int:
        """Return how many messages there are."""
        return int(client.llen(queue or self.queue))


def send_tick(shop: Publisher) -> Any:
    """Publish as a beat does."""
    return shop.pay.apply_async((1,), task_id=TICK_ID, headers={TICK: A_TICK})


@contextmanager
def receiving() -> Iterator[list[str]]:
    """Connect a receiver of ``before_task_publish``, as OpenTelemetry does; yield whom it was told of."""
    told: list[str] = []

    def hear(sender: str, **_: object) -> None:
        told.append(sender)

    before_task_publish.connect(hear)
    try:
        yield told
    finally:
        before_task_publish.disconnect(hear)


def taken_after_a_look(shop: Publisher) -> None:
    """Let another caller take the key between a look and the step that follows it."""
    look = shop.store.look

    def looked(name: str, *args: Any, **terms: Any) -> Any:
        answer = look(name, *args, **terms)
        connect(shop.url, prefix=shop.queue).acquire(name, B, 30.0, facts=ABOUT)
        return answer

    shop.store.look = looked


@pytest.fixture(autouse=True)
def _refused_none() -> None:
    """Each test's names are new to the process."""
    claim._refused.clear()


@pytest.fixture
def client(tcp_server: EmbeddedServer) -> Iterator[Any]:
    """A client that goes round the proxy."""
    with redis.Redis.from_url(tcp_server.redis_url) as client:
        yield client


@pytest.fixture
def shop(proxy: FaultyProxy) -> Publisher:
    """A shop behind the proxy."""
    return Publisher(proxy.url).warm_up()


def test_a_publish_asks_the_server_once_in_all(shop: Publisher, client: Any) -> None:
    """Law 10: claim and message are one trip."""
    trips = Trips(client)
    shop.pay.delay(1)
    assert (trips(), shop.asked) == ({"evalsha": 1}, ["claim_and_push"])
    assert (shop.names(), shop.count(client)) == ({"n:1"}, 1)
    assert shop.store.inspect("n:1").facts["published"]  # nobody need wait for a publish that may still fail


@pytest.mark.parametrize("task_id", ["é-1", 'a"b', "a\\b", "a\0b"], ids=ascii)
def test_whatever_a_task_id_is_made_of_its_claim_goes_with_its_message(shop: Publisher, task_id: str) -> None:
    """Law 1: the header of such a message has the id escaped."""
    results = [shop.pay.apply_async((1,), task_id=one) for one in (task_id, f"{task_id}-2")]
    assert [result.is_duplicate for result in results] == [False, True]
    assert shop.asked == ["claim_and_push"] * 2


def test_queue_priority_and_prefix_stay_kombus(proxy: FaultyProxy, client: Any) -> None:
    """The key that kombu would push to."""
    options = {"global_keyprefix": f"{secrets.token_hex(4)}:", "priority_steps": [0, 5]}
    shop = Publisher(proxy.url, broker_transport_options=options).warm_up()
    shop.pay.apply_async((1,), queue="other", priority=7)
    assert client.llen(f"{options['global_keyprefix']}other\x06\x165") == 1
    with shop.app.connection_for_read() as connection:
        message = shop.app.amqp.queues["other"](connection.default_channel).get(no_ack=True)
    assert message.headers["task"] == "pay"
    assert (shop.asked, shop.names()) == (["claim_and_push"], {"n:1"})


def test_a_refused_call_pushes_nothing_and_the_next_ones_of_its_task_look_first(proxy: FaultyProxy) -> None:
    """No message is made in vain twice; and no subscription stays of the one that was."""
    shop = Publisher(proxy.url, result_backend=proxy.url, task_ignore_result=False).warm_up()
    first = shop.pay.delay(1)
    consumer = shop.app.backend.result_consumer
    subscribed = set(consumer.subscribed_to)
    results = [shop.pay.delay(1) for _ in range(2)]
    assert [(result.id, result.is_duplicate) for result in results] == [(first.id, True)] * 2
    assert shop.asked == ["claim_and_push", "claim_and_push", "look"]
    assert consumer.subscribed_to == subscribed
    shop.pay.lock_for(1).release(reason="a test")
    shop.asked.clear()
    assert not any(shop.pay.delay(number).is_duplicate for number in range(1, 4))
    assert shop.asked == ["look", *["claim_and_push"] * 3]


def test_the_first_publish_looks_once_before_it_connects_to_the_broker(proxy: FaultyProxy) -> None:
    """Law 9: a broker that is away is waited for much longer than a lock server."""
    shop = Publisher(proxy.url)
    shop.pay.delay(1)
    assert shop.asked == ["look", "claim_and_push"]


def test_receivers_of_before_task_publish_hear_of_what_is_published(shop: Publisher, client: Any) -> None:
    """Laws 2 and 10: a look, then one step; a duplicate is known before they are told."""
    with receiving() as told:
        trips = Trips(client)
        accepted = shop.pay.delay(1)
        assert (trips()["evalsha"], shop.asked) == (2, ["look", "claim_and_push"])
        skipped = shop.pay.delay(1)
    assert (skipped.id, skipped.is_duplicate) == (accepted.id, True)
    assert (told, shop.count(client)) == (["pay"], 1)
    assert shop.asked == ["look", "claim_and_push", "look"]


def test_a_key_that_is_taken_after_the_look_is_refused_by_the_step(shop: Publisher, client: Any) -> None:
    """Law 1; the receivers have been told of a publish that does not happen."""
    taken_after_a_look(shop)
    with receiving() as told:
        result = shop.pay.delay(1)
    assert (result.is_duplicate, result.id) == (True, "job-b")
    assert (told, shop.count(client)) == (["pay"], 0)
    assert shop.asked == ["look", "claim_and_push"]


@pytest.mark.parametrize("taken", ["never", "before the look", "after the look"])
def test_a_member_of_a_workflow_is_published_with_a_claim_if_it_can(shop: Publisher, taken: str) -> None:
    """Law 2: no claim without its message. Law 6: else it waits on the worker, and runs in its turn."""
    if taken == "after the look":
        taken_after_a_look(shop)
    elif taken == "before the look":
        granted(shop.store.acquire("n:1", B, 30.0, facts=ABOUT))
    shop.asked.clear()
    is_claimed = taken == "never"
    result = shop.pay.apply_async((1,), group_id="g")
    assert not result.is_duplicate
    header = carried(shop.message())
    assert (header.claimed, header.must_run) == (is_claimed, True)
    assert shop.asked == ["look", *["claim_and_push"] * (taken != "before the look")]
    assert shop.store.inspect("n:1").token == (header.token if is_claimed else B)


def test_a_dead_runs_lease_is_released_for_a_look(shop: Publisher, client: Any, monkeypatch: Any) -> None:
    """Law 4: as for a claim; nothing would release it before it expires."""
    monkeypatch.setattr(keylock, "is_dead", lambda at: at == "a dead process")
    facts = '{"task":"pay","pid":1,"state":"running","at":"a dead process"}'
    granted(shop.store.acquire("n:1", B, 30.0, facts=facts))
    shop.asked.clear()
    with receiving():
        result = shop.pay.delay(1)
    assert (result.is_duplicate, shop.count(client)) == (False, 1)
    assert shop.asked == ["look", "look", "claim_and_push"]


@pytest.mark.parametrize("is_taken", [False, True], ids=["free", "taken"])
def test_a_retry_that_needs_a_claim_is_published_in_one_step(shop: Publisher, *, is_taken: bool) -> None:
    """Laws 2 and 7: its run has released the key at its start, and another call may have it by now."""

    def again(self: Any) -> None:
        if is_taken:
            granted(shop.store.acquire("again", B, 30.0, facts=ABOUT))
        shop.asked.clear()
        raise self.retry(countdown=0)

    options: Any = {"base": SingletonTask, "bind": True, "lock": "until_executing", "lock_key": "again"}
    task = shop.app.task(shared=False, **options)(again)
    task.delay()
    headers = shop.message().headers
    trace = build_tracer(task.name, task, app=shop.app)
    trace(headers["id"], (), {}, {**headers, "headers": headers})

    assert shop.asked[:2] == (["look"] if is_taken else ["look", "claim_and_push"])
    retried = carried(shop.message())
    assert (retried.claimed, retried.must_run) == (not is_taken, True)
    assert shop.store.inspect("again").token == (B if is_taken else retried.token)


def _connection(shop: Publisher) -> Any:
    return {"connection": Connection(shop.url)}


def _producer_as(name: str) -> Any:
    return lambda shop: {name: shop.app.amqp.Producer(Connection(shop.url))}


@pytest.mark.parametrize("given", [_connection, _producer_as("publisher"), _producer_as("producer")])
def test_a_connection_of_the_callers_carries_claim_and_message_in_one_step(
    shop: Publisher, client: Any, given: Any
) -> None:
    """Law 2. The first publish through it looks before it connects; the message leaves through it."""
    options = given(shop)
    (carrier,) = options.values()
    connection = carrier if isinstance(carrier, Connection) else carrier.connection
    results = [shop.pay.apply_async((number,), **options) for number in (1, 2, 1)]
    assert [result.is_duplicate for result in results] == [False, False, True]
    assert shop.asked == ["look", *["claim_and_push"] * 3]
    assert (shop.names(), shop.count(client)) == ({"n:1", "n:2"}, 2)
    assert connection._default_channel is not None


def test_a_look_without_an_answer_publishes_none(shop: Publisher, proxy: FaultyProxy, client: Any) -> None:
    """Law 9: nothing was asked for that could have been done."""
    proxy.fail(Fault.BLACK_HOLE, of="look", at=(1, 2))
    with receiving() as told, pytest.raises(LockUnavailable, match=r"pay.* was not published"):
        shop.pay.delay(1)
    assert (told, shop.names(), shop.count(client)) == ([], set(), 0)
    assert not watchdog_of(shop.store)._debts


@pytest.mark.parametrize(
    ("request_of", "options"),
    [("look", {"group_id": "g"}), ("claim_and_push", {"on_lock_error": "run"})],
    ids=["a workflow needs it", "as its task says"],
)
def test_what_must_be_published_is_without_a_claim_where_nobody_answers(
    shop: Publisher, proxy: FaultyProxy, request_of: str, options: dict[str, Any]
) -> None:
    """Law 6; and ``on_lock_error="run"``."""
    proxy.fail(Fault.BLACK_HOLE, of=request_of, at=(1, 2))
    result = shop.pay.apply_async((1,), **options)
    assert not result.is_duplicate
    assert [carried(message).claimed for message in shop.messages()] == [False]
    assert shop.names() == set()


def test_a_tick_is_claimed_and_pushed_without_a_look(proxy: FaultyProxy, client: Any) -> None:
    """Law 10: one trip, also with receivers, on a new connection, and after a refusal."""
    shop = Publisher(proxy.url)
    assert tick_token({TICK: A_TICK}, TICK_ID) == TICK_TOKEN
    claim._refused.add("pay")
    with receiving() as told:
        result = send_tick(shop)
    assert (result.id, result.is_duplicate, shop.asked) == (TICK_ID, False, ["claim_and_push"])
    assert (told, shop.names(), client.llen(shop.queue)) == (["pay"], {"n:1"}, 1)


@pytest.mark.parametrize(
    ("fault", "calls", "there"),
    [
        # It is asked for again, and pushes once; plain Celery pushes twice there.
        *((fault, 1, True) for fault in (Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.RESET_IN_REPLY)),
        (Fault.SILENCE, 2, True),
        (Fault.BLACK_HOLE, 2, False),
    ],
    ids=str,
)
def test_without_an_answer_claim_and_message_are_both_there_or_neither(
    shop: Publisher, proxy: FaultyProxy, client: Any, fault: Fault, calls: int, *, there: bool
) -> None:
    """Laws 2 and 9: if it is not known, that is said; nothing is owed, as a message must keep its claim.

    The connection to the broker is as good as before: kombu closes one through which an error goes.
    """
    with shop.app.producer_pool.acquire() as producer:
        channel = producer.channel
    proxy.fail(fault, of="claim_and_push", at=range(1, 1 + calls))
    unknown = pytest.raises(LockUnavailable, match=r"it is not known whether pay.* was published")
    with unknown if calls > 1 else nullcontext():
        assert not shop.pay.delay(1).is_duplicate
    with shop.app.producer_pool.acquire() as producer:
        assert calls == 1 or producer.channel is channel
    assert proxy.fired == calls
    assert (shop.names(), shop.count(client)) == ({"n:1"} if there else set(), int(there))
    assert not watchdog_of(shop.store)._debts
    assert shop.pay.delay(1).is_duplicate is there


def test_without_a_connection_it_is_known_that_nothing_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server went away between the look at its connection and the message."""
    with EmbeddedServer(port=0) as server:
        shop = Publisher(f"redis://127.0.0.1:{server.port}/0").warm_up()
    shop.store.close()
    monkeypatch.setattr(type(shop.store), "is_open", True)
    with pytest.raises(LockUnavailable, match=r"refused.*pay.* was not published"):
        shop.pay.delay(1)
    assert shop.asked == ["claim_and_push"]


def test_a_lock_server_that_is_away_is_asked_before_results_are_waited_for(proxy: FaultyProxy) -> None:
    """Law 9: Celery subscribes to a result before it publishes, with twenty attempts a second apart."""
    with EmbeddedServer(port=0) as server:
        shop = Publisher(
            proxy.url, redislock_url=server.url, result_backend=server.url, task_ignore_result=False
        ).warm_up()
    began = time.monotonic()
    with pytest.raises(LockUnavailable):
        shop.pay.delay(1)
    assert time.monotonic() - began < 2 * SOCKET_TIMEOUT + 3
    assert shop.asked[-1] == "begin"


@pytest.mark.parametrize(("db", "asked"), [(0, []), (1, ["begin"])], ids=["one step", "elsewhere"])
def test_a_message_that_cannot_be_built_leaves_no_claim(
    proxy: FaultyProxy, client: Any, monkeypatch: pytest.MonkeyPatch, db: int, asked: list[str]
) -> None:
    """Law 2: what was asked for meanwhile is released, at once."""
    shop = Publisher(proxy.url, redislock_url=f"{proxy.url.removesuffix('/0')}/{db}").warm_up()
    owed: list[object] = []
    monkeypatch.setattr(watchdog_of(shop.store), "owe", lambda *args, **_: owed.append(args))
    with pytest.raises(EncodeError, match="not JSON serializable"):
        shop.pay.apply_async((1, object()))
    assert (shop.asked, shop.names(), shop.count(client), owed) == (asked, set(), 0, [])


@pytest.mark.parametrize("db", [0, 1], ids=["one step", "elsewhere"])
def test_an_error_after_a_message_has_left_leaves_its_claim(proxy: FaultyProxy, client: Any, db: int) -> None:
    """Law 1: where there is a message there is its claim, whatever Celery does next."""
    locks = f"{proxy.url.removesuffix('/0')}/{db}"
    shop = Publisher(proxy.url, redislock_url=locks, task_send_sent_event=True).warm_up()
    shop.app.amqp._event_dispatcher.publish = raising(ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        shop.pay.delay(1)
    assert (shop.names(), shop.count(client)) == ({"n:1"}, 1)


def test_a_killed_publisher_leaves_each_claim_its_message(tcp_server: EmbeddedServer, client: Any) -> None:
    """Law 2: killed at any moment."""
    name, number, url = f"shop-{secrets.token_hex(4)}", 0, f"redis://127.0.0.1:{tcp_server.port}/0"
    for _ in range(3):
        command = [sys.executable, "-c", PUBLISHER, url, name, str(number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as publisher:
            assert publisher.stdout is not None
            for line in publisher.stdout:
                number = int(line) + 1
                if number % 37 == 36:
                    publisher.send_signal(signal.SIGKILL)
                    break
    shop = Publisher(url, name=name)

    held = set(shop.store.names(limit=10_000))
    queued = client.lrange(name, 0, -1)
    assert number > 100
    assert len(held) == len(queued)


@pytest.fixture
def queue(plain_case: RedisCase) -> str:
    """A queue on the server, removed with the case."""
    plain_case.foreign = (f"{plain_case.prefix}:queue",)
    return plain_case.foreign[0]


def push(case: RedisCase, token: str = A, ttl: float = 60.0, **terms: Any) -> Any:
    """Claim, and push to that queue."""
    return case.redis.claim_and_push("n", token, ttl, queue=case.foreign[0], text="{}", facts=ABOUT, **terms)


@pytest.mark.parametrize(
    ("holder", "period"),
    [(None, None), (B, None), (A, None), (None, 60.0)],
    ids=["free", "taken", "held", "dropped"],
)
def test_a_message_that_was_pushed_is_not_pushed_again_after_its_run(
    plain_case: RedisCase, queue: str, holder: str | None, period: float | None
) -> None:
    """A request that is repeated late: its job has run, and perhaps somebody else holds by now.

    Late is up to two socket timeouts, which are a second each here. Law 2: if its message was dropped nothing
    ran, and nothing will, so no period is opened.
    """
    case = plain_case
    assert not granted(push(case, period=period)).repeated
    assert (case.remaining(part="note:abcdefghijkl") or 0.0) > 2.0
    if holder != A:
        case.redis.release("n", A, opened_by=A)
    if holder == B:
        case.take(B)
    assert granted(push(case, period=period)).repeated
    assert case.client.llen(queue) == 1
    assert case.holder() == holder


@pytest.mark.parametrize("period", [None, 60.0])
def test_a_claim_without_message_gets_one(plain_case: RedisCase, queue: str, period: float | None) -> None:
    """Law 2: its publisher was killed between claim and message; another one has the same token, a beat's."""
    case = plain_case
    case.take(A, period=period)
    answers = [granted(push(case, period=period)) for _ in range(3)]
    assert [answer.repeated for answer in answers] == [True] * 3
    assert case.client.lrange(queue, 0, -1) == [b"{}"]
    assert (case.holder(), (case.remaining() or 0.0) > 30.0) == (A, True)


def test_anothers_claim_is_refused_and_its_message_is_not_pushed(plain_case: RedisCase, queue: str) -> None:
    """Law 1: only one's own claim, by its whole token, may get its message later."""
    plain_case.take("job-a/other", 30.0)
    assert refused(push(plain_case)).hold.token == "job-a/other"
    assert plain_case.client.llen(queue) == 0


def test_a_claim_whose_message_the_server_refuses_stays_as_it_was(plain_case: RedisCase, queue: str) -> None:
    """Law 2: the message of a claim that was there before may be on its way."""
    case = plain_case
    case.client.set(queue, "no list", px=60_000)
    case.take(A, period=60.0)
    with pytest.raises(LockKeyError, match="WRONGTYPE"):
        push(case, period=60.0)
    assert case.holder() == A
    assert (case.remaining(part="period") or 0.0) > 0.0
    assert case.redis.names() == ["n"]


@pytest.mark.parametrize("is_held", [True, False])
def test_a_period_refuses_a_step_and_begins_so(plain_case: RedisCase, queue: str, *, is_held: bool) -> None:
    """``lock_period``, as an acquire does."""
    case = plain_case
    granted(push(case, period=60.0))
    if not is_held:
        case.redis.release("n", A)
    hold = refused(push(case, B, period=60.0)).hold
    assert (hold.token, hold.is_period) == (A, not is_held)
    assert case.client.llen(queue) == 1
    assert case.redis.names() == ["n"]
    case.redis.release("n", A, opened_by=A)
    granted(push(case, B, period=60.0))


@pytest.mark.parametrize("forbidden", ["-zadd", "-time", "-lpush"])
def test_what_a_server_refuses_has_pushed_nothing(plain_case: RedisCase, forbidden: str) -> None:
    """Laws 1 and 2: it is published another way then, and a message that was pushed would be there twice."""
    case = plain_case
    acl: Any = partial(case.client.execute_command, "ACL")
    acl("SETUSER", case.prefix, "on", "nopass", "~*", "&*", "+@all", forbidden)
    try:
        url = case.url.replace("://", f"://{case.prefix}:x@", 1)
        terms: Any = {"queue": f"{case.prefix}-queue", "text": "{}", "facts": ABOUT, "period": 60.0}
        with closing(connect(url, prefix=case.prefix)) as store, pytest.raises(LockUnavailable) as caught:
            store.claim_and_push("n", A, 30.0, **terms)
    finally:
        acl("DELUSER", case.prefix)

    assert caught.value.was_refused
    assert case.client.llen(f"{case.prefix}-queue") == 0
    if forbidden == "-lpush":
        assert case.keys() == []


class SendsElsewhere(Celery):
    """Publishes through another producer than it is given, as a routing of one's own may do."""

    def send_task(self, *args: Any, **options: Any) -> Any:
        """Take one of the pool."""
        options["producer"] = None
        return super().send_task(*args, **options)


#: Where claim and message are one step, the ways to publish.
ONE_STEP: dict[str, dict[str, Any]] = {
    "at once": {},
    "a receiver is told": {"is_heard": True},
    "a member of a workflow": {"options": {"group_id": "g"}},
    "a tick": {"options": {"task_id": TICK_ID, "headers": {TICK: A_TICK}}},
    "a connection of the caller's": {"given": _connection},
}

#: Where they are not.
OTHER_WAYS: dict[str, dict[str, Any]] = {
    "a send_task of the app's own": {"kind": SendsElsewhere},
    "replicas must confirm": {"conf": {"redislock_min_replicas": 1}, "fails": "replicas"},
    "another database": {"db": 1},
    "a connection to another database": {
        "given": lambda shop: {"connection": Connection(f"{shop.url[:-1]}1")}
    },
    "a named exchange": {
        "queue": Queue("topics", Exchange("topics", type="topic"), routing_key="a.#"),
    },
    "a queue that expires": {"queue": Queue("soon", expires=60)},
    "a fanout": {"queue": Queue("all", Exchange("all", type="fanout")), "count": 0},
    "a large message": {"kwargs": {"text": "x" * LARGEST}},
}


def publisher_of(row: dict[str, Any], url: str) -> Publisher:
    """Open the shop of a way to publish."""
    locks = f"{url.removesuffix('/0')}/{row.get('db', 0)}"
    conf = {"task_queues": [row["queue"]]} if "queue" in row else row.get("conf", {})
    return Publisher(url, kind=row.get("kind", Celery), redislock_url=locks, **conf)


def options_of(row: dict[str, Any], shop: Publisher) -> dict[str, Any]:
    """Return the options of a publish in that way."""
    queue = {"queue": row["queue"].name} if "queue" in row else {}
    return {**queue, **row.get("options", {}), **row.get("given", lambda _shop: {})(shop)}


@pytest.mark.parametrize("way", OTHER_WAYS)
def test_elsewhere_a_claim_is_asked_for_before_a_message(proxy: FaultyProxy, client: Any, way: str) -> None:
    """The other way, with the same outcome."""
    row = OTHER_WAYS[way]
    shop = publisher_of(row, proxy.url)
    if row.get("fails"):
        with pytest.raises(LockUnavailable, match=row["fails"]):
            shop.pay.delay(1)
        assert "claim_and_push" not in shop.asked
        return
    shop.warm_up()
    options = options_of(row, shop)
    results = [shop.pay.apply_async((1,), row.get("kwargs", {}), **options) for _ in range(2)]

    assert [result.is_duplicate for result in results] == [False, True]
    assert "claim_and_push" not in shop.asked
    if way == "a connection to another database":
        client.execute_command("SELECT", 1)
        assert (shop.names(), client.llen(shop.queue)) == ({"n:1"}, 1)
        return
    assert (shop.names(), shop.count(client, options.get("queue"))) == ({"n:1"}, row.get("count", 1))


@pytest.mark.parametrize("way", [*ONE_STEP, "another database", "a send_task of the app's own"])
def test_a_broker_that_takes_no_message_leaves_no_claim(proxy: FaultyProxy, client: Any, way: str) -> None:
    """Law 2: without a message there is no claim, whichever of the two was first."""
    row = {**OTHER_WAYS, **ONE_STEP}[way]
    shop = publisher_of(row, proxy.url).warm_up()
    options = options_of(row, shop)
    client.set("no list", "1")
    with receiving() if row.get("is_heard") else nullcontext(), pytest.raises(Exception, match="WRONGTYPE"):
        shop.pay.apply_async((1,), queue="no list", **options)
    assert shop.names() == set()
    assert not watchdog_of(shop.store)._debts


def test_elsewhere_the_message_is_built_while_the_lock_server_answers(
    proxy: FaultyProxy, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 10: the time of one, not of both; and it leaves after the answer was read."""
    away = Publisher(proxy.url, redislock_url=proxy.url.removesuffix("/0") + "/1").warm_up()
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
    assert away.count(client) == 1


def test_a_step_that_a_server_refuses_is_taken_apart(shop: Publisher, client: Any, caplog: Any) -> None:
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
    assert (shop.names(), shop.count(client)) == ({"n:1", "n:2"}, 2)
    assert caplog.text.count("takes no messages") == 1


def test_a_publish_within_a_publish_through_the_same_producer_keeps_claims_apart(
    shop: Publisher, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 1: the claim of one never goes with the message of another."""
    with shop.app.producer_pool.acquire(block=True) as producer:

        def name(_: Any, args: Any, *__: Any) -> None:
            if args == (1,):
                shop.pay.apply_async((2,), producer=producer)
                assert (shop.names(), shop.count(client)) == ({"n:2"}, 1)

        monkeypatch.setattr(type(shop.app.tasks["pay"]), "shadow_name", name)
        shop.pay.apply_async((1,), producer=producer)
    assert (shop.names(), shop.count(client)) == ({"n:1", "n:2"}, 2)
    assert shop.asked.count("claim_and_push") == 1
    assert "_publish" not in producer.__dict__


def test_publishes_that_meet_on_one_channel_keep_claims_apart(shop: Publisher, client: Any) -> None:
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
    assert (shop.names(), shop.count(client)) == ({"n:1", "n:2"}, 2)


@pytest.mark.parametrize("broker", ["the lock server", "elsewhere"])
def test_an_idempotency_key_is_of_one_job_until_its_period_has_passed(
    proxy: FaultyProxy, broker: str
) -> None:
    """Law 10: the server keeps twenty bytes more for it, also when its run has ended, and is asked once."""
    there = {} if broker == "the lock server" else {"broker_url": "memory://", "redislock_url": proxy.url}
    shop = Publisher(proxy.url, **there).warm_up()
    options: dict[str, Any] = {"lock": "until_expired", "lock_period": 60.0}
    first = shop.pay.apply_async((1, "order 7"), lock_key="idem:8f3c", **options)
    assert len(shop.asked) == 1
    with pytest.raises(DuplicateTask) as raised:
        shop.pay.apply_async((1, "order 8"), lock_key="idem:8f3c", **options)
    assert (raised.value.has_other_arguments, raised.value.task_id) == (True, first.id)
    with shop.running(shop.pay, task_id=first.id, header=carried(shop.message()), args=(1, "order 7")):
        shop.pay(1, "order 7")
    again = shop.pay.apply_async((1,), {"text": "order 7"}, lock_key="idem:8f3c", **options)
    assert (again.id, again.is_duplicate) == (first.id, True)
    hold = shop.store.inspect("idem:8f3c")
    facts = hold.text.decode()
    assert len(facts) - len(facts.replace(f',"args":"{hold.facts["args"]}"', "")) == 20


@pytest.mark.parametrize("release", [slow("5.5.2"), slow("5.5.*"), slow("5.6.*"), "installed"])
def test_kombu_has_a_seam(proxy: FaultyProxy, tmp_path_factory: pytest.TempPathFactory, release: str) -> None:
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
