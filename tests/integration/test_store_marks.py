"""Marks, which tell copies of a message that it has run; and handing a hold on, on every store."""

from typing import cast
from uuid import uuid4

import pytest

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks import connect
from celery_redislock.locks.lease import new_token
from celery_redislock.store.store import Mark, Marked
from tests.facts import wait_until
from tests.stores import ABOUT, RedisCase, StoreCase, granted

A, B, C = "job-a/1", "job-b/1", "job-c/1"
MESSAGE = "job-a/0"
ENDING, DONE = Mark(MESSAGE, 60.0), Mark(MESSAGE, 60.0, is_done=True)


def _mark_of(case: StoreCase, message: str = MESSAGE) -> bool | None:
    """Whether the mark says done, and not ending; ``None`` where there is none."""
    answer = case.take("copy/1", name="n", message=message)
    if isinstance(answer, Marked):
        assert 50.0 < answer.expires_in <= 60.0
        return answer.is_done
    case.store.release("n", "copy/1")
    return None


class TestMark:
    @pytest.mark.parametrize("mark", [DONE, ENDING], ids=["done", "ending"])
    @pytest.mark.parametrize("holder", [None, B])
    def test_a_copy_learns_that_its_message_is_done(
        self, case: StoreCase, mark: Mark, holder: str | None
    ) -> None:
        """Law 8: a copy takes nothing, and waits for nobody.

        While the run is ending, the result and the follow-ups may still be to come. Whoever holds by now: the
        run that lost its lock has ended as well.
        """
        case.take(A)
        if holder is not None:
            case.expire()
            case.take(holder)
        assert case.store.release("n", A, mark=mark).released is (holder is None)
        assert (_mark_of(case), case.holder()) == (mark.is_done, holder)

    def test_after_a_death_between_end_and_done_a_copy_runs(self, case: StoreCase) -> None:
        """Law 8: such a message runs again, rather than lose its result."""
        case.take(A)
        case.store.release("n", A, mark=ENDING)
        case.expire(part=f"mark:{MESSAGE}")
        granted(case.take(B, message=MESSAGE))

    def test_ending_becomes_done_and_leaves_every_hold(self, case: StoreCase) -> None:
        case.take(A)
        case.store.release("n", A, mark=ENDING)
        case.take(B)
        case.store.mark_done("n", MESSAGE, 60.0)
        assert (_mark_of(case), case.holder()) == (True, B)

    def test_done_is_never_overwritten_by_ending(self, case: StoreCase) -> None:
        """A release that comes late, or is repeated."""
        case.store.mark_done("n", MESSAGE, 60.0)
        case.store.release("n", A, mark=ENDING)
        assert _mark_of(case) is True
        case.store.hand_on("n", A, B, 30.0, facts=ABOUT, mark=ENDING)
        assert _mark_of(case) is True

    def test_a_mark_of_another_type_keeps_no_lock(self, plain_case: RedisCase) -> None:
        key = plain_case.key(part=f"mark:{MESSAGE}")
        plain_case.client.hset(key, "field", "value")
        plain_case.client.pexpire(key, 30_000)
        plain_case.take(A)
        assert plain_case.store.release("n", A, mark=ENDING).released

    def test_it_costs_no_more_than_180_bytes(self, lone_case: RedisCase) -> None:
        """They are most of what a busy server keeps. A name of 45 bytes, a prefix as long as the default."""
        store = connect(lone_case.url, prefix="r" * len("redislock"))
        name = "shop.tasks.sync_account:v1:2ce4f720ab19ce7730"
        number = 4000

        def used() -> int:
            return cast("dict[str, int]", lone_case.client.info("memory"))["used_memory"]

        store.mark_done(name, new_token(str(uuid4())), 7200.0)
        before = used()
        for _ in range(number):
            store.mark_done(name, new_token(str(uuid4())), 7200.0)
        assert store.inspect(name) is None  # all have been carried out

        assert len(name) == 45
        assert (used() - before) / number <= 180


