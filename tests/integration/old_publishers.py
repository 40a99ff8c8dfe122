"""Messages of publishers that still have the other library, run by a worker here that has its stand-in.

Run by ``test_peers.py``, in a process of their own.
"""

import os
import subprocess
from collections.abc import Callable
from contextlib import closing
from hashlib import md5
from importlib import import_module
from typing import Any

import pytest
import redis

from benchmarks.peers import surroundings
from celery_redislock.testing import hold
from tests.integration.test_peers import BASES, PACKAGES
from tests.pages import ROOT
from tests.peers.stage import PATIENCE, Stage, first
from tests.servers import EmbeddedServer

#: That a task should move on, and what Celery calls of redis-py.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

#: Publishes a call with the released library, and prints its id, or that it was refused.
PUBLISH = """
import sys
from importlib import import_module
from tests.peers.stage import Stage
module, base, url, name = sys.argv[1:]
task = Stage(url, {}, name).task(getattr(import_module(module), base))
try:
    print(task.delay(7).id)
except Exception as error:
    print(type(error).__name__)
"""


def stand_in(table: str) -> Any:
    """The class that stands for the library's."""
    return getattr(import_module(f"celery_redislock.compat.{table}"), BASES[table])


def their_key(table: str, stage: Stage) -> str:
    """Where the library locks the call ``(7,)``."""
    if table == "celery_once":
        return f"qo_{stage.name}_a-7"
    digest = md5(f"{stage.name}[7]{{}}".encode(), usedforsecurity=False)
    return f"{stage.name}-lock-{digest.hexdigest()}"


def fail(a: int) -> int:
    raise ValueError(a)


def retry(task: Any, a: int) -> int:
    if not task.request.retries:
        raise task.retry(countdown=0)
    return a


@pytest.mark.parametrize("table", PACKAGES)
@pytest.mark.parametrize(
    ("body", "state"),
    [(first, "SUCCESS"), (fail, "FAILURE"), (retry, "SUCCESS")],
    ids=["ok", "fails", "retry"],
)
def test_a_message_of_a_publisher_of_the_library_leaves_no_lock_of_it(
    redis_url: str, celery_url: str, table: str, body: Callable[..., int], state: str
) -> None:
    """Workers are deployed first. Nobody else would delete it, and each further call would be refused."""
    with Stage(celery_url, {}) as stage, closing(redis.Redis.from_url(redis_url)) as client:
        stage.task(stand_in(table), body, bind=body is retry)
        key = their_key(table, stage)
        client.set(key, "theirs", ex=PATIENCE)

        states = stage.run(stage.app.send_task(stage.name, (7,)))

        assert (states, client.get(key)) == ([state], None)


@pytest.mark.parametrize("table", PACKAGES)
def test_so_does_one_that_is_skipped_and_one_of_ours_leaves_what_another_holds(
    redis_url: str, celery_url: str, table: str
) -> None:
    """A message with a claim has taken no lock of the library's: the one that is there is another's."""
    with Stage(celery_url, {}) as stage, closing(redis.Redis.from_url(redis_url)) as client:
        task = stage.task(stand_in(table))
        key = their_key(table, stage)
        client.set(key, "theirs", ex=PATIENCE)
        with hold(task, 7):
            states = stage.run(stage.app.send_task(stage.name, (7,)))

        assert (states, client.get(key)) == (["REVOKED"], None)
        client.set(key, "another's", ex=PATIENCE)
        states = stage.run(task.delay(7))
        assert (states, client.get(key)) == (["SUCCESS"], b"another's")


def test_where_a_lock_ends_before_the_run_so_does_the_librarys(redis_url: str, celery_url: str) -> None:
    """Its publishers may queue the next call while the body runs."""
    with Stage(celery_url, {}) as stage, closing(redis.Redis.from_url(redis_url)) as client:
        stage.task(stand_in("celery_once"), stage.waiting, once={"unlock_before_run": True})
        key = their_key("celery_once", stage)
        client.set(key, "theirs", ex=PATIENCE)
        stage.app.send_task(stage.name, (7,))
        with stage.running():
            assert client.get(key) is None
            client.set(key, "the next one's", ex=PATIENCE)

        assert client.get(key) == b"the next one's"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("table", PACKAGES)
def test_a_publisher_of_the_library_may_publish_again_after_a_run_here(
    table: str, tcp_server: EmbeddedServer
) -> None:
    """With the library itself, by the path of its Python."""

    def publish(name: str) -> str:
        command = [os.environ["RELEASED"], "-c", PUBLISH, table, BASES[table], tcp_server.url, name]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=60, cwd=ROOT, env=surroundings({})
        )
        return done.stdout.strip()

    with Stage(tcp_server.url, {}) as stage:
        stage.task(stand_in(table))
        published = publish(stage.name)
        refused = publish(stage.name)
        states = stage.run(stage.app.AsyncResult(published))
        again = publish(stage.name)

    assert (states, refused) == (["SUCCESS"], {"celery_once": "AlreadyQueued"}.get(table, published))
    assert again not in {published, refused}
