"""``wait`` at publish: the script that refuses a claim puts its message into the line of the lock."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery.signals import before_task_publish
from kombu import Exchange, Queue

from celery_redislock import LockUnavailable, lock_acquired, lock_conflict
from celery_redislock.embedded import EmbeddedServer
from celery_redislock.locks import connect
from celery_redislock.publishing import claim
from celery_redislock.publishing.message import HEADER, TICK, Message, tick_id
from celery_redislock.publishing.turn import band_of
from celery_redislock.store.store import LARGEST, Entry, Parked, Turn
from tests.faults import Fault, FaultyProxy
from tests.integration.test_claim_and_publish import Publisher
from tests.stores import ABOUT, IN_LINE, RedisCase, granted, in_line
from tests.trips import Trips

A, B, C, D = (f"job-{each}/abcdefghijk{each}" for each in "abcd")

#: In the texts of these tests, what says how the message left.
CLAIMED, UNCLAIMED, PARKED = "(claimed)", "(unclaimed)", "(parked)"

#: Tells where a process runs that ends then.
DIES = """
import os
from celery_redislock.locks.process import whereabouts_of
print(whereabouts_of(None, os.getpid()))
"""

A_TICK = "shop/pay@2026-06-01T12:00:00+00:00"


@pytest.fixture
def case(plain_case: RedisCase) -> RedisCase:
    """On a server only."""
    return plain_case


def push(
    case: RedisCase, token: str, *, band: int = 1, most: int = 100, within: float | None = None, **terms: Any
) -> Any:
    """Publish a message whose text is its token and how it left."""
    turn = Turn(CLAIMED, UNCLAIMED, PARKED, IN_LINE, band, most, hand_off=30.0, within=within)
    terms = {"queue": case.queue(), "text": f"<{token}{CLAIMED}>", "facts": ABOUT, "turn": turn, **terms}
    return case.store.claim_and_push("n", token, 30.0, **terms)


def parked(answer: object) -> Parked:
    """The answer, which must be that it waits."""
    assert isinstance(answer, Parked), answer
    assert answer.word == "parked"
    return answer


def left(case: RedisCase) -> list[str]:
    """What lies in the queue, the first to be received first."""
    return case.pushed()[::-1]


# --- the script ------------------------------------------------------------------------------


def test_what_is_published_while_one_holds_is_served_in_the_order_of_publishing(case: RedisCase) -> None:
    """A hundred calls that no worker has seen; each is in the line, or in the queue, never in both."""
    tokens = [f"job-{number}/{number:012}" for number in range(100)]
    first, *answers = [push(case, token) for token in tokens]
    assert not granted(first).repeated
    assert [(parked(answer).place, answer.held_by.token) for answer in answers] == [
        (place, tokens[0]) for place in range(99)
    ]
    assert (in_line(case), case.lines()) == (tokens[1:], ["n"])
    for token in tokens:
        assert case.holder() == token
        case.redis.release("n", token)
    # Each went to the front of the queue, which nobody read here, when its turn came.
    assert case.pushed() == [f"<{tokens[0]}{CLAIMED}>", *(f"<{token}{PARKED}>" for token in tokens[1:])]
    assert (in_line(case), case.lines()) == ([], [])


def test_after_an_expiry_the_first_in_line_goes_before_the_next_call(case: RedisCase) -> None:
    """Also where no worker is there to look at lines."""
    push(case, A)
    push(case, B)
    case.expire()
    answer = parked(push(case, C))
    assert (answer.place, case.holder(), in_line(case)) == (0, B, [C])
    assert answer.held_by is not None
    assert answer.held_by.token == B
    assert case.pushed() == [f"<{A}{CLAIMED}>", f"<{B}{PARKED}>"]


def test_who_can_be_served_by_another_process_only_is_not_overtaken(case: RedisCase) -> None:
    """A message of another broker, which its own process publishes within a second."""
    case.take(A)
    case.store.park("n", B, Entry("give", "amqp:there", 30.0, IN_LINE, "b"), nonce="b")
    case.expire()
    answer = parked(push(case, C))
    assert (answer.place, case.holder(), in_line(case)) == (1, None, [B, C])
    assert answer.held_by is not None
    assert answer.held_by.token == B
    case.client.delete(case.key(part="line"), case.key(part="parked"))


@pytest.mark.parametrize("limit", [None, 2])
def test_calls_that_keep_coming_put_off_no_look_at_the_line(case: RedisCase, limit: int | None) -> None:
    """Else what has waited for too long would stay, and what is lost would not be missed."""
    more = {"limit": limit} if limit else {}
    for holder in (A, D)[: limit or 1]:
        push(case, holder, **more)
    parked(push(case, B, within=1.0, **more))
    parked(push(case, C, **more))
    assert 0.0 < case.redis.sweep().next_in <= 1.0


@pytest.mark.parametrize("end", ["waits", "has left", "has run"])
def test_a_repeated_request_parks_once(case: RedisCase, end: str) -> None:
    """Its first answer was lost; the lock may have been handed to it, and released by its run, meanwhile."""
    push(case, A)
    parked(push(case, B))
    if end != "waits":
        case.redis.release("n", A)
    if end == "has run":
        case.redis.release("n", B)
    before = case.pushed()
    assert granted(push(case, B)).repeated
    assert in_line(case) == ([B] if end == "waits" else [])
    assert case.pushed() == before
    assert case.holder() == {"waits": A, "has left": B, "has run": None}[end]


def test_one_that_has_run_is_not_parked_again_behind_those_who_wait(case: RedisCase) -> None:
    """Its request is repeated when the hold of the one after it has expired, too."""
    for token in (A, B, C, D):
        push(case, token)
    case.redis.release("n", A)
    case.redis.release("n", B)
    case.expire()
    assert granted(push(case, B)).repeated
    assert (case.holder(), in_line(case)) == (None, [D])


def test_one_that_waits_is_not_parked_again_when_its_note_has_gone(case: RedisCase) -> None:
    """Another beat sends the same tick a minute later."""
    push(case, A)
    push(case, B)
    case.expire(part=f"note:{B.partition('/')[2]}")
    assert granted(push(case, B)).repeated
    assert in_line(case) == [B]


def test_its_own_claim_gets_its_message(case: RedisCase) -> None:
    """A publisher took it and was killed; a beat's tick has the same token."""
    case.take(A)
    assert granted(push(case, A)).repeated
    assert (left(case), in_line(case)) == ([f"<{A}{CLAIMED}>"], [])


