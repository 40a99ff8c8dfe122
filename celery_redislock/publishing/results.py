"""The results publishes return: Celery's own, which also say whether they belong to somebody else."""

import time
from datetime import timezone
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult, EagerResult
from celery.states import PROPAGATE_STATES, REVOKED
from vine import promise

from celery_redislock.exceptions import DuplicateTask
from celery_redislock.log import logger
from celery_redislock.publishing.call import runs_in_this_thread
from celery_redislock.store.store import ACCEPTED, Hold

if TYPE_CHECKING:  # celery-types has them generic, Celery has not
    AnyResult: TypeAlias = AsyncResult[Any]
    AnyEagerResult: TypeAlias = EagerResult[Any]
else:
    AnyResult = AsyncResult
    AnyEagerResult = EagerResult

#: A part of the text of each claim that stands for a period.
_ACCEPTED = f'"state":"{ACCEPTED}"'.encode()

#: Begins the reason under which a skipped duplicate is revoked.
DUPLICATE_OF = "duplicate of"
#: Likewise, of a call whose place another one has taken, or that has taken another one's.
RUN_AS = "its arguments run as"


class Period(NamedTuple):
    """A period that skipped a call.

    Attributes:
        key: the lock's name.
        skipped_at: when it did; ``ends_at``: when it ends. Seconds since the epoch by this machine's clock.
    """

    key: str
    skipped_at: float
    ends_at: float


def end_unrun(task: Any, task_id: str, why: str) -> None:
    """Store REVOKED for an id under which nothing runs, so that nobody waits for it for ever; never raises.

    Nothing is read: a publish waits for no answer of a result backend. So a job of this id under another key
    has its state overwritten, but for a SUCCESS, which most backends keep; its next states follow. Nothing
    is stored where only the publisher of a message reads its state (``rpc://``).
    """
    backend = task.backend
    if backend.as_uri() == "rpc://":
        return
    try:
        backend.mark_as_revoked(task_id, why)
    except Exception as error:  # noqa: BLE001  every backend has errors of its own
        line = "%r does not run (%s), and who waits for it waits in vain: see to the result backend (%r)"
        logger.warning(line, task_id, why, error)


def _described(result: Any) -> str:
    how = "" if not result.is_duplicate else " (duplicate, by period)" if result.period else " (duplicate)"
    return f"<{type(result).__name__}: {result.id}{how}>"


def _reduced(self: Any) -> tuple[Any, ...]:
    more = {"is_duplicate": self.is_duplicate, "period": self.period}
    return _rebuild, (self._of or self.__class__, self.__reduce_args__()), more


