"""Law 4, locks die with their holder: one test per rung of child, main process, expiry, by real kills."""

import os
import signal
import time
from collections.abc import Callable

import celery
import pytest
from celery.exceptions import TaskRevokedError, TimeLimitExceeded, WorkerLostError
from celery.result import AsyncResult

from tests.acceptance.harness import Shop, wait_until

REVOKE_SIGNALS = ["SIGTERM", "SIGKILL"]


@pytest.mark.parametrize("ending", [None, "swallow"])
def test_a_hard_time_limit_frees_the_lock_when_the_body_is_dead(
    prefork_shop: Shop, key: str, ending: str | None
) -> None:
    """Law 4: the hook comes before the child is dead, so the lock is not given back in it."""
    seconds = 30.0 if ending is None else 0.0
    result = prefork_shop.sell_in_time.delay(key, seconds, ending, 30.0)
    body = prefork_shop.wait_started(key)
    free = prefork_shop.wait_free(key, 12.0)
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=5)

    (dead,) = prefork_shop.bodies(key)
    assert free >= dead.end
    assert free - body.start < 8.0
    assert prefork_shop.sell.delay(key).get(timeout=10) == f"{key} done"


@pytest.mark.parametrize("ending", ["overrun_once", "refuse_once"])
def test_a_timed_out_message_that_goes_back_to_its_queue_runs_again(
    prefork_shop: Shop, key: str, ending: str
) -> None:
    """Laws 2 and 8: the hard limit is recorded as its failure, and is no outcome; no claim is left behind."""
    result = prefork_shop.sell_in_time_again.delay(key, 0.0, ending, 30.0)
    free = _seen_free_before_the_second_start(prefork_shop, key)
    wait_until(
        lambda: [line for line in prefork_shop.lines("of a timed out run") if key in line],
        20.0,
        "the main process has settled what the dead child held",
    )

    first, again = prefork_shop.bodies(key)
    assert (again.ended_by, {first.task_id, again.task_id}) == ("", {result.id})
    assert first.end <= again.start
    # A body that SIGTERM ends has released its lock by itself; who was killed is stood for.
    assert ending == "overrun_once" or free == []
    assert prefork_shop.holder(key) is None
    backend = prefork_shop.app.backend
    wait_until(
        lambda: backend.get_task_meta(result.id, cache=False)["status"] == "SUCCESS", 5.0, "its result"
    )


def _seen_free_before_the_second_start(shop: Shop, key: str) -> list[float]:
    """Return when the key was seen free until a second body began; returns when that has ended."""
    free = []
    deadline = time.monotonic() + 20.0
    while sum(body.ended_by == "" for body in shop.bodies(key)) == 0:
        assert time.monotonic() < deadline, f"it did not run again; bodies: {shop.bodies(key)}"
        if shop.holder(key) is None:
            free.append(time.monotonic())
        time.sleep(0.01)
    first, again = shop.bodies(key)
    return [when for when in free if first.start < when < again.start]


