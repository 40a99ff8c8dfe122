"""Law 6: a duplicate inside a chain, group or chord neither hangs it nor breaks a link."""

import os
import signal
from collections.abc import Callable

import pytest
from billiard.exceptions import WorkerLostError
from celery import chain, chord, group

from tests.acceptance.harness import PATIENCE, Shop


def test_a_chord_with_duplicate_members_completes(any_shop: Shop, key: str) -> None:
    """Law 6: duplicates take the outcome of the one that did the same work."""
    sell = any_shop.sell
    members = [sell.si(key), sell.si(f"{key}-other"), sell.si(key), sell.si(key)]
    with any_shop.kept_on(key):
        result = chord(members)(any_shop.collect.s())

    assert result.get(timeout=PATIENCE) == [f"{key} done", f"{key}-other done", f"{key} done", f"{key} done"]
    assert len(any_shop.bodies(key)) == 1


def test_a_chord_of_nothing_but_duplicates_completes(any_shop: Shop, key: str) -> None:
    """Law 6: also where every member is a duplicate of a run outside."""
    with any_shop.running(any_shop.sell, key) as holder:
        result = chord([any_shop.sell.si(key)] * 3)(any_shop.collect.s())
        any_shop.wait_lines(f"waits for {holder.id}", number=3)

    assert result.get(timeout=PATIENCE) == [f"{key} done"] * 3
    assert len(any_shop.bodies(key)) == 1


def test_a_group_of_duplicates_completes(any_shop: Shop, key: str) -> None:
    """Law 6: every member of a group has a result."""
    with any_shop.kept_on(key):
        result = group([any_shop.sell.si(key)] * 8).apply_async()

    assert result.get(timeout=PATIENCE) == [f"{key} done"] * 8
    assert len(any_shop.bodies(key)) == 1


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_duplicate_in_a_chain_breaks_no_link(any_shop: Shop, key: str, place: int) -> None:
    """Law 6: first, middle or last, while another run holds its key."""
    links = [any_shop.collect.si("one"), any_shop.collect.si("two")]
    links.insert(place, any_shop.sell.si(key))
    with any_shop.running(any_shop.sell, key) as holder:
        result = chain(*links, any_shop.collect.s()).apply_async()
        any_shop.wait_lines(f"waits for {holder.id}")

    assert result.get(timeout=PATIENCE) == ("two" if place < 2 else f"{key} done")
    assert holder.get(timeout=PATIENCE) == f"{key} done"
    assert len(any_shop.bodies(key)) == 1


def test_a_nested_chord_with_duplicates_completes(any_shop: Shop, key: str) -> None:
    """Law 6: chords inside groups inside chains."""
    sell, collect = any_shop.sell, any_shop.collect
    inner = chord([sell.si(key), sell.si(key)], collect.s())
    outer = chord([inner, sell.si(key)], collect.s())
    with any_shop.kept_on(key):
        result = outer.apply_async()

    assert result.get(timeout=PATIENCE) == [[f"{key} done"] * 2, f"{key} done"]
    assert any_shop.overlaps(key) == []


def test_a_chord_body_that_is_a_duplicate_completes(any_shop: Shop, key: str) -> None:
    """Law 6: the callback of a chord may meet a holder too."""
    with any_shop.running(any_shop.sell, key) as holder:
        result = chord([any_shop.collect.si(1), any_shop.collect.si(2)])(any_shop.sell.si(key))
        any_shop.wait_lines(f"waits for {holder.id}")

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert len(any_shop.bodies(key)) == 1


def test_a_workflow_takes_the_failure_of_its_holder(any_shop: Shop, key: str) -> None:
    """Law 6: the same work failed, so the duplicate fails with the same error instead of hanging."""
    with any_shop.running(any_shop.sell, key, 0.0, "fail") as holder:
        result = chain(any_shop.sell.si(key, 0.0, "fail"), any_shop.collect.s()).apply_async()
        any_shop.wait_lines(f"waits for {holder.id}")

    with pytest.raises(ValueError, match="failed"):
        result.get(timeout=PATIENCE)
    assert len(any_shop.bodies(key)) == 1


def test_a_duplicate_of_a_killed_run_does_the_work_itself(prefork_shop: Shop, key: str) -> None:
    """Law 6: to be killed is nothing that the same work would come to; the link after it is not broken."""
    call = prefork_shop.sell.si(key, 0.0, "overrun_once", 2 * PATIENCE)
    killed = call.apply_async()
    holder = prefork_shop.wait_started(key)
    result = chain(call, prefork_shop.collect.s()).apply_async()
    prefork_shop.wait_lines(f"waits for {killed.id}")
    os.kill(holder.pid, signal.SIGKILL)

    assert result.get(timeout=PATIENCE) == f"{key} done"
    with pytest.raises(WorkerLostError):
        killed.get(timeout=PATIENCE)
    assert [body.ended_by for body in prefork_shop.bodies(key)] == [None, ""]
    assert prefork_shop.overlaps(key, killed=1) == []


def test_a_duplicate_of_another_task_runs_itself(any_shop: Shop, key: str) -> None:
    """Law 6: a shared resource does not mean the same work: nobody gets another task's value."""
    with any_shop.running(any_shop.serve, key) as holder:
        result = chain(any_shop.share.si(key), any_shop.collect.s()).apply_async()
        any_shop.wait_lines(f"waits for {holder.id}")

    assert result.get(timeout=PATIENCE) == f"{key} shared"
    assert any_shop.overlaps(key) == []


def test_a_duplicate_with_other_arguments_runs_itself(any_shop: Shop, key: str) -> None:
    """Law 6: the same task under a partial key, called with other arguments, is other work."""
    with any_shop.running(any_shop.sell, key) as holder:
        result = chain(any_shop.sell.si(key, 0.1), any_shop.collect.s()).apply_async()
        any_shop.wait_lines(f"waits for {holder.id}")

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert len(any_shop.bodies(key)) == 2
    assert any_shop.overlaps(key) == []


def test_a_duplicate_of_a_run_without_a_result_runs_itself(any_shop: Shop, key: str) -> None:
    """Law 6: where the holder's result is ignored there is nothing to take."""
    following = any_shop.sell_quietly.si(key).set(ignore_result=False)
    with any_shop.running(any_shop.sell_quietly, key) as holder:
        result = chain(following, any_shop.collect.s()).apply_async()
        any_shop.wait_lines(f"waits for {holder.id}")

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert len(any_shop.bodies(key)) == 2
    assert any_shop.overlaps(key) == []


def test_a_duplicate_that_starts_late_takes_the_outcome_it_met_at_publish(
    new_shop: Callable[..., Shop], key: str
) -> None:
    """Law 6: a member that queued behind its holder finds the lock free, and does not do the work again."""
    shop = new_shop()
    result = group([shop.sell.si(key)] * 4).apply_async()
    shop.start_worker("solo")

    assert result.get(timeout=PATIENCE) == [f"{key} done"] * 4
    assert len(shop.bodies(key)) == 1
