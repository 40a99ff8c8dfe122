"""A deploy that changes ``lock=``: what was published under one scope is run under another."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import pytest
from celery import Celery

from celery_redislock.publishing.held import held
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.paths import ELSEWHERE, FUSED, RABBITMQ
from tests.acceptance.project import AFTER, BEFORE, CHANGES, open_project
from tests.acceptance.terms import WORKFLOW

ProjectMaker = Callable[..., Project]

pytestmark = [
    pytest.mark.law(2),
    pytest.mark.slow,
    pytest.mark.parametrize("path", [FUSED, ELSEWHERE, RABBITMQ], indirect=True),
    pytest.mark.parametrize(("strategy", "limit"), [("wait", 1), ("skip", 1), ("wait", 3)]),
]

#: Calls of each task, by each publisher.
CALLS = 4


class Call(NamedTuple):
    """A call that was published: of which task, its id, and the scope that it was published under."""

    task: str
    id: str
    scope: str


@contextmanager
def publishers(project: Project, limit: int) -> Iterator[Sequence[Celery]]:
    """Open the app as it was before the deploy, and as it is after it."""
    apps = [open_project({**project.plan, "side": side, "limit": limit}) for side in (BEFORE, AFTER)]
    yield apps
    for app in apps:
        app.journal.close()
        app.close()


def publish(*apps: Celery) -> list[Call]:
    """Call each task, by each app in turn; return the calls that were no duplicates."""
    calls = []
    for name in CHANGES:
        for _ in range(CALLS):
            for app in apps:
                task = app.tasks[f"project.{name}"]
                result = task.delay(name)
                if not result.is_duplicate:
                    calls.append(Call(name, result.id, task.lock))
    return calls


def let_them_run(project: Project, app: Celery, calls: Sequence[Call], strategy: str) -> None:
    """Wait until all is over; see that each accepted call has run, and each once."""
    # What claims nothing at publish is accepted, or skipped, when it starts.
    accepted = {call.id: call.task for call in calls if strategy == "wait" or call.scope != "while_executing"}

    def ran() -> list[str]:
        bodies = [body for name in CHANGES for body in project.bodies(name)]
        return [body.task_id for body in bodies if body.ended_by is not None]

    def unfinished() -> list[str]:
        missing = {f"{accepted[task_id]} did not run" for task_id in accepted.keys() - {*ran()}}
        return sorted(missing | {f"{hold.key} is held" for hold in held(app) if hold.state != "period"})

    with suppress(AssertionError):  # what did not end is named below
        # Eight calls, each of which may wait for a period and for the look at its line: 24 seconds.
        wait_until(lambda: not unfinished() and project.undelivered() == 0, WORKFLOW, "all is over")
    assert (unfinished(), project.undelivered()) == ([], 0)
    assert len(ran()) == len({*ran()})
    assert {*ran()} <= {call.id for call in calls}


@pytest.mark.parametrize("is_rolling", [False, True], ids=["at once", "rolling"])
def test_what_was_accepted_under_one_scope_runs_under_the_other(
    new_project: ProjectMaker, strategy: str, limit: int, is_rolling: bool
) -> None:
    """Each once, whichever scope becomes which, and in the end only periods are held.

    In a rolling deploy old and new publishers and workers are side by side.
    """
    project = new_project(conf={"redislock_on_conflict": strategy})
    with publishers(project, limit) as apps:
        calls = [] if is_rolling else publish(apps[0])
        for side in (BEFORE, AFTER) if is_rolling else (AFTER,):
            project.start_workers(1, "prefork", concurrency=2, side=side, limit=limit)
        let_them_run(project, apps[0], calls or publish(*apps), strategy)
