"""Where the message of a task id is: workers, the broker and the result backend are asked, for operators."""

import json
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from typing import Any, NamedTuple, TypeVar

from celery.backends.base import DisabledBackend
from celery.states import READY_STATES, SUCCESS
from kombu.transport.virtual import Channel as VirtualChannel
from kombu.utils.encoding import bytes_to_str

from celery_redislock.declaring.options import LockSettings
from celery_redislock.publishing.message import Message
from celery_redislock.receiving.restore import run_script, search, worker_of
from celery_redislock.running.delivery import IN_HAND_OF
from celery_redislock.store.store import Promotion

T = TypeVar("T")

#: Messages of a queue that one request looks at, as a script copies what it reads; and how many in all.
_AT_ONCE = 100
_MOST = 100_000

#: Queues that are looked at because no worker consumes them, and messages of each that are read.
_MOST_IDLE = 50
_SOME = 10

#: Seconds that workers have for their answers; and within which each of those asked must have answered.
_PATIENCE = 1.0
_DEADLINE = 15.0

#: What RabbitMQ says of a queue that is not there.
NOT_FOUND = 404

#: What workers say of a task id, in their words and in ours.
_STATES = {"active": "running", "reserved": "received, and not started"}


class Whereabouts(NamedTuple):
    """Where a message is, as far as could be learnt.

    Attributes:
        state: ``running``, ``in hand``, ``queued``, ``over``, ``unknown``; ``unseen``: queued or lost, which
            the broker does not tell.
        told: the same for people, with what is known about the place.
        header: of its message, where that was seen.
    """

    state: str
    told: str
    header: Message | None = None


class Idle(NamedTuple):
    """A queue that no worker consumes: how many messages lie there, and the task ids of some of the first."""

    name: str
    length: int
    ids: tuple[str, ...] = ()


def find_message(app: Any, settings: LockSettings, task_id: str, *, runs: bool) -> Whereabouts:
    """Look for a message: in the hands of workers, in its queues, and at its result. Takes a second or two.

    What cannot be asked is told, and not raised. ``runs``: a run of it holds a lock.
    """
    troubles: list[str] = []
    found = _asked(troubles, "the workers", partial(_with_workers, app, task_id))
    found = found or _asked(troubles, "its result", partial(_over, app, task_id))
    found = found or _asked(troubles, "the broker", partial(_at_broker, app, settings, task_id))
    if runs and (found is None or found.state == "unseen"):
        told = "taken by a worker that does not answer, and without a result yet"
        again = "; if that is dead, and the task acks_late, it is queued again" if found else ""
        found = Whereabouts("running", told + again)
    nowhere = (
        "in no queue that is known, in no worker's hands, and without a result: it was purged, or lost with "
        "the broker's data; or its worker was killed while it ran, and it is not acks_late; or its "
        "result was ignored, or has expired"
    )
    found = found or Whereabouts("unknown", nowhere)
    return found._replace(told="; ".join([found.told, *troubles]))


def idle_queues(app: Any, consumed: Collection[str]) -> list[Idle]:
    """Return the queues that have messages, and are none of those that are ``consumed``; asks the broker.

    On kombu's Redis those that the app does not know, too, and task ids. Raises what the broker raises.
    """
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        if hasattr(channel, "unacked_key"):
            names = {*app.amqp.queues, *_bound(channel)}
            told = [name for name in names if not name.startswith("celeryev.") and ".pidbox" not in name]
            found = [_lying(channel, name) for name in sorted({*told} - {*consumed})[:_MOST_IDLE]]
        else:
            names = {*app.amqp.queues} - {*consumed}
            found = [_counted(connection, app.amqp.queues[name]) for name in sorted(names)[:_MOST_IDLE]]
    return [each for each in found if each.length]


def _lying(channel: Any, name: str) -> Idle:
    """Look at the end of a queue of kombu's Redis from which it is consumed."""
    length = 0
    ids: list[str] = []
    for step in channel.priority_steps:
        key = channel._q_for_pri(name, step)
        length += channel.client.llen(key)
        # Kombu (5.7) puts its prefix before the key of LLEN, and not of LRANGE.
        for payload in channel.client.lrange(channel.global_keyprefix + key, -_SOME, -1):
            with suppress(ValueError, LookupError, TypeError):
                ids.append(json.loads(payload)["headers"]["id"])
    return Idle(name, length, tuple(ids[:_SOME]))


def _counted(connection: Any, queue: Any) -> Idle:
    """Ask for the number of messages of a queue; a queue that is not declared has none."""
    with suppress(Exception), connection.channel() as channel:
        return Idle(queue.name, queue(channel).queue_declare(passive=True).message_count)
    return Idle(queue.name, 0)


