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

#: What is begun and read later; a ttl too short for two rounds; and a clock, of which each server has one.
_NOT_HERE = {
    "test_what_is_begun_is_answered_as_an_acquire_is",
    "test_a_ttl_is_kept_to_the_millisecond",
    "test_one_server_tells_its_time_and_nothing_else_does",
}
_TESTS = {name: test for name, test in vars(contract).items() if name.startswith("test_")}
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


def test_a_lock_that_a_quorum_has_granted_is_refused_to_every_other_token(case: QuorumCase) -> None:
    """Mutual exclusion, and the refusal says who holds it for how long."""
    case.take(A, 30.0)
    for token in (B, "job-a/2", "job-a", "job-a/", "job-a/11", ""):
        hold = refused(case.take(token)).hold
        assert (hold.token, case.holder()) == (A, A)
        assert 25.0 < hold.expires_in <= 30.0
    assert case.tokens == [A] * 5


REFUSED: list[Callable[[QuorumCase], object]] = [
    lambda case: case.take(A, instead_of=B),
    lambda case: case.take(A, period=60.0),
    lambda case: case.take(A, message="m"),
    lambda case: case.take(A, limit=2),
    lambda case: case.store.begin("n", A, 30.0, facts=ABOUT, limit=2)(),
    lambda case: case.store.look("n", A),
    lambda case: case.store.claim_and_push("n", A, 30.0, queue="q", text="t"),
    lambda case: case.store.release_and_store("n", A, "k", "r", 1),
    lambda case: list(case.store.release_claims(["job-a"])),
    lambda case: case.store.hand_on("n", A, B, 30.0, facts=ABOUT),
    lambda case: case.store.mark_done("n", "m", 1.0),
    lambda case: case.store.release("n", A, mark=Mark("m", 1.0)),
    lambda case: case.store.release("n", A, opened_by=A),
    lambda case: case.store.park("n", A, Entry("hold", "", 1.0, "{}"), nonce="1"),
    lambda case: case.store.leave("n", A),
    lambda case: case.store.move("n", A, "first"),
    lambda case: case.store.await_bell("bell", 0.1),
    lambda case: case.store.settle("n", A, 1.0),
    lambda case: case.store.sweep(),
    lambda case: case.store.drain(),
    lambda case: case.store.waiting("n"),
    lambda case: case.store.limit("n", 2, ttl=1.0),
    lambda case: case.store.scripts(["tick_take"], "celery_redislock.scheduling"),
    lambda case: case.store.server_says("server", "redis_version"),
    lambda case: case.store.clock(),
    lambda case: case.store.other_prefixes(),
]


def test_whatever_else_is_asked_of_a_quorum_is_refused_before_anything_is_sent(case: QuorumCase) -> None:
    """The other kinds of locks, and all that is for tasks: typed, and with the remedy."""
    for ask in REFUSED:
        with pytest.raises(LockOptionError, match=r"exclusive locks .* connect to one server"):
            ask(case)
    assert [each.keys() for each in case.each] == [[]] * 5
    granted(case.take(A))
