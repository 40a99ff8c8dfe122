"""Hooks into Celery's life cycle: what a worker checks when it starts, and claims nobody else releases."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from celery import signals

from celery_redislock import SingletonTask
from celery_redislock.declaring.options import LockSettings
from celery_redislock.declaring.server import store_of, use_store
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.publishing import promote
from celery_redislock.publishing.message import HEADER, Message
from celery_redislock.receiving.hooks import install
from tests.unit.shop import KEY, Shop, body, forget_unique


class Sender:
    """A worker, or its consumer."""

    def __init__(self, shop: Shop, pool: str = "prefork") -> None:
        self.app = shop.app
        self.pool_cls = type("TaskPool", (), {"__module__": f"celery.concurrency.{pool}"})


def start_worker(shop: Shop, *, pool: str = "prefork") -> None:
    """Do what a worker does first."""
    signals.worker_init.send(sender=Sender(shop, pool))


def warnings(caplog: Any) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


# --- the check -------------------------------------------------------------------------------


def test_a_worker_says_where_the_locks_of_its_tasks_are(shop: Shop, caplog: Any) -> None:
    """One line; the check has nothing to do with it."""
    forget_unique(shop.app)
    caplog.set_level(logging.INFO, "celery_redislock")
    shop.app.conf.redislock_check = "ignore"
    start_worker(shop)
    assert caplog.messages == []
    shop.unique(body)

    start_worker(shop)

    where = f"locks on memory (prefix {shop.store.prefix})"
    assert caplog.messages == [f"redislock: 1 unique task, {where}"]


@pytest.mark.parametrize("policy", ["warn", "error", "ignore"])
@pytest.mark.parametrize(
    ("options", "settings", "ends"),
    [
        ({}, {}, True),
        ({}, {"redislock_enabled": False}, False),
        ({}, {"redislock_url": "redis://127.0.0.1:1/0"}, False),
        ({"lock": None}, {}, False),
        (None, {}, False),
    ],
    ids=str,
)
def test_a_worker_with_unique_tasks_and_no_lock_server_does_not_start(
    shop: Shop, options: dict[str, Any] | None, settings: dict[str, Any], policy: str, ends: bool
) -> None:
    """Each publish and each run would fail, whatever ``redislock_check`` says. One that is away is asked."""
    forget_unique(shop.app)
    if options is not None:
        shop.unique(body, **options)
    use_store(shop.app, None)
    shop.app.conf.update(broker_url="amqp://h//", result_backend="rpc://", **settings)
    shop.app.conf.redislock_check = policy

    if ends:
        remedy = "set redislock_url = .*redislock_enabled = False goes without locks"
        with pytest.raises(SystemExit, match=f"the worker does not start: redislock_url: .*{remedy}"):
            start_worker(shop)
    elif policy == "error" and "redislock_url" in settings:
        with pytest.raises(SystemExit, match="redislock_check is 'error'"):
            start_worker(shop)
    else:
        start_worker(shop)


#: Of a task whose calls wait for each other.
WAITING = {"lock": "while_executing"}


@pytest.mark.parametrize("policy", ["warn", "error"])
def test_a_healthy_worker_starts_and_logs_nothing(shop: Shop, caplog: Any, policy: str) -> None:
    """Celery's own settings, more than a hundred, are no misspelt ones."""
    shop.unique(body)
    shop.app.conf.redislock_check = policy
    assert len(list(shop.app.conf)) > 100

    start_worker(shop)

    assert caplog.messages == []


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("noeviction", None),
        (None, None),
        ("allkeys-lru", "maxmemory-policy 'allkeys-lru': short of memory it deletes locks"),
        ("away", "'ask' failed at the lock server memory"),
    ],
)
def test_a_server_that_deletes_locks_or_does_not_answer_is_warned_of_once(
    shop: Shop, caplog: Any, monkeypatch: Any, policy: str | None, said: str | None
) -> None:
    """Law 1: short of memory it frees the key of a running task. A wrong task does not hide it."""
    shop.unique(body, name="shop.wrong").lock_ttl = "long"
    shop.unique(body)
    shop.unique(body, name="shop.second")

    def ask(*_: str) -> str | None:
        if policy == "away":
            raise shop.store.error("ask")
        return policy

    monkeypatch.setattr(shop.store, "server_says", ask)

    start_worker(shop)

    wrong_task, *server = [line for line in warnings(caplog) if "shop.second" not in line]
    assert "lock_ttl is 'long'" in wrong_task
    assert [said is not None and said in line for line in server] == [True] * (said is not None)


