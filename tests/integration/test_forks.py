"""Processes that fork: each with a watchdog and connections of its own, and none with another's holds."""

import textwrap

import pytest

from tests.integration.programs import run_program
from tests.stores import RedisCase
from tests.tiers import slow

#: What the parent's other threads are in the middle of when it forks.
BUSY = {
    "acquiring": """
        with Lock(store, "busy", wait=30.0):
            pass
    """,
    "renewing": """
        with Lock(store, f"busy-{number}", ttl=3.0) as lock:
            lock.renew()
            time.sleep(0.02)
    """,
    "owing": """
        watchdog_of(store).owe(lambda: store.release("busy", "x/1"), within=5.0, what="a lock")
        until(lambda: len(watchdog_of(store)._debts) < 10)
    """,
    "connecting": """
        store.close()
        store.inspect("busy")
    """,
}

CHILD = """
from tests.forks import gets_through


def work(*, until_renewed=True):
    # No thread survives a fork: what is there now is the child's own.
    assert threading.enumerate() == [threading.current_thread()]
    lock = Lock(store, f"child-{os.getpid()}", ttl=6.0)
    with lock:
        before = watchdog_of(store).renewals
        until(lambda: lock.check() or not until_renewed or watchdog_of(store).renewals > before)
        assert len(watchdogs()) == 1
    assert lock.holder() is None
"""

#: With exit hooks, at once, with collected objects, and out of the parent's blocks.
ENDS = [
    "sys.exit(0)",
    "os._exit(0)",
    "del lock, permit; gc.collect(); store.close(); sys.exit(0)",
    "lock.__exit__(None, None, None); permit.__exit__(None, None, None); sys.exit(0)",
]


def test_a_childs_end_leaves_the_parents_lock_alone(plain_case: RedisCase) -> None:
    """However it ends. It neither checks nor releases what its parent holds, a lock or a place."""
    program = f"""
        import gc
        lock = Lock(store, "n", ttl=3.0).__enter__()
        permit = Semaphore(store, "seats", 1).acquire()
        kept = lock, permit
        mine, thread = connection_id(), watchdogs()

        def refused(ask):
            try:
                ask()
            except RuntimeError as error:
                return "of which this one is a fork" in str(error)

        for end in {ENDS}:
            pid = os.fork()
            if not pid:
                del kept
                assert watchdogs() == []
                assert not lock.held and not permit.held
                assert refused(permit.check) and refused(permit.release)
                assert connection_id() != mine
                exec(end)
            assert os.waitpid(pid, 0)[1] == 0, end
            assert connection_id() == mine
            assert watchdogs() == thread and thread[0].is_alive()
            assert Semaphore(store, "seats", 1).acquire(timeout=0) is None
        before = watchdog_of(store).renewals
        until(lambda: watchdog_of(store).renewals > before)
        lock.check()
        permit.check()
        assert lock.release() and permit.release()
    """
    run_program(program, plain_case.url, plain_case.prefix)
    assert plain_case.keys() == []


@pytest.mark.parametrize("number", [5, slow(50)])
@pytest.mark.parametrize("busy", BUSY)
def test_a_fork_in_the_middle_of_anything_gets_through(plain_case: RedisCase, busy: str, number: int) -> None:
    """A lock that another thread of the parent held is held in the child by nobody, for ever."""
    program = f"""
        {textwrap.indent(CHILD, " " * 8).strip()}

        def be_busy(number):
            while not over:
                {textwrap.indent(textwrap.dedent(BUSY[busy]), " " * 16).strip()}

        over = False
        threads = [threading.Thread(target=be_busy, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(int(rest[0])):
                # A renewal takes two seconds: some wait for it, the others are one more moment of a fork.
                assert gets_through(lambda: work(until_renewed=number % 5 == 0), within=20), number
        finally:
            over = True
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert len(watchdogs()) <= 1
        until(lambda: len(watchdog_of(store)._debts) == 0)
    """
    run_program(program, plain_case.url, plain_case.prefix, str(number), timeout=110.0)
    assert plain_case.keys() == []
