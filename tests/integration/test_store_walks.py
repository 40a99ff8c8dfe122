"""What a walk over all locks, or over all lines, promises, on every store."""

from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from celery_redislock.exceptions import LockKeyError
from celery_redislock.store.store import MOST_TOLD, Hold, Line, Term
from tests.stores import JOBS, RedisCase, StoreCase, granted, line_up, park
from tests.trips import Trips

A, B, C, *_ = JOBS

#: So many locks that they are several slices, and each of these several requests, with ``small``.
NAMES = [f"name-{number:02}" for number in range(23)]


#: Slices and requests of a few locks.
small = pytest.mark.usefixtures("small_slices")


def told_of(holds: list[Hold]) -> list[tuple[object, ...]]:
    """What is told of these holders, but for the time, which passes."""
    return [(hold.name, hold.token, dict(hold.facts), hold.is_period) for hold in holds]


def holds_in(case: StoreCase, **options: Any) -> list[Hold]:
    """All holders that a walk tells."""
    return [*chain.from_iterable(case.store.walk_holds(**options))]


def lines_in(case: StoreCase, **options: Any) -> list[Line]:
    """All lines that a walk tells."""
    return [*chain.from_iterable(case.store.walk_lines(**options))]


def share(case: StoreCase, name: str, count: int) -> None:
    """Let so many hold one lock."""
    for number in range(count):
        facts = f'{{"limit":{count}}}'
        granted(case.store.acquire(name, f"job-{number}/1", 40.0 + number, facts=facts, limit=count))


@small
def test_a_walk_tells_of_each_lock_what_a_look_at_it_tells(case: StoreCase) -> None:
    """A claim, a run, a period, one with both, several holders; and nobody of a lock that is free."""
    case.take(A, 10.0, name="claimed")
    case.take(A, 20.0, name="both", period=60.0)
    case.take(A, 30.0, name="accepted", period=30.0)
    case.store.release("accepted", A)
    share(case, "shared", 3)
    case.take(A, 50.0, name="free")
    case.store.release("free", A)
    names = ["claimed", "both", "accepted", "shared"]
    expected = [hold for name in names for hold in case.store.holders(name)]
    found = holds_in(case)
    assert sorted(told_of(found), key=str) == sorted(told_of(expected), key=str)
    left = {(hold.name, hold.token): hold.expires_in for hold in expected}
    assert all(0.0 <= left[hold.name, hold.token] - hold.expires_in < 9.0 for hold in found)


@small
def test_it_tells_them_in_slices_soonest_to_end_first(case: StoreCase) -> None:
    for number, name in enumerate(NAMES):
        case.take(A, 60.0 - number, name=name)
    slices = [[hold.name for hold in some] for some in case.store.walk_holds()]
    assert [*map(len, slices)] == [5, 5, 5, 5, 3]
    assert [*chain.from_iterable(slices)] == NAMES[::-1]


@small
@pytest.mark.parametrize("limit", [0, 1, 7, 23, 99])
def test_it_tells_so_many_locks_at_most(case: StoreCase, limit: int) -> None:
    """With a period each, which is listed beside its lock."""
    for name in NAMES:
        case.take(A, name=name, period=60.0)
    found = [hold.name for hold in holds_in(case, limit=limit)]
    assert len(found) == len({*found}) == min(limit, len(NAMES))
    assert len(case.store.names(limit=limit)) == min(limit, len(NAMES))


@small
def test_of_one_that_many_hold_sixteen_are_told(case: StoreCase) -> None:
    """Those that end first; more would keep the server from others."""
    share(case, "n", MOST_TOLD + 4)
    assert [hold.token for hold in holds_in(case)] == [f"job-{number}/1" for number in range(MOST_TOLD)]
    assert len(case.store.holders("n")) == MOST_TOLD + 4
    assert [*map(len, case.store.holders_of_each(["n"]))] == [MOST_TOLD + 4]