def test_a_server_that_would_refuse_each_lock_is_told_of_at_start(
    shop: Shop, caplog: Any, monkeypatch: Any
) -> None:
    """A replica, a Cluster's node, one without scripts: what a lock would meet is met here."""
    shop.unique(body)

    def refuse(*_: object, **__: object) -> None:
        raise LockUnavailable("redis://replica", "release", "READONLY: it is a replica")

    monkeypatch.setattr(shop.store, "release", refuse)

    start_worker(shop)

    assert ["READONLY: it is a replica" in line for line in warnings(caplog)] == [True]


def test_a_misspelt_setting_is_warned_of_once(shop: Shop, caplog: Any) -> None:
    """With the nearest valid name; the first lock does not repeat it."""
    shop.unique(body)
    shop.app.conf.redislock_tll = 5

    start_worker(shop)
    use_store(shop.app, None)
    store_of(shop.app, LockSettings(url="redis://127.0.0.1:1/0"))

    said = "redislock_tll is no setting; did you mean redislock_ttl?"
    assert len([line for line in warnings(caplog) if said in line]) == 1


@pytest.mark.parametrize(
    ("options", "home", "aof", "is_said"),
    [
        ({}, "amqp:here", "0", False),
        (WAITING, "amqp:here", "0", True),
        (WAITING, "pyamqp:here", "0", True),
        (WAITING, "amqp:here", "1", False),
        (WAITING, "amqp:here", None, False),
        (WAITING, "redis:there", "0", False),
        (WAITING, "", "0", False),
    ],
)
def test_a_lock_server_that_keeps_less_than_rabbitmq_is_warned_of_where_tasks_wait(
    shop: Shop, caplog: Any, monkeypatch: Any, options: Any, home: str, aof: str | None, *, is_said: bool
) -> None:
    """A durable message moves there, and may be gone when that server restarts."""
    shop.unique(body, **options)
    monkeypatch.setattr(promote, "install", lambda *_: None)
    shop.store.home = home
    monkeypatch.setattr(shop.store, "server_says", lambda _, name: aof if name == "aof_enabled" else None)

    start_worker(shop)

    assert ["has no append-only file" in line for line in warnings(caplog)] == [True] * is_said


LIMITED = "redislock: shop.sync: lock_max_hold (60) is shorter than the hard time limit (90)"
NOT_INTERRUPTED = "only self.lease.check() raises"


@pytest.mark.parametrize(
    ("options", "settings", "pool", "said"),
    [
        ({"lock_max_hold": 60, "time_limit": 90}, {}, "prefork", LIMITED),
        ({"lock_max_hold": 60}, {"task_time_limit": 90}, "prefork", LIMITED),
        ({"on_lock_lost": "terminate"}, {}, "prefork", None),
        ({"on_lock_lost": "terminate"}, {}, "solo", None),
        ({"on_lock_lost": "terminate"}, {}, "thread", NOT_INTERRUPTED),
        ({"on_lock_lost": "terminate"}, {}, "gevent", NOT_INTERRUPTED),
    ],
)
def test_options_that_endanger_a_lock_in_this_worker_are_warned_of(
    shop: Shop, caplog: Any, options: Any, settings: Any, pool: str, said: str | None
) -> None:
    """Law 4: the time limit may be the task's or the app's.

    ``on_lock_lost="terminate"`` interrupts bodies in a main thread; elsewhere only ``check()`` raises.
    """
    shop.app.conf.update(settings)
    shop.unique(body, **options)

    start_worker(shop, pool=pool)

    assert [said is not None and said in line for line in warnings(caplog)] == [True] * (said is not None)


