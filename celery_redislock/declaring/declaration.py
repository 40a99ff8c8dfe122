"""What a task declared about its lock, resolved: options, settings, key rule, store."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from celery_redislock.declaring.call_options import from_header, override
from celery_redislock.declaring.keys import Binder, KeyRule, Resources, parse_key, teller
from celery_redislock.declaring.kinds import HOLDERS, Rates
from celery_redislock.declaring.options import ENABLED_VARIABLE, LockOptions, LockSettings, read_options
from celery_redislock.declaring.server import DECLARATION, joined_for, settings_of, store_of
from celery_redislock.declaring.table import INHERIT, TASK_ROWS
from celery_redislock.declaring.unknown import unknown_options
from celery_redislock.exceptions import LockOptionError
from celery_redislock.store.store import LockStore

if TYPE_CHECKING:
    from celery_redislock.locks.tasklock import TaskLock

    _Tell = Callable[[Mapping[str, object]], str] | None
    _Made = tuple[KeyRule, Callable[..., TaskLock], _Tell]

#: What a declaration is read from, in one call: this runs at every publish and every run.
#: ``conf.maps`` begins with what was set on ``app.conf`` itself (celery 5.7.0, ``utils/collections.py``,
#: ``ConfigurationView``); the layers below it do not change once they are loaded.
_read_from = attrgetter("app.conf.maps", "run", *TASK_ROWS)
#: The switch in the environment as it is now. ``os.environ`` decodes and encodes at each look, so the
#: mapping that it keeps is asked.
_switch = partial(os.environ._data.get, os.environ.encodekey(ENABLED_VARIABLE))  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False, repr=False)
class Declaration:
    """A bound task's lock, as declared and configured now. Immutable; shared by threads.

    Attributes:
        options: of the task, defaults filled in from the settings.
        rule: names the lock of the arguments as ``binder`` binds them to the body's signature.
        always_eager: the app's ``task_always_eager``: publishing runs the body in place.
    """

    task: Any
    options: LockOptions
    settings: LockSettings
    binder: Binder
    rule: KeyRule
    always_eager: bool

    @cached_property
    def is_on(self) -> bool:
        """Whether publishing takes locks: not switched off, and not in place without ``redislock_eager``."""
        return self.settings.enabled and (self.settings.eager or not self.always_eager)

    @cached_property
    def store(self) -> LockStore:
        """Keeps the locks; connects at the first one.

        Raises:
            LockOptionError: as :func:`store_of`.
        """
        return store_of(self.task.app, self.settings)

    def task_lock(
        self,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        task_id: str,
        *,
        options: LockOptions | None = None,
        key: str | None = None,
        is_ignored: bool = False,
        main_process: str | None = None,
    ) -> "TaskLock":
        """Return the lock of one call. Sends nothing.

        A message brings its ``key``, which beats computing it again; ``options`` are those of the call, where
        they differ from the task's. The others are as for :class:`TaskLock`. Raises as
        :meth:`SingletonTask.lock_for`.
        """
        made = self._own if options is self.options or options is None else self._made_for(options)
        if key is None:
            name, lock, tell = made
            bound = self._bind(args, kwargs)
            return lock(name(bound), task_id, is_ignored, main_process, tell(bound) if tell else "")
        return made[1](key, task_id, is_ignored, main_process)

    def with_limit(
        self, options: LockOptions, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
    ) -> LockOptions:
        """Return a call's options with what the ``lock_limit`` callable says of its arguments, if it counts.

        Raises:
            LockOptionError: it raised an error, or returned no limit.
        """
        limit_of = options.lock_limit
        if not callable(limit_of):
            return options
        arguments = self._bind(args, kwargs)
        try:
            said = limit_of(arguments)
        except Exception as error:
            problem = (
                f"the lock_limit callable raised {error!r}; it is called with {', '.join(arguments)} by name"
            )
            raise LockOptionError(self.task.name, [problem]) from error
        try:
            return options._replace(lock_limit=int(str(HOLDERS.read(said))))
        except ValueError as error:
            problem = f"what the lock_limit callable returned {error}"
            raise LockOptionError(self.task.name, [problem]) from error

    @cached_property
    def _tell(self) -> "_Tell":
        """What a holder says about its arguments, if anything."""
        options = self.options
        claims = options.scope is not None and options.scope.claim is not None
        return teller(options.lock_key if claims else None, options.lock_describe, self.binder.parameters)

    @cached_property
    def _tell_all(self) -> "_Tell":
        """What the holder of an idempotency key says: another call under it may not have other arguments."""
        return teller(None, self.options.lock_describe, self.binder.parameters, of_all=True)

    @cached_property
    def tells_late(self) -> bool:
        """Whether a run says it, because there was no claim that did."""
        scope = self.options.scope
        return self.options.lock_describe is not None and scope is not None and scope.claim is None

    def told(
        self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, *, of_all: bool = False
    ) -> str:
        """Return what a run with these arguments says about them; nothing where they do not fit the task.

        ``of_all``: its key was given for the call, in a scope where that is an idempotency key.
        """
        tell = self._tell_all if of_all else self._tell
        with suppress(TypeError):
            return tell(self._bind(args, kwargs)) if tell else ""
        return ""

    @cached_property
    def _own(self) -> "_Made":
        return self._made_for(self.options)

    def _made_for(self, options: LockOptions) -> "_Made":
        """Return what names the lock of a call with these options, makes it, and tells of its arguments."""
        from celery_redislock.locks.tasklock import Says, TaskLock  # noqa: PLC0415  not to declare a task

        where = self.task.name
        rule = self.rule
        tell = None if self.tells_late else self._tell
        if options.lock_key is not self.options.lock_key:
            rule = parse_key(options.lock_key, task_name=where, parameters=self.binder.parameters)
            # Names of parameters say which arguments count.
            is_of_call = not isinstance(options.lock_key, tuple | list)
            if is_of_call and options.scope is not None and options.scope.claim == "period":
                tell = self._tell_all
        # A callable that nobody has asked: as few as can be.
        limit = 1 if callable(options.lock_limit) else options.lock_limit
        # A limit of 1 for all calls needs no permits.
        several = None if limit == 1 == self.options.lock_limit else limit
        store = self.store
        if isinstance(options.lock_key, Resources):
            if options.lock_key is not self.options.lock_key:
                problem = "lock_key=Resources(...) is for a task, not for one call; declare it there"
                raise LockOptionError(where, [problem])
            store = joined_for(where, store)
        sides = [options.client, options.server]
        client, server = ("callable" if callable(side) else side or "skip" for side in sides)
        is_confirmed = bool(self.settings.min_replicas)
        rate = Rates.for_scripts(options.lock_rate or ())
        says = Says(client, server, options.lock_ttl, self.settings.metrics, is_confirmed, rate)
        lives = (options.lock_ttl, options.lock_queue_ttl, options.lock_period, several, says)
        return rule, partial(TaskLock, store, where, *lives), tell

    def for_call(
        self, call_options: Mapping[str, Any], *, inherited: Mapping[str, Any] | None = None
    ) -> LockOptions:
        """Return the task's options with those of one call; raises as :func:`override`.

        ``inherited`` is what travelled with the message whose run makes this call for its own id.
        """
        options = from_header(self.options, inherited)
        if not call_options:
            return options
        where = f"{self.task.name}.apply_async"
        return override(options, where, call_options, parameters=self.binder.parameters)

    def _bind(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
        """Bind a call's arguments as the worker will see them, pydantic models dumped."""
        # Celery dumps models inside Task.apply_async, after the key was needed (5.7.0, app/task.py).
        dump = getattr(self.task, "_dump_pydantic_arguments", None)
        if dump is not None:
            args, kwargs = dump(args, kwargs)
        try:
            return self.binder.bound(*(args or ()), **(kwargs or {}))
        except TypeError as error:
            if not self.task.typing:
                return self.binder.bind_loosely(args, kwargs)
            # The interpreter names the missing argument, and not the task.
            parameters = ", ".join(self.binder.parameters or ())
            why = self.binder.misfit(args, kwargs) or error
            raise TypeError(f"{self.task.name}({parameters}): {why}") from error


