"""The promises: what each must show, and the scene that publishes, waits and returns what it saw."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from celery import chord as celery_chord

from examples.demo import shop
from examples.demo.notes import Note, count_runs, most_at_once
from examples.stage import wait_until

__all__ = ["GROUPS", "Promise", "Verdict", "promise"]

#: Seconds any one thing may take before its scene is given up.
PATIENCE = 20.0

Say = Callable[[str], None]
Facts = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a promise: what was expected and what was seen, in the same words."""

    title: str
    expected: str
    seen: str
    is_kept: bool


@dataclass(frozen=True, slots=True)
class Promise:
    """What a scene must show.

    Attributes:
        title: of the scene.
        wording: how its facts are written, expected and seen ones alike.
        expected: the facts, by name.
        scene: plays, and returns the facts it saw.
    """

    title: str
    wording: str
    expected: Facts
    scene: Callable[[Say], Facts]

    def play(self, say: Say) -> Verdict:
        """Play the scene; the promise is kept if every fact is as expected."""
        expected = self.wording.format(**self.expected)
        try:
            facts = self.scene(say)
            return Verdict(self.title, expected, self.wording.format(**facts), facts == self.expected)
        except Exception as error:  # noqa: BLE001  whatever breaks a scene, it is a broken promise
            return Verdict(self.title, expected, f"{type(error).__name__}: {error}", is_kept=False)


def promise(title: str, wording: str, **expected: object) -> Callable[[Callable[[Say], Facts]], Promise]:
    """Make a scene a promise."""

    def made(scene: Callable[[Say], Facts]) -> Promise:
        return Promise(title, wording, expected, scene)

    return made


@promise(
    "50 calls of delay() at the same moment",
    "runs: {runs}; duplicates: {duplicates}; different task ids: {ids}",
    runs=1, duplicates=49, ids=1,
)  # fmt: skip
def crowd(say: Say) -> Facts:
    """Fifty threads call ``delay()`` of the same task at the same moment."""
    together = threading.Barrier(50)

    def call() -> Any:
        together.wait(PATIENCE)
        return shop.thumbnail.delay(7)

    say("50 threads call thumbnail.delay(7) at the same moment")
    with ThreadPoolExecutor(50) as threads:
        results = [future.result(PATIENCE) for future in [threads.submit(call) for _ in range(50)]]
    duplicates = sum(result.is_duplicate for result in results)
    say(f"{50 - duplicates} published, {duplicates} are duplicates")
    shop.notes.let_go("thumbnail")
    for result in results:
        result.get(timeout=PATIENCE)
    runs = count_runs(shop.notes.of("thumbnail"))
    say(f"thumbnail(7) ran {_times(runs)}")
    return {"runs": runs, "duplicates": duplicates, "ids": len({result.id for result in results})}


@promise(
    "two tasks, one account, six calls",
    "runs: {runs}; at the same time: {at_once}; results: {results}",
    runs=6, at_once=1, results=[1, 2, 3, -1, -2, -3],
)  # fmt: skip
def account(say: Say) -> Facts:
    """Two tasks share one resource: they run one after the other, and none is dropped."""
    say("3 x charge and 3 x refund for account 42, lock_key='account:{account_id}'")
    calls = [shop.charge.delay(42, amount) for amount in (1, 2, 3)]
    calls += [shop.refund.delay(42, amount) for amount in (1, 2, 3)]
    results = [call.get(timeout=PATIENCE) for call in calls]
    notes = shop.notes.of("account 42")
    say(f"all six have run, {most_at_once(notes)} at a time")
    return {"runs": count_runs(notes), "at_once": most_at_once(notes), "results": results}


