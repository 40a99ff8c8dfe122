"""What a worker had in hand whose name has lapsed goes back to its queue. kombu's Redis transport.

The worker is gone, or has another name since it has connected anew (``receiving/in_hand.py``).

The claims of these messages stay as they are, so that calls remain duplicates of a message that is about to
run. What is decided for each, by what its locks say::

    a run of it holds a lease          not yet: looked at again until the lease has ended
    its claim is held                  it had not begun: restored
    its claim is gone                  it had begun; acknowledged late: counted and restored; else left alone
                                       a retry that was not due had not: its run died before it left a claim
    it has no claim that could tell    acknowledged late: counted and restored; else restored

What had begun is counted, because it may have killed its worker: after three deaths within a day it is left
to the visibility timeout. What is left alone is delivered again after that, as without this module.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from shlex import quote
from typing import Any, NamedTuple

from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.exceptions import InconsistencyError
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

from celery_redislock.declaring.options import LockSettings
from celery_redislock.exceptions import RedisLockError
from celery_redislock.log import command, logger
from celery_redislock.publishing.message import Message
from celery_redislock.running.delivery import IN_HAND_OF
from celery_redislock.running.leavings import lock_by_name
from celery_redislock.store.store import RUNNING
from celery_redislock.wire.scripts import script
from celery_redislock.wire.thread import tell

#: The end of a name in a message that is acknowledged when its body has ended.
LATE = "+"

#: Workers that may die within a day while they run a message, until it is left to the visibility timeout.
MOST_DEATHS = 3

#: Entries of ``unacked`` that one request looks at. A script copies what it reads: half a millisecond of the
#: server with messages of 1 kB, ten with 100 kB.
_AT_ONCE = 50

#: The commands that put a message where kombu's Redis takes the next one, or the last one.
_AT_FRONT = "RPUSH"
_AT_END = "LPUSH"

#: What has become of a message in the hands of its worker.
_WAITS = "waits"
_HAS_BEGUN = "has begun"
_RUNS = "runs"
_UNKNOWN = "unknown"


class Unacked(NamedTuple):
    """A message in ``unacked``.

    Attributes:
        tag: its delivery tag, which it keeps when it is restored and received again.
        text: as kombu has stored it: JSON of the payload, the exchange and the routing key.
        received: seconds since the epoch, by the clock of the worker that had it.
        is_late: it is acknowledged when its body has ended.
        due: when it may begin, in seconds since the epoch; 0 where it says no time.
        message: our header.
    """

    tag: str
    text: bytes
    received: float
    payload: dict[str, Any]
    exchange: str
    routing_key: str
    is_late: bool
    due: float
    message: Message

    def __str__(self) -> str:
        """As Celery's own log lines name a task."""
        return f"{self.payload['headers'].get('task')}[{self.payload['headers'].get('id')}]"


class Restorer:
    """Restores what lapsed workers had in hand. Used by the thread that renews a worker's name."""

    def __init__(self, app: Any, settings: LockSettings) -> None:
        """For the messages of this app; sends nothing yet."""
        self._app = app
        self._settings = settings

    def restore(self, channel: Any, name: str, bearer: str) -> Generator[None, None, None]:
        """Restore what a worker had in hand, a step at a time; forget its name when nothing is left.

        Between the steps the caller renews its own name. Raises what broker and lock server raise: then the
        name is given to the next worker that asks.
        """
        found: dict[str, Unacked] = {}
        for some in search(channel, name):
            entries = [_read(name, *each) for each in some]
            found.update((entry.tag, entry) for entry in entries if entry is not None)
            yield
        for queue in self._app.amqp.queues.values():
            if queue.exchange.name:  # a fresh connection knows no types of exchanges; this sends nothing
                queue.exchange(channel).declare()
        waiting: list[Unacked] = []
        begun: list[Unacked] = []
        is_done = True
        # Each goes to the front of its queue, so the one received last goes first.
        for entry in sorted(found.values(), key=lambda entry: -entry.received):
            state = self._state_of(entry)
            yield
            if state == _RUNS:
                is_done = False
            elif state == _HAS_BEGUN and not entry.is_late:
                continue  # about to be acknowledged
            elif _has_queue(channel, entry):
                (waiting if state == _WAITS or not entry.is_late else begun).append(entry)
        restored = 0
        for start in range(0, len(waiting), _AT_ONCE):
            restored += self._count(_push(channel, waiting[start : start + _AT_ONCE]))
            yield
        # One of these may have killed the worker, and kill this one before it has restored the others.
        for entry in begun:
            restored += self._restore_begun(channel, entry)
            yield
        if restored:
            line = (
                "no sign of life of %s for %g s over the connection that it had: "
                "%d messages that it had in hand are back in their queues; "
                "see whether it was killed, maybe for its memory, or cut off"
            )
            tell(logger.warning, line, worker_of(bearer), self._settings.restore, restored)
        if is_done:
            names = f"{channel.global_keyprefix}{self._settings.prefix}:workers"
            run_script(channel, "forget", (f"{names}:taken", f"{names}:bearers"), name)

    def _state_of(self, entry: Unacked) -> str:
        """Ask the lock server what has become of a message."""
        message = entry.message
        lock = lock_by_name(self._app, self._settings, str(message.key))
        locks = [lock, lock.of_message(message.token)]
        if message.claimed_beside:
            locks.append(lock.of_queue())
        has_claim = False
        for one in locks:
            holders = one.store.holders(one.key, to_decide=True)
            hold = next((each for each in holders if each.message == message.token), None)
            if hold is None:
                continue
            if hold.state != RUNNING:
                has_claim = not message.stands_for_period  # that one stays when a run begins
            elif one.release_if_dead(hold):
                return _HAS_BEGUN
            else:
                return _RUNS
        if has_claim:
            return _WAITS
        if not message.claimed or message.stands_for_period:
            return _UNKNOWN
        ttl = self._settings.restore
        was_due = entry.due <= time.time() - ttl + ttl / 15  # its worker lived one pause longer at most
        return _HAS_BEGUN if was_due else _WAITS

    def _restore_begun(self, channel: Any, entry: Unacked) -> int:
        """Restore a message whose run has died, unless too many have; return how many were restored."""
        key = f"{channel.global_keyprefix}{self._settings.prefix}:deaths:{entry.message.token}"
        deaths = run_script(channel, "count_death", (key,))
        if deaths > MOST_DEATHS:
            line = "%s is left to the visibility timeout: %d workers have died that ran it; to give it up: %s"
            revoke = command(f"control revoke {quote(str(entry.payload['headers']['id']))}")
            tell(logger.warning, line, entry, deaths, revoke)
            return 0
        # From the second death on at the end of its queue, where it keeps no others from running.
        return self._count(_push(channel, [entry], _AT_END if deaths > 1 else _AT_FRONT))

    def _count(self, moved: Sequence[Unacked]) -> int:
        """Count messages that were restored, for operators; return how many."""
        for entry in moved:
            with suppress(RedisLockError):
                lock = lock_by_name(self._app, self._settings, str(entry.message.key))
                lock.store.happened(lock.key, task=str(entry.payload["headers"].get("task")), what="restored")
        return len(moved)


