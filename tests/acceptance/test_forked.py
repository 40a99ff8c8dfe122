"""Workers and beats that are forked start as by themselves, and end as a test is told."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.forked import Forked, can_be_forked
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.processes import Process
from tests.acceptance.terms import PATIENCE

COMMAND = [sys.executable, "-m", "celery", "-A", "tests.acceptance.birth", "report"]


def facts_of(folder: Path, **environment: str) -> tuple[type, dict[str, Any]]:
    """What a process finds, and of which class its handle is."""
    process = Process(
        COMMAND, {"PROJECT_PLAN": "{}", "C_FORCE_ROOT": "1", **environment}, folder, stdin=subprocess.PIPE
    )
    try:
        assert process.process.wait(PATIENCE) == 3, process.log
        assert not process.runs
        [said] = [line for line in process.log.splitlines() if line.startswith("{")]
        return type(process.process), json.loads(said)
    finally:
        process.end()


def test_a_forked_process_finds_what_one_by_itself_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what others have written is imported: what a module of ours does then, each process does."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # the first one from here
    monkeypatch.setenv("GONE", "later")
    assert facts_of(tmp_path)[1]["environ"]["GONE"] == "later"
    monkeypatch.delenv("GONE")
    forked, found = facts_of(tmp_path)
    _, another = facts_of(tmp_path)
    by_itself, expected = facts_of(tmp_path, ANY="thing")
    assert (forked, by_itself) == (Forked, subprocess.Popen)
    assert expected["environ"].pop("ANY") == "thing"
    assert len({facts.pop("chance") for facts in (found, another, expected)}) == 3
    assert found == another == expected


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_pool_of_greenlets_is_not_forked(pool: str) -> None:
    """It changes modules before any other one is imported."""
    command = [*COMMAND[:-1], "worker", "-P"]
    assert can_be_forked([*command, "prefork"], {})
    assert not can_be_forked([*command, pool], {})


def test_its_end_is_told_as_that_of_any_process(new_project: Callable[..., Project]) -> None:
    """A signal ends it with a negative status; one that comes later harms nobody. Who tells it ends too."""
    project = new_project()
    process = project.start_worker("solo").process
    assert isinstance(process, Forked)
    assert process.poll() is None
    teller = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1]
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.kill()
    assert process.wait(PATIENCE) == process.poll() == process.returncode == -signal.SIGKILL
    process.kill()
    wait_until(lambda: not Path(f"/proc/{teller}").exists(), PATIENCE, "it is no zombie")
