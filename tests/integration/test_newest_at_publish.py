"""``coalesce`` and ``lock_debounce`` at publish: a call takes the place of the one of its task that waits."""

import json
import secrets
import signal
import subprocess
import sys
from typing import Any

import pytest
import redis
from celery.exceptions import TaskRevokedError

from celery_redislock import lock_conflict
from celery_redislock.publishing import claim
from celery_redislock.publishing.message import HEADER, Message
from celery_redislock.publishing.turn import spelled
from celery_redislock.store.store import LARGEST, Merge, Parked, Turn
from tests.faults import Fault, FaultyProxy
from tests.integration.test_claim_and_publish import Publisher
from tests.integration.test_wait_at_publish import hearing
from tests.servers import EmbeddedServer
from tests.stores import ABOUT, RedisCase, granted, in_line
from tests.trips import Trips

A, B, C, D = (f"job-{each}/abcdefghijk{each}" for each in "abcd")

FACTS = '{"task":"shop.index","state":"queued","line":1}'
#: In the texts of these tests, what says how the message left.
CLAIMED, UNCLAIMED, PARKED = "(claimed)", "(unclaimed)", "(parked %s)"
#: Calls, one after the other, and tells which before it does.
PUBLISHER = """
import sys
from tests.integration.test_newest_at_publish import Newest
shop = Newest(sys.argv[1], name=sys.argv[2])
for number in range(int(sys.argv[3]), 100_000):
    print(number, flush=True)
    shop.index.delay(number)
"""
#: What is counted of a call that is refused.
COUNTED = ("waited", "merged", "skipped")


@pytest.fixture
def case(plain_case: RedisCase) -> RedisCase:
    """On a server only."""
    return plain_case


def text_of(token: str, how: str) -> str:
    """A message as its broker has it: its id stands there as itself, its token in a header of ours."""
    task_id = token.partition("/")[0]
    header = how if "%" not in how else how % token
    return f'{{"id":"{task_id}","root_id":"{task_id}","args":"{task_id} of {token}","header":"{header}"}}'


def push(
    case: RedisCase, token: str, *, pause: float = 0.0, longest: float = 0.0, most: int = 100, task: str = "",
    within: float | None = None, merges: bool = True, is_ignored: bool = False, **terms: Any,
) -> Any:  # fmt: skip
    """Publish a call that takes the place of the one of its task that waits."""
    facts = FACTS.replace("shop.index", task or "shop.index")
    if is_ignored:
        facts = facts.replace('"line":1', '"ignored":true,"line":1')
    merge = Merge(spelled(token.partition("/")[0], token), pause, longest) if merges else None
    turn = Turn(CLAIMED, UNCLAIMED, PARKED % token, facts, 1, most, 30.0, within, merge)
    terms = {"queue": case.queue(), "text": text_of(token, CLAIMED), "facts": ABOUT, "turn": turn, **terms}
    return case.store.claim_and_push("n", token, 30.0, **terms)


def merged(answer: object, into: str, times: int) -> None:
    """The answer must be that it has taken the place of this one."""
    assert isinstance(answer, Parked), answer
    assert answer.held_by is not None
    assert (answer.word, answer.held_by.token, answer.place) == ("merged", into, times)


# --- the script ------------------------------------------------------------------------------


def test_each_further_call_takes_the_place_of_the_one_that_waits_under_its_names(case: RedisCase) -> None:
    """Its message has the id and the token of the first one, and its own arguments."""
    granted(push(case, A))
    assert push(case, B).word == "parked"
    for times, token in enumerate((C, D), start=1):
        merged(push(case, token), B, times)
    assert in_line(case) == [B]
    case.store.release("n", A)
    sent = json.loads(case.pushed()[-1])
    assert (case.holder(), sent["id"], sent["root_id"]) == (B, "job-b", "job-b")
    assert (sent["args"], sent["header"]) == (f"job-d of {D}", PARKED % B)


@pytest.mark.parametrize("end", ["waits", "has started", "has ended"])
def test_a_repeated_request_is_told_the_call_that_it_was_merged_into(case: RedisCase, end: str) -> None:
    """Its first answer was lost: else its caller would hold an id that nobody runs."""
    push(case, A)
    push(case, B)
    merged(push(case, C), B, 1)
    if end != "waits":
        case.store.release("n", A)
    if end == "has ended":
        case.store.release("n", B)
    before = case.pushed(), in_line(case), case.holder()
    merged(push(case, C), B, 1)
    assert (case.pushed(), in_line(case), case.holder()) == before


