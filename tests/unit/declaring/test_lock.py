"""A ``Lock`` that knows its app."""

from typing import Any

import pytest
from celery import current_app

from celery_redislock import Lock, LockBusy, LockOptionError, locks
from celery_redislock.declaring.server import store_of
from celery_redislock.locks import MemoryStore
from celery_redislock.testing import hold
from tests.unit.shop import KEY, Shop, body


def test_a_lock_of_an_app_and_its_tasks_exclude_each_other(shop: Shop) -> None:
    """Where its locks are is said once, in the app's settings."""
    task = shop.unique(body, lock_key=KEY)
    with Lock(shop.app, KEY) as lock:
        holder = task.lock_for(7).holder()
        assert holder is not None
        assert holder.owner == lock.holder().owner
    with hold(task, 7), pytest.raises(LockBusy), Lock(shop.app, KEY, wait=0):
        pass
    assert store_of(shop.app) is shop.store


@pytest.mark.parametrize("ask", [lambda app: Lock(app, "n"), store_of], ids=["Lock", "store_of"])
@pytest.mark.parametrize(
    "app", ["redis://:secret@localhost:6379/0", MemoryStore(), None], ids=["URL", "store", "None"]
)
def test_what_is_no_app_is_told_what_works_without_one(app: Any, ask: Any) -> None:
    with pytest.raises(
        LockOptionError, match=r"is no Celery app; .*locks\.Lock\(locks\.connect\(URL\), name"
    ) as raised:
        ask(app)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "key", [None, (), "account:{account_id}", lambda _: "50% off"], ids=["all", "none", "text", "odd"]
)
def test_a_handle_gives_a_lock_of_the_very_key(shop: Shop, key: Any) -> None:
    task = shop.unique(body, lock_key=key)
    handle = task.lock_for(7)
    lock = handle.lock(ttl=5.0, owner="admin")
    assert not lock.locked()
    with lock:
        assert lock.locked()
        (holder,) = handle.holders()
        assert (holder.owner, holder.remaining) == ("admin", pytest.approx(5.0, abs=0.5))


def test_a_lock_without_an_app_that_is_given_one_names_the_other(shop: Shop) -> None:
    with pytest.raises(LockOptionError, match=r"celery_redislock\.Lock\(app, name\) does so itself"):
        locks.Lock(shop.app, KEY)  # type: ignore[arg-type]  # a user's mistake


def test_the_current_app_is_the_app(shop: Shop) -> None:
    shop.app.set_current()
    assert store_of(current_app) is shop.store
