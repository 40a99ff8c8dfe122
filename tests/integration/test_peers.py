"""Stand-ins for other libraries: one table of cases, played with each and with what it stands for."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from hashlib import md5
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import redis

from benchmarks.peers import environment, surroundings
from celery_redislock.testing import hold
from tests.pages import ROOT
from tests.peers.stage import PATIENCE, Stage, first
from tests.servers import EmbeddedServer

#: That a task should move on, and what Celery calls of redis-py.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

#: The tables, and the package that each is about.
PACKAGES = {"celery_once": "celery-once==3.0.1", "celery_singleton": "celery-singleton==0.3.1"}

#: Their classes of tasks.
BASES = {"celery_once": "QueueOnce", "celery_singleton": "Singleton"}

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


def played(python: str | Path, table: str, module: str, url: str) -> dict[str, object]:
    """Return what came of each case, by name."""
    command = [str(python), "-m", "tests.peers", table, module, url]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=280, cwd=ROOT, env=surroundings({})
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("table", PACKAGES)
def test_a_stand_in_does_what_the_table_says(table: str, celery_url: str) -> None:
    """Tasks of the other library go on as they are, but for what the table says of "here"."""
    cases = import_module(f"tests.peers.{table}").CASES

    seen = played(sys.executable, table, f"celery_redislock.compat.{table}", celery_url)

    assert seen == {case.name: case.there if case.here is ... else case.here for case in cases}


def released(table: str, folder: Path) -> Path:
    """Return the Python of an environment that has the released library."""
    try:
        return environment(folder / "environment", PACKAGES[table])
    except subprocess.CalledProcessError:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"pip cannot install {PACKAGES[table]} here: it needs a package index")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("table", PACKAGES)
def test_the_released_library_does_what_the_table_says(
    table: str, tcp_server: EmbeddedServer, tmp_path: Path
) -> None:
    """It is the library's own behaviour that the stand-in is compared with, in an environment of its own.

    On a port: celery-singleton does not know a unix socket's URL as Celery writes it.
    """
    cases = import_module(f"tests.peers.{table}").CASES
    python = released(table, tmp_path)

    seen = played(python, table, table, tcp_server.url)

    assert seen == {case.name: case.there for case in cases}


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
def test_the_released_librarys_publisher_may_publish_again_after_a_run_here(
    table: str, tcp_server: EmbeddedServer, tmp_path: Path
) -> None:
    """During a deploy, with the library itself: its own key is found, and deleted."""
    python = released(table, tmp_path)

    def publish(name: str) -> str:
        command = [str(python), "-c", PUBLISH, table, BASES[table], tcp_server.url, name]
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
