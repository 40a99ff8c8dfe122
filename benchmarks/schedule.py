"""What a shared schedule costs a beat: ``tick()`` of Celery's own scheduler with and without, in one process.

::

    python benchmarks/schedule.py [--quick] [--json PATH]

Ten thousand entries, a hundred of them due in the same second. Starts its own server; publishes through it.
The two take turns tick by tick: what slows the machine for a second slows both.
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


class Contender:
    """A scheduler with its entries, a hundred of which become due whenever the last hundred were sent."""

    def __init__(self, app: Any, client: Any, *, is_shared: bool) -> None:
        from celery.beat import Scheduler

        from celery_redislock.declaring.options import LockSettings
        from celery_redislock.declaring.server import store_of
        from celery_redislock.scheduling.beat import Beat
        from celery_redislock.scheduling.state import States

        entries = {f"entry {number}": {"task": "nothing", "schedule": 3600.0} for number in range(ENTRIES)}
        self._scheduler, self._client, self._beat = Scheduler(app, schedule={}, lazy=True), client, None
        self._scheduler.update_from_dict(entries)
        if is_shared:
            settings = LockSettings(beat=("*",))
            self._beat = Beat(self._scheduler, States(store_of(app, settings), app.main), settings)
        self._scheduler.tick()
        self._left = 0

    def idle(self) -> Mapping[str, float]:
        """Return the seconds of a tick with nothing due."""
        return {"idle": self._timed()}

    def due(self) -> Mapping[str, float]:
        """Return the seconds of a tick that sends, while more is due."""
        if not self._left:
            self._let_pass_an_hour()
        self._left -= 1
        return {"due": self._timed()}

    def _timed(self) -> float:
        began = time.perf_counter()
        self._scheduler.tick()
        return time.perf_counter() - began

    def _let_pass_an_hour(self) -> None:
        """For all beats, and not only for this one."""
        if self._beat is not None:
            for key in self._client.scan_iter("redislock:*"):
                self._client.delete(key)
            self._beat._known.clear()
        for entry in list(self._scheduler.schedule.values())[:DUE]:
            entry.last_run_at -= timedelta(hours=1)
        self._scheduler.populate_heap()
        self._left = DUE


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
        both = {name: Contender(app, client, is_shared=name == "shared") for name in ("shared", "plain")}
        count = DUE if arguments.quick else 10 * DUE
        idle = rounds(count // 4, {name: each.idle for name, each in both.items()})
        asked = scripts_run(client)
        due = rounds(count - 1, {name: each.due for name, each in both.items()})
        requests = (scripts_run(client) - asked) / count
        sent = client.llen("celery")
        assert sent == 2 * count, f"{sent} of {2 * count} were sent"
    figures = [
        Figure("tick() with nothing due / Celery's own", ratios(idle, "idle", "shared", "plain"), 1.1),
        Figure("tick() that sends / Celery's own", ratios(due, "due", "shared", "plain"), 1.1),
        Figure("requests of a tick that sends", [requests], 2.0, unit=""),
        Figure("tick() that sends, Celery's own", [1e6 * each for each in due["plain"]["due"]], unit="us"),
    ]
    report("a shared schedule of 10,000 entries", figures, json_path=arguments.json)


def nothing() -> None:
    """What the entries run."""


if __name__ == "__main__":
    main()
