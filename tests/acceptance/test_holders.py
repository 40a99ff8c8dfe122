"""Law 3, only the holder; and what a run that lost its lock learns of it."""

import time

import pytest

from celery_redislock import DuplicateTask
from tests.acceptance.harness import Shop, wait_until


def test_the_end_of_a_run_that_lost_its_lock_spares_the_new_holder(any_shop: Shop, key: str) -> None:
    """Law 3: neither renewals nor the release of the old run touch the new one's lease."""
    old = any_shop.sell.apply_async((key, 1.0), lock_ttl=0.6)
    any_shop.wait_started(key)
    any_shop.sell.lock_for(key).release(reason="a test")
    new = any_shop.sell.apply_async((key, 2.0), lock_ttl=0.6)
    body = any_shop.wait_started(key, 2)
    assert old.get(timeout=10) == f"{key} done"
    holder = any_shop.holder(key)

    assert holder is not None
    assert holder.token == body.token
    assert any_shop.sell.delay(key).id == new.id
    assert new.get(timeout=10) == f"{key} done"
    assert [line for line in any_shop.lines("lost its lock") if old.id in line]
    assert not [line for line in any_shop.lines("lost its lock") if new.id in line]


@pytest.mark.parametrize("ending", ["spin", "doze"])
def test_a_run_that_lost_its_lock_can_be_stopped(any_shop: Shop, key: str, ending: str) -> None:
    """``on_lock_lost="terminate"``: ``LockLost`` in the body; on prefork and solo out of a sleep too."""
    result = any_shop.sell_or_stop.delay(key, 0.0, ending, 3.0)
    any_shop.wait_started(key)
    any_shop.sell.lock_for(key).release(reason="a test")
    released = time.monotonic()
    (body,) = any_shop.wait_ended(key)

    assert body.ended_by == "LockLost"
    if (any_shop.pool, ending) != ("threads", "doze"):
        assert body.end - released < 2.0
    error = result.get(timeout=5, propagate=False)
    assert type(error).__name__ == "LockLost"
    assert error.key == f"sale:{key}"


def test_a_body_that_is_stopped_sees_which_lock_it_lost(any_shop: Shop, key: str) -> None:
    """The error has its facts inside the body too, in every pool."""
    any_shop.sell_or_stop.delay(key, 0.0, "spin", 4.0)
    any_shop.wait_started(key)
    any_shop.sell.lock_for(key).release(reason="a test")
    any_shop.wait_ended(key)

    ((_, name, reason),) = any_shop.notes(f"lost {key}")
    assert name == f"sale:{key}"
    assert reason


def test_a_run_that_lost_its_lock_can_call_back(any_shop: Shop, key: str) -> None:
    """``on_lock_lost`` may be a callable: it gets the lease, and the body goes on."""
    any_shop.sell_and_tell.delay(key, 1.5)
    body = any_shop.wait_started(key)
    any_shop.sell.lock_for(key).release(reason="a test")
    (ended,) = any_shop.wait_ended(key)

    assert any_shop.notes("lost leases").count(body.token) == 1
    assert ended.ended_by == ""


def test_signals_tell_the_life_of_a_lock(any_shop: Shop, key: str) -> None:
    """Claim, run, end, conflict and loss are announced where they happen."""
    result = any_shop.announce.delay(key, 1.5)
    any_shop.wait_started(key)
    any_shop.announce.delay(key)
    any_shop.sell.lock_for(key).release(reason="a test")
    result.get(timeout=10)
    other = any_shop.announce.delay(key)
    other.get(timeout=10)
    told = [tuple(note) for note in any_shop.notes(f"signals sale:{key}")]

    assert sorted(name for name, task_id in told if task_id == result.id) == [
        "lock_acquired",  # the claim
        "lock_acquired",  # the run, whose lock was lost and so not released
        "lock_lost",
    ]
    assert sorted(name for name, task_id in told if task_id == other.id) == [
        "lock_acquired",
        "lock_acquired",
        "lock_released",
    ]
    assert [name for name, task_id in told if task_id not in {result.id, other.id}] == ["lock_conflict"]


def test_a_body_knows_its_lease(any_shop: Shop, key: str) -> None:
    """``self.lease`` inside a run; ``check()`` passes while it is held."""
    looked = any_shop.sell.delay(key, 0.0, "look_at_lease").get(timeout=10)
    name, token, fence, held, lost, expires_in = looked

    assert name == f"sale:{key}"
    assert token == any_shop.bodies(key)[0].token
    assert fence > 0
    assert (held, lost) == (True, False)
    assert 0 < expires_in <= 3.0


def test_a_body_without_a_lock_has_an_inert_lease(any_shop: Shop, key: str) -> None:
    """Code that uses ``self.lease`` works however it was called."""
    result = any_shop.sell.apply_async((key, 0.0, "look_at_lease"), lock=None)

    assert result.get(timeout=10) == [None, None, None, False, False, 0.0]


def test_the_holder_of_a_lock_can_be_seen(any_shop: Shop, key: str) -> None:
    """A duplicate's error and the handle name the holder, with what an operator asks for."""
    result = any_shop.sell.delay(key, 1.0)
    body = any_shop.wait_started(key)
    holder = any_shop.holder(key)
    with pytest.raises(DuplicateTask) as refused:
        any_shop.sell.apply_async((key,), on_conflict="raise")

    assert holder is not None
    assert (holder.owner, holder.state, holder.task) == (result.id, "running", "shop.sell")
    assert holder.pid == body.pid
    assert 0 < holder.remaining <= 3.0
    assert (refused.value.task_id, refused.value.key) == (result.id, f"sale:{key}")
    wait_until(result.ready, 5.0, "the result")