def test_on_a_full_line_it_leaves_without_a_claim_once(case: RedisCase) -> None:
    push(case, A)
    push(case, B, most=1)
    answers = [push(case, C, most=1) for _ in range(2)]
    assert (answers[0].word, answers[0].held_by.token) == ("unclaimed", A)
    assert granted(answers[1]).repeated
    assert (left(case), in_line(case)) == ([f"<{A}{CLAIMED}>", f"<{C}{UNCLAIMED}>"], [B])


def test_a_period_puts_nobody_into_a_line(case: RedisCase) -> None:
    """A worker does, which hears when it ends; a holder comes first, as ever."""
    push(case, A, period=60.0)
    parked(push(case, B, period=60.0))
    case.redis.leave("n", B)
    case.redis.release("n", A)
    answer = push(case, C, period=60.0)
    assert (answer.word, answer.held_by.is_period) == ("unclaimed", True)
    assert (left(case), in_line(case)) == ([f"<{A}{CLAIMED}>", f"<{C}{UNCLAIMED}>"], [])
    assert case.holder() == A  # its period


@pytest.mark.parametrize("part", ["line", "parked"])
@pytest.mark.parametrize("is_held", [True, False])
def test_where_its_keys_are_another_programs_nobody_is_lost(
    case: RedisCase, part: str, *, is_held: bool
) -> None:
    """Law 2: it leaves without a claim, and as ever where the lock is free."""
    if is_held:
        case.take(A)
    case.client.set(case.key(part=part), "another program's")
    case.foreign = (case.key(part=part),)
    answer = push(case, B)
    assert left(case) == [f"<{B}{UNCLAIMED if is_held else CLAIMED}>"]
    assert (getattr(answer, "word", None), case.holder()) == (("unclaimed", A) if is_held else (None, B))


def test_where_the_queue_takes_nothing_it_is_told_and_nothing_is_left(case: RedisCase) -> None:
    case.client.set(case.queue(), "no list")
    case.take(A)
    with pytest.raises(Exception, match="WRONGTYPE"):
        push(case, B, most=0)
    assert in_line(case) == []
    assert not case.client.exists(case.key(part=f"note:{B.partition('/')[2]}"))


@pytest.mark.parametrize("period", [None, 60.0])
def test_a_server_out_of_memory_takes_nothing(period: float | None) -> None:
    """As it takes no other publish, and no other message into a line."""
    with EmbeddedServer(port=0) as server, closing(RedisCase(server.redis_url)) as case:
        push(case, A, period=period)
        push(case, B, period=period)
        before = case.keys()
        case.client.config_set("maxmemory-policy", "noeviction")
        case.client.config_set("maxmemory", 1)
        with pytest.raises(LockUnavailable, match=r"OOM|maxmemory") as caught:
            push(case, C, period=period)
        case.client.config_set("maxmemory", 0)
        assert caught.value.was_refused
        assert (in_line(case), case.keys(), len(case.pushed())) == ([B], before, 1)


# --- a caller --------------------------------------------------------------------------------


