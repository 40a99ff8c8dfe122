"""``coalesce``, ``lock_debounce`` and ``lock_rate`` with the locks on a Cluster, and behind a Sentinel."""

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import PATIENCE
from tests.cluster import Cluster
from tests.servers import failing_over

ProjectMaker = Callable[..., Project]

pytestmark = [pytest.mark.law(2), pytest.mark.slow, pytest.mark.xdist_group("cluster")]


@pytest.fixture(params=["cluster", "sentinel", "sentinel, broker"])
def project(
    request: pytest.FixtureRequest, new_project: ProjectMaker, celery_url: str, tmp_path: Path
) -> Iterator[Project]:
    """A project with a worker."""

    def opened(conf: dict[str, Any], **options: Any) -> Project:
        project = new_project(conf={"worker_prefetch_multiplier": 4, **conf}, **options)
        project.start_worker("prefork", concurrency=2)
        return project

    if request.param == "cluster":
        cluster: Cluster = request.getfixturevalue("cluster")
        yield opened({"redislock_url": cluster.url})
        return
    with failing_over(tmp_path) as (_, _, server):
        url = f"sentinel://127.0.0.1:{server.port}"
        named = {"master_name": "mine"}
        if request.param == "sentinel":
            yield opened({"redislock_url": url, "result_backend_transport_options": named})
        else:
            yield opened({"broker_transport_options": named}, broker=url, backend=celery_url)


def test_the_newest_waits_a_burst_is_put_off_and_a_rate_is_kept(
    request: pytest.FixtureRequest, project: Project, key: str
) -> None:
    """Each call is a message there, and the older one gives way where it is parked.

    On a Cluster the lines of a slot are looked at every two seconds: what is due starts so much late at most.
    """
    late = 2.0 if "cluster" in request.node.name else 0.0
    publish = project.executed.apply_async
    newest, burst, rated = f"{key} newest", f"{key} burst", f"{key} rated"
    with project.kept_on(newest):
        calls = [
            publish((newest, 0.0, "tell", number), on_conflict="coalesce", lock_queue_ttl=60)
            for number in range(5)
        ]
        project.wait_started(newest)
        waits = {result.id: result for result in calls[1:]}
        wait_until(
            lambda: sum(each.ready() for each in waits.values()) == len(waits) - 1 and project.parked(newest),
            PATIENCE,
            "the older ones have given way",
        )
    project.wait_ended(newest, 2)
    assert [result.get(timeout=PATIENCE) for result in (calls[0], calls[-1])] == [0, 4]
    assert len(project.bodies(newest)) == 2

    for number in range(4):
        last = publish((burst, 0.0, "tell", number), lock_debounce=1.0)
    published = time.monotonic()
    assert last.get(timeout=PATIENCE) == 3
    [body] = project.wait_ended(burst)
    assert 0.95 <= body.start - published < 2.5 + late

    results = [project.while_executing.apply_async((rated,), lock_rate="1/s") for _ in range(4)]
    assert {result.get(timeout=PATIENCE) for result in results} == {f"{rated} done"}
    starts = [body.start for body in project.bodies(rated)]
    assert all(later - at >= 0.7 for at, later in pairwise(starts)), starts
    assert starts[-1] - starts[0] < 4.5 + 3 * late, starts
    for each in (newest, burst, rated):
        project.wait_free(each)
