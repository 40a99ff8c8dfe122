"""The examples, run as their READMEs say: each sees what it expects, or says so, and leaves nothing."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.harness import PATIENCE
from tests.acceptance.postgres import postgres
from tests.facts import descendants, lives, wait_until
from tests.pages import PAGES, ROOT

slow = pytest.mark.slow

#: Every example.
EXAMPLES = ["quickstart", "per_resource", "on_conflict", "beat", "long_task", "canvas"]
#: Those that take longer than ten seconds.
SLOW = {"quickstart", "beat", "long_task", "canvas"}

COMMAND = re.compile(r"^```sh\n(?:pip .*\n)*python -m (examples\.\w+)\n```$", re.MULTILINE)
#: Seconds an example may take on a busy machine; each wait in it has a deadline of its own.
LONGEST = 110.0


class Example:
    """A run of an example, and every process it has started."""

    def __init__(self, name: str, temporary: Path, **environment: str) -> None:
        env = {k: v for k, v in os.environ.items() if k not in {"REDISLOCK_ENABLED", "EXAMPLE_DATABASE_URL"}}
        self.pids: set[int] = set()
        self.process = subprocess.Popen(
            [sys.executable, "-m", module_of(name)],
            cwd=ROOT,
            env={**env, "PYTHONUNBUFFERED": "1", "TMPDIR": str(temporary), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._looking = threading.Thread(target=self._look_for_processes)
        self._looking.start()

    def wait_for(self, words: str) -> None:
        """Read its output up to a line with these words."""
        assert self.process.stdout is not None
        assert any(words in line for line in self.process.stdout), words

    def end(self) -> tuple[int, str, str]:
        """Wait for its end; return its exit status, what it has said since, and what is an error."""
        try:
            out, err = self.process.communicate(timeout=LONGEST)
        finally:
            self.process.kill()
            self.process.wait()
            self._looking.join()
        return self.process.returncode, out, err

    def processes_left(self) -> set[int]:
        """Return those that do not end; empty without /proc."""
        wait_until(lambda: not any(map(lives, self.pids)), PATIENCE)
        return set(filter(lives, self.pids))

    def _look_for_processes(self) -> None:
        while self.process.poll() is None:
            self.pids.update(descendants(self.process.pid))
            threading.Event().wait(0.05)


def module_of(name: str) -> str:
    """Return what the README's command runs."""
    (module,) = COMMAND.findall(PAGES[f"examples/{name}/README.md"])
    return str(module)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where an example has its temporary files; a short name, for a socket's path."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.mark.parametrize("name", [pytest.param(n, marks=slow if n in SLOW else ()) for n in EXAMPLES])
def test_an_example_sees_what_it_expects_and_leaves_nothing(name: str, temporary: Path) -> None:
    example = Example(name, temporary)
    status, out, err = example.end()

    assert status == 0, out + err
    assert "  as expected: " in out
    assert "NOT AS EXPECTED" not in out
    assert err == ""
    # Shim, server, and at least a worker's main process and one of its pool.
    assert sys.platform != "linux" or len(example.pids) >= 4
    assert example.processes_left() == set()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("name", ["per_resource", pytest.param("canvas", marks=slow)])
def test_without_locks_an_example_says_so_and_exits_1(name: str, temporary: Path) -> None:
    """What is shown as seen was seen: with locking switched off, the same example tells another story."""
    example = Example(name, temporary, REDISLOCK_ENABLED="0")
    status, out, err = example.end()

    assert status == 1, out + err
    assert "NOT AS EXPECTED" in out
    assert example.processes_left() == set()
    assert list(temporary.iterdir()) == []


@slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds descendants in /proc")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_an_example_that_is_stopped_takes_its_processes_with_it(
    temporary: Path, signum: signal.Signals
) -> None:
    example = Example("beat", temporary)
    example.wait_for("Waiting until both have ticked")
    wait_until(lambda: len(example.pids) >= 9, PATIENCE)
    example.process.send_signal(signum)
    status, _, _ = example.end()

    assert status == -signum
    assert len(example.pids) >= 9  # shim, server, the worker and its pool of four, two beats
    assert example.processes_left() == set()
    assert signum == signal.SIGKILL or list(temporary.iterdir()) == []


@slow
def test_fences_work_in_postgresql_too(temporary: Path) -> None:
    with postgres() as url:
        status, out, err = Example("per_resource", temporary, EXAMPLE_DATABASE_URL=url).end()

    assert status == 0, out + err
    assert "The accounts are in postgresql." in out
    assert "as expected: its write changed no row" in out


def test_every_example_is_in_the_index_and_has_a_test() -> None:
    names = {path.parent.name for path in (ROOT / "examples").glob("*/__main__.py")}
    index = set(re.findall(r"python -m examples\.(\w+)` \|", PAGES["examples/README.md"]))
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))

    assert set(EXAMPLES) <= names <= index
    assert {name for name in names if f'"{name}"' not in tests} == set()
    assert all(module_of(name) == f"examples.{name}" for name in EXAMPLES)
