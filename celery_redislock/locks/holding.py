"""Who holds a :class:`~celery_redislock.locks.lock.Lock`: this thread, and how it presents itself."""

import functools
import math
import os
import socket
import sys
import threading
import time
from typing import Any, TypeGuard

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.store import TEN_YEARS

__all__ = ["Holding", "check_terms", "default_owner", "hostname", "introduce", "is_seconds"]


class Holding:
    """The lease each thread of this process holds, and how often it entered.

    A forked child inherits its parent's thread-locals, not its holds: there
    nothing is held.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    @property
    def lease(self) -> Lease | None:
        """The lease this thread holds, lost or not; ``None`` if it entered nothing."""
        lease: Lease | None = getattr(self._local, "lease", None)
        return None if lease is None or self._local.pid != os.getpid() else lease

    @property
    def is_the_parents(self) -> bool:
        """Whether the parent process entered, in the thread that forked this one."""
        return getattr(self._local, "lease", None) is not None and self.lease is None

    def required(self, name: str) -> Lease:
        """Return the lease this thread holds; ``RuntimeError``, naming the lock, if it holds none."""
        lease = self.lease
        if lease is None:
            message = f"this thread does not hold the lock {name!r}; acquire it first"
            raise RuntimeError(message)
        return lease

    def start(self, lease: Lease) -> None:
        """Record that this thread holds the lease, once."""
        self._local.coroutine = _coroutine()
        self._local.pid, self._local.depth, self._local.lease = os.getpid(), 1, lease

    def check_coroutine(self, name: str) -> None:
        """Raise ``RuntimeError`` if another coroutine of this thread holds the lock; both would go on."""
        if self._local.coroutine is not _coroutine():
            message = (
                f"another coroutine of this thread holds the lock {name!r}; a thread holds it as a whole: "
                "let each coroutine hold it in a thread of its own (asyncio.to_thread)"
            )
            raise RuntimeError(message)

    @property
    def depth(self) -> int:
        """How often this thread entered, and has not left; set to 0, nothing is held any more."""
        return 0 if self.lease is None else self._local.depth

    @depth.setter
    def depth(self, depth: int) -> None:
        if self.lease is not None:
            self._local.depth = depth
            if not depth:
                self._local.lease = self._local.coroutine = None


def _coroutine() -> object | None:
    """Return the task of asyncio that this thread is running, if it runs any."""
    asyncio = sys.modules.get("asyncio")
    try:
        return None if asyncio is None else asyncio.current_task()
    except RuntimeError:
        return None  # no event loop runs here


def check_terms(name: object, *, ttl: object = 1.0, timeout: object = None) -> None:
    """Raise :class:`LockOptionError`, with all there is, unless a lock can have these."""
    problems = []
    if not isinstance(name, str):
        problems.append(f"the name is {name!r}; give a text that names the resource the lock is for")
    elif not name:
        problems.append("the name is empty; name the resource the lock is for")
    if not is_seconds(ttl) or not 0.001 <= ttl <= TEN_YEARS:
        problems.append(f"ttl={ttl!r} is not a number of seconds from 0.001 to {TEN_YEARS:.0f}")
    if timeout is not None and not is_seconds(timeout):
        problems.append(f"timeout={timeout!r} is not a number of seconds; None waits for ever, 0 asks once")
    if problems:
        raise LockOptionError(repr(name), problems)


def is_seconds(value: object) -> TypeGuard[float]:
    """Whether this is a number and a time: neither a truth value, as other locks take one, nor NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def default_owner() -> str:
    """Return ``host:pid:thread`` of the calling thread."""
    return f"{hostname()}:{os.getpid()}:{threading.get_ident()}"


@functools.cache
def hostname() -> str:
    """Return this machine's name, as a holder tells it."""
    return socket.gethostname()


def introduce(owner: str) -> dict[str, Any]:
    """Return what a holder tells those who are refused."""
    return {
        "id": owner,
        "host": hostname(),
        "pid": os.getpid(),
        "since": time.time(),
        "state": "running",
    }
