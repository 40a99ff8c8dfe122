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
