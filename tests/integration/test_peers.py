"""Stand-ins for other libraries: one table of cases, played with each and with what it stands for."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.peers import environment, surroundings
from tests.pages import ROOT
from tests.servers import EmbeddedServer

#: That a task should move on, and what Celery calls of redis-py.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

#: The tables, and the package that each is about.
PACKAGES = {"celery_once": "celery-once==3.0.1", "celery_singleton": "celery-singleton==0.3.1"}

#: Their classes of tasks.
BASES = {"celery_once": "QueueOnce", "celery_singleton": "Singleton"}

#: Tests of what a worker here does with their messages.
OLD_PUBLISHERS = "tests/integration/old_publishers.py"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


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
def test_the_library_does_what_the_table_says(table: str, tcp_server: EmbeddedServer, tmp_path: Path) -> None:
    """It is the library's own behaviour that the stand-in is compared with, in an environment of its own.

    On a port: celery-singleton does not know a unix socket's URL as Celery writes it.
    """
    cases = import_module(f"tests.peers.{table}").CASES
    python = released(table, tmp_path)
    seen = played(python, table, table, tcp_server.url)
    assert seen == {case.name: case.there for case in cases}


@pytest.mark.slow
def test_stand_ins_end_the_locks_of_old_publishers() -> None:
    """In a process of its own: a worker in it changes logging and the default app, for good."""
    command = [*PYTEST, "-m", "not slow", OLD_PUBLISHERS]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("table", PACKAGES)
def test_the_librarys_publisher_may_publish_again_after_a_run_here(table: str, tmp_path: Path) -> None:
    """During a deploy, with the library itself: its own key is found, and deleted."""
    test = f"{OLD_PUBLISHERS}::test_a_publisher_of_the_library_may_publish_again_after_a_run_here[{table}]"
    done = subprocess.run(
        [*PYTEST, "-m", "slow", test],
        check=False, capture_output=True, text=True, timeout=280, cwd=ROOT,
        env=surroundings({"RELEASED": str(released(table, tmp_path))}),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
