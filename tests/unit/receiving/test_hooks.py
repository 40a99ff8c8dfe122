"""Hooks into Celery's life cycle: what a worker says at its start, and messages nobody runs."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from celery import signals

from celery_redislock.declaring.options import LockSettings
from celery_redislock.declaring.server import store_of, use_store
from celery_redislock.publishing.message import HEADER, Message
from celery_redislock.receiving.hooks import install
from tests.unit.shop import Shop


def body(account_id: int = 7) -> int:
    return account_id


class Sender:
    """A worker, or its consumer."""

    def __init__(self, shop: Shop) -> None:
        self.app = shop.app


def start_worker(shop: Shop) -> None:
    """What a worker does first."""
    signals.worker_init.send(sender=Sender(shop))


def configure_late(shop: Shop, **settings: Any) -> None:
    """Change settings when tasks are bound already, as a handler of ``celeryd_init`` may."""
    shop.app.finalize()
    shop.app.conf.update(settings)


def warnings(caplog: Any) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


# --- the check -------------------------------------------------------------------------------


def test_a_healthy_worker_says_nothing(shop: Shop, caplog: Any) -> None:
    shop.unique(body)

    start_worker(shop)

    assert caplog.messages == []


@pytest.mark.parametrize(
    ("policy", "is_told"),
    [("noeviction", False), (None, False), ("allkeys-lru", True), ("volatile-ttl", True)],
)
def test_a_server_that_deletes_locks_is_told(
    shop: Shop, caplog: Any, monkeypatch: Any, policy: str | None, *, is_told: bool
) -> None:
    """Law 1: short of memory it frees the key of a running task."""
    shop.unique(body)
    shop.unique(body, name="shop.second")
    monkeypatch.setattr(shop.store, "eviction_policy", lambda: policy)

    start_worker(shop)

    found = warnings(caplog)
    assert len(found) == is_told
    if is_told:
        assert f"maxmemory-policy {policy!r}" in found[0]
        assert "set it to 'noeviction'" in found[0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("redislock_tll", "redislock_tll is no setting; did you mean redislock_ttl?"),
        ("redis_lock_ttl", "redis_lock_ttl is no setting; did you mean redislock_ttl?"),
        ("lock_ttl", "lock_ttl is no setting; did you mean redislock_ttl?"),
        ("REDISLOCK_TTL", "REDISLOCK_TTL is not read in capitals; write redislock_ttl"),
    ],
)
def test_a_misspelt_setting_is_told(shop: Shop, caplog: Any, name: str, said: str) -> None:
    shop.unique(body)
    shop.app.conf[name] = 5

    start_worker(shop)

    assert [line for line in warnings(caplog) if said in line]


def test_what_a_worker_has_told_its_first_lock_does_not_tell_again(shop: Shop, caplog: Any) -> None:
    shop.unique(body)
    shop.app.conf.redislock_tll = 5
    start_worker(shop)
    use_store(shop.app, None)

    store_of(shop.app, LockSettings(url="redis://127.0.0.1:1/0"))

    assert len([line for line in warnings(caplog) if "redislock_tll" in line]) == 1


def test_a_wrong_task_does_not_hide_what_is_wrong_with_the_server(
    shop: Shop, caplog: Any, monkeypatch: Any
) -> None:
    shop.unique(body).lock_ttl = "long"
    shop.unique(body, name="shop.second")
    monkeypatch.setattr(shop.store, "eviction_policy", lambda: "allkeys-lru")

    start_worker(shop)

    assert ["lock_ttl is 'long'" in line for line in warnings(caplog)] == [True, False]
    assert "maxmemory-policy 'allkeys-lru'" in warnings(caplog)[1]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"lock_ttl": 2.9},
            "shop.sync: lock_ttl (2.9) is shorter than three times redislock_socket_timeout (1)",
        ),
        ({"lock_ttl": 3.0}, None),
        ({"lock_ttl": 2.9, "lock": "until_executing"}, None),
        (
            {"lock_max_hold": 60, "time_limit": 90},
            "shop.sync: lock_max_hold (60) is shorter than the hard time limit (90)",
        ),
        ({"lock_max_hold": 90, "time_limit": 90}, None),
        ({"lock_max_hold": 60}, None),
        ({"lock_max_hold": 60, "time_limit": 90, "on_lock_lost": "terminate"}, None),
        ({"time_limit": 90}, None),
    ],
    ids=str,
)
def test_options_that_endanger_a_lock_together_are_told(
    shop: Shop, caplog: Any, options: dict[str, Any], told: str | None
) -> None:
    shop.unique(body, **options)

    start_worker(shop)

    assert [line.startswith(f"redislock: {told}") for line in warnings(caplog)] == [True] * bool(told)


def test_a_worker_tells_of_a_lease_longer_than_the_apps_time_limit(shop: Shop, caplog: Any) -> None:
    shop.app.conf.task_time_limit = 90
    shop.unique(body, lock_max_hold=60)

    start_worker(shop)

    assert [line for line in warnings(caplog) if "the hard time limit (90)" in line]


def test_celerys_own_settings_are_all_left_alone(shop: Shop, caplog: Any) -> None:
    shop.unique(body)

    start_worker(shop)

    assert len(list(shop.app.conf)) > 100
    assert warnings(caplog) == []


def test_an_unreachable_server_is_told(shop: Shop, caplog: Any, monkeypatch: Any) -> None:
    shop.unique(body)

    def away() -> None:
        raise shop.store.error("ask")

    monkeypatch.setattr(shop.store, "eviction_policy", away)

    start_worker(shop)

    assert "'ask' failed at the lock server memory" in warnings(caplog)[0]


def test_a_wrong_declaration_is_told_once(shop: Shop, caplog: Any) -> None:
    task = shop.unique(body)
    shop.unique(body, name="shop.second")
    task.lock_ttl = "long"

    start_worker(shop)

    assert len([line for line in warnings(caplog) if "lock_ttl is 'long'" in line]) == 1


def test_error_ends_the_worker(shop: Shop, caplog: Any) -> None:
    """An ``Exception`` would be swallowed by the signal."""
    shop.unique(body)
    shop.app.conf.redislock_check = "error"
    shop.app.conf.redislock_tll = 5

    with pytest.raises(SystemExit, match="redislock_check is 'error'"):
        start_worker(shop)

    assert warnings(caplog)


def test_error_ends_the_worker_whatever_else_is_wrong(shop: Shop, caplog: Any) -> None:
    """Settings are refused together; the one that says what to do about that counts all the same."""
    shop.unique(body)
    configure_late(shop, redislock_check="error", redislock_prefix="not allowed")

    with pytest.raises(SystemExit, match="redislock_check is 'error'"):
        start_worker(shop)

    assert [line for line in warnings(caplog) if "redislock_prefix" in line]


def test_ignore_says_nothing_whatever_is_wrong(shop: Shop, caplog: Any) -> None:
    shop.unique(body)
    configure_late(shop, redislock_check="ignore", redislock_prefix="not allowed")

    start_worker(shop)

    assert caplog.messages == []


def test_error_lets_a_healthy_worker_start(shop: Shop) -> None:
    shop.unique(body)
    shop.app.conf.redislock_check = "error"

    start_worker(shop)


def test_ignore_says_nothing_and_asks_nothing(shop: Shop, caplog: Any, monkeypatch: Any) -> None:
    shop.unique(body)
    shop.app.conf.redislock_check = "ignore"
    shop.app.conf.redislock_tll = 5
    monkeypatch.setattr(shop.store, "eviction_policy", None)

    start_worker(shop)

    assert caplog.messages == []


def test_an_app_without_unique_tasks_asks_no_server(shop: Shop, monkeypatch: Any) -> None:
    monkeypatch.setattr(shop.store, "eviction_policy", None)

    start_worker(shop)


# --- messages nobody runs --------------------------------------------------------------------


def unwanted(shop: Shop, signal: Any, **headers: str) -> None:
    signal.send(sender=Sender(shop), message=SimpleNamespace(headers=headers))


@pytest.mark.parametrize("signal", [signals.task_unknown, signals.task_rejected], ids=["unknown", "rejected"])
def test_an_unknown_or_rejected_message_gives_claim_and_window_back(shop: Shop, signal: Any) -> None:
    task = shop.unique(body, lock_key="account:7", lock_period=50)
    task.delay(7)
    message = shop.message()

    unwanted(shop, signal, id=message.headers["id"], **{HEADER: message.headers[HEADER]})

    assert shop.holder("account:7") is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {HEADER: "{nonsense"},
        {HEADER: Message(None, "t1/x").dumps()},
        {HEADER: Message("account:7", "t1/x").dumps()},
        {HEADER: Message("account:7", "t2/x", claimed=True).dumps()},
    ],
    ids=str,
)
def test_what_carries_no_claim_gives_nothing_back(shop: Shop, headers: dict[str, str]) -> None:
    unwanted(shop, signals.task_unknown, id="t1", **headers)

    assert shop.store.calls == []


def test_a_message_without_headers_is_no_trouble(shop: Shop) -> None:
    signals.task_rejected.send(sender=Sender(shop), message=SimpleNamespace(headers=None))
    signals.task_rejected.send(sender=Sender(shop), message=None)

    assert shop.store.calls == []


def test_a_claim_that_cannot_be_given_back_is_told(shop: Shop, caplog: Any) -> None:
    header = Message("account:7", "t1/x", claimed=True)
    shop.app.conf.redislock_prefix = "not allowed"

    unwanted(shop, signals.task_unknown, id="t1", **{HEADER: header.dumps()})

    assert "could not give back the claim on 'account:7'" in caplog.text


# --- hooks -----------------------------------------------------------------------------------


def test_installing_twice_settles_once(shop: Shop) -> None:
    before = len(signals.task_postrun.receivers)

    install()

    assert len(signals.task_postrun.receivers) == before


def test_other_tasks_are_none_of_our_business(shop: Shop) -> None:
    task = shop.app.task(name="shop.plain", shared=False, lazy=False)(body)

    signals.task_postrun.send(sender=task, task=task)
    signals.task_postrun.send(sender=None, task=None)

    assert task.apply((7,)).get() == 7
