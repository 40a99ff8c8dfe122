"""Who parks, releases or publishes dies in between: nobody in line is lost, runs twice, or loses its place.

Each of these deaths is at a point inside the package (``deaths.py``), on every broker, acknowledged early and
late. That a whole worker may be killed at any time is shown in ``test_line.py``.
"""

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from celery_redislock.locks import Lock
from celery_redislock.publishing import promote
from tests.acceptance.brokers import ON_REDIS, Site
from tests.acceptance.deaths import (
    IN_HAND,
    PARKED,
    PARKING,
    POPPED,
    PUBLISHED,
    RELEASED,
    RELEASING,
    STARTING,
    SWEPT,
)
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.paths import ELSEWHERE
from tests.acceptance.terms import FREED, PATIENCE
from tests.servers import EmbeddedServer
from tests.tiers import slow

pytestmark = [pytest.mark.law(2), ON_REDIS]

SiteMaker = Callable[..., Site]

#: Seconds a message that was promoted may take until it is published; the package's own are ten.
PUBLISHING = 3.0
#: Seconds after which a killed worker's messages are restored, at least; and what a hand-off lasts then.
RESTORE = 6.0
HAND_OFF = RESTORE * 16 / 15 + 3.0
SHORT = {"redislock_restore": RESTORE}
#: Seconds in which what is to happen at once has happened, on the busiest machine.
AT_ONCE = 3.0

#: On Redis nothing is delivered again while a test lasts.
_OPTIONS = {"visibility_timeout": 600, "global_keyprefix": "mine:", "priority_steps": [0, 5]}
_UNHURRIED: Mapping[str, Any] = {"broker_transport_options": _OPTIONS, "task_default_priority": 7}
UNHURRIED = {"redis": _UNHURRIED, ELSEWHERE: _UNHURRIED}

BROKERS = ("redis", ELSEWHERE, "quorum", "classic")
#: Where a message meets a lock that is held: after it was given to a child, or before.
REFUSED, RECEIVED = "refused in its child", "when it is received"
EARLY, LATE = "while_executing", "while_executing_acks_late"


@contextmanager
def held(project: Project, key: str) -> Iterator[None]:
    """Hold the lock in this process while the block runs: no worker dies with it, or learns of its end."""
    handle = project.executed.lock_for(key)
    with Lock(handle._store, handle.key):
        yield


def rows(*quick: tuple[str, ...], among: Iterable[tuple[str, ...]]) -> list[Any]:
    """Return the rows of a table: these are quick."""
    table = list(among)
    assert set(quick) <= set(table)
    return [row if row in quick else slow(*row) for row in table]


@pytest.mark.parametrize(
    ("broker", "when", "point", "task"),
    rows(
        ("redis", REFUSED, PARKED, EARLY),
        ("redis", RECEIVED, PARKING, LATE),
        among=product(BROKERS, (REFUSED, RECEIVED), (PARKING, PARKED), (EARLY, LATE)),
    ),
)
def test_what_a_worker_parks_when_it_dies_is_in_line_once(
    new_site: SiteMaker, key: str, broker: str, when: str, point: str, task: str
) -> None:
    """Its main process is killed before it has parked, or before it acknowledges what it has parked.

    Before it has parked, a message is lost only where it was acknowledged early, and refused its lock in its
    child: as one that runs would be with plain Celery.
    """
    project = new_site(broker, conf={"worker_prefetch_multiplier": 4}).project
    project.plan["dies"] = {"at": point, "number": 1 if when == REFUSED else 3}
    worker = project.start_worker("prefork", concurrency=2)
    with held(project, key):
        sent = [getattr(project, task).delay(key).id]
        if when == RECEIVED:
            project.wait_parked(key, 1)
            sent += [getattr(project, task).delay(key).id for _ in range(4)]
        worker.process.wait(PATIENCE)
        before = project.parked(key)
        project.start_worker("prefork", concurrency=2)
        if (when, point, task) == (REFUSED, PARKING, EARLY):
            lost = sent.pop()
            sent = [getattr(project, task).delay(key).id]
            assert lost != sent[0]
        line = project.wait_parked(key, len(sent))
    project.wait_ended(key, len(sent))
    project.wait_free(key)

    assert project.notes("deaths") == [[point, worker.process.pid]]
    assert line[: len(before)] == before
    assert sorted(line) == sorted(sent)
    assert [body.task_id for body in project.bodies(key)] == line
    assert project.overlaps(key) == []
    # Elsewhere it leaves the line when its publish has been settled, which its run need not wait for.
    wait_until(lambda: not project.parked(key), PATIENCE, "the line is empty")


