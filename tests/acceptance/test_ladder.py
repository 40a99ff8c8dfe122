"""Law 4, locks die with their holder: one test per rung of child, main process, expiry, by real kills."""

import os
import signal
import time
from collections.abc import Callable

import celery
import pytest
from celery.exceptions import TimeLimitExceeded, WorkerLostError
from celery.result import AsyncResult

from tests.acceptance.harness import PATIENCE, Shop, throughout, wait_until

#: What "within seconds" means: the main process looks at its children every five, and a machine may be busy.
WITHIN_SECONDS = 10.0


@pytest.mark.parametrize("ending", [None, "swallow"])
def test_a_hard_time_limit_frees_the_lock_when_the_body_is_dead(
    prefork_shop: Shop, key: str, ending: str | None
) -> None:
    """Law 4: the hook comes before the child is dead, so the lock is not given back in it."""
    seconds = 2 * PATIENCE if ending is None else 0.0
    # Its lease would outlive this test, so whoever finds it free knows that it was given back.
    result = prefork_shop.sell_in_time.apply_async(
        (key, seconds, ending, 2 * PATIENCE), lock_ttl=10 * PATIENCE
    )
    prefork_shop.wait_started(key)
    free = prefork_shop.wait_free(key)
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=PATIENCE)

    (dead,) = prefork_shop.bodies(key)
    assert free >= dead.end
    assert free - dead.end < WITHIN_SECONDS
    assert prefork_shop.sell.delay(key).get(timeout=PATIENCE) == f"{key} done"


@pytest.mark.parametrize("ending", ["overrun_once", "refuse_once"])
def test_a_timed_out_message_that_goes_back_to_its_queue_runs_again(
    prefork_shop: Shop, key: str, ending: str
) -> None:
    """Laws 2 and 8: the hard limit is recorded as its failure, and is no outcome; no claim is left behind."""
    result = prefork_shop.sell_in_time_again.delay(key, 0.0, ending, 2 * PATIENCE)
    free = _seen_free_before_the_second_start(prefork_shop, key)
    # The main process has settled what the dead child held, and the second run is over.
    prefork_shop.wait_lines("of a timed out run", key)
    backend = prefork_shop.app.backend
    wait_until(
        lambda: backend.get_task_meta(result.id, cache=False)["status"] == "SUCCESS", PATIENCE, "its result"
    )

    first, again = prefork_shop.bodies(key)
    assert (again.ended_by, {first.task_id, again.task_id}) == ("", {result.id})
    assert first.end <= again.start
    # A body that SIGTERM ends has released its lock by itself; who was killed is stood for.
    assert ending == "overrun_once" or free == []
    assert prefork_shop.holder(key) is None


def _seen_free_before_the_second_start(shop: Shop, key: str) -> list[float]:
    """Return when the key was seen free until a second body began; returns when that has ended."""
    free = []
    deadline = time.monotonic() + PATIENCE
    while sum(body.ended_by == "" for body in shop.bodies(key)) == 0:
        assert time.monotonic() < deadline, f"it did not run again; bodies: {shop.bodies(key)}"
        if shop.holder(key) is None:
            free.append(time.monotonic())
        time.sleep(0.01)
    first, again = shop.bodies(key)
    return [when for when in free if first.start < when < again.start]


