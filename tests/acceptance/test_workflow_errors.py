"""Law 6: workflows finish however their holders end; links, error callbacks and replacements are kept."""

import os
import signal
from collections.abc import Callable
from typing import Any

import celery
import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError

from tests.acceptance.duplicates import DEADLINE, held, wait_until_waiting
from tests.acceptance.harness import Shop, wait_until
from tests.tiers import slow
from tests.workers import SWEEPING

#: The canvases a duplicate waits in, all of which end with a value of its own.
CANVASES: dict[str, Callable[[Any, Any], Any]] = {
    "chain": lambda duplicate, to: chain(duplicate, to.s()),
    "chord": lambda duplicate, to: chord([to.si("one"), duplicate], to.s()),
    "body": lambda duplicate, to: chord([to.si("one"), to.si("two")], duplicate),
}


def of(name: str, value: Any) -> Any:
    """Return what such a canvas comes to."""
    return ["one", value] if name == "chord" else value


# --- how the holder ends ---------------------------------------------------------------------


@pytest.mark.parametrize("canvas", CANVASES)
def test_a_duplicate_fails_as_its_holder_did(any_shop: Shop, key: str, canvas: str) -> None:
    """Law 6: the same work failed; a chord tells so as Celery's own do."""
    shop = any_shop
    with held(shop, key, "sell", 0.0, "fail") as holder:
        result = CANVASES[canvas](shop.sell.si(key, 0.0, "fail"), shop.collect).apply_async()
        wait_until_waiting(shop, holder, 1)

    with pytest.raises((ChordError, ValueError), match=f"{key} failed"):
        result.get(timeout=DEADLINE)
    assert len(shop.bodies(key)) == 1


@pytest.mark.parametrize("canvas", CANVASES)
def test_a_duplicate_waits_for_its_holders_retries(any_shop: Shop, key: str, canvas: str) -> None:
    """Laws 6 and 7: the holder keeps its key until its next try, and what counts is the last."""
    # Not at once: Celery publishes a retry before it stores RETRY, which may then replace the last SUCCESS.
    shop, arguments = any_shop, (0.0, "retry", {"countdown": 0.5})
    with held(shop, key, "sell", *arguments) as holder:
        result = CANVASES[canvas](shop.sell.si(key, *arguments), shop.collect).apply_async()
        wait_until_waiting(shop, holder, 1)

    assert result.get(timeout=DEADLINE) == of(canvas, f"{key} done")
    assert [body.task_id for body in shop.bodies(key)] == [holder] * 2


@pytest.mark.parametrize("canvas", CANVASES)
def test_a_duplicate_of_a_terminated_holder_runs_itself(prefork_shop: Shop, key: str, canvas: str) -> None:
    """Law 6: a holder that was revoked while it ran came to nothing."""
    shop = prefork_shop
    with held(shop, key) as holder:
        result = CANVASES[canvas](shop.sell.si(key), shop.collect).apply_async()
        wait_until_waiting(shop, holder, 1)
        shop.app.control.revoke(holder, terminate=True, signal="SIGKILL")
        wait_until(lambda: shop.app.AsyncResult(holder).state == "REVOKED", DEADLINE, "the holder is revoked")

    assert result.get(timeout=DEADLINE) == of(canvas, f"{key} done")
    assert len(shop.bodies(key)) == 2
    assert shop.overlaps(key, killed=1) == []


@pytest.mark.skipif(celery.VERSION[:2] < (5, 6), reason="this Celery tells of it only when the ETA has come")
def test_a_duplicate_of_a_holder_revoked_for_later_runs_at_once(any_shop: Shop, key: str) -> None:
    """Law 6: Celery drops a revoked message when its ETA has come; nobody waits for that."""
    shop = any_shop
    holder = shop.sell.apply_async((key,), countdown=600)
    result = chord([shop.sell.si(key)] * 2, shop.collect.s()).apply_async()
    wait_until_waiting(shop, holder.id, 2)
    holder.revoke()

    assert result.get(timeout=DEADLINE) == [f"{key} done"] * 2
    with pytest.raises(TaskRevokedError):
        holder.get(timeout=DEADLINE)
    assert holder.id not in {body.task_id for body in shop.bodies(key)}
    assert shop.overlaps(key) == []


