"""Parking: the worker's main process puts a message that must wait into the line of its lock.

It has the message as it was received; the process of the body has not. So what is parked is that message,
with our header replaced, and what leaves the line later is the same. It is parked

- when it was refused its lock in its child (:func:`park_refused`), before Celery acknowledges it;
- when it is received, if the key is known to be busy here (:func:`strategy`): a message of that key is in
  hand, or was parked lately. That is a hint, and the script decides. The order on one worker is exact.

Where the lock server is the broker, parking and acknowledging are one step.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

from celery.worker.state import revoked
from kombu.utils.json import dumps

from celery_redislock.declaring.call_options import from_header
from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.declaring.options import LockOptions
from celery_redislock.declaring.scopes import WAITING
from celery_redislock.exceptions import LockUnavailable, RedisLockError
from celery_redislock.locks.lease import new_token
from celery_redislock.locks.tasklock import TaskLock
from celery_redislock.log import is_news, logger
from celery_redislock.publishing.conflict import announce, log_merge, log_wait
from celery_redislock.publishing.message import HEADER, Message, key_in
from celery_redislock.publishing.promote import OF_A_WORKER, PUBLISHING, text_of
from celery_redislock.publishing.results import RUN_AS, end_unrun
from celery_redislock.publishing.turn import band_of, facts_of_turn, hand_off, spelled
from celery_redislock.receiving import line
from celery_redislock.receiving.sweep import look_soon
from celery_redislock.running.delivery import BY_BROKER, Delivery
from celery_redislock.running.leavings import mark_ttl
from celery_redislock.store.store import LARGEST, Entry, Merge, Parked

#: How often a message asks for a place that others take meanwhile. Then it waits as itself.
_TRIES = 10

#: What the answer says of a message that is not to run.
GONE = frozenset({"newer", "done"})


def waits(options: LockOptions) -> bool:
    """Whether duplicates of a task with these options wait for a run to end."""
    return options.server in WAITING and options.scope is not None and options.scope.lease


def strategy(task: Any, consumer: Any, handle: Callable[..., Any]) -> Callable[..., Any]:
    """Return a task's own strategy (``handle``) behind one that parks what must wait when it is received.

    Called once for each task when a consumer starts; in the main process, in its event loop's thread.
    """
    try:
        declaration = declaration_of(task)
    except RedisLockError:
        return handle  # each run reports it
    if not (declaration.is_on and waits(declaration.options)):
        return handle

    def receive(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **rest: Any) -> Any:
        header = message.headers.get(HEADER)
        if header.__class__ is str:
            key = key_in(header)
            if key in line.busy and _park_received(task, consumer, message, key):
                ack(logger, consumer.connection_errors)
                return None
        return handle(message, body, ack, reject, callbacks, **rest)

    return receive


def _park_received(task: Any, consumer: Any, message: Any, key: str) -> bool:
    """Park a message behind another one of its key, if it waits for that; tell whether it is parked."""
    before = line.last(key)
    if before is None and not line.was_parked_lately(key):
        return False
    headers = message.headers
    task_id = str(headers.get("id"))
    said = Message.of(headers, task_id)
    if (
        said is None
        or said.key is None
        or said.claimed
        or said.parked_at is not None
        # A copy, maybe of the run that holds the lock: nothing is announced for its id.
        or said.was_delivered
        or (message.delivery_info or {}).get("redelivered")
        or headers.get("eta")
        or headers.get("expires")
        or task_id in revoked
    ):
        return False
    declaration = declaration_of(task)
    options = declaration.options
    if said.options:
        options = from_header(options, said.options)
        if not waits(options):
            return False
    lock = declaration.task_lock((), {}, task_id, options=options, key=said.key)
    if options.lock_describe is not None:
        with suppress(Exception):  # its run reports what cannot be read
            args, kwargs, _ = message.payload
            lock = lock._replace(told=declaration.told(args, kwargs))
    # Of several that may run the last one in hand says nothing: where there is room, the next one runs too.
    # Nor of one that is put off: what is in hand may be, too, and is on no way to the lock then.
    merges = options.server == "coalesce" and not said.must_run
    is_put_off = merges and options.lock_debounce is not None
    is_behind = before is not None and lock.limit is None and not is_put_off
    how = "behind" if is_behind else "ask"
    ahead = "" if before is None else line.claim_ahead(before)
    try:
        answer = _park(task, lock, message, said, options, how=how, ahead=ahead, merges=merges)
    except RedisLockError as error:
        logger.debug("could not park %s, which runs or waits by the clock: %s", lock, error)
        if _may_be_parked(error):
            headers[HEADER] = said._replace(was_delivered=True).dumps()
        return False
    if answer is None or answer.word in {"runs", "full", *GONE}:
        return answer is not None and answer.word in GONE
    if before is None and not answer.place and (options.lock_rate or options.lock_period):
        look_soon()  # what it waits for may end sooner than the sweep knows
    # Nobody but that one's end may look at this line, where its lock was free.
    if before is not None and (answer.held_by is None or ahead.startswith(f"{answer.held_by.token}\0")):
        line.wake_at_end(before)
    why = f"{lock.key!r} is held by {answer.held_by.owner}" if answer.held_by else f"{lock.key!r} is not free"
    log_wait(lock, why, was_told=said.was_told)
    if answer.held_by is not None:
        announce(task, lock, answer.held_by, "server", what_happens="wait")
    eventer = consumer.event_dispatcher
    if eventer and eventer.enabled and task.send_events:
        eventer.send("task-received", uuid=task_id, name=task.name, args=headers.get("argsrepr"),
                     kwargs=headers.get("kwargsrepr"), retries=headers.get("retries", 0))  # fmt: skip
        eventer.send("task-retried", uuid=task_id, exception=why, traceback=None)
    return True


def park_refused(delivery: Delivery, message: Any, name: str, request: Any) -> str | None:
    """Park a message whose run was refused the lock of this name; return why it cannot be, if it cannot.

    It goes before the first one of its key that was parked *behind* its request meanwhile.
    """
    # Its identity travels from now on, and its child has told that it waits.
    delivery.message = said = delivery.header._replace(was_told=True)
    if delivery.was_delivered:
        said = said._replace(was_delivered=True)
    copies = delivery.locks.copies
    lock = copies if copies.key == name else delivery.lock._replace(key=name)
    since = None if delivery.had_its_turn else said.parked_at
    try:
        if said.parked_at is not None:
            _keep_claim(delivery, name)
        answer = _park(
            delivery.task, lock, message, said, delivery.options,
            request=request, since=since,
            # Not where it waits for another run of its own id.
            merges=name == delivery.lock.key and delivery.takes_place,
        )  # fmt: skip
    except RedisLockError as error:
        if _may_be_parked(error):
            delivery.earlier = "running" if delivery.earlier == "running" else "delivered"
        return str(error)
    if answer is None:
        return "its message cannot be parked"
    if answer.word != "full":
        return None
    if is_news(f"{lock.key} is full"):
        logger.warning(
            "%r has lock_max_waiting messages in line (%d): what comes now is tried again every %g s "
            "(lock_retry_delay), and may be passed by others; publish fewer, or raise lock_max_waiting",
            lock.key,
            delivery.options.lock_max_waiting,
            delivery.options.lock_retry_delay,
        )
    return "the line is full"


def _keep_claim(delivery: Delivery, name: str) -> None:
    """Keep the claim that a message was handed in another line than the one it waits in from now on.

    It is not sent again there, and holds its claim as long as one that was never in line.
    """
    claim = delivery.locks.claim
    token = delivery.parked_as
    if claim is not None and token is not None and claim.key != name:
        ttl = delivery.options.lock_queue_ttl
        claim.store.hand_on(claim.key, token, token, ttl, facts=facts_of_turn(claim))


def _park(
    task: Any, lock: TaskLock, message: Any, said: Message, options: LockOptions, *,
    how: str = "refused", request: Any = None, ahead: str = "", since: float | None = None,
    merges: bool = False,
) -> Parked | None:  # fmt: skip
    """Park a message; ``None`` where it cannot be. Raises as :meth:`LockStore.park`.

    ``merges``: it takes the place of an older call of its task, or gives way to a newer one.
    ``request``: of the message, if it was in hand. ``since``: when its time in line began, in seconds since
    the epoch; ``None`` for now.
    """
    if said.claimed or message.headers.get("retries"):
        lock = lock._replace(period=None)  # its job was accepted
    store = lock.store
    priority = (message.properties or {}).get("priority") or 0
    # One that was accepted came before all that wait now.
    has_waited = said.parked_at is not None or (said.claimed and not said.claimed_beside)

    now = time.time()
    since = now if since is None else since
    waited = now - since
    timeout = options.lock_wait_timeout
    # Over time already, it waits for a run of its own id, and till that has ended: it is no failure.
    within = None if timeout is None or waited >= timeout else timeout - waited
    headers = {name: value for name, value in message.headers.items() if not BY_BROKER.match(name)}
    acknowledge = None
    if store.home:
        # It is acknowledged after it is parked: a copy may come, and has to find the mark of its run.
        said = said._replace(parked_at=since, was_delivered=True, was_told=True)
        text = text_of(message, said.added_to(headers))
        entry = Entry("give", store.own_home, PUBLISHING, facts_of_turn(lock), text)
        band = band_of(255 - priority, has_waited=has_waited)
    else:
        said = said._replace(parked_at=since, was_told=True)
        pushed = _as_pushed(message, said.added_to(headers))
        if pushed is None:
            return None
        queue, text, acknowledge = pushed
        lives_for = hand_off(declaration_of(task).settings)
        entry = Entry("push", queue, lives_for, facts_of_turn(lock, acknowledge[0]), text)
        band = band_of(priority, has_waited=has_waited)  # kombu's Redis: 0 is first
    if len(text) > LARGEST:
        return None
    nonce = new_token("").rpartition("/")[2]
    with line.parking:
        place = "last" if request is None else request.first_behind or "last"
        park = partial(
            store.park, lock.key, said.token, entry,
            nonce=nonce, how=how, band=band, place=place, most=options.lock_max_waiting, ahead=ahead,
            acknowledge=acknowledge, within=within,
        )  # fmt: skip
        answer = _park_newest(task, lock, said, options, park) if merges else park()
        if answer.word not in {"runs", "full", *GONE}:
            line.put(said.token, str(said.key), request)
            line.is_parked(str(lock.key))
    if answer.held_by is not None and answer.word not in GONE:
        lock.release_if_dead(answer.held_by)
    return answer


def _park_newest(
    task: Any, lock: TaskLock, said: Message, options: LockOptions, park: Callable[..., Parked]
) -> Parked:
    """Park a message, in the place of an older call of its task if one waits; end it if a newer one does.

    Each is a message of its own, with a task id that somebody may wait for. So the older one's state is
    stored first: a worker that dies in between leaves it in line, and whoever parks the newer one does both
    again.
    """
    names = spelled(lock.owner, said.token)
    times = options.lock_debounce or 0.0, options.lock_debounce_max or 0.0
    merge = Merge(names, *times, said.number, mark_ttl=mark_ttl(task.app))
    for _ in range(_TRIES):
        answer = park(merge=merge)
        waiting = answer.held_by
        if waiting is None or answer.word not in {"older", "newer"}:
            return answer
        announce(task, lock, waiting, "server", what_happens="coalesce")
        if answer.word == "newer":
            log_merge(lock, waiting.owner, 1)
            if not lock.is_ignored:
                end_unrun(task, lock.owner, f"{RUN_AS} {waiting.owner}")
            return answer
        log_merge(lock._replace(owner=waiting.owner), lock.owner, 1)
        if b'"ignored":true' not in waiting.text:
            end_unrun(task, waiting.owner, f"{RUN_AS} {lock.owner}")
        merge = merge._replace(instead_of=waiting.token)
    return park()


def _as_pushed(message: Any, headers: Mapping[str, Any]) -> tuple[str, str, tuple[str, str, str]] | None:
    """Return the queue a message of kombu's Redis goes back to, its text there, and what acknowledges it.

    ``None`` where the queue cannot be told, or expires, which takes more than a push.
    """
    channel = message.channel
    if not hasattr(channel, "unacked_key"):
        return None  # no process of this app knows that its broker is another server (publishing/promote.py)
    info = message.delivery_info
    exchange = info["exchange"]
    routing_key = info["routing_key"]
    queues = [routing_key] if not exchange else list(channel._lookup(exchange, routing_key))
    consumed = set(channel._tag_to_queue.values())
    # Not one that a queue was renamed from: what is pushed has to be read by somebody.
    queues = [queue for queue in queues if queue in consumed]
    if not queues or queues[0] in getattr(channel, "_expires", ()):
        return None
    properties = {name: value for name, value in message.properties.items() if name not in OF_A_WORKER}
    # A tag of its own: this delivery is acknowledged by the present one, here and once more by kombu.
    properties["delivery_tag"] = str(uuid4())
    raw = {**message._raw, "headers": headers, "properties": properties}
    prefix = channel.global_keyprefix
    queue = channel._q_for_pri(queues[0], channel._get_message_priority(raw, reverse=False))
    keys = prefix + channel.unacked_key, prefix + channel.unacked_index_key, message.delivery_tag
    return f"{prefix}{queue}", dumps(raw), keys


def _may_be_parked(error: RedisLockError) -> bool:
    """Whether the server may have parked the message: its other copy has to find the mark of the first."""
    return isinstance(error, LockUnavailable) and error.was_sent and not error.was_refused