def test_a_killed_child_frees_its_lock_within_seconds(prefork_shop: Shop, key: str) -> None:
    """Law 4: the main process notices, releases, and only then stores the failure."""
    result = prefork_shop.sell.apply_async((key, 2 * PATIENCE), lock_ttl=10 * PATIENCE)
    body = prefork_shop.wait_started(key)
    os.kill(body.pid, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(WorkerLostError):
        result.get(timeout=PATIENCE)

    assert prefork_shop.holder(key) is None
    assert time.monotonic() - killed < WITHIN_SECONDS
    assert prefork_shop.sell.delay(key).get(timeout=PATIENCE) == f"{key} done"


def test_a_killed_worker_frees_its_locks_within_one_ttl(new_shop: Callable[..., Shop], key: str) -> None:
    """Law 4: nobody is left to say so, so the lease runs out; the claim does as well, later."""
    shop = new_shop(conf={"redislock_ttl": 1.0})
    worker = shop.start_worker("prefork", concurrency=1)
    shop.sell.delay(key, 2 * PATIENCE)
    shop.wait_started(key)
    worker.signal(signal.SIGKILL)
    killed = time.monotonic()
    expired = shop.wait_expired(key)

    assert expired - killed <= 1.0 + 1.0
    assert not shop.sell.delay(key).is_duplicate


def _seen_free_before_the_last_start(shop: Shop, key: str, result: AsyncResult) -> list[float]:
    """Return when the key was seen free before the last body had begun."""
    free = []
    deadline = time.monotonic() + PATIENCE
    while not result.ready():
        assert time.monotonic() < deadline, f"no result; bodies: {shop.bodies(key)}"
        if shop.holder(key) is None:
            free.append(time.monotonic())
        time.sleep(0.01)
    return [when for when in free if when < shop.bodies(key)[-1].start]


@pytest.mark.parametrize(
    "task",
    [
        "sell_late_again",
        pytest.param(
            "sell_retrying_lost",
            marks=pytest.mark.skipif(
                celery.VERSION < (5, 7), reason="retry_on_worker_lost is new in Celery 5.7"
            ),
        ),
    ],
)
def test_a_message_that_survives_its_child_keeps_the_lock(prefork_shop: Shop, key: str, task: str) -> None:
    """Laws 4 and 7: the run died, the task did not; nobody gets in between."""
    with prefork_shop.running(getattr(prefork_shop, task), key) as result:
        (first,) = prefork_shop.bodies(key)
        os.kill(first.pid, signal.SIGKILL)
    free = _seen_free_before_the_last_start(prefork_shop, key, result)

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert [body.ended_by for body in prefork_shop.bodies(key)] == [None, ""]
    assert {body.task_id for body in prefork_shop.bodies(key)} == {result.id}
    assert free == []
    assert prefork_shop.holder(key) is None


def test_a_message_given_back_to_its_queue_keeps_the_lock(any_shop: Shop, key: str) -> None:
    """Law 7: ``Reject(requeue=True)`` with late acknowledgement is a run to come."""
    with any_shop.running(any_shop.sell_late, key, 0.0, "requeue") as result:
        pass
    free = _seen_free_before_the_last_start(any_shop, key, result)

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert [body.ended_by for body in any_shop.bodies(key)] == ["Reject", ""]
    assert free == []
    assert any_shop.holder(key) is None


def test_a_run_longer_than_lock_max_hold_loses_its_lock(any_shop: Shop, key: str) -> None:
    """Law 4: no run is renewed for ever; half way there is a warning."""
    with any_shop.running(any_shop.sell_at_most, key):
        (body,) = any_shop.bodies(key)
        expired = any_shop.wait_expired(key)
        any_shop.wait_lines("lost its lock", body.task_id)

    # Renewed last before lock_max_hold (1.5 s) was over, for one ttl (1.2 s).
    assert 1.3 < expired - body.start < 1.5 + 1.2 + 0.2
    assert any_shop.lines("half of lock_max_hold", f"sale:{key}")
    assert any_shop.wait_ended(key)[0].ended_by == ""


def test_a_body_that_keeps_the_interpreter_keeps_its_lock(prefork_shop: Shop, key: str) -> None:
    """Law 4: C code starves the child's watchdog, and the main process renews beside it."""
    result = prefork_shop.sell.apply_async((key, 0.0, "hold_interpreter", 3.0), lock_ttl=1.0)
    body = prefork_shop.wait_started(key)
    free = prefork_shop.wait_free(key, 2 * PATIENCE)
    result.get(timeout=PATIENCE)

    (held_for,) = prefork_shop.notes(f"interpreter {key}")
    assert held_for >= 3 * 1.0
    assert free - body.start >= held_for
    assert not [line for line in prefork_shop.lines("lost its lock") if body.task_id in line]


def test_a_stopped_child_keeps_its_lock_while_its_worker_lives(prefork_shop: Shop, key: str) -> None:
    """Law 4: a paused body may go on at any moment, so its lock must not be free."""
    ttl = 1.2
    with prefork_shop.running(prefork_shop.sell, key, lock_ttl=ttl) as result:
        (body,) = prefork_shop.bodies(key)
        os.kill(body.pid, signal.SIGSTOP)
        try:
            holders = throughout(2.5 * ttl, lambda: prefork_shop.holder(key))
        finally:
            os.kill(body.pid, signal.SIGCONT)

    assert {holder and holder.token for holder in holders} == {body.token}
    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert not [line for line in prefork_shop.lines("lost its lock") if body.task_id in line]


def test_a_worker_that_is_asked_to_end_finishes_and_frees(new_shop: Callable[..., Shop], key: str) -> None:
    """Law 4: warm shutdown: the running task ends; a prefetched one goes back and keeps its claim."""
    shop = new_shop()
    worker = shop.start_worker("prefork", "--prefetch-multiplier", "4", concurrency=1)
    with shop.running(shop.sell, key):
        waiting = shop.sell.delay(f"{key}-next")
        shop.wait_lines("received", waiting.id)
        worker.signal(signal.SIGTERM)
        shop.wait_lines("Warm shutdown")
    worker.process.wait(2 * PATIENCE)

    assert [body.ended_by for body in shop.bodies(key)] == [""]
    assert shop.holder(key) is None
    assert shop.sell.delay(f"{key}-next").id == waiting.id
    shop.start_worker("prefork", concurrency=1)
    assert waiting.get(timeout=PATIENCE) == f"{key}-next done"
