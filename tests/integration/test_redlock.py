"""Redlock on five real servers: what it gives while a minority is away, late or empty."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from celery_redislock.exceptions import LockBusy, LockLost, LockUnavailable
from celery_redislock.locks import Lock
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.store.store import Release, Term
from tests.facts import wait_until
from tests.faults import Fault, FaultyProxy, faulty_proxy
from tests.history import Interval, violations
from tests.integration.programs import PROLOGUE
from tests.pages import ROOT
from tests.servers import EmbeddedServer
from tests.stores import ABOUT, QuorumCase, granted
from tests.trips import Trips

A, B, C = "job-a/1", "job-b/1", "job-c/1"

#: Seconds: the socket timeout of the stores here; a round is bounded by two of them.
TIMEOUT = 0.4
ROUND = 2 * TIMEOUT

#: What a bounded call may be late on two busy cores.
MARGIN = 0.6

MINORITY, MAJORITY = range(2), range(3)


def _five() -> Iterator[list[EmbeddedServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(EmbeddedServer(port=0)) for _ in range(5)]


#: Five that stay, and five that a test may kill or pause.
servers, mortal = pytest.fixture(_five, scope="module"), pytest.fixture(_five)


@contextmanager
def _quorum(
    servers: Sequence[EmbeddedServer], urls: Sequence[str] = (), timeout: float = TIMEOUT
) -> Iterator[QuorumCase]:
    """A quorum of them, whose clients beside it go round any proxy; all connected, and scripts known."""
    case = QuorumCase([each.url for each in servers], socket_timeout=timeout)
    with closing(case):
        if urls:
            of_proxies = QuorumCase(urls, socket_timeout=timeout)
            case.quorum = of_proxies.quorum
            case.prefix = of_proxies.prefix
            for each in case.each:
                each.prefix = case.prefix
        case.quorum.acquire("before", "job-0/1", 30.0, facts=ABOUT)
        case.quorum.renew([Term("before", "job-0/1", 30.0)])
        case.quorum.release("before", "job-0/1")
        yield case


@pytest.fixture
def case(servers: list[EmbeddedServer]) -> Iterator[QuorumCase]:
    """A quorum of servers that stay."""
    with _quorum(servers) as case:
        yield case


@pytest.fixture
def dying(mortal: list[EmbeddedServer]) -> Iterator[QuorumCase]:
    """A quorum of servers that a test may kill; not cleaned up, because they may be gone."""
    with _quorum(mortal) as case:
        yield case
        for server in mortal:
            if server.is_running:
                server.resume()
            else:
                server.restart()


@pytest.fixture
def proxies(servers: list[EmbeddedServer]) -> Iterator[list[FaultyProxy]]:
    """The network between each of the servers and who is under test."""
    with ExitStack() as stack:
        yield [stack.enter_context(faulty_proxy(each.port or 0)) for each in servers]


@pytest.fixture
def far(servers: list[EmbeddedServer], proxies: list[FaultyProxy]) -> Iterator[QuorumCase]:
    """A quorum behind that network."""
    with _quorum(servers, [each.url for each in proxies]) as case:
        yield case


@pytest.fixture
def patient(servers: list[EmbeddedServer], proxies: list[FaultyProxy]) -> Iterator[QuorumCase]:
    """The same, for tests in which nobody is silent: a busy machine is no fault."""
    with _quorum(servers, [each.url for each in proxies], timeout=5.0) as case:
        yield case


def _take(case: QuorumCase, token: str = A, ttl: float = 30.0) -> Any:
    return case.quorum.acquire("n", token, ttl, facts=ABOUT)


def _seconds(call: Callable[[], object]) -> float:
    before = time.monotonic()
    call()
    return time.monotonic() - before


def _pay(case: QuorumCase) -> bool:
    """Whether what is owed to the servers is paid before long."""
    return wait_until(lambda: not watchdog_of(case.quorum)._debts, 10)


def test_a_lock_is_held_on_all_servers_and_released_on_all(case: QuorumCase) -> None:
    """In three requests to each: acquire, write the fence back, release."""
    trips = [Trips(each.client) for each in case.each]
    lock = Lock(case.quorum, "n", owner="nightly", auto_renew=False)
    assert lock.acquire(0)
    assert [each() for each in trips] == [{"evalsha": 2}] * 5
    assert len({*case.tokens}) == 1
    with pytest.raises(LockBusy, match="held by nightly") as caught, Lock(case.quorum, "n", wait=0.3):
        pytest.fail("the block was entered")
    assert 29.0 < (caught.value.expires_in or 0) <= 30.0
    assert len({*case.tokens}) == 1
    trips = [Trips(each.client) for each in case.each]
    assert lock.release()
    assert [each() for each in trips] == [{"evalsha": 1}] * 5
    assert case.tokens == [None] * 5
    assert lock.holder() is None


def test_two_of_five_servers_may_be_gone_and_three_may_not(
    dying: QuorumCase, mortal: list[EmbeddedServer]
) -> None:
    """Acquire, renew, release, refuse: all go on, and do not wait for the dead.

    Then that is told within bounds, and nothing stays on those that live; one that is back votes again.
    """
    lock = Lock(dying.quorum, "n", auto_renew=False)
    lock.acquire(0)
    first = lock.fence
    for server in mortal[:2]:
        server.kill()
    assert _seconds(lock.renew) < TIMEOUT
    assert lock.held
    assert not Lock(dying.quorum, "n").acquire(0)
    assert lock.release()
    assert lock.acquire(0)
    assert lock.fence > first
    assert _seconds(lock.release) < TIMEOUT
    assert lock.holder() is None
    mortal[2].kill()
    before = time.monotonic()
    with pytest.raises(LockUnavailable, match=f"2 of 5 servers answered.*:{mortal[0].port}/0") as caught:
        lock.acquire()
    assert time.monotonic() - before < 2 * ROUND + MARGIN
    assert caught.value.operation == "acquire"
    for verb in (lock.holder, lambda: dying.quorum.renew([Term("n", A, 1.0)])):
        with pytest.raises(LockUnavailable):
            verb()
    assert [each.client.exists(each.key()) for each in dying.each[3:]] == [0, 0]
    mortal[2].restart()

    def votes() -> bool:
        with suppress(LockUnavailable):
            granted(_take(dying))
        return bool(dying.each[2].client.exists(dying.each[2].key()))

    assert wait_until(votes, 5)


@pytest.mark.parametrize("number", [2, 3])
def test_silent_servers_cost_one_timeout_together_and_then_none(
    dying: QuorumCase, mortal: list[EmbeddedServer], number: int
) -> None:
    """Paused, with their connections open: nobody learns that they are away but by waiting."""
    for server in mortal[:number]:
        server.pause()
    before = time.monotonic()
    with pytest.raises(LockUnavailable) if number == 3 else nullcontext():
        granted(_take(dying))
    assert time.monotonic() - before < ROUND + MARGIN
    if number == 2:
        dying.quorum.release("n", A)
        assert _seconds(lambda: [_cycle(dying) for _ in range(4)]) < TIMEOUT
        for each in dying.quorum._scripts._servers[:2]:
            each._again_at = 0.0  # it is tried again now, and not waited for
        assert _seconds(lambda: _cycle(dying)) < TIMEOUT


FIVE = """
import json
lock = Lock(store, "n", wait=60.0)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(6):
    with lock:
        start = time.monotonic()
        time.sleep(0.02)
        lock.check()
        print(json.dumps([lock.fence, start, time.monotonic()]), flush=True)
    time.sleep(0.1)  # or it would be the first to ask again
