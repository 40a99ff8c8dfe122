"""What every store promises of a rate: no more starts in any span, and in order for those who wait."""

import json
import time
from typing import Any

import pytest

from celery_redislock.store.store import Entry, Merge, Refusal
from tests.stores import JOBS, MemoryCase, RedisCase, StoreCase, at_home, granted, in_line, park, refused

A, B, C, D, E, F = JOBS

#: Two starts in any ten seconds.
RATE = "2/10000"


def facts(rate: str = RATE, **more: Any) -> str:
    """What a process says of a task with this rate."""
    return json.dumps({"task": "shop.send", "rate": rate, "since": 1.0, **more}, separators=(",", ":"))


def start(case: StoreCase, token: str, *, of: str | None = None, rate: str = RATE, **terms: Any) -> Any:
    """Let a run start, with the claim of this token or without one."""
    about = facts(rate, state="running", message=of or token, **terms)
    return case.store.acquire("n", token, 30.0, facts=about, instead_of=of, starts_run=True, **terms)


def run(case: StoreCase, token: str, **terms: Any) -> None:
    """Let a run start and end."""
    granted(start(case, token, **terms))
    assert case.store.release("n", token).released


def closed(answer: Any) -> Refusal:
    """The answer must be that the rate refuses it."""
    refusal = refused(answer)
    assert refusal.because == "rate"
    return refusal


def wait(
    case: StoreCase, token: str, *, how: str = "refused", rate: str = RATE, within: float | None = None
) -> str:  # fmt: skip
    """Park a message of a task with this rate."""
    entry = Entry("push", case.queue(), 30.0, facts(rate, state="queued", line=1), token)
    return case.store.park("n", token, entry, nonce=f"{token} {how}", how=how, within=within).word


def let_pass(case: StoreCase, seconds: float, span: int = 10_000) -> None:
    """Let so many seconds pass since all that has started."""
    if isinstance(case, MemoryCase):
        case.clock.advance(seconds)
        return
    assert isinstance(case, RedisCase)
    key = case.key(part=f"starts:{span}")
    entries: Any = case.client.lrange(key, 0, -1)
    for place, each in enumerate(entries):
        at, _, rest = each.partition(b" ")
        case.client.lset(key, place, f"{int(at) - round(1000 * seconds)} {rest.decode()}")


def test_a_wait_for_a_place_ends_when_it_has_lasted_long_enough(case: StoreCase) -> None:
    """``lock_wait_timeout``, though nobody holds the lock: whatever its place; the line is looked at then."""
    run(case, A)
    run(case, B)
    for token, within in ((C, None), (D, 60.0), (E, 1.0)):
        wait(case, token, within=within)
    for _ in range(2):
        case.make_due()
        assert 0.0 < case.store.sweep().next_in <= 1.0
    case.make_late(E)
    case.make_due()
    case.store.sweep()
    assert (case.holder(), in_line(case), case.pushed()) == (None, [C, D], [E])


def test_one_whose_wait_for_a_place_ends_leaves_no_line_behind_that_is_looked_at(case: StoreCase) -> None:
    run(case, A)
    run(case, B)
    wait(case, C, within=60.0)
    case.make_late(C)
    case.make_due()
    case.store.sweep()
    assert (case.pushed(), case.lines()) == ([C], [])


def test_one_whose_wait_for_a_place_ends_is_given_again_where_nobody_publishes_it(case: StoreCase) -> None:
    """Its publisher may have been killed: the next look is soon, and not when a place opens."""
    given = at_home(case)
    run(case, A)
    run(case, B)
    park(case, C, "give", facts=facts(state="queued", line=1), within=60.0)
    case.make_late(C)
    case.make_due()
    next_in = case.store.sweep().next_in
    assert ([each.id for each in given], in_line(case)) == ([C], [C])
    assert 0.0 < next_in <= 2.0


def test_of_two_rates_both_count(case: StoreCase) -> None:
    """A burst is kept down by the one, and a day by the other."""
    both = "1/1000 2/10000"
    run(case, A, rate=both)
    assert closed(start(case, B, rate=both)).hold.expires_in <= 1.0
    let_pass(case, 1.0, 1000)
    let_pass(case, 0.0 if isinstance(case, MemoryCase) else 1.0)
    run(case, B, rate=both)
    let_pass(case, 1.0, 1000)
    let_pass(case, 0.0 if isinstance(case, MemoryCase) else 1.0)
    assert 7.0 < closed(start(case, C, rate=both)).hold.expires_in <= 8.1