@promise(
    "twenty charges on one account, beside a free one",
    "runs: {runs}; at the same time: {at_once}; in order: {in_order}; the free one waited: {waited}",
    runs=20, at_once=1, in_order="yes", waited="no",
)  # fmt: skip
def line(say: Say) -> Facts:
    """Twenty calls stand in line, hold no process of the worker, and run in the order of their calls."""
    say("20 x debit for account 7, and then one for account 8")
    calls = [shop.debit.delay(7) for _ in range(20)]
    free = shop.debit.delay(8)
    waiting = shop.debit.lock_for(7).waiting
    wait_until(lambda: len(waiting()) > 10 or free.ready(), PATIENCE)
    say(f"{len(waiting())} of them wait in line")
    free.get(timeout=PATIENCE)
    ended = sum(note["what"] == "end" for note in shop.notes.of("line 7"))
    say(f"account 8 was debited when {ended} of the 20 had ended")
    for call in calls:
        call.get(timeout=PATIENCE)
    notes = shop.notes.of("line 7")
    order = [note["task_id"] for note in notes if note["what"] == "start"]
    is_in_order = order == [call.id for call in calls]
    say(f"all {count_runs(notes)} have run, {most_at_once(notes)} at a time")
    return {
        "runs": count_runs(notes),
        "at_once": most_at_once(notes),
        "in_order": "yes" if is_in_order else "no",
        "waited": "no" if ended < len(calls) / 2 else "yes",
    }


@promise(
    "a body five times as long as its lock's ttl",
    "runs: {runs}; at the same time: {at_once}; duplicates meanwhile: {duplicates} of {calls}",
    runs=1, at_once=1, duplicates=15, calls=15,
)  # fmt: skip
def long(say: Say) -> Facts:
    """A body outlasts its lock's time to live; it is called again every second."""
    calls = int(shop.TIMES_LONGER * shop.SHORT_TTL)
    say(f"long_import takes {calls} s, its lock lives {shop.SHORT_TTL:g} s unless renewed")
    first = shop.long_import.delay("prices")
    _first_start("long_import")
    duplicates = 0
    for call in range(calls):
        time.sleep(1.0 if call else 0.5)
        again = shop.long_import.delay("prices")
        duplicates += again.is_duplicate
        say(f"another call after {call + 0.5:.1f} s: {'a duplicate' if again.is_duplicate else 'PUBLISHED'}")
    shop.notes.let_go("long_import")
    first.get(timeout=PATIENCE)
    notes = shop.notes.of("long_import")
    return {
        "runs": count_runs(notes),
        "at_once": most_at_once(notes),
        "duplicates": duplicates,
        "calls": calls,
    }


@promise(
    "two beats with the same schedule, one of them killed",
    "beats: {beats}; ticks: {ticks}; runs: {runs}",
    beats=2, ticks=4, runs=4,
)  # fmt: skip
def beats(say: Say) -> Facts:
    """Each tick runs once, while there are two beats and when there is one."""
    say(f"two beats, both with pulse every {shop.PULSE:g} s")
    pids = [note["pid"] for note in shop.notes.of("beats")]
    before = len(_ticks())
    runs = 0
    for tick in range(1, 5):
        runs_of_it = _wait_for_tick(before + tick)
        say(f"a tick: it ran {_times(runs_of_it)}")
        runs += runs_of_it
        if tick == 2:
            say(f"kill -9 {pids[0]}, one of the two beats")
            os.kill(pids[0], signal.SIGKILL)
    return {"beats": len(pids), "ticks": tick, "runs": runs}


@promise(
    "kill -9 of a whole worker with four messages in hand",
    "in hand: {in_hand}; duplicates: {duplicates}; runs: {runs}; next run: {next_run}",
    in_hand=4, duplicates=4, runs=[1, 1, 1, 1], next_run="SUCCESS",
)  # fmt: skip
def in_hand(say: Say) -> Facts:
    """A worker is killed that has received four messages and started none; another one runs each once."""
    shop.load.delay()
    worker = _first_start("load")["worker"]
    calls = [shop.pack.delay(parcel) for parcel in (1, 2, 3, 4)]
    wait_until(lambda: _number_in_hand() == len(calls), PATIENCE)
    number = _number_in_hand()
    say(f"worker {worker} is busy, and has pack(1) to pack(4) in hand: kill -9 of the whole worker")
    os.killpg(worker, signal.SIGKILL)
    killed_at = time.monotonic()
    again = [shop.pack.delay(parcel) for parcel in (1, 2, 3, 4)]
    duplicates = sum(result.is_duplicate for result in again)
    say(f"the same calls again: {duplicates} of {len(again)} are duplicates")
    shop.app.control.add_consumer(shop.PARCELS)
    say("the other worker is told to take its queue, too")
    for call in calls:
        call.get(timeout=PATIENCE)
    after = time.monotonic() - killed_at
    say(f"all four ran after {after:.1f} s (redislock_restore={shop.TERM:g}, its least; the default is 30)")
    last = shop.pack.delay(4)
    last.get(timeout=PATIENCE)
    next_run = "a duplicate" if last.is_duplicate else last.state
    runs = [_runs_of_message(f"pack {parcel}", call.id) for parcel, call in enumerate(calls, start=1)]
    return {"in_hand": number, "duplicates": duplicates, "runs": runs, "next_run": next_run}


