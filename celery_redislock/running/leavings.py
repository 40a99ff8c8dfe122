"""What a message leaves that does not run, or whose claim no lease has taken over.

Two tables say it: :class:`Fate` what becomes of its period, by what has become of it; :func:`_holds` where it
has a hold, by what its header says.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from shlex import quote
from typing import Any, Literal, NamedTuple

from celery_redislock.declaring.options import LockSettings
from celery_redislock.declaring.server import joined_for, settings_of, store_of
from celery_redislock.exceptions import RedisLockError
from celery_redislock.locks.keylock import KeyLock, LockByName
from celery_redislock.log import command, logger
from celery_redislock.publishing.message import Message
from celery_redislock.store.store import Mark

#: Seconds after which Redis delivers an unacknowledged message again (kombu 5.7.0, transport/redis.py).
DEFAULT_VISIBILITY_TIMEOUT = 3600.0

#: Seconds a done mark outlives the visibility timeout. That one begins when a message is received; then
#: kombu looks only every 100 s for what has to be delivered again (5.7.0, transport/redis.py), and that
#: message may wait in its queue behind others.
MARK_MARGIN = 3600.0

#: What becomes of a period; one that ``fails`` ends, unless ``lock_period_on_failure`` keeps it.
Period = Literal["stands", "ends", "fails"]


class _Leaves(NamedTuple):
    """What a message leaves beside its claim, which ends.

    Attributes:
        what: has become of it.
        period: of its job.
        of_copy: the same, where a body of the message may have run before.
        mark: what is noted for a run that the message follows, so that it makes no claim for it any more.
        claim: which claim is released. Its publisher may have missed the grant of one that the header does
            not name; only who has received the message asks for that.
    """

    what: str
    period: Period
    of_copy: Period
    mark: Literal["done"] | None = None
    claim: Literal["any", "named"] = "any"


class Fate(Enum):
    """What becomes of a message, and of its period: of a first delivery, and of a copy."""

    STARTS = _Leaves("its run starts, beside its claim", "stands", "stands")
    UNRUN = _Leaves("it will not run", "ends", "stands", mark="done")
    DROPPED = _Leaves("it will not run, and nobody can tell its lock", "ends", "stands", "done", "named")
    DIED_EARLY = _Leaves("its child died, and did not hold its lock", "fails", "stands")
    FAILED = _Leaves("its run died, or failed without its lock", "fails", "fails")
    SUCCEEDED = _Leaves("its run has ended well, without its lock", "stands", "stands")


def leave(
    lock: KeyLock, message: Message, fate: Fate, ttl: float, *, earlier: object, opened_by: str | None = None,
    release: Callable[..., object] = KeyLock.release,
) -> None:  # fmt: skip
    """Release what a message leaves, of which no lease has taken it over; never raises.

    Args:
        lock: of its key.
        message: its header, or what stands for one.
        fate: what becomes of it.
        ttl: seconds for which a mark is left.
        earlier: what says that it was delivered before, if something does.
        opened_by: token under which a period was opened that ends with a failure, if it does.
        release: releases a token's hold, now or later.
    """
    leaves = fate.value
    period = leaves.of_copy if earlier else leaves.period
    if period == "ends":
        opened_by = message.opened_by or message.token
    elif period == "fails":
        message = message._replace(opened_by=opened_by)
    else:
        opened_by = None
    more = {}
    if leaves.mark and message.must_run and release is KeyLock.release:
        more["mark"] = Mark(message.token, ttl, is_done=True)
    for each, token in _holds(lock, message, earlier, opened_by):
        release(each, token, opened_by=opened_by, **more)


def _holds(
    lock: KeyLock, message: Message, earlier: object, opened_by: str | None
) -> Iterator[tuple[KeyLock, str]]:
    """Yield each lock that a message may hold, and the token under which it does."""
    has_waited = message.parked_at is not None
    if earlier and has_waited:
        yield lock.of_message(message.token), message.token  # where it waited for a run of its own
    if message.stands_for_period:
        if opened_by is not None:
            yield lock, opened_by
    elif message.claimed_beside:
        if earlier or has_waited:
            # Requeued by its run, or handed the lock, it has its claim where a run's lease was.
            yield lock, message.token
        yield lock.of_queue(), message.token
    else:
        if opened_by is not None and message.opened_by:
            # In a scope of two locks the period is kept with the claims of calls, also for a retry.
            yield lock.of_queue(), opened_by
        yield lock, message.token


def release_dropped(
    app: Any, headers: Mapping[str, Any] | None, delivery_info: Any = None, fate: Fate = Fate.DROPPED, *,
    task_id: str | None = None,
) -> None:  # fmt: skip
    """Release what a message leaves of which no :class:`Delivery` can be made.

    The app's settings name the lock server, and errors are logged. ``task_id`` where the headers have none.
    """
    headers = headers or {}
    message = Message.of(headers, str(headers.get("id")) if task_id is None else task_id)
    if message is None or message.key is None:
        return
    if fate.value.claim == "named" and not message.claimed and message.parked_at is None:
        return
    earlier = message.was_delivered or (delivery_info or {}).get("redelivered")
    try:
        settings = settings_of(app)
        # Where locking is off, what was handed its lock is taken out of the line, or it would be sent again.
        if settings.enabled or message.parked_at is not None:
            lock = lock_by_name(app, settings, message.key)
            leave(lock, message, fate, mark_ttl(app), earlier=earlier)
    except RedisLockError as problem:
        logger.warning(
            "could not release the claim on %r, which is left to expire; to release it sooner: %s (%s)",
            message.key,
            command(f"redislock release --queued --reason TEXT -- {quote(message.key)}"),
            problem,
        )


def lock_by_name(app: Any, settings: LockSettings, key: str) -> KeyLock:
    """Return the lock of this name where no :class:`Delivery` can be made of its message."""
    store = store_of(app, settings)
    store = joined_for("", store) if " " in key else store
    return LockByName(store, key)


def visibility_timeout(app: Any) -> float:
    """Return the seconds after which the broker delivers an unacknowledged message again."""
    options = app.conf.broker_transport_options or {}
    return float(options.get("visibility_timeout") or DEFAULT_VISIBILITY_TIMEOUT)


def mark_ttl(app: Any) -> float:
    """Return the seconds within which a copy of a message may come, and so its done mark must live."""
    return visibility_timeout(app) + MARK_MARGIN
