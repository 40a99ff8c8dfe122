"""One delivery of one message, as a worker knows it: its main process and the one that runs the body alike.

Both make it of the same request, and so agree on what the message locks, and under which identity. What is
known of earlier copies (``earlier``, ``again``) is as of the moment it is made.
"""

import re
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

from celery import Task
from celery.utils.quorum_queues import detect_quorum_queues

from celery_redislock.declaring.call_options import from_header
from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.declaring.options import LockOptions
from celery_redislock.declaring.scopes import OF_PERIOD, Scope
from celery_redislock.locks.keylock import KeyLock
from celery_redislock.locks.lease import new_token
from celery_redislock.locks.tasklock import TaskLock
from celery_redislock.publishing.message import Message, identity_of, is_result_ignored, tick_token
from celery_redislock.publishing.promote import OF_A_WORKER
from celery_redislock.running.leavings import Fate, leave, mark_ttl, visibility_timeout
from celery_redislock.store.store import Hold

D = TypeVar("D", bound="Delivery")

#: What is known of an earlier delivery of a message: one may have run, so its mark is asked for; there was
#: one, and it may have run; it runs yet. ``None``: there was none.
Earlier = Literal["maybe", "delivered", "running"] | None

#: What may bring a message once more that is run: its parking, where the answer to that was lost. ``None``:
#: nothing.
Again = Literal["its parking", "broker or beat"] | None

#: Where the main process leaves its receipt: in a copy of the request's message properties, which nothing
#: propagates (a top-level entry would leak into the headers of a retry's message).
RECEIPT = "redislock"

#: Seconds a message waits in a worker until a copy, delivered when a connection broke, may have overtaken it.
OVERTAKEN_AFTER = 1.0

#: Seconds a done mark outlives the visibility timeout where a worker's name leads to what it has in hand
#: (``receiving/in_hand.py``), and no copy is on its way when the message is done. If it cannot be
#: acknowledged any more, it is back in its queue within a minute, and has the visibility timeout to wait
#: there. If nobody restores it, kombu does: it looks each 100 s, or 300 s later where a worker was killed
#: that looked (5.7.0, transport/redis.py).
RESTORED_MARGIN = 600.0

#: Seconds in which a message comes once more that was parked, and published beside that: it waits at most
#: ``lock_retry_delay`` and behind others in its queue.
PARKED_TWICE = 300.0

#: The property of a message that names the worker that has it in hand (``receiving/in_hand.py``). Beside it,
#: in that worker's memory only: when it was written, in seconds since the epoch.
IN_HAND_OF, IN_HAND_SINCE = OF_A_WORKER

#: What RabbitMQ notes on a message that was dead-lettered or delivered again. Published with it, a message
#: that waits twice in delayed queues is taken for one that goes in circles, and is dropped.
BY_BROKER = re.compile(r"x-(death|first-death-.+|last-death-.+|delivery-count)\Z")


class Receipt(NamedTuple):
    """What the worker's main process notes when it receives a message, for the process that runs the body.

    Attributes:
        token: of the run's term. So the main process knows it although it never sees the child's lease.
        received_at: in seconds since the epoch; ``None`` where no main process received it.
        serializer: kombu's name of the message's own, ``None`` for the task's.
        main_process: the main process, as leases name it.
    """

    token: str
    received_at: float | None = None
    serializer: str | None = None
    main_process: str | None = None


class Locks(NamedTuple):
    """The locks of one message; what a run holds of them now is its ``lease``.

    Attributes:
        claim: of its publish, if that claims something, where its header says so. The same object as
            ``running``, unless a run's lease does not take it over.
        running: of its key, while it runs; ``None`` in a scope that holds nothing then.
        copies: what keeps a second copy of the message out while the first one runs: ``running``, or else a
            lock of the message itself.
    """

    claim: TaskLock
    running: TaskLock | None
    copies: TaskLock