def _read(name: str, tag: bytes, text: bytes, received: bytes) -> Unacked | None:
    """Read an entry of ``unacked`` in which the name stands; ``None`` where it is not for us."""
    try:
        payload, exchange, routing_key = loads(bytes_to_str(text))
        in_hand_of = payload["properties"][IN_HAND_OF]
        headers = payload["headers"]
        message = Message.of(headers, str(headers["id"]))
        eta = headers.get("eta")
        due = maybe_make_aware(maybe_iso8601(eta)).timestamp() if eta else 0.0
        is_named = in_hand_of.removesuffix(LATE) == name
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        line = "an entry of the broker's unacked messages cannot be read, and is left alone: %.300r (%r)"
        tell(logger.warning, line, text, error)
        return None
    if not is_named or message is None or message.key is None:
        return None
    is_late = in_hand_of.endswith(LATE)
    at = float(received)
    return Unacked(bytes_to_str(tag), text, at, payload, exchange, routing_key, is_late, due, message)


def search(channel: Any, text: str) -> Iterator[list[tuple[bytes, bytes, bytes]]]:
    """Yield the unacknowledged messages with this text, some at a time: tag, JSON, when it was received."""
    keys = [channel.global_keyprefix + key for key in (channel.unacked_key, channel.unacked_index_key)]
    cursor = b"0"
    while True:
        cursor, *found = run_script(channel, "search", keys, cursor, text, _AT_ONCE)
        yield [*zip(found[::3], found[1::3], found[2::3], strict=True)]
        if cursor == b"0":
            return


def worker_of(bearer: str) -> str:
    """Name the worker that says this about itself."""
    try:
        about = loads(bearer)
        return f"the worker {about['node']} (pid {about['pid']} on {about['host']})"
    except (ValueError, LookupError, TypeError):
        return "a worker"


def _has_queue(channel: Any, entry: Unacked) -> bool:
    """Whether any queue would get the message; if not, kombu would delete it (5.7.0, transport/redis.py)."""
    try:
        queues = channel._lookup(entry.exchange, entry.routing_key)
    except InconsistencyError:  # of an exchange that nothing is bound to (kombu 5.5.2)
        queues = ()
    if not queues:
        line = (
            "%s, which a lapsed worker has in hand, is left to the visibility timeout: no queue for %r; "
            "start a worker that consumes it"
        )
        tell(logger.warning, line, entry, entry.exchange or entry.routing_key)
    return bool(queues)


class _Pushes(list[tuple[str, str]]):
    """Stands in for kombu's pipeline: collects what it would push, instead of pushing it."""

    def push(self, queue: str, text: str) -> None:
        self.append((queue, text))

    rpush = lpush = push


def _push(channel: Any, entries: Sequence[Unacked], push: str = _AT_FRONT) -> list[Unacked]:
    """Move entries from ``unacked`` to their queues, as kombu's ``restore_by_tag`` does; return those moved.

    Atomic; each only if it is still there as it was found.
    """
    keys = [channel.unacked_key, channel.unacked_index_key]
    arguments: list[Any] = [push]
    for entry in entries:
        pushes = _Pushes()
        channel._do_restore_message(entry.payload, entry.exchange, entry.routing_key, pushes)
        keys += [queue for queue, _ in pushes]
        arguments += [entry.tag, entry.text, len(pushes), *(text for _, text in pushes)]
    moved = set(run_script(channel, "restore", [channel.global_keyprefix + key for key in keys], *arguments))
    restored = [entry for entry in entries if entry.tag.encode() in moved]
    for entry in restored:
        tell(logger.info, "%s is back in its queue", entry)
    return restored


def run_script(channel: Any, name: str, keys: Sequence[str], *arguments: Any) -> Any:
    """Run a script of this room on the broker; keys in full, as kombu's client puts no prefix before them."""
    client = channel.__dict__.get("redislock_client")
    if client is None:  # made anew for each request it would cost as much as the request
        client = channel.redislock_client = channel._create_client()
    return client.eval(script(name, __package__)[0], len(keys), *keys, *arguments)
