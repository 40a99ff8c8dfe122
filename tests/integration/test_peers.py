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

#: The tables, and the package that each is about.
PACKAGES = {"celery_once": "celery-once==3.0.1", "celery_singleton": "celery-singleton==0.3.1"}


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
    try:
        python = environment(tmp_path / "environment", PACKAGES[table])
    except subprocess.CalledProcessError:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"pip cannot install {PACKAGES[table]} here: it needs a package index")

    seen = played(python, table, table, tcp_server.url)

    assert seen == {case.name: case.there for case in cases}
