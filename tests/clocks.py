"""Clocks that move when a test says so."""

from celery_redislock.wire.clock import boottime


class ManualClock:
    """Reads what it was set to; call it to read it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class AheadClock:
    """The machine's own clock, moved ahead when a test says so: for a store whose holds a ``Lock`` dates."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return boottime() + self.ahead

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.ahead += seconds