class LockResult(AnyResult):
    """The result of a publish of a unique task. Picklable.

    Several objects of one task id may be waited for at once only with Celery 5.7 or later: before, the first
    alone is woken (celery 5.5.0 and 5.6.3, ``_add_pending_result`` in backends/asynchronous.py).

    Attributes:
        is_duplicate: nothing was published: this is the *holder's* result. Revoking or forgetting
            it concerns the holder's task.
        period: of the holder, where that skipped the call, whether its run has ended or not. ``get()``
            returns what the run returned, or raises what it raised. Where that had failed before the call,
            it raises :class:`DuplicateTask` from that error.
        waits_behind: the task id of the run whose body has published the call, and whose end it waits for;
            ``None`` for other calls, and in other processes.
    """

    is_duplicate: bool = False
    period: Period | None = None
    waits_behind: str | None = None
    _cache: Any = None
    #: The class of another's results that it is as well; see :func:`joined`.
    _of: type[Any] | None = None
    __repr__ = _described
    __reduce__ = _reduced

    if TYPE_CHECKING:

        @property
        def state(self) -> str:
            """The task's state; celery-types 0.26 lists those there are, without REVOKED."""

    else:  # with __getattr__ a checker would take every misspelt attribute for one

        def maybe_throw(self, propagate: bool = True, callback: Any = None) -> Any:
            """Return or raise the outcome of the run, as Celery's does; an old failure is no new one."""
            period = self.period
            if period is not None and propagate and self.state in PROPAGATE_STATES:
                done = self.date_done  # in UTC where it does not say; some backends keep none
                ended_at = done and (done if done.tzinfo else done.replace(tzinfo=timezone.utc)).timestamp()
                if ended_at is None or ended_at <= period.skipped_at:
                    left = max(0.0, period.ends_at - time.time())
                    error = DuplicateTask(period.key, self.id, left, True, self.state, ended_at)
                    raise error from self.result
            return super().maybe_throw(propagate, callback)

        maybe_reraise = maybe_throw

        def __getattr__(self, name: str) -> Any:
            if name == "on_ready":
                self.on_ready = promise(self._on_fulfilled, weak=True)  # as celery 5.7.0, result.py
                return self.on_ready
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def get(self, timeout: float | None = None, *args: Any, **kwargs: Any) -> Any:
        """Wait for the task, and return its result, as Celery's does.

        Logs a WARNING in the body of the run behind which the call waits: it waits for that in vain.
        """
        if any(run.in_body and run.lock.owner == self.waits_behind for run in runs_in_this_thread()):
            logger.warning(
                "the run %s waits for the result of %s, which waits for that run to end: get() ends with its "
                "timeout, or never; return without the result (a link can use it), or give that call another "
                "lock_key: docs/troubleshooting.md",
                self.waits_behind,
                self.id,
            )
        self.on_ready  # noqa: B018  made when it is asked for: a duplicate's result waits from here on
        return super().get(timeout, *args, **kwargs)

    @classmethod
    def of_holder(cls, hold: Hold, owner: str, task: Any, *, ignored: bool) -> "LockResult":
        """Return the holder's result for a skipped duplicate; the promise of a waiter is made when one waits.

        ``ignored``: nobody stores that result, so that ``get()`` returns at once.
        """
        if task._has_own_results:
            result: LockResult = task.AsyncResult(owner)
        else:
            result = cls.__new__(cls)
            result.id = owner
            result.app = task.app
            result.backend = task.backend
        if hold.is_period or _ACCEPTED in hold.text:
            now = time.time()
            result.period = Period(hold.name, now, now + hold.expires_in)
        result._ignored = ignored
        result.is_duplicate = True
        return result

    def __del__(self) -> None:
        # Without a promise nobody has waited with it, and there is no waiter to cancel.
        if "on_ready" in self.__dict__:
            super().__del__()


class LockEagerResult(AnyEagerResult):
    """The result of a unique task that was run in place. Picklable.

    Attributes:
        is_duplicate: nothing was run: the state is ``REVOKED``, and ``get()`` raises
            ``TaskRevokedError("duplicate of <task id>")``. There is no holder to wait for: it may be the
            caller itself, and runs in place leave nothing in the result backend.
    """

    is_duplicate: bool = False
    period: Period | None = None
    _of: type[Any] | None = None
    __repr__ = _described
    __reduce__ = _reduced

    @classmethod
    def duplicate(cls, task_id: str, name: str, why: str) -> "LockEagerResult":
        """Return the result of a call that was skipped: the holder's id, where nothing got one of its own."""
        result = cls(task_id, TaskRevokedError(why), REVOKED, name=name)
        result.is_duplicate = True
        return result

    @classmethod
    def of(cls, result: AnyEagerResult, skipped: type[Exception]) -> "LockEagerResult":
        """Return a run in place as Celery does; a run that this error ended as a worker does."""
        if isinstance(result, cls):
            return result  # a retry's, which was run in place as well
        if isinstance(result.result, skipped):
            return cls.duplicate(result.id, result.name, str(result.result))
        return cls(*result.__reduce_args__())


def joined(result: Any) -> Any:
    """Make another class's result one of this package's as well, and return it; ``None``: it is no result."""
    if not isinstance(result, AsyncResult):
        return None
    result.__class__ = _joined(result.__class__)
    return result


@cache
def _joined(kind: Any) -> Any:
    """Return the class of results that is this one and this package's; its own methods go before."""
    if hasattr(kind, "is_duplicate"):
        return kind
    return LockResult if kind is AsyncResult else type(kind.__name__, (kind, LockResult), {"_of": kind})


def _rebuild(cls: Any, args: tuple[Any, ...]) -> Any:
    return _joined(cls)(*args)
