"""Law 4, locks die with their holder: one test per rung of child, main process, expiry, by real kills."""

import os
import signal
import time

import celery
import pytest

from tests.acceptance.harness import PATIENCE, Shop, throughout, wait_until


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
    # Before 5.7 a body that SIGTERM ends releases its lock by itself; who was killed is stood for.
    assert free == [] or (ending == "overrun_once" and celery.VERSION < (5, 7))
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
    result = prefork_shop.sell.apply_async((key, 0.0, "hold_interpreter", 9.0), lock_ttl=3.0)
    body = prefork_shop.wait_started(key)
    free = prefork_shop.wait_free(key, 2 * PATIENCE)
    result.get(timeout=PATIENCE)

    (held_for,) = prefork_shop.notes(f"interpreter {key}")
    assert held_for >= 3 * 3.0
    assert free - body.start >= held_for
    assert not [line for line in prefork_shop.lines("lost its lock") if body.task_id in line]


def test_a_stopped_child_keeps_its_lock_while_its_worker_lives(prefork_shop: Shop, key: str) -> None:
    """Law 4: a paused body may go on at any moment, so its lock must not be free."""
    ttl = 4.0
    with prefork_shop.running(prefork_shop.sell, key, lock_ttl=ttl) as result:
        (body,) = prefork_shop.bodies(key)
        os.kill(body.pid, signal.SIGSTOP)
        try:
            holders = throughout(1.5 * ttl, lambda: prefork_shop.holder(key))
        finally:
            os.kill(body.pid, signal.SIGCONT)

    assert {holder and holder.token for holder in holders} == {body.token}
    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert not [line for line in prefork_shop.lines("lost its lock") if body.task_id in line]
