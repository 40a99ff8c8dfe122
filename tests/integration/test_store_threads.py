"""Threads of one store: twenty that use it, the watchdog's, and a main thread that signals interrupt."""

import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

from celery_redislock.store.store import Grant
from tests.integration.programs import run_program
from tests.stores import ABOUT, RedisCase


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
                for _ in range(1000):  # not for ever: where a __del__ runs, the error is swallowed
                    store.mark_done("n", token, 5.0)
                    store.acquire("n", token, 5.0, facts="{}")
                    store.release("n", token)
            except Interrupted:
                came += 1
            store.release("n", token)
            assert store.acquire("n", "next/1", 5.0, facts='{"host": "here"}').fence
            assert store.inspect("n").facts == {"host": "here"}
            assert store.release("n", "next/1").released
    """
    run_program(textwrap.dedent(program), plain_case.url, plain_case.prefix, timeout=110)

    keys = plain_case.keys()
    assert [key for key in keys if ":mark:" not in key] == []


def test_twenty_threads_share_one_store(plain_case: RedisCase) -> None:
    """Law 1, within one process: never two grants for one name at once, and every answer is one's own."""
    inside = 0
    most = 0
    guard = threading.Lock()

    def work(worker: int) -> int:
        nonlocal inside, most
        grants = 0
        for turn in range(40):
            token = f"worker-{worker}/{turn}"
            if isinstance(plain_case.redis.acquire("n", token, 30.0, facts=ABOUT), Grant):
                grants += 1
                with guard:
                    inside += 1
                    most = max(most, inside)
                with guard:
                    inside -= 1
                assert plain_case.redis.release("n", token).released
            mine = f"own-{worker}"
            assert isinstance(plain_case.redis.acquire(mine, token, 30.0, facts=ABOUT), Grant)
            assert plain_case.redis.release(mine, token).released
        return grants

    with ThreadPoolExecutor(20) as pool:
        grants = list(pool.map(work, range(20)))

    assert sum(grants) > 0
    assert most == 1
    assert plain_case.keys() == []
