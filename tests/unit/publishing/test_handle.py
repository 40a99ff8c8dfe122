"""A look at a task's lock from outside, where a scope keeps its queued call under a second name."""

import json
from types import SimpleNamespace

import pytest

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks.tasklock import Says, TaskLock
from celery_redislock.publishing.handle import LockHandle
from celery_redislock.store.memory import MemoryStore
from celery_redislock.store.store import QUEUED, RUNNING, Entry

KEY = "account:7"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def handle(store: MemoryStore) -> LockHandle:
    return LockHandle(SimpleNamespace(name="shop.sync"), store, KEY, "queued:account:7")


def take(store: MemoryStore, name: str, owner: str, state: str, *, period: float | None = None) -> None:
    store.acquire(name, f"{owner}/x", 30.0, facts=json.dumps({"state": state}), period=period)


def owners(store: MemoryStore) -> dict[str, str]:
    return {name: hold.owner for name in store.names() if (hold := store.inspect(name))}


def test_the_second_name_of_a_lock_can_be_read(store: MemoryStore) -> None:
    """An operator sees in a list which queued call belongs to which lock."""
    lock = TaskLock(store, "shop.sync", 30.0, 3600.0, None, None, Says(), KEY, "")

    assert lock.of_queue().key == "queued:account:7"


def test_the_holder_is_the_run_and_names_the_queued_call_beside_it(
    store: MemoryStore, handle: LockHandle
) -> None:
    take(store, "account:7", "first", RUNNING)
    take(store, "queued:account:7", "second", QUEUED)

    holder = handle.holder()
    queued = handle.holder(only="queued")

    assert (holder.key, holder.owner, holder.state, holder.queued) == (KEY, "first", "running", "second")
    assert (queued.key, queued.owner, queued.state, queued.queued) == (
        "queued:account:7",
        "second",
        "queued",
        None,
    )


def test_a_queued_call_is_the_holder_where_nothing_runs(store: MemoryStore, handle: LockHandle) -> None:
    """And nobody is where nothing is queued."""
    assert handle.holder() is handle.holder(only="queued") is handle.release(reason="x") is None
    take(store, "queued:account:7", "second", QUEUED)

    holder = handle.holder()

    assert (holder.owner, holder.state, holder.queued) == ("second", "queued", None)


def test_a_period_under_the_second_name_is_no_queued_call(store: MemoryStore, handle: LockHandle) -> None:
    """Its call has started: nothing is queued, and nothing may be released as if it were."""
    take(store, "queued:account:7", "first", QUEUED, period=60.0)
    store.release("queued:account:7", "first/x")
    assert handle.holder().state == "period"

    take(store, "account:7", "first", RUNNING)

    assert handle.holder().queued is None
    assert handle.holder(only="queued") is None
    assert handle.release(reason="x", only="queued") is None


def test_a_lock_with_one_name_has_nothing_queued_beside_it(store: MemoryStore) -> None:
    """Another lock may be called as a second name would be: it is not looked at."""
    take(store, "account:7", "first", RUNNING)
    take(store, "queued:account:7", "second", QUEUED)
    handle = LockHandle(SimpleNamespace(name="shop.sync"), store, KEY)

    assert handle.holder().queued is None
    assert handle.release(reason="x", only="queued") is None
    assert owners(store) == {"account:7": "first", "queued:account:7": "second"}


@pytest.mark.parametrize(
    ("only", "taken", "left"),
    [
        (None, "first", {"queued:account:7": "second"}),
        ("queued", "second", {"account:7": "first"}),
    ],
)
def test_a_release_takes_the_runs_lock_or_only_the_queued_one(
    store: MemoryStore, handle: LockHandle, only: str | None, taken: str, left: dict[str, str]
) -> None:
    """Law 3: an operator's act is explicit, and takes one of the two."""
    take(store, "account:7", "first", RUNNING)
    take(store, "queued:account:7", "second", QUEUED)

    victim = handle.release(reason="x", only=only)

    assert victim.owner == taken
    assert owners(store) == left


@pytest.mark.parametrize("only", [None, "queued"])
@pytest.mark.parametrize("name", ["account:7", "queued:account:7"])
def test_a_queued_call_is_released_under_either_name(
    store: MemoryStore, handle: LockHandle, name: str, only: str | None
) -> None:
    """A task of another scope may have claimed the same resource under the lock's own name."""
    take(store, name, "second", QUEUED)

    victim = handle.release(reason="x", only=only)

    assert (victim.owner, victim.key) == ("second", name)
    assert owners(store) == {}


def test_a_queued_call_is_found_among_several_holders(store: MemoryStore) -> None:
    """Above a limit of 1 a run's hold may end first, and queued calls be beside it."""
    handle = LockHandle(SimpleNamespace(name="shop.sync"), store, KEY)
    for owner, state, ttl in [("first", RUNNING, 10.0), ("second", QUEUED, 20.0), ("third", RUNNING, 30.0)]:
        facts = json.dumps({"state": state, "limit": 3}, separators=(",", ":"))
        store.acquire(KEY, f"{owner}/x", ttl, facts=facts, limit=3)

    holder = handle.holder(only="queued")
    assert holder is not None
    assert holder.owner == "second"
    victim = handle.release(reason="x", only="queued")
    assert victim is not None
    assert victim.owner == "second"
    assert [each.owner for each in handle.holders()] == ["first", "third"]


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ({}, "abcde"),
        ({"limit": 3}, "abc"),
        ({"offset": 1, "limit": 3}, "bcd"),
        ({"offset": 3, "limit": 1}, "d"),
        ({"offset": 4}, "e"),
        ({"offset": 5, "limit": 1}, ""),
    ],
    ids=str,
)
def test_who_waits_is_told_page_by_page(
    store: MemoryStore, handle: LockHandle, page: dict[str, int], told: str
) -> None:
    """Through both lines of a scope that has two locks: who waits to run comes first."""
    for name, owner in [
        (KEY, "a"),
        (KEY, "b"),
        (KEY, "c"),
        ("queued:account:7", "d"),
        ("queued:account:7", "e"),
    ]:
        store.park(name, f"{owner}/x", Entry("push", "celery", 30.0, "{}", "text"), nonce=owner, how="behind")

    assert "".join(holder.owner for holder in handle.waiting(**page)) == told


@pytest.mark.parametrize("page", [{"offset": -1}, {"offset": 1.0}, {"limit": 0}, {"limit": "3"}], ids=str)
def test_what_is_no_page_is_refused(handle: LockHandle, page: dict[str, int]) -> None:
    ((name, value),) = page.items()

    with pytest.raises(LockOptionError, match=f"{name}={value!r} is not a whole number from [01] on"):
        handle.waiting(**page)
