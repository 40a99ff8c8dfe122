"""Where the message of a task id is: workers, the broker and the result backend are asked, for operators."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from celery.backends.base import DisabledBackend
from celery.states import READY_STATES, SUCCESS
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

#: Seconds that workers have for their answers; and within which each of those asked must have answered.
_PATIENCE = 1.0
_DEADLINE = 15.0

#: What RabbitMQ says of a queue that is not there.
NOT_FOUND = 404

#: What workers say of a task id, in their words and in ours.
_STATES = {"active": "running", "reserved": "received, and not started", "scheduled": "waits for its time"}


class Whereabouts(NamedTuple):
    """Where a message is, as far as could be learnt.

    Attributes:
        state: ``running``, ``in hand``, ``queued``, ``over`` or ``unknown``.
        told: the same for people, with what is known about the place.
        key: that its header names, where that was seen.
    """

    state: str
    told: str
    key: str | None = None


def find_message(app: Any, settings: LockSettings, task_id: str, *, runs: bool) -> Whereabouts:
    """Look for a message: in the hands of workers, in its queues, and at its result. Takes a second or two.

    What cannot be asked is told, and not raised. ``runs``: a run of it holds a lock.
    """
    troubles: list[str] = []
    found = _asked(troubles, "the workers", partial(_with_workers, app, task_id))
    found = found or _asked(troubles, "its result", partial(_over, app, task_id))
    found = found or _asked(troubles, "the broker", partial(_at_broker, app, settings, task_id))
    if found is None and runs:
        told = "taken by a worker that does not answer, and without a result yet"
        found = Whereabouts("running", told)
    nowhere = (
        "in no queue that is known, in no worker's hands, and without a result: it was purged, or lost with "
        "the broker's data; or its worker was killed while it ran, and it is not acks_late; or its "
        "result was ignored, or has expired"
    )
    found = found or Whereabouts("unknown", nowhere)
    return found._replace(told="; ".join([found.told, *troubles]))


def may_be_there(app: Any, promotion: Promotion) -> bool:
    """Whether a message that was published may be in its queue, or in a worker's hands; asks the broker.

    Kombu's Redis tells by the message's identity. Of other brokers the number of messages in its queue is
    known only. Raises what the broker raises.
    """
    said = json.loads(promotion.text)
    exchange, key = said["exchange"], said["routing_key"]
    queues = [said["queue"] or key]
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
    answers: list[tuple[T | None, Exception | None]] = []

    def run() -> None:
        try:
            answers.append((ask(), None))
        except Exception as error:  # noqa: BLE001  raised below
            answers.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not answers:
        raise TimeoutError(f"no answer within {seconds:g} s")
    answer, error = answers[0]
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]  # without an error it is there


def _with_workers(app: Any, task_id: str) -> Whereabouts | None:
    answers = app.control.inspect(timeout=_PATIENCE).query_task([task_id]) or {}
    for worker, tasks in answers.items():
        if not (tasks or {}).get(task_id):
            continue
        state, info = tasks[task_id]
        eta = info.get("eta") if isinstance(info, Mapping) else None
        when = f", due {eta}" if eta and state != "active" else ""
        told = f"in the hands of worker {worker}: {_STATES.get(state, state)}{when}"
        return Whereabouts("running" if state == "active" else "in hand", told)
    return None


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
        if not hasattr(channel, "unacked_key"):
            return _in_queues_unseen(app, channel)
        return _unacknowledged(channel, settings, task_id) or _in_queue(app, channel, task_id)


def _in_queues_unseen(app: Any, channel: Any) -> Whereabouts:
    """Say what can be said of a broker whose queues cannot be looked into."""
    sizes = []
    for queue in app.amqp.queues.values():
        with suppress(Exception):  # a queue that is not declared yet
            sizes.append(f"{queue(channel).queue_declare(passive=True).message_count} in {queue.name!r}")
    told = (
        "in the hands of no worker that answers, and without a result: it is queued, or lost. This broker's "
        f"queues cannot be looked into; messages there: {', '.join(sizes) or 'none'}. {_consumers(app)}"
    )
    return Whereabouts("unknown", told)


def _in_queue(app: Any, channel: Any, task_id: str) -> Whereabouts | None:
    text = f'"id": {json.dumps(task_id)}'
    unseen = []
    for queue, place in _places(channel, sorted({*app.amqp.queues, *_bound(channel)}), text):
        if place is None:
            unseen.append(queue)
            continue
        told = f"in the queue {queue!r}, number {place[0]} of {place[1]}. {_consumers(app, queue)}"
        return Whereabouts("queued", told)
    if unseen:
        first = f"the first {_MOST} messages of {', '.join(unseen)}"
        return Whereabouts("unknown", f"not among {first}, and in no other queue: it may be further behind")
    return None


def _places(
    channel: Any, queues: Iterable[str], text: str
) -> Iterator[tuple[str, tuple[int, int] | None]]:  # fmt: skip
    """Yield where a text is in queues of kombu's Redis: number and length; ``None`` for one seen in part."""
    for queue in queues:
        for step in channel.priority_steps:
            key = channel.global_keyprefix + channel._q_for_pri(queue, step)
            start = length = 0
            while start <= length and start < _MOST:
                length, place = run_script(channel, "seek", (key,), text, start, _AT_ONCE)
                if place:
                    yield queue, (place, length)
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


def _consumers(app: Any, queue: str | None = None) -> str:
    """Say who consumes a queue, or any."""
    if not app.conf.worker_enable_remote_control:
        return "Which workers consume it, nobody can ask (worker_enable_remote_control is off)"
    with suppress(Exception):
        answers: Mapping[str, Any] = app.control.inspect(timeout=_PATIENCE).active_queues() or {}
        workers = [
            worker
            for worker, queues in answers.items()
            if queue is None or any(each.get("name") == queue for each in queues or ())
        ]
        if workers:
            return f"Consumed by {', '.join(sorted(workers)[:3])}{' and others' if len(workers) > 3 else ''}"
        if answers:
            return f"None of the workers that answer ({len(answers)}) consumes it: start one with -Q {queue}"
    return "No worker answers: start one"


def _unacknowledged(channel: Any, settings: LockSettings, task_id: str) -> Whereabouts | None:
    """Look among what workers have in hand, those that do not answer too."""
    for payload in _entries(channel, f'"id": {json.dumps(task_id)}'):
        headers = payload.get("headers") or {}
        message = Message.of(headers, task_id)
        name = str((payload.get("properties") or {}).get(IN_HAND_OF, "")).rstrip("+")
        told = f"in the hands of a worker that does not answer{_bearer(channel, settings, name)}"
        return Whereabouts("in hand", told, message.key if message else None)
    return None


def _entries(channel: Any, text: str) -> Iterator[dict[str, Any]]:
    for found in search(channel, text):
        for _, entry, _ in found:
            with suppress(ValueError, LookupError, TypeError):
                yield json.loads(entry)[0]


def _bearer(channel: Any, settings: LockSettings, name: str) -> str:
    """Say whose name that is, and when what it has in hand is back in its queue."""
    after = "; it is back in its queue after the broker's visibility timeout"
    if not name:
        return after
    names = f"{channel.global_keyprefix}{settings.prefix}:workers"
    bearer, lapses_in = run_script(channel, "bearer", (names, f"{names}:bearers"), name)
    who = f": {worker_of(bytes_to_str(bearer))}" if bearer else ""
    if lapses_in:
        return f"{who}; if it is dead, the message is back in its queue in {lapses_in / 1000:.0f} s or so"
    return f"{who}; its name has lapsed, so the message is back in its queue once a worker of the app looks"
