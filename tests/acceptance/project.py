"""The Celery project under test: tasks named by what they declare, which all have the same body.

The worker processes import this module with the plan of their project in the
environment; the test's process opens the same project by itself.
"""

import faulthandler
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import permutations
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore
from celery.signals import task_postrun, task_success

from celery_redislock import Conflict, Resources, SingletonTask, lock_lost, lock_released
from celery_redislock.declaring.scopes import SCOPES
from celery_redislock.locks import Lease
from tests.acceptance import deaths
from tests.acceptance.bodies import new_body
from tests.acceptance.journal import Journal
from tests.acceptance.terms import LEASE, RETRY_DELAY, SHORT_LEASE, SOCKET_TIMEOUT
from tests.acceptance.worker import end_with_parent


def _note_lost_lease(lease: Lease) -> None:
    _journals[-1].note("lost leases", lease.token)


def _fail_before_start(self: Any, *_: Any) -> None:
    message = "not today"
    raise ValueError(message)


def _start_slowly(self: Any, *_: Any) -> None:
    """Like a model that is loaded: it takes longer than three looks at a line."""
    time.sleep(12.0)


def _ignore_before_start(self: Any, *_: Any) -> None:
    raise Ignore


class _Supering(SingletonTask):
    """Its own ``__call__`` goes on to Celery's."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class _Skirting(SingletonTask):
    """Its own ``__call__`` calls the body straight away."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


def _limit_of(arguments: Mapping[str, Any]) -> Any:
    """The limit is what the caller gives as ``more``; 1 where that is nothing."""
    if arguments["more"] == "raise":
        message = "no such tier"
        raise LookupError(message)
    return arguments["more"] or 1


def _newest_now(conflict: Conflict) -> str:
    """End the run that is on, and wait for that."""
    conflict.task.app.control.revoke(conflict.holder, terminate=True, signal="SIGKILL")
    return "wait"


def _collect(value: Any = None) -> Any:
    """Pass a value on; what an ordinary task does."""
    return value


_journals: list[Journal] = []

#: The ``lock_key`` of nearly every task.
RESOURCE = "work:{key}"
TWO = Resources(RESOURCE, "work:{more}")

_LATE = {"acks_late": True}
_QUIET = {"ignore_result": True}
_RUNNING = {"lock": "while_executing"}

#: What each task declares, beside ``lock_key``, by its name.
DECLARED: Mapping[str, Mapping[str, Any]] = {
    "executed": {},
    "executed_acks_late": _LATE,
    "executed_ignore_result": _QUIET,
    "executed_acks_late_ignore_result": {**_LATE, **_QUIET},
    "executed_reject_on_worker_lost": {**_LATE, "reject_on_worker_lost": True},
    "executed_retry_on_worker_lost": {"retry_on_worker_lost": True, "default_retry_delay": 0},
    "executed_autoretry": {
        "autoretry_for": (ValueError,),
        "retry_kwargs": {"max_retries": 2, "countdown": 0.3},
    },
    "executed_time_limit": {"time_limit": 2},
    "executed_soft_time_limit": {"soft_time_limit": 1},
    "executed_terminate": {"on_lock_lost": "terminate", "lock_ttl": SHORT_LEASE},
    "executed_acks_late_on_lost": {**_LATE, "on_lock_lost": _note_lost_lease, "lock_ttl": SHORT_LEASE},
    "executed_on_error_run": {"on_lock_error": "run"},
    "executed_period": {"lock_period": 600.0},
    "while_executing": _RUNNING,
    "while_executing_too": _RUNNING,
    "while_executing_acks_late": {**_RUNNING, **_LATE},
    "while_executing_or_skip": {**_RUNNING, "on_conflict": "skip"},
    "until_executing": {"lock": "until_executing"},
    "until_executing_acks_late": {"lock": "until_executing", **_LATE},
    "until_expired": {"lock": "until_expired", "lock_period": 600.0},
    "until_expired_acks_late": {"lock": "until_expired", "lock_period": 600.0, **_LATE},
    "until_and_while": {"lock": "until_and_while_executing"},
    "until_and_while_acks_late": {"lock": "until_and_while_executing", **_LATE},
    "until_and_while_reject_on_worker_lost": {
        "lock": "until_and_while_executing",
        **_LATE,
        "reject_on_worker_lost": True,
    },
    "while_executing_by_3": {**_RUNNING, "lock_limit": 3},
    "while_executing_by_3_acks_late": {**_RUNNING, **_LATE, "lock_limit": 3},
    "while_executing_as_said": {**_RUNNING, "lock_limit": _limit_of},
    "executed_by_3": {"lock_limit": 3},
    "executed_newest_now": {"on_conflict": _newest_now},
    #: Their ``lock_limit`` is the plan's ``limit``, and 3 without.
    "while_executing_of_fleet": _RUNNING,
    "executed_of_fleet": {"on_conflict": "wait"},
    #: What comes fourth is the other resource.
    "while_executing_two": {**_RUNNING, "lock_key": TWO},
    "while_executing_two_acks_late": {**_RUNNING, **_LATE, "lock_key": TWO},
    "unlocked": {"lock": None},
    "supering": {"base": _Supering},
    "skirting": {"base": _Skirting},
    "before_start_fails": {"before_start": _fail_before_start},
    "before_start_ignores": {"before_start": _ignore_before_start},
    "before_start_is_slow": {**_RUNNING, "before_start": _start_slowly},
}

