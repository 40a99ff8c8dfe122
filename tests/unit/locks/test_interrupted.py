"""A release, or the end of a block, that is interrupted: by Ctrl-C, or ``on_lock_lost="terminate"``."""

import gc
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from opcode import opmap
from operator import attrgetter
from typing import Any

import pytest

from celery_redislock.locks import Lock, MemoryStore, ReadWriteLock, Semaphore
from celery_redislock.locks.lease import LockLease
from celery_redislock.locks.watchdog import watchdog_of

#: Enters a ``try`` in CPython 3.10, which looks for no signal before it (ceval.c). Later ones need none.
ENTERS_TRY = opmap.get("SETUP_FINALLY")


class Interrupted(BaseException):
    """What a signal's handler raises."""


def interrupt(call: Callable[[], object], at: int, *, sparing: tuple[str, ...] = ()) -> None:
    """Call something, and raise at one of the instructions that it carries out in the room of the locks.

    ``sparing``: files in which it does not.
    """
    left = at

    def trace(frame: Any, event: str, _argument: object) -> Any:
        nonlocal left
        file = frame.f_code.co_filename
        if "/celery_redislock/locks/" not in file or (sparing and file.endswith(sparing)):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] != ENTERS_TRY:
            left -= 1
            if left == 0:
                raise Interrupted
        return trace

    before = sys.gettrace()
    gc.disable()  # it would call what other objects have for their end
    # CPython 3.12 traces opcodes only if some frame has asked for them before this.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()


#: Calls something, and returns the error where it was interrupted.
Interrupting = Callable[[Callable[[], object]], BaseException | None]


def at_each_instruction(story: Callable[[Interrupting], None], *, first: int = 1, least: int = 50) -> None:
    """Play a story again and again, what it interrupts at the next instruction each time, until none is left.

    In a thread of its own: one that is interrupted while it leaves an ``except`` keeps that error as the one
    that is being handled (CPython 3.11), and later tests would find it.
    """

    def play() -> int:
        for at in range(first, 10_000):
            errors: list[BaseException] = []

            def interrupted(call: Callable[[], object]) -> BaseException | None:
                try:
                    interrupt(call, at)  # noqa: B023  called at once
                except Interrupted as error:
                    errors.append(error)  # noqa: B023
                    return error
                return None

            story(interrupted)
            if not errors:
                return at
        raise AssertionError

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(play).result() > least


KINDS = ("lock", "write", "read", "permit")


def taken(store: MemoryStore, kind: str) -> tuple[LockLease, Callable[[], bool]]:
    """The lease of a hold, and what releases it."""
    if kind == "permit":
        permit = Semaphore(store, "n", 2, auto_renew=False).acquire()
        assert permit
        return permit.lease, permit.release
    held = Lock(store, "n", auto_renew=False)
    if kind != "lock":
        held = getattr(ReadWriteLock(store, "n", auto_renew=False), kind)
    held.acquire()
    return held._required().lease, held.release


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_release_leaves_no_hold_that_is_renewed_and_that_nobody_can_release(kind: str) -> None:
    """Law 4, at each instruction: the lease has ended, and expires; or a second release releases it."""

    def story(interrupted: Interrupting) -> None:
        lease, release = taken(MemoryStore(), kind)
        if interrupted(release):
            assert lease.ended or release()
            assert lease.ended

    at_each_instruction(story)


@pytest.mark.parametrize("sides", [("write", "read"), ("read", "write")])
@pytest.mark.parametrize("change", ["read.release", "write.release", "write.downgrade"])
def test_after_an_interrupted_change_of_sides_one_release_of_each_side_that_is_held_ends_the_hold(
    change: str, sides: tuple[str, str]
) -> None:
    """Law 4, at each instruction; in either order."""

    def story(interrupted: Interrupting) -> None:
        store = MemoryStore()
        book = ReadWriteLock(store, "n")
        book.write.acquire()
        if change != "write.downgrade":
            book.read.acquire()
        interrupted(attrgetter(change)(book))
        for name in sides:
            side = getattr(book, name)
            if side.held:
                side.release()
        assert not is_renewed(store)
        assert (book.write.held, book.read.held) == (False, False)
        book.read.acquire(0)
        book.read.release()

    at_each_instruction(story, least=20)


