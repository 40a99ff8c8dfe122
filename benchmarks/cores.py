"""Where processes run, and how much CPU they take.

A trip between two processes costs several times more across two cores than
within one, where no idle core has to be woken. A scheduler that is left alone
moves between the two during one run; so the benchmark decides.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Place", "children", "cpu", "pin", "places"]


@dataclass(frozen=True, slots=True)
class Place:
    """Which cores the processes may use; none are named where nothing can be pinned.

    Attributes:
        name: in the tables.
        client: of the process that publishes.
        server: of the servers, and of the proxy before one.
        worker: of the worker's main process and its children.
    """

    name: str
    client: Collection[int] = ()
    server: Collection[int] = ()
    worker: Collection[int] = ()


def places() -> list[Place]:
    """Return where to measure: on one core, and on two if this process may use as many.

    Call it before anything is pinned.
    """
    if not hasattr(os, "sched_setaffinity"):
        return [Place("not pinned")]
    first, *more = sorted(os.sched_getaffinity(0))
    one = Place("one core", {first}, {first}, {first})
    return [one, *(Place("two cores", {first}, {second}, {first, second}) for second in more[:1])]


def pin(cores: Collection[int], *pids: int) -> None:
    """Let these processes, with the threads they have, use these cores only; what they start inherits it."""
    if not cores:
        return
    for pid in pids:
        for thread in _threads(pid):
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread.name), cores)


def children(pid: int) -> list[int]:
    """Return the children of a process; none where the system does not tell."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def cpu(*pids: int) -> float | None:
    """Return the CPU seconds of these processes' threads; ``None`` where the system does not tell."""
    if not Path("/proc/self/schedstat").exists():
        return None
    return sum(_run_time(thread) for pid in pids for thread in _threads(pid)) / 1e9


def _threads(pid: int) -> Iterator[Path]:
    return Path(f"/proc/{pid}/task").iterdir()


def _run_time(thread: Path) -> int:
    try:
        return int((thread / "schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):  # it has ended since it was listed
        return 0