class Waiting(Publisher):
    """A publisher whose task waits."""

    def __init__(self, url: str, **settings: Any) -> None:
        """Open it; it connects to nothing."""
        super().__init__(url, **{"redislock_on_conflict": "wait", **settings})

    def in_line(self, number: int = 1) -> list[str]:
        """The task ids that wait, in order."""
        return [holder.owner for holder in self.pay.lock_for(number).waiting()]

    def end(self, number: int = 1) -> str:
        """End the present hold, as its run does; return whose it was."""
        hold = self.store.inspect(f"n:{number}")
        self.store.release(f"n:{number}", hold.token)
        return str(hold.owner)

    def raw(self, priority: int) -> Any:
        """Take the one message of this priority, as it lies in its queue."""
        with redis.Redis.from_url(self.url) as client:
            (text,) = client.lrange(f"{self.queue}\x06\x16{priority}", 0, -1)  # type: ignore[misc]
            client.delete(f"{self.queue}\x06\x16{priority}")
        return json.loads(text)


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
def shop(proxy: FaultyProxy) -> Waiting:
    """A shop behind the proxy."""
    shop = Waiting(proxy.url)
    shop.warm_up()
    shop.pay.delay(-1)
    shop.pay.delay(-1)
    shop.end(-1)
    shop.end(-1)
    shop.messages()
    shop.asked.clear()
    return shop


