"""The newest of many: of two calls of one task that meet in a line on a worker, the older one gives way.

Each is a message of its own there, with a task id that somebody may wait for. So the older one's state is
stored first: a worker that dies in between leaves it in line, and whoever parks the newer one's message does
both again.
"""

from typing import Any

from celery_redislock.log import logger
from celery_redislock.publishing.results import RUN_AS
from celery_redislock.store.store import Hold, owner_of

#: How often a message asks for a place that others take meanwhile. Then it waits as itself.
TRIES = 10


def give_way(task: Any, older: Hold, newer: str) -> None:
    """Store that the older call, as the line has it, does not run; ``newer``: the other one's identity."""
    end(task, older.owner, owner_of(newer), is_ignored=b'"ignored":true' in older.text)


def end(task: Any, task_id: str, by: str, *, is_ignored: bool) -> None:
    """Store that a call does not run, because another one's arguments count."""
    try:
        task.backend.mark_as_revoked(task_id, f"{RUN_AS} {by}", store_result=not is_ignored)
    except Exception as error:  # noqa: BLE001  every backend has errors of its own
        line = "%s gave way to %s, and who waits for its result waits in vain: see to the result backend (%r)"
        logger.warning(line, task_id, by, error)
