"""What waiting in line costs: how soon the next one runs, in what order, and what the server does for it.

::

    python benchmarks/waiting.py [--quick] [--only NAME] [--json PATH]

Workers run tasks that wait for each other's key, in turn with plain tasks; scripts are timed by the server.
Starts its own servers and its own workers, which load this file as their app.
"""

import argparse
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from celery import Celery

from benchmarks.lines import URL, client_here, looks, scripts, still
from benchmarks.merging import merged
from benchmarks.pairs import Figure, ratios, report, rounds, say
from benchmarks.peers import ROOT, surroundings
from celery_redislock import SingletonTask
from celery_redislock.embedded import EmbeddedServer
from celery_redislock.locks import connect
from celery_redislock.store.redisstore import SCRIPTS
from celery_redislock.wire.scripts import script

#: Environment variable of a worker, besides where its server is: the file in which bodies note their times.
NOTES = "CELERY_REDISLOCK_BENCH_NOTES"
#: A list that no worker reads; the list for which a body waits that holds a key.
PARKED, GATE = "parked", "gate"
#: The workers, by the name of their queues: how many processes each has.
WORKERS = {"one": 1, "two": 2, "four": 4, "eight": 8}
#: A note: when the body began and ended, and the number of its call.
NOTE = struct.Struct("ddq")
_numbers = count(1)

app = Celery("waiting", broker=os.environ.get(URL), backend=os.environ.get(URL), set_as_current=False)


class _Note(NamedTuple):
    began: float
    ended: float
    number: int


@cache
def _file() -> int:
    return os.open(os.environ[NOTES], os.O_RDWR | os.O_APPEND | os.O_CREAT)


def work(key: str, number: int, seconds: float = 0.0, gate: bool = False) -> None:
    began = time.perf_counter()
    if gate:
        client_here().blpop(GATE, timeout=300)
    elif seconds:
        time.sleep(seconds)
    os.write(_file(), NOTE.pack(began, time.perf_counter(), number))


def succeed(number: int, last: int, queue: str) -> None:
    began = time.perf_counter()
    if number < last:
        successor.apply_async((number + 1, last, queue), queue=queue)
    os.write(_file(), NOTE.pack(began, time.perf_counter(), number))


plain = app.task(name="plain")(work)
successor = app.task(name="successor")(succeed)
ours = app.task(
    name="ours", base=SingletonTask, lock="while_executing", lock_key="{key}", on_conflict="wait"
)(work)


