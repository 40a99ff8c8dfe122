"""A process that ends while it owes holds: what it could not give back it gives back before it is gone."""

import time

import pytest

from celery_redislock.embedded import EmbeddedServer
from celery_redislock.locks.watchdog import LAST_CALL
from tests.faults import Fault, FaultyProxy
from tests.programs import run_program
from tests.stores import RedisCase

UNHEARD = (Fault.REPLY_LOST, Fault.RESET_IN_REPLY, Fault.SILENCE)

#: Asks for a hold as a publisher does, is told that the server is away, and ends.
CLAIM = """
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.guard import Guard

try:
    with Guard(store).owing("n", "job/1", ttl=3600.0):
        store.acquire("n", "job/1", 3600.0, about={"state": "queued"})
except LockUnavailable:
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
def test_a_claim_that_was_granted_unheard_is_given_back_before_its_process_is_gone(
    proxy: FaultyProxy, case: RedisCase, fault: Fault
) -> None:
    """Law 9: nothing half-done: nobody else would know of that claim, and its key was kept for an hour."""
    proxy.fail(fault, of="claim", at=(1, 2))
    proxy.fail(Fault.REQUEST_LOST, of="release", at=(1, 2))  # one more second

    told = run_program(PATIENT + CLAIM, f"{proxy.url}?socket_timeout=0.5", case.prefix)

    assert told == "told\n"
    assert proxy.fired == 4
    assert case.holder() is None


def test_a_server_that_stays_away_holds_no_process_up_for_long(proxy: FaultyProxy, case: RedisCase) -> None:
    """Law 9: bounded in time."""
    proxy.black_hole()
    began = time.monotonic()

    told = run_program(CLAIM, f"{proxy.url}?socket_timeout=0.5", case.prefix)

    assert told == "told\n"
    assert time.monotonic() - began < LAST_CALL + 10.0
