"""A process that takes one lock again and again, and writes down what it did under it."""

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from celery_redislock import RedisLockError
from celery_redislock.locks import Lock, connect

#: Seconds a client waits for the lock before it asks anew.
PATIENCE = 2.0

#: Of the lock.
NAME = "resource"


def now() -> float:
    """Return seconds of the one clock that all processes of this machine share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def play(urls: list[str], ttl: float, until: float, journal: Path, options: dict[str, Any]) -> None:
    """Hold the lock for random times, and write at each end what the resource would have seen."""
    server = urls if len(urls) > 1 else urls[0]
    store = connect(server, prefix="history", socket_timeout=0.3, **options)
    lock = Lock(store, NAME, ttl=ttl)
    with journal.open("a", buffering=1) as lines:
        while now() < until:
            try:
                if not lock.acquire(PATIENCE):
                    continue
            except RedisLockError:
                time.sleep(0.05)
                continue
            start, fence, lease = now(), lock.fence, lock._required().lease
            writes = [start]
            ends = start + random.uniform(0.05, 0.8) * ttl  # noqa: S311  no secret
            while now() < ends and lock.held:
                time.sleep(0.02)
                writes.append(now())
            end = now()
            deadline = lease.deadline
            try:
                is_lost = not lock.release()
            except RedisLockError:
                is_lost = lease.lost
                time.sleep(0.05)
            about = {"who": journal.name, "token": lease.token, "fence": fence, "is_lost": is_lost}
            when = {"start": start, "writes": writes, "end": end, "deadline": deadline}
            lines.write(json.dumps({**about, **when}) + "\n")


if __name__ == "__main__":
    play(sys.argv[5:], float(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
