"""Periods (``lock_period``) and fences, on every store."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from celery_redislock.store.redisstore import RedisStore
from celery_redislock.store.store import Mark, Term
from tests.stores import ABOUT, JOBS, RedisCase, StoreCase, granted, in_line, look, park, refused

A, B, C, *_ = JOBS

#: What is said of a message that waits in line, and is accepted when it starts.
WAITS = '{"task":"shop.charge","state":"queued","line":1,"period":1,"since":1.0}'


class TestPeriod:
    def test_it_ends_with_another_hold_of_the_same_job(self, case: StoreCase) -> None:
        """A run that failed: the claim began it, and the lease is what is released."""
        case.take(A, period=60.0)
        case.take(B, instead_of=A, period=60.0)
        assert case.store.release("n", B, opened_by=A, mark=Mark("m", 5.0)).released
        assert case.store.names() == []
        assert case.remaining(part="mark:m") is not None
        granted(case.take("job-c/1", period=60.0))
        assert not case.store.release("n", B, opened_by=A).released
        assert (case.holder(), case.remaining(part="period") is None) == ("job-c/1", False)

    def test_an_operator_sees_it_and_takes_it_away_alone(self, case: StoreCase) -> None:
        case.take(A, period=60.0)
        case.store.release("n", A)
        seen = case.store.inspect("n")
        assert not case.store.force_release("n", expected=B).released
        victim = case.store.force_release("n", expected=A)
        assert victim.released
        for hold in (seen, victim.held_by):
            assert hold is not None
            assert (hold.token, hold.is_period) == (A, True)
        granted(case.take(B, period=60.0))


class TestLine:
    """Those who wait, where the run of A has ended and its period has not."""

    @pytest.fixture(autouse=True)
    def kept(self, case: StoreCase) -> None:
        case.take(A, period=60.0)
        for token in (B, C):
            assert park(case, token, facts=WAITS).word == "parked"
        case.store.release("n", A)

    def start(self, case: StoreCase, claim: str, run: str) -> Any:
        """Let one start that has waited."""
        about = ABOUT.replace("}", f',"message":"{claim}"}}')
        return case.store.acquire("n", run, 30.0, facts=about, instead_of=claim, period=60.0, starts_run=True)

    def test_one_that_starts_too_early_waits_in_its_place_again(self, case: StoreCase) -> None:
        """Its task had no period when it was parked: it keeps nothing, is not lost, and waits from now on."""
        for token in (B, C):
            case.store.leave("n", token)
        assert park(case, B, facts=WAITS.replace('"period":1,', "")).word == "woken"
        assert refused(self.start(case, B, "job-b/2")).hold.is_period
        assert (in_line(case), case.remaining()) == ([B], None)
        assert park(case, B, facts=WAITS).word == "repeated"
        assert 50.0 < look(case).next_in <= 60.0
        assert in_line(case) == [B]

    def test_who_has_waited_for_as_long_as_it_may_goes_without_the_lock(self, case: StoreCase) -> None:
        """``lock_wait_timeout``, also while nobody holds it; its run tells that it was in vain."""
        park(case, "job-d/1", facts=WAITS, within=5.0)
        case.make_late("job-d/1")
        assert 50.0 < look(case).next_in <= 60.0
        assert (case.pushed(), in_line(case)) == (["job-d/1"], [B, C])


class TestListing:
    def test_a_period_is_listed_until_it_ends(self, case: StoreCase) -> None:
        """Else nobody finds out why a free lock refuses."""
        case.take(A, period=60.0)
        case.store.release("n", A)
        assert case.store.names() == ["n"]
        case.take(B, 5.0, name="other")
        assert case.store.names() == ["other", "n"]
        case.expire(part="period")
        case.take(B, name="n")
        case.store.release("n", B)
        assert "n" not in _listed(case)

    def test_a_hold_with_a_period_is_listed_once(self, case: StoreCase) -> None:
        for name in ("one", "two", "three"):
            case.take(A, 30.0, name=name, period=60.0)
        assert sorted(case.store.names()) == ["one", "three", "two"]
        assert len(case.store.names(limit=2)) == 2

    @pytest.mark.parametrize("ttl", [0.01, 10.0])
    def test_a_period_is_listed_although_its_run_was_lost(self, case: StoreCase, ttl: float) -> None:
        case.take(A, 5.0, period=60.0)
        case.store.acquire("n", B, ttl, facts=ABOUT, instead_of=A)
        case.store.renew([Term("n", B, ttl)])
        case.expire()
        assert case.store.names() == ["n"]


def _listed(case: StoreCase) -> list[str]:
    """What is listed and found, as the command line does it."""
    return [name for name in case.store.names() if case.store.inspect(name) is not None]


class TestFence:
    def test_it_grows_with_every_grant(self, case: StoreCase) -> None:
        fences = []
        for number in range(50):
            fences.append(granted(case.take(f"job/{number}")).fence)
            fences.append(granted(case.take(f"job/{number}")).fence)
            case.store.release("n", f"job/{number}")
        assert fences == sorted(set(fences))

    def test_it_is_a_time_in_microseconds(self, case: StoreCase) -> None:
        """So it goes on growing when a server lost all its data."""
        fence = granted(case.take(A)).fence
        assert 1_600_000_000_000_000 < fence < 2**53


@pytest.fixture
def strict_case(redis_url: str) -> Iterator[RedisCase]:
    """A server's store with strict fences."""
    with closing(RedisCase(redis_url, strict_fence=True)) as case:
        yield case


class TestStrictFence:
    def test_it_grows_on_where_the_servers_clock_was_set_back(self, strict_case: RedisCase) -> None:
        ahead = 4_000_000_000_000_000
        strict_case.client.set(strict_case.key(part="fence"), ahead, px=60_000)
        fences = []
        for token in (A, B):
            fences.append(granted(strict_case.take(token)).fence)
            strict_case.store.release("n", token)
        assert fences == [ahead + 1, ahead + 2]

    def test_it_does_not_go_back_where_the_key_is_behind_or_unreadable(self, strict_case: RedisCase) -> None:
        for stored in ("17", "rubbish"):
            strict_case.client.set(strict_case.key(part="fence"), stored, px=60_000)
            assert granted(strict_case.take(A)).fence > 1_600_000_000_000_000

    def test_its_number_outlives_the_lock_by_days_and_not_for_ever(self, strict_case: RedisCase) -> None:
        strict_case.take(A)
        strict_case.store.release("n", A)
        left = strict_case.remaining(part="fence")
        assert left is not None
        assert 6 * 86400 < left <= 7 * 86400

    def test_the_time_fence_needs_no_key(self, plain_case: RedisCase) -> None:
        assert isinstance(plain_case.redis, RedisStore)
        plain_case.redis.acquire("n", A, 30.0, facts=ABOUT)
        assert not plain_case.client.exists(plain_case.key(part="fence"))