def test_a_call_that_comes_when_the_lock_was_handed_over_waits_anew(case: RedisCase) -> None:
    push(case, A)
    push(case, B)
    case.store.release("n", A)
    assert push(case, C).word == "parked"
    merged(push(case, D), C, 1)
    assert (case.holder(), in_line(case)) == (B, [C])


def test_another_task_of_the_key_and_a_call_that_takes_no_part_wait_for_themselves(case: RedisCase) -> None:
    push(case, A)
    push(case, B)
    push(case, C, task="shop.report")
    push(case, D, merges=False)
    assert in_line(case) == [B, C, D]


def test_a_call_without_a_result_takes_no_place_of_one_that_has_one(case: RedisCase) -> None:
    """Its message would store none, and the first caller would wait for ever."""
    push(case, A)
    push(case, B)
    assert push(case, C, is_ignored=True).word == "parked"
    assert in_line(case) == [B, C]


def test_a_call_that_is_put_off_claims_nothing_and_starts_when_it_is_due(case: RedisCase) -> None:
    """Nobody holds the key meanwhile: another task's call is accepted at once."""
    assert push(case, B, pause=30.0).word == "parked"
    assert (case.holder(), in_line(case), case.pushed()) == (None, [B], [])
    assert 29.0 < case.redis.sweep().next_in <= 30.0
    granted(push(case, A, task="shop.report"))
    case.store.release("n", A)
    merged(push(case, C, pause=30.0), B, 1)
    case.come_due(B)
    case.make_due()
    case.store.sweep()
    assert case.holder() == B
    assert json.loads(case.pushed()[-1])["args"] == f"job-c of {C}"


def test_a_call_that_is_not_put_off_starts_one_that_was(case: RedisCase) -> None:
    """Else the earlier one would run after it, with older arguments."""
    push(case, B, pause=30.0)
    merged(push(case, C), B, 1)
    assert case.holder() == B


def test_a_further_call_counts_as_waiting_since_the_first_one(case: RedisCase) -> None:
    """``lock_wait_timeout``: its message tells its worker, and the line lets it go then."""
    push(case, A)
    old, new = (
        json.dumps(Message("n", token, True, parked_at=at).dumps())[1:-1]
        for token, at in ((B, 7.0), (C, 9.0))
    )
    for token, header in ((B, old), (C, new)):
        merge = Merge(spelled(token.partition("/")[0], token))
        turn = Turn(CLAIMED, UNCLAIMED, header, FACTS, 1, 100, 30.0, 60.0, merge)
        terms = {"queue": case.queue(), "text": text_of(token, CLAIMED), "facts": ABOUT, "turn": turn}
        case.store.claim_and_push("n", token, 30.0, **terms)
    assert case.bounded() == {B}
    case.store.release("n", A)
    said = Message.loads(json.loads(case.pushed()[-1])["header"])
    assert said == Message("n", B, True, parked_at=7.0)


# --- a caller --------------------------------------------------------------------------------


def index(number: int, text: str = "") -> None:
    """What is never run here."""


class Newest(Publisher):
    """A publisher with tasks of whose calls the newest waits."""

    def __init__(self, url: str, **settings: Any) -> None:
        """Open it; it connects to nothing."""
        stored = {"task_ignore_result": False, "result_backend": "cache+memory://"}
        super().__init__(url, **{**stored, **settings})
        self.index = self.unique(index, name="index", lock_key="n", on_conflict="coalesce")
        self.export = self.unique(index, name="export", lock_key="m", lock_debounce=5, lock_debounce_max=60)

    def in_line(self, key: str = "n") -> list[str]:
        """The task ids that wait, in order."""
        return [each.hold.owner for each in self.store.waiting(key)[1]]

    def end(self, key: str = "n") -> str:
        """End the present hold, as its run does; return whose it was."""
        hold = self.store.inspect(key)
        self.store.release(key, hold.token)
        return str(hold.owner)


@pytest.fixture(autouse=True)
def _refused_none() -> None:
    """Each test's names are new to the process."""
    claim._refused.clear()


@pytest.fixture
def shop(proxy: FaultyProxy) -> Newest:
    """A shop behind the proxy, which knows the script."""
    shop = Newest(proxy.url)
    shop.warm_up()
    shop.index.delay(-1)
    shop.index.delay(-1)
    shop.end()
    shop.end()
    shop.messages()
    return shop


