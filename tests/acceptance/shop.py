"""The app under test: tasks of every declaration, which all have the same body.

The worker processes import this module with the plan of their shop in the
environment; the test's process opens the same shop by itself.
"""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any

from celery import Celery
from celery.exceptions import Ignore, Reject
from celery.utils.dispatch import Signal

from celery_redislock import (
    LockLost,
    lock_acquired,
    lock_conflict,
    lock_lost,
    lock_released,
)
from celery_redislock.locks.lease import Lease
from tests.acceptance.journal import BEAT, Journal
from tests.acceptance.kinds import by_mood, declare_kinds

__all__ = ["DECLARED", "SALE", "open_shop"]


def _tell_loss(lease: Lease) -> None:
    _journals[-1].note("lost leases", lease.token)


_journals: list[Journal] = []

#: The resource of nearly every task: one sale of a thing at a time.
SALE = "sale:{key}"

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
    "sell_stubbornly": {"autoretry_for": (ValueError,), "retry_kwargs": {"max_retries": 2, "countdown": 0}},
    "sell_in_time": {"time_limit": 1},
    "sell_softly": {"soft_time_limit": 1},
    "sell_at_most": {"lock_max_hold": 1.5, "lock_ttl": 0.6},
    "sell_or_stop": {"on_lock_lost": "terminate", "lock_ttl": 1.0},
    "sell_and_tell": {"on_lock_lost": _tell_loss, "lock_ttl": 1.0},
    "announce": {"lock_ttl": 1.0},
    "sell_regardless": {"on_lock_error": "run"},
    "sell_everything": {"lock_key": None},
    "serve": {"lock": "while_executing"},
    "serve_too": {"lock": "while_executing"},
    "serve_once": {"lock": "while_executing", "max_retries": 1},
    "serve_or_skip": {"lock": "while_executing", "on_conflict": "skip"},
    "serve_or_fail": {"lock": "while_executing", "on_conflict": "raise"},
    "serve_by_mood": {"lock": "while_executing", "on_conflict": {"server": by_mood}},
    "sell_by_mood": {"on_conflict": by_mood},
    "queue": {"lock": "until_executing"},
    "offer": {"lock": "until_expired", "lock_period": 2.0},
    "open_daily": {"lock_period": 2.0},
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
    shared = {"global_keyprefix": f"{plan['prefix']}:"}
    transport = {**shared, **plan["conf"].pop("broker_transport_options", {})}
    app.conf.update(
        broker_transport_options=transport,
        result_backend_transport_options=shared,
        redislock_ttl=3.0,
        redislock_retry_delay=0.3,
        redislock_socket_timeout=0.3,
        redislock_start_timeout=2.0,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=True,
        broker_connection_retry_on_startup=True,
        result_expires=600,
        accept_content=["json", "pickle", "yaml", "msgpack"],
        result_accept_content=["json", "pickle"],
    )
    app.conf.update(plan["conf"])
    app.journal = Journal(plan["journal"], plan["prefix"])
    _journals.append(app.journal)
    for name, options in DECLARED.items():
        keyed = {"lock_key": SALE, **options}
        app.task(name=f"shop.{name}", bind=True, shared=False, **keyed)(_new_body())
    for task in declare_kinds(app):
        task.name  # noqa: B018  evaluates the declaration now
    for signal in (lock_acquired, lock_released, lock_lost, lock_conflict):
        signal.connect(_announce, weak=False, dispatch_uid=f"shop.{signal.name}")
    return app


def _announce(signal: Signal, sender: Any, key: str, task_id: str, **_: Any) -> None:
    if sender.name == "shop.announce":
        sender.app.journal.note(f"signals {key}", [signal.name, task_id])


def _new_body() -> Callable[..., Any]:
    """Make a body of its own for each task: Celery keeps attributes on it."""

    def work(self: Any, key: str, seconds: float = 0.0, then: str | None = None, more: Any = None) -> Any:
        with self.app.journal.body(self, key) as number:
            self.request.body = number
            _stay(self, seconds)
            return ENDINGS[then](self, key, more) if then else f"{key} done"

    return work


def _stay(task: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(BEAT, left))
        task.app.journal.beat(task.request.body)


def _fail(task: Any, key: str, more: Any) -> None:
    message = f"{key} failed"
    raise ValueError(message)


def _ignore(task: Any, key: str, more: Any) -> None:
    raise Ignore


