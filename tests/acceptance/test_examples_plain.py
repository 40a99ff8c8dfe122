"""The examples that need no worker's command line, run as their pages say: right, tidy, and able to fail."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.acceptance.harness import PATIENCE
from tests.facts import wait_until
from tests.pages import PAGES, ROOT
from tests.tiers import slow

linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")

#: What each example imports beside this package and Celery.
NEEDS: dict[str, tuple[str, ...]] = {
    "plain_lock": (),
    "testing": (),
    "django_project": ("django",),
    "fastapi_app": ("fastapi", "uvicorn"),
}
#: How many processes each has when it has all: itself, shim and server, and those of its story.
PROCESSES = {"plain_lock": 3 + 4, "testing": 3, "django_project": 3 + 2, "fastapi_app": 3 + 3}
#: Those that take longer than ten seconds.
SLOW = {"plain_lock", "django_project"}
#: How each says that all was right, if not by "as expected".
SAYS_SO = {"testing": "17 passed in "}


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of an example."""

    status: int
    said: str
    most_processes: int
    left: list[int]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where an example has its temporary files; a short name, for a socket's path."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture(params=[slow(name) if name in SLOW else name for name in NEEDS])
def example(request: pytest.FixtureRequest) -> str:
    """Each example whose packages are there."""
    name = str(request.param)
    needed(name)
    return name


def needed(name: str) -> None:
    """Skip the test where a package of the example is missing; with ``CI=true`` it fails."""
    for package in NEEDS[name]:
        if importlib.util.find_spec(package) is None and not os.environ.get("CI"):
            pytest.skip(f"examples/{name} needs {package}: pip install '.[test]'")


def command_of(name: str) -> str:
    """The first line of code in its page."""
    found = re.search(r"^```sh\n(.+)\n", PAGES[f"examples/{name}/README.md"], re.MULTILINE)
    assert found
    return found[1]


def start(name: str, temporary: Path, output: IO[str] | int, **environment: str) -> "subprocess.Popen[bytes]":
    """Type the command of an example's page, at the top of the checkout."""
    program, *arguments = shlex.split(command_of(name))
    assert program == "python"
    inherited = {k: v for k, v in os.environ.items() if k not in {"REDIS_URL", "REDISLOCK_ENABLED"}}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**inherited, **environment, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )


def run(name: str, temporary: Path, **environment: str) -> Seen:
    """Start an example and wait for its end."""
    said = temporary.parent / f"{temporary.name}.said"
    try:
        with said.open("w") as output:
            process = start(name, temporary, output, **environment)
            most = _watch(process, temporary)
        return Seen(process.wait(), said.read_text(), most, _processes_of(temporary))
    finally:
        said.unlink()


def _watch(process: "subprocess.Popen[bytes]", temporary: Path) -> int:
    """Wait for its end; return how many processes it had at most, itself included."""
    most = 0

    def is_over() -> bool:
        nonlocal most
        most = max(most, len(_processes_of(temporary)))
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.3)
        return process.returncode is not None

    if not wait_until(is_over, 2 * PATIENCE):
        process.kill()
        process.wait()
        pytest.fail("the example does not end")
    return most


def _processes_of(temporary: Path) -> list[int]:
    """All that work in this directory for temporary files: an example and its descendants.

    Its servers tell by their command line: they write over their environment.
    """
    mark, found = str(temporary).encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if any(mark in (process / about).read_bytes() for about in ("environ", "cmdline")):
                found.append(int(process.name))
    return found


@linux
def test_an_example_sees_what_its_page_says_and_leaves_nothing(example: str, temporary: Path) -> None:
    seen = run(example, temporary)

    assert seen.status == 0, seen.said
    assert SAYS_SO.get(example, "as expected: ") in seen.said
    assert "NOT AS EXPECTED" not in seen.said
    assert "Traceback" not in seen.said
    # At least itself, the server and the server's shim: they are found while they live.
    assert seen.most_processes >= 3
    assert wait_until(lambda: _processes_of(temporary) == [] and not [*temporary.iterdir()], PATIENCE), (
        _processes_of(temporary),
        [*temporary.iterdir()],
    )


@linux
@pytest.mark.parametrize(("name", "processes"), PROCESSES.items())
def test_kill_9_of_an_example_ends_all_it_started(name: str, processes: int, temporary: Path) -> None:
    """The kernel closes its pipes: the server's shim, workers and holders of locks see their end."""
    needed(name)
    process = start(name, temporary, subprocess.DEVNULL)
    try:
        assert wait_until(lambda: len(_processes_of(temporary)) >= processes, PATIENCE)
    finally:
        process.kill()
        process.wait()

    assert wait_until(lambda: _processes_of(temporary) == [], PATIENCE), _processes_of(temporary)


@pytest.mark.parametrize("name", NEEDS)
def test_a_page_has_its_command_and_what_to_look_at(name: str) -> None:
    page = PAGES[f"examples/{name}/README.md"]

    assert command_of(name) in {f"python -m examples.{name}", f"python -m pytest examples/{name}"}
    assert "## What to look at" in page


@pytest.mark.parametrize(
    "name",
    ["testing", slow("django_project"), slow("fastapi_app")],
)
def test_an_example_without_locks_says_so_and_exits_1(name: str, temporary: Path) -> None:
    """What is shown as seen was seen: with locking switched off, the same example says so."""
    needed(name)

    seen = run(name, temporary, REDISLOCK_ENABLED="0")

    assert seen.status == 1, seen.said
    assert "NOT AS EXPECTED" in seen.said or "7 failed, 10 passed" in seen.said
    # What needs no lock is right all the same.
    assert " as expected: " in seen.said or " passed" in seen.said
