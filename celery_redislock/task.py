"""``SingletonTask``: the base class that makes a Celery task unique: its options, its place among bases.

What publishes and what runs is imported when the first task is published or run: a process that only
declares tasks pays for neither. A worker imports both before it forks.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from celery.app.task import Context

from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.declaring.table import INHERIT
from celery_redislock.exceptions import DuplicateTask
from celery_redislock.receiving import hooks

if TYPE_CHECKING:
    from celery import Task as CeleryTask
    from typing_extensions import Unpack

    from celery_redislock.declaring import types
    from celery_redislock.declaring.table import Inherit
    from celery_redislock.locks.lease import InertLease, Lease
    from celery_redislock.publishing.handle import LockHandle
    from celery_redislock.publishing.results import LockEagerResult, LockResult
    from celery_redislock.running.run import Run

    class Task(CeleryTask[..., Any]):
        """Celery's task, with what publishing a unique one returns."""

        def delay(self, *args: Any, **kwargs: Any) -> LockResult:
            """Publish with these arguments."""

        def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
            """Publish when Django's transaction commits; what it returns then is seen by nobody."""

        def apply_async_on_commit(
            self,
            args: Sequence[Any] | None = None,
            kwargs: Mapping[str, Any] | None = None,
            **options: Unpack[types.CallOptions],
        ) -> None:
            """Publish with these arguments and options when Django's transaction commits."""

else:
    from celery import Task

__all__ = ["SingletonTask"]

hooks.install()

_REQUEST = "celery_redislock.receiving.request:LockRequest"


