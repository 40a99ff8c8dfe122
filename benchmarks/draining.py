"""How fast a worker drains its queue, and what CPU each process takes for it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.cores import Place, children, cpu, pin
from benchmarks.pairs import Figure, ratios, rounds, say
from benchmarks.peers import ROOT
from benchmarks.publishing import numbers

if TYPE_CHECKING:
    from celery_redislock.embedded import EmbeddedServer

__all__ = ["draining"]

PARKED = "parked"
PROCESSES = ("main process", "children", "server")
PAIR = ("plain", "ours")
#: Behind a kind: it keeps its results on another server than its broker and its locks, or nowhere.
ELSEWHERE, IGNORED = ", results elsewhere", ", results ignored"


@dataclass(frozen=True, slots=True)
class _Worker:
    process: subprocess.Popen
    queue: str

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass(frozen=True, slots=True)
class _Drain:
    """A task, the worker that runs it, a client of the server with its results; ``None``: ignored."""

    task: Any
    worker: _Worker
    results: Any


def draining(
    server: "EmbeddedServer", other: "EmbeddedServer", places: Sequence[Place], *, quick: bool
) -> list[Figure]:
    """Measure it at each place.

    Args:
        server: with the broker and the locks.
        other: with the results of those who keep them elsewhere.
        places: taken in turn.
        quick: few messages.
    """
    import redis

    from benchmarks import shop

    times, messages = (1, 20) if quick else (9, 300)
    kept = shop.tasks(shop.app, *shop.KINDS, "with PINGs")
    ignored = shop.tasks(shop.app, *PAIR, ignored=True)
    client, elsewhere = redis.Redis.from_url(server.redis_url), redis.Redis.from_url(other.redis_url)
    surroundings = {kind: {} for kind in kept} | {
        f"{kind}{ELSEWHERE}": {shop.RESULTS: other.url} for kind in PAIR
    }
    figures = []
    pin(places[-1].worker, os.getpid())  # they start sooner so
    with _workers(client, surroundings) as workers:
        drains = {kind: _Drain(task, workers[kind], client) for kind, task in kept.items()}
        for kind in PAIR:
            drains[kind + ELSEWHERE] = _Drain(kept[kind], workers[kind + ELSEWHERE], elsewhere)
            drains[kind + IGNORED] = _Drain(ignored[kind], workers[kind], None)
        servers = server.pid, other.pid
        for place in places:
            pin(place.client, os.getpid())
            pin(place.server, *servers)
            for worker in workers.values():
                pin(place.worker, worker.pid, *children(worker.pid))
            say(f"draining, {place.name}: workers of two processes each")
            found = rounds(
                times,
                {name: _drained(drain, client, messages, servers) for name, drain in drains.items()},
            )
            figures += _figures(found, place.name)
    return figures


def _figures(found: Mapping[str, Mapping[str, list[float]]], place: str) -> list[Figure]:
    figures = []
    for suffix, least, most in (("", 0.97, 1.0), (ELSEWHERE, 0.87, 1.2), (IGNORED, 0.8, 1.2)):
        plain, ours = (kind + suffix for kind in PAIR)
        throughput = ratios(found, "seconds", plain, ours)
        figures.append(Figure(f"{place}: drain{suffix}: ours / plain", throughput, least, at_least=True))
        if "sum" not in found[plain]:
            continue
        figures.append(
            Figure("  CPU per task, all processes: ours / plain", ratios(found, "sum", ours, plain), most)
        )
        for process in PROCESSES:
            figures.append(Figure(f"    {process}: ours / plain", ratios(found, process, ours, plain)))
        for name in (plain, ours):
            for process in (*PROCESSES, "sum"):
                values = [value * 1e6 for value in found[name][process]]
                figures.append(Figure(f"    {name}: {process}", values, unit="us"))
    others = [kind for kind in found if not kind.startswith(PAIR)]
    return [
        *figures,
        *(
            Figure(f"{place}: drain: {kind} / plain", ratios(found, "seconds", "plain", kind))
            for kind in others
        ),
        *(
            Figure(f"  {kind}", [1 / value for value in values["seconds"]], unit="/s")
            for kind, values in found.items()
        ),
    ]


def _drained(
    drain: _Drain, client, messages: int, servers: Sequence[int]
) -> Callable[[], Mapping[str, float]]:
    """Publish into a list nobody reads, then give it the name of the worker's queue: all begin at once."""
    pid = drain.worker.pid

    def used() -> list[float | None]:
        return [cpu(pid), cpu(*children(pid)), cpu(*servers)]

    def measure() -> Mapping[str, float]:
        ids = [
            drain.task.apply_async((next(numbers),), {"full": True}, queue=PARKED).id for _ in range(messages)
        ]
        keys = [f"celery-task-meta-{task_id}" for task_id in ids]
        before, started = used(), time.perf_counter()
        client.rename(PARKED, drain.worker.queue)
        while _is_busy(client, drain.worker) if drain.results is None else keys:
            assert time.perf_counter() < started + 60, f"{drain.task.name} did not finish"
            time.sleep(0.005)
            if drain.results is not None and drain.results.exists(keys[-1]):
                found = zip(keys, drain.results.mget(keys), strict=True)
                keys = [key for key, value in found if value is None]
        seconds = time.perf_counter() - started
        time.sleep(0.05)  # what a worker does after its last result is part of its work
        if None in before:
            return {"seconds": seconds / messages}
        spent = [(late - early) / messages for late, early in zip(used(), before, strict=True)]
        return {"seconds": seconds / messages, **dict(zip(PROCESSES, spent, strict=True)), "sum": sum(spent)}

    return measure


def _is_busy(client, worker: _Worker) -> bool:
    """Return whether a message is not acknowledged yet; a run may still be on its way in each child."""
    return bool(client.exists(worker.queue, "unacked"))


@contextmanager
def _workers(client, surroundings: Mapping[str, Mapping[str, str]]) -> Iterator[dict[str, _Worker]]:
    """Start workers, each with these environment variables and a queue of its own; end exactly these."""
    from benchmarks import shop

    command = [sys.executable, "-m", "celery", "-A", "benchmarks.shop", "worker", "--concurrency=2"]
    quiet = ["--loglevel=error", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    workers = {}
    for number, (name, more) in enumerate(surroundings.items()):
        queue = f"drained-{number}"
        process = subprocess.Popen(
            [*command, f"--queues={queue}", f"--hostname={queue}@localhost", *quiet],
            cwd=ROOT,
            env={**os.environ, **more},
            **nowhere,
        )
        workers[name] = _Worker(process, queue)
    try:
        give_up = time.perf_counter() + 60
        for worker in workers.values():
            shop.tasks(shop.app, "plain")["plain"].apply_async((next(numbers),), queue=worker.queue)
            while _is_busy(client, worker):
                assert time.perf_counter() < give_up, f"the worker of {worker.queue} did not start"
                time.sleep(0.05)
        yield workers
    finally:
        for worker in workers.values():
            worker.process.terminate()
        for worker in workers.values():
            try:
                worker.process.wait(20)
            except subprocess.TimeoutExpired:
                worker.process.kill()
