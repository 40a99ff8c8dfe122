"""The errors of this package. Their root is :class:`RedisLockError`.

Those that a ``Lock`` or a ``Semaphore`` raises about its hold are redis-py's errors, too
(:mod:`celery_redislock.locks.errors`). Each can be made by hand, with one text in place of the facts.

Every error keeps its facts as attributes and as ``args``, and builds its text from them; so each survives
pickling and Celery's result backends, which rebuild an exception as ``type(*args)`` (celery 5.7.0,
``backends/base.py``, ``exception_to_python``).
"""

import math
import time
from dataclasses import dataclass, field

__all__ = [
    "DuplicateTask", "LockBusy", "LockKeyError", "LockLoopError", "LockLost", "LockNotHeld",
    "LockOptionError", "LockUnavailable", "LockUpgradeError", "RedisLockError",
]  # fmt: skip


class RedisLockError(Exception):
    """The root of all errors of this package."""

    def __post_init__(self) -> None:
        """Keep the facts as ``args``, too, in the order of the fields."""
        self.args = tuple(vars(self).values())

    def __str__(self) -> str:
        """Tell the facts; or the one text of an error that was made by hand."""
        is_by_hand = len(self.args) > 1 and not any(self.args[1:])
        return str(self.args[0]) if is_by_hand else self._told()

    def __repr__(self) -> str:
        """Show the text, as errors do: Celery logs this of a task that failed, and Flower shows it."""
        return f"{type(self).__name__}({str(self)!r})"

    def _told(self) -> str:
        return super().__str__()


@dataclass(eq=False, repr=False)
class DuplicateTask(RedisLockError):  # noqa: N818  as KeyboardInterrupt does
    """A publish or a run was refused: another task holds its key.

    Attributes:
        key: the lock's name.
        task_id: the holder's task id. Advisory: it held the key when the server answered.
        expires_in: seconds until the hold ends unless renewed; ``inf`` where another program set no end.
        is_period: the holder was accepted less than ``lock_period`` ago. Its run may have ended: that time
            is not renewed.
        state: how the holder's run had ended before the call, and ``ended_at`` when, in seconds since the
            epoch; ``None`` where nobody has looked.
        has_other_arguments: the call had a ``lock_key`` of its own, in ``until_expired``, and the holder was
            called under the same one with other arguments. It is refused then whatever ``on_conflict`` says,
            unless that is a callable: an idempotency key stands for one job.
        is_rate: nobody holds the key; its ``lock_rate`` has had its starts, the last one that of ``task_id``.
    """

    key: str
    task_id: str = ""
    expires_in: float = 0.0
    is_period: bool = False
    state: str | None = None
    ended_at: float | None = None
    has_other_arguments: bool = False
    is_rate: bool = False

    @property
    def retry_after(self) -> int | None:
        """Whole seconds, as in HTTP, until ``lock_period`` has passed, or ``lock_rate`` has a place.

        ``None`` while a task holds the key.
        """
        is_timed = self.is_period or self.is_rate
        return math.ceil(self.expires_in) if is_timed and math.isfinite(self.expires_in) else None

    def _told(self) -> str:
        if self.has_other_arguments:
            return (
                f"duplicate of task {self.task_id}, which was called under the same lock_key, {self.key!r}, "
                "with other arguments: give this call another lock_key, or repeat that one as it was "
                f"(the key is free in {self.expires_in:.1f} s)"
            )
        if self.is_rate:
            return (
                f"{self.key!r} has had the starts that its lock_rate allows, the last one by task "
                f"{self.task_id}; call again in {self.expires_in:.1f} s, or write on_conflict='wait'"
            )
        if self.is_period:
            ended = "" if self.state is None else f", which ended with {self.state}"
            if self.ended_at is not None:
                ended += time.strftime(" at %Y-%m-%d %H:%M:%S UTC", time.gmtime(self.ended_at))
            return (
                f"duplicate of task {self.task_id}{ended}, accepted less than its lock_period ago: "
                f"{self.key!r} is taken for another {self.expires_in:.1f} s; call again then"
            )
        if math.isinf(self.expires_in):
            return f"duplicate: {_endless(self.key, self.task_id, 'celery -A YOUR_APP redislock')}"
        return (
            f"duplicate of task {self.task_id}, which holds {self.key!r} (for another "
            f"{self.expires_in:.1f} s unless renewed); wait for that task, or call again later"
        )


@dataclass(eq=False, repr=False)
class LockBusy(RedisLockError):  # noqa: N818  as KeyboardInterrupt does
    """A lock could not be had in time: somebody else holds it.

    Raised by a lock without Celery after its timeout; and a task ends with it that has waited in line for its
    ``lock_wait_timeout``.

    Attributes:
        key: the lock's name.
        holder: the owner that held it when the server last answered, or that started last, where its
            ``lock_rate`` has had its starts. Advisory.
        expires_in: seconds until that hold ends unless renewed, or a place opens; ``inf`` where another
            program set no end.
        waited: seconds since the task's message was put into the line; ``None`` without Celery.
    """

    key: str
    holder: str = ""
    expires_in: float = 0.0
    waited: float | None = None

    def _told(self) -> str:
        if math.isinf(self.expires_in):
            return _endless(self.key, self.holder, "celery-redislock --url URL")
        if self.waited is not None:
            return (
                f"waited {self.waited:.1f} s in line for {self.key!r}, longer than its lock_wait_timeout; "
                f"{self.holder} keeps it out (for {self.expires_in:.1f} s, unless renewed): call again, "
                "raise lock_wait_timeout, or look at the line (celery -A YOUR_APP redislock waiting KEY)"
            )
        return (
            f"{self.key!r} is held by {self.holder} (for another {self.expires_in:.1f} s unless renewed); "
            "wait longer (wait=, or acquire(timeout=...)), or look at the holder"
        )


