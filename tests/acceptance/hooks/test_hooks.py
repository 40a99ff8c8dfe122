"""Every hook of Celery and kombu that this package has is called, where and when the package relies on it.

One worker for each pool plays all ends, with early and with late acknowledgement.
"""

import importlib.util
import json
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import opening
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.hooks.ends import PLAYS
from tests.acceptance.hooks.reflection import Hook, connected, overrides
from tests.acceptance.hooks.table import (
    AT_ANY_TIME,
    BEAT,
    CELLS,
    CHILD,
    MAIN,
    OF_CHILDREN_ALONE,
    PREFORK,
    PUBLISHER,
    ROWS,
    WORDS,
    Cell,
)
from tests.acceptance.hooks.watch import FOUND, calls_in
from tests.acceptance.messages import captured, deliver
from tests.acceptance.processes import ROOT, started
from tests.acceptance.terms import PATIENCE

#: The hooks that each end of a run calls; the tests of a whole process leave them out.
OF_ENDS = {hook for hook in ROWS if hook.name in WORDS.values()}


class Site:
    """A project whose processes are watched."""

    def __init__(self, project: Project, path: Path) -> None:
        self.project = project
        self._path = path
        #: The ends that were played, each with the id of its message.
        self.played: list[tuple[Cell, str]] = []
        path.touch()

    def watching(self, process: str) -> dict[str, Any]:
        """What is added to the plan of a process, so that it is watched."""
        return {"hooks": {"path": str(self._path), "process": process}}

    def run(self, task_id: str, process: str, without: str = "") -> str:
        """The hooks that this run has called in a process so far, in their order, by their words."""
        words = {name: word for word, name in WORDS.items() if word != without}
        calls = [call for call in calls_in(self._path) if (call.task_id, call.process) == (task_id, process)]
        return " ".join(words[call.name] for call in calls if call.name in words)

    def seen(self, cell: Cell, task_id: str) -> tuple[str, str]:
        """What the run of this message has called in the main process, and in a child, as the cell has it."""
        return self.run(task_id, MAIN), self.run(task_id, CHILD, without=cell.perhaps)

    def called(self, *processes: str) -> set[Hook]:
        """What was called in these processes so far."""
        return {Hook(call.name, call.ours) for call in calls_in(self._path) if call.process in processes}


