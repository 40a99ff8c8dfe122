"""gevent: the watchdog is a greenlet, and each of five hundred holds for itself.

In programs of their own: patching must come before everything else.
"""

import pytest

from celery_redislock.locks.connection import MOST_IDLE
from tests.programs import run_program
from tests.stores import RedisCase

PATCHED = {
    "gevent": """
        from gevent import monkey
        monkey.patch_all()
        import gevent
        from gevent.pool import Pool
        from gevent import Timeout


        def together(number, work):
            pool = Pool(number)
            done = [pool.spawn(work, each) for each in range(number)]
            gevent.joinall(done, timeout=100, raise_error=True)
            assert all(each.successful() for each in done)


        spawn = gevent.spawn


        def ended(greenlet):
            return greenlet.get(timeout=30)
    """,
}

#: Five hundred that connect at once share one core: a busy machine takes longer than a second for all.
PATIENT = """
        store = connect(url, prefix=prefix, socket_timeout=20.0)
"""


@pytest.fixture(params=PATCHED)
def patched(request: pytest.FixtureRequest) -> str:
    """What a program does first to run in greenlets."""
    pytest.importorskip(request.param)
    return PATCHED[request.param]


@pytest.mark.slow
def test_five_hundred_greenlets_exclude_each_other(plain_case: RedisCase, patched: str) -> None:
    """Law 1; as many connections as talk at once, and few of them stay."""
    program = (
        PATIENT
        + """
        inside, runs = {}, []

        def work(number):
            time.sleep(number * 0.01)  # not all connect in one moment
            name = f"n{number % 125}"
            with Lock(store, name, ttl=120.0, timeout=None):
                assert inside.setdefault(name, number) == number, "two at once"
                time.sleep(0.002)
                del inside[name]
                runs.append(number)

        together(500, work)
        assert sorted(runs) == list(range(500))
        assert len(watchdogs()) == 1
        print(len(store._connections._idle))
    """
    )
    idle = int(run_program(program, plain_case.url, plain_case.prefix, first=patched, timeout=110))

    assert 0 < idle <= MOST_IDLE
    assert plain_case.keys() == []


@pytest.mark.slow
def test_five_hundred_leases_are_renewed_while_their_holders_sleep(
    plain_case: RedisCase, patched: str
) -> None:
    """By one greenlet, on one connection, in few calls."""
    program = (
        PATIENT
        + """
        counted = []
        renew = store.renew

        def counting(terms, **options):
            counted.append(len(terms))
            return renew(terms, **options)

        store.renew = counting
        held = []

        def work(number):
            with Lock(store, f"n{number}", ttl=36.0, timeout=0.0) as lock:
                held.append(number)
                while len(held) < 500 or sum(counted) < 500:
                    time.sleep(0.5)
                lock.check()

        together(500, work)
        assert len(watchdogs()) == 1
        assert len(counted) < 100, counted
    """
    )
    run_program(program, plain_case.url, plain_case.prefix, first=patched, timeout=110)

    assert plain_case.keys() == []


@pytest.mark.slow
@pytest.mark.parametrize(("ttl", "is_kept"), [(9.0, True), (0.6, False)])
def test_a_greenlet_that_starves_the_watchdog_keeps_its_lock_for_less_than_the_ttl(
    plain_case: RedisCase, patched: str, ttl: float, is_kept: bool
) -> None:
    """Nobody can renew meanwhile: for longer, the key expires, and the late renewal learns of it."""
    program = """
        from celery_redislock.exceptions import LockLost
        told = []
        lock = Lock(store, "n", ttl=float(rest[0]), on_lost=lambda _: told.append(1)).__enter__()
        before = watchdog_of(store).renewals
        end = time.monotonic() + 4.0
        while time.monotonic() < end:
            pass
        is_kept = rest[1] == "True"
        if is_kept:
            until(lambda: watchdog_of(store).renewals > before)
            lock.check()
        else:
            until(lambda: told)
            try:
                lock.check()
            except LockLost as error:
                assert "expired" in error.reason
            else:
                raise AssertionError
        assert lock.release() is is_kept
        assert told == [] if is_kept else told == [1]
    """
    run_program(program, plain_case.url, plain_case.prefix, str(ttl), str(is_kept), first=patched)

    assert plain_case.keys() == []


def test_a_timeout_in_the_middle_of_anything_leaves_nothing_held(plain_case: RedisCase, patched: str) -> None:
    """``gevent.Timeout`` is thrown at any switch: in a request, in a reply, in a wait."""
    program = """
        import random
        cut = []

        def work(number):
            lock = Lock(store, f"n{number % 5}", timeout=30.0)
            for _ in range(10):
                try:
                    with Timeout(random.uniform(0.0005, 0.05)):
                        with lock:
                            time.sleep(random.uniform(0, 0.01))
                except Timeout:
                    cut.append(number)
                if lock.held:
                    lock.release()

        together(40, work)
        assert len(cut) > 20
        until(lambda: watchdog_of(store).owes == 0)
        until(lambda: not store.names())
    """
    run_program(program, plain_case.url, plain_case.prefix, first=patched)

    assert plain_case.keys() == []