@small
def test_what_is_held_all_along_is_told_once_while_others_come_go_and_are_renewed(case: StoreCase) -> None:
    kept = NAMES[::2]
    for number, name in enumerate(NAMES):
        case.take(A, 30.0 + number, name=name)
    found: list[Hold] = []
    for number, some in enumerate(case.store.walk_holds()):
        found += some
        case.store.release(NAMES[1::2][number % 11], A)
        case.take(B, 10.0 * (number + 1), name=f"new-{number}")
        case.store.renew([Term(name, A, 40.0) for name in kept[number % 3 :: 3]])
    told = Counter(hold.name for hold in found)
    assert {name: told[name] for name in kept} == dict.fromkeys(kept, 1)
    assert max(told.values()) == 1


@small
def test_names_are_read_in_pieces_and_each_is_there(plain_case: RedisCase) -> None:
    """Also where more are listed as of one millisecond than a piece has."""
    index = f"{plain_case.prefix}:index"
    for name in NAMES:
        plain_case.take(A, name=name)
    scores: Any = plain_case.client.zrange(index, 0, -1, withscores=True)
    assert plain_case.client.zadd(index, dict.fromkeys(NAMES[5:16], scores[-1][1]), xx=True) == 0
    assert sorted(plain_case.redis.names()) == NAMES
    assert sorted(hold.name for hold in holds_in(plain_case)) == NAMES


