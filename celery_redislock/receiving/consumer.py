"""A step of the worker's consumer, in the main process: it frees the keys of messages that get no request.

Celery sends no signal for a message that is revoked while no worker has it, or whose body cannot be read.
"""

import threading
import time
from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from celery.bootsteps import Step
from celery.utils.functional import maybe_list
from celery.worker.consumer.control import Control

from celery_redislock.declaring.declaration import is_unique
from celery_redislock.declaring.server import settings_of, store_of
from celery_redislock.log import command, logger
from celery_redislock.running.leavings import release_dropped
from celery_redislock.store.store import owner_of
from celery_redislock.wire.retrying import keep_trying

#: Seconds for which revoked ids are gathered, so that many revocations cost one look at the locks.
GATHERING = 1.0


class Unreceived(Step):  # type: ignore[misc]  # celery-types has it untyped
    """Hears of revocations and of bodies that cannot be read; added to the steps of a worker's consumer."""

    requires = (Control,)

    def include_if(self, consumer: Any) -> bool:
        """Only where there are unique tasks."""
        return any(map(is_unique, consumer.app.tasks.values()))

    def create(self, consumer: Any) -> None:
        """Stand before Celery's own callbacks (5.5.0 to 5.7.0); called once, before the consumer starts."""
        consumer.on_decode_error = partial(_release_unread, consumer, consumer.on_decode_error)
        node = consumer.blueprint[Control.name].box.node
        revoked = Revoked(consumer.app)
        # Celery's commands are kept for all workers of the process together; these are of this one.
        ours = {name: partial(_hear, revoked, node.handlers[name]) for name in ("revoke", "terminate")}
        node.handlers = ChainMap(ours, node.handlers)


@dataclass(eq=False)
class Revoked:
    """Ids that were revoked, until a thread has released their claims; runs and periods end by themselves."""

    _app: Any
    _ids: set[str] = field(default_factory=set)
    _lock: Any = field(default_factory=threading.Lock)

    def add(self, ids: object) -> None:
        """Release the claims of a task id, or of several, within seconds; called where nothing may block."""
        new = set(map(str, maybe_list(ids) or ()))
        with self._lock:
            if new and not self._ids:
                threading.Thread(target=self._look, name="redislock-revoked", daemon=True).start()
            self._ids |= new

    def _look(self) -> None:
        while True:
            time.sleep(GATHERING)
            ids = self._ids.copy()
            try:
                keep_trying(partial(self.release_claims, ids), for_seconds=60.0)
            except Exception as error:  # noqa: BLE001  nobody waits for it
                logger.warning(
                    "could not release the claims of %d revoked tasks, which expire, or are released when "
                    "their messages come; to release one sooner: %s (%s)",
                    len(ids),
                    command("redislock release --queued --reason TEXT -- TASK_ID"),
                    error,
                )
            with self._lock:
                self._ids -= ids
                if not self._ids:
                    return

    def release_claims(self, ids: set[str]) -> None:
        """Release the claims of these task ids, in one look at the locks there are; safe to repeat."""
        settings = settings_of(self._app)
        if not settings.enabled:
            return
        for name, token in store_of(self._app, settings).release_claims(ids):
            logger.info("released the claim of %s on %r: it was revoked", owner_of(token), name)


def _release_unread(consumer: Any, drop: Callable[..., None], message: Any, error: Exception) -> None:
    try:
        release_dropped(consumer.app, message.headers, message.delivery_info)
    finally:
        drop(message, error)


def _hear(revoked: Revoked, command: Callable[..., Any], state: Any, **arguments: Any) -> Any:
    answer = command(state, **arguments)
    revoked.add(arguments.get("task_id"))  # an error is logged, and costs the answer (kombu 5.7.0, pidbox.py)
    return answer