def may_be_there(app: Any, promotion: Promotion) -> bool:
    """Whether a message that was published may be in its queue, or in a worker's hands; asks the broker.

    Kombu's Redis tells by the message's identity. Of other brokers the number of messages in its queue is
    known only. Raises what the broker raises.
    """
    said = json.loads(promotion.text)
    exchange, key = said["exchange"], said["routing_key"]
    queues = [key]
    if exchange:
        known = app.amqp.queues.values()
        queues = [each.name for each in known if each.exchange.name == exchange and each.routing_key == key]
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        if not hasattr(channel, "unacked_key"):
            return not queues or any(_is_filled(app.amqp.queues[queue](channel)) for queue in queues)
        # In its header, which is JSON in JSON.
        text = json.dumps(json.dumps(promotion.id)[1:-1])[1:-1]
        # What was not seen yet may be further behind.
        return any(True for _ in _places(channel, queues, text)) or any(search(channel, text))


def _is_filled(queue: Any) -> bool:
    """Whether a queue has messages that are ready."""
    try:
        return bool(queue.queue_declare(passive=True).message_count)
    except Exception as error:
        if getattr(error, "reply_code", None) == NOT_FOUND:
            return False
        raise


def _asked(troubles: list[str], whom: str, ask: Callable[[], Whereabouts | None]) -> Whereabouts | None:
    """Ask, for so long as an operator waits; note what keeps it from answering."""
    try:
        return within(_DEADLINE, ask)
    except Exception as error:  # noqa: BLE001  of any transport and backend
        troubles.append(f"{whom} could not be asked: {type(error).__name__}: {str(error)[:200]}")
        return None


