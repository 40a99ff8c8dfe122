"""Locks wait in line: in order, at no cost to others when one gives up or dies, and with the whole ttl."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from celery_redislock.embedded import EmbeddedServer
from celery_redislock.exceptions import LockBusy, LockUnavailable
from celery_redislock.locks import Lock, connect
from celery_redislock.locks.watchdog import watchdog_of
from tests.facts import wait_until
from tests.faults import FaultyProxy
from tests.integration.programs import PROLOGUE, run_program
from tests.stores import RedisCase

#: Seconds: the socket timeout of the stores here. A hand-off lives for two of them.
SOCKET_TIMEOUT = 0.5
HAND_OFF = 2 * SOCKET_TIMEOUT

#: What a look may be late: the server ends a wait up to 0.1 s late, and two busy cores add some.
MARGIN = 0.6


@pytest.fixture
def case(redis_url: str) -> Iterator[RedisCase]:
    """A store with short socket timeouts, so that a hand-off that nobody takes is short too."""
    with closing(RedisCase(redis_url, socket_timeout=SOCKET_TIMEOUT)) as case:
        yield case


def _waiting(case: RedisCase) -> int:
    return case.redis.waiting("n")[0]


def _no_trace(case: RedisCase) -> bool:
    """Whether nothing is left on the server once the bells of those who had just been rung have expired."""
    return wait_until(lambda: case.keys() == [], HAND_OFF + MARGIN)


@contextmanager
def _in_line(case: RedisCase, number: int, work: Callable[[int, Lock], object]) -> Iterator[list[Any]]:
    """Let so many threads wait for the lock, one after the other, and then each do its work, to the end."""
    with ThreadPoolExecutor(number) as pool:

        def wait(each: int) -> object:
            with Lock(case.redis, "n", ttl=5.0, wait=30.0) as lock:
                return work(each, lock)

        before = _waiting(case)
        done = []
        for each in range(number):
            done.append(pool.submit(wait, each))
            assert wait_until(lambda: _waiting(case) == before + each + 1, 10)  # noqa: B023  called at once
        yield done


@contextmanager
def _program(case: RedisCase, text: str) -> Iterator["subprocess.Popen[str]"]:
    """A process of its own with a store, that ends with the block at the latest."""
    program = PROLOGUE + "from celery_redislock.exceptions import LockBusy\n" + textwrap.dedent(text)
    command = [sys.executable, "-c", program.replace("prefix=prefix", "prefix=prefix, socket_timeout=0.5", 1)]
    with subprocess.Popen(
        [*command, case.url, case.prefix],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()


WAITS = """
    with Lock(store, "n", wait=60.0):
        print("in", flush=True)
"""


def test_five_that_wait_are_served_in_order(case: RedisCase) -> None:
    """A holder that acquires again at once goes to the end, behind everybody. Each leaves nothing behind."""
    order: list[str] = []
    first = Lock(case.redis, "n", wait=30.0)
    first.acquire()
    with _in_line(case, 5, lambda each, _lock: order.append(str(each))):
        first.release()
        with first:
            order.append("again")
    assert order == ["0", "1", "2", "3", "4", "again"]
    assert _no_trace(case)


def test_who_gives_up_leaves_no_trace_and_costs_nobody(case: RedisCase) -> None:
    """In time, and the next in line is served at once."""
    order: list[int] = []
    with Lock(case.redis, "n") as first:
        before = time.monotonic()
        with pytest.raises(LockBusy), Lock(case.redis, "n", wait=0.5):
            pytest.fail("the block was entered")
        assert 0.5 <= time.monotonic() - before < 0.5 + MARGIN
        assert set(case.keys()) == {case.key("n"), f"{case.prefix}:index"}

        with ThreadPoolExecutor(1) as pool:
            gives_up = pool.submit(lambda: Lock(case.redis, "n").acquire(timeout=1.0))
            assert wait_until(lambda: _waiting(case) == 1, 10)
            with _in_line(case, 1, lambda each, _lock: order.append(each)):
                assert gives_up.result(10) is False
                assert _waiting(case) == 1
                before = time.monotonic()
                first.release()
            assert time.monotonic() - before < HAND_OFF / 2
        first.acquire()

    assert order == [0]
    assert _no_trace(case)


def test_a_waiting_process_that_is_killed_costs_the_others_its_hand_off(case: RedisCase) -> None:
    """Its claim lives for two socket timeouts, and the next in line looks when that has expired."""
    first = Lock(case.redis, "n")
    first.acquire()
    with _program(case, WAITS) as process:
        assert wait_until(lambda: _waiting(case) == 1, 20)
        with _in_line(case, 2, lambda *_: time.monotonic()) as done:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(10)
            before = time.monotonic()
            first.release()
            cost = done[0].result(20) - before
    assert HAND_OFF - 0.1 < cost < HAND_OFF + MARGIN
    assert _no_trace(case)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "a handler that exits"])
def test_a_signal_leaves_the_line(case: RedisCase, sent: int) -> None:
    """KeyboardInterrupt, or SystemExit: within the piece of a second in which it came, before the end."""
    program = f"""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            {textwrap.indent(textwrap.dedent(WAITS), " " * 12).strip()}
        except KeyboardInterrupt:
            sys.exit(0)
    """
    first = Lock(case.redis, "n")
    first.acquire()
    with _program(case, program) as process:
        assert wait_until(lambda: _waiting(case) == 1, 20)
        before = time.monotonic()
        os.kill(process.pid, sent)
        assert process.wait(10) == 0
        assert time.monotonic() - before < 3.0
    assert _waiting(case) == 0
    first.release()

    assert _no_trace(case)


def test_the_next_gets_the_lock_of_a_holder_that_was_killed_when_it_expires(case: RedisCase) -> None:
    """Nobody releases it, so nobody rings: the first in line looks then."""
    program = """
        lock = Lock(store, "n", ttl=1.5)
        lock.acquire()
        print("held", flush=True)
        time.sleep(60)
    """
    with _program(case, program) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with _in_line(case, 2, lambda *_: time.monotonic()) as done:
            os.kill(process.pid, signal.SIGKILL)
            left = case.remaining() or 0.0
            before = time.monotonic()
            waited = done[0].result(20) - before
            done[1].result(20)

    assert left - 0.1 < waited < left + MARGIN


def test_a_foreign_lock_without_an_end_is_waited_for_within_bounds(case: RedisCase) -> None:
    """Its owner's DEL rings no bell: each waiter looks once a second."""
    case.client.set(case.key("n"), "foreign")
    assert not Lock(case.redis, "n").acquire(timeout=0.3)
    with _in_line(case, 2, lambda *_: time.monotonic()) as done:
        time.sleep(0.3)
        case.client.delete(case.key("n"))
        before = time.monotonic()
        found = done[0].result(20) - before
    assert found < 1.0 + MARGIN
    assert _no_trace(case)


