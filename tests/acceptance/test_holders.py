"""Law 3, only the holder; and what a run that lost its lock learns of it."""

from contextlib import ExitStack

import pytest

from celery_redislock import DuplicateTask
from tests.acceptance.harness import PATIENCE, Shop, wait_until


def test_the_end_of_a_run_that_lost_its_lock_spares_the_new_holder(any_shop: Shop, key: str) -> None:
    """Law 3: neither renewals nor the release of the old run touch the new one's lease."""
    with ExitStack() as until_later:
        with any_shop.running(any_shop.sell, key, lock_ttl=4.0) as old:
            any_shop.sell.lock_for(key).release(reason="a test")
            new = until_later.enter_context(any_shop.running(any_shop.sell, key, lock_ttl=4.0))
            any_shop.wait_lines("lost its lock", old.id)
        assert old.get(timeout=PATIENCE) == f"{key} done"
        holder = any_shop.holder(key)
        duplicate = any_shop.sell.delay(key)

    assert holder is not None
    assert holder.token == any_shop.bodies(key)[1].token
    assert duplicate.id == new.id
    assert new.get(timeout=PATIENCE) == f"{key} done"
    assert not any_shop.lines("lost its lock", new.id)


@pytest.mark.parametrize("ending", ["spin", "doze"])
def test_a_run_that_lost_its_lock_can_be_stopped(any_shop: Shop, key: str, ending: str) -> None:
    """``on_lock_lost="terminate"``: ``LockLost`` in the body; on prefork and solo out of a sleep too."""
    sleeps_on = (any_shop.pool, ending) == ("threads", "doze")
    result = any_shop.sell_or_stop.delay(key, 0.0, ending, 3.0 if sleeps_on else 2 * PATIENCE)
    any_shop.wait_started(key)
    any_shop.sell.lock_for(key).release(reason="a test")
    # Otherwise it ends before it would have by itself.
    (body,) = any_shop.wait_ended(key)

    assert body.ended_by == "LockLost"
    error = result.get(timeout=PATIENCE, propagate=False)
    assert type(error).__name__ == "LockLost"
    assert error.key == f"sale:{key}"


def test_a_body_that_is_stopped_sees_which_lock_it_lost(any_shop: Shop, key: str) -> None:
    """The error has its facts inside the body too, in every pool."""
    any_shop.sell_or_stop.delay(key, 0.0, "spin", 2 * PATIENCE)
    any_shop.wait_started(key)
    any_shop.sell.lock_for(key).release(reason="a test")
    any_shop.wait_ended(key)

    ((_, name, reason),) = any_shop.notes(f"lost {key}")
    assert name == f"sale:{key}"
    assert reason


def test_a_run_that_lost_its_lock_can_call_back(any_shop: Shop, key: str) -> None:
    """``on_lock_lost`` may be a callable: it gets the lease, and the body goes on."""
    with any_shop.running(any_shop.sell_and_tell, key):
        (body,) = any_shop.bodies(key)
        any_shop.sell.lock_for(key).release(reason="a test")
        wait_until(lambda: body.token in any_shop.notes("lost leases"), PATIENCE, "it is told")
    (ended,) = any_shop.wait_ended(key)

    assert any_shop.notes("lost leases").count(body.token) == 1
    assert ended.ended_by == ""


def test_signals_tell_the_life_of_a_lock(any_shop: Shop, key: str) -> None:
    """Claim, run, end, conflict and loss are announced where they happen."""
    with any_shop.running(any_shop.announce, key) as result:
        any_shop.announce.delay(key)
        any_shop.sell.lock_for(key).release(reason="a test")
        lost = ["lock_lost", result.id]
        wait_until(lambda: lost in any_shop.notes(f"signals sale:{key}"), PATIENCE, "the loss is announced")
    result.get(timeout=PATIENCE)
    other = any_shop.announce.delay(key)
    other.get(timeout=PATIENCE)
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
    looked = any_shop.sell.delay(key, 0.0, "look_at_lease").get(timeout=PATIENCE)
    name, token, fence, held, lost, expires_in = looked

    assert name == f"sale:{key}"
    assert token == any_shop.bodies(key)[0].token
    assert fence > 0
    assert (held, lost) == (True, False)
    assert 0 < expires_in <= 3.0


def test_a_body_without_a_lock_has_an_inert_lease(any_shop: Shop, key: str) -> None:
    """Code that uses ``self.lease`` works however it was called."""
    result = any_shop.sell.apply_async((key, 0.0, "look_at_lease"), lock=None)

    assert result.get(timeout=PATIENCE) == [None, None, None, False, False, 0.0]


def test_the_holder_of_a_lock_can_be_seen(any_shop: Shop, key: str) -> None:
    """A duplicate's error and the handle name the holder, with what an operator asks for."""
    with any_shop.running(any_shop.sell, key) as result:
        (body,) = any_shop.bodies(key)
        holder = any_shop.holder(key)
        with pytest.raises(DuplicateTask) as refused:
            any_shop.sell.apply_async((key,), on_conflict="raise")

    assert holder is not None
    assert (holder.owner, holder.state, holder.task) == (result.id, "running", "shop.sell")
    assert holder.pid == body.pid
    assert 0 < holder.remaining <= 3.0
    assert (refused.value.task_id, refused.value.key) == (result.id, f"sale:{key}")
    assert result.get(timeout=PATIENCE) == f"{key} done"
