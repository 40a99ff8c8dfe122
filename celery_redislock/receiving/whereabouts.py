"""Where the message of a task id is: workers, the broker and the result backend are asked, for operators."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from celery.states import READY_STATES, SUCCESS
from kombu.utils.encoding import bytes_to_str

from celery_redislock.declaring.options import LockSettings
from celery_redislock.publishing.message import Message
from celery_redislock.receiving.restore import run_script, worker_of
from celery_redislock.running.delivery import IN_HAND_OF

__all__ = ["Whereabouts", "find_message"]

#: Messages of a queue that one request looks at; and how many are looked at in all.
_AT_ONCE = 500
_MOST = 100_000

#: Seconds that workers have for their answers.
_PATIENCE = 1.0

#: What workers say of a task id, in their words and in ours.
_STATES = {"active": "running", "reserved": "received, and not started"}


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
    found = _with_workers(app, task_id) or _over(app, task_id)
    if found is not None:
        return found
    try:
        with app.connection_for_read() as connection:
            channel = connection.default_channel
            if not hasattr(channel, "unacked_key"):
                return _in_queues_unseen(app, channel)
            found = _in_queue(app, channel, task_id) or _unacknowledged(channel, settings, task_id)
    except Exception as error:  # noqa: BLE001  of any transport
        return Whereabouts("unknown", f"the broker could not be asked: {type(error).__name__}: {error}")
    if found is not None:
        return found
    if runs:
        return Whereabouts("running", "taken by a worker that does not answer, and without a result yet")
    nowhere = (
        "in no queue of this app, in no worker's hands, and without a result: it was purged, lost with the "
        "broker's data, never published, or its result was ignored or has expired"
    )
    return Whereabouts("unknown", nowhere)


def _with_workers(app: Any, task_id: str) -> Whereabouts | None:
    with suppress(Exception):  # no broker: told below
        answers = app.control.inspect(timeout=_PATIENCE).query_task([task_id]) or {}
        for worker, tasks in answers.items():
            state, _ = (tasks or {}).get(task_id) or (None, None)
            if state in _STATES:
                told = f"in the hands of worker {worker}: {_STATES[state]}"
                return Whereabouts("running" if state == "active" else "in hand", told)
    return None


def _over(app: Any, task_id: str) -> Whereabouts | None:
    with suppress(Exception):  # no backend, or one that is away
        meta = app.AsyncResult(task_id)._get_task_meta()
        state = meta.get("status")
        if state in READY_STATES:
            why = "" if state == SUCCESS else f": {str(meta.get('result'))[:200]}"
            return Whereabouts("over", f"its result says {state}{why}, {meta.get('date_done')}")
    return None


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
    for queue in app.amqp.queues.values():
        for step in channel.priority_steps:
            key = channel.global_keyprefix + channel._q_for_pri(queue.name, step)
            for start in range(0, _MOST, _AT_ONCE):
                length, place = run_script(channel, "seek", (key,), text, start, _AT_ONCE)
                if place:
                    consumers = _consumers(app, queue.name)
                    told = f"in the queue {queue.name!r}, number {place} of {length}. {consumers}"
                    return Whereabouts("queued", told)
                if start + _AT_ONCE >= length:
                    break
    return None


def _consumers(app: Any, queue: str | None = None) -> str:
    """Say who consumes a queue, or any."""
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
            return f"None of the {len(answers)} workers that answer consumes it: start one with -Q {queue}"
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
    keys = [channel.global_keyprefix + key for key in (channel.unacked_key, channel.unacked_index_key)]
    cursor = b"0"
    while True:
        cursor, *found = run_script(channel, "search", keys, cursor, text, 50)
        for entry in found[1::3]:
            with suppress(ValueError, LookupError, TypeError):
                yield json.loads(entry)[0]
        if cursor == b"0":
            return


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
