"""The app under ``make attack``: the package takes what a round draws."""

import random
from collections.abc import Iterator

import pytest
from celery.signals import task_postrun, worker_process_init

from celery_redislock import lock_lost
from celery_redislock.declaring.call_options import split_call_options
from celery_redislock.declaring.declaration import declaration_of
from tools.attack.draw import BROKERS, HOT_TTL, LOCK_SERVERS, RESTORING, draw_call, draw_round
from tools.attack.shop import open_shop


@pytest.fixture(autouse=True)
def _connected_here_alone() -> Iterator[None]:
    """Signals are the process's; other tests run in it."""
    yield
    lock_lost.disconnect(dispatch_uid="attack.lost")
    task_postrun.disconnect(dispatch_uid="attack.settle")
    worker_process_init.disconnect(dispatch_uid="attack.outlive")


@pytest.mark.parametrize("number", range(1, 41))
def test_the_tasks_of_every_round_can_be_declared_and_called(number: int) -> None:
    """An attack that ends at its own tasks, or at a call's options, has attacked nothing."""
    drawn = draw_round(7, number, BROKERS, LOCK_SERVERS, hot=None, kills=False)
    app = open_shop(
        {
            "broker": "memory://",
            "backend": "cache+memory://",
            "kind": drawn.broker,
            "keys": drawn.keys,
            "conf": {},
            "queue": "attack",
            "locks": "redis://127.0.0.1:1",
            "journal": "redis://127.0.0.1:1",
            "ttl": HOT_TTL,
            "queue_ttl": HOT_TTL,
            "tasks": drawn.tasks,
        }
    )
    app.finalize()
    chance = random.Random(number)  # noqa: S311  not for secrets
    for name, declared in drawn.tasks.items():
        declaration = declaration_of(app.tasks[name])
        for _ in range(0 if drawn.where else 60):
            asked = draw_call(chance, declared, restoring=drawn.broker == RESTORING) or {}
            declaration.for_call(split_call_options(dict(asked)))
    assert {name for name in app.tasks if name.startswith("attack.")} == set(drawn.tasks)