@pytest.fixture(scope="module")
def new_watched(open_on: Callable[..., Project], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Opens projects that are watched."""
    with opening(open_on, []) as make:

        def new_watched() -> Site:
            return Site(make(), tmp_path_factory.mktemp("hooks") / "calls")

        yield new_watched


@pytest.fixture(scope="module")
def watched_in(new_watched: Callable[[], Site]) -> Callable[[str], Site]:
    """Returns the site of a pool, with its worker at work."""
    sites: dict[str, Site] = {}

    def watched_in(pool: str) -> Site:
        if pool not in sites or sites[pool].project.workers[0].process.poll() is not None:
            site = sites[pool] = new_watched()
            concurrency = 1 if pool == "solo" else 4
            site.project.start_workers(1, pool, concurrency=concurrency, **site.watching(MAIN))
        return sites[pool]

    return watched_in


def in_pool(pool: str, *values: object, name: str = "") -> Any:
    marks = [pytest.mark.xdist_group(f"hooks, {pool}")]
    if pool == "gevent" and importlib.util.find_spec(pool) is None:
        marks.append(pytest.mark.skip(reason="gevent is not installed"))
    return pytest.param(*values, pool, marks=marks, id="-".join(filter(None, (name, pool))))


POOLS = ("prefork", "threads", "gevent", "solo")


@pytest.mark.parametrize(
    ("cell", "pool"),
    [in_pool(pool, cell, name=cell.end) for pool in POOLS for cell in CELLS if pool in cell.pools],
)
def test_a_run_calls_these_hooks_in_these_processes(
    request: pytest.FixtureRequest, watched_in: Callable[[str], Site], cell: Cell, pool: str
) -> None:
    """However a run ends: what the package relies on is called, once, in its process and its order."""
    site = watched_in(pool)
    request.node._projects = [site.project]
    for late in ("", "_acks_late"):
        task_id = PLAYS[cell.end](site.project, f"k{secrets.token_hex(4)}", late)
        site.played.append((cell, task_id))
        seen = partial(site.seen, cell, task_id)
        try:
            wait_until(lambda seen=seen: seen() == (cell.main, cell.child), PATIENCE, f"{cell} {late}")
        finally:
            assert seen() == (cell.main, cell.child)


@pytest.mark.parametrize("pool", [in_pool(pool) for pool in POOLS])
def test_a_worker_calls_these_hooks_from_its_start_to_its_end(
    request: pytest.FixtureRequest, watched_in: Callable[[str], Site], pool: str
) -> None:
    """What messages and commands, the start and the end of a worker call, in which of its processes."""
    site = watched_in(pool)
    project = site.project
    request.node._projects = [project]
    for end, last in (("success", "success"), ("retry", "failure")):
        task_id = PLAYS[end](project, f"k{secrets.token_hex(4)}", "")
        wait_until(partial(_has_ended, site, task_id, last), PATIENCE, f"{end} is over")
    another = ("project.executed", project.aside)
    task_id = project.executed.delay(f"k{secrets.token_hex(4)}", then="publish_another", more=another).id
    wait_until(partial(_has_ended, site, task_id, "success"), PATIENCE, "a body has published")
    send_what_is_not_run(project)
    project.app.control.revoke("nobody's")
    project.app.control.broadcast("terminate", arguments={"signal": "TERM", "task_id": ["nobody's"]})
    heard = ("task_unknown", "task_rejected", "Consumer.on_decode_error", "Node.handlers['terminate']")
    wait_until(lambda: {hook.name for hook in site.called(MAIN)} >= {*heard}, PATIENCE, "all is heard")
    # In hand when the worker ends.
    project.wait_received(project.executed.apply_async(("in hand",), countdown=600).id)
    project.workers[0].signal(signal.SIGTERM)
    project.workers[0].process.wait(PATIENCE)

    of_main, of_child = rows_of(MAIN), rows_of(CHILD)
    if pool not in PREFORK:
        of_main, of_child = of_main | of_child - OF_CHILDREN_ALONE, set()
    assert site.called(MAIN) - OF_ENDS - AT_ANY_TIME == of_main - OF_ENDS
    assert site.called(CHILD) - OF_ENDS - AT_ANY_TIME == of_child - OF_ENDS
    assert site.called(FOUND) - ROWS.keys() == set()
    # Nothing was called later, or once more.
    assert [site.seen(*each) for each in site.played] == [(cell.main, cell.child) for cell, _ in site.played]


def _has_ended(site: Site, task_id: str, last: str) -> bool:
    return site.run(task_id, MAIN).endswith(last)


def send_what_is_not_run(project: Project) -> None:
    """Send a task that nobody knows, a body that nobody can read, and what is no task at all."""
    project.app.send_task("project.of_nobody")
    project.executed.apply_async(("aside",), queue=project.aside)
    message = captured(project)
    deliver(project, {**message, "body": "ew=="})
    deliver(project, {**message, "headers": {}})


@pytest.mark.xdist_group("hooks, prefork")
def test_a_publisher_calls_these_hooks(watched_in: Callable[[str], Site]) -> None:
    """A program that publishes, waits, and keeps results."""
    site = watched_in("prefork")
    plan = {**site.project.plan, **site.watching(PUBLISHER)}
    command = [sys.executable, "-m", "tests.acceptance.hooks.publisher"]
    # It ends if nobody holds its standard input.
    environment = {"PROJECT_PLAN": json.dumps(plan)}
    with started(command, environment, site._path.parent, stdin=subprocess.PIPE) as process:
        assert process.process.wait(PATIENCE) == 0, process.log

    assert site.called(PUBLISHER) == rows_of(PUBLISHER)
    assert site.called(FOUND) - ROWS.keys() == set()


@pytest.mark.xdist_group("hooks, prefork")
def test_a_beat_calls_these_hooks(new_watched: Callable[[], Site]) -> None:
    """A beat that sends the ticks of a unique task, and of one that it does not import."""
    site = new_watched()
    site.project.schedule = {
        name: {"task": f"project.{name}", "schedule": 0.5, "args": [name]}
        for name in ("executed", "unlocked")
    }
    site.project.start_beat(plan={**site.watching(BEAT), "unknown": ["project.unlocked"]})
    for name in site.project.schedule:
        site.project.wait_ticks(name, 1)

    # It is sent before ``Scheduler.apply_async`` has returned, and the others were called before that.
    assert site.called(BEAT) - AT_ANY_TIME == rows_of(BEAT)
    assert site.called(FOUND) - ROWS.keys() == set()


def test_every_hook_has_a_row() -> None:
    """What a class of ours overrides, and what a receiver of ours is connected to, is in the table.

    What is replaced in a process shows there: the tests above look at it.
    """
    found = {hook for hook, *_ in (*overrides(), *connected())}
    assert found <= ROWS.keys(), "name where it is called in table.py, and in docs/how-it-works.md"


def test_the_page_lists_every_hook_with_the_processes_that_call_it() -> None:
    """docs/how-it-works.md, "What is used of Celery": its table is this one, by names."""
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    section = page.partition("## What is used of Celery")[2].partition("\n## ")[0]
    listed: dict[str, set[str]] = {}
    for names, processes in re.findall(r"^\| (`.+?`) \| (\w[^|`]*) \| ", section, re.MULTILINE):
        for name in re.findall(r"`(.+?)`", names):
            listed[name] = set(processes.split(", "))
    expected: dict[str, set[str]] = {}
    for hook, processes in ROWS.items():
        expected.setdefault(hook.name, set()).update(processes)
    assert listed == expected


def rows_of(process: str) -> set[Hook]:
    return {hook for hook, processes in ROWS.items() if process in processes}
