"""The table: one row for each option and setting, and nothing said twice."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Literal, NamedTuple

from celery_redislock.declaring.kinds import (
    ANY_TEXT,
    ANYTHING,
    COUNT,
    ENTRIES,
    FLAG,
    KEY,
    LIMIT,
    PREFIX,
    RATE,
    REPLICAS,
    URL,
    Kind,
    Restore,
    Seconds,
    one_of,
)  # fmt: skip
from celery_redislock.declaring.scopes import CONFLICT, SCOPE, SCOPES, OnConflict


class Inherit(Enum):
    """The type of :data:`INHERIT`."""

    INHERIT = "inherit"

    def __repr__(self) -> str:
        return "INHERIT"


#: "Not said here": the default of the attribute ``lock``, where ``None`` already means off.
INHERIT: Final[Literal[Inherit.INHERIT]] = Inherit.INHERIT


class Row(NamedTuple):
    """One option or setting.

    Attributes:
        meaning: for the reference page, as is ``default_note``: the default, where its value does not say it.
        attribute: name on the task and in ``apply_async``; ``None`` for settings only.
        setting: name in the app's configuration; ``None`` where there is none.
        is_of_a_lease: about the lock of a run, so without effect in a scope that holds none while running.
    """

    default: object
    kind: Kind
    meaning: str
    attribute: str | None = None
    setting: str | None = None
    default_note: str = ""
    is_of_a_lease: bool = False

    @property
    def name(self) -> str:
        """The name it is known by."""
        return self.attribute or self.setting or ""


_EVERYDAY = (
    Row(attribute="lock", setting="redislock_lock", default=SCOPES["until_executed"], kind=SCOPE,
        default_note="`'until_executed'`", meaning="how long the task is unique"),
    Row(attribute="lock_key", default=None, kind=KEY, default_note="all arguments",
        meaning="what is locked: the task with some of its arguments, or a resource shared by tasks"),
    Row(attribute="on_conflict", setting="redislock_on_conflict", default=OnConflict(), kind=CONFLICT,
        default_note="by scope", meaning="what happens to a duplicate"),
    Row(attribute="lock_period", default=None, kind=Seconds(), default_note="none",
        meaning="least time between two accepted calls of one key; required by `until_expired`. "
        "Scheduled tasks need none"),
    Row(attribute="lock_limit", default=1, kind=LIMIT,
        meaning="how many may hold one key at once; a callable receives the call's arguments by name. An "
        "operator, or the app itself, may replace the limit of a key at run time, unless it is 1"),
    Row(attribute="lock_describe", default=None, kind=ANY_TEXT, default_note="none",
        meaning="a text about a call, for operators, with fields like those of `lock_key`: "
        "`'order {order_id}'`. It is stored in clear text on the lock server, and commands print it; cannot "
        "be given for one call"),
    Row(setting="redislock_url", default=None, kind=URL,
        default_note="the broker's Redis, else the result backend's", meaning="where the lock server is"),
    Row(setting="redislock_prefix", default="redislock", kind=PREFIX,
        meaning="beginning of every key; Celery's `global_keyprefix` is put in front of it"),
    Row(setting="redislock_enabled", default=True, kind=FLAG,
        meaning="`False` switches locking off, for an incident; the environment variable "
        "`REDISLOCK_ENABLED` wins"),
    Row(setting="redislock_eager", default=False, kind=FLAG,
        meaning="take locks in eager mode and direct calls too"),
    Row(setting="redislock_beat", default=(), kind=ENTRIES, default_note="`'unique'`",
        meaning="entries of the schedule that any number of beats share, so that each tick is sent once. "
        "`'unique'`: those of unique tasks that beat imports; patterns: also those whose name or task "
        "matches one; `'all'`: all; `False`: none"),
)  # fmt: skip

_TIMES = (
    # Below a tenth of a second one slow round trip or a scheduler's pause outlasts the lease.
    Row(attribute="lock_ttl", setting="redislock_ttl", default=30.0, kind=Seconds(least=0.1),
        meaning="how long the lock of a running task outlives its last renewal (every third of it)"),
    Row(attribute="lock_queue_ttl", setting="redislock_queue_ttl", default=3600.0, kind=Seconds(),
        meaning="how long the lock of a queued task outlives its last sign of life; a countdown is added"),
    Row(attribute="lock_max_hold", setting="redislock_max_hold", default=None, kind=Seconds(),
        default_note="the hard time limit + 10 s, if there is one, and at least twice `lock_ttl`",
        is_of_a_lease=True, meaning="longest time one run may hold its lock; longer than `lock_ttl`"),
    Row(attribute="lock_debounce", default=None, kind=Seconds(least=1.0), default_note="none",
        meaning="a call starts when no other one has been made for so long, with the last one's arguments; "
        "`on_conflict` is `'coalesce'` then"),
    Row(attribute="lock_debounce_max", default=None, kind=Seconds(least=1.0), default_note="none",
        meaning="and so long after the first call in any case; without it calls that keep coming put it off "
        "for ever"),
    Row(attribute="lock_rate", default=None, kind=RATE, default_note="none", is_of_a_lease=True,
        meaning="how many runs of one key may start in any span of that length; what is over waits in line, "
        "in order, or is skipped or refused, as `on_conflict` says"),
    Row(attribute="lock_wait_timeout", default=None, kind=Seconds(), default_note="none",
        meaning="longest time in line; then the task fails with `LockBusy`, within about two seconds"),
    Row(attribute="lock_max_waiting", setting="redislock_max_waiting", default=10_000, kind=COUNT,
        meaning="messages that may wait in line for one key; a further message is tried again every "
        "`lock_retry_delay`"),
    Row(attribute="lock_retry_delay", setting="redislock_retry_delay", default=5.0, kind=Seconds(),
        meaning="after how long a message that cannot wait in line is tried again (the lock server is down, "
        "or the line is full)"),
    Row(setting="redislock_socket_timeout", default=1.0, kind=Seconds(),
        meaning="how long one answer of the lock server may take; every call is bounded by twice this"),
    Row(setting="redislock_start_timeout", default=10.0, kind=Seconds(),
        meaning="how long a worker tries to reach a silent lock server before it publishes the task again"),
    Row(setting="redislock_metrics", default=False, kind=FLAG,
        meaning="count on the lock server, in buckets, how long calls wait for their run and how long runs "
        "hold their lock, for `celery redislock exporter`"),
)  # fmt: skip

_WHEN_THINGS_FAIL = (
    Row(attribute="lock_period_on_failure", default="release", kind=one_of("keep", "release"),
        meaning="what happens to the period when a job ends without success: it goes on, or it ends, so that "
        "the job can be run again"),
    Row(attribute="lock_on_retry", default="keep", kind=one_of("keep", "release"), is_of_a_lease=True,
        meaning="what happens to the lock while a retry waits for its countdown: the job keeps it, or it is "
        "released, and after the countdown the retry goes before all that wait in line"),
    Row(attribute="lock_skip_result", default=None, kind=ANYTHING,
        default_note="none: state `REVOKED`",
        meaning="result of a duplicate that is skipped on the worker; the duplicate then ends in `SUCCESS`. "
        "Cannot be given for one call"),
    Row(attribute="on_lock_lost", setting="redislock_on_lock_lost", default="log",
        kind=one_of("log", "terminate", or_callable=True),
        is_of_a_lease=True, meaning="what happens to a run whose lock is lost"),
    Row(attribute="on_lock_error", setting="redislock_on_lock_error", default="raise",
        kind=one_of("raise", "run"),
        meaning="what happens when the lock server cannot be reached: fail visibly, or run without a lock"),
    Row(setting="redislock_restore", default=30.0, kind=Restore(usual=30.0), default_note="`True`: 30 s",
        meaning="after how long without a sign of life from a worker its unacknowledged messages of unique "
        "tasks go back to their queues (broker Redis or Valkey); `False`: after the visibility timeout"),
    Row(setting="redislock_catchup", default="one", kind=one_of("one", "none"),
        meaning="after all beats were down: Celery's one tick per entry, or none if it is over a minute "
        "late; an entry's option of this name wins"),
    Row(setting="redislock_fence", default="time", kind=one_of("time", "strict"),
        meaning="where fences come from: the server's clock, or a counter that survives a clock set back"),
    Row(setting="redislock_min_replicas", default=0, kind=REPLICAS,
        meaning="replicas that must have a lock before it counts (`WAIT`). With any value but 0 "
        "tasks lose the publish in one step"),
    Row(setting="redislock_check", default="warn", kind=one_of("ignore", "warn", "error"),
        meaning="what a worker does at start if settings, options or the lock server endanger locks: "
        "nothing, log, or not start; `'ignore'` keeps publishers silent about settings, too"),
)  # fmt: skip

#: All rows by what they are about, each group with its settings at its end.
GROUPS: Mapping[str, tuple[Row, ...]] = {
    "everyday": _EVERYDAY,
    "times and waiting": _TIMES,
    "when things fail": _WHEN_THINGS_FAIL,
}
ROWS: tuple[Row, ...] = tuple(row for rows in GROUPS.values() for row in rows)

#: The rows of task options, by attribute.
TASK_ROWS: Mapping[str, Row] = {row.attribute: row for row in ROWS if row.attribute is not None}
#: The rows that have a setting, by setting.
SETTING_ROWS: Mapping[str, Row] = {row.setting: row for row in ROWS if row.setting is not None}
#: The defaults of all options and settings, by attribute, or by setting where there is none.
DEFAULTS: Mapping[str, Any] = {row.name: row.default for row in ROWS}


def is_given(row: Row, value: object) -> bool:
    """Tell whether *value* decides, or leaves the decision to the next source."""
    return value is not INHERIT and (value is not None or row.name == "lock")