@promise(
    "kill -9 of the pool process that holds a lock",
    "held before: {held}; free within 10 s: {free}; next run: {next_run}",
    held="yes", free="yes", next_run="SUCCESS",
)  # fmt: skip
def kill(say: Say) -> Facts:
    """The pool process that holds a lock is killed; the worker's main process releases the lock."""
    first = shop.export.delay(2026)
    child = _first_start("export")["pid"]
    lock = shop.export.lock_for(2026)
    holder = lock.holder()
    is_held = holder is not None and holder.owner == first.id and holder.state == "running"
    say(f"export(2026) runs in process {child}, its lock lives {shop.export.lock_ttl:g} s: kill -9 {child}")
    os.kill(child, signal.SIGKILL)
    killed_at = time.monotonic()
    is_free = wait_until(lambda: lock.holder() is None, 10.0)
    say(f"the lock is free after {time.monotonic() - killed_at:.1f} s (Celery may take 5 s to notice)")
    shop.notes.let_go("export")
    again = shop.export.delay(2026)
    again.get(timeout=PATIENCE)
    next_run = "a duplicate" if again.is_duplicate else again.state
    say(f"export(2026) again: {next_run}")
    return {"held": "yes" if is_held else "no", "free": "yes" if is_free else "no", "next_run": next_run}


@promise(
    "a task that fails, ten times in a row",
    "failed: {failed}; held its lock: {held}; free when get() raised: {free}",
    failed=10, held=10, free=10,
)  # fmt: skip
def failure(say: Say) -> Facts:
    """A task fails; whoever sees that can publish it again at once."""
    say("decline(13) raises ValueError, ten times in a row")
    lock = shop.decline.lock_for(13)
    failed = free = 0
    for _ in range(10):
        result = shop.decline.delay(13)
        error = result.get(timeout=PATIENCE, propagate=False)
        free += lock.holder() is None
        failed += isinstance(error, ValueError) and not result.is_duplicate
    held = sum(note.get("held") is True for note in shop.notes.of("decline"))
    say(f"seen to fail {_times(failed)}, lock free at that moment {_times(free)}")
    return {"failed": failed, "held": held, "free": free}


@promise(
    "a chord with a duplicate member",
    "sum: {sum}; duplicates at the same time: {at_once}",
    sum=34, at_once=1,
)  # fmt: skip
def chord(say: Say) -> Facts:
    """A chord has the same member twice; it finishes with the right sum all the same."""
    say("chord([square(3), square(3), square(4)], total())")
    result = celery_chord(shop.square.s(number) for number in (3, 3, 4))(shop.total.s())
    value = result.get(timeout=PATIENCE)
    notes = shop.notes.of("square 3")
    say(f"9 + 9 + 16 = {value}; square(3) ran {_times(count_runs(notes))}")
    return {"sum": value, "at_once": most_at_once(notes)}