#: What may take so long until the next one starts; on Redis a script releases and publishes.
WITHIN = {RELEASING: FREED, RELEASED: PUBLISHING + AT_ONCE, PUBLISHED: AT_ONCE}


@pytest.mark.parametrize(
    ("broker", "point", "task"),
    rows(
        ("redis", RELEASED, LATE),
        (ELSEWHERE, RELEASED, EARLY),
        (ELSEWHERE, PUBLISHED, LATE),
        among=[
            *product(["redis"], (RELEASING, RELEASED), (EARLY, LATE)),
            *product(BROKERS[1:], WITHIN, (EARLY, LATE)),
        ],
    ),
)
def test_the_next_one_runs_although_the_one_before_it_dies_while_it_hands_on_the_lock(
    new_site: SiteMaker, key: str, broker: str, point: str, task: str
) -> None:
    """The body's process is killed before it releases the lock, before it publishes, or before it settles."""
    # What is not acknowledged in time would be delivered again, and run again where its first run has died.
    project = new_site(broker, conf=UNHURRIED.get(broker, {})).project
    project.plan["dies"] = {"at": point}
    project.plan["terms"] = {"PUBLISHING": PUBLISHING}
    project.start_worker("prefork", concurrency=2)
    with project.kept_on(key):
        results = [getattr(project, task).delay(key)]
        project.wait_started(key)
        results += [getattr(project, task).delay(key) for _ in range(4)]
        project.wait_parked(key, 4)
    bodies = project.wait_ended(key, 5)

    assert project.notes("deaths") == [[point, bodies[0].pid]]
    assert [body.task_id for body in bodies] == [result.id for result in results]
    assert project.overlaps(key) == []
    within = AT_ONCE if (broker, point) == ("redis", RELEASED) else WITHIN[point]
    assert bodies[1].start - bodies[0].end < within
    assert not project.parked(key)


@pytest.mark.parametrize("broker", [slow(ELSEWHERE), "quorum"])
def test_what_a_look_promotes_is_published_although_its_worker_dies(
    new_site: SiteMaker, key: str, broker: str
) -> None:
    """The one who released it publishes no messages, so a worker's look does: it is killed before it does."""
    project = new_site(broker).project
    project.plan["dies"] = {"at": SWEPT}
    project.plan["terms"] = {"PUBLISHING": PUBLISHING}
    worker = project.start_worker("prefork", concurrency=2)
    with held(project, key):
        results = [project.while_executing.delay(key) for _ in range(3)]
        line = project.wait_parked(key, 3)
    worker.process.wait(PATIENCE)
    assert project.parked(key) == line
    project.start_worker("prefork", concurrency=2)
    bodies = project.wait_ended(key, 3)
    assert [body.task_id for body in bodies] == line
    assert sorted(line) == sorted(result.id for result in results)
    assert project.overlaps(key) == []


#: What finds a lost one: looks where the lock server is the broker, and elsewhere the end of its hand-off.
LOST = {"redis": 4.0, ELSEWHERE: HAND_OFF + 2.0, "quorum": HAND_OFF + 2.0}
#: One that a killed worker had in hand is back in its queue after ``RESTORE``, or on RabbitMQ at once.
RESTORED = {"redis": RESTORE + 3.0, ELSEWHERE: RESTORE + 3.0, "quorum": AT_ONCE}


