"""Hooks into Celery's life cycle: what a worker checks when it starts, and claims nobody else releases."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from celery import signals

from celery_redislock.declaring.options import LockSettings
from celery_redislock.declaring.server import store_of, use_store
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.publishing import promote
from celery_redislock.publishing.message import HEADER, Message
from tests.unit.shop import KEY, Shop, body, forget_unique, raising


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


@pytest.mark.parametrize("policy", ["warn", "error"])
def test_a_healthy_worker_starts_and_logs_nothing(shop: Shop, caplog: Any, policy: str) -> None:
    """Celery's own settings, more than a hundred, are no misspelt ones."""
    shop.unique(body)
    shop.app.conf.redislock_check = policy
    assert len(list(shop.app.conf)) > 100
    start_worker(shop)
    assert caplog.messages == []


WAITING: dict[str, Any] = {"options": {"lock": "while_executing"}, "home": "amqp:here"}
TERMINATE: dict[str, Any] = {"options": {"on_lock_lost": "terminate"}}
LIMITED = "redislock: shop.sync: lock_max_hold (60) is shorter than the hard time limit (90)"
NOT_INTERRUPTED = "only self.lease.check() raises"
KEEPS_LESS = "has no append-only file"
AWAY = LockUnavailable("memory", "ask", "it is away")
READONLY = LockUnavailable("redis://replica", "release", "READONLY: it is a replica")


@pytest.mark.parametrize(
    ("about", "said"),
    [
        # Law 1: short of memory a server frees the key of a running task.
        ({"maxmemory_policy": "noeviction"}, None),
        ({}, None),
        (
            {"maxmemory_policy": "allkeys-lru"},
            "maxmemory-policy 'allkeys-lru': short of memory it deletes locks",
        ),
        ({"maxmemory_policy": AWAY}, "'ask' failed at the lock server memory"),
        # A replica, a Cluster's node, one without scripts: what a lock would meet is met here.
        ({"release": READONLY}, "READONLY: it is a replica"),
        # A durable message moves there from RabbitMQ, and may be gone when that server restarts.
        ({"options": {}, "home": "amqp:here", "aof_enabled": "0"}, None),
        ({**WAITING, "aof_enabled": "0"}, KEEPS_LESS),
        ({**WAITING, "aof_enabled": "0", "home": "pyamqp:here"}, KEEPS_LESS),
        ({**WAITING, "aof_enabled": "1"}, None),
        (WAITING, None),
        ({**WAITING, "aof_enabled": "0", "home": "redis:there"}, None),
        # Law 4: the time limit may be the task's or the app's.
        ({"options": {"lock_max_hold": 60, "time_limit": 90}}, LIMITED),
        ({"options": {"lock_max_hold": 60}, "settings": {"task_time_limit": 90}}, LIMITED),
        # It interrupts bodies in a main thread; elsewhere only ``check()`` raises.
        (TERMINATE, None),
        ({**TERMINATE, "pool": "solo"}, None),
        ({**TERMINATE, "pool": "thread"}, NOT_INTERRUPTED),
        ({**TERMINATE, "pool": "gevent"}, NOT_INTERRUPTED),
    ],
    ids=str,
)
def test_what_endangers_locks_is_told_once_when_a_worker_starts(
    shop: Shop, caplog: Any, monkeypatch: Any, about: dict[str, Any], said: str | None
) -> None:
    """A wrong task does not hide it."""

    def ask(_: str, name: str) -> Any:
        if isinstance(answer := about.get(name), Exception):
            raise answer
        return answer

    shop.unique(body, name="shop.wrong").lock_ttl = "long"
    shop.unique(body, **about.get("options", {}))
    shop.unique(body, name="shop.second")
    shop.app.conf.update(about.get("settings", {}))
    monkeypatch.setattr(promote, "install", lambda *_: None)
    monkeypatch.setattr(shop.store, "server_says", ask)
    shop.store.home = about.get("home", "")
    if "release" in about:
        monkeypatch.setattr(shop.store, "release", raising(about["release"]))
    start_worker(shop, pool=about.get("pool", "prefork"))

    wrong_task, *told = [line for line in warnings(caplog) if "shop.second" not in line]
    assert "lock_ttl is 'long'" in wrong_task
    assert [said is not None and said in line for line in told] == [True] * (said is not None)


def test_a_misspelt_setting_is_warned_of_once(shop: Shop, caplog: Any) -> None:
    """With the nearest valid name; the first lock does not repeat it."""
    shop.unique(body)
    shop.app.conf.redislock_tll = 5
    start_worker(shop)
    use_store(shop.app, None)
    store_of(shop.app, LockSettings(url="redis://127.0.0.1:1/0"))
    said = "redislock_tll is no setting; did you mean redislock_ttl?"
    assert len([line for line in warnings(caplog) if said in line]) == 1


@pytest.mark.parametrize("setting", [{"redislock_tll": 5}, {"redislock_prefix": "not allowed"}], ids=str)
def test_error_ends_a_worker_and_ignore_not(shop: Shop, caplog: Any, monkeypatch: Any, setting: Any) -> None:
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
