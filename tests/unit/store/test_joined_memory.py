"""Several names in one lock, on the store in memory: all or none, in one order, as on a server."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_redislock.locks import Lock, MemoryStore
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.store.joined import joined
from celery_redislock.store.store import Entry
from tests.facts import wait_until

#: Seconds a story may wait for one of its threads.
PATIENCE = 30.0


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def _lock(store: MemoryStore, *names: str, **terms: Any) -> Lock:
    return Lock(store, list(names), wait=PATIENCE, **terms)


def _take(store: MemoryStore, order: list[str], *names: str) -> Callable[[], None]:
    def take() -> None:
        with _lock(store, *names):
            order.append(" ".join(names))

    return take


def test_all_are_held_or_none(store: MemoryStore) -> None:
    """Each name is the ordinary lock of that name; who is refused one of them holds none."""
    lock = _lock(store, "b", "a", "b")
    assert lock.acquire(0)
    assert {store.inspect(name).token for name in "ab"} == {lock.token}  # type: ignore[union-attr]  it is held
    assert not Lock(store, "a").acquire(0)
    assert not _lock(store, "c", "b").acquire(0)
    assert store.inspect("c") is None
    assert lock.release()
    assert store.names() == []


def test_they_are_renewed_together_and_lost_with_the_first(store: MemoryStore) -> None:
    lock = _lock(store, "a", "b")
    assert lock.acquire(0)
    assert watchdog_of(store).watched(lock.token or "") is not None
    assert lock.renew()
    store.force_release("b")
    assert not lock.renew()
    assert not lock.release()
    assert store.names() == []


def test_it_waits_in_all_lines_and_nobody_goes_before_it(store: MemoryStore) -> None:
    """Also where one of the names is free, and where another one waits for several, too."""
    holder = Lock(store, "n")
    holder.acquire()
    order: list[str] = []
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(_take(store, order, "a", "n"))
        assert wait_until(lambda: store.waiting("a")[0] == 1, PATIENCE)
        assert store.inspect("a") is None
        assert not Lock(store, "a").acquire(0)
        others = [pool.submit(_take(store, order, *names)) for names in (["a"], ["0", "a"])]
        assert wait_until(lambda: store.waiting("a")[0] == 3, PATIENCE)
        assert order == []
        holder.release()
        for each in (first, *others):
            each.result(PATIENCE)

    assert order[0] == "a n"
    assert store.lines() == []


def test_who_gives_up_leaves_all_lines(store: MemoryStore) -> None:
    with Lock(store, "n"):
        assert not _lock(store, "a", "n").acquire(0.05)
    assert (store.waiting("a")[0], store.waiting("n")[0]) == (0, 0)
    assert store.names() == []


def test_one_full_line_keeps_it_out_of_all(store: MemoryStore) -> None:
    with Lock(store, "a"), Lock(store, "b"):
        store.park("b", "first/1", Entry("ring", "bell", 5.0, "{}"), nonce="1")
        entry = Entry("ring", "other", 5.0, "{}")
        assert joined(store).park("a b", "second/1", entry, nonce="2", most=1).word == "full"
        assert (store.waiting("a")[0], store.waiting("b")[0]) == (0, 1)


def test_a_hold_is_handed_on_under_all_names(store: MemoryStore) -> None:
    several = joined(store)
    several.acquire("a b", "one/1", 30.0, facts="{}")
    assert several.hand_on("a b", "one/1", "two/1", 30.0, facts="{}").released
    assert [hold.token for hold in several.holders("a b")] == ["two/1", "two/1"]
    assert not several.release("a b", "one/1").released
    assert several.leave("a b", "two/1")[0] == "released"
    assert store.names() == []
