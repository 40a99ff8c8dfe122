"""Unique tasks whose locks are on a Cluster; messages and results are on another server."""

from collections.abc import Callable

import pytest

from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import PATIENCE
from tests.cluster import Cluster

ProjectMaker = Callable[..., Project]

pytestmark = pytest.mark.xdist_group("cluster")

#: Keys enough that each node has some.
KEYS = range(12)


@pytest.fixture
def on_cluster(new_project: ProjectMaker, cluster: Cluster) -> Project:
    """A project with a worker."""
    project = new_project(conf={"redislock_url": cluster.url, "worker_prefetch_multiplier": 4})
    project.start_worker("prefork", concurrency=4)
    return project


@pytest.mark.law(1)
def test_duplicates_are_skipped_on_whatever_node(on_cluster: Project, cluster: Cluster, key: str) -> None:
    """A call beside one that is queued or runs gets that one's result; a later one runs."""
    keys = [f"{key}-{number}" for number in KEYS]
    handles = [on_cluster.executed.lock_for(each) for each in keys]
    assert {cluster.node_of(handle.key) for handle in handles} == set(cluster.nodes)

    with on_cluster.kept_on(*keys):
        firsts = [on_cluster.executed.delay(each) for each in keys]
        on_cluster.wait_started(keys[0])
        again = [on_cluster.executed.delay(each) for each in keys]
        assert [result.id for result in again] == [result.id for result in firsts]
        assert all(result.is_duplicate for result in again)
        assert [handle.holder().owner for handle in handles] == [result.id for result in firsts]
    assert [result.get(timeout=PATIENCE) for result in firsts] == [f"{each} done" for each in keys]
    assert [handle.holder() for handle in handles] == [None] * len(keys)
    later = on_cluster.executed.delay(keys[0])
    assert not later.is_duplicate
    assert later.get(timeout=PATIENCE) == f"{keys[0]} done"
    assert [len(on_cluster.bodies(each)) for each in keys] == [2] + [1] * (len(keys) - 1)


@pytest.mark.law(1, 2)
def test_waiting_calls_run_while_their_slot_moves(on_cluster: Project, cluster: Cluster, key: str) -> None:
    """One at a time and in order: a process of the pool publishes the next, as the Cluster has no queues."""
    name = on_cluster.while_executing.lock_for(key).key
    with on_cluster.kept_on(key):
        results = [on_cluster.while_executing.delay(key, 0.05) for _ in range(12)]
        on_cluster.wait_parked(key, len(results) - 1)
        cluster.move_slot(cluster.slot_of(name), cluster.other_than(cluster.node_of(name)))
    wait_until(lambda: len(on_cluster.bodies(key)) > 2, PATIENCE, "they go on")
    cluster.move_slot(cluster.slot_of(name), cluster.other_than(cluster.node_of(name)))
    on_cluster.wait_ended(key, len(results))
    assert {result.get(timeout=PATIENCE) for result in results} == {f"{key} done"}
    assert [body.task_id for body in on_cluster.bodies(key)] == [result.id for result in results]
    assert (on_cluster.overlaps(key), on_cluster.violations(key)) == ([], [])
    on_cluster.wait_free(key)
