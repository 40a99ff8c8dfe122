"""Hold a lock until told to stop: ``python -m examples.locks.hold URL NAME TTL``."""

import sys

from celery_redislock.locks import Lock, connect

__all__ = ["main"]


def main(url: str, name: str, ttl: float) -> None:
    """Hold it while stdin is open; then release it."""
    with Lock(connect(url), name, ttl=ttl, owner="the nightly import") as lock:
        print("holding", flush=True)
        sys.stdin.read()
        lock.check()
    print("gave it back", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
