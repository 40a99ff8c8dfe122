"""A release that is interrupted: by Ctrl-C, a soft time limit, or ``on_lock_lost="terminate"``."""

import gc
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_redislock.locks import Lock, MemoryStore, ReadWriteLock, Semaphore
from celery_redislock.locks.lease import LockLease


class Interrupted(BaseException):
    """What a signal's handler raises."""


def interrupt(call: Callable[[], object], at: int) -> None:
    """Call something, and raise at one of the instructions that it carries out in the room of the locks."""
    left = at

    def trace(frame: Any, event: str, _argument: object) -> Any:
        nonlocal left
        if "/celery_redislock/locks/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise Interrupted
        return trace

    before = sys.gettrace()
    gc.disable()  # it would call __del__ of other locks in between
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()


def lock(store: MemoryStore) -> tuple[LockLease, Callable[[], bool]]:
    held = Lock(store, "n", auto_renew=False)
    held.acquire()
    return held._required().lease, held.release


def write(store: MemoryStore) -> tuple[LockLease, Callable[[], bool]]:
    held = ReadWriteLock(store, "n", auto_renew=False).write
    held.acquire()
    return held._required().lease, held.release


def read(store: MemoryStore) -> tuple[LockLease, Callable[[], bool]]:
    held = ReadWriteLock(store, "n", auto_renew=False).read
    held.acquire()
    return held._required().lease, held.release


def permit(store: MemoryStore) -> tuple[LockLease, Callable[[], bool]]:
    held = Semaphore(store, "n", 2, auto_renew=False).acquire()
    assert held
    return held.lease, held.release


@pytest.mark.parametrize("kind", [lock, write, read, permit])
def test_an_interrupted_release_leaves_no_hold_that_is_renewed_and_that_nobody_can_release(
    kind: Callable[[MemoryStore], tuple[LockLease, Callable[[], bool]]],
) -> None:
    """Law 4, at each instruction: the lease has ended, and expires; or a second release releases it."""

    def at_each_instruction() -> int:
        for at in range(1, 10_000):
            lease, release = kind(MemoryStore())
            try:
                interrupt(release, at)
            except Interrupted:
                assert lease.ended or release(), at
                assert lease.ended, at
            else:
                return at
        raise AssertionError

    # A thread of its own: one that is interrupted while it leaves an ``except`` keeps that error as the one
    # that is being handled (CPython 3.11), and later tests would find it.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(at_each_instruction).result() > 50
