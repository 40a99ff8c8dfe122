"""A task's options and an app's settings: read, checked together, frozen."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from celery_redislock.declaring.keys import Resources, parse_key, problems_of_text
from celery_redislock.declaring.scopes import (
    NO_NEWEST,
    NO_TURN,
    SCOPES,
    WAITING,
    Choice,
    OnConflict,
    Scope,
    resolve,
)
from celery_redislock.declaring.table import DEFAULTS, INHERIT, SETTING_ROWS, TASK_ROWS, Row, is_given
from celery_redislock.exceptions import LockOptionError

#: What ``lock_debounce`` asks for.
COALESCE = OnConflict("coalesce", "coalesce")

#: Looks a setting up: ``app.conf.get``. Takes a name and what to return when it is not set.
Setting = Callable[[str, object], object]

#: Seconds from a hard time limit until the worker has killed the body and seen that it is dead.
KILLING_TAKES = 10.0

#: The environment variable that switches locking off, or on against the setting.
ENABLED_VARIABLE = "REDISLOCK_ENABLED"
_OFF = ("0", "false", "no", "off")
_ON = ("1", "true", "yes", "on")

#: A lease of this many socket timeouts outlives one unanswered renewal: it is renewed every third, and a
#: call takes two at most. A little less than three, for rounding.
_TIMEOUTS = 2.999


class LockOptions(NamedTuple):
    """What one task, or one call of it, asks for, by the option table; times are float seconds.

    Attributes:
        scope: what ``lock`` names; ``None`` means no locking.
        lock_key: as given; :func:`celery_redislock.declaring.keys.parse_key` understands it.
        on_conflict: as asked for, by side.
        client: strategy at publish; ``None`` where the scope takes no lock there.
        server: strategy on the worker; ``None`` where there is no locking.
        claims_plainly: its claim stands for no period, and where it is refused the call does not wait.
    """

    scope: Scope | None = DEFAULTS["lock"]
    lock_key: object = None
    lock_describe: str | None = None
    on_conflict: OnConflict = DEFAULTS["on_conflict"]
    client: Choice | None = "skip"
    server: Choice | None = "skip"
    lock_skip_result: object = None
    lock_debounce: float | None = DEFAULTS["lock_debounce"]
    lock_debounce_max: float | None = DEFAULTS["lock_debounce_max"]
    lock_rate: tuple[str, ...] | None = DEFAULTS["lock_rate"]
    lock_limit: int | Callable[..., object] = DEFAULTS["lock_limit"]
    claims_plainly: bool = True
    lock_ttl: float = DEFAULTS["lock_ttl"]
    lock_queue_ttl: float = DEFAULTS["lock_queue_ttl"]
    lock_max_hold: float | None = DEFAULTS["lock_max_hold"]
    lock_period: float | None = DEFAULTS["lock_period"]
    lock_period_on_failure: str = DEFAULTS["lock_period_on_failure"]
    lock_retry_delay: float = DEFAULTS["lock_retry_delay"]
    lock_max_waiting: int = DEFAULTS["lock_max_waiting"]
    lock_on_retry: str = DEFAULTS["lock_on_retry"]
    lock_wait_timeout: float | None = DEFAULTS["lock_wait_timeout"]
    on_lock_lost: Choice = DEFAULTS["on_lock_lost"]
    on_lock_error: str = DEFAULTS["on_lock_error"]

    def max_hold(self, time_limit: float | None) -> float | None:
        """Seconds one run may be renewed: ``lock_max_hold``, or its hard time limit and killing's time."""
        if self.lock_max_hold is not None or not time_limit:
            return self.lock_max_hold
        return max(time_limit + KILLING_TAKES, 2 * self.lock_ttl)


class LockSettings(NamedTuple):
    """What holds for the whole app: the settings without ``redislock_``. Times are float seconds."""

    url: Any = DEFAULTS["redislock_url"]
    prefix: str = DEFAULTS["redislock_prefix"]
    socket_timeout: float = DEFAULTS["redislock_socket_timeout"]
    start_timeout: float = DEFAULTS["redislock_start_timeout"]
    min_replicas: int = DEFAULTS["redislock_min_replicas"]
    fence: str = DEFAULTS["redislock_fence"]
    eager: bool = DEFAULTS["redislock_eager"]
    enabled: bool = DEFAULTS["redislock_enabled"]
    beat: tuple[str, ...] | None = DEFAULTS["redislock_beat"]
    catchup: str = DEFAULTS["redislock_catchup"]
    restore: float = DEFAULTS["redislock_restore"]
    check: str = DEFAULTS["redislock_check"]
    metrics: bool = DEFAULTS["redislock_metrics"]

    def __repr__(self) -> str:
        """Leave the URL, or client, out: it may hold a password."""
        return f"LockSettings{self[1:]}"


