"""What needs somebody: dead holders, lines that stand still, and what else does not end by itself."""

import math
import shlex
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from celery_redislock.declaring.declaration import declaration_of, is_unique
from celery_redislock.exceptions import RedisLockError
from celery_redislock.operating import telling
from celery_redislock.operating.held import ORDERS
from celery_redislock.operating.server import LockServer
from celery_redislock.publishing.handle import Holder
from celery_redislock.store.store import short
from celery_redislock.web.around import Around
from celery_redislock.web.sample import Sample

#: Seconds after which a queued call is told that lies in a queue without a consumer, or has no worker at all.
QUEUED_FOR_LONG = 60.0

#: Seconds after which an entry is told that a beat has begun to send.
SENDING_FOR_LONG = 60.0

#: Ticks skipped one after the other, from which on an entry is told.
IN_A_ROW = 2

#: Of each kind so many are told.
MOST = 100


SCHEDULE = "schedule"
SET_UP = "set-up"


class Need(NamedTuple):
    """What somebody should look at: its kind; a key, an entry or a queue; why, and what to type."""

    kind: str
    subject: str
    told: str
    command: str = ""
    is_bad: bool = True


def needs(server: LockServer, sample: Sample, around: Around) -> list[Need]:
    """Return what needs somebody, what is worst first; empty on a good day."""
    return [
        *_dead(server, sample),
        *_headless(server, sample, around),
        *_foreign(server, sample),
        *_full(server, sample),
        *_idle(server, sample, around),
        *islice(_entries(server, around), MOST),
        *_set_up(server, sample, around),
    ]


def explaining(server: LockServer, subject: str) -> str:
    """Return the command that explains a key, a task or a task id."""
    return f"{server.command} explain -- {shlex.quote(subject)}"


def about(holder: Holder) -> str:
    """Name a call: its task, and what it says of itself."""
    owner = short(holder.owner) if holder.state == "foreign" else holder.owner
    return " ".join(filter(None, (holder.task or owner, holder.about)))


def behind(sample: Sample, key: str) -> str:
    """Tell how many wait behind a holder."""
    length = sample.lengths.get(key, 0)
    return f"; {length} {'waits' if length == 1 else 'wait'} behind it" if length else ""


def _dead(server: LockServer, sample: Sample) -> Iterator[Need]:
    for holder in sample.late[:MOST]:
        told = f"{about(holder)} on {telling.process(holder)}, {telling.life(holder)}"
        yield Need(
            "dead holder", holder.key, told + behind(sample, holder.key), server.release_command(holder.key)
        )


def _headless(server: LockServer, sample: Sample, around: Around) -> Iterator[Need]:
    lines = [line for line in sample.lines if line.waiter.key in sample.headless][:MOST]
    for line in lines:
        key = line.waiter.key
        remedy = explaining(server, key)
        if key in sample.unserved:
            home = sample.unserved[key]
            why = f"the first belongs to the broker {home}, and no worker of that was seen for a minute: "
            why += "start one, or send them to this app's broker"
            remedy = f"{server.command} waiting --drain --home {shlex.quote(key)}"
        elif around.has_no_worker:
            why = "no worker answers: start one"
        else:
            why = "no worker hands the lock to the first"
        yield Need("line stands still", key, f"{line.length} wait, nobody holds it: {why}", remedy)


def _foreign(server: LockServer, sample: Sample) -> Iterator[Need]:
    for holder in sample.by_state.get("foreign", ())[:MOST]:
        end = f"free in {telling.duration(holder.remaining)}"
        if holder.remaining == float("inf"):
            end = "without an end"
        said = [f"another program's lock, whose value begins with {short(holder.owner)!r}"]
        said += [holder.task] if holder.task else []
        said += [f"on {telling.process(holder)}"] if holder.host else []
        said += [f"for {telling.duration(telling.age(holder))}"] if holder.since else []
        told = f"{', '.join([*said, end])}{behind(sample, holder.key)}; release it if that program is gone"
        yield Need("foreign lock", holder.key, told, server.release_command(holder.key), is_bad=False)


def _full(server: LockServer, sample: Sample) -> Iterator[Need]:
    most = {task: _most_waiting(server, task) for task in {line.waiter.task for line in sample.lines}}
    full = (line for line in sample.lines if line.length >= most[line.waiter.task])
    for line in islice(full, MOST):
        told = f"{line.length} wait, as many as lock_max_waiting lets: what comes now is retried later"
        remedy = explaining(server, line.waiter.key)
        yield Need("line is full", line.waiter.key, told, remedy, is_bad=False)


def _most_waiting(server: LockServer, name: str | None) -> float:
    """Return how many calls of a task may wait for one key; modules that are not imported are left alone."""
    with suppress(RedisLockError):
        task = None if server.app is None else server.app.tasks.get(name)
        if is_unique(task):
            return declaration_of(task).options.lock_max_waiting
    return math.inf


def _idle(server: LockServer, sample: Sample, around: Around) -> Iterator[Need]:
    oldest = next(iter(sample.by_state.get("queued", ())), None)
    if oldest is None or not _is_old(oldest):
        return
    if around.has_no_worker:
        since = telling.duration(telling.age(oldest))
        calls = "1 call" if len(sample.queued) == 1 else f"{len(sample.queued)} calls"
        told = f"{calls}, {about(oldest)} for {since}; no worker answers: start one"
        yield Need("queued for long", oldest.key, told, explaining(server, oldest.key))
        return
    for queue in around.queues:
        known = (sample.queued[task_id] for task_id in queue.ids if task_id in sample.queued)
        first = min(known, key=ORDERS["age"], default=None)
        if queue.ids and (first is None or not _is_old(first)):
            continue
        told = f"{queue.length} messages lie in the queue {queue.name}, which no worker consumes: start one"
        if first is not None:
            told = f"{about(first)} for {telling.duration(telling.age(first))}; {told}"
        remedy = f"{server.command.removesuffix(' redislock')} worker -Q {shlex.quote(queue.name)}"
        yield Need("queued for long", first.key if first else queue.name, told, remedy)


def _is_old(holder: Holder) -> bool:
    return (telling.age(holder) or 0.0) > QUEUED_FOR_LONG


def _entries(server: LockServer, around: Around) -> Iterator[Need]:
    for row in around.entries:
        skip = row["last_skip"]
        in_a_row = skip["in_a_row"] if skip else 0
        is_stuck = time.time() - (row["sending_since"] or math.inf) > SENDING_FOR_LONG
        if in_a_row >= IN_A_ROW or row["overdue"] or is_stuck:
            remedy = explaining(server, row["task"] or row["name"])
            yield Need(SCHEDULE, row["name"], row["told"], remedy, is_bad=False)


def _set_up(server: LockServer, sample: Sample, around: Around) -> Iterator[Need]:
    told = {server.told_of_unserved(key, home) for key, home in sample.unserved.items()}
    for level, text in around.findings:
        if level in {"warning", "error"} and text not in told:
            yield Need(SET_UP, level, text, f"{server.command} doctor", level == "error")
