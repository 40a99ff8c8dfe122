"""``MemoryStore.end_pauses``: what is put off is due, and nobody has slept."""

import pytest

from celery_redislock.locks import MemoryStore
from celery_redislock.store.store import Entry, Merge
from tests.clocks import ManualClock


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=ManualClock())


def put_off(store: MemoryStore, name: str, token: str) -> None:
    """Park a call that is due in a minute."""
    entry = Entry("push", "celery", 30.0, '{"task":"shop.export"}', f"text of {token}")
    merge = Merge(f'"{token}"\0{token}', 60.0, 0.0, None)
    assert store.park(name, token, entry, nonce=token, merge=merge).word == "parked"


def test_each_call_that_was_put_off_is_sent_to_its_queue_once(store: MemoryStore) -> None:
    """Of all keys; and nothing is left that a second look would count."""
    put_off(store, "a", "1/x")
    put_off(store, "b", "2/x")
    assert store.queues == {}
    assert store.end_pauses() == 2
    assert sorted(store.queues["celery"]) == ["text of 1/x", "text of 2/x"]
    assert store.end_pauses() == 0
    assert len(store.queues["celery"]) == 2


def test_a_call_whose_key_is_held_waits_for_the_end_of_that_hold(store: MemoryStore) -> None:
    store.acquire("a", "0/x", 30.0, facts="{}")
    put_off(store, "a", "1/x")
    assert store.end_pauses() == 1
    assert store.queues == {}
    [waiter] = store.waiting("a")[1]
    assert waiter.hold.facts["due"] == 0
    store.release("a", "0/x")
    assert list(store.queues["celery"]) == ["text of 1/x"]
