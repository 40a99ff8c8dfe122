"""What is told of the machine that the tests run on, and when a test is run again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.standstill import LONG, Meter

#: Somebody's tests. The machine stands still for their meter where they stop it.
TESTS = """
import os, signal, time
from pathlib import Path
from tests.again import _METER

here = Path(__file__).parent


def attempts(name):
    with (here / name).open("a") as file:
        file.write("x")
    return (here / name).stat().st_size


def stand_still(config):
    pid = config.stash[_METER].pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.4)
    os.kill(pid, signal.SIGCONT)


def test_good(pytestconfig):
    stand_still(pytestconfig)


def test_hit(pytestconfig):
    if attempts("hit") == 1:
        stand_still(pytestconfig)
        assert not "because of the machine"


def test_bad(pytestconfig):
    stand_still(pytestconfig)
    assert attempts("bad") == 3


def test_unlucky():
    assert attempts("unlucky") == 2


def test_hanging(pytestconfig):
    attempts("hanging")
    stand_still(pytestconfig)
    time.sleep(60)
"""


@pytest.fixture
def meter() -> Iterator[Meter]:
    with closing(Meter()) as meter:
        yield meter


def test_a_standstill_is_measured(meter: Meter) -> None:
    """As long as it was, and only for those who ask about a time in which it was."""
    began = time.monotonic()
    before = meter.since(began)
    os.kill(meter.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    time.sleep(2 * LONG)
    woken = time.monotonic()
    os.kill(meter.pid, signal.SIGCONT)
    measured = meter.since(began)

    assert measured - before >= woken - stopped
    assert meter.since(time.monotonic()) < measured


def test_computing_is_no_standstill(meter: Meter) -> None:
    """Four processes for each processor, for twenty looks at the clock: load excuses nothing."""
    program = "import time; end = time.monotonic() + 1.0\nwhile time.monotonic() < end: pass"
    began = time.monotonic()
    busy = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(4 * (os.cpu_count() or 1))]

    assert [each.wait(60) for each in busy] == [0] * len(busy)
    assert not meter.since(began)


@pytest.mark.parametrize("jobs", [0, 2])
def test_only_what_failed_in_a_standstill_is_run_again_and_only_once(tmp_path: Path, jobs: int) -> None:
    """A failure that nothing excuses stays one; one that comes back as well."""
    (tmp_path / "test_theirs.py").write_text(TESTS)
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=5", "-n", str(jobs), tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root), "PYTEST_PLUGINS": "tests.again"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    attempts = {name: (tmp_path / name).stat().st_size for name in ("hit", "bad", "unlucky", "hanging")}

    assert attempts == {"hit": 2, "bad": 2, "unlucky": 1, "hanging": 2}, run.stdout
    assert "3 failed, 2 passed, 3 run again" in run.stdout
    assert run.returncode == 1
    assert "never stood still for 0.25 s during this attempt" in run.stdout
    told = run.stdout.partition("failed while the machine stood still, and run again")[2]
    assert 'assert not "because of the machine"' in told
    assert "It stood still for 0." in told


@pytest.mark.parametrize("most", [0, 1])
def test_more_than_a_few_that_were_run_again_are_a_failure(tmp_path: Path, most: int) -> None:
    """Nothing can be judged on a machine that stands still all the time."""
    (tmp_path / "test_theirs.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(f"from tests import again\n\nagain.MOST = {most}\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "hit", tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTEST_PLUGINS": "tests.again"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert "1 passed, 4 deselected, 1 run again" in run.stdout
    assert run.returncode == (0 if most else 1)
    assert ("this machine cannot judge" in run.stdout) == (not most)