def test_a_duplicate_of_a_holder_revoked_in_its_queue_runs_itself(
    new_shop: Callable[..., Shop], key: str
) -> None:
    """Law 6: it had been queued behind a holder that never began."""
    shop = new_shop()
    shop.start_worker("prefork", concurrency=1)
    with held(shop, f"{key}-before"):
        holder = shop.sell.delay(key)
        result = chain(shop.sell.si(key), shop.collect.s()).apply_async()
        holder.revoke()
        wait_until(lambda: holder.state == "REVOKED", DEADLINE, "the holder is revoked")

    assert result.get(timeout=DEADLINE) == f"{key} done"
    assert [body.task_id for body in shop.bodies(key)] == [result.parent.id]


@pytest.mark.parametrize("task", ["sell", "sell_late", slow("sell_late_again"), slow("sell_retrying_lost")])
@pytest.mark.parametrize("canvas", CANVASES)
def test_a_workflow_survives_its_holders_child(prefork_shop: Shop, key: str, canvas: str, task: str) -> None:
    """Laws 6 and 8: whether the holder is lost with its child, delivered again, or tried again."""
    shop, unique = prefork_shop, getattr(prefork_shop, task)
    with held(shop, key, task) as holder:
        result = CANVASES[canvas](unique.si(key), shop.collect).apply_async()
        wait_until_waiting(shop, holder, 1)
        os.kill(shop.bodies(key)[0].pid, signal.SIGKILL)

    assert result.get(timeout=DEADLINE) == of(canvas, f"{key} done")
    shop.wait_ended(key)
    assert shop.overlaps(key, killed=1) == []


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sell", "sell_late"])
def test_a_workflow_survives_its_holders_worker(new_shop: Callable[..., Shop], key: str, task: str) -> None:
    """Laws 4 and 6: what the dead worker had in hand is delivered again, and its lease has run out."""
    shop = new_shop(conf={"broker_transport_options": {"visibility_timeout": 5, **SWEEPING}})
    doomed = shop.start_worker("prefork", concurrency=1)
    unique = getattr(shop, task)
    with held(shop, key, task):
        shop.start_worker("prefork")
        result = chord([unique.si(key)] * 3, shop.collect.s()).apply_async()
        wait_until(lambda: shop.lines("is part of a workflow"), DEADLINE, "a duplicate waits")
        doomed.signal(signal.SIGKILL)
        doomed.process.wait()

    assert result.get(timeout=DEADLINE) == [f"{key} done"] * 3
    wait_until(lambda: shop.queued() == 0 and shop.holder(key) is None, DEADLINE, "nothing is left to do")
    assert shop.overlaps(key, killed=1) == []


def test_a_member_of_a_holder_without_an_outcome_runs_itself(prefork_shop: Shop, key: str) -> None:
    """Laws 2 and 6: also where nobody keeps its result and its message is acknowledged late."""
    shop = prefork_shop
    with held(shop, key, "sell_late", 0.0, "ignore") as holder:
        quiet = shop.sell_late.si(key, 0.0, "ignore").set(ignore_result=True)
        group(quiet, quiet.clone().set(link=shop.gossip.si(f"{key}-after"))).apply_async()
        wait_until_waiting(shop, holder, 2)
    bodies = shop.wait_ended(key, 3, DEADLINE)

    assert len({body.task_id for body in bodies}) == 3
    assert shop.overlaps(key) == []


# --- links, error callbacks, replacements ----------------------------------------------------


def test_every_duplicate_has_its_links_called_once(any_shop: Shop, key: str) -> None:
    """Law 6: a call with links is never skipped, and the holder's own are not called for it."""
    shop, linked = any_shop, f"{key}-linked"
    with held(shop, key) as holder:
        results = [shop.sell.apply_async((key,), link=shop.gossip.si(linked)) for _ in range(3)]
        wait_until_waiting(shop, holder, 3)

    assert [result.get(timeout=DEADLINE) for result in results] == [f"{key} done"] * 3
    assert len({result.id for result in results} | {holder}) == 4
    assert len(shop.wait_ended(linked, 3, DEADLINE)) == 3
    assert len(shop.bodies(key)) == 1


def test_links_that_are_duplicates_of_each_other_are_all_called(any_shop: Shop, key: str) -> None:
    """Law 6: each link has a result, and the work is done at least once."""
    shop, linked = any_shop, f"{key}-linked"
    link = chain(shop.sell.si(linked), shop.gossip.si(f"{linked}-end"))
    for number in range(3):
        shop.sell.apply_async((f"{key}-{number}",), link=link)
    ends = shop.wait_ended(f"{linked}-end", 3, DEADLINE)

    assert len(ends) == 3
    assert 1 <= len(shop.bodies(linked)) <= 3
    assert shop.overlaps(linked) == []


