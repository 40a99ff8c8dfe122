"""The scopes: how long a task is unique, and what a call may ask for itself."""

import time
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError

from celery_redislock import DuplicateTask
from tests.acceptance.harness import PATIENCE, Shop, wait_until
from tests.acceptance.messages import captured, deliver

#: Seconds of a window whose end a test waits for: enough for a run on a busy machine.
PERIOD = 3.0


def test_until_executing_frees_the_key_when_the_run_starts(any_shop: Shop, key: str) -> None:
    """``until_executing``: one may be queued beside the one that runs, and no more."""
    with any_shop.running(any_shop.queue, key) as first:
        second = any_shop.queue.apply_async((key,), queue="aside")
        third = any_shop.queue.delay(key)
    deliver(any_shop, captured(any_shop))

    assert not second.is_duplicate
    assert third.is_duplicate
    assert third.id == second.id
    assert {first.get(timeout=PATIENCE), second.get(timeout=PATIENCE)} == {f"{key} done"}
    assert len(any_shop.bodies(key)) == 2
    assert any_shop.holder(key) is None


def test_until_executing_with_retry_runs_behind_the_one_that_is_queued(any_shop: Shop, key: str) -> None:
    """Law 1: what is published without a claim, so that the worker decides, is decided there."""
    first = any_shop.queue.apply_async((key,), countdown=2.0)
    second = any_shop.queue.apply_async((key,), on_conflict="retry")
    any_shop.wait_lines("comes back later", second.id)

    assert first.get(timeout=PATIENCE) == second.get(timeout=PATIENCE) == f"{key} done"
    assert [body.task_id for body in any_shop.bodies(key)] == [first.id, second.id]
    assert any_shop.holder(key) is None


def test_until_expired_counts_from_acceptance(any_shop: Shop, key: str) -> None:
    """``until_expired``: refused until the window has passed, however early the run ended."""
    before = time.time()
    first = any_shop.offer.apply_async((key,), lock_period=PERIOD)
    accepted = time.time()
    window = any_shop.holder(key)
    seen = time.time()
    first.get(timeout=PATIENCE)
    ended = time.time()
    later = any_shop.holder(key)
    assert any_shop.offer.delay(key).id == first.id
    next_one = wait_until(
        lambda: _unless_duplicate(any_shop.offer.delay(key)), PATIENCE, "the window has passed"
    )
    reopened = time.time()

    # A window seen between two times ends between both of them plus what remained of it.
    assert window is not None
    assert later is not None
    assert seen + window.remaining + 0.01 >= before + PERIOD
    assert ended + later.remaining <= accepted + PERIOD + 0.01
    assert reopened + 0.01 >= before + PERIOD
    next_one.get(timeout=PATIENCE)
    assert len(any_shop.bodies(key)) == 2


def test_until_expired_holds_for_messages_without_a_claim(any_shop: Shop, key: str) -> None:
    """``until_expired``: what ``send_task`` publishes is accepted, or skipped, when it starts."""
    first = any_shop.app.send_task("shop.offer_rarely", (key,))
    first.get(timeout=PATIENCE)
    second = any_shop.app.send_task("shop.offer_rarely", (key,))
    with pytest.raises(TaskRevokedError, match=first.id):
        second.get(timeout=PATIENCE)

    assert any_shop.offer_rarely.delay(key).is_duplicate
    assert len(any_shop.bodies(key)) == 1


def test_a_retry_passes_through_its_own_window(any_shop: Shop, key: str) -> None:
    """``until_expired``: what was accepted runs to its end, retries included."""
    result = any_shop.offer_rarely.delay(key, 0.0, "retry", {"times": 2})

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert [body.retries for body in any_shop.bodies(key)] == [0, 1, 2]
    assert any_shop.offer_rarely.delay(key).is_duplicate


def test_a_period_outlives_the_lock(any_shop: Shop, key: str) -> None:
    """``lock_period`` with ``until_executed``: after the run the window still refuses."""
    first = any_shop.open_daily.apply_async((key,), lock_period=PERIOD)
    first.get(timeout=PATIENCE)
    holder = any_shop.holder(key)
    assert holder is not None
    assert (holder.state, holder.owner) == ("window", first.id)
    assert any_shop.open_daily.delay(key).id == first.id
    any_shop.wait_free(key)

    assert any_shop.open_daily.delay(key).get(timeout=PATIENCE) == f"{key} done"
    assert len(any_shop.bodies(key)) == 2


