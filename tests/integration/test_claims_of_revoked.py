"""Releasing the claims of tasks that were revoked, whatever they claim, on every store."""

import json

from tests.stores import RedisCase, StoreCase
from tests.trips import Trips

QUEUED = json.dumps({"state": "queued"})
RUNNING = json.dumps({"state": "running"})


def claim(
    case: StoreCase, name: str, token: str, *, facts: str = QUEUED, period: float | None = None
) -> None:
    """Hold a lock under this token."""
    case.store.acquire(name, token, 60.0, facts=facts, period=period)


def test_the_claims_of_the_owners_are_released_and_named(case: StoreCase) -> None:
    claim(case, "one", "a/1")
    claim(case, "two", "b/2")
    claim(case, "three", "a/3")
    released = list(case.store.release_claims(["a", "nobody"]))
    assert sorted(released) == [("one", "a/1"), ("three", "a/3")]
    assert [case.holder(name) for name in ("one", "two", "three")] == [None, "b/2", None]
    assert case.store.names() == ["two"]
    assert list(case.store.release_claims(["a"])) == []


def test_a_run_keeps_its_lock_and_a_period_that_is_no_claims_stays(case: StoreCase) -> None:
    """Law 3: only what waits for a message that will never run is released."""
    claim(case, "running", "a/1", facts=RUNNING)
    claim(case, "foreign", "a/2", facts="{not json")
    claim(case, "accepted", "a/3", period=60.0)
    case.store.release("accepted", "a/3")
    assert list(case.store.release_claims({"a"})) == []
    assert sorted(case.store.names()) == ["accepted", "foreign", "running"]


def test_the_period_that_began_with_a_claim_ends_with_it(case: StoreCase) -> None:
    """Nothing ran under it, and nothing will: that of another token stays."""
    claim(case, "mine", "a/1", period=60.0)
    claim(case, "theirs", "b/2", period=60.0)
    case.store.release("theirs", "b/2")
    claim(case, "theirs", "a/3")
    assert sorted(case.store.release_claims(["a"])) == [("mine", "a/1"), ("theirs", "a/3")]
    assert case.remaining("mine", "period") is None
    assert (case.remaining("theirs", "period") or 0.0) > 0.0
    assert case.store.names() == ["theirs"]


def test_owners_and_names_are_compared_whole_whatever_they_are_made_of(case: StoreCase) -> None:
    """An owner is all of a token before its nonce, and may have a slash; patterns mean nothing."""
    tokens = {"x%y": "a.b/c/1", "n*": "a.b/2", "[n]": "axb/c/3", "ü n": ".*/4"}
    for name, token in tokens.items():
        claim(case, name, token)
    assert list(case.store.release_claims(["a.b/c"])) == [("x%y", "a.b/c/1")]
    assert list(case.store.release_claims([".*"])) == [("ü n", ".*/4")]
    assert sorted(case.store.names()) == ["[n]", "n*"]


def test_no_owners_cost_nothing(case: StoreCase) -> None:
    claim(case, "one", "a/1")
    assert list(case.store.release_claims([])) == []
    assert case.holder("one") == "a/1"


def test_a_key_of_another_type_keeps_no_claim_from_its_release(plain_case: RedisCase) -> None:
    """Another program's, under a name that is listed."""
    claim(plain_case, "before", "a/1")
    claim(plain_case, "broken", "a/2")
    claim(plain_case, "after", "a/3")
    plain_case.client.delete(plain_case.key("broken"))
    plain_case.client.rpush(plain_case.key("broken"), "no lock")
    plain_case.client.pexpire(plain_case.key("broken"), 60_000)
    assert sorted(plain_case.store.release_claims(["a"])) == [("after", "a/3"), ("before", "a/1")]
    assert plain_case.client.type(plain_case.key("broken")) == b"list"


def test_ten_thousand_locks_cost_tens_of_requests(plain_case: RedisCase) -> None:
    """A revoke is heard by every worker, and each looks at all locks."""
    for number in range(10_000):
        plain_case.redis.acquire(f"n:{number}", f"job-{number}/nonce", 600.0, facts=QUEUED)
    wanted = {f"job-{number}" for number in range(0, 10_000, 100)}
    trips = Trips(plain_case.client)
    released = list(plain_case.redis.release_claims(wanted))
    assert sum(trips().values()) <= 30
    assert {name for name, _ in released} == {f"n:{number}" for number in range(0, 10_000, 100)}
    assert len(plain_case.redis.names(limit=20_000)) == 9_900
