"""A task's options: read from attributes and settings, checked together, frozen."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from celery_redislock.exceptions import LockOptionError
from celery_redislock.keys import parse_key
from celery_redislock.options.strategies import Asked, Choice, Scope, contradictions, resolve
from celery_redislock.options.table import DEFAULTS, INHERIT, TASK_ROWS, Row, said

__all__ = [
    "LockOptions",
    "Setting",
    "disagreements",
    "key_problems",
    "read_options",
    "read_value",
    "settle",
    "without_effect",
]

#: Looks a setting up: ``app.conf.get``. Takes a name and what to return when it is not set.
Setting = Callable[[str, object], object]


#: Seconds from a hard time limit until the worker has killed the body and seen that it is dead.
KILLING_TAKES = 10.0

#: The scopes in which a run has a lease.
LEASED = frozenset({"until_executed", "while_executing"})
#: Options that promise something about it. (Not ``lock_ttl``: that promises nothing where there is none.)
_OF_A_LEASE = frozenset({"lock_max_hold", "on_lock_lost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """What one task, or one call of it, asks for. Immutable; shared by threads.

    The attributes are those of the option table; times are float seconds.

    Attributes:
        lock: the scope; ``None`` means no locking.
        lock_key: as given; :func:`celery_redislock.keys.parse_key` understands it.
        on_conflict: as asked for, by side.
        client: strategy at publish; ``None`` where the scope takes no lock there.
        server: strategy on the worker; ``None`` where there is no locking.
    """

    lock: Scope | None = DEFAULTS["lock"]
    lock_key: object = None
    on_conflict: Asked = DEFAULTS["on_conflict"]
    client: Choice | None = "skip"
    server: Choice | None = "skip"
    lock_ttl: float = DEFAULTS["lock_ttl"]
    lock_queue_ttl: float = DEFAULTS["lock_queue_ttl"]
    lock_max_hold: float | None = DEFAULTS["lock_max_hold"]
    lock_period: float | None = DEFAULTS["lock_period"]
    lock_retry_delay: float = DEFAULTS["lock_retry_delay"]
    on_lock_lost: Choice = DEFAULTS["on_lock_lost"]
    on_lock_error: str = DEFAULTS["on_lock_error"]

    @property
    def holds_while_running(self) -> bool:
        """Whether a run has a lease."""
        return self.lock in LEASED

    @property
    def is_window(self) -> bool:
        """Whether what was accepted stands for its window, however its run ends: no run holds or frees it."""
        return self.lock == "until_expired"

    def max_hold(self, time_limit: float | None) -> float | None:
        """Seconds one run may be renewed: ``lock_max_hold``, or its hard time limit and what killing takes.

        Args:
            time_limit: the run's hard time limit in seconds, if it has one.
        """
        if self.lock_max_hold is not None or not time_limit:
            return self.lock_max_hold
        return max(time_limit + KILLING_TAKES, 2 * self.lock_ttl)


def read_options(
    where: str,
    attributes: Mapping[str, object],
    setting: Setting,
    *,
    parameters: Sequence[str] | None,
) -> LockOptions:
    """Read a task's options. Called when the task is bound; touches no server.

    A strategy for a side that the scope does not have is a contradiction when
    the task asks for it; a setting counts for the tasks it can count for.

    Args:
        where: the task's name.
        attributes: the task's attributes by name; those that are missing,
            ``None`` (but for ``lock``) or :data:`INHERIT` leave the matter to
            the setting. Others than options are ignored: see
            :func:`unknown_attributes`.
        setting: ``app.conf.get``.
        parameters: the names ``lock_key`` may use; ``None`` if unknown.

    Raises:
        LockOptionError: with every problem there is.
    """
    problems: list[str] = []
    values = {name: _read(row, attributes, setting, problems) for name, row in TASK_ROWS.items()}
    asked = values["on_conflict"]
    if said(TASK_ROWS["on_conflict"], attributes.get("on_conflict")) and isinstance(asked, Asked):
        problems += contradictions(_scope(values), asked)
    own = [name for name, row in TASK_ROWS.items() if said(row, attributes.get(name, INHERIT))]
    problems += without_effect(_scope(values), own)
    problems += key_problems(values["lock_key"], where, parameters)
    options = settle({name: values[name] for name, row in TASK_ROWS.items() if not row.is_planned})
    problems += disagreements(options)
    if problems:
        raise LockOptionError(where, problems)
    return options


def settle(values: Mapping[str, object]) -> LockOptions:
    """Freeze *values*, each already checked, with the strategies they come to."""
    asked = values["on_conflict"]
    client, server = resolve(_scope(values), asked if isinstance(asked, Asked) else Asked())
    return LockOptions(**values, client=client, server=server)  # type: ignore[arg-type]  # kinds check types


def disagreements(options: LockOptions) -> list[str]:
    """Return what cannot be true together, each with the values and a remedy."""
    problems = []
    if options.is_window and options.lock_period is None:
        problems.append("lock='until_expired' needs lock_period: how long the task stays unique, in seconds")
    if options.lock_max_hold is not None and options.lock_max_hold <= options.lock_ttl:
        problems.append(
            f"lock_max_hold ({options.lock_max_hold:g}) must be longer than lock_ttl ({options.lock_ttl:g}): "
            "a lock lives that long without any renewal"
        )
    return problems


def without_effect(scope: str | None, asked: Iterable[str]) -> list[str]:
    """Return which options that were *asked* for are about a run's lock, where *scope* takes none."""
    if scope is None or scope in LEASED:
        return []
    return [
        f"{name} is about the lock of a running task, and lock={scope!r} holds none while it runs; leave it "
        f"out, or use {' or '.join(map(repr, sorted(LEASED)))}"
        for name in asked
        if name in _OF_A_LEASE
    ]


def key_problems(lock_key: object, where: str, parameters: Sequence[str] | None) -> list[str]:
    """Return what is wrong with *lock_key*."""
    try:
        parse_key(lock_key, task_name=where, parameters=parameters)
    except LockOptionError as error:
        return error.problems
    return []


def read_value(row: Row, name: str, value: object, problems: list[str]) -> object:
    """Return *value* as its row reads it; add a problem and return the default if it is refused."""
    try:
        return row.kind.read(value)
    except ValueError as error:
        problems.append(f"{name} {error}")
        return row.default


def _read(row: Row, attributes: Mapping[str, object], setting: Setting, problems: list[str]) -> object:
    value = attributes.get(row.name, INHERIT)
    if said(row, value):
        return read_value(row, row.name, value, problems)
    if row.setting is not None:
        value = setting(row.setting, INHERIT)
        if said(row, value):
            return read_value(row, row.setting, value, problems)
    return row.default


def _scope(values: Mapping[str, object]) -> str | None:
    scope = values["lock"]
    return scope if isinstance(scope, str) else None
