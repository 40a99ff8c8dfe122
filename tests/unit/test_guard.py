"""What refuses a hold although nobody stands behind it: what this very process still owes."""

from typing import Any

import pytest

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.guard import Guard, Started
from celery_redislock.locks.store import Grant, Refusal
from celery_redislock.work import Work
from tests.unit.shop import FlakyStore

KEY = "account:7"


class UnheardStore(FlakyStore):
    """Its first answer to an acquire is lost on the way; and the watchdog's releases never arrive."""

    is_heard = False

    def acquire(self, *args: Any, **kwargs: Any) -> Any:
        answer = super().acquire(*args, **kwargs)
        if not self.is_heard:
            self.is_heard = True
            raise LockUnavailable("memory", "acquire", "its answer was lost")
        return answer


@pytest.fixture
def guard() -> Guard:
    """It owes a claim that was granted, and of which it never heard."""
    guard = Guard(UnheardStore())
    with pytest.raises(LockUnavailable), guard.owing(KEY, "a/1", ttl=60.0, undo=True):
        guard.claim(work("a"), "a/1", ttl=60.0, period=50.0)
    return guard


def work(task_id: str) -> Work:
    return Work(KEY, "shop.sync", task_id, "digest")


def asked(guard: Guard) -> list[str]:
    """What its server was asked, but for what came before."""
    calls = guard.store.calls  # type: ignore[attr-defined]  # it is a FlakyStore
    return list(calls[calls.index("acquire") + 1 :])


def test_an_unheard_claim_is_nobodys_holder_to_who_tries_again(guard: Guard) -> None:
    """Law 2: a duplicate of a message that was never published would be lost, and waited for in vain."""
    answer = guard.claim(work("b"), "b/1", ttl=60.0, period=50.0)

    assert isinstance(answer, Grant)
    assert asked(guard) == ["acquire", "release", "acquire"]


def test_an_unheard_claim_stops_no_run(guard: Guard) -> None:
    """Law 2, on the worker's side."""
    answer = guard.start(work("b"), "b/1", ttl=60.0, message=None, claim=None)

    assert isinstance(answer, Started)


def test_a_run_whose_release_went_unanswered_is_nobodys_holder(guard: Guard) -> None:
    """Law 2: it has ended, and stands for nobody any more."""
    started = guard.start(work("b"), "b/1", ttl=60.0, message=None, claim=None)
    assert isinstance(started, Started)
    guard.store.failures = 1  # type: ignore[attr-defined]  # it is a FlakyStore
    guard.finish(started.lease)

    answer = guard.claim(work("c"), "c/1", ttl=60.0)

    assert isinstance(answer, Grant)


def test_an_unheard_claim_that_still_cannot_be_given_back_is_an_outage(guard: Guard) -> None:
    """Law 9: no refusal, which would name a holder that there is not; and it stays owed."""
    store, acquire = guard.store, guard.store.acquire

    def acquire_before_it_fails(*args: Any, **kwargs: Any) -> Any:
        answer = acquire(*args, **kwargs)
        store.failures = 1  # type: ignore[attr-defined]  # it is a FlakyStore
        return answer

    store.acquire = acquire_before_it_fails  # type: ignore[method-assign]

    with pytest.raises(LockUnavailable):
        guard.claim(work("b"), "b/1", ttl=60.0)
    assert guard.watchdog.owes == 1


def test_a_holder_of_whom_nothing_is_owed_refuses_in_one_request(guard: Guard) -> None:
    """Laws 3 and 10."""
    guard.claim(work("b"), "b/1", ttl=60.0)
    guard.store.calls.clear()  # type: ignore[attr-defined]  # it is a FlakyStore

    answer = guard.claim(work("c"), "c/1", ttl=60.0)

    assert isinstance(answer, Refusal)
    assert answer.hold.token == "b/1"
    assert guard.store.calls == ["acquire"]  # type: ignore[attr-defined]  # it is a FlakyStore
