"""A line on servers that are reached otherwise: by TLS, and through a Sentinel, also when that fails over."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_redislock import LockUnavailable
from tests import servers
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import LONG_LEASE, PATIENCE
from tests.servers import EmbeddedServer
from tests.tiers import slow
from tests.tls import BY_ITSELF, PROXIED, tls_server

pytestmark = pytest.mark.law(2)

ProjectMaker = Callable[..., Project]


def waiting_behind_one(project: Project, key: str, number: int) -> list[str]:
    """Publish a call whose body is on, and so many that wait for it; return all their ids."""
    sent = [project.while_executing.apply_async((key,), lock_ttl=LONG_LEASE).id]
    project.wait_started(key)
    sent += [project.while_executing.delay(key).id for _ in range(number)]
    project.wait_parked(key, number)
    return sent


def assert_run_in_order(project: Project, key: str, sent: list[str]) -> None:
    """Each has run once, in the order they were sent, and no two at once."""
    project.wait_ended(key, len(sent), 2 * PATIENCE)
    project.wait_free(key)
    assert [body.task_id for body in project.bodies(key)] == sent
    assert project.overlaps(key) == []
    assert not project.parked(key)


@pytest.mark.parametrize("way", [PROXIED, slow(BY_ITSELF)])
@pytest.mark.parametrize("is_broker", [True, slow(False)], ids=["broker and locks", "locks"])
def test_a_line_on_a_server_that_speaks_tls(
    new_project: ProjectMaker, key: str, celery_url: str, tmp_path: Path, way: str, is_broker: bool
) -> None:
    """The script pushes what leaves, or a process of the pool publishes it, as on any server."""
    with tls_server(way, tmp_path) as (_, url):
        options: dict[str, Any] = {"broker": url} if is_broker else {"conf": {"redislock_url": url}}
        project = new_project(backend=celery_url, **options)
        project.start_worker("prefork")
        with project.kept_on(key):
            sent = waiting_behind_one(project, key, 5)
        assert_run_in_order(project, key, sent)


@pytest.fixture
def failing_over(tmp_path: Path) -> Iterator[tuple[EmbeddedServer, str]]:
    """A primary with a replica, and the URL of a Sentinel that promotes it, and calls them ``mine``."""
    with servers.failing_over(tmp_path) as (primary, _, sentinel):
        yield primary, f"sentinel://127.0.0.1:{sentinel.port}"


@pytest.mark.slow
@pytest.mark.parametrize("is_broker", [True, False], ids=["broker and locks", "locks"])
def test_a_line_outlives_a_failover(
    new_project: ProjectMaker,
    key: str,
    celery_url: str,
    failing_over: tuple[EmbeddedServer, str],
    is_broker: bool,
) -> None:
    """Nothing is lost that was replicated: five wait while their server fails over, and run in order."""
    primary, url = failing_over
    named = {"master_name": "mine"}
    options: dict[str, Any] = {"broker": url, "conf": {"broker_transport_options": named}}
    if not is_broker:
        options = {"conf": {"redislock_url": url, "result_backend_transport_options": named}}
    project = new_project(backend=celery_url, **options)
    project.start_worker("prefork")
    with project.kept_on(key):
        sent = waiting_behind_one(project, key, 5)
        with closing(redis.Redis(port=primary.port or 0)) as client:
            client.set("last", 1, ex=60)
            assert client.wait(1, 10_000) == 1
        primary.kill()
        wait_until(lambda: parked_at_last(project, key) == 5, PATIENCE, "the replica has the line")
    assert_run_in_order(project, key, sent)


def parked_at_last(project: Project, key: str) -> int | None:
    """How many are in line; ``None`` while no server answers."""
    try:
        return len(project.parked(key))
    except LockUnavailable:
        return None
