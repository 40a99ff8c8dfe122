"""What a shared schedule costs a beat: ``tick()`` of Celery's own scheduler with and without, in one process.

::

    python benchmarks/schedule.py [--quick] [--json PATH]

Ten thousand entries, a hundred of them due in the same second. Starts its own server; publishes through it.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.pairs import Figure, ratios, report, rounds

ENTRIES, DUE = 10_000, 100


def scheduler_of(app: Any, *, is_shared: bool) -> Any:
    """Make a scheduler with its entries, none of them due for an hour."""
    from celery.beat import Scheduler

    from celery_redislock.declaring.options import LockSettings
    from celery_redislock.declaring.server import store_of
    from celery_redislock.scheduling.beat import Beat
    from celery_redislock.scheduling.state import States

    entries = {f"entry {number}": {"task": "nothing", "schedule": 3600.0} for number in range(ENTRIES)}
    scheduler = Scheduler(app, schedule={}, lazy=True)
    scheduler.update_from_dict(entries)
    if is_shared:
        settings = LockSettings(beat=("*",))
        scheduler.beat = Beat(scheduler, States(store_of(app, settings), app.main), settings)
    scheduler.tick()
    return scheduler


def measured(scheduler: Any, client: Any) -> Mapping[str, float]:
    """Return the seconds and requests of a tick with nothing due, and of one that sends."""
    began = time.perf_counter()
    for _ in range(20):
        scheduler.tick()
    idle = (time.perf_counter() - began) / 20
    entries = list(scheduler.schedule.values())[:DUE]
    if hasattr(scheduler, "beat"):
        # An hour has passed for all beats, and not only for this one.
        client.flushdb()
        scheduler.beat._known.clear()
    for entry in entries:
        entry.last_run_at -= timedelta(hours=1)
    scheduler.populate_heap()
    asked = scripts_run(client)
    began = time.perf_counter()
    for _ in range(DUE):
        scheduler.tick()
    due = (time.perf_counter() - began) / DUE
    sent = client.llen("celery")
    client.delete("celery")
    assert sent == DUE, f"{sent} of {DUE} were sent"
    return {"idle": idle, "due": due, "requests": (scripts_run(client) - asked) / DUE}


def scripts_run(client: Any) -> int:
    """Return how many scripts the server has run; plain publishes need none."""
    return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rounds: shows only that it runs")
    parser.add_argument("--json", metavar="PATH", help="write the figures as JSON too; - for stdout")
    arguments = parser.parse_args()
    import redis
    from celery import Celery

    from celery_redislock.embedded import EmbeddedServer

    with EmbeddedServer(port=0) as server:
        app = Celery("bench", broker=server.url, set_as_current=False)
        app.task(name="nothing")(nothing)
        client = redis.Redis.from_url(server.redis_url)
        schedulers = {
            "shared": scheduler_of(app, is_shared=True),
            "plain": scheduler_of(app, is_shared=False),
        }
        found = rounds(
            3 if arguments.quick else 15,
            {name: lambda each=each: measured(each, client) for name, each in schedulers.items()},
        )
    figures = [
        Figure("tick() with nothing due / Celery's own", ratios(found, "idle", "shared", "plain"), 1.1),
        Figure("tick() that sends / Celery's own", ratios(found, "due", "shared", "plain"), 1.1),
        Figure("requests of a tick that sends", found["shared"]["requests"], 2.0, unit=""),
        Figure("tick() that sends, Celery's own", [1e6 * each for each in found["plain"]["due"]], unit="us"),
    ]
    report("a shared schedule of 10,000 entries", figures, json_path=arguments.json)


def nothing() -> None:
    """What the entries run."""


if __name__ == "__main__":
    main()
