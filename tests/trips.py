"""What a lock costs in trips, counted by the server itself."""

from typing import Any, cast

#: Whatever a client could send for a lock; commands that a script calls inside count as well, so GET,
#: SET and the like are not looked at.
COMMANDS = (
    "evalsha",
    "eval",
    "script|load",
    "script|exists",
    "hello",
    "auth",
    "client|setinfo",
    "ping",
    "wait",
    "multi",
)


class Trips:
    """What a server was asked since the counting began, by command; see COMMANDS."""

    def __init__(self, client: Any) -> None:
        """Begin to count what all clients of that client's server ask."""
        self._client = client
        self._before = self._calls()

    def __call__(self) -> dict[str, int]:
        """Return how often each command was called, if it was."""
        now = self._calls()
        return {name: now[name] - self._before[name] for name in now if now[name] != self._before[name]}

    def _calls(self) -> dict[str, int]:
        stats = cast("dict[str, dict[str, int]]", self._client.info("commandstats"))
        return {name: stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in COMMANDS}