@promise(
    "explain tells why a call does not run",
    "the key's holder: {holder}; where its message is: {message}; what was skipped: {skipped}",
    holder="named", message="running", skipped="named",
)  # fmt: skip
def explained(say: Say) -> Facts:
    """An operator asks about a call that was skipped."""
    first = shop.report.delay("q3")
    _first_start("report")
    shop.report.delay("q3")
    words = ["-A", "examples.demo.shop", "redislock", "explain", shop.report.name, "q3"]
    say(f"report('q3') runs, and was called again: celery {' '.join(words)}")
    urls = {"BROKER_URL": shop.app.conf.broker_url, "RESULT_URL": shop.app.conf.result_backend}
    command = [sys.executable, "-m", "celery", "--quiet", *words]
    shown = subprocess.run(
        command, env={**os.environ, **urls}, capture_output=True, text=True, timeout=PATIENCE, check=False
    ).stdout
    for row in shown.splitlines():
        say(f"    {row[:100]}")
    shop.notes.let_go("report")
    rows = [row for row in shown.splitlines() if row.startswith("held by") and first.id in row]
    return {
        "holder": "named" if rows and "running" in rows[0] else "not named",
        "message": "running" if "the hands of worker" in shown and ": running" in shown else "not told",
        "skipped": "named" if "\nskipped" in shown else "not named",
    }


@promise(
    "50 saves while one re-index runs",
    "runs: {runs}; of save: {saves}; ids of the 50 calls: {ids}; their last result: {result}",
    runs=2, saves=[0, 50], ids=1, result=50,
)  # fmt: skip
def newest(say: Say) -> Facts:
    """Of fifty calls that come while one runs the newest runs once after it, for all of them."""
    first = shop.reindex.delay(9, 0)
    _first_start("reindex 9")
    say("reindex(9) runs, on_conflict='coalesce': the document is saved 50 times meanwhile")
    calls = [shop.reindex.delay(9, save) for save in range(1, 51)]
    waiting = shop.reindex.lock_for(9, 0).waiting()
    say(f"{len(waiting)} call waits, {sum(each.merged or 0 for each in waiting)} were merged into it")
    shop.notes.let_go("reindex")
    for call in [first, *calls]:
        call.get(timeout=PATIENCE)
    notes = shop.notes.of("reindex 9")
    saves = [note["save"] for note in notes if note["what"] == "start"]
    say(f"it ran {_times(count_runs(notes))}, the last time with save {saves[-1]}")
    return {
        "runs": count_runs(notes),
        "saves": saves,
        "ids": len({call.id for call in calls}),
        "result": calls[-1].result,
    }


#: In the order of the table; those of one group play at the same time.
GROUPS = ((crowd,), (account, line, long, beats, in_hand), (kill, failure, chord, explained, newest))


def _first_start(subject: str) -> Note:
    """Wait until the first body of this subject runs, and return what it wrote down."""
    if not wait_until(lambda: shop.notes.of(subject), PATIENCE):
        message = f"{subject} did not start within {PATIENCE:.0f} s"
        raise TimeoutError(message)
    return shop.notes.of(subject)[0]


def _number_in_hand() -> int:
    """Return how many parcels wait in the hands of workers, as these say."""
    answers = shop.app.control.inspect().reserved() or {}
    return sum(request["name"] == shop.pack.name for requests in answers.values() for request in requests)


def _runs_of_message(subject: str, task_id: str) -> int:
    """Return how many bodies of this subject began for a message."""
    return count_runs([note for note in shop.notes.of(subject) if note.get("task_id") == task_id])


def _ticks() -> list[int]:
    """Return the number of runs of each tick: those that follow each other by less than half an interval."""
    ticks: list[int] = []
    last = 0.0
    for note in shop.notes.of("pulse"):
        if note["what"] == "start":
            if note["at"] - last < shop.PULSE / 2:
                ticks[-1] += 1
            else:
                ticks.append(1)
            last = note["at"]
    return ticks


def _wait_for_tick(number: int) -> int:
    """Wait for a tick, and until a second run of it would be there, too; return how often it ran."""
    if not wait_until(lambda: len(_ticks()) >= number, PATIENCE):
        message = f"no tick within {PATIENCE:.0f} s"
        raise TimeoutError(message)
    time.sleep(shop.PULSE / 2)
    return _ticks()[number - 1]


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
