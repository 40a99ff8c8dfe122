"""Fifty threads on one store and one app, and signals that come at any moment."""

import pytest

from celery_redislock.locks.connection import MOST_IDLE
from tests.programs import run_program
from tests.stores import RedisCase
from tests.tiers import slow

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

#: An app whose messages stay in this process: a run is what Celery's tracer does with one.
APP = """
from celery import Celery
from celery.app.trace import build_tracer
from celery_redislock import SingletonTask, lock_acquired, lock_released
from celery_redislock.declaring.server import use_store

app = Celery("shop", set_as_current=False, broker="memory://", backend="cache+memory://")
use_store(app, store)


def run(task, *args, id):
    request = {"id": id, "delivery_info": {}, "args": args}
    return build_tracer(task.name, task, app=app)(id, args, {}, request)
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


def test_fifty_threads_share_an_app(plain_case: RedisCase) -> None:
    """Claims and runs of ten keys at once; receivers of signals may take locks themselves."""
    program = """
        inside, told = {}, []

        @app.task(base=SingletonTask, name="sync", shared=False, lock="while_executing",
                  on_conflict="raise", lock_key="n{number}")
        def sync(number):
            assert number not in inside, "two at once"
            inside[number] = threading.get_ident()
            time.sleep(0.002)
            del inside[number]

        @app.task(base=SingletonTask, name="claimed", shared=False, lock_key="claim-{number}")
        def claimed(number):
            pass

        def receive(key, **_):
            with Lock(store, f"told-{key}-{threading.get_ident()}"):
                told.append(key)

        lock_acquired.connect(receive, weak=False)
        lock_released.connect(receive, weak=False)

        def work(number):
            for turn in range(5):
                run(sync, number % 10, id=f"id-{number}-{turn}")
                claim = claimed.delay(number)
                assert claimed.delay(number).is_duplicate
                assert claimed.lock_for(number).release(reason="over", only="queued").owner == claim.id

        app.finalize()  # Celery binds a task in more than one step: not while others use it
        fifty(work)
        assert len(told) >= 20, len(told)
    """
    _run(plain_case, program, parts=FIFTY + APP)

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


@pytest.mark.parametrize("number", [pytest.param(200, id="200"), slow(2000, id="2000")])
@pytest.mark.parametrize("handler", ["raises", "takes a lock"])
def test_a_signal_at_any_moment_leaves_nothing_held_and_nothing_hanging(
    plain_case: RedisCase, handler: str, number: int
) -> None:
    """A soft time limit raises out of whatever the main thread is doing; others take locks in there."""
    program = """
        import random, signal

        class Interrupted(Exception):
            pass

        came = []

        def handle(*_):
            came.append(1)
            if rest[1] == "raises":
                raise Interrupted
            with Lock(store, "handlers", timeout=0.0):
                pass

        def another():
            while not over:
                with Lock(store, "another", ttl=3.0):
                    time.sleep(0.01)

        over = False
        thread = threading.Thread(target=another)
        thread.start()
        signal.signal(signal.SIGALRM, handle)
        end = time.monotonic() + 100
        while len(came) < int(rest[0]):
            assert time.monotonic() < end, f"only {len(came)} signals"
            lock = Lock(store, f"n{len(came) % 7}", timeout=5.0)
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.003))
                with lock:
                    lock.renew()
                    with lock:
                        pass
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                pass
            while lock.held:
                lock.release()
        over = True
        thread.join(30)
        assert not thread.is_alive()
        until(lambda: watchdog_of(store).owes == 0)
        until(lambda: not store.names())
        assert not any(watch.lease.held for watch in watchdog_of(store)._schedule._watched.values())
        assert len(watchdogs()) == 1
    """
    _run(plain_case, program, str(number), handler)

    assert plain_case.keys() == []
