"""Two periodic tasks: one that takes longer than its interval, and one that is due once per tick."""

import os
import time
from datetime import datetime, timedelta

from celery import Celery
from celery.schedules import schedule

from celery_redislock import SingletonTask

__all__ = ["DURATION", "INTERVAL", "EverySeconds", "app", "rebuild", "tally"]

LOCAL = "redis://localhost:6379/0"
#: Seconds between two ticks, and how long the long task takes.
INTERVAL, DURATION = 4.0, 5.0


class EverySeconds(schedule):
    """Due at whole multiples of the interval, as a crontab is at whole minutes: two beats tick together."""

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
    "rebuild": {"task": f"{__name__}.rebuild", "schedule": EverySeconds(INTERVAL)},
    "tally": {"task": f"{__name__}.tally", "schedule": EverySeconds(INTERVAL)},
}


@app.task(base=SingletonTask)
def rebuild() -> None:
    """Take longer than the interval; a tick that finds it queued or at work is skipped."""
    print("rebuild begins", flush=True)
    time.sleep(DURATION)
    print("rebuild ends", flush=True)


@app.task(base=SingletonTask, lock="until_expired", lock_period=0.8 * INTERVAL)
def tally() -> None:
    """Be quick, and run once per tick, however many beats there are.

    A lock alone would long be free again when a second, slower beat ticks; the period is not over then.
    """
    tick, late = divmod(time.time(), INTERVAL)
    print(f"tally begins, {late:.2f} s after tick {tick:.0f}", flush=True)
