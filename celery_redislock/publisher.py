"""The publishing side of a unique task: claim, then publish."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from celery.utils import uuid

from celery_redislock.active import active_run
from celery_redislock.declaring.call_options import split_call_options, to_header
from celery_redislock.declaring.declaration import Declaration, declaration_of
from celery_redislock.declaring.options import LockOptions
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.header import Header
from celery_redislock.locks.store import Grant, Hold, Recorded, Refusal, new_token
from celery_redislock.outage import NEEDS_NO_SERVER
from celery_redislock.publication import Publication, Send, add_header
from celery_redislock.refusal import refuse
from celery_redislock.revoked import make_way
from celery_redislock.signals import lock_acquired
from celery_redislock.work import ACCEPTED, QUEUED, Work

__all__ = ["publish"]

logger = logging.getLogger("celery_redislock")


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
        LockUnavailable: the lock server cannot be reached and ``on_lock_error`` is ``raise``; not for
            a retry or a member of a workflow, which is published without a claim.
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
    inherited = Header.of(options.get("headers"), task_id)
    lock = declaration.for_call(call_options, inherited=inherited.options if inherited else {})
    if lock.lock is None or (inherited is not None and inherited.key is None):
        if declaration.options.lock is not None:
            # Switched off for this call: the worker is told, or it would lock by the task's own options.
            add_header(options, Header(None, new_token(task_id)))
        return send(args, kwargs, task_id=task_id, **options)
    _check_signature(task, args, kwargs)
    carried = None if inherited is None or "lock_key" in call_options else inherited
    publication = Publication(
        declaration=declaration,
        send=send,
        args=args,
        kwargs=kwargs,
        options=options,
        lock=lock,
        travels={**(inherited.options if inherited else {}), **to_header(call_options)},
        has_own_key="lock_key" in call_options or (carried is not None and carried.has_own_key),
        has_fixed_id=has_fixed_id,
        inherited=inherited,
        work=_work(declaration, lock, carried, args, kwargs, task_id),
    )
    if publication.ignores_result:
        publication = publication._replace(work=publication.work._replace(is_ignored=True))
    return _publish(publication)


def _check_signature(task: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> None:
    """Refuse before the claim what Celery would refuse after it."""
    if task.typing and getattr(task, "__header__", None) is not None:
        task.__header__(*(args or ()), **(kwargs or {}))


def _work(
    declaration: Declaration,
    lock: LockOptions,
    carried: Header | None,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    task_id: str,
) -> Work:
    if carried is not None and carried.has_own_key:
        return declaration.work(args, kwargs, task_id, options=lock, key=carried.key)
    work = declaration.work(args, kwargs, task_id, options=lock)
    if carried is None or carried.key in {None, work.key}:
        return work
    # Its message got its key before a deploy named it otherwise: it keeps that one, and its hold.
    same = declaration.is_same_work(args, kwargs, key=carried.key, fingerprint=carried.fingerprint)
    return work._replace(key=carried.key) if same else work


def _publish(publication: Publication) -> Any:
    work, inherited = publication.work, publication.inherited
    if publication.declaration.always_eager:
        return _run_eagerly(publication)
    run = active_run(work.task_id)
    if run is not None and run.holds(work.key):
        # Published before the body has unwound, it could start while this run is still at work.
        run.hold_back(publication.publish, ttl=publication.ttl)
        return publication.declaration.task.AsyncResult(work.task_id)
    if inherited is not None and inherited.key == work.key:
        if run is not None:
            run.has_passed_claim_on = True
            if publication.lock.lock == "until_executing":
                # The claim of its own message was given back when it started, or will be: what gives it back
                # late must not end that of its retry.
                inherited = inherited._replace(token=new_token(work.task_id))
        return _publish_on(publication, inherited)
    if publication.lock.lock == "while_executing":
        return publication.publish(claimed=False)
    return _claim_and_publish(publication)


def _run_eagerly(publication: Publication) -> Any:
    """Eager mode with ``redislock_eager``: no claim, because the run follows in this very thread."""
    hold = _holder(publication) if publication.lock.client else None
    # With the header, so that the run goes by this call's key and options.
    return publication.publish(claimed=False) if hold is None else refuse(publication, hold)


def _holder(publication: Publication) -> Hold | None:
    try:
        return publication.declaration.guard.store.inspect(publication.work.key, to_decide=True)
    except LockUnavailable as error:
        if publication.lock.on_lock_error == "raise":
            raise error.with_remark(NEEDS_NO_SERVER) from error
        logger.warning(
            "could not ask who holds %r, so %s goes on as if nobody did: %s",
            publication.work.key,
            publication.work,
            error,
        )
        return None


def _publish_on(publication: Publication, carried: Header) -> Any:
    """Publish a message of this id that carries its own hold already (from the worker's main process)."""
    guard, work, ttl = publication.declaration.guard, publication.work, publication.ttl
    if carried.claimed and not publication.lock.is_window:
        # Not a new claim: the old one's time starts anew, for the countdown that lies ahead.
        with guard.owing(work.key, carried.token, ttl=ttl):
            try:
                guard.claim(work, carried.token, ttl=ttl)
            except LockUnavailable as error:
                logger.warning("publishing %s without renewing its claim, which may expire: %s", work, error)
    try:
        return publication.publish(
            carried.token, claimed=carried.claimed, is_workflow_member=carried.is_workflow_member
        )
    except BaseException:
        if carried.claimed:
            guard.give_back(work.key, carried.token, ttl=ttl)
        raise


def _claim_and_publish(publication: Publication) -> Any:
    guard, work = publication.declaration.guard, publication.work
    token, task = new_token(work.task_id), publication.declaration.task
    try:
        answer = _claim(publication, token)
        if isinstance(answer, Refusal) and make_way(guard, task, answer.hold, ttl=publication.ttl):
            answer = _claim(publication, token)
    except LockUnavailable as error:
        if not _goes_on_without_claim(publication):
            remark = f"{work} was not published"
            raise error.with_remark(remark) from error
        logger.warning("publishing %s without a claim, so a duplicate of it may follow: %s", work, error)
        try:
            # With the token all the same: should only the answers have got lost, the message finds its claim.
            return publication.publish(token, claimed=False)
        except BaseException:
            guard.give_back_later(work.key, token, ttl=publication.ttl, undo=True)
            raise
    if isinstance(answer, Refusal):
        return refuse(publication, answer.hold)
    try:
        result = publication.publish(token, claimed=True)
    except BaseException:
        # No message is on its way, so nobody would ever turn this claim into a run.
        guard.give_back(work.key, token, ttl=publication.ttl, undo=True)
        raise
    lock_acquired.send(sender=task, key=work.key, task_id=work.task_id, lease=None)
    return result


def _goes_on_without_claim(publication: Publication) -> bool:
    """Whether a message is published although the lock server cannot be reached.

    A member of a workflow that is not published breaks it; unclaimed, its run takes the lock.
    """
    return publication.lock.on_lock_error != "raise" or publication.is_awaited


def _claim(publication: Publication, token: str) -> Grant | Refusal:
    guard, work, ttl = publication.declaration.guard, publication.work, publication.ttl
    is_window = publication.lock.is_window
    with guard.owing(work.key, token, ttl=ttl, undo=True):
        try:
            answer = guard.claim(
                work,
                token,
                ttl=ttl,
                period=None if is_window else publication.lock.lock_period,
                state=ACCEPTED if is_window else QUEUED,
            )
        except LockUnavailable as error:
            if not _goes_on_without_claim(publication):
                raise
            unanswered = error
        else:
            assert not isinstance(answer, Recorded)  # noqa: S101  a claim names no message to be done
            return answer
    # Its message goes out: the window, if one was begun, is that message's, which relies on it.
    if not is_window:
        guard.give_back_later(work.key, token, ttl=ttl)
    raise unanswered