def test_all_who_call_while_one_waits_hold_its_result(shop: Newest) -> None:
    """``get()`` of each returns what the run with the newest arguments returned."""
    first = shop.index.delay(0)
    results = [shop.index.delay(number) for number in range(1, 6)]
    assert [each.is_duplicate for each in (first, *results)] == [False, False, True, True, True, True]
    assert {each.id for each in results} == {*shop.in_line()} != {first.id}
    shop.messages()
    shop.end()
    (message,) = shop.messages()
    assert message.payload[0] == [5]
    task_id = results[0].id
    assert (message.headers["id"], message.headers["root_id"], message.properties["correlation_id"]) == (
        task_id,
        task_id,
        task_id,
    )
    said = Message.of(message.headers, task_id)
    assert said is not None
    assert (said.claimed, said.parked_at is None) == (True, False)


def test_an_id_that_its_caller_fixed_and_that_was_merged_ends_and_names_the_one_that_runs(
    shop: Newest,
) -> None:
    """Whatever the ids look like: they are part of texts in texts."""
    shop.index.delay(0)
    shop.messages()
    odd = 'waits\0 "in" línë \\ %1'
    shop.index.apply_async((1,), task_id=odd)
    shop.index.apply_async((2,), task_id="fixed")
    with pytest.raises(TaskRevokedError, match="its arguments run as waits"):
        shop.index.AsyncResult("fixed").get(timeout=1.0)
    shop.end()
    (message,) = shop.messages()
    assert (message.headers["id"], message.payload[0]) == (odd, [2])
    said = Message.of(message.headers, odd)
    assert said is not None
    hold = shop.store.inspect("n")
    assert said.token == hold.token