class TestHandOn:
    def test_the_hold_becomes_the_new_tokens_without_a_gap(self, case: StoreCase) -> None:
        case.take(A, 30.0)
        answer = case.store.hand_on("n", A, B, 3600.0, facts='{"state": "queued"}')
        assert (answer.released, answer.held_by) == (True, None)
        hold = case.store.inspect("n")
        assert hold is not None
        assert (hold.token, hold.state) == (B, "queued")
        assert 3590.0 < hold.expires_in <= 3600.0
        assert case.store.names() == ["n"]

    @pytest.mark.parametrize("holder", [None, C])
    def test_only_its_own_hold_is_handed_on(self, case: StoreCase, holder: str | None) -> None:
        """What was lost stays lost, also where nobody has it now. Law 3: only the holder."""
        case.take(A)
        case.expire()
        if holder is not None:
            case.take(holder, 30.0)
        answer = case.store.hand_on("n", A, B, 3600.0, facts=ABOUT)
        assert not answer.released
        assert (answer.held_by and answer.held_by.token) == case.holder() == holder
        assert case.store.names() == ["n"] * (holder is not None)
        assert (case.remaining() or 0.0) <= 30.0

    @pytest.mark.parametrize("is_done", [True, False])
    def test_a_successor_that_has_run_gets_nothing(self, case: StoreCase, is_done: bool) -> None:
        """It ran, or was revoked, before its predecessor had ended: a claim of it would stay for its ttl."""
        case.store.release("n", "nobody/1", mark=Mark(B, 60.0, is_done))
        case.take(A)
        assert case.store.hand_on("n", A, B, 3600.0, facts=ABOUT).released
        assert case.holder() is None
        assert case.store.names() == []

    def test_repeating_it_is_harmless(self, case: StoreCase) -> None:
        case.take(A)
        answers = [case.store.hand_on("n", A, B, 30.0, facts=ABOUT, mark=ENDING) for _ in range(3)]
        assert [answer.released for answer in answers] == [True] * 3
        assert (_mark_of(case), case.holder()) == (False, B)

    def test_the_successor_is_not_refused_by_the_period_of_the_first(self, case: StoreCase) -> None:
        case.take(A, period=60.0)
        case.store.hand_on("n", A, B, 30.0, facts=ABOUT)
        granted(case.take(C, instead_of=B, period=60.0))


class TestUnawaited:
    """``mark_done`` is sent, and its answer read by whoever uses the connection next."""

    def test_its_answer_is_not_taken_for_the_next_ones(self, plain_case: RedisCase) -> None:
        store = plain_case.redis
        for number in range(5):
            store.mark_done("n", f"m{number}", 60.0)
            store.mark_done("n", f"m{number}", 60.0)
            granted(store.acquire("n", A, 30.0, facts=ABOUT))
            assert store.release("n", A).released
            assert store.server_says("memory", "maxmemory_policy") == "noeviction"

    def test_an_error_in_answer_to_it_is_not_taken_for_the_next_ones(self, plain_case: RedisCase) -> None:
        """Out of memory, read-only, without permission: the mark is lost, and nothing else."""
        store = plain_case.redis
        granted(store.acquire("n", A, 30.0, facts=ABOUT))
        store._scripts.send("mark_done", "SET", "one word too few")
        store._scripts.send("mark_done", "NO SUCH COMMAND")
        assert store.release("n", A).released
        granted(store.acquire("n", B, 30.0, facts=ABOUT))
        plain_case.client.delete(plain_case.key())

    def test_it_is_sent_before_the_next_request_is(self, plain_case: RedisCase) -> None:
        plain_case.redis.mark_done("n", MESSAGE, 60.0)
        assert wait_until(lambda: plain_case.client.exists(plain_case.key(part=f"mark:{MESSAGE}")) == 1, 5)


def test_a_mark_that_cannot_be_sent_is_told() -> None:
    with pytest.raises(LockUnavailable):
        RedisCase("redis://127.0.0.1:1").redis.mark_done("n", MESSAGE, 60.0)