@small
@pytest.mark.parametrize("at", range(8))
def test_a_run_that_is_put_back_in_the_list_while_that_is_read_is_told(
    plain_case: RedisCase, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """By its first renewal: until then it is listed for as long as its claim would have lived."""
    for name in NAMES:
        plain_case.take(A, 30.0, name=name)
    plain_case.take(A, 3600.0, name="n")
    granted(plain_case.take(B, 20.0, name="n", instead_of=A, starts_run=True))
    pieces = iter(range(99))
    send = plain_case.redis._scripts.send

    def renewed_in_between(*words: str, **how: Any) -> Any:
        if next(pieces) == at:
            assert plain_case.redis.renew([Term("n", B, 20.0)]).renewed == [True]
        return send(*words, **how)

    monkeypatch.setattr(plain_case.redis._scripts, "send", renewed_in_between)
    assert sorted(plain_case.redis.names()) == ["n", *NAMES]
    assert next(pieces) > at


@small
def test_no_name_is_read_behind_the_last_one_that_is_wanted(
    plain_case: RedisCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many more there are: one request would tell them all."""
    for number, name in enumerate(NAMES):
        plain_case.take(A, 30.0 + number, name=name)
    send = plain_case.redis._scripts.send
    told: list[int] = []

    def counted(*words: str, **how: Any) -> Any:
        answer = send(*words, **how)
        told.append(len(answer))
        return answer

    monkeypatch.setattr(plain_case.redis._scripts, "send", counted)
    assert plain_case.redis.names(limit=5) == NAMES[:5]
    assert 0 < max(told) <= 4


def test_no_request_keeps_the_server_for_long(lone_case: RedisCase) -> None:
    """Five hundred values, fifty heads; counted by the server. Few are asked how long they live."""
    store, client = lone_case.redis, lone_case.client
    queued = f'{A}\0{{"state":"queued"}}'
    for number in range(600):
        name = f"n{number:03}"
        client.set(lone_case.key(name), queued if number else "theirs", px=60_000)
        client.zadd(f"{lone_case.prefix}:index", {name: 9e12})
        if number < 120:
            client.zadd(lone_case.key(name, "line"), {B: 1})
            client.zadd(f"{lone_case.prefix}:lines", {name: 9e12})
    client.pexpire(f"{lone_case.prefix}:index", 60_000)
    for _ in range(2):  # the server knows the scripts then
        trips = Trips(client)
        before = calls(lone_case)
        assert [*map(len, store.walk_holds(limit=1000))] == [600]
        after = calls(lone_case)
        assert (after["mget"] - before["mget"], after["pttl"] - before["pttl"]) == (2, 1)
        assert [*map(len, store.walk_lines(limit=1000))] == [120]
    assert trips() == {"evalsha": 2 + 1 + 3}


class TestEndsByTheIndex:
    """How long a hold lives still, where the list of locks says something else than its key."""

    RUNS = '{"state":"running","ttl":30.0}'

    def test_a_run_that_has_never_been_renewed_is_told_with_its_own_end(self, plain_case: RedisCase) -> None:
        """It is listed as its claim was; it may be late."""
        plain_case.take(A, 3600.0)
        granted(plain_case.store.acquire("n", B, 12.0, facts=self.RUNS, instead_of=A, starts_run=True))
        (hold,) = holds_in(plain_case)
        assert 3.0 < hold.expires_in <= 12.0

    def test_a_run_is_late_by_its_own_end_not_by_the_time_that_a_walk_takes(
        self, plain_case: RedisCase
    ) -> None:
        """It was renewed after its name was read."""
        granted(plain_case.store.acquire("n", B, 30.0, facts=self.RUNS))
        now: Any = plain_case.client.time()
        plain_case.client.zadd(f"{plain_case.prefix}:index", {"n": now[0] * 1000 + 14_000})
        (hold,) = holds_in(plain_case)
        assert 21.0 < hold.expires_in <= 30.0

    def test_a_claim_ends_when_it_is_listed(self, plain_case: RedisCase) -> None:
        granted(plain_case.store.acquire("n", B, 60.0, facts='{"state":"queued"}', period=600.0))
        (hold,) = holds_in(plain_case)
        assert 51.0 < hold.expires_in <= 60.0
        plain_case.store.release("n", B)
        (hold,) = holds_in(plain_case)
        assert hold.is_period
        assert 591.0 < hold.expires_in <= 600.0

    @pytest.mark.parametrize("count", [1, 3])
    def test_one_of_several_that_lets_go_while_they_are_looked_at_is_not_told(
        self, plain_case: RedisCase, monkeypatch: pytest.MonkeyPatch, count: int
    ) -> None:
        """It would seem to be another program's."""
        share(plain_case, "n", count)
        pipeline = plain_case.redis._scripts.pipeline

        def released_in_between(operation: str, commands: Any, understand: Any) -> Any:
            if commands[0][0] == "HGET":
                plain_case.store.release("n", "job-0/1")
            return pipeline(operation, commands, understand)

        monkeypatch.setattr(plain_case.redis._scripts, "pipeline", released_in_between)
        assert [hold.token for hold in holds_in(plain_case)] == [f"job-{n}/1" for n in range(1, count)]

    def test_a_lock_that_is_taken_while_its_period_is_looked_at_is_told(
        self, plain_case: RedisCase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain_case.take(A, period=600.0)
        plain_case.store.release("n", A)
        pipeline = plain_case.redis._scripts.pipeline

        def taken_in_between(operation: str, commands: Any, understand: Any) -> Any:
            if commands[0][0] == "EXISTS":
                plain_case.client.set(plain_case.key(), "theirs", px=60_000)
            return pipeline(operation, commands, understand)

        monkeypatch.setattr(plain_case.redis._scripts, "pipeline", taken_in_between)
        plain_case.foreign = (plain_case.key(),)
        assert [hold.token for hold in holds_in(plain_case)] == ["theirs"]

    def test_a_key_that_is_no_set_of_permits_hides_no_other_shared_lock(self, plain_case: RedisCase) -> None:
        for name in ("n", "other"):
            share(plain_case, name, 2)
        plain_case.client.delete(plain_case.key("n", "permits"))
        plain_case.client.set(plain_case.key("n", "permits"), "theirs", px=60_000)
        assert [hold.name for hold in holds_in(plain_case)] == ["other", "other"]


def calls(case: RedisCase) -> Counter[str]:
    """How often the server was asked for each command."""
    stats: Any = case.client.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()})


@pytest.mark.parametrize("part", ["lock", "period"])
def test_a_key_that_is_no_lock_is_left_out_and_hides_no_other(plain_case: RedisCase, part: str) -> None:
    """Another program's list or hash. Who looks at that very lock is told so."""
    for name in ("n", "other"):
        plain_case.take(A, name=name, period=60.0)
        plain_case.store.release(name, A)
    plain_case.client.delete(plain_case.key("n", part))
    plain_case.client.hset(plain_case.key("n", part), "field", "value")
    plain_case.client.pexpire(plain_case.key("n", part), 60_000)
    assert [hold.name for hold in holds_in(plain_case)] == ["other"]
    with pytest.raises(LockKeyError, match="WRONGTYPE"):
        [*plain_case.store.holders_of_each(["other", "n"])]


def test_another_programs_lock_in_the_place_of_ours_is_told(plain_case: RedisCase) -> None:
    """Without an end, where it has none."""
    plain_case.take(A)
    plain_case.client.set(plain_case.key(), "theirs")
    plain_case.foreign = (plain_case.key(),)
    (hold,) = holds_in(plain_case)
    assert (hold.token, hold.state, hold.expires_in) == ("theirs", None, float("inf"))


class TestLines:
    @small
    def test_each_line_is_told_with_its_length_and_its_first(self, case: StoreCase) -> None:
        """As a look at it tells: who it is, where its message goes, the claim that it will be handed."""
        for number, name in enumerate(NAMES):
            case.take(A, name=name)
            for id_ in (B, C)[: 1 + number % 2]:
                park(case, id_, name=name, facts=f'{{"task":"shop.{name}"}}')
        found = lines_in(case)
        assert sorted(line.name for line in found) == NAMES
        for line in found:
            length, (first, *_) = case.store.waiting(line.name)
            assert (line.length, line.is_handed_on) == (length, False)
            assert line.first.id == first.id == B
            assert (line.first.kind, line.first.to, line.first.sends) == (first.kind, first.to, first.sends)
            assert told_of([line.first.hold]) == told_of([first.hold])
        assert len(lines_in(case, limit=7)) == 7

    def test_one_that_was_handed_the_lock_is_told_where_nobody_else_is_in_line(self, case: StoreCase) -> None:
        line_up(case, B, C)
        case.store.release("n", A)
        (line,) = lines_in(case)
        assert (line.length, line.first.id, line.is_handed_on) == (1, C, False)
        case.store.leave("n", C)
        (line,) = lines_in(case)
        assert (line.length, line.first.id, line.is_handed_on, line.first.sends) == (0, B, True, 1)
        granted(case.take("run/1", instead_of=B, starts_run=True))
        assert lines_in(case) == []

    @small
    def test_a_line_that_stands_all_along_is_told_once_while_others_come_and_go(
        self, case: StoreCase
    ) -> None:
        kept = NAMES[::2]
        for name in NAMES:
            case.take(A, name=name)
            park(case, B, name=name)
        found: list[Line] = []
        for number, some in enumerate(case.store.walk_lines()):
            found += some
            case.store.leave(NAMES[1::2][number % 11], B)
            case.take(A, name=f"new-{number}")
            park(case, B, name=f"new-{number}")
            case.make_due(kept[number % 12])
        told = Counter(line.name for line in found)
        assert {name: told[name] for name in kept} == dict.fromkeys(kept, 1)
        assert max(told.values()) == 1

    def test_a_stroke_ends_with_a_quarter_of_a_million_bytes_of_texts(self, lone_case: RedisCase) -> None:
        """A script reads a text as a whole; that of the largest message takes half a millisecond."""
        for name in NAMES[:7]:
            lone_case.take(A, name=name)
            park(lone_case, B, name=name, text="x" * 100_000)
        lines_in(lone_case)
        trips = Trips(lone_case.client)
        assert [line.first.id for line in lines_in(lone_case)] == [B] * 7
        assert trips() == {"evalsha": 1 + 3}

    @pytest.mark.parametrize("part", ["line", "parked", "sent"])
    def test_a_key_of_another_type_hides_no_other_line(self, plain_case: RedisCase, part: str) -> None:
        for name in ("n", "other"):
            plain_case.take(A, name=name)
            park(plain_case, B, name=name)
        plain_case.client.delete(plain_case.key("n", part))
        plain_case.client.set(plain_case.key("n", part), "theirs", px=60_000)
        assert "other" in [line.name for line in lines_in(plain_case)]


@pytest.mark.parametrize(
    "walk", [lambda store: store.walk_holds(), lambda store: store.walk_lines()], ids=["holds", "lines"]
)
def test_where_there_is_nothing_there_is_no_slice(case: StoreCase, walk: Callable[[Any], Any]) -> None:
    assert [*walk(case.store)] == []
