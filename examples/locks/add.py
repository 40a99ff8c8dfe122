"""Add one to the number in a file, again and again: read, think, write. Started several times at once.

``python -m examples.locks.add URL FOLDER TIMES``; without a URL (``""``) it takes no lock.
"""

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from celery_redislock.locks import Lock, connect

__all__ = ["NAME", "main"]

#: What is locked. Every program that says this name to the same server waits for the others.
NAME = "the number"


def main(url: str, folder: Path, times: int) -> None:
    """Wait for a line on stdin, so that all begin together, and add."""
    lock = Lock(connect(url), NAME, ttl=10.0, wait=60.0) if url else None
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(times):
        with lock or nullcontext():
            number = think(folder)
            if lock:
                lock.check()  # raises LockLost if somebody else may hold it by now: before writing
            write(folder, number)
            if lock:
                with (folder / "fences").open("a") as fences:
                    fences.write(f"{lock.fence}\n")


def think(folder: Path) -> int:
    """Return what is to be written, based on what is there now."""
    number = int((folder / "number").read_text())
    time.sleep(0.005)
    return number + 1


def write(folder: Path, number: int) -> None:
    mine = folder / f"number.{os.getpid()}"
    mine.write_text(str(number))
    mine.replace(folder / "number")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    if "celery" in sys.modules:
        sys.exit("Celery was imported")
