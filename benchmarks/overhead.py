"""What a unique task costs, against a plain Celery task, celery-singleton and celery-once.

::

    python benchmarks/overhead.py [--quick] [--json PATH]

Starts its own server and its own workers, and makes an environment of its own
for the other packages. ``--quick`` only shows that it runs.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.pairs import Figure, report, rounds, say
from benchmarks.peers import ROOT, run_beside_peers

PARKED = "parked"
_numbers = count(1)


def main() -> None:
    arguments = _arguments()
    run_beside_peers()
    from celery_redislock.embedded import EmbeddedServer

    with EmbeddedServer(port=0) as server:
        os.environ["CELERY_REDISLOCK_BENCH_URL"] = server.url
        import redis

        client = redis.Redis.from_url(server.redis_url)
        figures = _publishing(client, quick=arguments.quick) + _draining(client, quick=arguments.quick)
    report("overhead of a unique task", figures, json_path=arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few short rounds: shows only that it runs")
    parser.add_argument("--json", metavar="PATH", help="write the figures as JSON too; - for stdout")
    return parser.parse_args()


def _publishing(client, *, quick: bool) -> list[Figure]:
    from benchmarks.shop import IGNORED, KINDS, ping

    # Many short rounds: a noisy neighbour spoils some of them, not the median.
    times, calls = (2, 20) if quick else (75, 25)
    say("publishing: accepted, with results")
    accepted = rounds(
        times,
        {
            **{kind: _accepted(task, client, calls) for kind, task in KINDS.items()},
            "plain and a PING": _accepted(KINDS["plain"], client, calls, before=ping),
        },
    )
    say("publishing: accepted, results ignored")
    ignored = rounds(times, {kind: _accepted(task, client, calls) for kind, task in IGNORED.items()})
    say("publishing: refused")
    unique = {kind: task for kind, task in KINDS.items() if kind != "plain"}
    refused = rounds(
        times,
        {
            **{kind: _refused(task, client, calls) for kind, task in unique.items()},
            "PING": _alone(ping, calls),
        },
    )
    best = min((refused[kind]["p50"] for kind in unique if kind != "ours"), key=statistics.median)
    return [
        Figure("delay() p50: ours / plain", _ratios(accepted, "p50", "ours", "plain"), 1.25),
        Figure("  results ignored: ours / plain", _ratios(ignored, "p50", "ours", "plain"), 1.25),
        Figure("  plain after a bare PING / plain", _ratios(accepted, "p50", "plain and a PING", "plain")),
        Figure("  celery-singleton / plain", _ratios(accepted, "p50", "celery-singleton", "plain")),
        Figure("  celery-once / plain", _ratios(accepted, "p50", "celery-once", "plain")),
        *(Figure(f"  {kind}", _in_us(accepted[kind]["p50"]), unit="us") for kind in KINDS),
        Figure(
            "refused delay() p50: the others' best / ours",
            [theirs / ours for theirs, ours in zip(best, refused["ours"]["p50"], strict=True)],
            2.0,
            at_least=True,
        ),
        *(Figure(f"  {kind}", _in_us(values["p50"]), unit="us") for kind, values in refused.items()),
    ]


def _accepted(
    task, client, calls: int, *, before: Callable[[], object] = lambda: None
) -> Callable[[], Mapping[str, float]]:
    def publish() -> None:
        before()
        task.delay(next(_numbers), full=True)

    def measure() -> Mapping[str, float]:
        taken = [_timed(publish) for _ in range(calls)]
        client.delete("celery")
        return {"p50": statistics.median(taken)}

    return measure


def _alone(call: Callable[[], object], calls: int) -> Callable[[], Mapping[str, float]]:
    return lambda: {"p50": statistics.median([_timed(call) for _ in range(calls)])}


def _refused(task, client, calls: int) -> Callable[[], Mapping[str, float]]:
    def measure() -> Mapping[str, float]:
        number = next(_numbers)
        task.delay(number, full=True)
        taken = [_timed(lambda: task.delay(number, full=True)) for _ in range(calls)]
        assert client.llen("celery") == 1, "a duplicate was published"
        client.delete("celery")
        return {"p50": statistics.median(taken)}

    return measure


def _draining(client, *, quick: bool) -> list[Figure]:
    from benchmarks.shop import DRAINED

    times, messages = (1, 30) if quick else (11, 400)
    with _workers(DRAINED) as processes:
        say("draining: workers of two processes each")
        found = rounds(
            times,
            {kind: _drained(DRAINED[kind], kind, client, messages, processes[kind]) for kind in DRAINED},
        )
    rates = {kind: [1.0 / seconds for seconds in found[kind]["seconds"]] for kind in DRAINED}
    return [
        Figure(
            "worker drain: ours / plain, tasks per second",
            _ratios(found, "seconds", "plain", "ours"),
            0.95,
            at_least=True,
        ),
        Figure("  with two bare PINGs / plain", _ratios(found, "seconds", "plain", "with PINGs")),
        Figure("  celery-singleton / plain", _ratios(found, "seconds", "plain", "celery-singleton")),
        Figure("  celery-once / plain", _ratios(found, "seconds", "plain", "celery-once")),
        Figure("  worker's CPU per task: ours / plain", _ratios(found, "cpu", "ours", "plain")),
        Figure("  the same: with two bare PINGs / plain", _ratios(found, "cpu", "with PINGs", "plain")),
        *(Figure(f"  {kind}", rates[kind], unit="/s") for kind in DRAINED),
    ]


def _drained(
    task, kind: str, client, messages: int, worker: subprocess.Popen
) -> Callable[[], Mapping[str, float]]:
    """Publish into a list nobody reads, then give it the name of the worker's queue: all begin at once."""

    def measure() -> Mapping[str, float]:
        ids = [task.apply_async((next(_numbers),), {"full": True}, queue=PARKED).id for _ in range(messages)]
        keys = [f"celery-task-meta-{task_id}" for task_id in ids]
        cpu, started = _cpu(worker.pid), time.perf_counter()
        client.rename(PARKED, kind)
        give_up = started + 60
        while keys:
            time.sleep(0.005)
            if client.exists(keys[-1]):
                keys = [key for key, value in zip(keys, client.mget(keys), strict=True) if value is None]
            assert time.perf_counter() < give_up, f"the worker of {kind} did not finish"
        seconds = time.perf_counter() - started
        return {"seconds": seconds / messages, "cpu": max(_cpu(worker.pid) - cpu, 0.01) / messages}

    return measure


@contextmanager
def _workers(kinds: Mapping[str, object]) -> Iterator[dict[str, subprocess.Popen]]:
    """Start a worker for each kind, with a queue of its own; end exactly these."""
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.shop", "worker", "--concurrency=2"]
    quiet = ["--loglevel=error", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = {
        kind: subprocess.Popen(
            [*command, f"--queues={kind}", f"--hostname={task.name}@localhost", *quiet], cwd=ROOT, **nowhere
        )
        for kind, task in kinds.items()
    }
    try:
        for kind, task in kinds.items():
            task.apply_async((next(_numbers),), queue=kind).get(timeout=60)
        yield processes
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _cpu(pid: int) -> float:
    """CPU seconds of a worker and its pool children; 0 where the system does not tell."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    if not children.exists():
        return 0.0
    ticks = 0
    for process in (pid, *children.read_text().split()):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _ratios(found: Mapping[str, Mapping[str, list[float]]], what: str, one: str, other: str) -> list[float]:
    return [a / b for a, b in zip(found[one][what], found[other][what], strict=True)]


def _in_us(seconds: list[float]) -> list[float]:
    return [value * 1e6 for value in seconds]


if __name__ == "__main__":
    main()
