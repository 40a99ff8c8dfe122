"""A real ``celery beat`` in a session of its own, which dies with the process that started it."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["BEAT", "GO", "LOADED", "TICKING", "BeatProcess"]

#: The environment variable that tells a beat its number and its schedule, as JSON.
BEAT = "CELERY_REDISLOCK_SCOREBOARD_BEAT"
#: What is noted in the journal, each with the number of the beat: its app is loaded; it may go on; it ticks.
LOADED, GO, TICKING = "loaded:", "go:", "ticking:"
#: Seconds until a beat has ended.
ENDING = 30.0


class BeatProcess:
    """A beat as the scenario sees it.

    Args:
        number: among the beats of the scenario.
        schedule: of its entries, a name in ``timetable.SCHEDULES``.
        entries: how many; each has an argument of its own.
        file: where it keeps its schedule; the directory is removed should the scenario be killed.
        verbose: show its log.
    """

    def __init__(self, number: int, schedule: str, entries: int, file: Path, *, verbose: bool) -> None:
        self.number = str(number)
        output = sys.stderr if verbose else subprocess.DEVNULL
        about = {
            "number": self.number,
            "schedule": schedule,
            "entries": entries,
            "directory": str(file.parent),
        }
        app = ["-A", "benchmarks.scoreboard.timetable"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "celery", *app, "beat", "-s", str(file), "--loglevel", "INFO"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, BEAT: json.dumps(about)},
            start_new_session=True,
        )

    def kill(self) -> None:
        """Kill it (SIGKILL); return when it is gone."""
        self._process.kill()
        self._process.wait(ENDING)

    def end(self) -> None:
        """Ask it to end (SIGTERM), and kill it if it does not; return when it is gone."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING)
        self.kill()
