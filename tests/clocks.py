"""A clock that only moves when a test says so."""


class ManualClock:
    """Reads what it was set to; call it to read it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
