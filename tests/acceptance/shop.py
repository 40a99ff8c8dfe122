"""The app under test: tasks of every declaration, which all have the same body.

The worker processes import this module with the plan of their shop in the
environment; the test's process opens the same shop by itself.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.signals import task_postrun, task_success
from celery.utils.dispatch import Signal

from celery_redislock import (
    lock_acquired,
    lock_conflict,
    lock_lost,
    lock_released,
)
from celery_redislock.locks.lease import Lease
from tests.acceptance.endings import new_body
from tests.acceptance.journal import Journal
from tests.acceptance.kinds import by_mood, declare_kinds
from tests.workers import end_with_parent

__all__ = [
    "DECLARED",
    "SALE",
    "SOCKET_TIMEOUT",
    "connection_name",
    "open_shop",
    "settings_of",
]


def _tell_loss(lease: Lease) -> None:
    _journals[-1].note("lost leases", lease.token)


_journals: list[Journal] = []

#: The resource of nearly every task: one sale of a thing at a time.
SALE = "sale:{key}"

#: Seconds a server may take to answer, before it counts as away.
SOCKET_TIMEOUT = 1.0

#: What the tests say about how a task is declared, by name.
DECLARED: Mapping[str, Mapping[str, Any]] = {
    "sell": {},
    "sell_late": {"acks_late": True},
    "sell_quietly": {"ignore_result": True},
    "sell_late_quietly": {"acks_late": True, "ignore_result": True},
    "sell_late_again": {"acks_late": True, "reject_on_worker_lost": True},
    "sell_retrying_lost": {"retry_on_worker_lost": True, "default_retry_delay": 0},
    "sell_loudly": {"on_conflict": "raise"},
    "sell_later": {"on_conflict": "retry"},
    "sell_stubbornly": {"autoretry_for": (ValueError,), "retry_kwargs": {"max_retries": 2, "countdown": 0.3}},
    "sell_in_time": {"time_limit": 2},
    "sell_in_time_again": {"time_limit": 2, "acks_late": True, "acks_on_failure_or_timeout": False},
    "sell_softly": {"soft_time_limit": 1},
    "sell_at_most": {"lock_max_hold": 1.5, "lock_ttl": 1.2},
    "sell_or_stop": {"on_lock_lost": "terminate", "lock_ttl": 1.0},
    "sell_and_tell": {"on_lock_lost": _tell_loss, "lock_ttl": 1.0},
    "sell_late_and_tell": {"on_lock_lost": _tell_loss, "lock_ttl": 1.0, "acks_late": True},
    "announce": {"lock_ttl": 1.0},
    "sell_regardless": {"on_lock_error": "run"},
    "sell_everything": {"lock_key": None},
    "serve": {"lock": "while_executing"},
    "serve_too": {"lock": "while_executing"},
    "serve_late": {"lock": "while_executing", "acks_late": True},
    "serve_once": {"lock": "while_executing", "max_retries": 1},
    "serve_or_skip": {"lock": "while_executing", "on_conflict": "skip"},
    "serve_or_fail": {"lock": "while_executing", "on_conflict": "raise"},
    "serve_by_mood": {"lock": "while_executing", "on_conflict": {"server": by_mood}},
    "sell_by_mood": {"on_conflict": by_mood},
    "queue": {"lock": "until_executing"},
    "offer": {"lock": "until_expired", "lock_period": 2.0},
    "offer_rarely": {"lock": "until_expired", "lock_period": 600.0},
    "open_daily": {"lock_period": 600.0},
    "gossip": {"lock": None},
}


def open_shop(plan: Mapping[str, Any]) -> Celery:
    """Return the app of a shop, with all its tasks.

    Args:
        plan: ``broker``, ``backend``, ``journal`` (URLs), ``prefix`` and ``conf``.
    """
    app = Celery(
        "shop",
        broker=plan["broker"],
        backend=plan["backend"],
        set_as_current=False,
        task_cls="celery_redislock:SingletonTask",
    )
    app.conf.update(settings_of(plan))
    app.journal = Journal(plan["journal"], plan["prefix"])
    _journals.append(app.journal)
    for name, options in DECLARED.items():
        keyed = {"lock_key": SALE, "after_return": _linger, **options}
        app.task(name=f"shop.{name}", bind=True, shared=False, **keyed)(new_body())
    for task in declare_kinds(app):
        task.name  # noqa: B018  evaluates the declaration now
    lock_lost.connect(_note_loss, weak=False, dispatch_uid="shop.loss")
    for signal in (lock_acquired, lock_released, lock_lost, lock_conflict):
        signal.connect(_announce, weak=False, dispatch_uid=f"shop.{signal.name}")
    lock_released.connect(_released, weak=False, dispatch_uid="shop.reach")
    task_success.connect(_stored, weak=False, dispatch_uid="shop.reach")
    task_postrun.connect(_settled, weak=False, dispatch_uid="shop.reach")
    return app


def connection_name(prefix: str, pid: int | None = None) -> str:
    """Return what a process of a shop, and its children, call their connections; or how all these begin."""
    return f"{prefix}/" if pid is None else f"{prefix}/{pid}/"


def settings_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a shop's app."""
    settings: dict[str, Any] = dict(plan["conf"])
    shared = {"global_keyprefix": f"{plan['prefix']}:"}
    is_rabbitmq = plan["broker"].startswith("amqp://")
    name = connection_name(plan["prefix"], os.getpid())
    of_broker = {"client_properties": {"connection_name": name}} if is_rabbitmq else shared
    return {
        # On Redis all names begin with the shop's prefix; on RabbitMQ its queue is called so.
        **({"task_default_queue": plan["prefix"]} if is_rabbitmq else {}),
        "result_backend_transport_options": shared,
        "redislock_ttl": 3.0,
        "redislock_retry_delay": 0.3,
        "redislock_socket_timeout": SOCKET_TIMEOUT,
        "redislock_start_timeout": 2.0,
        "worker_prefetch_multiplier": 1,
        "broker_connection_retry_on_startup": True,
        "result_expires": 600,
        "accept_content": ["json", "pickle", "yaml", "msgpack"],
        "result_accept_content": ["json", "pickle"],
        **settings,
        "broker_transport_options": {**of_broker, **settings.get("broker_transport_options", {})},
    }