def main() -> None:
    sections: Mapping[str, Callable[..., list[Figure]]] = {
        "one-key": one_key, "hot-keys": hot_keys, "order": order, "no-ops": no_ops, "keys": keys,
        "beside": beside, "merged": partial(merged, app), "idle": idle, "scripts": scripts, "looks": looks,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few short rounds: shows only that it runs")
    parser.add_argument("--only", metavar="NAME", choices=sections, help=f"one of {', '.join(sections)}")
    parser.add_argument("--json", metavar="PATH", help="write the figures as JSON too; - for stdout")
    arguments = parser.parse_args()
    figures = []
    # One server for all: this process keeps its connections to it.
    with EmbeddedServer(port=0) as server, tempfile.TemporaryDirectory() as place:
        os.environ.update({URL: server.url, NOTES: str(Path(place, "notes"))})
        app.conf.update(broker_url=server.url, result_backend=server.url)
        for name, section in sections.items():
            if arguments.only in {None, name}:
                say(name)
                client_here().flushall()
                figures += section(quick=arguments.quick)
    report("waiting in line", figures, json_path=arguments.json)


def one_key(*, quick: bool) -> list[Figure]:
    times, number = (1, 10) if quick else (15, 40)

    def measured(task: Any, queue: str) -> Callable[[], Mapping[str, float]]:
        def measure() -> Mapping[str, float]:
            key = f"one-{next(_numbers)}"
            _began, notes = _drained(task, queue, [(key, n, 0.02) for n in range(number)])
            between = [after.began - before.ended for before, after in pairwise(notes)]
            return {"gap": statistics.median(between), "seconds": notes[-1].ended - notes[0].began}

        return measure

    with _workers("one", "two"):
        found = rounds(times, {"plain": measured(plain, "one"), "ours": measured(ours, "two")})
    gaps = ratios(found, "gap", "ours", "plain")
    shares = ratios(found, "seconds", "plain", "ours")
    each = {kind: [value * 1e6 for value in found[kind]["gap"]] for kind in found}
    return [
        Figure("end of a body to the next one: ours / plain, one process", gaps, 2.5),
        *(Figure(f"  {kind}", values, unit="us") for kind, values in each.items()),
        Figure("20 ms on one key: plain, one process / ours", shares, 0.85, True),
    ]  # fmt: skip


def hot_keys(*, quick: bool) -> list[Figure]:
    """Calls that come one by one, so that their keys are busy at one time and free at the next."""
    times, number = (1, 50) if quick else (3, 2000)
    chance = random.Random(1)  # noqa: S311  not for secrets
    late, longest = [], []
    with _workers("four"):
        for _ in range(times):
            os.truncate(_file(), 0)
            sent = []
            for n in range(number):
                sent.append(time.perf_counter())
                ours.apply_async((f"hot-{chance.randrange(3)}", n, chance.uniform(0, 0.004)), queue="four")
                time.sleep(chance.uniform(0, 0.02))
            took = [note.began - sent[note.number] for note in _noted(number)]
            late.append(sum(each > 1 for each in took))
            longest.append(max(took))
    return [
        Figure(f"{number} calls of three keys, one by one: started more than 1 s late", late, 0, unit=""),
        Figure("  the longest from call to start", longest, 0.3, unit="s"),
    ]


def order(*, quick: bool) -> list[Figure]:
    times, number, seconds = (1, 10, 0.05) if quick else (7, 20, 0.2)
    swapped, shares, overlaps = [], [], []
    with _workers("eight"):
        for _ in range(times):
            key = f"order-{next(_numbers)}"
            _began, notes = _drained(ours, "eight", [(key, n, seconds) for n in range(number)])
            swapped.append(sum(after.number < before.number for before, after in pairwise(notes)))
            overlaps.append(sum(after.began < before.ended for before, after in pairwise(notes)))
            shares.append((notes[-1].ended - notes[0].began) / (number * seconds))
    name = f"{number} bodies of {seconds:g} s, eight processes"
    return [
        Figure(f"{name}: out of order", swapped, 0, unit=""),
        Figure("  overlaps", overlaps, 0, unit=""),
        Figure("  time / sum of the bodies", shares, 1.05),
    ]


def no_ops(*, quick: bool) -> list[Figure]:
    times, number = (1, 50) if quick else (3, 2000)

    def parked() -> Mapping[str, float]:
        key = f"parked-{next(_numbers)}"
        with _line(key, number):
            client_here().rpush(GATE, "")
            notes = _noted(number + 1)
        return {"seconds": notes[-1].ended - notes[0].ended}

    def as_they_come() -> Mapping[str, float]:
        key = f"come-{next(_numbers)}"
        began, notes = _drained(ours, "two", [(key, n) for n in range(number)])
        return {"seconds": notes[-1].ended - began}

    def in_succession() -> Mapping[str, float]:
        os.truncate(_file(), 0)
        successor.apply_async((0, number, "two"), queue="two")
        notes = _noted(number + 1)
        return {"seconds": notes[-1].ended - notes[0].ended}

    with _workers("two"):
        found = rounds(times, {"parked": parked, "come": as_they_come, "successor": in_succession})
    against = {name: ratios(found, "seconds", "successor", name) for name in ("parked", "come")}
    return [
        Figure(f"{number} no-ops parked: ours / a plain task's successors", against["parked"], 1.1, True),
        Figure("  the same, parking included", against["come"], 0.5, True),
        *(Figure(f"  {name}", [number / n for n in found[name]["seconds"]], unit="/s") for name in found),
    ]


def keys(*, quick: bool) -> list[Figure]:
    times, number = (1, 100) if quick else (7, 2000)

    def measured(task: Any) -> Callable[[], Mapping[str, float]]:
        def measure() -> Mapping[str, float]:
            began, notes = _drained(task, "two", [(f"key-{n % 200}", n) for n in range(number)])
            return {"seconds": max(note.ended for note in notes) - began}

        return measure

    with _workers("two"):
        found = rounds(times, {"plain": measured(plain), "ours": measured(ours)})
    drain = Figure(
        f"{number} no-ops of 200 keys: ours / plain", ratios(found, "seconds", "plain", "ours"), 0.75, True
    )
    return [
        drain,
        *(Figure(f"  {name}", [number / n for n in found[name]["seconds"]], unit="/s") for name in found),
    ]


def beside(*, quick: bool) -> list[Figure]:
    times, number, calls, seconds = (1, 50, 5, 2) if quick else (3, 3000, 100, 5)

    def latency() -> Mapping[str, float]:
        took = []
        for n in range(calls):
            os.truncate(_file(), 0)
            began = time.perf_counter()
            plain.apply_async(("", n), queue="two")
            took.append(_noted(1)[0].began - began)
            time.sleep(0.01)
        return {"median": statistics.median(took), "largest": max(took)}

    def among() -> Mapping[str, float]:
        key = f"beside-{next(_numbers)}"
        with _line(key, number):
            found = latency()
            ran.append(_scripts_run(seconds))
            os.truncate(_file(), 0)
            stem = f"redislock:{{{_key_of(key)}}}"
            client_here().delete(f"{stem}:line", f"{stem}:parked")
            client_here().rpush(GATE, "")
            _noted(1)
        return found

    ran: list[Counter[str]] = []
    with _workers("two"):
        found = rounds(times, {"beside": among, "alone": latency})
    for scripts_run in ran[1:]:
        say(f"  scripts in {seconds} s: {dict(scripts_run)}")
    medians = ratios(found, "median", "beside", "alone")
    usual = {"sweep", "renew", "heartbeat"}
    others = [sum(n for name, n in each.items() if name not in usual) for each in ran[1:]]
    return [
        Figure(f"a plain call beside {number} that wait / alone: median", medians, 2),
        Figure("  largest", ratios(found, "largest", "beside", "alone")),
        Figure("  scripts a second meanwhile", [each.total() / seconds for each in ran[1:]], unit="/s"),
        Figure("  of which neither sweep, renewal nor heartbeat", others, 0, unit=""),
    ]  # fmt: skip


def idle(*, quick: bool) -> list[Figure]:
    """Lines that stand still, and three workers that have nothing to do but look at them."""
    figures = []
    with _workers("one", "two", "four"):
        for what, most in (("held for three minutes", 20_000), ("handed on, in a queue", 2000)):
            number = 100 if quick else most
            client_here().flushall()
            still(number, is_held=what.startswith("held"))
            # Each was looked at once, and is looked at seldom from then on.
            _wait(
                lambda: not client_here().zcount("redislock:lines", 0, time.time() * 1000), "the first looks"
            )
            shares = []
            for _ in range(1 if quick else 3):
                before = client_here().info("cpu")
                time.sleep(1 if quick else 20)
                after = client_here().info("cpu")
                used = sum(after[key] - before[key] for key in ("used_cpu_sys", "used_cpu_user"))
                shares.append(used / (1 if quick else 20))
            name = f"{number} idle lines, {what}, three workers: of a core of the server"
            figures.append(Figure(name, shares, 0.02, unit=""))
    return figures


def _scripts_run(seconds: float) -> Counter[str]:
    """Return which scripts ran in so many seconds; the heartbeat's is sent in full."""
    known = {script(name, "celery_redislock.store")[1]: name for name in SCRIPTS}
    client, seen = client_here(), Counter[str]()
    give_up = time.monotonic() + seconds
    with client.monitor() as monitor:
        while time.monotonic() < give_up:
            word, *rest = monitor.next_command()["command"].split(" ", 2)
            if word.upper() == "EVALSHA":
                seen[known.get(rest[0].lower(), "another")] += 1
            elif word.upper() == "EVAL":
                seen["heartbeat"] += 1
    return seen


@contextmanager
def _line(key: str, number: int) -> Iterator[None]:
    """Let so many wait for a key that a body holds until somebody opens the gate."""
    os.truncate(_file(), 0)
    ours.apply_async((key, -1), {"gate": True}, queue="two")
    store = connect(os.environ[URL])
    _wait(lambda: store.inspect(_key_of(key)) is not None, "the body that holds the key")
    for n in range(number):
        ours.apply_async((key, n), queue=PARKED)
    _brought("two")
    _wait(lambda: store.waiting(_key_of(key), last=0)[0] == number, "those that wait")
    yield
    store.close()


def _key_of(key: str) -> str:
    """Return the lock's name, which names its task too."""
    return str(ours.lock_for(key, 0).key)


def _drained(task: Any, queue: str, calls: Sequence[tuple[Any, ...]]) -> tuple[float, list[_Note]]:
    """Publish into a list nobody reads, then give it the name of a worker's queue; return when, and notes."""
    os.truncate(_file(), 0)
    for call in calls:
        task.apply_async(call, queue=PARKED)
    began = _brought(queue)
    return began, _noted(len(calls))


def _brought(queue: str) -> float:
    """Bring the parked messages into a queue at once; return when. They say they were published to it."""
    client, texts = client_here(), client_here().lrange(PARKED, 0, -1)
    client.delete(PARKED)
    client.rpush(
        PARKED,
        *(
            text.replace(b'"routing_key": "parked"', b'"routing_key": "%b"' % queue.encode())
            for text in texts
        ),
    )
    began = time.perf_counter()
    client.rename(PARKED, queue)
    return began


def _noted(number: int) -> list[_Note]:
    """Return what so many bodies noted, as they began."""
    _wait(lambda: os.fstat(_file()).st_size >= number * NOTE.size, f"{number} bodies")
    data = os.pread(_file(), number * NOTE.size, 0)
    return sorted(_Note(*each) for each in NOTE.iter_unpack(data))


def _wait(is_so: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < give_up, f"waited in vain for {what}"
        time.sleep(0.002)


@contextmanager
def _workers(*names: str) -> Iterator[None]:
    """Run these workers, each of which has run a task; end exactly these."""
    quiet = ["--loglevel=error", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.waiting", "worker", *quiet]
    processes = [
        subprocess.Popen(
            [*command, f"--concurrency={WORKERS[name]}", f"--queues={name}", f"--hostname={name}@localhost"],
            cwd=ROOT,
            env=surroundings({}),
            stdout=subprocess.DEVNULL,
        )
        for name in names
    ]
    try:
        for name in names:
            _drained(plain, name, [("", 0)])
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