def is_unique(task: Any) -> bool:
    """Whether this is a task with the base ``SingletonTask``, or the proxy of one (``app.task``)."""
    return hasattr(task.__class__, "_lock_names")


def declaration_of(task: Any) -> Declaration:
    """Resolve a bound task's declaration; remembered until an option or setting changes. Thread-safe.

    Called at every publish and run: a task whose binding failed is kept usable by Celery.

    Raises:
        LockOptionError: all that is wrong with the task's options and the app's settings.
    """
    known = task.__dict__.get(DECLARATION)
    if known is not None and known[0] == _read_from(task) and known[1] == _switch():
        return known[2]  # type: ignore[no-any-return]  # task.__dict__ is untyped
    behind_proxy = getattr(type(task), "_get_current_object", None)
    if behind_proxy is not None:
        # A decorator returns a celery.local.Proxy, and its class does not look through it.
        task = behind_proxy(task)
    declaration = _resolve(task)
    (changes, *layers), *rest = _read_from(task)
    task.__dict__[DECLARATION] = (([dict(changes), *layers], *rest), _switch(), declaration)
    return declaration


def _resolve(task: Any) -> Declaration:
    app = task.app
    cls = type(task)
    problems: list[str] = []
    binder = Binder(task.run)
    options = settings = rule = None
    try:
        settings = settings_of(app)
    except LockOptionError as error:
        problems += error.problems
    try:
        options = read_options(task.name, _attributes(task), app.conf.get, parameters=binder.parameters)
        rule = parse_key(options.lock_key, task_name=task.name, parameters=binder.parameters)
    except LockOptionError as error:
        problems += error.problems
    # The base class hands its own names and checks in, so that nothing here imports it.
    problems += unknown_options(sorted(set(dir(cls)) - getattr(cls, "_lock_names", frozenset())))
    if hasattr(task, "_lock_problems"):
        problems += task._lock_problems()
    if options is not None and settings is not None and isinstance(options.lock_key, Resources):
        problems += _problems_of_several(app, settings)
    if problems or options is None or settings is None or rule is None:
        raise LockOptionError(task.name, problems)
    return Declaration(task, options, settings, binder, rule, bool(app.conf.task_always_eager))


def _problems_of_several(app: Any, settings: LockSettings) -> list[str]:
    """Return why the server cannot keep several names at once; tests in memory learn it by the first call."""
    try:
        store = store_of(app, settings) if settings.enabled else None
        if store is not None and store.is_shared:
            joined_for("", store)
    except LockOptionError as error:
        return list(error.problems)
    return []


def _attributes(task: Any) -> dict[str, Any]:
    """Return a task's lock options; callables unbound, or they would be called with the task first."""
    found = {}
    for name in TASK_ROWS:
        value = inspect.getattr_static(task, name, INHERIT)
        found[name] = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if found["lock"] is INHERIT and task.name.startswith("celery."):
        # Celery's own tasks (chord_unlock, map, …) get this base class from Celery(task_cls=…).
        found["lock"] = None
    return found