@pytest.mark.parametrize("setting", [{"redislock_tll": 5}, {"redislock_prefix": "not allowed"}], ids=str)
def test_error_ends_the_worker_and_ignore_asks_nothing(
    shop: Shop, caplog: Any, monkeypatch: Any, setting: dict[str, Any]
) -> None:
    """``redislock_check``, also where the settings are changed when tasks are bound already."""
    shop.unique(body)
    shop.app.finalize()
    shop.app.conf.update(redislock_check="error", **setting)

    with pytest.raises(SystemExit, match="redislock_check is 'error'"):
        start_worker(shop)
    assert [line for line in warnings(caplog) if next(iter(setting)) in line]

    caplog.clear()
    monkeypatch.setattr(shop.store, "server_says", None)
    shop.app.conf.redislock_check = "ignore"
    start_worker(shop)
    assert caplog.messages == []


def test_an_app_without_unique_tasks_asks_no_server(shop: Shop, monkeypatch: Any) -> None:
    """Law 10."""
    monkeypatch.setattr(shop.store, "server_says", None)

    start_worker(shop)


# --- before_start ----------------------------------------------------------------------------


def test_a_copy_whose_before_start_raises_leaves_the_period_of_what_ran(shop: Shop) -> None:
    """Law 2: the period began when the message was accepted, and its first delivery has run."""
    ends: list[Exception | None] = [None, ValueError("not now")]

    class Checked(SingletonTask):
        abstract = True

        def before_start(self, *_: Any) -> None:
            if error := ends.pop(0):
                raise error

    shop.unique(body, base=Checked, lock="until_expired", lock_period=50, lock_key=KEY).delay(7)
    message = shop.message()
    shop.run(shop.receive(message))

    shop.run(shop.receive(message, redelivered=True))

    assert list(shop.held()) == [KEY]


# --- messages nobody runs --------------------------------------------------------------------


def unwanted(shop: Shop, signal: Any, **headers: str) -> None:
    signal.send(sender=Sender(shop), message=SimpleNamespace(headers=headers))


@pytest.mark.parametrize("signal", [signals.task_unknown, signals.task_rejected], ids=["unknown", "rejected"])
def test_an_unknown_or_rejected_message_leaves_no_claim_and_no_period(shop: Shop, signal: Any) -> None:
    """Law 4."""
    task = shop.unique(body, lock_key=KEY, lock_period=50)
    task.delay(7)
    message = shop.message()

    unwanted(shop, signal, id=message.headers["id"], **{HEADER: message.headers[HEADER]})

    assert shop.holder(KEY) is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {HEADER: "{nonsense"},
        {HEADER: Message(None, "t1/x").dumps()},
        {HEADER: Message(KEY, "t1/x").dumps()},
        {HEADER: Message(KEY, "t2/x", claimed=True).dumps()},
    ],
    ids=str,
)
def test_what_carries_no_claim_releases_none(shop: Shop, headers: dict[str, str]) -> None:
    """Law 3."""
    unwanted(shop, signals.task_unknown, id="t1", **headers)
    signals.task_rejected.send(sender=Sender(shop), message=None)

    assert shop.store.calls == []


def test_a_claim_that_cannot_be_released_is_warned_of(shop: Shop, caplog: Any) -> None:
    """Law 9."""
    shop.app.conf.redislock_prefix = "not allowed"

    unwanted(shop, signals.task_unknown, id="t1", **{HEADER: Message(KEY, "t1/x", claimed=True).dumps()})

    assert "could not release the claim on 'account:7'" in caplog.text


# --- installation ----------------------------------------------------------------------------


def test_installing_twice_changes_nothing_and_other_tasks_are_left_alone(shop: Shop) -> None:
    """The hooks are global, and count for unique tasks only."""
    before = len(signals.task_postrun.receivers)

    install()

    assert len(signals.task_postrun.receivers) == before
    task = shop.app.task(name="shop.plain", shared=False, lazy=False)(body)
    signals.task_postrun.send(sender=task, task=task)
    signals.task_postrun.send(sender=None, task=None)
    assert task.apply((7,)).get() == 7