def read_options(
    where: str, attributes: Mapping[str, object], setting: Setting, *, parameters: Sequence[str] | None
) -> LockOptions:
    """Read a task's options.

    What has no effect in the task's scope is a problem where the task asks for it; a setting counts for the
    tasks it can count for. ``parameters`` are those ``lock_key`` may use, ``None`` if unknown.

    Raises:
        LockOptionError: with every problem there is.
    """
    problems: list[str] = []
    own = {
        name: read_value(row, name, value, problems)
        for name, row in TASK_ROWS.items()
        if is_given(row, value := attributes.get(name, INHERIT))
    }
    others = {
        name: _read_setting(row, setting, problems) for name, row in TASK_ROWS.items() if name not in own
    }
    options = freeze({**others, **own})
    problems += problems_of(options, own, where, parameters)
    if problems:
        raise LockOptionError(where, problems)
    return options


def read_settings(where: str, setting: Setting, environ: Mapping[str, str]) -> LockSettings:
    """Read the settings that are no task's; raises as :func:`read_options`.

    ``REDISLOCK_ENABLED`` in the environment wins over the setting, unless it is empty.
    """
    problems: list[str] = []
    values: dict[str, Any] = {
        name.removeprefix("redislock_"): _read_setting(row, setting, problems)
        for name, row in SETTING_ROWS.items()
        if row.attribute is None
    }
    text = environ.get(ENABLED_VARIABLE, "").strip().lower()
    if text in (*_OFF, *_ON):
        values["enabled"] = text in _ON
    elif text:
        words = ", ".join((*_OFF, *_ON))
        problems.append(f"{ENABLED_VARIABLE} is {text!r} in the environment; give one of {words}")
    if problems:
        raise LockOptionError(where, problems)
    return LockSettings(**values)


def read_value(row: Row, name: str, value: object, problems: list[str]) -> object:
    """Return *value* as its row reads it; add a problem and return the default if it is refused."""
    try:
        return row.kind.read(value)
    except ValueError as error:
        problems.append(f"{name} {error}")
        return row.default


def freeze(values: Mapping[str, object]) -> LockOptions:
    """Freeze *values*, by attribute and each already read, with the strategies they come to."""
    rest: dict[str, Any] = dict(values)  # the kinds have checked the types
    scope = rest.pop("lock")
    asked = rest["on_conflict"] if rest["lock_debounce"] is None else COALESCE
    client, server = resolve(scope, asked, has_period=rest["lock_period"] is not None)
    plainly = client not in WAITING and (scope is None or scope.may_wait)
    return LockOptions(scope=scope, client=client, server=server, claims_plainly=plainly, **rest)


def problems_of(
    options: LockOptions, own: Mapping[str, object], where: str, parameters: Sequence[str] | None
) -> list[str]:
    """Return what cannot be true together, or has no effect.

    *options* is everything that counts, *own* what the task or the call brings itself, as its rows read it.
    """
    problems: list[str] = []
    scope = options.scope
    conflict = own.get("on_conflict", OnConflict())
    names_client = isinstance(conflict, OnConflict) and conflict.by_side and conflict.client is not None
    if scope is not None and scope.claim is None and names_client:
        problems.append(
            f"on_conflict names the client side, which lock={scope.name!r} does not have: it takes no lock "
            "at publish, and a call that waited there would overtake those that are queued; leave it out"
        )
    is_to_wait = isinstance(conflict, OnConflict) and conflict.client == "wait"
    if is_to_wait and scope is not None and not scope.may_wait:
        problems.append(f"on_conflict is 'wait' at publish, {NO_TURN.format(scope.name)}")
    if scope is not None and not scope.lease:
        problems += [
            _not_while_running(name, scope)
            for name in own
            if TASK_ROWS[name].is_of_a_lease and name != "lock_rate"
        ]
    problems += _problems_of_newest(options, own)
    if "lock_skip_result" in own and (options.server is None or options.server in ("raise", *WAITING)):
        problems.append(
            f"lock_skip_result is about duplicates that are skipped on the worker, where on_conflict is "
            f"{options.server!r}; write on_conflict='skip', or leave it out"
        )
    if "lock_wait_timeout" in own and scope is not None and scope.claim == "period":
        problems.append(
            f"lock_wait_timeout is about waiting in line; with lock={scope.name!r} a call waits for nothing "
            "but the period, by the clock; leave it out"
        )
    if "lock_period_on_failure" in own and options.lock_period is None:
        problems.append(
            "lock_period_on_failure is about lock_period, which is not set; set that, or leave this out"
        )
    try:
        parse_key(options.lock_key, task_name=where, parameters=parameters)
    except LockOptionError as error:
        problems += error.problems
    if options.lock_describe is not None:
        problems += problems_of_text(options.lock_describe, parameters)
    return problems + disagreements(options)


def _not_while_running(name: str, scope: Scope) -> str:
    others = [
        one.name for one in SCOPES.values() if one.lease and not (name == "lock_rate" and one.claims_beside)
    ]
    return (
        f"{name} is about the lock of a running task, and lock={scope.name!r} holds none while it runs; "
        f"leave it out, or use {' or '.join(map(repr, others))}"
    )


