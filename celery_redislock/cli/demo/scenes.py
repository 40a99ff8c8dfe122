"""The scenes: each publishes, waits and looks, and returns the facts it saw."""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery import chord

from celery_redislock.cli.demo import app as demo
from celery_redislock.cli.demo.records import Entry, count_runs, most_at_once

__all__ = ["SCENES", "Facts", "Say", "Scene"]

#: Seconds any one thing may take before its scene is given up.
PATIENCE = 20.0

Say = Callable[[str], None]
Facts = Mapping[str, Any]
Scene = Callable[[Say], Facts]


def crowd(say: Say) -> Facts:
    """Fifty threads call ``delay()`` of the same task at the same moment."""
    together = threading.Barrier(50)

    def call() -> Any:
        together.wait(PATIENCE)
        return demo.thumbnail.delay(7)

    say("50 threads call thumbnail.delay(7) at the same moment")
    with ThreadPoolExecutor(50) as threads:
        results = [future.result(PATIENCE) for future in [threads.submit(call) for _ in range(50)]]
    duplicates = sum(result.is_duplicate for result in results)
    say(f"{50 - duplicates} published, {duplicates} told that they are duplicates")
    demo.notebook().let_go("thumbnail")
    for result in results:
        result.get(timeout=PATIENCE)
    runs = count_runs(demo.notebook().entries("thumbnail"))
    say(f"thumbnail(7) ran {_times(runs)}")
    return {"runs": runs, "duplicates": duplicates, "ids": len({result.id for result in results})}


def account(say: Say) -> Facts:
    """Two tasks share one resource: they run one after the other, and none is dropped."""
    say("3 x charge and 3 x refund for account 42, lock_key='account:{account_id}'")
    charges = [demo.charge.delay(42, amount) for amount in (1, 2, 3)]
    refunds = [demo.refund.delay(42, amount) for amount in (1, 2, 3)]
    results = [result.get(timeout=PATIENCE) for result in charges + refunds]
    entries = demo.notebook().entries("account 42")
    say(f"all six have run, {most_at_once(entries)} at a time")
    return {"runs": count_runs(entries), "at_once": most_at_once(entries), "results": results}


def long(say: Say) -> Facts:
    """A body outlasts its lock's time to live; a duplicate comes every second."""
    calls = int(demo.TIMES_LONGER * demo.SHORT_TTL)
    say(f"long_import takes {calls} s, its lock lives {demo.SHORT_TTL:g} s unless renewed")
    first = demo.long_import.delay("prices")
    _wait_for_start("long_import", first.id)
    duplicates = 0
    for call in range(calls):
        time.sleep(1.0 if call else 0.5)
        again = demo.long_import.delay("prices")
        duplicates += again.is_duplicate
        say(f"another call after {call + 0.5:.1f} s: {'a duplicate' if again.is_duplicate else 'PUBLISHED'}")
    demo.notebook().let_go("long_import")
    first.get(timeout=PATIENCE)
    entries = demo.notebook().entries("long_import")
    return {
        "runs": count_runs(entries),
        "at_once": most_at_once(entries),
        "duplicates": duplicates,
        "calls": calls,
    }


def kill(say: Say) -> Facts:
    """The pool child that holds a lock is killed; the main process frees what it held."""
    first = demo.export.delay(2026)
    child = _wait_for_start("export", first.id).pid
    lock = demo.export.lock_for(2026)
    holder = lock.holder()
    held = holder is not None and holder.owner == first.id and holder.state == "running"
    say(f"export(2026) runs in process {child}, its lock lives {demo.export.lock_ttl:g} s: kill -9 {child}")
    os.kill(child, signal.SIGKILL)
    killed_at = time.monotonic()
    _wait_until(lambda: lock.holder() is None, "the killed run's lock to be free")
    seconds = time.monotonic() - killed_at
    say(f"the lock is free after {seconds:.1f} s (Celery may take 5 s to notice)")
    demo.notebook().let_go("export")
    again = demo.export.delay(2026)
    again.get(timeout=PATIENCE)
    next_run = "a duplicate" if again.is_duplicate else again.state
    say(f"export(2026) again: {next_run}")
    return {"held": "yes" if held else "no", "seconds": seconds, "next_run": next_run}


def failure(say: Say) -> Facts:
    """A task fails; whoever sees that can publish it again at once."""
    say("decline(13) raises ValueError, ten times in a row")
    lock = demo.decline.lock_for(13)
    failed = free = 0
    for _ in range(10):
        result = demo.decline.delay(13)
        error = result.get(timeout=PATIENCE, propagate=False)
        free += lock.holder() is None
        failed += isinstance(error, ValueError) and not result.is_duplicate
    held = sum(entry.held is True for entry in demo.notebook().entries("decline"))
    say(f"seen to fail {_times(failed)}, lock free at that moment {_times(free)}")
    return {"failed": failed, "held": held, "free": free}


def workflow(say: Say) -> Facts:
    """A chord has the same member twice; it finishes with the right sum all the same."""
    say("chord([square(3), square(3), square(4)], total())")
    result = chord([demo.square.s(3), demo.square.s(3), demo.square.s(4)])(demo.total.s())
    value = result.get(timeout=PATIENCE)
    entries = demo.notebook().entries("square 3")
    say(f"9 + 9 + 16 = {value}; square(3) ran {_times(count_runs(entries))}")
    return {"sum": value, "at_once": most_at_once(entries)}


#: By the name of their promise; those of one group run at the same time.
SCENES: tuple[Mapping[str, Scene], ...] = (
    {"crowd": crowd},
    {"account": account, "long": long},
    {"kill": kill, "failure": failure, "chord": workflow},
)


def _wait_for_start(subject: str, task_id: str) -> Entry:
    found: list[Entry] = []

    def is_there() -> bool:
        found.extend(entry for entry in demo.notebook().entries(subject) if entry.task_id == task_id)
        return bool(found)

    _wait_until(is_there, f"{subject} to start")
    return found[0]


def _wait_until(fact: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not fact():
        if time.monotonic() > deadline:
            message = f"waited {PATIENCE:.0f} s for {what}"
            raise TimeoutError(message)
        time.sleep(0.02)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
