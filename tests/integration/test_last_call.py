"""A process that ends while it has debts: it pays them before it is gone, if the server answers soon."""

import subprocess
import sys
import textwrap
import time

import pytest

from celery_redislock.embedded import EmbeddedServer
from celery_redislock.locks.watchdog import LAST_CALL
from tests.faults import Fault, FaultyProxy
from tests.integration.programs import PROLOGUE, run_program
from tests.stores import RedisCase

UNHEARD = (Fault.REPLY_LOST, Fault.RESET_IN_REPLY, Fault.SILENCE)

#: Asks for a hold as a publisher does, is told that the server is away, and ends.
CLAIM = """
from celery_redislock.exceptions import LockUnavailable

try:
    store.acquire("n", "job/1", 3600.0, facts='{"state": "queued"}')
except LockUnavailable:
    watchdog_of(store).owe(lambda: store.release("n", "job/1"), within=3600.0, what="the claim")
    print("told")
"""

#: A busy machine may take longer.
PATIENT = """
from celery_redislock.locks import watchdog
watchdog.LAST_CALL = 30.0
"""


@pytest.fixture
def case(proxy: FaultyProxy, tcp_server: EmbeddedServer) -> RedisCase:
    """A store on the server itself, beside the program's behind the proxy."""
    return RedisCase(tcp_server.redis_url)


@pytest.mark.parametrize("fault", UNHEARD, ids=lambda fault: fault.name)
def test_a_claim_whose_grant_got_lost_is_released_before_its_process_is_gone(
    proxy: FaultyProxy, case: RedisCase, fault: Fault
) -> None:
    """Law 9: nothing half-done: nobody else would know of that claim, and its key was kept for an hour."""
    proxy.fail(fault, of="claim", at=(1, 2))
    proxy.fail(Fault.REQUEST_LOST, of="release", at=(1, 2))  # one more second
    told = run_program(PATIENT + CLAIM, f"{proxy.url}?socket_timeout=0.5", case.prefix)
    assert told == "told\n"
    assert proxy.fired == 4
    assert case.holder() is None


#: A process that owes a hold, whose server is away.
BODY = """
from celery_redislock.exceptions import LockUnavailable

store.acquire("n", "job/1", 3600.0, facts='{"state": "queued"}')


def body():
    away_until = time.monotonic() + 0.5

    def release():
        if time.monotonic() < away_until:
            raise LockUnavailable("away", "release", "for half a second")
        store.release("n", "job/1")

    watchdog_of(store).owe(release, within=3600.0, what="the claim")
    return os.getpid()
"""

#: Processes that end without exit functions.
ENDS = {
    "a pool child after its task": """
        from billiard.pool import Pool
        from celery.concurrency.prefork import process_destructor

        import celery_redislock.task

        with Pool(1, maxtasksperchild=1, on_process_exit=process_destructor) as pool:
            first, second = pool.apply(body), pool.apply(os.getpid)
            assert len({os.getpid(), first, second}) == 3
    """,
    "a process of multiprocessing": """
        child = multiprocessing.get_context("fork").Process(target=body)
        child.start()
        child.join(30)
    """,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_pays_its_debts_before_it_is_gone(case: RedisCase, end: str) -> None:
    """Law 2: a claim without a message would refuse all for an hour."""
    ends = textwrap.dedent(ENDS[end])
    program = f"import multiprocessing\n{PATIENT}{BODY}{ends}\nprint(store.inspect('n'))"
    told = run_program(program, case.url, case.prefix)
    assert told == "None\n"


#: Imports nothing of this package itself.
FORKS = """
import multiprocessing, sys

child = multiprocessing.get_context("fork").Process(target=exec, args=(sys.argv[3], {}))
child.start()
child.join(30)
assert child.exitcode == 0
"""


def test_so_does_one_that_is_the_first_to_import_this(case: RedisCase) -> None:
    """No parent of its own has said what is to be done at its end."""
    body = f"{PROLOGUE}{PATIENT}{BODY}\nbody()"
    subprocess.run([sys.executable, "-c", FORKS, case.url, case.prefix, body], check=True, timeout=60)
    assert case.holder() is None


def test_a_server_that_stays_away_holds_no_process_up_for_long(proxy: FaultyProxy, case: RedisCase) -> None:
    """Law 9: bounded in time."""
    proxy.black_hole()
    began = time.monotonic()
    told = run_program(CLAIM, f"{proxy.url}?socket_timeout=0.5", case.prefix)
    assert told == "told\n"
    assert time.monotonic() - began < LAST_CALL + 10.0