@pytest.mark.parametrize(
    ("broker", "point", "task"),
    rows(
        ("redis", POPPED, EARLY),
        ("redis", STARTING, EARLY),
        ("quorum", STARTING, EARLY),
        among=[
            *product(("redis", ELSEWHERE), (POPPED, IN_HAND), (EARLY, LATE)),
            *product(("redis", ELSEWHERE, "quorum"), [STARTING], (EARLY, LATE)),
        ],
    ),
)
def test_one_that_was_handed_the_lock_is_not_lost_with_its_worker(
    new_site: SiteMaker, key: str, broker: str, point: str, task: str
) -> None:
    """Nor passed. Its worker dies before it has started, in kombu's gap or after it was acknowledged."""
    project = new_site(broker, conf={**SHORT, **UNHURRIED.get(broker, {})}).project
    project.plan["dies"] = {"at": point}
    worker = project.start_worker("prefork")
    with held(project, key):
        for _ in range(4):
            getattr(project, task).delay(key)
        line = project.wait_parked(key, 4)
    worker.process.wait(PATIENCE)
    died = time.monotonic()
    project.start_worker("prefork")
    bodies = project.wait_ended(key, 4)

    assert len(project.notes("deaths")) == 1
    assert [body.task_id for body in bodies] == line
    assert project.overlaps(key) == []
    is_found = point == IN_HAND or (point, task) == (STARTING, LATE)
    assert bodies[0].start - died < (RESTORED if is_found else LOST)[broker] + AT_ONCE
    project.wait_free(key)


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_one_that_starts_slowly_is_not_taken_for_lost(new_site: SiteMaker, key: str, pool: str) -> None:
    """It was acknowledged early, so only the worker that has it can tell; no copy of it is sent."""
    project = new_site("redis", conf=SHORT).project
    project.start_worker(pool, concurrency=2)
    with held(project, key):
        for _ in range(2):
            project.before_start_is_slow.delay(key)
        line = project.wait_parked(key, 2)
    project.wait_started(key)
    bodies = project.wait_ended(key, 2)
    assert [body.task_id for body in bodies] == line
    assert project.lines("was delivered again") == []
    assert project.queued() == 0


@pytest.mark.parametrize("broker", ["redis", slow(ELSEWHERE), slow("quorum")])
def test_a_purge_leaves_the_line_as_it_is(new_site: SiteMaker, key: str, broker: str) -> None:
    """The one that was handed the lock included: its message was purged, and is sent again in its turn."""
    project = new_site(broker, conf=SHORT).project
    project.plan["terms"] = {"PUBLISHING": PUBLISHING}
    promote.install(project.app, project.executed.lock_for(key)._store)
    worker = project.start_worker("prefork")
    with held(project, key):
        for _ in range(3):
            project.while_executing.delay(key)
        line = project.wait_parked(key, 3)
        worker.signal(signal.SIGTERM)  # it acknowledges what it has parked, or that would be delivered again
        worker.process.wait(PATIENCE)
    wait_until(lambda: project.queued() == 1, PATIENCE, "the first one is in its queue")
    began = time.monotonic()
    assert project.app.control.purge() == 1
    project.start_worker("prefork")
    bodies = project.wait_ended(key, 3)

    assert [body.task_id for body in bodies] == line
    assert bodies[0].start - began < LOST[broker] + AT_ONCE
    assert project.overlaps(key) == []
    project.wait_free(key)


@pytest.mark.slow
def test_a_line_goes_on_when_its_broker_is_back(
    new_project: Callable[..., Project], key: str, celery_url: str, tmp_path: Path
) -> None:
    """A run ends while the broker is away: nobody can publish the next one, which stays in line."""
    with EmbeddedServer(port=0, data_dir=tmp_path) as server:
        # A process that publishes gives up at once, not after six seconds.
        hasty = {"broker_transport_options": {"max_retries": 1, "interval_start": 0.1}}
        project = new_project(path=ELSEWHERE, broker=server.url, backend=celery_url, conf=hasty)
        project.plan["terms"] = {"PUBLISHING": PUBLISHING}
        project.start_worker("prefork")
        with project.kept_on(key):
            sent = [project.while_executing.delay(key).id]
            project.wait_started(key)
            sent += [project.while_executing.delay(key).id for _ in range(3)]
            line = project.wait_parked(key, 3)
            server.kill()
        project.wait_lines("could not publish the next in line of")
        assert project.parked(key) == line
        server.restart()
        bodies = project.wait_ended(key, 4)

    assert [body.task_id for body in bodies] == sent
    assert project.overlaps(key) == []


def test_a_hold_that_nobody_renews_is_followed_by_the_first_in_line(project: Project, key: str) -> None:
    """Its host is lost: no process of this machine is known to be dead. A look finds the lock free."""
    handle = project.executed.lock_for(key)
    lock = Lock(handle._store, handle.key, ttl=2.0, auto_renew=False)
    assert lock.acquire(0)
    expires = time.monotonic() + 2.0
    sent = [project.while_executing.delay(key).id for _ in range(2)]
    project.wait_parked(key, 2)
    bodies = project.wait_ended(key, 2)
    assert sorted(body.task_id for body in bodies) == sorted(sent)
    assert -0.1 < bodies[0].start - expires < AT_ONCE
    assert project.overlaps(key) == []
