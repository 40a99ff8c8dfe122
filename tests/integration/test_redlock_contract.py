"""The contract of the store, on a quorum: what holds there, and what is refused."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from celery_redislock.exceptions import LockOptionError
from celery_redislock.store.store import Entry, Mark
from tests.integration import test_store_contract as contract
from tests.servers import EmbeddedServer
from tests.stores import ABOUT, QuorumCase, granted, refused

A, B = "job-a/1", "job-b/1"

#: A claim becomes a lease: that is for tasks.
TAKING_OVER = {
    "test_a_lease_takes_over_its_claim_without_a_gap",
    "test_a_lease_whose_claim_is_gone_takes_a_free_lock",
    "test_a_claim_is_taken_over_once",
    "test_taking_over_can_be_repeated",
    "test_what_is_begun_is_answered_as_an_acquire_is",
}
#: So is a look at who would refuse a claim.
LOOKING = {
    "test_a_held_lock_is_refused_to_every_other_token",
    "test_who_looks_before_a_claim_takes_nothing_and_is_refused_by_others_only",
}

#: A millisecond is not enough for two rounds.
TOO_SHORT = {"test_a_ttl_is_kept_to_the_millisecond"}

#: A clock, of which each of the servers has one.
ASKING = {"test_one_server_tells_its_time_and_nothing_else_does"}

_TESTS = {name: test for name, test in vars(contract).items() if name.startswith("test_")}
_NOT_HERE = TAKING_OVER | LOOKING | TOO_SHORT | ASKING
globals().update({name: test for name, test in _TESTS.items() if name not in _NOT_HERE})


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    """Where five servers are."""
    with ExitStack() as stack:
        yield [stack.enter_context(EmbeddedServer()).redis_url for _ in range(5)]


@pytest.fixture
def case(urls: list[str]) -> Iterator[QuorumCase]:
    """The store under test, which is the quorum."""
    with closing(QuorumCase(urls)) as case:
        yield case


def test_what_does_not_hold_here_is_in_the_contract() -> None:
    assert {*_TESTS} > _NOT_HERE


@pytest.mark.parametrize("ttl", [0.25, 0.9, 1.5, 86400.0])
def test_a_quorum_keeps_a_ttl_to_the_millisecond(case: QuorumCase, ttl: float) -> None:
    contract.test_a_ttl_is_kept_to_the_millisecond(case, ttl)


@pytest.mark.parametrize("token", [B, "job-a/2", "job-a", "job-a/", "job-a/11", ""])
def test_a_lock_that_a_quorum_has_granted_is_refused_to_every_other_token(
    case: QuorumCase, token: str
) -> None:
    """Mutual exclusion, and the refusal says who holds it for how long."""
    case.take(A, 30.0)

    hold = refused(case.take(token)).hold

    assert (hold.token, case.holder()) == (A, A)
    assert 25.0 < hold.expires_in <= 30.0
    assert case.tokens == [A] * 5


REFUSED: dict[str, Callable[[QuorumCase], object]] = {
    "taking over": lambda case: case.take(A, instead_of=B),
    "a period": lambda case: case.take(A, period=60.0),
    "a message": lambda case: case.take(A, message="m"),
    "a limit": lambda case: case.take(A, limit=2),
    "begin with a limit": lambda case: case.store.begin("n", A, 30.0, facts=ABOUT, limit=2)(),
    "look": lambda case: case.store.look("n", A),
    "claim_and_push": lambda case: case.store.claim_and_push("n", A, 30.0, queue="q", text="t"),
    "release_and_store": lambda case: case.store.release_and_store("n", A, "k", "r", 1),
    "release_claims": lambda case: list(case.store.release_claims(["job-a"])),
    "hand_on": lambda case: case.store.hand_on("n", A, B, 30.0, facts=ABOUT),
    "mark_done": lambda case: case.store.mark_done("n", "m", 1.0),
    "release with a mark": lambda case: case.store.release("n", A, mark=Mark("m", 1.0)),
    "release of a period": lambda case: case.store.release("n", A, opened_by=A),
    "park": lambda case: case.store.park("n", A, Entry("hold", "", 1.0, "{}"), nonce="1"),
    "leave": lambda case: case.store.leave("n", A),
    "move": lambda case: case.store.move("n", A, "first"),
    "await_bell": lambda case: case.store.await_bell("bell", 0.1),
    "settle": lambda case: case.store.settle("n", A, 1.0),
    "sweep": lambda case: case.store.sweep(),
    "drain": lambda case: case.store.drain(),
    "waiting": lambda case: case.store.waiting("n"),
    "limit": lambda case: case.store.limit("n", 2, ttl=1.0),
    "scripts": lambda case: case.store.scripts(["tick_take"], "celery_redislock.scheduling"),
    "server_says": lambda case: case.store.server_says("server", "redis_version"),
    "clock": lambda case: case.store.clock(),
    "other_prefixes": lambda case: case.store.other_prefixes(),
}


@pytest.mark.parametrize("what", REFUSED)
def test_whatever_else_is_asked_of_a_quorum_is_refused_before_anything_is_sent(
    case: QuorumCase, what: str
) -> None:
    """The other kinds of locks, and all that is for tasks: typed, and with the remedy."""
    with pytest.raises(LockOptionError, match=r"exclusive locks .* connect to one server"):
        REFUSED[what](case)

    assert [each.keys() for each in case.each] == [[]] * 5
    granted(case.take(A))