#: The sides of a deploy; and each change of a task's scope: a task's name, and its scope on either side.
BEFORE, AFTER = 0, 1
CHANGES = {f"{before}_to_{after}": (before, after) for before, after in permutations(SCOPES, 2)}


def _declared(plan: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what each task declares; those whose scope changes are there on a ``side`` of that only."""
    yield from DECLARED.items()
    for name, scopes in CHANGES.items() if "side" in plan else ():
        scope = scopes[plan["side"]]
        terms = {"lock_limit": plan.get("limit", 1)}
        yield name, {"lock": scope, **({"lock_period": SHORT_LEASE} if scope == "until_expired" else terms)}


#: The lock is free, and the result not stored yet, unless both are one step; the result is stored, and the
#: message not acknowledged yet; everything is done but to acknowledge the message.
MOMENTS = {"released": lock_released, "stored": task_success, "settled": task_postrun}


def open_project(plan: Mapping[str, Any]) -> Celery:
    """Return the app of a project, with all its tasks."""
    app = Celery(
        "project",
        broker=plan["broker"],
        backend=plan["backend"],
        set_as_current=False,
        task_cls="celery_redislock:SingletonTask",
    )
    app.conf.update(settings_of(plan))
    app.journal = Journal(plan["journal"], plan["prefix"])
    _journals.append(app.journal)
    for name, options in _declared(plan):
        if options.get("lock_key") is TWO and not _takes_several(plan["conf"]):
            continue
        keyed = {"lock_key": RESOURCE, "after_return": _linger, **options}
        if name.endswith("_of_fleet"):
            keyed["lock_limit"] = plan.get("limit", 3)
        app.task(name=f"project.{name}", bind=True, shared=False, **keyed)(new_body())
    app.task(name="project.collect", base=Task, shared=False)(_collect)
    lock_lost.connect(_note_loss, weak=False, dispatch_uid="project.loss")
    for moment, told in MOMENTS.items():
        told.connect(partial(_reach, moment), weak=False, dispatch_uid="project.reach")
    return app


def _takes_several(conf: Mapping[str, Any]) -> bool:
    """Whether several locks can be taken in one step: tasks that need that are refused elsewhere."""
    return "cluster://" not in conf.get("redislock_url", "") and not conf.get("redislock_min_replicas")


def connection_name(prefix: str, pid: int | None = None) -> str:
    """Return what a process of a project, and its children, call their connections; or how all begin."""
    return f"{prefix}/" if pid is None else f"{prefix}/{pid}/"


def settings_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a project's app."""
    settings: dict[str, Any] = dict(plan["conf"])
    shared = {"global_keyprefix": f"{plan['prefix']}:"}
    is_rabbitmq = plan["broker"].startswith("amqp://")
    name = connection_name(plan["prefix"], os.getpid())
    of_broker = {"client_properties": {"connection_name": name}} if is_rabbitmq else shared
    return {
        # On Redis all names begin with the project's prefix; on RabbitMQ its queue is called so.
        **({"task_default_queue": plan["prefix"]} if is_rabbitmq else {}),
        "result_backend_transport_options": shared,
        "redislock_ttl": LEASE,
        "redislock_retry_delay": RETRY_DELAY,
        "redislock_socket_timeout": SOCKET_TIMEOUT,
        "redislock_start_timeout": 2 * SOCKET_TIMEOUT,
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


def _note_loss(sender: Any, task_id: str, **_: Any) -> None:
    sender.app.journal.note(f"noticed {task_id}", time.monotonic())


def _reach(moment: str, sender: Any, **_: Any) -> None:
    if sender.acks_late and sender.name.startswith("project."):
        sender.app.journal.reach(sender.request.args[0], moment)


if "PROJECT_PLAN" in os.environ:
    plan = json.loads(os.environ["PROJECT_PLAN"])
    if "hooks" in plan:
        from tests.acceptance.hooks.watch import install

        install(**plan["hooks"])
    app = open_project(plan)
    deaths.install(app.journal, plan)
    faulthandler.register(signal.SIGUSR2)  # Worker.stacks
    end_with_parent()