def test_a_killed_child_frees_its_lock_within_seconds(prefork_shop: Shop, key: str) -> None:
    """Law 4: the main process notices, releases, and only then stores the failure."""
    result = prefork_shop.sell.delay(key, 30.0)
    body = prefork_shop.wait_started(key)
    os.kill(body.pid, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(WorkerLostError):
        result.get(timeout=10)

    assert prefork_shop.holder(key) is None
    assert time.monotonic() - killed < 10.0
    assert prefork_shop.sell.delay(key).get(timeout=10) == f"{key} done"


def test_a_killed_worker_frees_its_locks_within_one_ttl(new_shop: Callable[..., Shop], key: str) -> None:
    """Law 4: nobody is left to say so, so the lease runs out; the claim does as well, later."""
    shop = new_shop(conf={"redislock_ttl": 1.0})
    worker = shop.start_worker("prefork", concurrency=1)
    shop.sell.delay(key, 30.0)
    shop.wait_started(key)
    worker.signal(signal.SIGKILL)
    killed = time.monotonic()
    free = shop.wait_free(key, 5.0)

    assert free - killed <= 1.0 + 1.0
    assert not shop.sell.delay(key).is_duplicate


@pytest.mark.parametrize("name", REVOKE_SIGNALS)
def test_terminating_a_run_frees_its_lock_when_it_has_ended(prefork_shop: Shop, key: str, name: str) -> None:
    """Law 4: free within seconds, never before the body has ended."""
    result = prefork_shop.sell.delay(key, 30.0)
    prefork_shop.wait_started(key)
    revoked = time.monotonic()
    prefork_shop.app.control.revoke(result.id, terminate=True, signal=name)
    free = prefork_shop.wait_free(key, 10.0)

    (body,) = prefork_shop.bodies(key)
    assert free >= body.end
    assert free - revoked < 8.0
    assert prefork_shop.sell.delay(key).get(timeout=10) == f"{key} done"


def test_a_run_that_goes_on_after_its_termination_keeps_its_lock(
    new_shop: Callable[..., Shop], key: str
) -> None:
    """Law 4: ``task_revoked`` says that a signal was sent, not that the body has ended."""
    shop = new_shop()
    # A worker of its own: billiard takes any later end of this child for the termination.
    shop.start_worker("prefork", concurrency=1)
    result = shop.sell.apply_async((key, 0.0, "swallow", 2.5), lock_ttl=0.6)
    shop.wait_started(key)
    shop.app.control.revoke(result.id, terminate=True, signal="SIGTERM")
    free = shop.wait_free(key, 10.0)

    (body,) = shop.bodies(key)
    assert shop.notes(f"swallowed {key}")
    assert body.end - body.start > 2.0
    assert free >= body.end


def test_a_prefetched_task_that_is_revoked_frees_its_lock_in_its_turn(
    new_shop: Callable[..., Shop], key: str
) -> None:
    """Law 4: Celery looks at revocations when a pool slot is free; then the claim is given back."""
    shop = new_shop()
    shop.start_worker("prefork", "--prefetch-multiplier", "4", concurrency=1)
    first = shop.sell.delay(f"{key}-first", 1.5)
    second = shop.sell.delay(key)
    wait_until(
        lambda: [line for line in shop.lines("received") if second.id in line], 5.0, "it is prefetched"
    )
    shop.app.control.revoke(second.id)
    first.get(timeout=10)
    with pytest.raises(TaskRevokedError):
        second.get(timeout=5)
    shop.wait_free(key, 2.0)

    assert shop.bodies(key) == []


def test_a_revoked_task_waiting_for_its_eta_frees_its_lock(prefork_shop: Shop, key: str) -> None:
    """Law 4: at its ETA, when Celery looks at it."""
    result = prefork_shop.sell.apply_async((key,), countdown=1.5)
    wait_until(
        lambda: [line for line in prefork_shop.lines("received") if result.id in line], 5.0, "it is received"
    )
    prefork_shop.app.control.revoke(result.id)
    prefork_shop.wait_free(key, 5.0)

    assert prefork_shop.bodies(key) == []
    assert not prefork_shop.sell.delay(key).is_duplicate


@pytest.mark.skipif(celery.VERSION < (5, 6), reason="until 5.6 nobody writes the state of such a message")
def test_a_message_revoked_before_any_worker_has_it_stands_in_nobodys_way(
    prefork_shop: Shop, key: str
) -> None:
    """Law 4: no hook fires for it, so a publish that is refused by its claim looks at its state."""
    waiting = prefork_shop.sell.apply_async((key,), queue="of-nobody")
    prefork_shop.app.control.revoke(waiting.id)
    wait_until(lambda: waiting.state == "REVOKED", 5.0, "a worker has heard of the revocation")

    again = wait_until(
        lambda: None if (result := prefork_shop.sell.delay(key)).is_duplicate else result, 10.0, "it is free"
    )

    assert again.get(timeout=10) == f"{key} done"
    assert [body.task_id for body in prefork_shop.bodies(key)] == [again.id]


def test_a_task_that_expires_before_its_start_frees_its_lock(new_shop: Callable[..., Shop], key: str) -> None:
    """Law 4: what is expired never runs, so its claim is given back."""
    shop = new_shop()
    shop.start_worker("prefork", "--prefetch-multiplier", "4", concurrency=1)
    shop.sell.delay(f"{key}-first", 1.5)
    shop.wait_started(f"{key}-first")
    late = shop.sell.apply_async((key,), expires=1.0)
    with pytest.raises(TaskRevokedError):
        late.get(timeout=10)

    assert shop.holder(key) is None
    assert shop.bodies(key) == []


def _seen_free_before_the_last_start(shop: Shop, key: str, result: AsyncResult) -> list[float]:
    """Return when the key was seen free before the last body had begun."""
    free = []
    deadline = time.monotonic() + 20.0
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
    result = getattr(prefork_shop, task).delay(key, 1.5)
    first = prefork_shop.wait_started(key)
    os.kill(first.pid, signal.SIGKILL)
    free = _seen_free_before_the_last_start(prefork_shop, key, result)

    assert result.get() == f"{key} done"
    assert [body.ended_by for body in prefork_shop.bodies(key)] == [None, ""]
    assert {body.task_id for body in prefork_shop.bodies(key)} == {result.id}
    assert free == []
    assert prefork_shop.holder(key) is None


def test_a_message_given_back_to_its_queue_keeps_the_lock(any_shop: Shop, key: str) -> None:
    """Law 7: ``Reject(requeue=True)`` with late acknowledgement is a run to come."""
    result = any_shop.sell_late.delay(key, 0.2, "requeue")
    any_shop.wait_started(key)
    free = _seen_free_before_the_last_start(any_shop, key, result)

    assert result.get() == f"{key} done"
    assert [body.ended_by for body in any_shop.bodies(key)] == ["Reject", ""]
    assert free == []
    assert any_shop.holder(key) is None


def test_a_run_longer_than_lock_max_hold_loses_its_lock(any_shop: Shop, key: str) -> None:
    """Law 4: no run is renewed for ever; half way there is a warning."""
    any_shop.sell_at_most.delay(key, 3.0)
    body = any_shop.wait_started(key)
    free = any_shop.wait_free(key, 6.0)

    assert 1.3 < free - body.start < 2.9
    assert any_shop.lines("half of lock_max_hold")
    assert [line for line in any_shop.lines("lost its lock") if body.task_id in line]
    assert any_shop.wait_ended(key)[0].ended_by == ""


def test_a_body_that_keeps_the_interpreter_keeps_its_lock(prefork_shop: Shop, key: str) -> None:
    """Law 4: C code starves the child's watchdog, and the main process renews beside it."""
    result = prefork_shop.sell.apply_async((key, 0.0, "hold_interpreter", 2.0), lock_ttl=0.6)
    body = prefork_shop.wait_started(key)
    free = prefork_shop.wait_free(key, 30.0)
    result.get(timeout=5)

    (held_for,) = prefork_shop.notes(f"interpreter {key}")
    assert held_for > 3 * 0.6
    assert free - body.start >= held_for
    assert not [line for line in prefork_shop.lines("lost its lock") if body.task_id in line]


def test_a_stopped_child_keeps_its_lock_while_its_worker_lives(prefork_shop: Shop, key: str) -> None:
    """Law 4: a paused body may go on at any moment, so its lock must not be free."""
    result = prefork_shop.sell.apply_async((key, 0.5), lock_ttl=0.6)
    body = prefork_shop.wait_started(key)
    os.kill(body.pid, signal.SIGSTOP)
    stopped, held = time.monotonic(), True
    try:
        while time.monotonic() - stopped < 2.0:
            held = held and prefork_shop.holder(key) is not None
            time.sleep(0.05)
    finally:
        os.kill(body.pid, signal.SIGCONT)

    assert held
    assert result.get(timeout=10) == f"{key} done"
    assert not [line for line in prefork_shop.lines("lost its lock") if body.task_id in line]


def test_a_worker_that_is_asked_to_end_finishes_and_frees(new_shop: Callable[..., Shop], key: str) -> None:
    """Law 4: warm shutdown: the running task ends; a prefetched one goes back and keeps its claim."""
    shop = new_shop()
    worker = shop.start_worker("prefork", "--prefetch-multiplier", "4", concurrency=1)
    shop.sell.delay(key, 1.0)
    shop.wait_started(key)
    waiting = shop.sell.delay(f"{key}-next")
    wait_until(
        lambda: [line for line in shop.lines("received") if waiting.id in line], 5.0, "it is prefetched"
    )
    worker.signal(signal.SIGTERM)
    worker.process.wait(20)

    assert [body.ended_by for body in shop.bodies(key)] == [""]
    assert shop.holder(key) is None
    assert shop.sell.delay(f"{key}-next").id == waiting.id
    shop.start_worker("prefork", concurrency=1)
    assert waiting.get(timeout=10) == f"{key}-next done"
