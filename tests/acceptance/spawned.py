"""The app of workers whose children are spawned: one that Celery can rebuild there, by importing this module.

A project's own cannot be: its tasks belong to it alone, and a spawned child makes an app and its tasks anew.
"""

import json
import os
from typing import Any

import billiard
from celery import Celery

from celery_redislock import SingletonTask
from tests.acceptance.journal import Journal
from tests.acceptance.project import settings_of
from tests.acceptance.worker import end_with_parent

plan = json.loads(os.environ["PROJECT_PLAN"])
app = Celery("spawned", broker=plan["broker"], backend=plan["backend"], include=[__name__])
app.conf.update(settings_of(plan))
journal = Journal(plan["journal"], plan["prefix"])


@app.task(
    base=SingletonTask,
    name="spawned.while_executing",
    bind=True,
    lock="while_executing",
    lock_key="work:{key}",
)
def work(self: Any, key: str, seconds: float = 0.0) -> str:
    with journal.body(self, key) as number:
        journal.stay(key, number, seconds)
        return f"{key} done"


if billiard.current_process().name == "MainProcess":
    end_with_parent()
