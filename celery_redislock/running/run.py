"""One run of one message: what it locks, what it holds, what is known about its message and its delivery.

Lives in the process and thread that runs the body.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery_redislock.declaring.call_options import from_header
from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.declaring.options import LockOptions
from celery_redislock.declaring.scopes import Scope
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.store import Hold, new_token
from celery_redislock.locks.tasklock import TaskLock
from celery_redislock.publishing.message import (
    Message,
    identity_of,
    is_result_ignored,
    release_claim,
    tick_token,
)
from celery_redislock.publishing.signals import lock_lost

__all__ = ["FROM_MAIN_PROCESS", "Run", "can_come_again", "mark_ttl", "run_of", "visibility_timeout"]

logger = logging.getLogger("celery_redislock")

#: Where the main process leaves what the child needs: in a copy of the request's message properties,
#: which nothing propagates (a top-level entry would leak into the headers of a retry's message).
FROM_MAIN_PROCESS = "redislock"

#: Seconds a message waits in a worker until a copy, delivered when a connection broke, may have overtaken it.
OVERTAKEN_AFTER = 1.0

#: Seconds after which Redis delivers an unacknowledged message again (kombu 5.7.0, transport/redis.py).
DEFAULT_VISIBILITY_TIMEOUT = 3600.0

#: Seconds a done mark outlives the visibility timeout. That one begins when a message is received; then
#: kombu looks only every 100 s for what has to be delivered again (5.7.0, transport/redis.py), and what is
#: may wait in its queue behind others.
MARK_MARGIN = 3600.0


def run_of(request: Any) -> "Run | None":
    """Return the run a request is for, once it is there; ``None`` for others."""
    run: Run | None = getattr(request, "redislock_run", None)
    return run


#: What the main process leaves there: the run's token; when it received the message, in seconds since the
#: epoch; kombu's name of the message's serializer; its own name, as leases have it. Here, without one.
_NOT_RECEIVED = (None, None, None, None)


class Run:
    """One run of one message.

    Attributes:
        options: of the message's task and call.
        message: what came with the message; ``None`` for ``send_task``, an unimported beat entry and
            other languages.
        identity: of the message: its token, or what stands for one where it came without (see
            ``identity_of``); ``None`` where nothing tells it from others of its task id.
        was_delivered: a copy of this message was delivered before, and may have run.
        can_come_again: the broker may deliver this message once more, although this delivery runs it.
        may_be_done: a copy of this message may have run, so its mark is asked for.
        serializer: kombu's name of the message's own, ``None`` for the task's.
        lock: what is locked.
        running_lock: what the run holds: the lock of its key, or, in a scope that holds none then, of its
            message.
        token: this run's term, minted by the main process where there is one.
        lease: while a lock is held, and after; on the key, or, in a scope that holds none while it runs,
            on the message itself.
        in_body: the body is running.
        has_ended: the body ended, whatever ended it, and its message is done with that.
        release: set where the step that stores the result, which is yet to come, releases the lock: called
            with this run, its lease, and what asks the server for both.
        followed_by: tokens of the messages of its own id that the body published, each with what tells
            the seconds its claim lives.
        period_of: token under which the period began that ends with this run, if one does.
        interrupt: raises ``LockLost`` inside the body, where it can be interrupted.
    """

    task: Any
    request: Any
    options: LockOptions
    scope: Scope
    message: Message | None
    identity: str | None
    serializer: str | None
    lock: TaskLock
    running_lock: TaskLock
    token: str
    was_delivered = can_come_again = may_be_done = False
    lease: Lease | None = None
    in_body = has_ended = False
    release: Callable[..., None] | None = None
    followed_by: Sequence[tuple[str, Callable[[], float]]] = ()
    period_of: str | None = None
    interrupt: Callable[[], None] | None = None

    @classmethod
    def of(cls, task: Any, request: Any) -> "Run | None":
        """Return the run of a task's current request, ``None`` if it takes no lock; sends nothing.

        The claim of a message that will not enter its lock is released: locking was switched off
        meanwhile, or its arguments do not fit.

        Raises:
            LockOptionError: the task's options are wrong on this worker.
            LockKeyError: the message came without a key, and none can be made of its arguments.
            TypeError: its arguments do not fit the task.
        """
        request.redislock_skipped, request.redislock_run = False, None
        if not request.id:
            return None  # made by hand, as test helpers do
        run, task_id = cls(), str(request.id)  # a number runs, as with plain Celery
        run.message = message = Message.of(request.headers, task_id)
        try:
            declaration = declaration_of(task)
            settings, options = declaration.settings, declaration.options
            if message is not None and message.options:
                options = from_header(options, message.options)
            scope = options.scope
            if scope is None or not settings.enabled or (request.is_eager and not settings.eager):
                return None
            delivery = (request.properties or {}).get(FROM_MAIN_PROCESS) or _NOT_RECEIVED
            token, received_at, run.serializer, main_process = delivery
            if message is None:
                key, tick = None, tick_token(request.headers, task_id)
                is_tick, run.identity = tick is not None, tick or identity_of(task_id, request.properties)
            elif (key := message.key) is None:
                return None
            else:
                run.identity, is_tick = message.token, message.is_tick
            run.task, run.request, run.token = task, request, token or new_token(task_id)
            run.options, run.scope = options, scope
            run.lock = run.running_lock = lock = declaration.task_lock(
                request.args,
                request.kwargs,
                task_id,
                options=options,
                key=key,
                is_ignored=is_result_ignored(task, request.__dict__.get("ignore_result")),
                main_process=main_process,
            )
            if not scope.holds_while_running:
                run.running_lock = lock.of_message(run.identity or task_id)
            if (  # all that the rare cases have
                message is None
                or message.was_delivered
                or is_tick
                or task.acks_late
                or request.eta
                or received_at is None
                or abs(time.time() - received_at) >= OVERTAKEN_AFTER
                or (request.delivery_info or {}).get("redelivered")
            ):
                run.may_be_done = True
                run.was_delivered = was_delivered(message, request.delivery_info)
                may_come = run.was_delivered or is_tick or can_come_again(task, request.eta, received_at)
                run.can_come_again = may_come and not request.is_eager
            request.redislock_run = run
        finally:
            if request.redislock_run is None:
                release_claim(task.app, message)
        return run

    @property
    def is_accepted(self) -> bool:
        """The message was accepted before, at its publish or as the run it is a retry of."""
        return bool(self.request.retries) or (self.message is not None and self.message.claimed)

    @property
    def accepted_as(self) -> str | None:
        """Token under which this job's period began, where only a success keeps that; ``None`` elsewhere."""
        return Message.accepted_as(self.message, self.options, self.token)

    @property
    def must_wait(self) -> bool:
        """It waits for its lock whoever holds it, and is never a duplicate: seen before, or of a workflow."""
        is_meant_to = self.message is not None and self.message.must_run
        return self.is_accepted or self.was_delivered or is_meant_to or self.is_in_workflow

    @property
    def is_in_workflow(self) -> bool:
        """It has links or an errback, or a group, chord or chain goes on when it has ended."""
        request = self.request
        return bool(request.group or request.chord or request.chain or request.callbacks or request.errbacks)

    def holds(self, key: str) -> bool:
        """Whether this run has a lease on this key, lost or not."""
        return self.lease is not None and self.lease.key == key

    def is_of_this_message(self, hold: Hold) -> bool:
        """Whether a hold of the run's own task id was taken for this very message."""
        return self.identity is not None and hold.message == self.identity

    def note_follow_up(self, token: str, claim_ttl: Callable[[], float]) -> None:
        """Note that the body has published its own task id again; called by the publish, in this thread.

        The lease becomes the first such message's claim when the body has unwound; ``claim_ttl`` tells then
        for how many seconds.
        """
        self.followed_by = (*self.followed_by, (token, claim_ttl))

    def announce_loss(self, lease: Lease) -> None:
        """Log that the lease is lost, and do what ``on_lock_lost`` asks; in the thread that learns of it.

        In a scope that holds no lock while it runs only copies of this message are kept out: that is logged.
        """
        what = "%s lost its lock on %r while running: %s; another run may hold it now"
        logger.warning(what, self.lock, lease.key, lease.lost_because)
        if not self.scope.holds_while_running:
            return
        lock_lost.send(sender=self.task, key=lease.key, task_id=self.lock.owner, lease=lease)
        action = self.options.on_lock_lost
        if callable(action):
            action(lease)
        elif action == "terminate" and self.interrupt is not None:
            self.interrupt()


def visibility_timeout(app: Any) -> float:
    """Return the seconds after which the broker delivers an unacknowledged message again."""
    options = app.conf.broker_transport_options or {}
    return float(options.get("visibility_timeout") or DEFAULT_VISIBILITY_TIMEOUT)


def mark_ttl(app: Any) -> float:
    """Return the seconds within which a copy of a message may come, and so its done mark must live."""
    return visibility_timeout(app) + MARK_MARGIN


def was_delivered(message: Message | None, delivery_info: Mapping[str, Any] | None) -> bool:
    """Whether a copy of a message was delivered before, as the broker or the message itself says."""
    redelivered = (delivery_info or {}).get("redelivered")
    return bool(redelivered or (message is not None and message.was_delivered))


def can_come_again(task: Any, eta: object, received_at: float | None) -> bool:
    """Whether the broker may deliver a message once more although a worker runs it.

    It may where the message is acknowledged late, or was kept unacknowledged for long: for its ETA, or
    for a free process. With half of the visibility timeout the rest is left for clocks and queues.
    """
    if task.acks_late or eta:
        return True
    kept = 0.0 if received_at is None else time.time() - received_at
    return kept > OVERTAKEN_AFTER and kept > visibility_timeout(task.app) / 2
