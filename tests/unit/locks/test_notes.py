"""Starts and refusals that a process adds up, and what it tells the server of them."""

from functools import partial
from typing import Any

import pytest

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks import MemoryStore
from celery_redislock.locks import notes as module
from celery_redislock.locks.notes import NOTES, Notes
from celery_redislock.locks.tasklock import Says, TaskLock
from celery_redislock.store.store import History, Hold
from tests.facts import wait_until
from tests.forks import gets_through


class Store(MemoryStore):
    """Remembers what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.is_away = False

    def happened(self, name: str, **what: Any) -> History:
        """Called by what is tested."""
        if self.is_away:
            raise LockUnavailable("memory", "happened", "away")
        self.told.append((name, what))
        return History()


def lock_on(store: Store, key: str = "n", task: str = "shop.sync", owner: str = "job-a") -> TaskLock:
    return TaskLock(store, task, 30.0, 60.0, None, None, Says(), key, owner)


@pytest.fixture
def unwritten() -> Notes:
    """Whose thread never comes."""
    notes = Notes()
    notes._has_thread = True
    return notes


def refuse(notes: Notes, lock: TaskLock, token: str, holder: str = "job-h/1") -> None:
    """As a publisher does."""
    if (refusals := notes.refusals(lock)) is None:
        notes.begin(lock)
    else:
        refusals.last = lock, "queued", token, Hold(lock.key, holder.encode(), 1.0)
        refusals.times += 1


def test_starts_are_added_up_by_task_and_written_once(unwritten: Notes) -> None:
    """Law 10: one request a second, whatever runs. Of several resources the first one leads to the server."""
    store = Store()
    for key in ("n", "m", "a b"):
        unwritten.start(lock_on(store, key))
    unwritten.start(lock_on(store, "o", "shop.bill"))
    unwritten.write()
    unwritten.write()
    assert store.told == [
        ("a", {"task": "shop.sync", "what": "started", "times": 3}),
        ("o", {"task": "shop.bill", "what": "started", "times": 1}),
    ]


def test_of_many_refusals_the_first_is_the_scripts_others_are_written_together(unwritten: Notes) -> None:
    """With who was refused last, and by whom: operators see the same as without adding up."""
    store = Store()
    for number in range(4):
        refuse(unwritten, lock_on(store, owner=f"job-{number}"), f"job-{number}/x")
    refuse(unwritten, lock_on(store, task="shop.bill"), "job-b/x")
    unwritten.write()
    ((name, told),) = store.told
    token, _, facts = told.pop("value").partition("\0")
    assert (name, told) == ("n", {"task": "shop.sync", "times": 3, "holder": "job-h/1"})
    assert token == "job-3/x"
    assert '"state":"queued"' in facts


def test_a_key_that_has_been_quiet_for_a_second_is_noted_by_the_script_again(
    unwritten: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is old is told at once. No table grows: beyond its bound each is the script's to note."""
    monkeypatch.setattr(module, "MOST_KEYS", 2)
    store = Store()
    locks = [lock_on(store, key) for key in ("n", "m", "o")]
    for lock in (*locks, locks[0]):
        refuse(unwritten, lock, "job-b/1")
    assert [unwritten.refusals(lock) is None for lock in locks] == [False, False, True]
    unwritten.write()
    assert unwritten.refusals(locks[0]) is not None
    unwritten.write()
    assert unwritten.refusals(locks[0]) is None
    assert len(store.told) == 1


def test_its_thread_writes_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a server that was away: what it was not told is lost, and nothing else."""
    monkeypatch.setattr(module, "PAUSE", 0.01)
    notes, store = Notes(), Store()
    notes.start(lock_on(store))
    assert wait_until(lambda: len(store.told) == 1, 10)
    store.is_away = True
    notes.start(lock_on(store))
    assert wait_until(lambda: not notes._started, 10)
    store.is_away = False
    notes.start(lock_on(store))
    assert wait_until(lambda: len(store.told) == 2, 10)
    assert [told["times"] for _, told in store.told] == [1, 1]


def test_a_forked_child_writes_nothing_of_its_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be counted twice."""
    monkeypatch.setattr(NOTES, "write", partial(Notes.write, NOTES))
    store = Store()
    NOTES.start(lock_on(store))

    def write() -> None:
        NOTES.write()
        assert store.told == []

    assert gets_through(write)
    NOTES.write()
    assert [told["times"] for _, told in store.told] == [1]
