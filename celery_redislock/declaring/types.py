"""Types of options, for checkers and for annotations. Nothing here is needed to run."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from celery_redislock.declaring.scopes import Conflict, ScopeName, Side, Skip, Strategy
from celery_redislock.declaring.table import INHERIT

if TYPE_CHECKING:
    from celery_redislock.locks.lease import Lease
    from celery_redislock.locks.lock import Lock

__all__ = [
    "INHERIT", "CallOptions", "ConflictChoice", "ErrorChoice", "FailureChoice", "KeyChoice", "LimitChoice",
    "LockChoice", "LossChoice", "RetryChoice", "ScopeName", "Seconds", "Side", "Strategies", "Strategy",
    "StrategyChoice", "TaskOptions",
]  # fmt: skip

#: A duration: seconds, or a ``timedelta``.
Seconds: TypeAlias = float | timedelta
#: ``lock``: a scope; ``None`` or ``False`` for no lock.
LockChoice: TypeAlias = ScopeName | Literal[False] | None
#: ``lock_key``: some of the arguments, a resource, several of them (``Resources``, a tuple), or a callable
#: that is given the arguments by name.
KeyChoice: TypeAlias = (
    str | tuple[str, ...] | list[str] | Callable[[Mapping[str, Any]], str | tuple[Any, ...]] | None
)
#: ``lock_limit``: how many may hold one key, or a callable that is given the arguments by name.
LimitChoice: TypeAlias = int | Callable[[Mapping[str, Any]], int] | None
#: A strategy, or a callable that is given the conflict and returns one, or a ``Skip``.
StrategyChoice: TypeAlias = Strategy | Callable[[Conflict], str | Skip]


class Strategies(TypedDict, total=False):
    """``on_conflict`` side by side; ``None`` leaves a side its default."""

    client: StrategyChoice | None
    server: StrategyChoice | None


#: ``on_conflict``: one for all sides, or one for each.
ConflictChoice: TypeAlias = StrategyChoice | Strategies | None


#: ``lock_rate``: starts in any span, ``"10/m"``; or two of them.
RateChoice: TypeAlias = str | Sequence[str] | None

#: ``on_lock_lost``: what happens to a run whose lock is lost; a callable is given the lease.
LossChoice: TypeAlias = Literal["log", "terminate"] | Callable[["Lease"], object] | None
#: ``on_lock_error``: what happens when the lock server cannot be reached.
ErrorChoice: TypeAlias = Literal["raise", "run"] | None
#: ``lock_period_on_failure``: what becomes of the period of a job that ends without success.
FailureChoice: TypeAlias = Literal["keep", "release"] | None

#: ``lock_on_retry``: what becomes of the lock while a retry waits for its countdown.
RetryChoice: TypeAlias = Literal["keep", "release"] | None


class _Options(TypedDict, total=False):
    lock: LockChoice
    lock_key: KeyChoice
    on_conflict: ConflictChoice
    lock_debounce: Seconds | None
    lock_debounce_max: Seconds | None
    lock_rate: RateChoice
    lock_limit: LimitChoice
    lock_ttl: Seconds | None
    lock_queue_ttl: Seconds | None
    lock_max_hold: Seconds | None
    lock_period: Seconds | None
    lock_period_on_failure: FailureChoice
    lock_retry_delay: Seconds | None
    lock_max_waiting: int | None
    lock_on_retry: RetryChoice
    lock_wait_timeout: Seconds | None
    on_lock_error: ErrorChoice


class TaskOptions(_Options, total=False):
    """A task's options, for a decorator whose keywords a checker does not look at: ``**TaskOptions(…)``."""

    on_lock_lost: LossChoice
    lock_skip_result: Any
    lock_describe: str | None


class LockTerms(TypedDict, total=False):
    """Keywords of a ``Lock``; see :class:`celery_redislock.locks.Lock`."""

    ttl: float
    wait: float | None
    token: str | None
    owner: str | None
    auto_renew: bool
    reentrant: bool
    on_lost: Callable[["Lock"], None] | None
    on_state: Callable[["Lock", str], None] | None
    margin: float
    lock_delay: float


class CallOptions(_Options, total=False):
    """Keywords of ``apply_async``: this package's, and those Celery documents (celery 5.7.0, app/task.py)."""

    on_lock_lost: Literal["log", "terminate"] | None

    add_to_parent: bool
    compression: str | None
    connection: Any
    countdown: float | None
    delivery_mode: int | str
    eta: datetime | None
    exchange: str | Any
    expires: float | datetime | None
    headers: Mapping[str, Any] | None
    ignore_result: bool
    mandatory: bool
    parent_id: str | None
    priority: int | None
    publisher: Any
    queue: str | Any | None
    reply_to: str | None
    retry: bool
    retry_policy: Mapping[str, Any]
    root_id: str | None
    routing_key: str | None
    serializer: str | None
    soft_time_limit: float | None
    time_limit: float | None
