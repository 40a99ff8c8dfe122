"""Law 5: who has seen a task's result, or is the next link of its chain, finds the lock free."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from celery_redislock.declaring.server import store_of
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import LONG_LEASE, PATIENCE
from tests.servers import EmbeddedServer
from tests.tiers import slow
from tests.trips import Trips

pytestmark = pytest.mark.law(5)


def test_no_publish_after_get_is_a_duplicate(project: Project, key: str) -> None:
    """300 times ``get(); delay()`` makes 300 runs."""
    duplicates = 0
    for _ in range(300):
        result = project.executed.delay(key)
        duplicates += result.is_duplicate
        result.get(timeout=PATIENCE)
    assert duplicates == 0
    assert len(project.bodies(key)) == 300


@pytest.mark.law(10)
@pytest.mark.parametrize("pool", ["prefork", "threads", slow("gevent"), slow("solo")])
def test_the_release_and_the_result_are_one_step(
    new_project: Callable[..., Project], lock_server: EmbeddedServer, key: str, pool: str
) -> None:
    """Where results are kept on the lock server: one script, and no transaction of Celery's beside it."""
    if pool == "gevent":
        pytest.importorskip(pool)
    conf = {"redislock_url": lock_server.url, "redislock_ttl": LONG_LEASE}
    project = new_project(backend=lock_server.url, conf=conf)
    project.start_worker(pool, concurrency=1)
    project.executed.delay(f"{key}-before").get(timeout=PATIENCE)
    # From now on a process that writes starts has its connection, and the server knows its script.
    store = store_of(project.app)
    started = "project.executed", "started"
    wait_until(lambda: started in store.counts().numbers, PATIENCE, "its start is written")
    with redis.Redis.from_url(lock_server.redis_url) as client:
        trips = Trips(client)
        looks = looks_at_lines(client)
        project.executed.delay(key).get(timeout=PATIENCE)
        with pytest.raises(ValueError, match="failed"):
            project.executed.delay(key, 0.0, "fail").get(timeout=PATIENCE)
        project.executed_acks_late.delay(key).get(timeout=PATIENCE)
        looks = looks_at_lines(client) - looks
        counted = trips()

    # A worker looks at lines once a second, and proves its home each 20 s, whatever it runs.
    assert counted == {"evalsha": 9 + looks}


def looks_at_lines(client: Any) -> int:
    """How often workers have looked at lines, or at homes: nothing else calls these while nobody waits."""
    stats: Any = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("zrange", "hgetall"))