def test_where_all_places_are_on_their_way_a_line_is_looked_at_soon(case: StoreCase) -> None:
    """Nobody tells when such a claim ends without a start: it is asked for again, and not after a span."""
    fresh = facts(state="queued", since=round(time.time()), limit=3)
    for token in (A, B):
        granted(case.store.acquire("n", token, 30.0, facts=fresh, limit=3))
    assert closed(start(case, C, limit=3)).hold.expires_in <= 2.0


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_claim_of_another_time_is_not_on_its_way(case: StoreCase, seconds: int) -> None:
    """It waits for a time, or its publisher's clock is wrong: it keeps a place for nobody."""
    other = facts(state="queued", since=round(time.time()) + seconds, limit=3)
    for token in (A, B):
        granted(case.store.acquire("n", token, 30.0, facts=other, limit=3))
    granted(start(case, C, limit=3))


def test_one_that_was_handed_its_lock_is_on_its_way_however_long_it_has_waited(case: StoreCase) -> None:
    """Else more would be handed the lock than may start. What waits for a time is not on its way."""
    more = {"limit": 3}
    granted(start(case, A, **more))
    granted(case.store.acquire("n", B, 30.0, facts=facts(state="queued", line=1, limit=3), limit=3))
    closed(start(case, C, **more))
    case.store.release("n", B)
    granted(case.store.acquire("n", D, 30.0, facts=facts(state="queued", limit=3), limit=3))
    granted(start(case, C, **more))


def test_what_has_no_rate_is_kept_by_none(case: StoreCase) -> None:
    """Another task of the key, or a lock of a program: its start is not counted, and not refused."""
    run(case, A)
    run(case, B)
    granted(case.store.acquire("n", C, 30.0, facts='{"state":"running"}', starts_run=True))
    case.store.release("n", C)
    closed(start(case, D))


@pytest.mark.parametrize("rate", [RATE, "1500/10000"])
def test_a_clock_that_is_set_back_makes_nobody_wait_for_longer_than_a_span(
    plain_case: RedisCase, rate: str
) -> None:
    """Whoever asks, and however often: what was noted later than now counts from now on."""
    case = plain_case
    key = case.key(part="starts:10000")
    run(case, A, rate=rate)
    run(case, B, rate=rate)
    if rate != RATE:
        case.client.lset(key, 0, case.client.lindex(key, 0).split()[0] + b" 1500")
    let_pass(case, -3600.0)
    assert closed(start(case, C, rate=rate)).hold.expires_in <= 10.1
    assert 0 < case.client.pttl(key) <= 10_100
    let_pass(case, 10.1)
    run(case, C, rate=rate)


def test_a_rate_that_is_changed_counts_what_was_noted_before(plain_case: RedisCase) -> None:
    """Also where starts are counted in another way from now on: nothing of the key is broken."""
    case = plain_case
    for token in (A, B):
        run(case, f"98765432-{token}", rate="1000/10000")
    assert wait(case, C, how="ask", rate="2000/10000") == "runs"
    run(case, C, rate="1001/10000")
    run(case, D, rate="1000/10000")
    run(case, E, rate="1001/10000")
    assert case.store.release("n", E).released is False


def test_one_that_waits_for_a_place_is_looked_at_when_one_before_it_is_due(case: StoreCase) -> None:
    """Of all that keeps a line from going on, what ends first counts."""
    run(case, A)
    run(case, B)
    merge = Merge(f'"{C}"\0{C}', 1.0)
    facts_of_c = facts("", state="queued", line=1)
    entry = Entry("push", case.queue(), 30.0, facts_of_c, C)
    assert case.store.park("n", C, entry, nonce=C, merge=merge).word == "parked"
    wait(case, D)
    case.make_due()
    assert 0.0 < case.store.sweep().next_in <= 1.0


def test_many_starts_are_counted_in_pieces_of_the_span(plain_case: RedisCase) -> None:
    """Never more than the rate, and a piece counts until it is wholly out: a hundredth of the span."""
    case = plain_case
    rate = "1500/10000"
    key = case.key(part="starts:10000")
    run(case, A, rate=rate)
    run(case, B, rate=rate)
    [piece] = case.client.lrange(key, 0, -1)
    at, count = piece.split(b" ")
    assert count == b"2"
    case.client.lset(key, 0, f"{int(at)} 1500")
    assert 9.0 < closed(start(case, C, rate=rate)).hold.expires_in <= 10.0
    let_pass(case, 9.0)
    assert closed(start(case, C, rate=rate)).hold.expires_in <= 1.1
    let_pass(case, 1.1)
    run(case, C, rate=rate)


def test_the_starts_of_a_key_take_some_kilobytes_at_most(plain_case: RedisCase) -> None:
    """Above a thousand by pieces, and those that are out go; below, one by one."""
    case = plain_case
    many, few = (case.key(part=f"starts:{span}") for span in (100_000, 10_000))
    case.client.rpush(many, *(f"{number} 1000000" for number in range(200, 0, -1)))
    case.client.rpush(few, *(f"{number} {A}" for number in range(1200, 0, -1)))
    run(case, A, rate="1000000/100000 1000/10000")
    assert [case.client.llen(key) for key in (many, few)] == [102, 1000]
    assert (case.client.memory_usage(many) or 0) < 20_000
