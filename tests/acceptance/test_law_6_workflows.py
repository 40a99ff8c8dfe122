"""Law 6: workflows finish, as without us. A duplicate inside a chain, group or chord runs in its turn."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import celery
import pytest
from celery import _state, chain, chord, group
from celery.exceptions import ChordError
from celery.exceptions import TimeoutError as Unanswered

from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import WORKFLOW
from tests.tiers import slow

pytestmark = pytest.mark.law(6)

#: A canvas of four members; the first argument passes on what it is given.
Shape = Callable[..., Any]

SHAPES: dict[str, Shape] = {
    "chain": lambda to, a, b, c, d: chain(a, b, c, d, to),
    "group": lambda _, a, b, c, d: group(a, b, c, d),
    "chord": lambda to, a, b, c, d: chord([a, b, c, d], to),
    "chord with a body": lambda to, a, b, c, d: chain(chord([a, b, c], d), to),
    "chord in a chain": lambda to, a, b, c, d: chain(a, chord([b, c, d], to), to),
    "chain after a chord": lambda to, a, b, c, d: chain(chord([a, b], to), c, d),
    "group in a chain": lambda to, a, b, c, d: chain(a, group(b, c, d), to),
    "group in a chord": lambda to, a, b, c, d: chord([group(a, b), group(c, d)], to),
    "group as a chord's body": lambda _, a, b, c, d: chord([a, b], group(c, d)),
    "chain in a group": lambda to, a, b, c, d: group(chain(a, b, to), chain(c, d)),
    "chain in a chord": lambda to, a, b, c, d: chord([chain(a, b), chain(c, to), d], to),
    "chord of chords": lambda to, a, b, c, d: chord([chord([a, b], to), chord([c, d], to)], to),
}

#: Those that end with a task of their own, whose result tells that they have finished.
AWAITABLE = [name for name in SHAPES if name not in {"group", "chain in a group", "group as a chord's body"}]

#: Canvases that a duplicate waits in, and what they come to.
CANVASES: dict[str, Callable[[Any, Any], Any]] = {
    "chain": lambda duplicate, to: chain(duplicate, to.s()),
    "chord": lambda duplicate, to: chord([to.si("one"), duplicate], to.s()),
    "body": lambda duplicate, to: chord([to.si("one"), to.si("two")], duplicate),
}


@pytest.fixture(autouse=True)
def _the_projects_app_is_the_current_one(request: pytest.FixtureRequest) -> Iterator[None]:
    """As in a process with one app. Before 5.7 a chain asks that one for its backend (5.5.0, canvas.py)."""
    names = {"project", "prefork"}.intersection(request.fixturenames)
    before = _state._tls.current_app
    for name in names:
        request.getfixturevalue(name).app.set_current()
    yield
    _state._tls.current_app = before


@contextmanager
def held(project: Project, key: str, task: str = "executed") -> Iterator[None]:
    """Hold the key by a run until the block has been left and another message waits for it."""
    with project.running(getattr(project, task), key):
        before = project.waited()
        yield
        wait_until(lambda: project.waited() - before, WORKFLOW, f"a message waits for {key}")


def value_of(result: Any) -> Any:
    """Return what a workflow comes to.

    Celery's client subscribes, then reads: over two connections, so the server may see the result stored in
    between, and ``get()`` waits for ever (celery/celery#4039; once in 3,878 chords of plain tasks, 5.7.0).
    Asked anew it reads what is stored.
    """
    for _ in range(int(WORKFLOW / 5) - 1):
        with suppress(Unanswered):
            return result.get(timeout=5)
    return result.get(timeout=5)


def plainly(project: Project, shape: Shape, *values: Any) -> Any:
    """Return what comes out of ordinary tasks with these values."""
    to = project.collect
    return value_of(shape(to.s(), *(to.si(value) for value in values)).apply_async())


def places(number: int, duplicate: Any, other: Callable[[int], Any]) -> list[Any]:
    """Return four members, of which one is the duplicate."""
    return [duplicate if place == number else other(place) for place in range(4)]


def of(canvas: str, value: Any) -> Any:
    """Return what one of CANVASES comes to."""
    return ["one", value] if canvas == "chord" else value


@pytest.mark.parametrize("name", SHAPES)
def test_a_duplicate_at_any_place_runs_in_its_turn(project: Project, key: str, name: str) -> None:
    """Each has a result of its own, and every other member goes its way."""
    build, duplicate = SHAPES[name], project.executed.si(key)
    collect = project.collect
    with held(project, key):
        results = [
            build(collect.s(), *places(place, duplicate, collect.si)).apply_async() for place in range(4)
        ]
    for place, result in enumerate(results):
        expected = plainly(project, build, *places(place, f"{key} done", lambda other: other))
        assert value_of(result) == expected
    assert len(project.wait_ended(key, 5)) == 5
    assert project.overlaps(key) == []


@pytest.mark.parametrize("task", ["executed_ignore_result", slow("executed_acks_late_ignore_result")])
@pytest.mark.parametrize("name", AWAITABLE)
def test_a_canvas_that_ignores_results_completes(prefork: Project, key: str, name: str, task: str) -> None:
    """Nobody needs a duplicate's result for its turn to come."""
    project, build = prefork, SHAPES[name]
    quiet = getattr(project, task)
    with held(project, key, task):
        members = [quiet.si(key), *(quiet.si(f"{key}-{place}") for place in range(2)), quiet.si(key)]
        result = chain(build(project.collect.s(), *members), project.collect.s()).apply_async()
    expected = plainly(project, build, f"{key} done", f"{key}-0 done", f"{key}-1 done", f"{key} done")
    assert value_of(result) == expected
    assert len(project.bodies(key)) == 3
    assert project.overlaps(key) == []


@pytest.mark.law(5)
def test_chains_of_the_same_call_complete(project: Project, key: str) -> None:
    """Each link finds the lock of the one before it free, or waits for a link of the other chain."""
    results = [chain(*[project.executed.si(key)] * 20, project.collect.si(n)).apply_async() for n in range(2)]
    assert [result.get(timeout=WORKFLOW) for result in results] == [0, 1]
    assert len(project.bodies(key)) == 40
    assert project.overlaps(key) == []


@pytest.mark.skipif(celery.VERSION[:2] < (5, 6), reason="this Celery tells of it only when the ETA has come")
def test_duplicates_of_a_holder_revoked_before_its_eta_run(project: Project, key: str) -> None:
    """Celery drops a revoked message when its ETA has come; nobody waits for that."""
    holder = project.executed.apply_async((key,), countdown=600)
    result = chord([project.executed.si(key)] * 2, project.collect.s()).apply_async()
    holder.revoke()
    assert result.get(timeout=WORKFLOW) == [f"{key} done"] * 2
    assert holder.id not in {body.task_id for body in project.bodies(key)}
    assert project.overlaps(key) == []


#: Workflows with a failing call in them, and how often Celery calls their error callback.
FAILING: dict[str, tuple[Callable[..., Any], int]] = {
    "calls": (lambda fail, _, back: group(fail.clone().on_error(back), fail.clone().on_error(back)), 2),
    "group": (lambda fail, to, back: group(fail, to.si(1), fail).on_error(back), 2),
    "chain": (lambda fail, to, back: chain(to.si(1), fail, to.s()).on_error(back), 1),
    "chord": (lambda fail, to, back: chord([fail, to.si(1), fail], to.s().on_error(back)), 1),
    "body": (lambda fail, to, back: chord([to.si(1), to.si(2)], fail.on_error(back)), 1),
}


@pytest.mark.parametrize("name", FAILING)
def test_error_callbacks_are_called_as_often_as_without_locks(project: Project, key: str, name: str) -> None:
    """Once for each that failed, as for plain tasks."""
    build, times = FAILING[name]
    with held(project, key):
        failing = project.executed.si(key, 0.0, "fail")
        back = project.unlocked.si(f"{key}-back")
        workflow = build(failing, project.collect, back).apply_async()
    with pytest.raises((ValueError, ChordError), match="failed"):
        workflow.get(timeout=WORKFLOW)
    assert len(project.wait_ended(f"{key}-back", times, WORKFLOW)) == times
    assert project.overlaps(key) == []


@pytest.mark.law(7)
@pytest.mark.parametrize("canvas", ["group", "chord", "chain"])
@pytest.mark.parametrize("around", ["nothing", "chain", "chord"])
def test_a_task_may_be_replaced_by_a_canvas(project: Project, key: str, around: str, canvas: str) -> None:
    """Also by calls on its own key, some of which are duplicates."""
    keys = [key, f"{key}-1", key, f"{key}-1"]
    replaced = project.executed.si(key, 0.0, "expand", [canvas, "project.executed", keys])
    workflow = {
        "nothing": replaced,
        **{name: build(replaced, project.collect) for name, build in CANVASES.items()},
    }
    result = workflow[around].apply_async()
    value = f"{key}-1 done" if canvas == "chain" else [f"{each} done" for each in keys]

    found = result.get(timeout=WORKFLOW)
    if around == "chord" and canvas != "chain" and celery.VERSION[:2] < (5, 7):
        # In the order in which they ended, as plain tasks too (tried with 5.5.0).
        assert found[0] == "one"
        assert sorted(found[1]) == sorted(value)
    else:
        assert found == of(around, value)
    assert project.overlaps(key) == project.overlaps(f"{key}-1") == []
