"""Fifty threads on one store, and signals that come at any moment."""

from celery_redislock.locks.connection import MOST_IDLE
from tests.programs import run_program
from tests.stores import RedisCase

#: Fifty threads do some work, and all come to their end; on a busy machine none is to lose patience.
FIFTY = """
store = connect(url, prefix=prefix, socket_timeout=20.0)


def fifty(work):
    failures = []

    def guarded(number):
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "it hangs"
    if failures:
        raise failures[0]
    assert len(watchdogs()) == 1
"""


def _run(case: RedisCase, program: str, *argv: str, parts: str = "") -> str:
    lines = [line[8:] for line in program.splitlines()]
    return run_program(parts + "\n".join(lines), case.url, case.prefix, *argv, timeout=110)


def test_fifty_threads_share_a_store(plain_case: RedisCase) -> None:
    """Law 10: one thread renews everything; as many connections as talk at once, and few of them stay."""
    program = """
        together = threading.Barrier(50)
        made, others, make = [], [], store._connections._make

        def counted(**options):
            # Those that came back over the cap are closed, and made again when they are wanted.
            others.append(sum(each._sock is not None for each in made))
            made.append(make(**options))
            return made[-1]

        store._connections._make = counted

        def work(number):
            with Lock(store, f"own-{number}", ttl=3.0):
                together.wait(30)
                for turn in range(10):
                    with Lock(store, f"shared-{(number + turn) % 10}", timeout=60.0):
                        pass

        fifty(work)
        assert max(others) <= 50, max(others)
        print(len(store._connections._idle))
    """
    idle = int(_run(plain_case, program, parts=FIFTY))

    assert 0 < idle <= MOST_IDLE
    assert plain_case.keys() == []


def test_a_callback_about_a_loss_may_take_locks(plain_case: RedisCase) -> None:
    """It runs in the watchdog's thread, which renews nothing meanwhile."""
    program = """
        taken = []

        def lost(lock):
            with Lock(store, f"after-{lock.name}", ttl=5.0):
                taken.append(lock.name)

        def work(number):
            lock = Lock(store, f"n{number}", ttl=0.9, on_lost=lost).__enter__()
            store.force_release(lock.name)
            until(lambda: lock.name in taken)
            assert not lock.release()

        fifty(work)
        assert sorted(taken) == sorted(f"n{number}" for number in range(50))
    """
    _run(plain_case, program, parts=FIFTY)

    assert plain_case.keys() == []


def test_a_signal_in_the_middle_of_a_request_leaves_no_connection_out_of_step(plain_case: RedisCase) -> None:
    """A soft time limit raises at any moment; a late answer must not be taken for the next one's."""
    program = """
        import random, signal

        class Interrupted(Exception):
            pass

        def handle(*_):
            raise Interrupted

        signal.signal(signal.SIGALRM, handle)
        came, end = 0, time.monotonic() + 100
        while came < 200:
            assert time.monotonic() < end, f"only {came} signals"
            token = f"job/{came}"
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.001))
                while True:
                    store.mark_done("n", token, 5.0)
                    store.acquire("n", token, 5.0, about={})
                    store.release("n", token)
            except Interrupted:
                came += 1
            store.release("n", token)
            assert store.acquire("n", "next/1", 5.0, about={"id": token}).fence
            assert store.inspect("n").about == {"id": token}
            assert store.release("n", "next/1").released
    """
    _run(plain_case, program)

    keys = plain_case.keys()
    assert [key for key in keys if ":mark:" not in key] == []
