"""Both changes of daylight saving time, passed by real beats on a clock that runs sixty times as fast.

The lock server goes by the same clock (``faketime.py``). Two beats share a schedule; a third one sends it as
Celery alone does, and that is what is to be sent.

What Celery sends (5.7.0, with ``enable_utc`` and without): in spring daily entries of the hour that is
missing come an hour later by the clock on the wall; in autumn nothing is sent in the hour that comes again,
neither by daily nor by hourly crontabs.
"""

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.acceptance.faketime import FastClock
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.test_beats import PLAIN, UNIQUE, ProjectMaker
from tests.servers import EmbeddedServer

SPEED, ZONE = 60, "Europe/Berlin"

CRONTABS = {
    "each hour": {"minute": 0},
    "each half hour": {"minute": "*/30"},
    "daily, at two": {"minute": 0, "hour": 2},
    "daily, in the hour that is missing or comes twice": {"minute": 30, "hour": 2},
    "daily, at three": {"minute": 0, "hour": 3},
}
#: From when to when the clock passes each change.
CHANGES = {
    "spring": ("2026-03-29T01:15+01:00", "2026-03-29T04:10+02:00"),
    "autumn": ("2026-10-25T01:40+02:00", "2026-10-25T03:10+01:00"),
}


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> FastClock:
    """A clock that shows the first moment of a change."""
    return FastClock(datetime.fromisoformat(CHANGES[request.param][0]), SPEED, ZONE)


@pytest.fixture
def server(clock: FastClock, tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server that goes by the clock."""
    wrapper = tmp_path / "server"
    variables = " ".join(f"{name}='{value}'" for name, value in clock.environment().items())
    wrapper.write_text(f'#!/bin/sh\nexec env {variables} {EmbeddedServer().binary} "$@"\n')
    wrapper.chmod(0o755)
    with EmbeddedServer(binary=str(wrapper)) as server:
        yield server


def start(project: Project, clock: FastClock, whose: str, task: str, **conf: Any) -> None:
    """Start a beat of a schedule whose keys begin with a name."""
    schedule = {
        name: {"task": task, "schedule": {"crontab": fields}, "args": [f"{whose} {name}"]}
        for name, fields in CRONTABS.items()
    }
    plan = {"schedule": schedule, "conf": {**project.plan["conf"], **conf}, "unknown": [PLAIN]}
    project.launch_beat(plan=plan, environment=clock.environment())


def sent(project: Project, broker: "redis.Redis[bytes]", whose: str, since: float) -> dict[str, list[str]]:
    """Return when each entry was sent, in UTC, to ten minutes: as late as a beat may be by that clock.

    A tick that was sent again as the same message counts once: a publish of 0.2 s is one of 12 s by that
    clock, after which another beat may send it.
    """
    found = {}
    for name in CRONTABS:
        ticks = [tick for tick in project.ticks(f"{whose} {name}", broker) if tick.wall > since]
        messages = {tick.task_id: tick.wall // 600 * 600 for tick in ticks}
        found[name] = [f"{datetime.fromtimestamp(at, timezone.utc):%H:%M}" for at in messages.values()]
    return found


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.timeout(400)
@pytest.mark.parametrize("enable_utc", [True, False], ids=["UTC", "local"])
@pytest.mark.parametrize("clock", list(CHANGES), indirect=True)
def test_two_beats_pass_a_change_of_daylight_saving_time_as_celery_alone(
    new_project: ProjectMaker, clock: FastClock, server: EmbeddedServer, enable_utc: bool, request: Any
) -> None:
    """Hourly and daily crontabs: what one plain beat sends, once."""
    # A second of that clock is 17 ms of ours.
    conf = {"timezone": ZONE, "enable_utc": enable_utc, "redislock_socket_timeout": 60.0}
    project = new_project(broker=server.url, locks=server.redis_url, conf=conf)
    project.plan["journal"] = server.redis_url
    start(project, clock, "plain", PLAIN, redislock_beat=False)
    start(project, clock, "ours", UNIQUE)
    start(project, clock, "ours", UNIQUE)
    for beat in project.beats:
        beat.wait_ready()
    since = clock.now.timestamp()
    end = datetime.fromisoformat(CHANGES[request.node.callspec.params["clock"]][1])
    wait_until(lambda: clock.now >= end, 300.0, f"it is {end}")
    with redis.Redis.from_url(server.redis_url) as broker:
        plain, ours = (sent(project, broker, whose, since) for whose in ("plain", "ours"))

    assert all(plain.values()), plain  # or it was not tried
    assert ours == plain
