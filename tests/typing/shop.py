"""A user's module with decorated tasks: all that is natural to write, and what it is to a type checker."""

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from celery import Celery, shared_task
from typing_extensions import assert_type

from celery_redislock import Conflict, Holder, LockLost, SingletonTask, lock_acquired, lock_conflict
from celery_redislock.publishing.handle import LockHandle
from celery_redislock.locks import MemoryStore
from celery_redislock.locks.lease import InertLease, Lease
from celery_redislock.publishing.results import LockEagerResult, LockResult
from celery_redislock.testing import hold, locks_off, memory_locks
from celery_redislock.declaring.types import TaskOptions

app = Celery("shop", broker="redis://localhost:6379/0", backend="redis://localhost:6379/0")
app.conf.update(redislock_ttl=60.0, redislock_on_conflict="skip")


def only_paying_customers_wait(conflict: Conflict) -> str:
    return "wait" if conflict.kwargs.get("paying") else "skip"


def by_customer(arguments: Mapping[str, Any]) -> str:
    return f"customer:{arguments['customer']}"


def page_somebody(lease: Lease) -> None:
    print(lease.key, lease.lost_because)


@app.task(base=SingletonTask)
def sync_account(account_id: int) -> str:
    return f"account {account_id}"


@app.task(
    base=SingletonTask, bind=True, lock="while_executing", lock_key="account:{account_id}",
    on_conflict="wait", lock_ttl=20.0, lock_queue_ttl=timedelta(hours=2), lock_max_hold=600, lock_period=1.0,
    lock_retry_delay=0.5, lock_on_retry="release", lock_wait_timeout=timedelta(minutes=5),
    on_lock_lost="terminate", on_lock_error="run",
)  # fmt: skip
def charge(self: SingletonTask, account_id: int, amount: int) -> int:
    lease = self.lease
    assert_type(lease, Lease | InertLease)
    try:
        lease.check()
    except LockLost as error:
        assert_type(error.fence, int | None)
        raise
    assert_type(lease.fence, int | None)
    assert_type(lease.held, bool)
    assert_type(lease.expires_in, float)
    return amount + account_id


@app.task(
    base=SingletonTask,
    lock_key=by_customer,
    on_conflict={"client": "raise", "server": only_paying_customers_wait},
    on_lock_lost=page_somebody,
)
def build_invoice(customer: str, *, paying: bool) -> None:
    print(customer, paying)


@app.task(
    base=SingletonTask, on_conflict="coalesce", lock_debounce=timedelta(seconds=5), lock_debounce_max=60,
    lock_rate=["10/s", "1000/h"],
)  # fmt: skip
def reindex(shelf: str) -> None:
    print(shelf)


@shared_task(base=SingletonTask, lock="until_expired", lock_period=2880)
def hourly_report() -> None: ...


@app.task(base=SingletonTask, **TaskOptions(lock="until_executing", lock_key=by_customer, lock_ttl=20))
def remind(customer: str) -> None:
    print(customer)


def press(account_id: int) -> bool:
    result = sync_account.delay(account_id)
    assert_type(result, LockResult)
    assert_type(result.is_duplicate, bool)
    assert_type(result.id, str)
    assert_type(result.get(timeout=3.0), Any)
    assert_type(result.state, str)
    return result.state == "REVOKED"


def publish_with_options() -> None:
    result = sync_account.apply_async(
        (42,), lock="until_executing", lock_key=("account_id",), on_conflict="raise", lock_ttl=3,
        lock_queue_ttl=timedelta(minutes=3), on_lock_error="run", countdown=5, queue="slow",
        headers={"trace": "1"},
    )  # fmt: skip
    assert_type(result, LockResult)
    sync_account.apply_async([42], {}, lock=None, eta=datetime.now(timezone.utc))
    sync_account.apply_async(kwargs={"account_id": 42}, on_conflict=only_paying_customers_wait)
    sync_account.apply_async((42,), on_conflict={"client": "raise"}, task_id="fixed")
    assert_type(sync_account.apply((42,)), LockEagerResult)
    assert_type(sync_account.AsyncResult("id"), LockResult)
    assert_type(remind.delay("ada"), LockResult)
    assert_type(hourly_report.delay().is_duplicate, bool)
    assert_type(sync_account.lock_for(42), LockHandle)
    reindex.apply_async(("a",), on_conflict="coalesce", lock_debounce=5, lock_debounce_max=60.0)
    reindex.apply_async(("a",), on_conflict={"client": "coalesce"}, lock_rate=("10/s", "1000/h"))
    handle = reindex.lock_for("a")
    still = handle.hold(reason="the index moves", for_=timedelta(minutes=5), by="ann")
    assert_type(still, list[Holder])
    assert_type(still[0].due, float | None)
    assert_type(still[0].merged, int | None)
    sync_account.delay_on_commit(42)
    sync_account.apply_async_on_commit((42,), lock_ttl=3.0)


@lock_conflict.connect
def count(sender: SingletonTask, task_id: str, strategy: str, **_: Any) -> None:
    print(sender.name, task_id, strategy)


@lock_acquired.connect(sender=charge)
def note(sender: SingletonTask, lease: Lease | None, **_: Any) -> None:
    print(sender.name, lease)


def test_a_second_press_is_a_duplicate() -> None:
    with memory_locks(app) as store, hold(sync_account, 42, task_id="other") as key:
        assert_type(store, MemoryStore)
        assert_type(store.end_pauses(), int)
        assert_type(key, str)
        assert press(42)
    with locks_off():
        assert not press(42)
