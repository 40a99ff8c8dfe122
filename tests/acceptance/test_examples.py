"""The examples, run as their READMEs say: each sees what it expects, or says so, and leaves nothing."""

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.processes import run_check, started, until
from tests.acceptance.terms import PATIENCE
from tests.facts import wait_until
from tests.pages import PAGES, ROOT
from tests.tiers import slow

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


class Example(NamedTuple):
    """The packages it needs, how many processes it has with shim and server, what it says if all was right.

    Slow ones are run by ``make slow``; of the others one has a worker, and one a test run.
    """

    needs: tuple[str, ...] = ()
    processes: int = 4
    is_slow: bool = False
    says: str = "as expected: "


EXAMPLES = {
    "demo": Example(is_slow=True, processes=12, says="11 of 11 promises kept"),
    "quickstart": Example(is_slow=True),
    "per_resource": Example(is_slow=True),
    "in_line": Example(),
    "flow": Example(is_slow=True),
    "on_conflict": Example(is_slow=True),
    "beat": Example(is_slow=True, processes=9),
    "long_task": Example(is_slow=True),
    "canvas": Example(is_slow=True),
    "locks": Example(is_slow=True, processes=7),
    "testing": Example(processes=3, says="17 passed in "),
    "django_project": Example(
        ("django",), 5, is_slow=True, says="INFO/MainProcess] skipped examples.django_"
    ),
    "flask_app": Example(("flask",), 6, is_slow=True),
    "fastapi_app": Example(("fastapi", "uvicorn", "a2wsgi"), 6, is_slow=True),
}
#: The last one of an example's commands runs it.
COMMAND = re.compile(r"^```sh\n(?:pip .*\n)*(python -m (?:examples|pytest).*)\n", re.MULTILINE)
#: Seconds an example may take on a busy machine; each wait in it has a deadline of its own.
LONGEST = 110.0


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where an example has its temporary files; a short name, for a socket's path."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def start(name: str, temporary: Path, **environment: str) -> "subprocess.Popen[str]":
    """Type the command of an example's page; skip the test, or fail it in CI, where a package is missing."""
    for package in EXAMPLES[name].needs:
        if importlib.util.find_spec(package) is None and not os.environ.get("CI"):
            pytest.skip(f"examples/{name} needs {package}: pip install --group test")
    (command,) = COMMAND.findall(PAGES[f"examples/{name}/README.md"])[:1]
    unwanted = {"REDIS_URL", "REDISLOCK_ENABLED", "EXAMPLE_DATABASE_URL"}
    inherited = {k: v for k, v in os.environ.items() if k not in unwanted}
    return subprocess.Popen(
        [sys.executable, *shlex.split(command)[1:]],
        cwd=ROOT,
        env={**inherited, "PYTHONUNBUFFERED": "1", **environment, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: "subprocess.Popen[str]") -> str:
    """Wait for its end; return what it has written."""
    try:
        return process.communicate(timeout=LONGEST)[0]
    finally:
        process.kill()
        process.wait()


def processes_of(temporary: Path) -> list[int]:
    """Return all that work in this directory for temporary files: an example and its descendants.

    Its servers are known by their command line: they write over their environment.
    """
    mark, found = str(temporary).encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if any(mark in (process / about).read_bytes() for about in ("environ", "cmdline")):
                found.append(int(process.name))
    return found


def assert_nothing_is_left(temporary: Path, *, files: bool = False) -> None:
    assert wait_until(lambda: processes_of(temporary) == [], PATIENCE), processes_of(temporary)
    assert files or [*temporary.iterdir()] == []


@pytest.mark.parametrize("name", [slow(name) if EXAMPLES[name].is_slow else name for name in EXAMPLES])
def test_an_example_sees_what_it_expects_and_leaves_nothing(name: str, temporary: Path) -> None:
    process = start(name, temporary)
    said = end(process)
    assert process.returncode == 0, said
    assert EXAMPLES[name].says in said
    assert "NOT AS EXPECTED" not in said
    assert "Traceback" not in said
    assert_nothing_is_left(temporary)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["in_line", "per_resource", "flow", "testing", "demo", "beat", "canvas", "django_project"]
)
def test_without_locks_an_example_says_so_and_exits_1(name: str, temporary: Path) -> None:
    """What is shown as seen was seen: with locking switched off, the same example shows something else."""
    process = start(name, temporary, REDISLOCK_ENABLED="0")
    said = end(process)
    assert process.returncode == 1, said
    assert any(words in said for words in ("NOT AS EXPECTED", "BROKEN  1.", "7 failed, 10 passed")), said
    assert_nothing_is_left(temporary)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "signum"),
    [
        *(("demo", signum) for signum in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)),
        *(("beat", signum) for signum in (signal.SIGKILL, signal.SIGINT)),
        *((name, signal.SIGKILL) for name in ("in_line", "locks", "django_project", "fastapi_app")),
    ],
)
def test_a_stopped_example_takes_its_processes_with_it(
    name: str, temporary: Path, signum: signal.Signals
) -> None:
    """The kernel closes its pipes: the server's shim, workers and holders of locks see their end."""
    process = start(name, temporary)
    try:
        assert wait_until(lambda: len(processes_of(temporary)) >= EXAMPLES[name].processes, PATIENCE)
        process.send_signal(signum)
    finally:
        end(process)
    assert_nothing_is_left(temporary, files=signum == signal.SIGKILL)


@pytest.fixture
def postgres() -> Iterator[str]:
    """The URL of a database, on a PostgreSQL server of one's own that listens on a unix socket only."""
    on_path = shutil.which("initdb")
    # Debian keeps its programs off the PATH.
    initdb = [on_path] if on_path else sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")))
    if not initdb:
        pytest.skip("no initdb found: apt-get install postgresql")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed: pip install 'psycopg[binary]'")
    # It refuses to be run by root. The signal: a change of user makes the kernel forget the one set before.
    is_root = os.getuid() == 0
    as_user = ["setpriv", "--reuid=nobody", "--clear-groups", "--pdeathsig=TERM"] if is_root else []
    # A short name, for a socket's path.
    with tempfile.TemporaryDirectory(prefix="pg-") as directory:
        if is_root:
            shutil.chown(directory, "nobody")
        options = ["--auth=trust", "--username=shop", "--no-sync", "--encoding=UTF8", "--no-locale"]
        done = run_check([*as_user, initdb[-1], f"--pgdata={directory}/data", *options], {})
        assert done.returncode == 0, done.stdout + done.stderr
        command = [str(Path(initdb[-1]).with_name("postgres")), "-D", f"{directory}/data", "-k", directory]
        command += ["-c", "listen_addresses=", "-c", "fsync=off"]
        with started([*as_user, *command], {}, Path(directory)) as server:
            until(lambda: "ready to accept connections" in server.log, PATIENCE, server, "it is ready")
            yield f"postgresql://shop@/postgres?host={directory}"


@pytest.mark.slow
def test_fences_work_in_postgresql_too(temporary: Path, postgres: str) -> None:
    process = start("per_resource", temporary, EXAMPLE_DATABASE_URL=postgres)
    said = end(process)
    assert process.returncode == 0, said
    assert "The accounts are in postgresql." in said
    assert "as expected: its write changed no row" in said
