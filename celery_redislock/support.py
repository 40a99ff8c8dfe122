"""The worker's main process beside its children: what a message locks, and holds it renews for them."""

import os
import sys
import weakref
from typing import TYPE_CHECKING

from celery_redislock.backends import is_result_ignored
from celery_redislock.declaration import Declaration
from celery_redislock.guard import Guard
from celery_redislock.locks.lease import Lease, boottime
from celery_redislock.locks.store import Grant, LockStore, Term
from celery_redislock.options import LockOptions, from_header
from celery_redislock.work import Work

if TYPE_CHECKING:
    from celery_redislock.request import LockRequest

__all__ = ["Locked", "Support", "is_alive", "is_another_process"]


class Locked:
    """A message's lock, as the main process sees it.

    Attributes:
        options: of the message's task and call.
        guard: takes and gives back the lock.
        work: what is locked.
    """

    def __init__(self, declaration: Declaration, options: LockOptions, work: Work) -> None:
        """Keep what was found out about a message."""
        self.options = options
        self.guard: Guard = declaration.guard
        self.work = work

    @classmethod
    def of(cls, declaration: Declaration, request: "LockRequest") -> "Locked | None":
        """Return what a received message locks, ``None`` if it locks nothing.

        Raises:
            LockOptionError: the task's options are wrong here.
            LockKeyError: the message came without a key, and none can be made of its arguments.
        """
        header = request._header
        options = from_header(declaration.options, header.options) if header else declaration.options
        if not declaration.settings.enabled or options.lock is None:
            return None
        fingerprint = header.fingerprint if header else None
        if header is not None and header.key is not None and fingerprint is not None:
            # The message says it all: its body need not be decoded here, once more than Celery does.
            work = Work(header.key, request.task.name, request.id, fingerprint)
        else:
            key = header.key if header else None
            work = declaration.work(request.args, request.kwargs, request.id, key=key)
        if is_result_ignored(request.task, request.ignore_result):
            work = work._replace(is_ignored=True)
        return cls(declaration, options, work)


class Support(Lease):
    """A hold of a message this process has in hand, renewed beside whoever holds it.

    A child that keeps the interpreter in C code for minutes cannot renew, and
    keeps its lock so. This process does not decide about losses: it may come
    before the child has started, or after it has ended.
    """

    def __init__(self, store: LockStore, term: Term, request: "LockRequest") -> None:
        """Renew from now on what a request's message or run holds, as long as it is not over."""
        now = boottime()
        super().__init__(store, term, Grant(0, False, now, now))
        self._request = weakref.ref(request)

    @property
    def held(self) -> bool:
        """The message is still in hand, or its run is still on."""
        request = self._request()
        return not self._ended and request is not None and not request._result_is_in

    def lose(self, reason: str) -> None:  # noqa: ARG002  as overridden
        """It was held for as long as it may be: renew no more, and say nothing: the run itself does."""
        self.end()

    def miss_deadline(self, why: str) -> None:
        """Go on asking: a child may wait longer for the server than its lease will last, and start then."""

    def warn_of_end(self, held_for: float, max_hold: float) -> None:
        """Say nothing: the run itself does."""

    def learn(
        self, renewed: bool | None, sent_at: float, answered_at: float, *, ttl: float | None = None
    ) -> None:
        """Take in the answer; a hold that is missing may still come, or come back."""
        if renewed:
            self.confirm(sent_at, answered_at, ttl=ttl)


def is_another_process(pid: int) -> bool:
    """Whether a child has accepted a task: in gevent and eventlet a greenlet does, and gives its identity."""
    greenlet = sys.modules.get("greenlet")
    return pid != os.getpid() and (greenlet is None or pid != id(greenlet.getcurrent()))


def is_alive(pid: int) -> bool:
    """Whether what runs in this process may still go on."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False  # an overflow: no process has such a number
    except PermissionError:
        return True
    return not _waits_to_be_collected(pid)


def _waits_to_be_collected(pid: int) -> bool:
    """Whether this child has ended, and only the pool has not looked yet.

    It looks every five seconds, if nothing tells it earlier (celery 5.7.0, concurrency/asynpool.py), and
    by then a lease that was left for the dying has expired, with nobody to stand for it.
    """
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False  # no child of this process: nothing is known
