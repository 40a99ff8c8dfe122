"""Blocks of locks on a server that are interrupted anywhere, thousands of times."""

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from celery_redislock.locks import Lock, ReadWriteLock, Semaphore
from celery_redislock.locks.watchdog import watchdog_of
from tests.facts import wait_until
from tests.stores import RedisCase
from tests.unit.locks.test_interrupted import Interrupted, interrupt

#: How often a block is interrupted at most, and more instructions than one has in the room of the locks.
TIMES, LENGTH = 4_000, 1200

#: Where locks of the process are taken: at some instructions, at which CPython looks for no signals, an error
#: would leave them so.
WITH_LOCKS = ("watchdog.py", "lease.py")


def use(block: Any) -> None:
    with block:
        pass


@pytest.mark.slow
def test_of_thousands_of_interrupts_the_next_use_ends_what_they_left(
    lone_case: RedisCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 4. What is left of one is released, or expires, and is renewed no more."""
    monkeypatch.delitem(sys.modules, "greenlet", raising=False)  # of other tests
    store = lone_case.redis
    both = ReadWriteLock(store, "c", ttl=1.0, wait=20.0)
    blocks: list[Any] = [
        Lock(store, "a", ttl=1.0, wait=20.0),
        Lock(store, ["a", "b"], ttl=1.0, wait=20.0),
        both.read,
        both.write,
        Semaphore(store, "d", 2, ttl=1.0, wait=20.0),
    ]
    chance = random.Random(37)  # noqa: S311  no secret
    counted = [0, 0]

    def interrupt_at_random() -> None:
        for _ in range(TIMES):
            block = chance.choice(blocks)
            try:
                interrupt(lambda: use(block), chance.randint(1, LENGTH), sparing=WITH_LOCKS)  # noqa: B023  called at once
                counted[0] += 1
            except Interrupted:
                counted[1] += 1
            with suppress(Interrupted):
                use(block)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt_at_random).result()
    assert counted[1] > TIMES / 4
    watched = watchdog_of(store)._watched
    assert wait_until(lambda: not any(lease.held for lease in list(watched.values())), 10.0)
    assert wait_until(lambda: store.names() == [], 20.0)
