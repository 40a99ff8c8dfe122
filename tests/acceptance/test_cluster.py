"""Unique tasks whose locks are on a Cluster: as on one server, also while a slot moves."""

from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import PATIENCE
from tests.cluster import Cluster, running_cluster

ProjectMaker = Callable[..., Project]

pytestmark = [pytest.mark.law(1), pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three nodes that stay."""
    with running_cluster(replicas=False) as cluster:
        yield cluster


def project_on(new_project: ProjectMaker, cluster: Cluster) -> Project:
    return new_project(conf={"redislock_url": cluster.url, "redislock_beat": False})


def test_duplicates_are_skipped_and_runs_exclude_each_other(
    new_project: ProjectMaker, cluster: Cluster, key: str
) -> None:
    """On keys of all nodes: a claim bars a duplicate, what waits is in line and runs in order, each once."""
    project = project_on(new_project, cluster)
    project.start_worker("prefork", concurrency=4)
    keys = [f"{key}-{number}" for number in range(6)]
    assert len({cluster.node_of(f"work:{each}").address for each in keys}) > 1
    with project.kept_on(*keys):
        first = [project.executed.delay(each) for each in keys]
        assert not any(result.is_duplicate for result in first)
        assert all(project.executed.delay(each).is_duplicate for each in keys)
    for result in first:
        result.get(timeout=PATIENCE)
    for each in keys:
        project.wait_free(each)

    results = {each: [project.while_executing.delay(each, 0.01) for _ in range(10)] for each in keys[:2]}
    for each, calls in results.items():
        for result in calls:
            result.get(timeout=PATIENCE)
        bodies = project.wait_ended(each, 11)[1:]
        assert [body.task_id for body in bodies] == [result.id for result in calls]
        assert project.overlaps(each) == []
        project.wait_free(each)


def test_what_waits_in_line_goes_on_when_its_slot_has_moved(
    new_project: ProjectMaker, cluster: Cluster, key: str
) -> None:
    """The line moves with the lock, and the slot stays among those that are looked at."""
    project = project_on(new_project, cluster)
    project.start_worker("prefork", concurrency=2)
    with project.running(project.while_executing, key):
        waiting = [project.while_executing.delay(key) for _ in range(3)]
        wait_until(lambda: len(project.parked(key)) == 3, PATIENCE, "three wait")
        name = f"work:{key}"
        cluster.move_slot(cluster.slot_of(name), cluster.other_than(cluster.node_of(name)))
    for result in waiting:
        result.get(timeout=PATIENCE)

    assert project.overlaps(key) == []
    assert [body.task_id for body in project.wait_ended(key, 4)][1:] == [result.id for result in waiting]