Blocks = Callable[[MemoryStore], list[Any]]

#: What is entered, block in block.
BLOCKS: dict[str, Blocks] = {
    "a lock": lambda store: [Lock(store, "n")],
    "a lock twice": lambda store: [Lock(store, "n")] * 2,
    "several names": lambda store: [Lock(store, ["n", "m"])],
    "a place": lambda store: [Semaphore(store, "n", 2)],
    "two places": lambda store: [Semaphore(store, "n", 2)] * 2,
    "a read": lambda store: [ReadWriteLock(store, "n").read],
    "a write": lambda store: [ReadWriteLock(store, "n").write],
    "a read in a write": lambda store: [*map(getattr, [ReadWriteLock(store, "n")] * 2, ("write", "read"))],
}


def is_renewed(store: MemoryStore) -> bool:
    watched = list(watchdog_of(store)._watched.values())
    return any(lease.held and not lease.orphaned for lease in watched)


def leave(block: Any, error: BaseException | None = None) -> None:
    block.__exit__(type(error), error, None)


@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=BLOCKS)
def test_the_end_of_a_block_that_is_interrupted_leaves_nothing_that_is_renewed(blocks: Blocks) -> None:
    """Law 4, at each instruction of ``__exit__`` but the first: the blocks around it end as they do."""

    def story(interrupted: Interrupting) -> None:
        store = MemoryStore()
        *outer, inner = blocks(store)
        kept = [block.__enter__() for block in (*outer, inner)]
        error = interrupted(partial(leave, inner))
        assert is_renewed(store) == bool(outer)
        for block in outer:
            leave(block, error)
        assert not is_renewed(store)
        del kept  # not before: nobody else would refer to a permit

    at_each_instruction(story, first=2)


def interrupted_at_its_end(block: Any) -> None:
    """Enter a block; an error comes at the first instruction of ``__exit__``: nothing catches it."""

    def trace(frame: Any, _event: str, _argument: object) -> None:
        if frame.f_code.co_name == "__exit__":
            raise Interrupted

    before = sys.gettrace()
    with block:
        sys.settrace(trace)
    sys.settrace(before)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="it enters blocks by other instructions")
@pytest.mark.parametrize("blocks", BLOCKS.values(), ids=BLOCKS)
def test_the_next_use_ends_what_was_interrupted_at_once(blocks: Blocks, monkeypatch: Any) -> None:
    """Law 4: the thread that holds enters the object once more, in the same block or in another one."""
    monkeypatch.delitem(sys.modules, "greenlet", raising=False)  # of other tests

    def use_twice() -> None:
        for _ in range(2):
            store = MemoryStore()
            used = blocks(store)[-1]
            before = sys.gettrace()
            for _ in range(3):
                with suppress(Interrupted):
                    interrupted_at_its_end(used)
                sys.settrace(before)
                assert is_renewed(store)
            with used:
                assert is_renewed(store)
            gc.collect()
            assert not is_renewed(store)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(use_twice).result()


def test_a_block_around_is_not_taken_for_one_that_was_interrupted() -> None:
    """Law 1: whatever has entered it, a hold that goes on is entered once more, and left at its own end."""
    store = MemoryStore()
    lock = Lock(store, "n")

    @contextmanager
    def in_a_generator() -> Iterator[None]:
        with lock:
            yield

    def use() -> None:
        with lock:
            lock.check()

    with ExitStack() as stack:
        stack.enter_context(lock)
        token = lock.token
        use()
        with in_a_generator():
            use()
            assert lock.token == token
        with lock:
            use()
            lock.acquire()
        use()
        lock.release()
        assert lock.token == token
    assert not lock.held
    with in_a_generator():
        token = lock.token
        use()
        assert lock.token == token
    assert not is_renewed(store)


def test_two_blocks_of_one_semaphore_release_their_own_places() -> None:
    """Also where the first one ends first, as of two generators."""
    store = MemoryStore()
    seats = Semaphore(store, "n", 2)

    def seat() -> Iterator[Any]:
        with seats as permit:
            yield permit

    one, other = seat(), seat()
    first, second = next(one), next(other)
    del one
    assert (first.held, second.held) == (False, True)
    second.check()
    del other
    assert store.holders("n") == ()
