"""An operator's hold: what runs ends, nothing starts behind it, and no call is dropped because of it."""

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.acceptance.harness import Project, throughout, wait_until
from tests.acceptance.paths import ELSEWHERE, FUSED, RABBITMQ
from tests.acceptance.terms import DEAD, LEASE, PATIENCE
from tests.tiers import slow

ProjectMaker = Callable[..., Project]
ProjectOn = Callable[..., Project]

pytestmark = pytest.mark.law(2)

ON = [FUSED, slow(ELSEWHERE), slow(RABBITMQ)]
CALLS = 4
RAISE = {"on_conflict": "raise"}
WAIT = {"on_conflict": "wait"}


def calls_of(project: Project, key: str, publish: tuple[str, dict[str, Any]]) -> list[Any]:
    """Make calls during a hold; return their results."""
    name, options = publish
    task = getattr(project, name)
    return [task.apply_async((key,), **options) for _ in range(CALLS)]


@pytest.mark.parametrize("on", ON)
@pytest.mark.parametrize(
    "publish",
    [
        ("executed", {}),
        ("executed", RAISE),
        ("executed", WAIT),
        ("while_executing_or_skip", {}),
        ("while_executing", RAISE),
        ("until_executing", {}),
        slow(("executed_acks_late", {})),
        slow(("until_expired", {})),
        slow(("executed_period", {})),
    ],
    ids=str,
)
def test_calls_that_meet_it_all_run_when_it_is_released(
    project_on: ProjectOn, key: str, on: str, publish: tuple[str, dict[str, Any]]
) -> None:
    """Whatever on_conflict says. Of a period the first is accepted, and the others wait for that to pass."""
    project = project_on("prefork", on)
    handle = getattr(project, publish[0]).lock_for(key)
    assert handle.hold(reason="the bank is down", for_=600) == []
    results = calls_of(project, key, publish)
    assert len({result.id for result in results}) == CALLS
    project.wait_parked(key, CALLS)
    assert project.bodies(key) == []
    assert handle.release(reason="it is up").state == "hold"
    has_period = publish[0] in {"until_expired", "executed_period"}
    if has_period:
        project.wait_ended(key)
        assert len(throughout(1.0, lambda: project.bodies(key))[-1]) == 1
        assert sum(result.ready() for result in results) == 1
        return
    for result in results:
        result.get(timeout=PATIENCE)
    assert {body.task_id for body in project.bodies(key)} == {result.id for result in results}
    if publish[0] != "until_executing":
        assert project.overlaps(key) == []
        project.wait_free(key)


@pytest.mark.parametrize("on", ON)
def test_calls_that_a_worker_gets_only_after_the_release_run_too(
    new_project: ProjectMaker, key: str, on: str
) -> None:
    """They met the hold when they were published; the first of them holds the key by then."""
    project = new_project(path=on)
    handle = project.executed.lock_for(key)
    handle.hold(reason="x")
    results = calls_of(project, key, ("executed", {}))
    handle.release(reason="over")
    project.start_worker("prefork", concurrency=2)
    for result in results:
        result.get(timeout=PATIENCE)
    assert len(project.bodies(key)) == CALLS


@pytest.mark.parametrize("on", ON)
@pytest.mark.parametrize("limit", [1, 3])
def test_what_runs_ends_and_nothing_starts_behind_it(
    project_on: ProjectOn, key: str, on: str, limit: int
) -> None:
    """A hold of a key with room for two more lets none of them start, whoever publishes them."""
    project = project_on("prefork", on)
    task = project.executed_by_3 if limit > 1 else project.while_executing_or_skip
    handle = task.lock_for(key)
    with project.running(task, key) as first:
        [still] = handle.hold(reason="x")
        assert (still.owner, still.state) == (first.id, "running")
        # With room beside the run it is the hold that they meet; without, a run that is theirs to skip.
        results = calls_of(project, key, (task.name.partition(".")[2], {})) if limit > 1 else []
        if limit > 1:
            results += [project.app.send_task(task.name, (key,)) for _ in range(CALLS)]
            project.wait_parked(key, 1 + len(results))
        assert len(project.bodies(key)) == 1
    first.get(timeout=PATIENCE)
    wait_until(lambda: [each.state for each in handle.holders()] == ["hold"], PATIENCE, "it is held")
    results += [project.app.send_task(task.name, (key,)) for _ in range(CALLS)]
    project.wait_parked(key, len(results))
    assert len(project.bodies(key)) == 1
    handle.release(reason="over")
    for result in results:
        result.get(timeout=PATIENCE)
    assert len(project.bodies(key)) == 1 + len(results)
    project.wait_free(key)


@pytest.mark.parametrize("on", ON)
def test_calls_that_coalesce_do_so_while_they_wait_for_it(project_on: ProjectOn, key: str, on: str) -> None:
    """The newest of them runs, once."""
    project = project_on("prefork", on)
    handle = project.executed.lock_for(key)
    handle.hold(reason="x")
    publish = partial(project.executed.apply_async, on_conflict="coalesce")
    results = [publish((key, 0.0, "tell", number)) for number in range(CALLS)]
    wait_until(
        lambda: all(each.ready() or each.id in project.parked(key) for each in results), PATIENCE, "met"
    )
    assert len(project.parked(key)) == 1
    handle.release(reason="over")
    [body] = project.wait_ended(key)
    assert project.executed.AsyncResult(body.task_id).get(timeout=PATIENCE) == CALLS - 1
    project.wait_free(key)


@pytest.mark.slow
@pytest.mark.parametrize("on", [FUSED])
def test_the_run_before_it_is_found_dead_and_the_hold_is_not(
    new_project: ProjectMaker, key: str, on: str
) -> None:
    """Its worker is killed: the hold begins, and the message that comes back waits for its end."""
    project = new_project(path=on, conf={"redislock_restore": 6.0})
    worker = project.start_worker("prefork", concurrency=2)
    task = project.executed_acks_late
    handle = task.lock_for(key)
    with project.kept_on(key):
        result = task.delay(key)
        project.wait_started(key)
        assert len(handle.hold(reason="x")) == 1
        worker.signal(signal.SIGKILL)
        worker.process.wait(PATIENCE)
        project.start_worker("prefork", concurrency=2)
        is_on = lambda: [each.state for each in handle.holders()] == ["hold"]  # noqa: E731
        wait_until(is_on, LEASE + DEAD + PATIENCE, "it is held")
    wait_until(lambda: project.parked(key) == [result.id], DEAD + PATIENCE, "the message is back, and waits")
    assert all(throughout(5.0, is_on))
    assert len(project.bodies(key)) == 1
    handle.release(reason="over")
    result.get(timeout=PATIENCE)
    assert len(project.bodies(key)) == 2