@contextmanager
def hearing(signal: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield what a signal tells while the block runs."""
    heard: list[dict[str, Any]] = []

    def hear(**facts: Any) -> None:
        heard.append(facts)

    signal.connect(hear)
    try:
        yield heard
    finally:
        signal.disconnect(hear)


def test_a_call_that_waits_is_published_in_one_trip_and_has_a_result_of_its_own(
    shop: Waiting, client: Any
) -> None:
    """Laws 2 and 10: as cheap as one that finds its key free, each time."""
    first = shop.pay.delay(1)
    trips = Trips(client)
    results = [shop.pay.apply_async((1,), task_id=f"waits-{number}") for number in range(3)]
    assert (trips(), set(shop.asked)) == ({"evalsha": 3}, {"claim_and_push"})
    assert [(result.id, result.is_duplicate) for result in results] == [
        (f"waits-{number}", False) for number in range(3)
    ]
    assert shop.in_line() == [result.id for result in results]
    assert [shop.end() for _ in range(4)] == [first.id, *(result.id for result in results)]


def test_calls_wait_by_their_priority_and_behind_those_who_come_back(shop: Waiting) -> None:
    """As those that a worker parks: 0 is first on a Redis broker, and who has had a turn before."""
    shop.pay.delay(1)
    low, high, usual = (shop.pay.apply_async((1,), priority=priority) for priority in (6, 2, None))
    back = band_of(0, has_waited=True)
    shop.store.park("n:1", B, Entry("hold", "", 30.0, IN_LINE), nonce="b", band=back)
    assert shop.in_line() == ["job-b", usual.id, high.id, low.id]


def test_signals_tell_what_happens(shop: Waiting) -> None:
    """A conflict with its holder, no lock acquired; and the broker's own signal once."""
    first = shop.pay.delay(1)
    with (
        hearing(lock_conflict) as conflicts,
        hearing(lock_acquired) as acquired,
        hearing(before_task_publish) as published,
    ):
        second = shop.pay.delay(1)
    assert [
        (each["task_id"], each["holder"].owner, each["strategy"], each["side"]) for each in conflicts
    ] == [(second.id, first.id, "wait", "client")]
    assert acquired == []
    assert [each["headers"]["id"] for each in published] == [second.id]


def test_nobody_looks_before_a_call_that_is_published_in_any_case(shop: Waiting) -> None:
    """Neither for those who hear of publishes, nor after a refusal; only before the first of a process."""
    shop.pay.delay(1)
    claim._refused.update({"n:1", "pay"})
    shop.asked.clear()
    with hearing(before_task_publish):
        shop.pay.delay(1)
    assert shop.asked == ["claim_and_push"]
    fresh = Waiting(shop.url)
    with closing(connect(shop.url, prefix=fresh.queue)) as store:
        store.acquire("n:1", A, 30.0, facts=ABOUT)
    fresh.pay.delay(1)
    assert (fresh.asked, len(fresh.in_line())) == (["look", "claim_and_push"], 1)


def test_what_leaves_the_line_is_what_would_have_been_pushed_with_another_header(shop: Waiting) -> None:
    """Byte for byte the body, headers, properties: what is added says since when it waits."""
    options: dict[str, Any] = {
        "headers": {"x": [1, {"y": None}], "text": 'a "quoted" \\ é'}, "priority": 3, "expires": 600,
        "compression": "zlib", "task_id": "one", "argsrepr": "(1,)",
    }  # fmt: skip
    shop.pay.apply_async((1,), **options)
    plain = shop.raw(3)
    shop.pay.apply_async((1,), **options)
    shop.end()
    waited = shop.raw(3)

    texts = [each["headers"].pop(HEADER) for each in (plain, waited)]
    for each in (plain, waited):
        each["properties"].pop("delivery_tag")
        each["headers"].pop("expires")
    assert waited == plain
    said, says = map(Message.loads, texts)
    assert said is not None
    assert says is not None
    assert says.parked_at is not None
    assert says._replace(parked_at=None) == said._replace(token=says.token)


def test_a_call_is_accepted_when_it_starts_if_a_period_counts(proxy: FaultyProxy) -> None:
    """Said to be accepted, it would walk through the period of one that was accepted while it waited."""
    shop = Waiting(proxy.url)
    shop.pay.lock_period = 60.0
    shop.warm_up()
    shop.pay.delay(1)
    shop.pay.delay(1)
    shop.messages()
    token = shop.store.inspect("n:1").token
    shop.store.release("n:1", token)
    assert shop.messages() == []
    shop.store.release("n:1", token, opened_by=token)
    (message,) = shop.messages()
    said = Message.loads(message.headers[HEADER])
    assert said is not None
    assert (said.claimed, said.parked_at is not None) == (False, True)


@pytest.mark.parametrize(
    "options",
    [
        {"countdown": 60},
        {"eta": datetime.now(timezone.utc) + timedelta(minutes=1)},
        {"kwargs": {"text": "x" * LARGEST}},
        {"exchange": "named", "routing_key": "pay"},
        {"group_id": "g"},
        {"link": "a link"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_cannot_wait_at_publish_is_published_without_a_claim(
    shop: Waiting, options: dict[str, Any]
) -> None:
    """A worker parks it when it comes; its caller sees no difference."""
    shop.pay.delay(1)
    shop.messages()
    if "link" in options:
        options = {"link": shop.pay.si(2)}
    if "exchange" in options:
        exchange = Exchange("named", type="direct")
        queue = Queue(shop.queue, exchange, routing_key="pay")
        with shop.app.connection_for_write() as connection:
            queue.bind(connection.default_channel).declare()
        options = {"exchange": exchange, "routing_key": "pay"}

    result = shop.pay.apply_async((1,), options.pop("kwargs", None), **options)

    (message,) = shop.messages()
    said = Message.loads(message.headers[HEADER])
    assert said is not None
    assert (message.headers["id"], said.claimed, said.parked_at) == (result.id, False, None)
    assert (result.is_duplicate, shop.in_line()) == (False, [])


@pytest.mark.parametrize("fault", [Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.RESET_IN_REPLY], ids=str)
def test_a_lost_answer_is_asked_for_again_and_parks_once(
    shop: Waiting, proxy: FaultyProxy, fault: Fault
) -> None:
    first = shop.pay.delay(1)
    proxy.fail(fault, of="claim_or_park")
    second = shop.pay.delay(1)
    assert (proxy.fired, second.is_duplicate, shop.in_line()) == (1, False, [second.id])
    assert [shop.end(), shop.end()] == [first.id, second.id]


@pytest.mark.parametrize("fault", [Fault.SILENCE, Fault.BLACK_HOLE], ids=str)
def test_without_an_answer_it_is_told_that_nobody_knows(
    shop: Waiting, proxy: FaultyProxy, fault: Fault
) -> None:
    """Law 9; it is in line once, or not at all."""
    shop.pay.delay(1)
    proxy.fail(fault, of="claim_or_park", at=(1, 2))
    with pytest.raises(LockUnavailable, match=r"it is not known whether pay.* was published"):
        shop.pay.delay(1)
    assert len(shop.in_line()) == (fault is Fault.SILENCE)


def test_a_dead_holder_is_released_and_the_call_that_found_it_has_the_lock(shop: Waiting) -> None:
    """A worker that was killed on this machine: its line need not wait for its lease."""
    lock = shop.pay.lock_for(1)
    where = subprocess.check_output([sys.executable, "-c", DIES], text=True).strip()
    facts = {"state": "running", "task": "pay", "at": where}
    shop.store.acquire("n:1", A, 30.0, facts=json.dumps(facts))
    result = shop.pay.delay(1)
    holder = lock.holder()
    assert holder is not None
    assert (holder.owner, shop.in_line(), len(shop.messages())) == (result.id, [], 1)


def test_a_tick_waits_too_and_two_beats_send_it_once(shop: Waiting) -> None:
    """Its identity is the tick's."""
    shop.pay.delay(1)
    shop.messages()
    for _ in range(2):
        shop.pay.apply_async((1,), task_id=tick_id(A_TICK), headers={TICK: A_TICK})
    assert (shop.in_line(), shop.messages()) == ([tick_id(A_TICK)], [])
