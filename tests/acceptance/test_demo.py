"""The demo, run as a user runs it: it keeps its promises, says when one is broken, and leaves nothing."""

import re
import signal
import sys
from pathlib import Path

import pytest

from tests.acceptance.test_examples import Example, temporary
from tests.facts import wait_until

__all__ = ["temporary"]  # a fixture

linux = pytest.mark.skipif(sys.platform != "linux", reason="finds descendants in /proc")


@pytest.mark.slow
def test_every_promise_is_kept_and_nothing_is_left_behind(temporary: Path) -> None:
    demo = Example("demo", temporary)
    status, out, err = demo.end()

    assert status == 0, out + err
    assert len(re.findall(r"^kept    \d\.", out, re.MULTILINE)) == 6
    assert "6 of 6 promises kept" in out
    assert err == ""
    # Shim, server, the worker's main process and its pool.
    assert sys.platform != "linux" or len(demo.pids) >= 7
    assert demo.processes_left() == set()
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_without_locks_it_reports_broken_promises_and_exits_1(temporary: Path) -> None:
    """What is shown as seen was seen: with locking switched off, the same demo says so."""
    status, out, _ = Example("demo", temporary, REDISLOCK_ENABLED="0").end()

    assert status == 1
    for number in range(1, 6):
        assert re.search(rf"^BROKEN  {number}\.", out, re.MULTILINE), out
    assert "seen      runs: 50; duplicates: 0; different task ids: 50" in out


@linux
@pytest.mark.parametrize(
    ("signum", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_a_demo_that_is_stopped_leaves_nothing(temporary: Path, signum: signal.Signals, status: int) -> None:
    """The kernel closes both pipes: the server's shim and the worker see their end."""
    demo = Example("demo", temporary)
    demo.wait_for("another call after 0.5 s")
    wait_until(lambda: len(demo.pids) >= 7, 10.0)
    demo.process.send_signal(signum)

    assert demo.end()[0] == status
    assert len(demo.pids) >= 7
    assert demo.processes_left() == set()
    assert wait_until(lambda: not [*temporary.iterdir()], 10.0)
