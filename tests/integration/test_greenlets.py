"""gevent: a greenlet that computes starves no watchdog, and one that is cut off leaves nothing held.

In programs of their own: patching must come before everything else.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_redislock.embedded import EmbeddedServer
from tests.facts import wait_until
from tests.integration.programs import PATCHED, run_program
from tests.stores import RedisCase

pytest.importorskip("gevent")


def test_a_greenlet_that_never_switches_keeps_every_lock_of_its_process(plain_case: RedisCase) -> None:
    """Law 1: for several times the ttl, seen by another process on the server."""
    program = """
        held, told, ended = [], [], []

        def work(each):
            lock = Lock(store, f"n{each}", ttl=1.5, wait=0.0, on_lost=lambda lock: told.append(lock.name))
            lock.acquire()
            held.append(each)
            until(lambda: len(held) == 100)
            if each == 0:
                with Lock(store, "computing", ttl=60.0):
                    end = time.monotonic() + 4.0
                    while time.monotonic() < end:
                        pass
                    lock.check()
                ended.append(each)
            until(lambda: ended)
            lock.check()
            assert lock.release()

        together(100, work)
        assert told == []
        assert len(watchdogs()) == 1
    """
    keys, rounds = [plain_case.key("computing"), *(plain_case.key(f"n{each}") for each in range(100))], 0
    with ThreadPoolExecutor(1) as other:
        running = other.submit(run_program, program, plain_case.url, plain_case.prefix, first=PATCHED)
        assert wait_until(lambda: running.done() or plain_case.client.exists(keys[0]), 30)
        before = plain_case.client.mget(keys)
        while (now := plain_case.client.mget(keys))[0] is not None:
            assert now == before
            rounds += 1
        running.result()
    assert rounds > 0
    assert None not in before
    assert plain_case.keys() == []


def test_threads_beside_greenlets_share_no_socket(plain_case: RedisCase) -> None:
    """Law 4: a worker's watchdog renews while another thread of it looks at lines, each with its own hub."""
    program = """
        from celery_redislock.wire.thread import original, start_thread

        lock = Lock(store, "n", ttl=0.5)
        lock.acquire()
        looks, errors = [], []
        pause = original("time", "sleep")

        def look():
            while len(looks) < 500 and not errors:
                try:
                    looks.append(store.sweep())
                except BaseException as error:
                    errors.append(error)
                pause(0.001)  # so that another one takes what this one has put back

        for _ in range(2):
            start_thread(look, "looking")
        until(lambda: errors or len(looks) >= 500)
        until(lambda: errors or watchdog_of(store).renewals >= 3)
        assert errors == []
        lock.check()
        assert lock.release()
    """
    run_program(program, plain_case.url, plain_case.prefix, first=PATCHED)
    assert plain_case.keys() == []


def test_a_worker_begins_to_renew_although_no_greenlet_switches(plain_case: RedisCase) -> None:
    """Law 2: its claims too. And the watchdog, started from the line, tells the greenlets and nobody else."""
    program = """
        import gevent
        from celery_redislock.receiving.renewal import UNRENEWED

        hub, told = gevent.get_hub(), []
        lock = Lock(store, "n", ttl=1.5, auto_renew=False, on_lost=lambda _: told.append(gevent.get_hub()))
        lock.acquire()
        lease = lock._held.lease

        class Delivery:
            def begin_renewal(self):
                watchdog_of(store).watch(lease, first=0.0)

        delivery, deadline = Delivery(), time.monotonic() + 20.0
        UNRENEWED.add(delivery)
        while watchdog_of(store).renewals < 2:
            assert time.monotonic() < deadline
        store.force_release("n")
        while lock.held:
            assert time.monotonic() < deadline
        until(lambda: told)
        assert told == [hub]
    """
    run_program(program, plain_case.url, plain_case.prefix, first=PATCHED)


#: The thread finds its own way to the server, whatever the greenlet does meanwhile.
FROM_THE_THREAD = """
        failed, renew = [], store.renew

        def noting_failures(*args, **options):
            try:
                return renew(*args, **options)
            except BaseException as error:
                failed.append(error)
                raise

        store.renew = noting_failures
        with Lock(store, "n", ttl=0.9) as lock:
            deadline = time.monotonic() + 20.0
            while watchdog_of(store).renewals < 2:
                assert time.monotonic() < deadline
                %s
            lock.check()
        assert failed == []
"""


def test_the_thread_looks_names_up_by_itself_and_imports_nothing_first(tcp_server: EmbeddedServer) -> None:
    """While no greenlet switches. Imports take locks of gevent's: a greenlet that imports then fails."""
    program = """
        from celery_redislock.wire.thread import original, start_thread

        ident, imported, ended = original("_thread", "get_ident"), [], []
        greenlets = ident()

        class Finder:
            def find_spec(self, name, path=None, target=None):
                if ident() != greenlets:
                    imported.append(name)

        def look():
            try:
                ended.append(store.sweep())
            except BaseException as error:
                ended.append(error)

        sys.meta_path.insert(0, Finder())
        start_thread(look, "looking")
        until(lambda: ended)
        assert imported == []
        assert not isinstance(ended[0], BaseException), ended
    """
    url = f"redis://localhost:{tcp_server.port}/0"
    run_program(program.rstrip() + FROM_THE_THREAD % "pass", url, "names", first=PATCHED)


def test_the_thread_asks_the_sentinels_over_its_own_connections(
    primary: EmbeddedServer, sentinel: str
) -> None:
    """A socket of gevent's is of use in one thread only."""
    program = """
        from celery import Celery
        from celery_redislock import SingletonTask
        from celery_redislock.declaring.declaration import declaration_of
        app = Celery("sentinel", set_as_current=False, broker="memory://")
        app.conf.update(redislock_url=rest[0], result_backend_transport_options={"master_name": "mine"})
        store = declaration_of(app.task(base=SingletonTask, name="sell", shared=False)(until)).store
    """
    text = program.rstrip() + FROM_THE_THREAD % "time.sleep(0.01)"
    run_program(text, primary.redis_url, "sentinel", sentinel, first=PATCHED)


def test_a_debt_is_paid_while_a_greenlet_computes_and_before_the_process_ends(plain_case: RedisCase) -> None:
    """Law 2: the thread pays it, and the end of the process waits for that."""
    program = """
        from celery_redislock.exceptions import LockUnavailable
        store.acquire("n", "job/1", 3600.0, facts='{"state": "queued"}')
        tries = []

        def release():
            tries.append(1)
            if len(tries) < 3:
                raise LockUnavailable("away", "release", "for a while")
            store.release("n", "job/1")

        watchdog_of(store).owe(release, within=3600.0, what="the claim")
        deadline = time.monotonic() + 20.0
        while len(tries) < 2:
            assert time.monotonic() < deadline
    """
    run_program(program, plain_case.url, plain_case.prefix, first=PATCHED)
    assert plain_case.keys() == []


def test_a_timeout_in_the_middle_of_anything_leaves_nothing_held(plain_case: RedisCase) -> None:
    """``gevent.Timeout`` is thrown at any switch: in a request, in a reply, in a wait."""
    program = """
        import random
        cut = []

        def work(number):
            lock = Lock(store, f"n{number % 5}", wait=30.0)
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
        until(lambda: len(watchdog_of(store)._debts) == 0)
        until(lambda: not store.names())
    """
    run_program(program, plain_case.url, plain_case.prefix, first=PATCHED)
    # The bells of those who had just been rung expire, after two socket timeouts.
    assert wait_until(lambda: plain_case.keys() == [], 10)