class Delivery:
    """One delivery of one message. Sends nothing when it is made.

    Attributes:
        task: the bound task; ``request`` is Celery's context of the delivery.
        message: the header; ``None`` for ``send_task``, an unimported beat entry and other languages.
        identity: of the message: its token, or what stands for one where it came without (see
            ``identity_of``); ``None`` where nothing tells it from others of its task id.
        options: of the message's task and call; ``scope`` is theirs, unless its claim stands for a period.
        lock: of the message's key; ``locks``: those that are held there, and beside it.
        token: of the run's term.
        serializer: as the receipt's.
        received_at: as the receipt's: where a main process has received it, that can park it.
        earlier: what is known of an earlier delivery of this message.
        again: what may bring this message once more, although this delivery runs it.
        alone_until: in seconds since the epoch: no copy of it is on its way before, as far as is known here.
    """

    task: Any
    request: Any
    message: Message | None
    identity: str | None
    options: LockOptions
    scope: Scope
    lock: TaskLock
    locks: Locks
    token: str
    serializer: str | None
    received_at: float | None
    earlier: Earlier = None
    again: Again = None
    alone_until = 0.0

    @classmethod
    def of(cls: type[D], task: Any, request: Any) -> D | None:
        """Return the delivery of a task's request, ``None`` if it takes no lock.

        Raises:
            LockOptionError: the task's options are wrong on this worker.
            LockKeyError: the message came without a key, and none can be made of its arguments.
            TypeError: its arguments do not fit the task.
        """
        declaration = declaration_of(task)
        settings = declaration.settings
        if not settings.enabled or (request.is_eager and not settings.eager):
            return None
        task_id = str(request.id)  # a number runs, as with plain Celery
        message = Message.of(request.headers, task_id)
        options = declaration.options
        self = cls()
        if message is None:
            key = None
            identity = tick_token(request.headers, task_id) or identity_of(task_id, request.properties)
            options = declaration.with_limit(options, request.args, request.kwargs)
        else:
            key = message.key
            if key is None:
                return None
            if message.options:
                options = from_header(options, message.options)
            identity = message.token
        scope = options.scope
        if scope is None:
            return None
        receipt = (request.properties or {}).get(RECEIPT) or Receipt(new_token(task_id))
        self.token, received_at, self.serializer, main_process = receipt
        self.received_at = received_at
        self.task = task
        self.request = request
        self.message = message
        self.identity = identity
        self.options = options
        self.scope = scope
        self.lock = lock = declaration.task_lock(
            request.args,
            request.kwargs,
            task_id,
            options=options,
            key=key,
            is_ignored=is_result_ignored(task, request.__dict__.get("ignore_result")),
            main_process=main_process,
        )
        # A claim that becomes this run's lock has told of them; it may be one that waited in line.
        if options.lock_describe is not None and (
            declaration.tells_late
            or (message is not None and (message.claimed_beside or not message.claimed))
        ):
            told = declaration.told(request.args, request.kwargs)
            self.lock = lock = lock._replace(told=told)
        if (
            scope.lease
            and not scope.claims_beside
            and (message is None or not (message.claimed_beside or message.stands_for_period))
        ):
            self.locks = Locks(lock, lock, lock)
        else:
            self.locks = self._locks_apart()
        if (  # all that the rare cases have
            message is None
            or message.was_delivered
            or message.is_tick
            or message.parked_at is not None
            or task.acks_late
            or request.eta
            or received_at is None
            or abs(time.time() - received_at) >= OVERTAKEN_AFTER
            or (request.delivery_info or {}).get("redelivered")
        ):
            self._learn_of_copies()
        return self

    def _locks_apart(self) -> Locks:
        """Return the locks of a message whose claim does not become the lease of its run.

        Its scope says so, or it was published under another one: a deploy may have changed its task's.
        """
        lock = self.lock
        message = self.message
        if message is not None and message.stands_for_period:
            self.scope = OF_PERIOD  # its run leaves that to its time
        scope = self.scope
        # What a run leaves to its retry is where its lease was.
        is_beside = scope.claims_beside if message is None else message.claimed_beside
        claim = lock.of_queue() if is_beside else lock
        if not scope.lease:
            return Locks(claim, None, lock.of_message(self.identity or str(self.request.id)))
        # Where claims are kept beside it, their period is, too.
        lease = lock._replace(period=None) if scope.claims_beside else lock
        return Locks(claim, lease, lease)

    def _learn_of_copies(self) -> None:
        request = self.request
        message = self.message
        received_at = self.received_at
        if message is None:
            is_tick = tick_token(request.headers, str(request.id)) is not None
        else:
            is_tick = message.is_tick
        kept = 0.0 if received_at is None else time.time() - received_at
        restored_after = timeout = visibility_timeout(self.task.app)
        if IN_HAND_OF in (request.properties or {}):
            restored_after = min(restored_after, declaration_of(self.task).settings.restore)
        was_delivered = self.is_redelivered or (message is not None and message.was_delivered)
        self.earlier = "delivered" if was_delivered else "maybe"
        is_repeatable = (
            was_delivered
            or is_tick
            or bool(self.task.acks_late or request.eta)
            # Kept in hand for half of the time after which another worker, or else the broker, restores it:
            # the rest is left for clocks and queues.
            or kept > max(OVERTAKEN_AFTER, restored_after / 2)
        )
        # Where the answer to its parking was lost, it was published beside that as well.
        has_waited = message is not None and message.parked_at is not None
        if not request.is_eager and (is_repeatable or has_waited):
            self.again = "broker or beat" if is_repeatable else "its parking"
        # What has waited was sent, or published, more than once, or may have been.
        is_alone = not (was_delivered or is_tick or has_waited or (message and message.was_told))
        if is_alone and received_at is not None and restored_after < timeout:
            self.alone_until = received_at + timeout / 2

    @property
    def header(self) -> Message:
        """What the message says, or would where it came without a header."""
        if self.message is not None:
            return self.message
        identity = self.identity or new_token(self.lock.owner)
        return Message(self.lock.key, identity, claimed_beside=self.scope.claims_beside)

    @property
    def is_redelivered(self) -> bool:
        """The broker says that it has delivered this message before."""
        return bool((self.request.delivery_info or {}).get("redelivered"))

    @property
    def was_delivered(self) -> bool:
        """A copy of this message was delivered before, and may have run."""
        return self.earlier in {"delivered", "running"}

    @property
    def is_accepted(self) -> bool:
        """The message was accepted before, at its publish or as the run it is a retry of."""
        return bool(self.request.retries) or (self.message is not None and self.message.claimed)

    @property
    def done_ttl(self) -> float:
        """Seconds within which a copy of the message may come when it is done, which is now."""
        if self.again != "broker or beat":
            return PARKED_TWICE + self.options.lock_retry_delay
        if time.time() < self.alone_until:
            return visibility_timeout(self.task.app) + RESTORED_MARGIN
        return mark_ttl(self.task.app)

    @property
    def opened_by(self) -> str | None:
        """Token under which the period of this job was opened; ``None`` where no failure ends that."""
        options = self.options
        message = self.message
        if options.lock_period is None or options.lock_period_on_failure == "keep":
            return None
        if message is None:
            return self.token
        return message.opened_by or (message.token if message.claimed else self.token)

    @property
    def leaves_claim(self) -> bool:
        """Whether its publish may hold a claim that ends with the start or the end of its run."""
        if self.scope.claim != "period":
            return True
        message = self.message
        if message is None or message.stands_for_period:
            return False
        # One that was accepted by nobody is accepted by its run, and what that claims is the period.
        return message.claimed or message.claimed_beside

    @property
    def must_wait(self) -> bool:
        """It waits for its lock, and is never a duplicate: it was seen before, or belongs to a workflow."""
        is_meant_to = self.message is not None and self.message.must_run
        return (
            self.is_accepted
            or self.was_delivered
            or is_meant_to
            or self.is_in_workflow
            or self.parked_as is not None
        )

    @property
    def coalesces(self) -> bool:
        """Of it and other calls of its task the newest is to run: it was called for itself, at no time."""
        request = self.request
        is_meant_to = self.message is not None and self.message.must_run
        return self.options.server == "coalesce" and not (
            is_meant_to or self.is_in_workflow or request.retries or request.eta or request.expires
        )

    @property
    def takes_place(self) -> bool:
        """Where it is parked it takes the place of an older call, or gives way to a newer one.

        Not one that was accepted, and no copy of which nobody knows when it was called.
        """
        message = self.message
        if message is None:
            return self.coalesces and not self.was_delivered
        is_known = message.number is not None or not self.was_delivered
        return is_known and not message.claimed and message.parked_at is None and self.coalesces

    @property
    def is_put_off(self) -> bool:
        """It waits for further calls before it starts."""
        return self.options.lock_debounce is not None and self.received_at is not None and self.takes_place

    @property
    def may_be_outdated(self) -> bool:
        """A newer call may have started: this one was refused at publish, or a copy of it may have run."""
        is_unclaimed = self.header.number is not None and self.parked_as is None
        return (is_unclaimed or self.was_delivered) and self.coalesces and not self.request.is_eager

    @property
    def parked_as(self) -> str | None:
        """Token under which it holds the lock that it waited for, if it did, until its turn is over."""
        message = self.message
        return None if message is None or message.parked_at is None else message.token

    @property
    def had_its_turn(self) -> bool:
        """It has waited in line, and was delivered again since: its run died.

        Redis says for ever that a message was delivered again. So there this is known of its first time only.
        """
        message = self.message
        if message is None or message.parked_at is None or not self.is_redelivered:
            return False
        return not message.was_delivered or self.lock.store.home != ""

    @property
    def waited_in_vain(self) -> float | None:
        """Seconds since it was put into a line, where that is longer than it may wait.

        Where its run died it has had its turn, and waits anew.
        """
        message = self.message
        timeout = self.options.lock_wait_timeout
        if timeout is None or message is None or message.parked_at is None or self.had_its_turn:
            return None
        waited = time.time() - message.parked_at
        return waited if waited >= timeout else None

    @property
    def is_in_workflow(self) -> bool:
        """It has links or an errback, or a group, chord or chain continues when it has ended."""
        request = self.request
        return bool(request.group or request.chord or request.chain or request.callbacks or request.errbacks)

    def is_of_this_message(self, hold: Hold) -> bool:
        """Whether a hold of the delivery's own task id was taken for this very message."""
        return self.identity is not None and hold.message == self.identity

    @property
    def queue(self) -> TaskLock:
        """The lock under which its scope keeps claims, and their period."""
        return self.lock.of_queue() if self.scope.claims_beside else self.lock

    def end_period(self, opened_by: str) -> None:
        """End the period of this job, if it was opened under this token; for a body that has ended."""
        for lock in {lock.key: lock for lock in (self.queue, self.locks.claim)}.values():
            lock.release(opened_by, opened_by=opened_by)

    def leave(self, fate: Fate, release: Callable[..., object] = KeyLock.release) -> None:
        """Release what the message leaves, of which no lease has taken it over; as :func:`leavings.leave`."""
        message = self.header
        if not self.leaves_claim:
            message = message._replace(stands_for_period=True)
        ttl = mark_ttl(self.task.app)
        earlier = self.was_delivered
        leave(self.lock, message, fate, ttl, earlier=earlier, opened_by=self.opened_by, release=release)

    def publish_again(self, delay: float) -> None:
        """Publish the message again by Celery's own machinery, as ``Task.retry`` does it.

        With the same ``retries``. It runs no sooner than ``delay`` seconds from now, or than the broker's
        visibility timeout, after which Redis would deliver what a worker holds for its ETA a second time.
        Raises what the broker raises.
        """
        task = self.task
        request = self.request
        message = self.header._replace(was_delivered=self.was_delivered)  # its identity travels from now on
        delay = min(delay, visibility_timeout(task.app))
        driver = task.app.producer_pool.connections.connection.transport.driver_type
        if detect_quorum_queues(task.app, driver)[0]:
            # There the broker keeps the message, by whole seconds; less is an error (kombu 5.7.0,
            # transport/native_delayed_delivery.py).
            delay = max(1.0, delay)
        headers = {
            name: value for name, value in (request.headers or {}).items() if not BY_BROKER.match(name)
        }
        # Celery's own retry leaves these out (5.7.0; the last one only 5.5.0). A message may lack each.
        names = ("argsrepr", "kwargsrepr", "ignore_result")
        more: dict[str, Any] = {name: request.__dict__.get(name) for name in names}
        more["serializer"] = self.serializer
        again = task.signature_from_request(
            request,
            countdown=delay,
            headers=message.added_to(headers),
            add_to_parent=False,
            **{name: value for name, value in more.items() if value is not None},
        )
        # Celery's own, and not the task's: the message was accepted or refused when it was first published.
        Task.apply_async(task, again.args, again.kwargs, **again.options)