class SingletonTask(Task):
    """A task of which one per key is queued or running.

    Use it as ``@app.task(base=SingletonTask)``, ``@shared_task(base=SingletonTask)``,
    ``Celery(task_cls="celery_redislock:SingletonTask")`` or as the base of a task class.

    ``before_start`` runs before the lock is taken, also for a run that is then skipped; ``on_success``,
    ``on_failure``, ``after_return`` and links run after it was released. ``map``, ``starmap`` and
    ``chunks`` call bodies directly and are not locked.

    Among several bases it stands last, directly before Celery's ``Task``, in whichever order they are
    written: ``class Sync(SingletonTask, Theirs)`` has the bases ``(Theirs, SingletonTask)``. So the methods
    of the other classes of tasks are called, around its own.
    """

    #: The worker's main process knows each run's token through this class, and releases for killed children.
    Request = _REQUEST

    #: Scope: how long the task is unique; ``None`` or ``False`` switches locking off.
    lock: "types.LockChoice | Inherit" = INHERIT
    #: The key: ``None`` for the task and all its arguments; see the table of keys.
    lock_key: "types.KeyChoice" = None
    #: A text about a call for operators, with fields as those of ``lock_key``; none.
    lock_describe: str | None = None
    #: What happens to a duplicate; ``None`` takes the setting, then the scope's own default.
    on_conflict: "types.ConflictChoice" = None
    #: What a duplicate that is skipped on the worker returns, in state SUCCESS, or a callable that is given
    #: the conflict and returns that; ``None``: it ends as REVOKED.
    lock_skip_result: Any = None
    #: Seconds without another call until one starts, with the last one's arguments, at least 1; none.
    lock_debounce: "types.Seconds | None" = None
    #: Longest time in seconds from the first of such calls until one starts; none.
    lock_debounce_max: "types.Seconds | None" = None
    #: How many runs of one key may start in any span: ``"10/m"``, or two of them; none.
    lock_rate: "types.RateChoice" = None
    #: How many may hold one key at once, or a callable that is given the arguments by name; 1.
    lock_limit: "types.LimitChoice" = None
    #: Seconds a run's lease outlives its last renewal; 30, at least 0.1.
    lock_ttl: "types.Seconds | None" = None
    #: Seconds a claim outlives its publish, or the last sign of life of its message; 3600.
    lock_queue_ttl: "types.Seconds | None" = None
    #: Longest time in seconds one run may be renewed; its hard time limit and 10 s, if it has one.
    lock_max_hold: "types.Seconds | None" = None
    #: Least time in seconds between two accepted calls of one key; none.
    lock_period: "types.Seconds | None" = None
    #: What becomes of the period when a job ends without success: ``release``, or ``keep``.
    lock_period_on_failure: "types.FailureChoice" = None
    #: Seconds after which a message that cannot wait in line is tried again; 5.
    lock_retry_delay: "types.Seconds | None" = None
    #: Messages that may wait in the line of one key; 10,000.
    lock_max_waiting: int | None = None
    #: What becomes of the lock while a retry waits for its countdown: ``keep``, or ``release``.
    lock_on_retry: "types.RetryChoice" = None
    #: Longest time in seconds in line; then the task fails with ``LockBusy``; none.
    lock_wait_timeout: "types.Seconds | None" = None
    #: What happens when a running task loses its lease: ``log``, ``terminate`` or a callable.
    on_lock_lost: "types.LossChoice" = None
    #: What happens when the lock server cannot be reached: ``raise``, or ``run`` without a lock.
    on_lock_error: "types.ErrorChoice" = None

    #: This class's own names, which are no options of a subclass.
    _lock_names: frozenset[str] = frozenset()
    #: Its results are of another class as well.
    _has_own_results = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Stand last among the bases; put around what a subclass overrides what no order can do.

        A ``__call__`` of its own must not step around the lock, and its own results must tell duplicates.
        """
        super().__init_subclass__(**kwargs)
        order = cls.__mro__
        if order[order.index(SingletonTask) + 1] is not Task:
            # Before another class, this one would publish what that one holds back, and step around its call.
            others = (base for base in cls.__bases__ if base is not SingletonTask)
            cls.__bases__ = (*others, SingletonTask)
        for name, wrap in (("__call__", _locked), ("AsyncResult", _joining)):
            # As the class resolves it: a mixin that stands before this class is wrapped just as well.
            method = getattr(cls, name)
            if method is not getattr(SingletonTask, name) and not hasattr(method, "_redislock_wrapped"):
                wrapped = wrap(method if name in vars(cls) else _next(cls, name))
                wrapped._redislock_wrapped = True  # type: ignore[attr-defined]  # so that it is wrapped once
                # Celery would put an annotation ("@__call__") around this instead of around the wrapper.
                del wrapped.__wrapped__  # type: ignore[attr-defined]
                setattr(cls, name, wrapped)
        cls._has_own_results = cls.AsyncResult is not SingletonTask.AsyncResult

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body; in a worker, under the lock."""
        # Under the lock without Celery's own __call__, which would push a second request there.
        return _enter(self, self.run, super().__call__, args, kwargs)

    if not TYPE_CHECKING:  # a checker knows them as methods; lent by Celery's Django base class
        delay_on_commit = property(lambda self: _of_django(self, "delay_on_commit"))
        apply_async_on_commit = property(lambda self: _of_django(self, "apply_async_on_commit"))

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Check the options when the task is bound to its app.

        Abstract bases, which have no body or no name yet, are checked with the tasks derived from them.

        Raises:
            LockOptionError: all that is wrong with them.
        """
        super().on_bound(app)
        throws = cls.throws if isinstance(cls.throws, tuple) else (cls.throws,)
        if DuplicateTask not in throws:
            # Expected: Celery logs it in one INFO line, without a traceback.
            cls.throws = (*throws, DuplicateTask)
        if cls.name is not None and cls.run is not Task.run:
            # Not cls(): a task class may do real work in its __init__, once.
            declaration_of(cls.__new__(cls))

    def start_strategy(self, app: Any, consumer: Any, **kwargs: Any) -> Any:
        """Return what a worker does with a message it receives: it parks one that must wait for its lock.

        Any other goes to Celery's strategy. One that a subclass puts in front calls ``super()``.
        """
        from celery_redislock.receiving.parking import strategy

        return strategy(self, consumer, super().start_strategy(app, consumer, **kwargs))

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: "Unpack[types.CallOptions]",
    ) -> "LockResult":
        """Publish the task unless it is a duplicate; all of Celery's options and this package's.

        Returns:
            The result; for a skipped duplicate the *holder's*, with ``is_duplicate`` true.

        Raises:
            DuplicateTask: it is a duplicate and ``on_conflict`` says ``raise``.
            LockUnavailable: the lock server cannot be reached and ``on_lock_error`` says ``raise``; not for
                a retry or a member of a workflow, which is published without a claim.
            LockOptionError: an option is unknown, contradictory or out of range.
            LockKeyError: no key can be made of these arguments, or the key on the server is not a lock.
            TypeError: the arguments do not fit the task.
            kombu.exceptions.OperationalError: the broker cannot be reached; no lock is left.
        """
        from celery_redislock.publishing.publish import publish

        every: dict[str, Any] = options  # type: ignore[assignment]  # a mapping of our own
        if producer is not None:
            every["producer"] = producer
        if link is not None:
            every["link"] = link
        if link_error is not None:
            every["link_error"] = link_error
        if shadow is not None:
            every["shadow"] = shadow
        result: LockResult = publish(self, super().apply_async, args, kwargs, task_id, every)
        return result

    def apply(self, *args: Any, **kwargs: Any) -> "LockEagerResult":
        """Run the body here and now; no lock unless ``redislock_eager`` is set.

        Returns:
            The result. For a skipped duplicate ``is_duplicate`` is true, the state ``REVOKED``, and
            ``get()`` raises ``TaskRevokedError``; a direct call raises it.
        """
        from celery_redislock.publishing.results import LockEagerResult
        from celery_redislock.running.duplicate import Skipped

        result = super().apply(*args, **kwargs)
        return LockEagerResult.of(result, Skipped)

    def AsyncResult(self, task_id: str, **kwargs: Any) -> "LockResult":  # noqa: N802  Celery's name
        """Return the result of a task id of this task."""
        from celery_redislock.publishing.results import LockResult

        app = self._get_app()
        return LockResult(task_id, backend=self.backend, task_name=self.name, app=app, **kwargs)

    def lock_for(self, *args: Any, **kwargs: Any) -> "LockHandle":
        """Return a handle on the lock that a call with these arguments would take.

        Raises:
            LockOptionError: the task's options are wrong, or no lock server is configured.
            LockKeyError: no key can be made of these arguments.
            TypeError: the arguments do not fit the task.
        """
        from celery_redislock.publishing.handle import LockHandle

        declaration = declaration_of(self)
        lock = declaration.task_lock(args, kwargs, "")
        scope = declaration.options.scope
        queued = lock.of_queue().key if scope is not None and scope.claims_beside else None
        return LockHandle(self, lock.store, lock.key, queued, lock.limit is not None)

    @property
    def lease(self) -> "Lease | InertLease":
        """The lease of the run this is called from.

        Outside a lock (a direct or eager call, ``lock=None``, a scope that holds nothing while
        running) an inert one: ``held`` is false, ``check()`` passes, ``fence`` is ``None``.
        """
        from celery_redislock.locks.lease import InertLease

        run: Run | None = getattr(self.request_stack.top, "redislock_run", None)
        if run is None or run.lease is None or run.locks.running is None:
            return InertLease()
        return run.lease

    @classmethod
    def _lock_problems(cls) -> list[str]:
        """Return what is wrong with the class beside its options: its ``Request``, its ``Strategy``."""
        problems = []
        if not _is_ours(cls.Request):
            problems.append(
                f"its Request class {cls.Request!r} is not a subclass of celery_redislock.receiving.request."
                "LockRequest, so nothing would release the lock of a killed pool child; derive it from that "
                "class"
            )
        if cls.Strategy != Task.Strategy:
            owner = next(kind for kind in cls.__mro__ if "Strategy" in vars(kind))
            problems.append(
                f"the Strategy of {owner.__name__} is not Celery's, so its bodies may run past the lock, and "
                "nothing would release their claims; leave SingletonTask out of the bases, or write what the "
                "Strategy does as a start_strategy that calls super()"
            )
        return problems


SingletonTask._lock_names = frozenset(dir(SingletonTask))


def _enter(
    task: SingletonTask,
    body: Callable[..., Any],
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a body under the lock where Celery's tracer calls; elsewhere make the call as Celery does."""
    request: Context | None = task.request_stack.top
    if request is None:
        if declaration_of(task).settings.eager:
            # The result is there: nobody waits, so Celery need not forbid it inside another task's body.
            return task.apply(args, kwargs, throw=True).get(disable_sync_subtasks=False)
    elif not request.called_directly and "redislock_run" not in request.__dict__:
        from celery_redislock.running.unique import run_unique

        return run_unique(task, request, body, args, kwargs)
    return call(*args, **kwargs)


