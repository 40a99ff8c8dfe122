"""A process that takes one lock again and again, and writes down what it did under it.

It is a program of its own: ``python -m celery_redislock.drill.client TERMS JOURNAL``, which :func:`start`
runs. It has no signal handler and no secret, and ends with the process that has started it.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import Any, TextIO

from celery_redislock.drill.verdict import Held
from celery_redislock.exceptions import RedisLockError
from celery_redislock.locks import Lock, connect
from celery_redislock.wire.clock import boottime

#: Seconds a client waits for the lock before it asks anew.
PATIENCE = 2.0

#: Of the lock.
NAME = "resource"

#: What a server says to a user who lacks a right; it will say so again.
_FORBIDDEN = re.compile(r"NOPERM|ACL failure|permission|can't (run|access)|runs no Lua", re.IGNORECASE)


def start(
    journal: Path, ttl: float, until: float, skew: float = 1.0, **store: Any
) -> subprocess.Popen[bytes]:
    """Start a client; its errors are beside its journal, in ``.error``.

    Args:
        journal: a file ``client-N``, in a folder that it deletes if this process dies without ending it.
        ttl: seconds, of each hold.
        until: reading of :func:`boottime` after which it takes the lock no more, and ends.
        skew: 1: a hold may take any part of the ttl, up to 0.8; more: most of them are short.
        store: arguments of :func:`celery_redislock.locks.connect`.
    """
    terms = json.dumps({"ttl": ttl, "until": until, "skew": skew, "store": store})
    command = [sys.executable, "-m", __name__, terms, str(journal)]
    with journal.with_suffix(".error").open("wb") as errors:
        # Nothing is written to the pipe: that it ends tells of this process's death.
        return subprocess.Popen(  # noqa: S603  this module
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors
        )


def read(folder: Path, killed: Mapping[str, float]) -> list[Held]:
    """Return what all clients wrote; ``killed``: when, by the name of each one that was."""
    history: dict[str, Held] = {}
    for journal in sorted(folder.glob("client-*[0-9]")):
        # What a killed client has not written to the end of its line says nothing.
        for line in journal.read_text().split("\n")[:-1]:
            held = Held(**json.loads(line))
            history[held.token] = held
    return [replace(each, end=min(each.end, killed.get(each.who, inf))) for each in history.values()]


def play(store: Any, ttl: float, until: float, skew: float, journal: Path) -> None:
    """Hold the lock for random times; write when it begins, and at its end what the resource has seen.

    Arguments: see :func:`start`.
    """
    lock = Lock(store, NAME, ttl=ttl)
    with journal.open("a", buffering=1) as lines:
        while boottime() < until:
            try:
                if not lock.acquire(PATIENCE):
                    continue
            except RedisLockError as error:
                _stumble(error)
                continue
            begun = boottime()
            lease = lock._required().lease
            fence = lease.fence or 0
            held = Held(journal.name, lease.token, fence, begun, [begun], inf, lease.deadline, is_over=False)
            _write(lines, held)
            writes = [begun]
            ends = begun + (0.02 + 0.78 * random.random() ** skew) * ttl  # noqa: S311  no secret
            while boottime() < ends and lock.held:
                time.sleep(0.02)
                writes.append(boottime())
            held = replace(held, writes=writes, end=boottime(), deadline=lease.deadline)
            # First: who is killed from here on may have released it.
            _write(lines, held)
            try:
                is_lost = not lock.release()
            except RedisLockError as error:
                is_lost = lease.lost
                _stumble(error)
            _write(lines, replace(held, is_lost=is_lost, is_over=True))


def _write(lines: TextIO, held: Held) -> None:
    lines.write(json.dumps(asdict(held)) + "\n")


def is_forbidden(error: object) -> bool:
    """Whether the server lets this user not do it."""
    return _FORBIDDEN.search(str(error)) is not None


def _stumble(error: RedisLockError) -> None:
    """Rest after an error; end where the server would only repeat it."""
    if is_forbidden(error):
        raise SystemExit(str(error)) from None
    time.sleep(0.05)


def _end_with_parent(folder: Path) -> None:
    """Wait until the process is dead that holds the other end of standard input."""
    while os.read(0, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def main() -> None:
    """Play by the terms of the command line."""
    # A group of its own: Ctrl-C is its parent's. The kernel wakes one that is stopped when that dies.
    os.setpgid(0, 0)
    terms = json.loads(sys.argv[1])
    journal = Path(sys.argv[2])
    threading.Thread(target=_end_with_parent, args=[journal.parent], daemon=True).start()
    play(connect(**terms["store"]), terms["ttl"], terms["until"], terms["skew"], journal)


if __name__ == "__main__":
    main()
