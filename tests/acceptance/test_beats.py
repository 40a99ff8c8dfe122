"""What only real beats can tell: processes that are killed, a lock server, workers.

What beats decide is tried on a turned clock, in ``tests/unit/scheduling/test_beat.py``. Ticks are read from a
queue that no worker serves: a message says when it left, and from which beat (``ticks.py``). Their task is
unique while it runs, so that no tick is a duplicate of one that waits there.
"""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.beats import Beat
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import PATIENCE, SOCKET_TIMEOUT
from tests.acceptance.ticks import Tick, gaps
from tests.acceptance.worker import Worker
from tests.servers import EmbeddedServer
from tests.tiers import slow

#: Seconds a beat may be late on a busy machine.
SLACK = 0.7
#: Seconds by which a beat stands back that did not send the tick before, so that not all ask at once.
STANDBY = 0.2

INTERVAL = 2.0

UNIQUE = "project.while_executing"
#: A task that is not unique, where beat does not import it: the project's class is for unique ones.
PLAIN = "project.unlocked"

ProjectMaker = Callable[..., Project]

pytestmark = pytest.mark.timing


def entry(key: str, schedule: float = INTERVAL, task: str = UNIQUE, **more: Any) -> dict[str, Any]:
    return {"task": task, "schedule": schedule, "args": [key], **more}


@pytest.fixture
def project(new_project: ProjectMaker, key: str) -> Project:
    """A project with an entry, ``often``."""
    project = new_project()
    project.schedule["often"] = entry(key)
    return project


def assert_once(ticks: list[Tick]) -> None:
    """Assert that each tick of an interval is among these once; one may be late by the stand-by offset."""
    about = "\n".join(f"{tick.at:.2f} beat {tick.pid}: {tick.tick}" for tick in ticks)
    assert len({tick.tick for tick in ticks} - {None}) == len(ticks), about
    assert min(gaps(ticks)) > INTERVAL - SLACK, about
    assert max(gaps(ticks)) < INTERVAL + STANDBY + SLACK, about


def test_another_beat_sends_when_one_is_killed_which_then_goes_on(project: Project, key: str) -> None:
    """No tick is missing and none comes twice, without a setting: one is late by the stand-by offset."""
    project.start_beats_apart({}, {})
    killed = project.beat_of(project.wait_ticks(key, 2)[-1])
    killed.kill()
    before = len(project.wait_ticks(key, 4))
    project.start_beat(schedule_file=killed.schedule_file)
    ticks = project.wait_ticks(key, before + 2)
    assert_once(ticks)
    assert {tick.pid for tick in ticks[2:]} - {killed.pid}


@pytest.mark.parametrize("trouble", [slow("kill"), "pause"])
def test_while_the_lock_server_is_away_a_tick_waits_and_plain_entries_are_sent(
    new_project: ProjectMaker, lock_server: EmbeddedServer, key: str, trouble: str
) -> None:
    """The entry is tried again each second, loudly, and sent once on return; beat lives, nobody else waits.

    A server that is silent is waited for once, for two times ``redislock_socket_timeout``.
    """
    plain = f"{key} plain"
    project = new_project(conf={"redislock_url": lock_server.url})
    project.schedule["unique"] = entry(key)
    project.schedule["plain"] = entry(plain, 1.0, task=PLAIN)
    beat = project.start_beat(plan={"unknown": [PLAIN]})
    project.wait_ticks(key, 1)
    assert "; beat shares 1 of 2 entries, not shared: plain (redislock_beat" in beat.log
    getattr(lock_server, trouble)()
    away = time.monotonic()
    project.wait_ticks(plain, len(project.ticks(plain)) + 4)
    assert [tick for tick in project.ticks(key) if tick.at > away] == []
    assert [line for line in beat.log.splitlines() if "unique" in line and "ERROR" in line]
    (lock_server.restart if trouble == "kill" else lock_server.resume)()
    back = time.monotonic()
    sent = project.wait_ticks(key, 4)[1:]

    # What was asked for in vain may have been done, so that the tick is taken, by this beat: it is sent when
    # that has lapsed, and the one that is due by then follows at once.
    assert sent[0].at < back + 1 + INTERVAL + SLACK
    assert len({tick.tick for tick in sent}) == len(sent)
    assert_once(sent[1:])
    waits = [gap - 1 for gap in gaps(project.ticks(plain)) if gap > 1 + SLACK]
    assert len(waits) <= (trouble == "pause")
    assert max(waits, default=0.0) < 2 * SOCKET_TIMEOUT + SLACK
    assert beat.runs


@pytest.mark.slow
def test_beats_inside_two_workers_send_each_tick_once(
    new_project: ProjectMaker, key: str, tmp_path: Path
) -> None:
    """``celery worker -B``: for development, says Celery, and started twice by accident."""
    project = new_project()
    project.schedule["often"] = entry(key, task="project.executed")
    plan = {**project.plan, "schedule": project.schedule}
    for place in range(2):
        options = ("-B", "-s", str(tmp_path / f"schedule-{place}"))
        project.workers.append(Worker(plan, "prefork", 1, options, app="tests.acceptance.scheduled"))
        project.workers[-1].wait_ready()
        time.sleep(INTERVAL / 2)

    project.wait_ended(key, 4)
    assert_once(project.leaving(key)[:4])
    task_ids = [body.task_id for body in project.bodies(key)]
    assert len(set(task_ids)) == len(task_ids)


@pytest.mark.parametrize(
    ("task", "arguments"),
    [
        slow("project.of_tenant", ["-S", "tests.acceptance.tenants:TenantScheduler"]),
        ("project.per_tenant", []),
    ],
    ids=["a scheduler", "a base class of tasks"],
)
def test_a_tick_that_is_a_message_per_tenant_runs_once_for_each_though_its_beat_is_killed_in_between(
    new_project: ProjectMaker, task: str, arguments: list[str]
) -> None:
    """Law 2: the other beat sends the tick again, in its own order, and no message stands for another."""
    project = new_project()
    plan = {**project.plan, "task": task, "every": INTERVAL}
    project.workers.append(Worker(plan, "prefork", 1, (), app="tests.acceptance.tenants"))
    project.workers[-1].wait_ready()

    def start(name: str, *tenants: str) -> Beat:
        options: Any = {"plan": {**plan, "tenants": tenants, "name": name}, "app": "tests.acceptance.tenants"}
        return project.start_beat(*arguments, **options)

    with project.kept_on("first@between"):
        killed = start("first", "eu", "us", "asia")
        wait_until(lambda: project.notes("first@between"), PATIENCE, "the first tenant's message has left")
        wait_until(lambda: project.notes("reports"), PATIENCE, "it has run")
        killed.kill()
    ((tick, tenant),) = project.notes("reports")
    assert tenant == "eu"
    start("second", "asia", "us", "eu")
    wait_until(lambda: len(project.notes("reports")) >= 9, PATIENCE, "three ticks have run")

    ran = Counter(map(tuple, project.notes("reports")))
    assert [ran[tick, tenant] for tenant in ("eu", "us", "asia")] == [1, 1, 1]
    assert set(ran.values()) == {1}