"""


def test_five_that_wait_never_hold_it_at_once_nor_split_the_votes_long(servers: list[EmbeddedServer]) -> None:
    """Law 1, by random pauses: a round is won within a second, and all get their turns."""
    program = PROLOGUE.replace("url, prefix, *rest", "prefix, *url") + FIVE
    urls = [each.redis_url for each in servers]
    with closing(QuorumCase(urls)) as case, ExitStack() as stack:
        command = [sys.executable, "-c", program, case.prefix, *urls]
        started = partial(
            subprocess.Popen, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        processes = [stack.enter_context(started()) for _ in range(5)]
        for process in processes:
            stack.callback(process.kill)
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        told = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0] * 5
    assert [len(lines) for lines in told] == [6] * 5
    history = [
        Interval("n", f"process {number}", *json.loads(line))
        for number, lines in enumerate(told)
        for line in lines
    ]
    assert violations(history) == []
    history.sort(key=lambda interval: interval.start)
    assert max(after.start - before.end for before, after in pairwise(history)) < 1.0


LOST = (Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.RESET_IN_REPLY)
SILENT = (Fault.BLACK_HOLE, Fault.SILENCE)
OPERATIONS = ("start", "fence", "renew", "release")


def _cycle(case: QuorumCase) -> Release:
    first = granted(_take(case))
    assert case.quorum.renew([Term("n", A, 30.0)]).renewed == [True]
    assert first.fence is not None
    answer = case.quorum.release("n", A)
    assert answer.gave_back(trusted=True)
    return answer


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.name)
def test_a_connection_that_breaks_costs_one_more_request(
    patient: QuorumCase, proxies: list[FaultyProxy], fault: Fault, operation: str
) -> None:
    """Also if all of them do at once: each is asked again with the same token."""
    for proxy in proxies:
        proxy.fail(fault, of=operation)
    _cycle(patient)
    assert [proxy.fired for proxy in proxies] == [1] * 5
    assert patient.tokens == [None] * 5


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("fault", SILENT, ids=lambda fault: fault.name)
def test_a_minority_that_does_not_answer_changes_nothing(
    far: QuorumCase, proxies: list[FaultyProxy], fault: Fault, operation: str
) -> None:
    for number in MINORITY:
        proxies[number].fail(fault, of=operation)
    assert _cycle(far).released
    assert far.tokens[2:] == [None] * 3


@pytest.mark.parametrize("fault", SILENT, ids=lambda fault: fault.name)
@pytest.mark.parametrize("operation", ["start", "fence"])
def test_a_majority_that_does_not_answer_grants_nothing_and_is_released_later(
    far: QuorumCase, proxies: list[FaultyProxy], fault: Fault, operation: str
) -> None:
    """Nothing is granted whose fence has not been written back; and what was taken is given back."""
    for number in MAJORITY:
        proxies[number].fail(fault, of=operation)
    lock = Lock(far.quorum, "n")
    before = time.monotonic()
    with pytest.raises(LockUnavailable):
        lock.acquire(0)
    assert time.monotonic() - before < 2 * ROUND + MARGIN
    assert _pay(far)
    assert wait_until(lambda: far.tokens == [None] * 5, 10)


def test_an_interrupt_before_the_answer_leaves_no_answer_to_the_next_request(case: QuorumCase) -> None:
    """Ctrl-C while the third server is listened to: what was sent is given back, on connections in step."""

    class Interrupted:
        """A socket whose next answer is not waited for."""

        def __init__(self, sock: Any) -> None:
            self.sock = sock

        def __getattr__(self, name: str) -> Any:
            return getattr(self.sock, name)

        def recv(self, _size: int) -> bytes:
            raise KeyboardInterrupt

    store: Any = case.quorum
    connection = store._servers[2].take()
    connection._sock = Interrupted(connection._sock)
    connection.redislock_idle.append(connection)
    with pytest.raises(KeyboardInterrupt):
        Lock(store, "n").acquire(0)
    assert _pay(case)
    assert case.tokens == [None] * 5
    _cycle(case)


def test_the_loss_of_a_majority_is_noticed(dying: QuorumCase, mortal: list[EmbeddedServer]) -> None:
    """By ``on_lost``, within the ttl, and by ``check``."""
    lost = threading.Event()
    lock = Lock(dying.quorum, "n", ttl=1.5, on_lost=lambda _: lost.set())
    lock.acquire(0)
    for server in mortal[:3]:
        server.kill()
    assert lost.wait(1.5 + MARGIN)
    with pytest.raises(LockLost, match="could not be confirmed by its deadline"):
        lock.check()
    with suppress(LockUnavailable):
        assert not lock.release()


def test_a_fence_grows_although_each_majority_is_another(far: QuorumCase, proxies: list[FaultyProxy]) -> None:
    """Any two majorities have a server in common, and that has the last fence."""
    ahead = int((time.time() + 86400) * 1e6)
    far.each[0].client.set(far.each[0].key(part="fence"), ahead, px=60_000)
    fences = []
    for away in ([3, 4], [0, 1], [2, 3], [0, 4]):
        for number in away:
            far.each[number].client.set(far.each[number].key(), f"{B}\0{{}}", px=30_000)  # it does not vote
        fences.append(granted(_take(far)).fence)
        far.quorum.release("n", A)
        far.quorum.force_release("n")
    assert fences == [ahead + 1, ahead + 2, ahead + 3, ahead + 4]


def test_a_fence_is_written_under_its_token_only(case: QuorumCase) -> None:
    """A hold that an operator takes away between the two rounds is not granted, and leaves nothing."""
    store: Any = case.quorum
    write_back = store._write_back

    def taken_away(*args: Any) -> Any:
        for number in MAJORITY:
            case.each[number].client.set(case.each[number].key(), f"{B}\0{{}}", px=30_000)
        return write_back(*args)

    store._write_back = taken_away
    with pytest.raises(LockUnavailable, match="no majority held the lock when its fence"):
        _take(case)
    assert case.tokens == [B, B, B, None, None]