def _locked(call: Callable[..., Any]) -> Callable[..., Any]:
    """Put a subclass's own ``__call__`` under the lock from its beginning, however it reaches the body."""

    @functools.wraps(call)
    def locked(self: SingletonTask, *args: Any, **kwargs: Any) -> Any:
        own = functools.partial(call, self)
        return _enter(self, own, own, args, kwargs)

    return locked


def _joining(make: Callable[..., Any]) -> Callable[..., Any]:
    """Let the results that a subclass makes be this package's as well; what is no result is replaced."""

    @functools.wraps(make)
    def both(self: SingletonTask, *args: Any, **kwargs: Any) -> Any:
        from celery_redislock.publishing.results import joined

        # A class is no method: it would take the task for the id.
        own = args if isinstance(make, type) else (self, *args)
        result = joined(make(*own, **kwargs))
        return SingletonTask.AsyncResult(self, *args, **kwargs) if result is None else result

    return both


def _next(cls: type[SingletonTask], name: str) -> Callable[..., Any]:
    """Return what calls the method that a class inherits, which may be another one in its subclasses."""

    def inherited(self: SingletonTask, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(cls, self), name)(*args, **kwargs)

    return inherited


def _is_ours(request: Any) -> bool:
    """Whether a class of requests, or its name, is this package's, or derived from it."""
    if request == _REQUEST:
        return True
    from celery.utils.imports import symbol_by_name

    from celery_redislock.receiving.request import LockRequest

    return issubclass(symbol_by_name(request), LockRequest)


def _of_django(task: SingletonTask, name: str) -> Callable[..., Any]:
    """Celery picks ``DjangoTask`` by itself under Django, but not where a base class is named."""
    try:
        from celery.contrib.django.task import DjangoTask
    except ImportError as error:
        raise AttributeError(
            f"{name} needs Django ({error}): install that, or use {name.removesuffix('_on_commit')}"
        ) from error
    return functools.partial(getattr(DjangoTask, name), task)
