"""Law 10, cheap: what a publish and an import cost, counted; nothing here is timed.

``test_everywhere`` counts the three trips of a whole task, in every pool and on every broker;
``integration/test_round_trips.py`` those of each verb, a refusal's among them.
"""

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis

from celery_redislock.locks.scripts import SCRIPTS
from tests.acceptance.harness import Project
from tests.acceptance.paths import FUSED
from tests.acceptance.terms import LONG_LEASE, PATIENCE
from tests.servers import EmbeddedServer
from tests.trips import asked

pytestmark = [
    pytest.mark.law(10),
    pytest.mark.paths(FUSED, why="elsewhere claim and message, release and result are steps apart"),
]

#: A project for which one server is all, and a client of that server.
OnOneServer = tuple[Project, Any]


@pytest.fixture
def on_one_server(new_project: Callable[..., Project]) -> Iterator[OnOneServer]:
    """A project whose server knows the scripts; after a refusal, a process looks first for a while."""
    with EmbeddedServer() as server, redis.Redis.from_url(server.redis_url) as client:
        project = new_project(broker=server.url, conf={"redislock_ttl": LONG_LEASE})
        for _ in range(3):
            project.executed_on_error_run.delay("before")
        yield project, client


def test_a_publish_asks_the_one_server_once_in_all(on_one_server: OnOneServer, key: str) -> None:
    """The message is no request of its own. A refusal, which says who holds, is one request as well."""
    project, client = on_one_server
    publish = partial(project.executed_ignore_result.delay, key)

    # Celery unsubscribes from a result that was dropped, before 5.7 also where nobody subscribed to it.
    every = [[each for each in asked(client, publish) if each != "UNSUBSCRIBE"] for _ in range(3)]

    assert every == [["claim_and_push"], ["claim_and_push"], ["look"]]


def test_a_run_asks_the_one_server_twice_and_stores_its_result_with_that(
    on_one_server: OnOneServer, key: str
) -> None:
    """The result is no request of its own."""
    project, client = on_one_server
    project.start_worker("prefork")
    project.executed.delay(f"{key}-before").get(timeout=PATIENCE)
    project.wait_free("before")

    every = asked(client, lambda: project.executed.delay(key).get(timeout=PATIENCE))

    assert [each for each in every if each in SCRIPTS] == ["claim_and_push", "acquire", "release_and_store"]
    assert not {"SET", "SETEX", "PUBLISH"}.intersection(every)


def test_before_the_first_lock_nothing_is_imported_connected_or_started(celery_url: str) -> None:
    """Nothing runs and nothing is imported before it is needed."""
    code = """
        import sys, threading
        opened = []
        sys.addaudithook(lambda event, args: opened.append(event) if event == "socket.connect" else None)
        from celery import Celery
        from celery_redislock import SingletonTask
        app = Celery("cheap", broker=sys.argv[1], backend=sys.argv[1])
        @app.task(base=SingletonTask, lock_key="account:{account_id}")
        def sync(account_id): pass
        assert sync.name.endswith("sync")  # declared, and its options checked
        print("redis" in sys.modules, threading.active_count(), opened)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), celery_url],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.split("\n")[0] == "False 1 []"
