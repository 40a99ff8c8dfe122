"""Four periodic tasks and their schedule: nothing in it knows how many beats there are."""

import os
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

from celery import Celery
from celery.schedules import schedule

from celery_redislock import SingletonTask

__all__ = [
    "BACKUP", "DURATION", "INTERVAL", "NIGHT", "PRICES", "EverySeconds",
    "app", "backup", "nightly", "rebuild", "tally",
]  # fmt: skip

LOCAL = "redis://localhost:6379/0"
#: Seconds between two ticks, and how long the slow task takes.
INTERVAL, DURATION = 4.0, 5.0
#: Seconds between two nights, and between two backups.
NIGHT, BACKUP = 15.0, 13.0
#: What the nightly job reads.
PRICES = Path(tempfile.gettempdir()) / "prices"


class EverySeconds(schedule):
    """Due at whole multiples of the interval, as a crontab is at whole minutes: all beats tick together."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Return the time until the next tick after the last one."""
        interval = self.run_every.total_seconds()
        tick = (last_run_at.timestamp() // interval + 1) * interval
        return timedelta(seconds=tick - time.time())


app = Celery(
    __name__,
    broker=os.environ.get("BROKER_URL", LOCAL),
    backend=os.environ.get("RESULT_URL", LOCAL),
)
app.conf.beat_schedule = {
    "tally": {"task": f"{__name__}.tally", "schedule": EverySeconds(INTERVAL)},
    "rebuild": {"task": f"{__name__}.rebuild", "schedule": INTERVAL},
    "backup": {"task": f"{__name__}.backup", "schedule": BACKUP},
    "nightly": {"task": f"{__name__}.nightly", "schedule": NIGHT},
}


@app.task(base=SingletonTask)
def tally() -> None:
    """Be quick: over long before a second beat comes with the same tick."""
    print(f"tally begins, of tick {time.time() // INTERVAL:.0f}", flush=True)


@app.task(base=SingletonTask)
def rebuild() -> None:
    """Take longer than the interval; a tick that finds it queued or running is skipped."""
    print("rebuild begins", flush=True)
    time.sleep(DURATION)
    print("rebuild ends", flush=True)


@app.task(base=SingletonTask, bind=True)
def backup(self: SingletonTask) -> None:
    """Say which message it is."""
    print(f"backup begins: {self.request.id}", flush=True)


@app.task(base=SingletonTask, throws=(FileNotFoundError,))
def nightly() -> None:
    """Fail until somebody has put the prices there."""
    print("nightly begins", flush=True)
    print(f"nightly has read {PRICES.read_text()}", flush=True)