@dataclass(eq=False, repr=False)
class LockLost(RedisLockError):  # noqa: N818  as KeyboardInterrupt does
    """The lease is gone while its holder still runs: somebody else may hold the key.

    Attributes:
        key: the lock's name.
        reason: how it was noticed: the server's answer, or that none came in time.
        fence: the lost lease's fencing token, ``None`` where there is none.
    """

    key: str
    reason: str = ""
    fence: int | None = None

    def _told(self) -> str:
        return (
            f"the lease on {self.key!r} was lost: {self.reason}; another holder may be running, "
            "so write nothing more that is not guarded by the fence"
        )


@dataclass(eq=False, repr=False)
class LockNotHeld(RedisLockError, RuntimeError):  # noqa: N818  as KeyboardInterrupt does
    """A method that needs a hold was called by a thread, or a task of asyncio, that has none.

    Attributes:
        key: the lock's name.
        caller: ``thread`` or ``task``.
    """

    key: str
    caller: str = ""

    def _told(self) -> str:
        return f"this {self.caller} does not hold the lock {self.key!r}; acquire it first"


@dataclass(eq=False, repr=False)
class LockLoopError(RedisLockError, RuntimeError):
    """A store of ``locks.aio`` was used by another event loop than its own; nothing was sent.

    Attributes:
        server: where its locks are, passwords masked.
    """

    server: str

    def _told(self) -> str:
        return (
            f"this store of {self.server} belongs to another event loop, that of its first request: call "
            "celery_redislock.locks.aio.connect() in each loop, and make the locks of that loop with it"
        )


@dataclass(eq=False, repr=False)
class LockUpgradeError(RedisLockError, RuntimeError):
    """A thread that reads asked for the write lock of that name: it would wait for itself.

    Attributes:
        key: the lock's name.
    """

    key: str

    def _told(self) -> str:
        return (
            f"who asks reads under {self.key!r}, and would wait for itself: release the read lock first, "
            "or take the write lock from the start, and downgrade() it"
        )


@dataclass(eq=False, repr=False)
class LockUnavailable(RedisLockError):  # noqa: N818  as KeyboardInterrupt does
    """The lock server did not answer in time, or refused the command.

    Whether the command took effect is unknown; a hold that was taken is released as soon as the server
    can be reached, or expires with its TTL.

    Attributes:
        server: where the lock server is, passwords masked.
        operation: what was asked of it (``acquire``, ``release``, …).
        reason: the underlying error's words.
        was_refused: the server answered, and did not carry the command out.
        was_sent: the command may have reached it; otherwise there was no connection.
    """

    server: str
    operation: str = ""
    reason: str = ""
    # Neither is a field, and so no argument.
    was_refused = False
    was_sent = True

    def _told(self) -> str:
        return (
            f"{self.operation!r} failed at the lock server {self.server}: {self.reason.rstrip('.')}; "
            "check that it runs and accepts writes"
        )

    def with_remark(self, remark: str) -> "LockUnavailable":
        """Return this error with a remark behind its reason, in parentheses; to be raised from this one."""
        error = type(self)(self.server, self.operation, f"{self.reason.rstrip('.')} ({remark})")
        error.was_refused = self.was_refused
        error.was_sent = self.was_sent
        return error


@dataclass(eq=False, repr=False)
class LockOptionError(RedisLockError, ValueError):
    """Options or settings that cannot be honoured; all problems at once.

    Attributes:
        where: what the options belong to (a task's name, a lock's in quotes, a setting, a call).
        problems: one sentence per problem, each with the value and a remedy.
    """

    where: str
    problems: list[str] = field(default_factory=list)

    def _told(self) -> str:
        numbered = [f"({number}) {problem}" for number, problem in enumerate(self.problems, start=1)]
        return f"{self.where}: " + "; ".join(self.problems if len(self.problems) == 1 else numbered)


@dataclass(eq=False, repr=False)
class LockKeyError(RedisLockError, ValueError):
    """No key can be computed, or the key on the server is not a lock.

    Attributes:
        where: the task's or the lock's name.
        problem: the mistake, its value, and the remedy.
    """

    where: str
    problem: str = ""

    def _told(self) -> str:
        return f"{self.where}: {self.problem}"


def _endless(key: str, holder: str, program: str) -> str:
    import shlex  # noqa: PLC0415  only for an error

    return (
        f"{key!r} is held by {holder} with no end, so by another program's lock: release it "
        f"({program} release --reason TEXT -- {shlex.quote(key)}), and let that program set a time to live"
    )
