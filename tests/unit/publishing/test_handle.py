"""A look at a task's lock from outside, where a scope keeps its queued call under a second name."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redislock.exceptions import LockOptionError
from celery_redislock.publishing.handle import LockHandle
from celery_redislock.store.memory import MemoryStore
from celery_redislock.store.store import QUEUED, RUNNING, Entry

KEY = "account:7"
BESIDE = f"queued:{KEY}"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def handle(store: MemoryStore) -> LockHandle:
    return LockHandle(SimpleNamespace(name="shop.sync"), store, KEY, BESIDE)


def take(store: MemoryStore, name: str, owner: str, state: str, **terms: Any) -> None:
    facts = {"state": state, **({"limit": terms["limit"]} if "limit" in terms else {})}
    terms = {"ttl": 30.0, **terms}
    store.acquire(
        name, f"{owner}/x", terms.pop("ttl"), facts=json.dumps(facts, separators=(",", ":")), **terms
    )


def owners(store: MemoryStore) -> dict[str, str]:
    return {name: hold.owner for name in store.names() if (hold := store.inspect(name))}


def told(holder: Any) -> tuple[str, str, str, str | None] | None:
    return holder and (holder.key, holder.owner, holder.state, holder.queued)


def test_the_holder_is_the_run_and_names_the_queued_call_beside_it(store: MemoryStore, handle: Any) -> None:
    """Where nothing runs it is the queued call, and nobody is where nothing is queued."""
    assert handle.holder() is handle.holder(only="queued") is handle.release(reason="x") is None
    take(store, BESIDE, "second", QUEUED)
    assert told(handle.holder()) == (BESIDE, "second", "queued", None)
    take(store, KEY, "first", RUNNING)
    assert told(handle.holder()) == (KEY, "first", "running", "second")
    assert told(handle.holder(only="queued")) == (BESIDE, "second", "queued", None)


def test_a_period_under_the_second_name_is_no_queued_call(store: MemoryStore, handle: Any) -> None:
    """Its call has started: nothing is queued, and nothing may be released as if it were."""
    take(store, BESIDE, "first", QUEUED, period=60.0)
    store.release(BESIDE, "first/x")
    assert handle.holder().state == "period"
    take(store, KEY, "first", RUNNING)
    assert handle.holder().queued is None
    assert handle.holder(only="queued") is handle.release(reason="x", only="queued") is None


def test_a_lock_with_one_name_has_nothing_queued_beside_it(store: MemoryStore) -> None:
    """Another lock may be called as a second name would be: it is not looked at."""
    take(store, KEY, "first", RUNNING)
    take(store, BESIDE, "second", QUEUED)
    handle = LockHandle(SimpleNamespace(name="shop.sync"), store, KEY)
    assert told(handle.holder()) == (KEY, "first", "running", None)
    assert handle.release(reason="x", only="queued") is None
    assert owners(store) == {KEY: "first", BESIDE: "second"}


@pytest.mark.parametrize(
    ("there", "only", "taken"),
    [
        ({KEY: "run", BESIDE: "call"}, None, KEY),
        ({KEY: "run", BESIDE: "call"}, "queued", BESIDE),
        # A task of another scope may have claimed the same resource under the lock's own name.
        *(({name: "call"}, only, name) for name in (KEY, BESIDE) for only in (None, "queued")),
    ],
)
def test_a_release_takes_the_runs_lock_or_only_the_queued_one(
    store: MemoryStore, handle: LockHandle, there: dict[str, str], only: str | None, taken: str
) -> None:
    """Law 3: an operator's act is explicit, and takes one of the two, under either name."""
    for name, owner in there.items():
        take(store, name, owner, RUNNING if owner == "run" else QUEUED)
    victim = handle.release(reason="x", only=only)
    assert victim is not None
    assert (victim.key, victim.owner) == (taken, there[taken])
    assert owners(store) == {name: owner for name, owner in there.items() if name != taken}


def test_a_queued_call_is_found_among_several_holders(store: MemoryStore) -> None:
    """Above a limit of 1 a run's hold may end first, and queued calls be beside it."""
    handle: Any = LockHandle(SimpleNamespace(name="shop.sync"), store, KEY)
    for owner, state, ttl in [("first", RUNNING, 10.0), ("second", QUEUED, 20.0), ("third", RUNNING, 30.0)]:
        take(store, KEY, owner, state, ttl=ttl, limit=3)
    assert handle.holder(only="queued").owner == "second"
    assert handle.release(reason="x", only="queued").owner == "second"
    assert [each.owner for each in handle.holders()] == ["first", "third"]


def test_who_waits_is_told_page_by_page(store: MemoryStore, handle: LockHandle) -> None:
    """Through both lines of a scope that has two locks: who waits to run comes first."""
    for name, owner in [*((KEY, owner) for owner in "abc"), *((BESIDE, owner) for owner in "de")]:
        store.park(name, f"{owner}/x", Entry("push", "celery", 30.0, "{}", "text"), nonce=owner, how="behind")
    pages: list[tuple[dict[str, int], str]] = [
        ({}, "abcde"),
        ({"limit": 3}, "abc"),
        ({"offset": 1, "limit": 3}, "bcd"),
        ({"offset": 3, "limit": 1}, "d"),
        ({"offset": 4}, "e"),
        ({"offset": 5, "limit": 1}, ""),
    ]
    for page, expected in pages:
        assert "".join(holder.owner for holder in handle.waiting(**page)) == expected, page


@pytest.mark.parametrize("page", [{"offset": -1}, {"offset": 1.0}, {"limit": 0}, {"limit": "3"}], ids=str)
def test_what_is_no_page_is_refused(handle: LockHandle, page: dict[str, int]) -> None:
    ((name, value),) = page.items()
    with pytest.raises(LockOptionError, match=f"{name}={value!r} is not a whole number from [01] on"):
        handle.waiting(**page)
