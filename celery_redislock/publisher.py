"""The publishing side of a unique task: claim, publish, and what a refusal means."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from celery.utils import uuid

from celery_redislock.conflict import Conflict, choose, duplicate_error, log_skip
from celery_redislock.declaration import Declaration, declaration_of
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.guard import ACCEPTED, QUEUED, Work
from celery_redislock.header import HEADER, Header, HolderSeen
from celery_redislock.locks.store import Grant, Hold, new_token, owner_of
from celery_redislock.options import LockOptions, split_call_options, to_header
from celery_redislock.run import active_run
from celery_redislock.signals import lock_acquired
from celery_redislock.timing import claim_ttl

__all__ = ["publish"]

logger = logging.getLogger("celery_redislock")

#: Somebody waits for a message published with one of these: a workflow, or its own retry.
#: ``reply_to``: a frozen signature has one; a chord's body has nothing else there (celery 5.5.0, canvas.py).
_WORKFLOW_OPTIONS = ("group_id", "chord", "link", "link_error", "root_id", "parent_id", "reply_to")

Send = Callable[..., Any]


def publish(
    task: Any,
    send: Send,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    task_id: str | None,
    options: dict[str, Any],
) -> Any:
    """Publish a call of a unique task, unless it is a duplicate.

    Args:
        task: the bound task.
        send: publishes: ``send(args, kwargs, task_id=…, **options)``, Celery's ``Task.apply_async``.
        args: of the call.
        kwargs: of the call.
        task_id: as the caller fixed it, or ``None``.
        options: of the publish, this package's among them.

    Returns:
        Celery's result; for a skipped duplicate the holder's, marked ``is_duplicate``.

    Raises:
        DuplicateTask: strategy ``raise``.
        LockUnavailable: the lock server cannot be reached and ``on_lock_error`` is ``raise``.
        LockOptionError: an option is unknown or contradictory.
        LockKeyError: no key can be made of the arguments.
        TypeError: the arguments do not fit the task.
        kombu.exceptions.OperationalError: the broker cannot be reached; the claim was given back.
    """
    call_options = split_call_options(options, where=f"{task.name}.apply_async")
    declaration = declaration_of(task)
    if not declaration.settings.enabled or (declaration.always_eager and not declaration.settings.eager):
        return send(args, kwargs, task_id=task_id, **options)
    has_fixed_id, task_id = task_id is not None, task_id or uuid()
    # A retry is published with the headers of the message it retries.
    inherited = Header.loads((options.get("headers") or {}).get(HEADER))
    if inherited is not None and owner_of(inherited.token) != task_id:
        inherited = None
    lock_options = declaration.for_call(call_options, inherited=inherited.options if inherited else {})
    if lock_options.lock is None or (inherited is not None and inherited.key is None):
        if declaration.options.lock is not None:
            # Switched off for this call: the worker is told, or it would lock by the task's own options.
            _add_header(options, Header(None, new_token(task_id)))
        return send(args, kwargs, task_id=task_id, **options)
    if task.typing and getattr(task, "__header__", None) is not None:
        # What Celery would refuse after the claim is refused before it.
        task.__header__(*(args or ()), **(kwargs or {}))
    own_key = "lock_key" in call_options
    if inherited is not None and inherited.has_own_key and not own_key:
        key, own_key = inherited.key, True
    else:
        key = None
    publication = _Publication(
        declaration=declaration,
        send=send,
        args=args,
        kwargs=kwargs,
        options=options,
        lock=lock_options,
        travels={**(inherited.options if inherited else {}), **to_header(call_options)},
        has_own_key=own_key,
        has_fixed_id=has_fixed_id,
        inherited=inherited,
        work=declaration.work(args, kwargs, task_id, options=lock_options, key=key),
    )
    return publication.publish()


class _Publication(NamedTuple):
    declaration: Declaration
    send: Send
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    options: dict[str, Any]
    lock: LockOptions
    travels: Mapping[str, Any]
    has_own_key: bool
    has_fixed_id: bool
    inherited: Header | None
    work: Work

    def publish(self) -> Any:
        if self.declaration.always_eager:
            return self._run_eagerly()
        run = active_run(self.work.task_id)
        if run is not None and run.holds(self.work.key):
            # Published before the body has unwound, it could start while this run is still at work.
            run.hold_back(self._follow_up, ttl=self._ttl())
            return self.declaration.task.AsyncResult(self.work.task_id)
        if self.inherited is not None and self.inherited.key == self.work.key:
            return self._publish_on(self.inherited)
        if self.lock.lock == "while_executing":
            return self._send(claimed=False)
        return self._claim_and_send()

    def _run_eagerly(self) -> Any:
        """Eager mode with ``redislock_eager``: no claim, because the run follows in this very thread."""
        hold = self._holder() if self.lock.client else None
        # With the header, so that the run goes by this call's key and options.
        return self._send(claimed=False) if hold is None else self._refused(hold)

    def _holder(self) -> Hold | None:
        try:
            return self.declaration.guard.store.inspect(self.work.key)
        except LockUnavailable as error:
            if self.lock.on_lock_error == "raise":
                raise
            logger.warning("not asked who holds %r: %s", self.work.key, error)
            return None

    def _follow_up(self, token: str, *, claimed: bool, is_workflow_member: bool) -> Any:
        """Publish as the continuation of a run that handed its hold on to ``token``."""
        return self._send(token, claimed=claimed, is_workflow_member=is_workflow_member)

    def _publish_on(self, carried: Header) -> Any:
        """Publish a message of this id that carries its own hold already (from the worker's main process)."""
        if carried.claimed and self.lock.lock in {"until_executed", "until_executing"}:
            # Not a new claim: the old one's time starts anew, for the countdown that lies ahead.
            try:
                self.declaration.guard.claim(self.work, carried.token, ttl=self._ttl())
            except LockUnavailable as error:
                logger.warning(
                    "published %s[%s] without renewing its claim: %s",
                    self.work.task,
                    self.work.task_id,
                    error,
                )
        try:
            return self._send(
                carried.token, claimed=carried.claimed, is_workflow_member=carried.is_workflow_member
            )
        except BaseException:
            if carried.claimed:
                self.declaration.guard.give_back(
                    self.work.key,
                    carried.token,
                    ttl=self._ttl(),
                )
            raise

    def _claim_and_send(self) -> Any:
        guard = self.declaration.guard
        token = guard.new_claim(self.work.task_id)
        ttl = self._ttl()
        try:
            with guard.owing(self.work.key, token, ttl=ttl, undo=True):
                answer = guard.claim(self.work, token, ttl=ttl, period=self._window(), state=self._state())
        except LockUnavailable as error:
            # A member of a workflow that is not published breaks it; unclaimed, its run takes the lock.
            if self.lock.on_lock_error == "raise" and not self._is_awaited():
                raise
            logger.warning("publishing %s[%s] without a claim: %s", self.work.task, self.work.task_id, error)
            return self._send(claimed=False)
        if not isinstance(answer, Grant):
            return self._refused(answer.hold)  # type: ignore[union-attr]  # a claim names no message to be done
        try:
            result = self._send(token, claimed=True)
        except BaseException:
            # No message is on its way, so nobody would ever turn this claim into a run.
            guard.give_back(self.work.key, token, ttl=ttl, undo=True)
            raise
        lock_acquired.send(
            sender=self.declaration.task, key=self.work.key, task_id=self.work.task_id, lease=None
        )
        return result

    def _refused(self, hold: Hold) -> Any:
        if self._is_awaited():
            # A member of a workflow that is not published leaves the others waiting for ever.
            return self._send(claimed=False, waits_for=self._awaited_holder(hold))
        conflict = Conflict(
            task=self.declaration.task,
            args=tuple(self.args or ()),
            kwargs=dict(self.kwargs or {}),
            task_id=self.work.task_id,
            key=self.work.key,
            holder=hold.owner,
            expires_in=hold.expires_in,
            side="client",
        )
        strategy = choose(self.lock.client or "skip", conflict, hold)
        if strategy == "raise":
            raise duplicate_error(hold)
        if strategy == "retry" and self.declaration.task.app.conf.task_always_eager:
            raise duplicate_error(hold)
        if strategy == "retry":
            return self._send(claimed=False)
        return self._skip(hold)

    def _skip(self, hold: Hold) -> Any:
        task = self.declaration.task
        log_skip(self.work, hold, side="client")
        if active_run(hold.owner) is not None:
            logger.warning(
                "%s published itself from inside its own run %s and was skipped as a duplicate of it; "
                "to queue another run from inside the task, declare it with lock='until_executing'",
                self.work.task,
                hold.owner,
            )
        if self.has_fixed_id and self.work.task_id != hold.owner and not self._ignores_result():
            task.backend.mark_as_revoked(self.work.task_id, f"duplicate of {hold.owner}")
        result = task.AsyncResult(hold.owner)
        result.is_duplicate = True
        # Where results are ignored, get() returns at once instead of waiting for what nobody stores.
        result.ignored = self._ignores_result()
        return result

    def _awaited_holder(self, hold: Hold) -> HolderSeen | None:
        """Whose outcome the worker may take, even if it finds the lock free when it gets to the message."""
        if hold.is_window or not self._is_workflow_member() or self.lock.client != "skip":
            return None  # whoever does not skip wants every one of them to run
        return HolderSeen(hold.owner, is_same_work=hold.about.get("args") == self.work.arguments)

    def _send(
        self,
        token: str | None = None,
        *,
        claimed: bool,
        is_workflow_member: bool | None = None,
        waits_for: HolderSeen | None = None,
    ) -> Any:
        if is_workflow_member is None:
            is_workflow_member = self._is_workflow_member()
        header = Header(
            key=self.work.key,
            token=token or self.declaration.guard.new_claim(self.work.task_id),
            claimed=claimed,
            published_at=time.time(),
            is_workflow_member=is_workflow_member,
            options=self.travels,
            has_own_key=self.has_own_key,
            fingerprint=self.work.arguments,
            waits_for=waits_for,
        )
        _add_header(self.options, header)
        return self.send(self.args, self.kwargs, task_id=self.work.task_id, **self.options)

    def _is_awaited(self) -> bool:
        return self._is_workflow_member() or (self.options.get("retries") or 0) > 0

    def _is_workflow_member(self) -> bool:
        # The last link of a chain is published with an empty one (celery 5.7.0, app/trace.py).
        return "chain" in self.options or any(self.options.get(name) for name in _WORKFLOW_OPTIONS)

    def _ignores_result(self) -> bool:
        ignored = self.options.get("ignore_result")
        return bool(self.declaration.task.ignore_result if ignored is None else ignored)

    def _state(self) -> str:
        return ACCEPTED if self.lock.lock == "until_expired" else QUEUED

    def _ttl(self) -> float:
        return claim_ttl(self.declaration.task, self.lock, self.options)

    def _window(self) -> float | None:
        return None if self.lock.lock == "until_expired" else self.lock.lock_period


def _add_header(options: dict[str, Any], header: Header) -> None:
    options["headers"] = {**(options.get("headers") or {}), HEADER: header.dumps()}