#: Workflows with a failing call twice in them, and how often Celery calls their error callback.
FAILING: dict[str, tuple[Callable[..., Any], int]] = {
    "calls": (lambda fail, _, back: group(fail.clone().on_error(back), fail.clone().on_error(back)), 2),
    "group": (lambda fail, to, back: group(fail, to.si(1), fail).on_error(back), 2),
    "chain": (lambda fail, to, back: chain(to.si(1), fail, to.s()).on_error(back), 1),
    "chord": (lambda fail, to, back: chord([fail, to.si(1), fail], to.s().on_error(back)), 1),
    "body": (lambda fail, to, back: chord([to.si(1), to.si(2)], fail.on_error(back)), 1),
}


@pytest.mark.parametrize("name", FAILING)
def test_error_callbacks_are_called_as_often_as_without_locks(any_shop: Shop, key: str, name: str) -> None:
    """Law 6: once for each that failed, however many of them took their holder's error."""
    shop, (build, times) = any_shop, FAILING[name]
    backs = {task: shop.gossip.si(f"{key}-{task}-back") for task in ("gossip", "sell")}
    with held(shop, key, "sell", 0.0, "fail") as holder:
        failing = shop.sell.si(key, 0.0, "fail")
        workflows = [build(failing, shop.collect, backs["sell"]).apply_async()]
        wait_until_waiting(shop, holder, 2 if name in {"calls", "group", "chord"} else 1)
    failing = shop.gossip.si(f"{key}-gossip", 0.0, "fail")
    workflows.append(build(failing, shop.collect, backs["gossip"]).apply_async())

    for workflow in workflows:
        with pytest.raises((ValueError, ChordError), match="failed"):
            workflow.get(timeout=DEADLINE)
    called = [len(shop.wait_ended(f"{key}-{task}-back", times, DEADLINE)) for task in backs]
    assert called == [times, times]
    assert len(shop.bodies(key)) == 1


@pytest.mark.parametrize("canvas", ["group", "chord", "chain"])
@pytest.mark.parametrize("around", ["nothing", "chain", "chord"])
def test_a_unique_task_may_be_replaced_by_a_canvas(
    any_shop: Shop, key: str, around: str, canvas: str
) -> None:
    """Laws 6 and 7: also by calls on its own key, some of which are duplicates."""
    shop, keys = any_shop, [key, f"{key}-1", key, f"{key}-1"]
    replaced = shop.sell.si(key, 0.0, "expand", [canvas, "shop.sell", keys])
    workflow = {
        "nothing": replaced,
        **{name: build(replaced, shop.collect) for name, build in CANVASES.items()},
    }
    result = workflow[around].apply_async()
    value = f"{key}-1 done" if canvas == "chain" else [f"{each} done" for each in keys]

    found = result.get(timeout=DEADLINE)
    if around == "chord" and canvas != "chain" and celery.VERSION[:2] < (5, 7):
        # In the order in which they ended, as plain tasks too (tried with 5.5.0).
        assert found[0] == "one"
        assert sorted(found[1]) == sorted(value)
    else:
        assert found == of(around, value)
    assert shop.overlaps(key) == shop.overlaps(f"{key}-1") == []


@pytest.mark.parametrize("canvas", ["group", "chord", "chain"])
def test_a_duplicate_of_a_replaced_task_completes(any_shop: Shop, key: str, canvas: str) -> None:
    """Law 6: it takes what the replacement came to, or is replaced itself."""
    shop, keys = any_shop, [key, f"{key}-1"]
    arguments = (0.0, "expand", [canvas, "shop.sell", keys])
    with held(shop, key, "sell", *arguments) as holder:
        result = chord([shop.sell.si(key, *arguments)] * 2, shop.collect.s()).apply_async()
        wait_until_waiting(shop, holder, 2)
    value = f"{key}-1 done" if canvas == "chain" else [f"{each} done" for each in keys]

    assert result.get(timeout=DEADLINE) == [value] * 2
    assert shop.app.AsyncResult(holder).get(timeout=DEADLINE) == value
    assert shop.overlaps(key) == []
