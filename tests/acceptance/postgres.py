"""A PostgreSQL server of one's own, in a directory of its own; it listens on a unix socket only."""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.processes import run_check, started, until

#: Seconds it may take to begin.
_STARTING = 60.0
#: It refuses to be run by root. The signal: a change of user makes the kernel forget the one set before.
_AS_NOBODY = ["setpriv", "--reuid=nobody", "--clear-groups", "--pdeathsig=TERM"] if os.getuid() == 0 else []


@contextmanager
def postgres() -> Iterator[str]:
    """Run a server while the block runs, and yield the URL of a database; else skip the test."""
    programs = _programs()
    if programs is None:
        pytest.skip("no initdb found: apt-get install postgresql")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed: pip install 'psycopg[binary]'")
    # A short name, for a socket's path.
    with tempfile.TemporaryDirectory(prefix="pg-") as directory:
        if _AS_NOBODY:
            shutil.chown(directory, "nobody")
        with _running(programs, Path(directory)):
            yield f"postgresql://shop@/postgres?host={directory}"


@contextmanager
def _running(programs: Path, directory: Path) -> Iterator[None]:
    data = str(directory / "data")
    options = ["--auth=trust", "--username=shop", "--no-sync", "--encoding=UTF8", "--no-locale"]
    done = run_check([*_AS_NOBODY, str(programs / "initdb"), f"--pgdata={data}", *options], {})
    assert done.returncode == 0, done.stdout + done.stderr
    command = [str(programs / "postgres"), "-D", data, "-k", str(directory), "-c", "listen_addresses="]
    with started([*_AS_NOBODY, *command, "-c", "fsync=off"], {}, directory) as server:
        until(lambda: "ready to accept connections" in server.log, _STARTING, server, "PostgreSQL is ready")
        yield


def _programs() -> Path | None:
    """Return where the server's programs are; Debian keeps them off the PATH."""
    on_path = shutil.which("initdb")
    found = [Path(on_path)] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None
