"""What it costs to call a task of which the newest call waits: one part of benchmarks/waiting.py."""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from celery import Celery

from benchmarks.cores import pin, places
from benchmarks.lines import client_here
from benchmarks.pairs import Figure, ratios, rounds
from celery_redislock import SingletonTask

__all__ = ["merged"]

_numbers = count(1)


def merged(app: Celery, *, quick: bool) -> list[Figure]:
    """Publish for nobody: calls of a key that is taken, each of which takes the place of the one before."""
    times, calls = (1, 10) if quick else (60, 25)

    def body(key: str, number: int) -> None:
        pass

    def declared(name: str, **options: Any) -> Any:
        return app.task(name=name, base=SingletonTask, lock_key="{key}", **options)(body)

    plain = app.task(name="merging.plain")(body)
    coalescing = declared("merging.coalescing", on_conflict="coalesce")
    debounced = declared("merging.debounced", lock_debounce=3600)
    parked = declared("merging.parked", on_conflict="wait")

    def measured(task: Any) -> Callable[[], Mapping[str, float]]:
        def measure() -> Mapping[str, float]:
            key = f"merging-{next(_numbers)}"
            for number in range(2):  # one holds the key, or is put off; and one waits
                task.delay(key, number)
            taken = []
            for number in range(calls):
                began = time.perf_counter()
                task.delay(key, number)
                taken.append(time.perf_counter() - began)
            client_here().flushall()
            return {"p50": statistics.median(taken)}

        return measure

    contenders = {"plain": plain, "merged": coalescing, "debounced": debounced, "parked": parked}
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    server = int(client_here().info("server")["process_id"])
    figures = []
    for place in places():
        pin(place.client, os.getpid())
        pin(place.server, server)
        found = rounds(times, {name: measured(task) for name, task in contenders.items()})
        to_plain = {name: ratios(found, "p50", name, "plain") for name in ("merged", "debounced", "parked")}
        figures += [
            Figure(f"{place.name}: delay(), a call that is merged / plain", to_plain["merged"], 1.3),
            Figure("  a call that moves a debounce / plain", to_plain["debounced"], 1.3),
            Figure("  a call that is parked ('wait') / plain", to_plain["parked"]),
            *(Figure(f"  {name}", [each * 1e6 for each in found[name]["p50"]], unit="us") for name in found),
        ]
    pin(cores, os.getpid(), server)
    return figures
