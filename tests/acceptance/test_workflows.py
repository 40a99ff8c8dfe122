"""Law 6: a duplicate inside a chain, group or chord neither hangs it nor breaks a link."""

import os
import signal
from collections.abc import Callable

import pytest
from billiard.exceptions import WorkerLostError
from celery import chain, chord, group

from tests.acceptance.duplicates import DEADLINE, held, wait_until_waiting
from tests.acceptance.harness import PATIENCE, Shop, wait_until


@pytest.mark.parametrize("places", [(0,), (1,), (3,), (0, 1), (0, 3), (0, 1, 2, 3)])
def test_a_chord_with_duplicate_members_completes(any_shop: Shop, key: str, places: tuple[int, ...]) -> None:
    """Law 6: first, in the middle, last or all of them, they take the outcome of the one outside."""
    shop = any_shop
    keys = [key if place in places else f"{key}-{place}" for place in range(4)]
    with held(shop, key) as holder:
        result = chord([shop.sell.si(each) for each in keys])(shop.collect.s())
        wait_until_waiting(shop, holder, len(places))

    assert result.get(timeout=DEADLINE) == [f"{each} done" for each in keys]
    assert [len(shop.bodies(each)) for each in keys] == [1] * 4


def test_a_chord_whose_members_are_duplicates_of_each_other_completes(any_shop: Shop, key: str) -> None:
    """Law 6: the first of them does the work, the others wait for it."""
    shop, keys = any_shop, [key, f"{key}-other", key, key]
    with shop.kept_on(key):
        result = chord([shop.sell.si(each) for each in keys])(shop.collect.s())
        wait_until_waiting(shop, shop.wait_started(key, timeout=DEADLINE).task_id, 2)

    assert result.get(timeout=DEADLINE) == [f"{each} done" for each in keys]
    assert len(shop.bodies(key)) == 1


def test_a_group_of_duplicates_completes(any_shop: Shop, key: str) -> None:
    """Law 6: every member of a group has a result."""
    shop = any_shop
    with shop.kept_on(key):
        result = group([shop.sell.si(key)] * 8).apply_async()
        wait_until_waiting(shop, shop.wait_started(key, timeout=DEADLINE).task_id, 7)

    assert result.get(timeout=DEADLINE) == [f"{key} done"] * 8
    assert len(shop.bodies(key)) == 1


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_duplicate_in_a_chain_breaks_no_link(any_shop: Shop, key: str, place: int) -> None:
    """Law 6: first, middle or last, while another run holds its key."""
    shop = any_shop
    links = [shop.collect.si("one"), shop.collect.si("two")]
    links.insert(place, shop.sell.si(key))
    with held(shop, key) as holder:
        result = chain(*links, shop.collect.s()).apply_async()
        wait_until_waiting(shop, holder, 1)

    assert result.get(timeout=DEADLINE) == ("two" if place < 2 else f"{key} done")
    assert shop.app.AsyncResult(holder).get(timeout=DEADLINE) == f"{key} done"
    assert len(shop.bodies(key)) == 1


def test_duplicates_as_header_and_body_of_one_chord_complete(any_shop: Shop, key: str) -> None:
    """Law 6: the body comes when its header is over, and finds the lock free."""
    shop = any_shop
    with held(shop, key) as holder:
        result = chord([shop.sell.si(key)] * 2)(shop.sell.si(key))
        wait_until_waiting(shop, holder, 2)

    assert result.get(timeout=DEADLINE) == f"{key} done"
    assert [body.task_id for body in shop.bodies(key)] == [holder, result.id]
    assert shop.overlaps(key) == []


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


# --- the same key is not the same work -------------------------------------------------------


def test_members_of_other_tasks_run_themselves(any_shop: Shop, key: str) -> None:
    """Law 6: under a shared resource nobody gets another task's value, and each runs in its turn."""
    shop = any_shop
    members = [shop.share.si(key), shop.unbound.si(key), shop.Listed.si(key)]
    with held(shop, key) as holder:
        result = chord(members, shop.collect.s()).apply_async()
        wait_until_waiting(shop, holder, 3)

    assert result.get(timeout=DEADLINE) == [f"{key} shared", f"{key} by unbound", f"{key} by Listed"]
    assert len(shop.bodies(key)) == 4
    assert shop.overlaps(key) == []


@pytest.mark.parametrize("place", [0, 1, 2])
def test_members_with_other_arguments_run_themselves(any_shop: Shop, key: str, place: int) -> None:
    """Law 6: the same task under a partial key, called with other arguments, is other work."""
    shop = any_shop
    members = [shop.sell.si(key, 0.01 * number) for number in (1, 2)]
    members.insert(place, shop.sell.si(key))
    with held(shop, key) as holder:
        result = chord(members, shop.collect.s()).apply_async()
        wait_until_waiting(shop, holder, 3)

    assert result.get(timeout=DEADLINE) == [f"{key} done"] * 3
    assert len(shop.bodies(key)) == 3
    assert shop.overlaps(key) == []


def test_a_chain_of_calls_with_other_arguments_runs_them_all(any_shop: Shop, key: str) -> None:
    """Law 6: each link waits for the holder outside, and has its own value."""
    shop = any_shop
    links = [shop.sell.si(key, 0.01), shop.serve.si(key), shop.share.si(key)]
    with held(shop, key) as holder:
        result = chain(*links, shop.collect.s()).apply_async()
        wait_until_waiting(shop, holder, 1)

    assert result.get(timeout=DEADLINE) == f"{key} shared"
    assert [body.name for body in shop.bodies(key)] == ["shop.sell", "shop.sell", "shop.serve", "shop.share"]
    assert shop.overlaps(key) == []


def test_a_duplicate_of_a_run_without_a_result_runs_itself(any_shop: Shop, key: str) -> None:
    """Law 6: where the holder's result is ignored there is nothing to take."""
    shop = any_shop
    following = shop.sell_quietly.si(key).set(ignore_result=False)
    with held(shop, key, "sell_quietly") as holder:
        result = chain(following, shop.collect.s()).apply_async()
        wait_until_waiting(shop, holder, 1)

    assert result.get(timeout=DEADLINE) == f"{key} done"
    assert len(shop.bodies(key)) == 2
    assert shop.overlaps(key) == []


def test_a_duplicate_that_starts_late_takes_the_outcome_it_met_at_publish(
    new_shop: Callable[..., Shop], key: str
) -> None:
    """Law 6: a member that queued behind its holder finds the lock free, and does not do the work again."""
    shop = new_shop()
    result = group([shop.sell.si(key)] * 4).apply_async()
    shop.start_worker("solo")

    assert result.get(timeout=DEADLINE) == [f"{key} done"] * 4
    assert len(shop.bodies(key)) == 1


def test_a_workflow_ends_although_its_caller_does_not_ask(any_shop: Shop, key: str) -> None:
    """Law 6: the last link is a duplicate, and nobody waits for its result."""
    shop = any_shop
    with held(shop, key, "sell_quietly") as holder:
        chain(shop.collect.si(1), shop.sell_quietly.si(key)).apply_async()
        wait_until_waiting(shop, holder, 1)
    shop.wait_ended(key, 2, DEADLINE)
    wait_until(lambda: shop.holder(key) is None, DEADLINE, "the lock is free")

    assert shop.overlaps(key) == []
