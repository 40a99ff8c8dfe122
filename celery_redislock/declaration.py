"""What a task declared about its lock, resolved: options, settings, key rule, store."""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from celery.local import Proxy

from celery_redislock.attributes import attribute_problems, attributes_of
from celery_redislock.exceptions import LockOptionError
from celery_redislock.keys import Binder, KeyRule, arguments_digest, parse_key
from celery_redislock.options import (
    LockOptions,
    LockSettings,
    from_header,
    override,
    read_options,
    read_settings,
)
from celery_redislock.options.table import TASK_ROWS, live_rows

if TYPE_CHECKING:
    from celery_redislock.guard import Guard
    from celery_redislock.work import Work

__all__ = ["Declaration", "declaration_of"]

# Reentrant: to resolve one task is to import settings and Request classes, whose modules may bind another.
_resolving = threading.RLock()

#: A task's options that exist, in one go: this runs at every publish and every run.
_live_options = attrgetter(*(name for name, _ in live_rows()))
#: Those that do not yet; missing on the class, where looking for them costs an exception each.
_PLANNED = TASK_ROWS.keys() - {name for name, _ in live_rows()}


@dataclass(frozen=True)
class Declaration:
    """A task's lock, as declared and configured now. Immutable; shared by threads.

    Attributes:
        task: the bound task.
        options: of the task, defaults filled in from the settings.
        settings: of the app.
        binder: binds arguments to the body's signature.
        rule: names the lock.
        always_eager: the app's ``task_always_eager``: publishing runs the body in place.
    """

    task: Any
    options: LockOptions
    settings: LockSettings
    binder: Binder
    rule: KeyRule
    always_eager: bool

    @property
    def guard(self) -> "Guard":
        """Takes and gives back this task's locks; connects at the first one.

        Looked up each time: tests exchange the app's store.

        Raises:
            LockOptionError: no Redis server is configured.
        """
        from celery_redislock.connection import store_of
        from celery_redislock.guard import Guard

        return Guard(store_of(self.task.app, self.settings))

    def arguments(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
        """Bind a call's arguments as the worker will see them, pydantic models dumped.

        Raises:
            TypeError: they do not fit the signature (and the task checks that, ``typing=True``).
        """
        # Celery dumps models inside Task.apply_async, after the key was needed (5.7.0, app/task.py).
        dump = getattr(self.task, "_dump_pydantic_arguments", None)
        if dump is not None:
            args, kwargs = dump(args, kwargs)
        try:
            return self.binder.bind(args or (), kwargs or {})
        except TypeError as error:
            if self.task.typing:
                # The interpreter says what is missing, and not from what.
                message = f"{self.task.name}({', '.join(self.binder.parameters or ())}): {error}"
                raise TypeError(message) from error
            return dict(self.binder.bind_loosely(args or (), kwargs or {}))

    def work(
        self,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        task_id: str,
        *,
        options: LockOptions | None = None,
        key: str | None = None,
        fingerprint: str | None = None,
    ) -> "Work":
        """Say what is locked for one call.

        Args:
            args: of the call.
            kwargs: of the call.
            task_id: the owner.
            options: of the call, where they differ from the task's.
            key: as carried by the message, which beats computing it again.
            fingerprint: ``Work.arguments``, as carried by the message.

        Raises:
            LockKeyError: no key can be made of these arguments.
            TypeError: they do not fit the signature.
        """
        from celery_redislock.work import Work

        if key is not None and fingerprint is not None:
            return Work(key, self.task.name, task_id, fingerprint)
        arguments = self.arguments(args, kwargs)
        if key is None:
            rule = self._rule_for(options)
            key = rule.name(arguments)
            if rule.tells_all:
                return Work(key, self.task.name, task_id, "")
        return Work(key, self.task.name, task_id, arguments_digest(self.task.name, arguments))

    def is_same_work(
        self,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        *,
        key: str | None,
        fingerprint: str | None,
    ) -> bool:
        """Whether a message with this key and fingerprint calls this task with the same arguments.

        Args:
            args: of the call.
            kwargs: of the call.
            key: of the message.
            fingerprint: ``Work.arguments``, as carried by the message; empty where its key says it all.
        """
        arguments = self.arguments(args, kwargs)
        if fingerprint:
            return fingerprint == arguments_digest(self.task.name, arguments)
        default = parse_key(None, task_name=self.task.name, parameters=self.binder.parameters)
        return fingerprint is not None and key == default.name(arguments)

    def for_call(
        self, call_options: Mapping[str, Any], *, inherited: Mapping[str, Any] | None = None
    ) -> LockOptions:
        """The task's options with those of one call.

        Args:
            call_options: what the call brings itself.
            inherited: what travelled with the message whose run makes this call for its own id.

        Raises:
            LockOptionError: what the call asks for cannot be honoured.
        """
        options = from_header(self.options, inherited) if inherited else self.options
        if not call_options:
            return options
        where = f"{self.task.name}.apply_async"
        return override(options, where, call_options, parameters=self.binder.parameters)

    def _rule_for(self, options: LockOptions | None) -> KeyRule:
        if options is None or options.lock_key is self.options.lock_key:
            return self.rule
        return parse_key(options.lock_key, task_name=self.task.name, parameters=self.binder.parameters)


def declaration_of(task: Any) -> Declaration:
    """Resolve a bound task's declaration; remembered until an option or setting changes.

    Called at every publish and run, so that settings changed after the task
    was bound are honoured, and a task whose binding failed (Celery keeps it
    usable) is never used unchecked.

    Raises:
        LockOptionError: all that is wrong with the task's options and the app's settings.
    """
    if issubclass(type(task), Proxy):
        task = task._get_current_object()  # what a decorator returns; its class does not look through it
    known = task.__dict__.get("_redislock_declaration")
    if known is not None and known[0] == _asked_of(task):
        return known[1]  # type: ignore[no-any-return]  # task.__dict__ is untyped
    with _resolving:
        declaration = _resolve(task)
        task.__dict__["_redislock_declaration"] = (_asked_of(task, snapshot=True), declaration)
    return declaration


def _asked_of(task: Any, *, snapshot: bool = False) -> tuple[Any, ...]:
    """Everything a declaration depends on, cheap to compare.

    ``conf.changes`` holds what was set on ``app.conf`` itself (celery 5.7.0, ``utils/collections.py``,
    ``ConfigurationView``); the layers below it do not change once they are loaded.
    """
    conf = task.app.conf
    changes = conf.changes
    return (
        conf,
        dict(changes) if snapshot else changes,
        os.environ.get("REDISLOCK_ENABLED"),
        task.run,
        _live_options(task),
        [own.get(name) for name in _PLANNED] if (own := task.__dict__).keys() & _PLANNED else (),
    )


def _resolve(task: Any) -> Declaration:
    app = task.app
    problems: list[str] = []
    binder = Binder(task.run)
    attributes = attributes_of(task)
    options = settings = rule = None
    try:
        settings = read_settings(app.main or "settings", app.conf.get, os.environ)
    except LockOptionError as error:
        problems += error.problems
    try:
        options = read_options(task.name, attributes, app.conf.get, parameters=binder.parameters)
        rule = parse_key(options.lock_key, task_name=task.name, parameters=binder.parameters)
    except LockOptionError as error:
        problems += error.problems
    problems += attribute_problems(task)
    if problems or options is None or settings is None or rule is None:
        raise LockOptionError(task.name, problems)
    return Declaration(task, options, settings, binder, rule, bool(app.conf.task_always_eager))


def _after_fork_in_child() -> None:
    global _resolving  # noqa: PLW0603  another thread of the parent may have held it, and is not here
    _resolving = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
