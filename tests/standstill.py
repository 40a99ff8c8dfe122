"""How long the machine stood still: what a host that gives its time to others does to every clock of a test.

A process of its own, with a thread on each processor, sleeps for moments and
notes when it was woken late. Load does not make it late (one that sleeps is
woken before those that compute); a processor that the host took away does, and
memory that is being reclaimed.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

__all__ = ["LONG", "Meter"]

#: Seconds between two looks at the clock.
TICK = 0.05
#: Seconds from which on a pause counts: as long as the shortest timeouts in the tests.
LONG = 0.25
#: Seconds after which a processor that looks at no clock any more is not waited for: it may be gone.
GONE = 10.0


class Meter:
    """Measures from its making on, in ``time.monotonic()``; ends when it is closed, or with its process."""

    def __init__(self) -> None:
        """Start the process, and wait until it measures."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", Path(__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt from the terminal is the tests' alone
        )
        self.since(0.0)

    @property
    def pid(self) -> int:
        """The process's."""
        return self._process.pid

    def since(self, began: float) -> float:
        """Return for how many seconds it stood still since then, on the processor that did longest."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        pauses: dict[str, list[tuple[float, float]]] = json.loads(self._process.stdout.readline())
        return max(
            sum(end - max(start, began) for start, end in each if end > began) for each in pauses.values()
        )

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(GONE)
        self._process.stdout.close()


def _look(processor: int, looked: dict[int, float], pauses: dict[int, list[tuple[float, float]]]) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {processor})
    last = time.monotonic()
    while True:
        time.sleep(TICK)
        now = time.monotonic()
        if now - last > LONG:
            pauses[processor].append((last, now))
        looked[processor] = last = now


def _measure() -> None:
    """Answer each line with every processor's pauses, once each has looked at the clock after it."""
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    looked = dict.fromkeys(processors, 0.0)
    pauses: dict[int, list[tuple[float, float]]] = {each: [] for each in processors}
    for each in processors:
        threading.Thread(target=_look, args=(each, looked, pauses), daemon=True).start()
    for _ in sys.stdin:
        asked = time.monotonic()
        while min(looked.values()) < asked and time.monotonic() < asked + GONE:
            time.sleep(TICK / 5)
        print(json.dumps(pauses), flush=True)  # noqa: T201 - this is its answer


if __name__ == "__main__":
    _measure()
