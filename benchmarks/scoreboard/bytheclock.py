"""A schedule by the wall clock: what crontab is, but with seconds."""

from datetime import datetime, timedelta
from typing import Any

from celery.schedules import BaseSchedule, schedstate

__all__ = ["ByTheClock"]


class ByTheClock(BaseSchedule):
    """Due at each multiple of some seconds of the wall clock, as a crontab is at whole minutes.

    Args:
        seconds: whole ones.
    """

    def __init__(self, seconds: int, **options: Any) -> None:
        super().__init__(**options)
        self.seconds = seconds

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        last = self.maybe_make_aware(last_run_at).timestamp()
        due = (last // self.seconds + 1) * self.seconds
        return timedelta(seconds=due - self.now().timestamp())

    def is_due(self, last_run_at: datetime) -> Any:
        """Decide as Celery's crontab does."""
        left = self.remaining_estimate(last_run_at).total_seconds()
        if left > 0:
            return schedstate(False, left)
        return schedstate(True, self.remaining_estimate(self.now()).total_seconds())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByTheClock) and other.seconds == self.seconds

    def __hash__(self) -> int:
        return hash(self.seconds)

    def __reduce__(self) -> tuple[type["ByTheClock"], tuple[int]]:
        return type(self), (self.seconds,)
