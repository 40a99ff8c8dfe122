"""Every hook of Celery and kombu that this package has is called, where and when the package relies on it.

What becomes of a lock when they are: the endings, in each pool.
"""

import itertools
import json
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import opening
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.hooks.reflection import Hook, connected, overrides
from tests.acceptance.hooks.table import AT_ANY_TIME, BEAT, CHILD, MAIN, OF_CHILDREN_ALONE, PUBLISHER, ROWS
from tests.acceptance.hooks.watch import FOUND, calls_in
from tests.acceptance.messages import captured, deliver
from tests.acceptance.processes import ROOT, started
from tests.acceptance.terms import PATIENCE

POOLS = ("prefork", "threads", "gevent", "solo")

#: How a body meets a limit, in the pools that keep one.
LIMITS = {"prefork": {"soft_time_limit": 1}, "gevent": {"time_limit": 1}}


class Site:
    """A project whose processes are watched."""

    def __init__(self, project: Project, path: Path) -> None:
        self.project = project
        self._path = path
        path.touch()

    def watching(self, process: str) -> dict[str, Any]:
        """What is added to the plan of a process, so that it is watched."""
        return {"hooks": {"path": str(self._path), "process": process}}

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


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_calls_these_hooks_from_its_start_to_its_end(
    request: pytest.FixtureRequest, new_watched: Callable[[], Site], pool: str
) -> None:
    """What messages and commands, the start and the end of a worker call, in which of its processes."""
    if pool == "gevent":
        pytest.importorskip(pool)
    site = new_watched()
    project = site.project
    request.node._projects = [project]
    project.start_workers(1, pool, concurrency=1 if pool == "solo" else 4, **site.watching(MAIN))
    keys = (f"k{secrets.token_hex(4)}" for _ in itertools.count())
    another = ("project.executed", project.aside)
    for then, more in ((None, None), ("publish_another", another), ("fail", None)):
        project.executed_acks_late.delay(next(keys), 0.0, then, more).get(timeout=PATIENCE, propagate=False)
    # It has no result before Celery 5.7.
    project.executed_acks_late.delay(rejected := next(keys), 0.0, "reject")
    project.wait_ended(rejected)
    retried = project.executed.delay(next(keys), 0.0, "retry", {"queue": project.aside})
    wait_until(lambda: retried.state == "RETRY", PATIENCE, "it is retried")
    revoked = project.executed.apply_async((next(keys),), countdown=0.5)
    project.wait_received(revoked.id)
    revoked.revoke()
    heard = {"Request.reject", "Request._announce_revoked"}
    if pool in LIMITS:
        project.executed.apply_async((next(keys), 20.0), **LIMITS[pool])
        heard.add("Request.on_timeout")
    send_what_is_not_run(project)
    project.app.control.revoke("nobody's")
    project.app.control.broadcast("terminate", arguments={"signal": "TERM", "task_id": ["nobody's"]})
    heard |= {"task_unknown", "task_rejected", "Consumer.on_decode_error", "Node.handlers['terminate']"}
    wait_until(lambda: {hook.name for hook in site.called(MAIN)} >= heard, PATIENCE, "all is heard")
    # In hand when the worker ends.
    project.wait_received(project.executed.apply_async(("in hand",), countdown=600).id)
    project.workers[0].signal(signal.SIGTERM)
    project.workers[0].process.wait(PATIENCE)

    of_main, of_child = rows_of(MAIN), rows_of(CHILD)
    if pool != "prefork":
        of_main, of_child = of_main | of_child - OF_CHILDREN_ALONE, set()
    if pool not in LIMITS:
        of_main = {hook for hook in of_main if hook.name != "Request.on_timeout"}
    assert site.called(MAIN) - AT_ANY_TIME == of_main - AT_ANY_TIME
    assert site.called(CHILD) - AT_ANY_TIME == of_child - AT_ANY_TIME
    assert site.called(FOUND) - ROWS.keys() == set()


def send_what_is_not_run(project: Project) -> None:
    """Send a task that nobody knows, a body that nobody can read, and what is no task at all."""
    project.app.send_task("project.of_nobody")
    project.executed.apply_async(("aside",), queue=project.aside)
    message = captured(project)
    deliver(project, {**message, "body": "ew=="})
    deliver(project, {**message, "headers": {}})


def test_a_publisher_calls_these_hooks(new_watched: Callable[[], Site]) -> None:
    """A program that publishes, waits, and keeps results."""
    site = new_watched()
    site.project.start_worker("prefork")
    plan = {**site.project.plan, **site.watching(PUBLISHER)}
    command = [sys.executable, "-m", "tests.acceptance.hooks.publisher"]
    # It ends if nobody holds its standard input.
    environment = {"PROJECT_PLAN": json.dumps(plan)}
    with started(command, environment, site._path.parent, stdin=subprocess.PIPE) as process:
        assert process.process.wait(PATIENCE) == 0, process.log
    assert site.called(PUBLISHER) == rows_of(PUBLISHER)
    assert site.called(FOUND) - ROWS.keys() == set()


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
