"""``lock_rate``, ``lock_period``: when runs of one key start, on all workers; the others wait in order."""

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from typing import Any

import pytest
import redis

from celery_redislock import DuplicateTask
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.paths import ELSEWHERE, FUSED, RABBITMQ
from tests.acceptance.terms import PATIENCE
from tests.tiers import slow

ProjectOn = Callable[..., Project]
ProjectMaker = Callable[..., Project]

pytestmark = pytest.mark.law(2)

#: Seconds that a body may begin later than its start, which the server noted.
LATE = 0.3


@pytest.fixture
def project(project_on: ProjectOn, on: str) -> Project:
    """The project on one of the paths that these tests share, with two workers."""
    return project_on("prefork", on, concurrency=2, workers=2, conf={"worker_prefetch_multiplier": 4})


def began(project: Project, key: str) -> list[float]:
    """When the bodies of a key began."""
    return [body.start for body in project.bodies(key)]


@contextmanager
def starts_noted(project: Project, key: str) -> Iterator[dict[str, float]]:
    """Yield when runs of a key started by the server's clock, in seconds by token: as it notes them."""
    seen: dict[str, float] = {}
    noted = re.compile(rf"LPUSH \S*{{work:{key}}}:starts:\d+ (\d+) (\S+)")
    over = f"{key} is over"

    def listen() -> None:
        for each in monitor.listen():
            if over in each["command"]:
                return
            if found := noted.match(each["command"]):
                seen[found[2]] = int(found[1]) / 1000

    client = redis.Redis.from_url(project.plan["journal"], socket_timeout=None)
    with closing(client), client.monitor() as monitor:
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield seen
        project.redis.echo(over)
        thread.join(PATIENCE)


@pytest.mark.slow
def test_a_worker_that_is_killed_gives_no_start_back(new_project: ProjectMaker, key: str) -> None:
    """By the server's clock never more than the rate; what it ran, and what it was handed, runs again."""
    project = new_project(path=FUSED, conf={"worker_prefetch_multiplier": 4, "redislock_restore": 6.0})
    first = project.start_worker("prefork", concurrency=2)
    task = project.while_executing_by_3_acks_late
    with starts_noted(project, key) as noted:
        results = [task.apply_async((key, 0.5), lock_rate="2/2s") for _ in range(8)]
        project.wait_started(key, 3)
        first.signal(signal.SIGKILL)
        first.process.wait(10)
        project.start_worker("prefork", concurrency=2)
        for result in results:
            assert result.get(timeout=2 * PATIENCE) == f"{key} done"
        project.wait_free(key)
    starts = sorted(noted.values())
    assert len(starts) >= len(project.bodies(key)) > len(results)
    assert all(later - at >= 2.0 for at, later in zip(starts, starts[2:], strict=False)), starts


@pytest.mark.parametrize(
    ("task", "options", "on"),
    [
        ("while_executing", {}, FUSED),
        ("while_executing_by_3", {}, ELSEWHERE),
        ("executed", {"on_conflict": "wait"}, FUSED),
        slow("while_executing", {}, ELSEWHERE),
        slow("while_executing", {}, RABBITMQ),
        slow("while_executing_by_3", {}, FUSED),
        slow("while_executing_by_3", {}, RABBITMQ),
        slow("executed", {"on_conflict": "wait"}, ELSEWHERE),
        slow("executed", {"on_conflict": "wait"}, RABBITMQ),
    ],
)
def test_no_more_start_in_a_span_and_the_next_one_starts_when_a_place_opens(
    project: Project, on: str, key: str, task: str, options: dict[str, Any]
) -> None:
    """Nine calls at three in two seconds: the last three begin four seconds after the first ones."""
    publish = getattr(project, task).apply_async
    results = [publish((key,), lock_rate="3/2s", **options) for _ in range(9)]
    project.wait_ended(key, 9)
    starts = began(project, key)
    assert all(later - at >= 2.0 - LATE for at, later in zip(starts, starts[3:], strict=False))
    assert starts[-1] - starts[0] < 4.0 + 4 * LATE, [round(at - starts[0], 2) for at in starts]
    assert {result.get(timeout=PATIENCE) for result in results} == {f"{key} done"}
    if (task, on) == ("executed", FUSED):
        assert [body.task_id for body in project.bodies(key)] == [result.id for result in results]
    project.wait_free(key)


@pytest.mark.parametrize("on", [FUSED, slow(ELSEWHERE)])
def test_a_retry_is_a_start_and_keeps_no_place_while_it_waits(project: Project, key: str) -> None:
    """Its body begins no sooner than a span after its first one."""
    result = project.executed.apply_async((key, 0.0, "retry", {"times": 2}), lock_rate="1/2s")
    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert all(later - at >= 2.0 - LATE for at, later in pairwise(began(project, key)))
    assert len(project.bodies(key)) == 3
    project.wait_free(key)


@pytest.mark.parametrize("on", [FUSED, ELSEWHERE])
def test_a_call_that_is_over_is_skipped_or_refused_where_its_task_says_so(project: Project, key: str) -> None:
    """``retry_after`` says when a place opens."""
    first = project.executed.apply_async((key,), lock_rate="1/10s")
    first.get(timeout=PATIENCE)
    project.wait_free(key)
    again = project.executed.apply_async((key,), lock_rate="1/10s")
    assert (again.is_duplicate, again.id) == (True, first.id)
    with pytest.raises(DuplicateTask, match="lock_rate") as caught:
        project.executed.apply_async((key,), lock_rate="1/10s", on_conflict="raise")
    assert caught.value.is_rate
    assert 5 < caught.value.retry_after <= 10


@pytest.mark.parametrize("on", [FUSED])
def test_the_first_of_many_starts_at_once_and_the_last_is_not_lost(project: Project, key: str) -> None:
    """``coalesce`` with a rate: a throttle."""
    publish = project.executed.apply_async
    results = [
        publish((key, 0.0, "tell", number), on_conflict="coalesce", lock_rate="1/2s") for number in range(20)
    ]
    wait_until(lambda: len(project.bodies(key)) == 2, PATIENCE, "the second one has begun")
    assert [results[0].get(timeout=PATIENCE), results[-1].get(timeout=PATIENCE)] == [0, 19]
    first, last = began(project, key)
    assert 2.0 - LATE <= last - first < 2.0 + 3 * LATE


@pytest.mark.parametrize("on", [FUSED, slow(ELSEWHERE)])
@pytest.mark.parametrize("number", [8, slow(60)])
def test_calls_that_wait_for_periods_are_received_twice_at_most_and_start_in_order(
    new_project: ProjectMaker, on: str, key: str, number: int
) -> None:
    """Law 10: nobody polls, however many wait. Fetched once per period, 60 calls were 435 receives.

    With one worker: two may receive the second call before the first.
    """
    period = 0.5
    project = new_project(path=on, conf={"worker_prefetch_multiplier": 4})
    project.start_worker("prefork", concurrency=2)
    options: dict[str, Any] = {"lock_period": period}
    results = [project.while_executing.apply_async((key,), **options) for _ in range(number)]
    project.wait_ended(key, number, number * period + PATIENCE)
    assert [body.task_id for body in project.bodies(key)] == [result.id for result in results]
    starts = began(project, key)
    assert all(later - at >= period - LATE for at, later in pairwise(starts))
    assert starts[-1] - starts[0] < (number - 1) * (period + LATE)
    assert max(project.received().values()) <= 2
