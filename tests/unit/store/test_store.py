"""Tokens, and what is read from a stored value."""

from typing import Any

import pytest

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks.lease import new_token
from celery_redislock.store.memory import MemoryStore
from celery_redislock.store.store import ACCEPTED, QUEUED, RUNNING, Hold, Refusal, Release, owner_of
from tests.stores import hold_of


@pytest.mark.parametrize("owner", ["job", "a/b/c", "", "naïve ✓", "50%00", "nul\0inside"])
def test_a_token_names_its_owner_and_holds_no_nul(owner: str) -> None:
    """NUL ends a token on the server: one inside would make two tokens alike."""
    token = new_token(owner)
    assert "\0" not in token
    assert owner_of(token) == (owner or token)


def test_a_nonce_has_72_bits() -> None:
    nonce = new_token("job").rpartition("/")[2]
    assert len(nonce) == 12


def test_no_two_tokens_are_alike() -> None:
    """Not those of one owner, taken one right after the other, either."""
    assert len({new_token("job") for _ in range(100_000)}) == 100_000


def test_a_value_is_token_nul_json() -> None:
    hold = Hold("n", b'job/1\0{"host":"here"}', 1.5, is_period=True)
    assert (hold.name, hold.token, hold.owner) == ("n", "job/1", "job")
    assert (hold.facts, hold.expires_in, hold.is_period) == ({"host": "here"}, 1.5, True)


@pytest.mark.parametrize(
    ("value", "token"),
    [
        (b"somebody", "somebody"),
        (b"", ""),
        (b"\xff", "�"),
        (b"job/1\0{broken", "job/1"),
        (b"job/1\0[1]", "job/1"),
        (b"job/1\0\xff", "job/1"),
    ],
)
def test_whatever_else_stands_there_is_a_foreign_holder(value: bytes, token: str) -> None:
    hold = Hold("n", value, 1.0)
    assert (hold.token, hold.facts) == (token, {})
    assert hold.owner == owner_of(token)


@pytest.mark.parametrize(
    ("about", "is_period", "state"),
    [({"state": "queued"}, False, QUEUED), ({"state": "running"}, True, ACCEPTED), ({}, False, None),
     ({"state": 7}, False, None), ({"state": "\x1b[2J"}, False, None), ({"state": None}, False, None)],
)  # fmt: skip
def test_a_holders_state_is_a_text_or_unknown(
    about: dict[str, Any], is_period: bool, state: str | None
) -> None:
    assert hold_of("job/1", about, is_period=is_period).state == state


@pytest.mark.parametrize(
    ("since", "told"),
    [(12.5, 12.5), (12, 12), (True, None), ("12", None), (None, None), (float("inf"), None),
     (float("nan"), None), (10**400, None), (-1, None), (1e12, None), ([1], None)],
)  # fmt: skip
def test_a_holder_is_since_a_time_or_unknown(since: object, told: float | None) -> None:
    """Any program may have written it."""
    assert hold_of("job/1", {"since": since}).since == told


@pytest.mark.parametrize(
    ("facts", "is_period", "because"),
    [({"state": RUNNING}, False, "run"), ({"state": QUEUED}, False, "claim"),
     ({"state": ACCEPTED}, False, "period"), ({"state": RUNNING}, True, "period"), ({}, False, "run")],
)  # fmt: skip
def test_a_refusal_says_because_of_what_and_by_whom(
    facts: dict[str, Any], is_period: bool, because: str
) -> None:
    """A claim is a message on its way; another program's lock counts as a run."""
    hold = hold_of("job/1", facts, is_period=is_period)
    refusal = Refusal((hold, hold_of("job/2", {"state": QUEUED})))
    assert refusal.because == because
    assert refusal.hold is hold
    assert [each.owner for each in refusal.holds] == ["job", "job"]


@pytest.mark.parametrize("now", [255069.03, 495435.09, 449491.06])
def test_in_memory_too_what_is_left_is_whole_milliseconds(now: float) -> None:
    """By these clocks a day from now is more than a day away: ``retry_after`` would be a second too long."""
    assert (now + 86400.0) - now > 86400.0
    store = MemoryStore(clock=lambda: now)
    store.acquire("n", "job/1", 86400.0, facts="{}")
    [held] = store.holders("n")
    set_ = store.limit("n", 2, ttl=86400.0)
    assert set_ is not None
    assert (held.expires_in, set_.expires_in) == (86400.0, 86400.0)


def test_a_store_of_one_process_says_what_it_cannot_do() -> None:
    """So that callers need not know which store they have."""
    store = MemoryStore()
    address = {"host": "localhost", "port": 6379}
    store.acquire("n", "job/1", 30.0, facts="{}")
    assert (store.is_shared, store.leads_to(address), store.reaches(address)) == (False, False, False)
    with pytest.raises(LockUnavailable, match="no queue") as caught:
        store.claim_and_push("free", "job/1", 30.0, queue="q", text="", facts="{}")
    assert caught.value.was_refused
    assert store.inspect("free") is None
    with pytest.raises(LockUnavailable, match="no scripts"):
        store.scripts(["tick_take"], "celery_redislock.scheduling")
    assert store.release_and_store("n", "job/1", "key", "{}", 60) == (Release(released=True), False)
    assert store.inspect("n") is None
