"""Facts that tests wait for, always with a deadline."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def wait_until(fact: Callable[[], bool], timeout: float) -> bool:
    """Return True as soon as ``fact()`` does, False if it did not within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def lives(pid: int) -> bool:
    """Whether a process, or a thread of it, has not ended: a zombie has, which an orphan may stay long."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    try:
        if not stat.exists():
            return True
        fields = stat.read_text().rpartition(")")[2].split()
        return fields[0] != "Z" or int(fields[17]) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> list[int]:
    """Return a process's children, their children and so on; Linux only."""
    children = _children(pid)
    return children + [each for child in children for each in descendants(child)]


def _children(pid: int) -> list[int]:
    children: list[int] = []
    # The process, or one of its threads, may have ended meanwhile.
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                children += [int(child) for child in (task / "children").read_text().split()]
    return children