def test_a_retry_is_accepted_within_its_own_period(any_shop: Shop, key: str) -> None:
    """``lock_period`` counts acceptances; a retry is none."""
    assert any_shop.open_daily.delay(key, 0.0, "retry").get(timeout=PATIENCE) == f"{key} done"
    assert len(any_shop.bodies(key)) == 2


@pytest.mark.parametrize("how", ["per call", "declared"])
def test_without_a_scope_nothing_is_checked_anywhere(any_shop: Shop, key: str, how: str) -> None:
    """``lock=None``: published and run beside a holder."""
    call = any_shop.sell.si(key).set(lock=None) if how == "per call" else any_shop.gossip.si(key)
    with any_shop.running(any_shop.sell, key):
        result = call.apply_async()
        any_shop.wait_ended(key)
    any_shop.wait_ended(key, 2)

    assert not result.is_duplicate
    assert len(any_shop.overlaps(key)) == 1
    assert any_shop.bodies(key)[1].token is None


def test_a_call_may_bring_its_own_key(any_shop: Shop, key: str) -> None:
    """``lock_key`` per call: another resource for this call, its retries included."""
    with any_shop.running(any_shop.sell, key):
        other = any_shop.sell.apply_async((key, 0.0, "retry"), lock_key=f"aside:{key}")
        assert other.get(timeout=PATIENCE) == f"{key} done"
    any_shop.wait_ended(key, 3)

    assert not other.is_duplicate
    assert len(any_shop.overlaps(key)) == 2


def test_a_call_may_bring_its_own_scope(any_shop: Shop, key: str) -> None:
    """``lock`` per call travels: the worker serialises what the task itself would have skipped."""
    results = [any_shop.sell.apply_async((key, 0.2), lock="while_executing") for _ in range(3)]
    for result in results:
        result.get(timeout=PATIENCE)

    assert len(any_shop.bodies(key)) == 3
    assert any_shop.overlaps(key) == []


def test_a_key_of_all_arguments_tells_calls_apart(any_shop: Shop, key: str) -> None:
    """``lock_key=None``: positional and keyword calls are the same, other values are not."""
    with any_shop.kept_on(key):
        first = any_shop.sell_everything.delay(key, 0.1)
        same = any_shop.sell_everything.delay(key=key, seconds=0.1)
        same_again = any_shop.sell_everything.delay(key, seconds=0.1, then=None)
        other = any_shop.sell_everything.delay(key, 0.2)

    assert same.id == same_again.id == first.id
    assert not other.is_duplicate


class TestProtocol1:
    """Task protocol 1 puts all of its own into the body; the lock's header travels beside it."""

    def test_claim_run_and_retry(self, protocol_1_shop: Shop, key: str) -> None:
        with protocol_1_shop.kept_on(key):
            result = protocol_1_shop.sell.delay(key, 0.0, "retry")
            duplicate = protocol_1_shop.sell.delay(key)

        assert duplicate.id == result.id
        assert result.get(timeout=PATIENCE) == f"{key} done"
        assert len(protocol_1_shop.bodies(key)) == 2
        assert protocol_1_shop.holder(key) is None

    def test_serialised_runs(self, protocol_1_shop: Shop, key: str) -> None:
        results = [protocol_1_shop.serve.delay(key, 0.2) for _ in range(3)]
        for result in results:
            result.get(timeout=PATIENCE)

        assert len(protocol_1_shop.bodies(key)) == 3
        assert protocol_1_shop.overlaps(key) == []


def test_duplicate_is_an_error_where_a_call_wants_it(any_shop: Shop, key: str) -> None:
    """``on_conflict`` per call wins over the task's."""
    with any_shop.kept_on(key):
        any_shop.sell.delay(key)
        with pytest.raises(DuplicateTask):
            any_shop.sell.apply_async((key,), on_conflict="raise")

    any_shop.wait_free(key)
    assert len(any_shop.bodies(key)) == 1


def _unless_duplicate(result: Any) -> Any:
    return None if result.is_duplicate else result
