"""One call of a unique task on its way to the broker: its lock, its options, its message's header."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from operator import itemgetter
from os import urandom
from types import MappingProxyType
from typing import Any, Protocol

from celery._state import _task_stack
from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_redislock.declaring.call_options import split_call_options, to_header
from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.declaring.scopes import OF_PERIOD, Scope
from celery_redislock.locks.lease import new_token
from celery_redislock.locks.tasklock import TaskLock
from celery_redislock.publishing.message import HEADER, NO_OPTIONS, Message, is_result_ignored, tick_token
from celery_redislock.publishing.tick import Tick
from celery_redislock.publishing.turn import spelled
from celery_redislock.store.store import Merge

#: A workflow waits for a message with one of these options, or it follows a run. ``reply_to``: a frozen
#: signature has one; a chord's body has no other (celery 5.5.0, canvas.py).
_WORKFLOW_OPTIONS = {"group_id", "chord", "link", "link_error", "root_id", "parent_id", "reply_to"}

#: What the header of a call says whose key was given with it.
_OWN_KEY: Mapping[str, Any] = MappingProxyType({"has_own_key": True})

#: The random digits of a UUID of version 4, and what comes after them.
_parts = itemgetter(slice(8), slice(8, 12), slice(12, 15), slice(15, 18), slice(18, 30), slice(30, None))

#: Publishes: ``send(args, kwargs, task_id=…, **options)``, Celery's ``Task.apply_async``.
Send = Callable[..., Any]


class PublishingRun(Protocol):
    """A run, as far as a publish from inside its body needs to know it."""

    lock: TaskLock

    @property
    def in_body(self) -> bool:
        """Its body is running."""

    @property
    def opened_by(self) -> str | None:
        """Token under which the period of its job was opened; ``None`` where no failure ends that."""

    def holds(self, key: str) -> bool:
        """Whether the run has a lease on this key, lost or not."""

    def note_follow_up(self, token: str, claim_ttl: Callable[[], float] | None) -> None:
        """Note that the run has published its own task id again."""


def runs_in_this_thread() -> Iterator[PublishingRun]:
    """Yield the runs whose requests are on the stack of this thread or greenlet, innermost first."""
    for task in reversed(_task_stack.stack):
        run = getattr(task.request_stack.top, "redislock_run", None)
        if run:
            yield run


class Call:
    """One ``apply_async`` of a unique task.

    Attributes:
        task_id: fixed by the caller, or by the tick that the call is for (``has_fixed_id``); or new.
        options: Celery's options of the publish, without this package's.
        inherited: the header of the message whose task id is published again: by its run (a retry), or by
            the worker's main process.
        lock_options: the task's, with the call's own.
        token: the identity of the message to be.
        is_eager: publishing runs the body in place.
        is_locked: it takes a lock, ``lock``, in a ``scope``; these and ``claim_lock`` are there only then.
        claim_lock: the lock that its publish claims.
        is_tick: beat sends it for a tick of its schedule, whose identity the message has.
        must_run: unpublished, it would break a workflow or end a task's retries.
        says: what the header of its message says otherwise than that of a first call (see ``Message``).
        header: the text of that header, once the message is made.
    """

    header = ""
    says: Mapping[str, Any] = NO_OPTIONS
    lock: TaskLock
    claim_lock: TaskLock
    scope: Scope
    is_locked = False
    must_run = False
    is_tick = False
    inherited: Message | None = None
    _travels: Mapping[str, Any] = NO_OPTIONS
    _tick: Tick | None = None

    def __init__(
        self,
        task: Any,
        send: Send,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        task_id: str | None,
        options: dict[str, Any],
    ) -> None:
        """Find what one call locks; sends nothing. Raises for wrong options and arguments."""
        asked = split_call_options(options, where=f"{task.name}.apply_async") if options else NO_OPTIONS
        self.task = task
        self.args = args
        self.kwargs = kwargs
        self.options = options
        self._send = send
        self.has_fixed_id = task_id is not None
        if task_id:
            self.task_id = str(task_id)  # Celery takes a UUID as well
            self.token = new_token(self.task_id)
        else:
            # An id that nobody has, a UUID as Celery makes one (RFC 9562), and a token of it.
            *digits, nonce = _parts(urandom(21).hex())
            self.task_id = "{}-{}-4{}-a{}-{}".format(*digits)
            self.token = f"{self.task_id}/{nonce}"
        self.declaration = declaration = declaration_of(task)
        self.is_eager = declaration.always_eager
        self.lock_options = declaration.options
        if not declaration.is_on:
            return
        key = None
        if options or asked:
            message = self._take_options(asked)
            if message is not None:
                if message.key is None:
                    return
                if message.has_own_key and not self.says:
                    self.says = _OWN_KEY
                    key = message.key
                if message.stands_for_period and self.lock_options.scope not in {None, OF_PERIOD}:
                    self.lock_options = self.lock_options._replace(scope=OF_PERIOD)
        scope = self.lock_options.scope
        if scope is None:
            return
        self.scope = scope
        self.is_locked = True
        is_ignored = (
            is_result_ignored(task, options.get("ignore_result")) if options else bool(task.ignore_result)
        )
        if callable(self.lock_options.lock_limit):
            # It is asked once: what it says travels with the message.
            self.lock_options = declaration.with_limit(self.lock_options, args, kwargs)
            self._travels = {**self._travels, "lock_limit": self.lock_options.lock_limit}
        self.lock = self.claim_lock = lock = declaration.task_lock(
            args, kwargs, self.task_id, options=self.lock_options, key=key, is_ignored=is_ignored
        )
        if self.must_run:
            self.lock = self.claim_lock = lock = lock.that_waits()
        if scope.claims_beside:
            self.claim_lock = lock.of_queue()

    def _take_options(self, asked: Mapping[str, object]) -> Message | None:
        """Take in this call's own options, and those of the message it follows, which is returned."""
        options = self.options
        headers = options.get("headers")
        self.inherited = inherited = Message.of(headers, self.task_id) if headers else None
        if headers and not self.has_fixed_id:
            self._tick = Tick.of(options)
            self.has_fixed_id = bool(self._tick)
        travels = inherited.options if inherited is not None else NO_OPTIONS
        if asked or travels:
            self.lock_options = self.declaration.for_call(asked, inherited=travels)
        self._travels = {**travels, **to_header(asked)} if asked else travels
        if "lock_key" in asked:
            self.says = _OWN_KEY
        is_retry = (options.get("retries") or 0) > 0
        # The last link of a chain is published with an empty chain (celery 5.7.0, app/trace.py).
        is_of_workflow = "chain" in options or any(map(options.get, options.keys() & _WORKFLOW_OPTIONS))
        self.must_run = is_retry or is_of_workflow
        return inherited

    def take_tick(self) -> None:
        """Take the identity of a tick, if the call is for one: another beat may have sent it before."""
        options = self.options
        if self._tick is not None:
            self.task_id = self._tick.name(options, self.task.name, self.lock.key, self.args, self.kwargs)
            self.lock = self.lock._replace(owner=self.task_id)
            self.claim_lock = self.claim_lock._replace(owner=self.task_id)
        token = tick_token(options.get("headers"), self.task_id)
        if token is not None:
            self.token = token
            self.is_tick = True

    def own_run(self) -> PublishingRun | None:
        """Return the run of this call's own task id in this thread: a retry or a replacement is published."""
        return next((run for run in runs_in_this_thread() if run.lock.owner == self.task_id), None)

    @property
    def may_be_parked(self) -> bool:
        """Its publish may put it into a line: it belongs to no workflow, and has no time of its own.

        A worker parks what may not.
        """
        options = self.options
        return not (self.must_run or options.get("countdown") or options.get("eta"))

    @property
    def coalesces(self) -> bool:
        """It takes the place of the call of its task that waits; one that expires would let both expire."""
        expires = self.options.get("expires", self.task.expires)
        is_asked = self.lock_options.client == "coalesce"
        return is_asked and self.may_be_parked and expires is None and self.inherited is None

    @property
    def is_put_off(self) -> bool:
        """It waits for further calls before it starts, also where nobody holds its key."""
        return self.lock_options.lock_debounce is not None and self.coalesces

    def merge(self, number: int | None = None) -> Merge | None:
        """Return how it takes the place of another call; ``None`` where it does not."""
        options = self.lock_options
        if not self.coalesces:
            return None
        times = options.lock_debounce or 0.0, options.lock_debounce_max or 0.0
        return Merge(spelled(self.task_id, self.token), *times, number)

    def forget_result(self) -> None:
        """Take back what Celery did, before it published, for those who wait for this call's own result."""
        consumer = getattr(self.task.backend, "result_consumer", None)
        if consumer is not None and not self.lock.is_ignored:
            consumer.cancel_for(self.task_id)

    def claim_ttl(self) -> float:
        """Return the seconds a claim lives: countdown or ETA and ``lock_queue_ttl``, capped by ``expires``.

        Where the claim stands for the period, the period.
        """
        lock = self.lock_options
        options = self.options
        ttl = lock.lock_queue_ttl
        if self.scope.claim == "period" and lock.lock_period is not None:
            return lock.lock_period
        if not options and self.task.expires is None:
            return ttl
        ttl += self.starts_in()
        expires = options.get("expires", self.task.expires)  # as Celery does: None is for ever
        expires_in = None if expires is None else self._seconds_until(expires)
        # A message past its expiry never runs; its claim need not outlive it by more than a second.
        return ttl if expires_in is None else min(ttl, max(1.0, expires_in))

    def starts_in(self) -> float:
        """Return the seconds until its countdown has passed, or its ETA; 0 without one."""
        starts = self.options.get("countdown") or self.options.get("eta")
        return max(0.0, self._seconds_until(starts) or 0.0)

    def send(self, *, claimed: bool) -> Any:
        """Publish the message with its header; return Celery's result.

        ``claimed``: it was accepted, so there is a claim for it, or will be.
        """
        scope = self.scope
        message = Message(
            self.lock.key, self.token, claimed, self.must_run, self._travels, False,
            scope.claim == "period" and claimed, self.is_tick, None, False, scope.claims_beside,
        )  # fmt: skip
        if self.says:
            message = message._replace(**self.says)
        self.header = message.dumps()
        headers = self.options.get("headers")
        self.options["headers"] = {**headers, HEADER: self.header} if headers else {HEADER: self.header}
        return self._send(self.args, self.kwargs, task_id=self.task_id, **self.options)

    def noted(self, result: Any) -> Any:
        """Return the result of the call, which was sent; it notes behind which run in this thread."""
        claims = (
            self.scope.claim is not None and not self.scope.claims_beside
        )  # it was refused, and not skipped
        if self.lock.limit is None and (claims or self.must_run or self.lock_options.server == "wait"):
            for run in runs_in_this_thread():
                if run.in_body and run.holds(self.lock.key):
                    result.waits_behind = run.lock.owner
        return result

    def send_unlocked(self) -> Any:
        """Publish the call as Celery does; where only this call is not locked, the worker learns of it."""
        if self.declaration.is_on and self.declaration.options.scope is not None:
            self.options["headers"] = Message(None, self.token).added_to(self.options.get("headers"))
        return self._send(self.args, self.kwargs, task_id=self.task_id, **self.options)

    def _seconds_until(self, when: Any) -> float | None:
        if isinstance(when, int | float):
            return float(when)
        if isinstance(when, str):
            when = maybe_iso8601(when)
        if not isinstance(when, datetime):
            return None
        aware = maybe_make_aware(when, self.task.app.timezone)
        return float((aware - datetime.now(timezone.utc)).total_seconds())