def _linger(self: Any, *_: Any) -> None:
    """Stay in Celery's hook after the result was stored, where a message asks for it."""
    time.sleep((self.request.headers or {}).get("linger", 0.0))


def _announce(signal: Signal, sender: Any, key: str, task_id: str, **_: Any) -> None:
    if sender.name == "shop.announce":
        sender.app.journal.note(f"signals {key}", [signal.name, task_id])


def _note_loss(sender: Any, task_id: str, **_: Any) -> None:
    sender.app.journal.note(f"noticed {task_id}", time.monotonic())


def _released(sender: Any, **_: Any) -> None:
    """The lock is free; the result is not stored yet."""
    if sender.acks_late and sender.name.startswith("shop."):
        sender.app.journal.reach(sender.request.args[0], "released")


def _stored(sender: Any, **_: Any) -> None:
    """The result is stored; the message is not acknowledged yet."""
    if sender.acks_late and sender.name.startswith("shop."):
        sender.app.journal.reach(sender.request.args[0], "stored")


def _settled(sender: Any, **_: Any) -> None:
    """Everything is done but to acknowledge the message."""
    if sender.acks_late and sender.name.startswith("shop."):
        sender.app.journal.reach(sender.request.args[0], "settled")


# Not where another module makes its own app of the plan.
if "SHOP_PLAN" in os.environ and "tests.acceptance.spawned" not in sys.modules:
    app = open_shop(json.loads(os.environ["SHOP_PLAN"]))
    end_with_parent()
