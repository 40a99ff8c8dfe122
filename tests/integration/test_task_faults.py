"""A whole task's life on a faulty network: every operation, every fault, at each of its first calls.

Broker and results are in memory, so what is lost is lost on the way to the
lock server. Laws 1, 2, 4 and 9 are checked on every row.
"""

from collections.abc import Container, Iterator
from contextlib import closing

import pytest

from celery_redislock.embedded import EmbeddedServer
from tests.faults import Fault, FaultyProxy
from tests.history import violations
from tests.integration.visits import Visits
from tests.integration.watched_shop import SOCKET_TIMEOUT, WatchedShop
from tests.operations import OPERATIONS
from tests.tiers import slow

#: Which calls of an operation meet the fault. Two in a row are the store's own two attempts.
CALLS: dict[str, Container[int]] = {
    "first": (1,),
    "second": (2,),
    "third": (3,),
    "first two": (1, 2),
    "all for a while": range(1, 1000),
}

POLICIES = [
    (operation, policy)
    for operation in OPERATIONS
    for policy in ("raise", "run")
    if policy == "raise" or operation in {"claim", "start", "inspect"}
]


@pytest.fixture
def shop(proxy: FaultyProxy, tcp_server: EmbeddedServer, prefix: str) -> Iterator[WatchedShop]:
    """A shop behind it."""
    proxy.delay = 2 * SOCKET_TIMEOUT
    with closing(WatchedShop(proxy.url, tcp_server.redis_url, prefix)) as shop:
        yield shop


def test_slow_answers_to_everything_lose_and_leave_nothing(shop: WatchedShop, proxy: FaultyProxy) -> None:
    """Laws 1, 2 and 4: each one in time; a release takes as long as a claim.

    A greeting's three answers must come in time as well: whoever is held up once needs a new connection.
    """
    visits = Visits(shop, "hand_on", "raise")
    visits.pay("warm-up")
    proxy.drag = 0.2 * SOCKET_TIMEOUT

    told = [visits.pay(name) for name in visits.names]

    assert shop.ran == ["warm-up", *(name for name, each in zip(visits.names, told, strict=True) if each[1])]
    assert violations(shop.history) == []
    assert shop.is_free()
    assert all(visit.was_published and visit.was_exclusive for visit in told if visit.was_answered)


@pytest.mark.parametrize(
    "lost", [Fault.REQUEST_LOST, Fault.BLACK_HOLE, Fault.REPLY_LOST], ids=lambda lost: lost.name
)
def test_a_claim_that_its_publisher_does_not_know_of_ends_with_a_run_that_got_no_lock(
    shop: WatchedShop, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, lost: Fault
) -> None:
    """Law 4: two failures of one call, and ``on_lock_error="run"`` for both, leave no claim for an hour."""
    visits = Visits(shop, "claim", "run")
    visits.pay("warm-up")
    proxy.fail(Fault.REPLY_LOST, of="claim", at=(1, 2))
    serve_once = shop.serve_once

    def serve_without_a_lock() -> None:
        proxy.fail(lost, of="start", at=(1, 2))
        serve_once()

    monkeypatch.setattr(shop, "serve_once", serve_without_a_lock)

    visits.pay("visit 0")

    assert shop.ran == ["warm-up", "visit 0"]
    assert shop.is_free()


@pytest.mark.parametrize(
    "calls", ["first", "all for a while", slow("second"), slow("third"), slow("first two")]
)
@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name)
@pytest.mark.parametrize(("operation", "policy"), POLICIES, ids=[" or ".join(each) for each in POLICIES])
def test_no_fault_loses_a_task_or_leaves_a_lock(
    shop: WatchedShop, proxy: FaultyProxy, operation: str, policy: str, fault: Fault, calls: str
) -> None:
    """Laws 1, 2, 4 and 9, whatever call of whatever operation meets whatever fault."""
    visits = Visits(shop, operation, policy)
    visits.pay("warm-up")
    shop.history.clear()
    proxy.fail(fault, of=operation, at=CALLS[calls])

    # Well again once it has shown: those that are put off would come back for ever.
    heal = proxy.heal if calls == "all for a while" else _nothing
    told = [visits.pay(name, afterwards=lambda: heal() if proxy.fired else None) for name in visits.names]

    assert proxy.fired
    assert violations(shop.history) == []
    assert shop.is_free(), (shop.locks(), len(shop.watchdog._debts))
    assert [shop.ran.count(name) for name in visits.names] == [visit.was_published for visit in told]
    assert all(visit.took < 2 * SOCKET_TIMEOUT + 2.0 for visit in told)
    assert all(visit.was_published for visit in told if visit.was_answered or policy == "run")
    assert all(visit.was_exclusive for visit in told if visit.was_answered)
    if calls == "all for a while" and operation != "mark_done":  # whose answer nobody waits for
        assert shop.unanswered


def _nothing() -> None:
    """Leave the network as it is."""