def _reject(task: Any, key: str, more: Any) -> None:
    raise Reject("not wanted", requeue=False)


def _requeue(task: Any, key: str, more: Any) -> str:
    if not task.request.delivery_info.get("redelivered"):
        raise Reject("not now", requeue=True)
    return f"{key} done"


def _exit(task: Any, key: str, more: Any) -> None:
    raise SystemExit(3)


def _unserialisable(task: Any, key: str, more: Any) -> object:
    return threading.Lock()


def _retry(task: Any, key: str, more: Any) -> str:
    if task.request.retries < (more or {}).get("times", 1):
        raise task.retry(countdown=(more or {}).get("countdown", 0), max_retries=5)
    return f"{key} done"


def _retry_quietly(task: Any, key: str, more: Any) -> str:
    if task.request.retries < 1:
        task.retry(countdown=0, throw=False)
    time.sleep((more or {}).get("lingering", 0))
    return f"{key} done"


def _retry_lingering(task: Any, key: str, more: Any) -> str:
    """Ask for a retry, and take half a second to unwind."""
    if task.request.retries:
        return f"{key} done"
    try:
        raise task.retry(countdown=0)
    finally:
        time.sleep(0.5)


def _retry_badly(task: Any, key: str, more: Any) -> None:
    """Ask for a retry that cannot be published."""
    raise task.retry(countdown=0, serializer="of nobody")


def _exhaust(task: Any, key: str, more: Any) -> None:
    raise task.retry(countdown=0, max_retries=1, exc=ValueError(f"{key} failed"))


def _replace(task: Any, key: str, more: Any) -> None:
    name, *arguments = more
    raise task.replace(task.app.tasks[name].si(*arguments))


def _hold_interpreter(task: Any, key: str, more: Any) -> str:
    """Stay in C code, which does not give the interpreter to other threads, for about ``more`` seconds."""
    quickest = min(_seconds_for(2_000_000) for _ in range(5))
    held = _seconds_for(int(2_000_000 * more / quickest))
    task.app.journal.note(f"interpreter {key}", held)
    return f"{key} done"


def _seconds_for(number: int) -> float:
    began = time.monotonic()
    sum(repeat(1, number))
    return time.monotonic() - began


def _swallow(task: Any, key: str, more: Any) -> str:
    """Refuse to end on SIGTERM for ``more`` seconds."""
    until = time.monotonic() + more
    while (left := until - time.monotonic()) > 0:
        try:
            _stay(task, left)
        except SystemExit:
            task.app.journal.note(f"swallowed {key}", time.monotonic())
    return f"{key} done"


def _spin(task: Any, key: str, more: Any) -> str:
    """Run bytecodes for ``more`` seconds, noting what interrupts them."""
    until = time.monotonic() + more
    try:
        while time.monotonic() < until:
            time.sleep(0.001)
    except LockLost as error:
        task.app.journal.note(f"lost {key}", [time.monotonic(), error.key, error.reason])
        raise
    return f"{key} done"


def _doze(task: Any, key: str, more: Any) -> str:
    """Sleep for ``more`` seconds in one piece."""
    time.sleep(more)
    return f"{key} done"


def _recurse(task: Any, key: str, more: Any) -> int:
    return 0 if more == 0 else 1 + task.run(key, 0.0, "recurse", more - 1)


def _call_itself(task: Any, key: str, more: Any) -> int:
    return 0 if more == 0 else 1 + task(key, 0.0, "call_itself", more - 1)


def _publish_itself(task: Any, key: str, more: Any) -> list[Any]:
    result = task.delay(key, 0.0, None, "again")
    return [result.id, result.is_duplicate]


def _look_at_lease(task: Any, key: str, more: Any) -> list[Any]:
    lease = task.lease
    lease.check()
    return [lease.key, lease.token, lease.fence, lease.held, lease.lost, lease.expires_in]


ENDINGS: Mapping[str, Callable[[Any, str, Any], Any]] = {
    name.removeprefix("_"): value
    for name, value in list(globals().items())
    if re.fullmatch(r"_[a-z]\w*", name) and callable(value) and getattr(value, "__module__", "") == __name__
}


def _end_with_parent() -> None:
    """End this worker when the test run is gone, however that ended: its end of our standard input closes."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), 9)

    threading.Thread(target=watch, daemon=True).start()


if "SHOP_PLAN" in os.environ:
    app = open_shop(json.loads(os.environ["SHOP_PLAN"]))
    _end_with_parent()