def _problems_of_newest(options: LockOptions, own: Mapping[str, object]) -> list[str]:
    """Return what is wrong where the newest of many calls is to run."""
    scope = options.scope
    conflict = own.get("on_conflict", OnConflict())
    sides = {conflict.client, conflict.server} - {None} if isinstance(conflict, OnConflict) else set()
    named = "on_conflict='coalesce'" if options.lock_debounce is None else "lock_debounce"
    if options.lock_debounce is None and "coalesce" not in sides:
        return []
    problems = []
    if scope is not None and not scope.may_coalesce:
        problems.append(f"{named} does not go with lock={scope.name!r}, {NO_NEWEST[scope.name]}")
    if options.lock_period is not None:
        problems.append(
            f"{named} does not go with lock_period, which refuses the newest call as any other one; leave "
            "lock_period out"
        )
    if sides - {"coalesce"}:
        others = " and ".join(sorted(repr(one) for one in sides - {"coalesce"}))
        problems.append(
            f"{named} is for publish and worker alike, and on_conflict names {others} as well; leave that out"
        )
    return problems


def disagreements(options: LockOptions) -> list[str]:
    """Return which values cannot be true together, wherever they come from."""
    problems = _disagreements_of_newest(options)
    needs_period = options.scope is not None and options.scope.claim == "period"
    if options.scope is not None and needs_period and options.lock_period is None:
        problems.append(
            f"lock={options.scope.name!r} needs lock_period: how long the task stays unique, in seconds"
        )
    if options.lock_limit != 1 and (needs_period or options.lock_period is not None):
        problems.append(
            "lock_limit does not go with lock_period, which accepts one call and refuses all others of its "
            "key until it has passed; leave one of them out (for ten calls a minute, one after the other: "
            "lock_period=6, on_conflict='wait' and no lock_limit)"
        )
    if options.lock_rate is not None and options.lock_period is not None:
        problems.append(
            "lock_rate does not go with lock_period, which accepts one call a period; leave lock_period out "
            "(lock_rate='1/60s' is one start a minute, and the others wait)"
        )
    if options.lock_rate is not None and options.scope is not None and not options.scope.lease:
        problems.append(_not_while_running("lock_rate", options.scope))
    if options.lock_rate is not None and options.scope is not None and options.scope.claims_beside:
        problems.append(
            f"lock_rate does not go with lock={options.scope.name!r}, which keeps two locks; use "
            "lock='until_executed', with on_conflict='coalesce' for one that waits"
        )
    if isinstance(options.lock_key, Resources) and options.scope is not None:
        others = {
            f"lock={options.scope.name!r}": options.scope.name != "while_executing",
            "lock_limit": options.lock_limit != 1,
            "lock_period": options.lock_period is not None,
            "lock_rate": options.lock_rate is not None,
        }
        problems += [
            f"{name} does not go with lock_key={options.lock_key!r}: several resources need "
            "lock='while_executing', without a limit, a period or a rate; leave it out, or name one resource"
            for name, is_there in others.items()
            if is_there
        ]
    if options.lock_max_hold is not None and options.lock_max_hold <= options.lock_ttl:
        problems.append(
            f"lock_max_hold ({options.lock_max_hold:g}) must be longer than lock_ttl ({options.lock_ttl:g}): "
            "a lock lives that long without any renewal"
        )
    return problems


def _disagreements_of_newest(options: LockOptions) -> list[str]:
    """Return what does not go with calls of which the newest one runs."""
    problems = []
    pause = options.lock_debounce
    longest = options.lock_debounce_max
    if longest is not None and pause is None:
        problems.append(
            "lock_debounce_max is the longest time of lock_debounce, which is not set; set that, too"
        )
    elif longest is not None and pause is not None and longest < pause:
        problems.append(
            f"lock_debounce_max ({longest:g}) is shorter than lock_debounce ({pause:g}); raise it: "
            "lock_debounce=5, lock_debounce_max=60"
        )
    return problems


def risks(options: LockOptions, settings: LockSettings, *, time_limit: float | None) -> list[str]:
    """Return what can be honoured and does not do what its author expects.

    ``time_limit`` is the task's hard one in seconds, if it has one.
    """
    found: list[str] = []
    if options.scope is None or not options.scope.lease:
        return found
    if options.lock_ttl < _TIMEOUTS * settings.socket_timeout:
        found.append(
            f"lock_ttl ({options.lock_ttl:g}) is shorter than three times redislock_socket_timeout "
            f"({settings.socket_timeout:g}): one renewal without an answer loses the lock; "
            "raise the former, or lower the latter"
        )
    longest = options.lock_max_hold
    if longest is not None and time_limit and longest < time_limit and options.on_lock_lost == "log":
        found.append(
            f"lock_max_hold ({longest:g}) is shorter than the hard time limit ({time_limit:g}): a run may go "
            "on for longer than it holds its lock; raise it, or set on_lock_lost='terminate'"
        )
    return found


def _read_setting(row: Row, setting: Setting, problems: list[str]) -> object:
    if row.setting is None:
        return row.default
    value = setting(row.setting, INHERIT)
    return read_value(row, row.setting, value, problems) if is_given(row, value) else row.default