@pytest.mark.parametrize(
    "options",
    [
        {"countdown": 5},
        {"expires": 60},
        {"link": "a link"},
        {"group_id": "g"},
        {"kwargs": {"text": "x" * LARGEST}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_takes_no_part_is_a_call_of_its_own(shop: Newest, options: dict[str, Any]) -> None:
    """It takes nobody's place, and nobody takes its own."""
    shop.index.delay(0)
    waits = shop.index.delay(1)
    if "link" in options:
        options = {"link": shop.index.si(3)}
    result = shop.index.apply_async((2,), options.pop("kwargs", None), **options)
    assert (result.is_duplicate, result.id == waits.id) == (False, False)
    assert shop.index.delay(4).id == waits.id


def test_a_merged_call_is_announced_and_logged_once_in_a_burst(
    shop: Newest, caplog: pytest.LogCaptureFixture
) -> None:
    """At INFO the first of many, the others at DEBUG; ``lock_conflict`` for each; and counted as merged."""
    before = shop.store.counts().numbers
    with caplog.at_level("INFO", "celery_redislock"), hearing(lock_conflict) as heard:
        shop.index.delay(0)
        waits = shop.index.delay(1)
        for number in range(3):
            shop.index.delay(number)
    told = [(facts["side"], facts["strategy"], facts["holder"].owner) for facts in heard]
    assert told[-3:] == [("client", "coalesce", waits.id)] * 3
    lines = [line for line in caplog.messages if "is merged into" in line]
    assert len(lines) == 1
    assert f"is merged into {waits.id}, which waits and runs with its arguments" in lines[0]
    after = shop.store.counts().numbers
    counted = {what: after.get(("index", what), 0) - before.get(("index", what), 0) for what in COUNTED}
    assert counted == {"waited": 1, "merged": 3, "skipped": 0}


def test_a_burst_of_calls_that_are_put_off_is_one_message(shop: Newest) -> None:
    """Nobody holds the key meanwhile."""
    results = [shop.export.delay(number) for number in range(4)]
    assert {each.id for each in results} == {*shop.in_line("m")}
    assert [each.is_duplicate for each in results] == [False, True, True, True]
    [waiter] = shop.store.waiting("m")[1]
    facts = waiter.hold.facts
    assert (facts["merged"], facts["due"] - facts["first"] >= 5000) == (3, True)
    assert (shop.store.holders("m"), shop.messages()) == ((), [])


def test_a_call_may_say_how_long_it_is_put_off(shop: Newest) -> None:
    """The options of a call count for it."""
    shop.index.apply_async((1,), lock_debounce=30)
    [waiter] = shop.store.waiting("n")[1]
    assert waiter.hold.facts["due"] - waiter.hold.facts["first"] == 30_000


def test_a_call_that_waits_for_a_place_of_its_rate_is_looked_at_when_that_opens(shop: Newest) -> None:
    """A throttle: the first call at once, the newest when it may."""
    rated = shop.unique(index, name="rated", lock_key="r", on_conflict="coalesce", lock_rate="1/s")
    facts = '{"rate":"1/1000","state":"running"}'
    granted(shop.store.acquire("r", A, 30.0, facts=facts, starts_run=True))
    shop.store.release("r", A)
    results = [rated.delay(number) for number in range(3)]
    assert {each.id for each in results} == {*shop.in_line("r")}
    assert shop.store.sweep().next_in <= 1.0


def test_a_merged_call_is_one_round_trip(shop: Newest, tcp_server: EmbeddedServer) -> None:
    for number in range(3):
        shop.index.delay(number)
    with redis.Redis.from_url(tcp_server.redis_url) as client:
        trips = Trips(client)
        shop.index.delay(3)
        assert trips() == {"evalsha": 1}


@pytest.mark.parametrize("fault", [Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.RESET_IN_REPLY], ids=str)
def test_a_lost_answer_hands_out_no_id_that_never_runs(
    shop: Newest, proxy: FaultyProxy, fault: Fault
) -> None:
    shop.index.delay(0)
    waits = shop.index.delay(1)
    proxy.fail(fault, of="claim_or_park")
    assert (shop.index.delay(2).id, proxy.fired) == (waits.id, 1)
    shop.messages()
    shop.end()
    (message,) = shop.messages()
    assert message.payload[0] == [2]


@pytest.mark.slow
def test_publishers_that_are_killed_leave_a_run_and_the_newest_call_behind_it(
    tcp_server: EmbeddedServer,
) -> None:
    """Killed at any moment, a call is in or it is not; and the next publisher's calls join what waits."""
    url, name = f"redis://127.0.0.1:{tcp_server.port}/0", f"shop-{secrets.token_hex(4)}"
    number = 0
    for _ in range(3):
        command = [sys.executable, "-c", PUBLISHER, url, name, str(number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as publisher:
            assert publisher.stdout is not None
            for line in publisher.stdout:
                number = int(line) + 1
                if number % 31 == 30:
                    publisher.send_signal(signal.SIGKILL)
                    break
    shop = Newest(url, name=name)
    (first,) = shop.messages()
    (waits,) = shop.in_line()
    assert (first.payload[0], shop.end()) == ([0], first.headers["id"])
    (message,) = shop.messages()
    # The last one had been called, or was about to be.
    assert message.headers["id"] == waits
    assert message.payload[0][0] in {number - 2, number - 1}
    assert number > 80
    assert (shop.end(), shop.in_line(), shop.store.names()) == (waits, [], [])


def test_a_server_that_loses_its_data_loses_what_waits_and_refuses_nobody() -> None:
    """As the queues that it keeps. A run that is on loses its lock, and the next call runs beside it."""
    with EmbeddedServer(port=0) as server:
        shop = Newest(f"redis://127.0.0.1:{server.port}/0")
        for number in range(3):
            shop.index.delay(number)
        shop.export.delay(3)
        lost = shop.store.inspect("n").token
        server.kill()
        server.restart()
        after = [shop.index.delay(number) for number in range(4, 7)]
        burst = [shop.export.delay(number) for number in range(7, 9)]
        assert [each.is_duplicate for each in (*after, *burst)] == [False, False, True, False, True]
        assert not shop.store.release("n", lost).released
        (first,) = shop.messages()
        shop.end()
        (message,) = shop.messages()
        assert (first.payload[0], message.payload[0]) == ([4], [6])
        assert shop.in_line("m") == [burst[0].id]


def test_what_waits_for_a_message_that_was_purged_runs_when_its_claim_is_released(shop: Newest) -> None:
    """Until then calls are merged, and none runs: for ``lock_queue_ttl``, as with any other strategy."""
    shop.index.delay(0)
    shop.messages()  # the purge
    waits, *others = [shop.index.delay(number) for number in range(1, 5)]
    assert ({each.id for each in others}, shop.messages()) == ({waits.id}, [])
    assert shop.index.lock_for(0).release(reason="purged", only="queued")
    (message,) = shop.messages()
    assert (message.headers["id"], message.payload[0]) == (waits.id, [4])


def test_where_claims_are_asked_for_first_each_message_says_when_it_was_called(
    redis_url: str, proxy: FaultyProxy
) -> None:
    """Another server than the broker keeps the locks: there the order of receipt says nothing."""
    apart = Newest(proxy.url, redislock_url=redis_url)
    for number in range(3):
        apart.index.delay(number)
    apart.export.delay(7)
    said = [Message.loads(each.headers[HEADER]) for each in apart.messages()]
    numbers = [each.number for each in said if each is not None]
    assert [each.claimed for each in said if each is not None] == [True, False, False, False]
    assert numbers[0] is None
    assert numbers[1:] == sorted(numbers[1:])
    assert apart.store.holders("m") == ()