def test_who_was_lost_by_a_failover_is_in_line_again(case: RedisCase) -> None:
    """The new primary knows the holder, and not who came last: it parks again with its next look."""
    first = Lock(case.redis, "n")
    first.acquire()
    with _in_line(case, 2, lambda each, _lock: each) as done:
        case.client.delete(case.key("n", "line"), case.key("n", "parked"), f"{case.prefix}:lines")
        assert wait_until(lambda: _waiting(case) == 2, 5)
        first.release()
        assert {each.result(10) for each in done} == {0, 1}


def test_who_gives_up_on_a_server_that_does_not_answer_leaves_the_line_when_it_does(
    proxy: FaultyProxy, tcp_server: EmbeddedServer
) -> None:
    """Law 9: its own time, the wait of a second and a socket timeout, twice; the leave is owed."""
    direct = connect(tcp_server.redis_url)
    store = connect(proxy.url, socket_timeout=SOCKET_TIMEOUT)
    holder = Lock(direct, "n")
    holder.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(lambda: Lock(store, "n").acquire(1.0))
        assert wait_until(lambda: direct.waiting("n")[0] == 1, 10)
        proxy.black_hole()
        error = waiter.exception(10)
        assert isinstance(error, LockUnavailable)
        assert direct.waiting("n")[0] == 1
        proxy.heal()
        assert wait_until(lambda: direct.waiting("n")[0] == 0, 10)
    holder.release()
    assert wait_until(lambda: not watchdog_of(store)._debts, 10)


def test_a_child_that_is_forked_meanwhile_leaves_the_parents_place_alone(case: RedisCase) -> None:
    """However it ends, and although it waits for the same lock itself."""
    program = """
        other = connect(url, prefix=prefix)
        first = Lock(other, "n")
        first.acquire()
        got = []

        def wait():
            with Lock(store, "n", wait=30.0) as lock:
                got.append(lock.fence)

        waiter = threading.Thread(target=wait)
        waiter.start()
        until(lambda: store.waiting("n")[0] == 1)

        def fork(_number, _frame):
            if not os.fork():
                sys.exit(0)

        signal.signal(signal.SIGALRM, fork)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        assert not Lock(store, "n").acquire(timeout=1.5)   # the child's copy of this wait ends by SystemExit
        os.wait()
        pid = os.fork()
        if not pid:
            assert not Lock(store, "n").acquire(timeout=0.3)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert store.waiting("n")[0] == 1
        first.release()
        waiter.join(20)
        assert got
    """
    run_program(program, case.url, case.prefix)

    assert _no_trace(case)


def test_greenlets_wait_in_order_and_let_others_run(case: RedisCase) -> None:
    """The wait is on a socket of gevent's; one that is killed leaves the line."""
    pytest.importorskip("gevent")
    program = """
        order, ticks = [], []

        def work(each):
            with Lock(store, "n", wait=30.0):
                order.append(each)
                time.sleep(0.01)

        def tick():
            while len(order) < 5:
                ticks.append(1)
                gevent.sleep(0.01)

        first = Lock(store, "n")
        first.acquire()
        gevent.spawn(tick)
        waiting = []
        for each in range(6):
            waiting.append(gevent.spawn(work, each))
            until(lambda: store.waiting("n")[0] == each + 1)
        time.sleep(0.3)
        waiting[2].kill()
        until(lambda: store.waiting("n")[0] == 5)
        first.release()
        gevent.joinall(waiting, timeout=20, raise_error=True)
        assert order == [0, 1, 3, 4, 5], order
        assert len(ticks) > 10
    """
    patched = "from gevent import monkey\nmonkey.patch_all()\nimport gevent\n"
    run_program(program, case.url, case.prefix, first=patched)

    assert _no_trace(case)


def test_many_that_come_and_give_up_at_any_moment_leave_nothing(case: RedisCase) -> None:
    """Never two at once, and no hand-off is left with one that has gone."""
    inside: list[int] = []
    most: list[int] = []
    fences: list[int] = []

    def work(number: int) -> None:
        for turn in range(15):
            lock = Lock(case.redis, "n")
            if lock.acquire(timeout=0.001 * ((number * 7 + turn * 5) % 40)):
                inside.append(number)
                most.append(len(inside))
                fences.append(lock.fence or 0)
                inside.remove(number)
                lock.release()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert set(most) == {1}
    assert fences == sorted(set(fences))
    assert _no_trace(case)
