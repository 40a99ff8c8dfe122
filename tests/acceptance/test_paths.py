"""The laws' files are played on three paths; here, that these are three."""

import pytest
import redis

from tests.acceptance.conftest import ProjectMaker
from tests.acceptance.paths import ELSEWHERE, FUSED, PATHS, RABBITMQ
from tests.servers import EmbeddedServer


@pytest.mark.parametrize("path", PATHS, indirect=True)
def test_locks_and_messages_are_where_a_path_has_them(
    new_project: ProjectMaker, another_server: EmbeddedServer, path: str, key: str
) -> None:
    """Whether the lock and the message of a publish are on the result backend's server, and which else."""
    project = new_project()
    project.executed.delay(key)
    prefix = project.plan["prefix"]
    lock = f"{prefix}:redislock:{{work:{key}}}:lock"
    with redis.Redis.from_url(another_server.redis_url) as another:
        found = (project.redis.exists(lock), another.exists(lock), project.redis.llen(f"{prefix}:celery"))
    assert found == {FUSED: (1, 0, 1), ELSEWHERE: (0, 1, 1), RABBITMQ: (1, 0, 0)}[path]
    assert project.queued() == 1