def within(seconds: float, ask: Callable[[], T]) -> T:
    """Return what is asked for, in a thread of its own; a broker that is silent may hold that up for ever.

    Raises:
        TimeoutError: it did not answer within so many seconds; and what the question raises.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:  # noqa: BLE001  raised below
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([answer], seconds).done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answer.result()


def _with_workers(app: Any, task_id: str) -> Whereabouts | None:
    answers = app.control.inspect(timeout=_PATIENCE).query_task([task_id]) or {}
    for worker, tasks in answers.items():
        state, _ = (tasks or {}).get(task_id, (None, None))
        if state in {None, "scheduled"}:  # when that one is due is asked below
            continue
        told = f"in the hands of worker {worker}: {_STATES.get(state, state)}"
        return Whereabouts("running" if state == "active" else "in hand", told)
    return None


def _scheduled(app: Any, task_id: str) -> tuple[Iterable[str], str]:
    """Return which workers answer, and what they say of a message that waits for its time; '' for nothing.

    By its id they do not know a retry any more: they forget the id when the run before it ends.
    """
    answers = app.control.inspect(timeout=_PATIENCE).scheduled() or {}
    for worker, entries in answers.items():
        for entry in entries or ():
            if entry["request"]["id"] == task_id:
                left = (datetime.fromisoformat(entry["eta"]) - datetime.now(timezone.utc)).total_seconds()
                return answers, f"held back by worker {worker}, which answers; due in {max(0.0, left):.0f} s"
    return answers, ""


def _over(app: Any, task_id: str) -> Whereabouts | None:
    if isinstance(app.backend, DisabledBackend):
        return None
    meta = app.AsyncResult(task_id)._get_task_meta()
    state = meta.get("status")
    if state not in READY_STATES:
        return None
    result = meta.get("result")
    why = "" if state == SUCCESS else f": {type(result).__name__}: {str(result)[:200]}"
    return Whereabouts("over", f"its result says {state}{why}, {meta.get('date_done')}")


def _at_broker(app: Any, settings: LockSettings, task_id: str) -> Whereabouts | None:
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        if hasattr(channel, "unacked_key"):
            return _unacknowledged(app, channel, settings, task_id) or _in_queue(app, channel, task_id)
        _, told = _scheduled(app, task_id)
        return Whereabouts("in hand", told) if told else _in_queues_unseen(app, channel)


def _in_queues_unseen(app: Any, channel: Any) -> Whereabouts:
    """Say what can be said of a broker whose queues cannot be looked into."""
    sizes = []
    for queue in app.amqp.queues.values():
        with suppress(Exception):  # a queue that is not declared yet
            there = queue(channel).queue_declare(passive=True)
            # Kombu's own transports say 0 of every queue.
            is_idle = not there.consumer_count and not isinstance(channel, VirtualChannel)
            idle = ", which nobody consumes" if is_idle else ""
            sizes.append(f"{there.message_count} in {queue.name!r}{idle}")
    told = (
        "in the hands of no worker that answers, and without a result: it is queued, or lost. This broker's "
        f"queues cannot be looked into; messages there: {', '.join(sizes) or 'none'}. {told_of_workers(app)}"
    )
    return Whereabouts("unseen", told)


def _in_queue(app: Any, channel: Any, task_id: str) -> Whereabouts | None:
    text = f'"id": {json.dumps(task_id)}'
    unseen = []
    for queue, place in _places(channel, sorted({*app.amqp.queues, *_bound(channel)}), text):
        if place is None:
            unseen.append(queue)
            continue
        number, length, payload = place
        told = f"in the queue {queue!r}, number {number} of {length}. {told_of_workers(app, queue)}"
        return Whereabouts("queued", told, Message.of(json.loads(payload).get("headers"), task_id))
    if unseen:
        first = f"the first {_MOST} messages of {', '.join(unseen)}"
        return Whereabouts("unknown", f"not among {first}, and in no other queue: it may be further behind")
    return None


def _places(
    channel: Any, queues: Iterable[str], text: str
) -> Iterator[tuple[str, tuple[int, int, bytes] | None]]:  # fmt: skip
    """Yield where a text is in queues of kombu's Redis; ``None`` for one seen in part.

    That is its number, the queue's length, and the message.
    """
    for queue in queues:
        for step in channel.priority_steps:
            key = channel.global_keyprefix + channel._q_for_pri(queue, step)
            start = length = 0
            while start <= length and start < _MOST:
                length, place, payload = run_script(channel, "seek", (key,), text, start, _AT_ONCE)
                if place:
                    yield queue, (place, length, payload)
                    return
                start += _AT_ONCE
            if start < length:
                yield queue, None


def _bound(channel: Any) -> Iterator[str]:
    """Yield the queues that have been declared at the broker, which this app need not know."""
    cursor = b"0"
    while True:
        pattern = f"{channel.global_keyprefix}_kombu.binding.*"
        cursor, *bindings = run_script(channel, "bindings", (), cursor, pattern)
        for binding in bindings:
            yield bytes_to_str(binding).rpartition(channel.sep)[2]
        if cursor == b"0":
            return


def told_of_workers(app: Any, queue: str | None = None) -> str:
    """Say which workers answer, of those that consume a queue or of all, and what to do if none does."""
    if not app.conf.worker_enable_remote_control:
        return "Workers cannot be asked (worker_enable_remote_control is off)"
    with suppress(Exception):
        answers: Mapping[str, Any] = app.control.inspect(timeout=_PATIENCE).active_queues() or {}
        workers = [
            worker
            for worker, queues in answers.items()
            if queue is None or any(each.get("name") == queue for each in queues or ())
        ]
        if workers:
            who = ", ".join(sorted(workers)[:3]) + (" and others" if len(workers) > 3 else "")
            return f"Consumed by {who}" if queue else f"Workers that answer: {who}"
        if answers:
            return f"None of the workers that answer ({len(answers)}) consumes it: start one with -Q {queue}"
    return "No worker answers: start one"


def _unacknowledged(app: Any, channel: Any, settings: LockSettings, task_id: str) -> Whereabouts | None:
    """Look among what workers have in hand, those that do not answer too."""
    payload = _first_unacknowledged(channel, f'"id": {json.dumps(task_id)}')
    if payload is None:
        return None
    name = str((payload.get("properties") or {}).get(IN_HAND_OF, "")).rstrip("+")
    workers, told = _scheduled(app, task_id)
    told = told or _told_of_bearer(channel, settings, name, workers)
    return Whereabouts("in hand", told, Message.of(payload.get("headers"), task_id))


def _first_unacknowledged(channel: Any, text: str) -> Any:
    """Return the first unacknowledged message with this text that can be read; ``None`` if there is none."""
    for found in search(channel, text):
        for _, entry, _ in found:
            with suppress(ValueError, LookupError, TypeError):
                return json.loads(entry)[0]
    return None


def _told_of_bearer(channel: Any, settings: LockSettings, name: str, workers: Iterable[str]) -> str:
    """Say whose name that is, and when what it has in hand is back in its queue, unless it answers."""
    told = "in the hands of a worker that does not answer"
    if not name:
        return f"{told}; it is back in its queue after the broker's visibility timeout"
    names = f"{channel.global_keyprefix}{settings.prefix}:workers"
    bearer, lapses_in = run_script(channel, "bearer", (names, f"{names}:bearers"), name)
    who = worker_of(bytes_to_str(bearer))
    if any(who.startswith(f"the worker {node} (") for node in workers):
        return f"in the hands of {who}, which answers, and has it neither running nor waiting for its time"
    told += f": {who}" if bearer else ""
    if lapses_in:
        return f"{told}; if it is dead, the message is back in its queue in {lapses_in / 1000:.0f} s or so"
    return f"{told}; its name has lapsed, so the message is back in its queue once a worker of the app looks"
