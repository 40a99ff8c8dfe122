"""Each law on every broker and in every pool, where its own file does not try it; and law 10, cheap."""

import importlib.util
import time
from collections.abc import Callable, Iterator

import pytest
from celery import chord

from celery_redislock import LockUnavailable
from tests.acceptance.brokers import RABBITMQ_QUEUES, Site
from tests.acceptance.conftest import ProjectMaker, opening
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import LONG_LEASE, PATIENCE, SOCKET_TIMEOUT, WORKFLOW
from tests.faults import FaultyProxy
from tests.tiers import slow

POOLS = ("prefork", "threads", "gevent", "solo")

#: Where rows are only repetitions: the laws' own pool, one thread, queues that deliver as quorum queues do.
SLOW = {"threads", "solo", "classic"}


@pytest.fixture(
    scope="module", params=[slow(place) if place in SLOW else place for place in (*POOLS, *RABBITMQ_QUEUES)]
)
def somewhere(
    request: pytest.FixtureRequest,
    open_on: ProjectMaker,
    open_site: Callable[..., Site],
    network: FaultyProxy,
) -> Iterator[Project]:
    """A project with each pool on Redis, and with each kind of RabbitMQ's queues; its locks are elsewhere."""
    place = request.param
    if place == "gevent" and importlib.util.find_spec(place) is None:
        pytest.skip("gevent is not installed")
    # Nothing is renewed while trips are counted, and a debt outlives a slow test.
    conf = {"redislock_url": network.url, "redislock_ttl": LONG_LEASE}
    pool = place if place in POOLS else "prefork"
    is_solo = pool == "solo"
    with opening(open_on, []) as make:
        project = open_site(make, place if place in RABBITMQ_QUEUES else "redis", conf=conf).project
        project.start_workers(2 if is_solo else 1, pool, concurrency=1 if is_solo else 4)
        yield project


@pytest.mark.law(1, 2)
def test_a_resource_is_used_in_turn_and_none_is_dropped(somewhere: Project, key: str) -> None:
    """Six runs of one key, one after the other."""
    results = [somewhere.while_executing.delay(key, 0.1) for _ in range(6)]
    for result in results:
        result.get(timeout=PATIENCE)
    assert len(somewhere.bodies(key)) == 6
    assert somewhere.overlaps(key) == []


@pytest.mark.law(3)
def test_a_run_ends_only_its_own_hold(somewhere: Project, key: str) -> None:
    """Released by force while it runs, its key is another's when it ends."""
    with somewhere.kept_on(f"{key}@returned"):
        first = somewhere.executed.delay(key)
        somewhere.wait_ended(key)
        somewhere.executed.lock_for(key).release(reason="a test")
        second = somewhere.executed.apply_async((key,), countdown=30)
    first.get(timeout=PATIENCE)
    holder = somewhere.holder(key)
    assert holder is not None
    assert (holder.owner, second.is_duplicate) == (second.id, False)
    somewhere.executed.lock_for(key).release(reason="the test has ended")
    second.revoke()  # or it would be delivered again every other second, and its claim renewed each time


@pytest.mark.law(5)
def test_no_publish_after_get_is_a_duplicate(somewhere: Project, key: str) -> None:
    """Thirty times ``get(); delay()`` make thirty runs."""
    for _ in range(30):
        result = somewhere.executed.delay(key)
        assert not result.is_duplicate
        result.get(timeout=PATIENCE)
    assert len(somewhere.bodies(key)) == 30


@pytest.mark.law(6)
def test_a_chord_with_duplicates_completes(somewhere: Project, key: str) -> None:
    """They run in turn."""
    result = chord([somewhere.executed.si(key)] * 3)(somewhere.collect.s())
    assert result.get(timeout=WORKFLOW) == [f"{key} done"] * 3
    assert len(somewhere.bodies(key)) == 3
    assert somewhere.overlaps(key) == []


@pytest.mark.law(7)
def test_a_retry_keeps_the_lock(somewhere: Project, key: str) -> None:
    """A duplicate published while it waits is refused."""
    result = somewhere.executed.delay(key, 0.0, "retry", {"countdown": 1.5})
    somewhere.wait_ended(key)
    assert somewhere.executed.delay(key).id == result.id
    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert [body.retries for body in somewhere.bodies(key)] == [0, 1]


@pytest.mark.law(9, 10)
def test_a_task_costs_three_trips_and_without_a_lock_server_does_as_it_says(
    somewhere: Project, network: FaultyProxy, key: str
) -> None:
    """One to publish, one to start, one to end; counted between the processes and their server.

    Then ``raise`` within two socket timeouts (less than three, measured), or ``run`` without a lock.
    """
    somewhere.executed.delay(f"{key}-before").get(timeout=PATIENCE)
    wait_until(lambda: _is_quiet(network), PATIENCE, "nothing is owed from a test before")
    before = network.requests
    for number in range(10):
        somewhere.executed.delay(f"{key}-{number}").get(timeout=PATIENCE)
    assert network.requests - before == 30

    network.black_hole()
    try:
        began = time.monotonic()
        with pytest.raises(LockUnavailable):
            somewhere.executed.delay(key)
        took = time.monotonic() - began
        unlocked = somewhere.executed_on_error_run.delay(f"{key}-run")
        value = unlocked.get(timeout=PATIENCE)
    finally:
        network.heal()
    assert took < 3 * SOCKET_TIMEOUT
    assert value == f"{key}-run done"
    assert [body.token for body in somewhere.bodies(f"{key}-run")] == [None]
    assert somewhere.executed.delay(key).get(timeout=PATIENCE) == f"{key} done"


def _is_quiet(network: FaultyProxy) -> bool:
    """Whether no request came for longer than it takes to try again what is owed (a second)."""
    before = network.requests
    time.sleep(1.5)
    return network.requests == before
