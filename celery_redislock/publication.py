"""One call on its way to the broker: its lock, its options, and what travels with its message."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from celery_redislock.backends import is_result_ignored
from celery_redislock.declaring.declaration import Declaration
from celery_redislock.declaring.options import LockOptions
from celery_redislock.header import HEADER, Header, HolderSeen
from celery_redislock.locks.store import new_token
from celery_redislock.timing import claim_ttl
from celery_redislock.work import Work

__all__ = ["Publication", "Send", "add_header"]

#: Somebody waits for a message published with one of these: a workflow, or its own retry.
#: ``reply_to``: a frozen signature has one; a chord's body has nothing else there (celery 5.5.0, canvas.py).
_WORKFLOW_OPTIONS = ("group_id", "chord", "link", "link_error", "root_id", "parent_id", "reply_to")

#: Publishes: ``send(args, kwargs, task_id=…, **options)``, Celery's ``Task.apply_async``.
Send = Callable[..., Any]


class Publication(NamedTuple):
    """One call of a unique task, about to be published.

    Attributes:
        declaration: of the task.
        send: publishes it.
        args: of the call.
        kwargs: of the call.
        options: of the publish, without this package's.
        lock: the lock's options, the call's own among them.
        travels: those that go with the message.
        has_own_key: ``lock_key`` was given per call, so nobody can compute the key again.
        has_fixed_id: the caller gave ``task_id``.
        inherited: the header of the message whose run or worker publishes its own id again.
        work: what is locked.
    """

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

    def publish(
        self,
        token: str | None = None,
        *,
        claimed: bool,
        is_workflow_member: bool | None = None,
        waits_for: HolderSeen | None = None,
        published_at: float | None = None,
    ) -> Any:
        """Publish the message with its header.

        Args:
            token: the message's identity; a new one if ``None``.
            claimed: there is a claim under that token.
            is_workflow_member: ``None``: as this call's options tell.
            waits_for: the holder whose outcome the worker may take.
            published_at: seconds since the epoch; an outcome of its id from before is another's. Now.

        Raises:
            kombu.exceptions.OperationalError: the broker cannot be reached.
        """
        header = Header(
            key=self.work.key,
            token=token or new_token(self.work.task_id),
            claimed=claimed,
            published_at=time.time() if published_at is None else published_at,
            is_workflow_member=self.is_workflow_member if is_workflow_member is None else is_workflow_member,
            options=self.travels,
            has_own_key=self.has_own_key,
            fingerprint=self.work.arguments,
            waits_for=waits_for,
            is_window=claimed and self.lock.is_window,
        )
        add_header(self.options, header)
        return self.send(self.args, self.kwargs, task_id=self.work.task_id, **self.options)

    @property
    def is_awaited(self) -> bool:
        """Unpublished, it would break a workflow or end a task's retries."""
        return self.is_workflow_member or (self.options.get("retries") or 0) > 0

    @property
    def is_workflow_member(self) -> bool:
        """Published as part of a group, chord or chain, or with links."""
        # The last link of a chain is published with an empty one (celery 5.7.0, app/trace.py).
        return "chain" in self.options or any(self.options.get(name) for name in _WORKFLOW_OPTIONS)

    @property
    def ignores_result(self) -> bool:
        """Nobody will store a result for it."""
        return is_result_ignored(self.declaration.task, self.options.get("ignore_result"))

    @property
    def ttl(self) -> float:
        """Seconds its claim lives without a sign of life of its message."""
        return claim_ttl(self.declaration.task, self.lock, self.options)


def add_header(options: dict[str, Any], header: Header) -> None:
    """Let a publish with these options carry the header."""
    options["headers"] = {**(options.get("headers") or {}), HEADER: header.dumps()}
