"""A world with a clock of its own, in which any number of beats run Celery's own scheduler."""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.beat import ScheduleEntry, Scheduler

from celery_redislock import SingletonTask
from celery_redislock.declaring.options import LockSettings
from celery_redislock.scheduling import beat as module
from celery_redislock.scheduling.beat import Beat
from tests.states import MemoryStates

START = datetime(2026, 6, 1, 12, 0, 0, 250_000, tzinfo=timezone.utc)

#: As Celery has it: a world has another one in its place.
APPLY_ASYNC = Scheduler.apply_async

#: A schedule, made for a clock.
Make = Callable[[Callable[[], datetime], Celery], Any]


def nothing() -> None:
    """What the tasks do."""


class Killed(BaseException):
    """SIGKILL: nothing of the beat runs any more."""


class Sent(SimpleNamespace):
    """One publish: the entry's ``name``, ``at`` (the world's time), ``by`` (a beat), and the ``options``."""


class Recording(Scheduler):
    """Celery's scheduler, which notes what it would publish (:func:`note`)."""

    producer = None
    world: "World"
    number = 0
    publish: Callable[[ScheduleEntry], None] | None = None


def note(scheduler: Any, entry: Any, **_: Any) -> Any:
    """Stand in for Celery's own ``Scheduler.apply_async``: a class that overrides it is somebody's own."""
    if scheduler.publish is not None:
        scheduler.publish(entry)
    options = dict(entry.options)
    scheduler.world.sent.append(
        Sent(name=entry.name, at=scheduler.world.now, by=scheduler.number, options=options)
    )
    return SimpleNamespace(id=options.get("task_id"))


class Row(ScheduleEntry):
    """An entry as django-celery-beat has it: its ``model`` is a row, which the entry's copies share."""

    one_off, start_time = False, None

    def __init__(self, *args: Any, model: Any = None, **fields: Any) -> None:
        super().__init__(*args, **fields)
        about = {"last_run_at": self.last_run_at, "total_run_count": self.total_run_count}
        self.model = model or SimpleNamespace(one_off=self.one_off, start_time=self.start_time, **about)

    def __next__(self, last_run_at: Any = None) -> "Row":
        row = self.model
        row.last_run_at, row.total_run_count = self.default_now(), row.total_run_count + 1
        about = {"last_run_at": row.last_run_at, "total_run_count": row.total_run_count}
        return type(self)(**{**dict(self), **about})


class Rows(Recording):
    """Reserves as django-celery-beat's scheduler: the new entry is in the heap alone, its row unwritten."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._dirty: set[str] = set()
        super().__init__(*args, **options)

    def reserve(self, entry: Any) -> Any:
        reserved = next(entry)
        self._dirty.add(reserved.name)
        return reserved


class World:
    """Time, a lock server, and beats; nothing in it waits."""

    def __init__(self, patch: pytest.MonkeyPatch, start: datetime = START, **conf: Any) -> None:
        self.now, self.sent = start, list[Sent]()
        self.states = MemoryStates(self.time)
        self.app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
        self.app.conf.update(conf)
        self.app.task(name="unique", shared=False, base=SingletonTask)(nothing)
        self.app.task(name="plain", shared=False)(nothing)
        self.beats: list[Any] = []
        self._wakes: dict[int, datetime] = {}
        patch.setattr(Scheduler, "apply_async", note)
        clock = SimpleNamespace(time=self.time, monotonic=self.time, sleep=lambda _: None)
        patch.setattr(module, "time", clock)
        patch.setattr(module, "boottime", self.time)
        # The thread that asks on is the test's own: World.server_is_back.
        threads = SimpleNamespace(Thread=lambda **_: SimpleNamespace(start=lambda: None))
        patch.setattr(module, "threading", threads)

    def time(self) -> float:
        return self.now.timestamp()

    def beat(
        self,
        entries: Mapping[str, Make],
        *,
        clock: float = 0.0,
        task: str = "unique",
        options: Mapping[str, Any] | None = None,
        is_shared: bool = True,
        entry: type[ScheduleEntry] = ScheduleEntry,
        settings: LockSettings = LockSettings(),  # noqa: B008  immutable
        last: datetime | None = None,
        kind: type[Recording] = Recording,
    ) -> Any:
        """Start a beat whose clock is so many seconds ahead, and whose own entries were sent ``last``."""
        scheduler: Any = kind(self.app, schedule={}, lazy=True)
        scheduler.world, scheduler.number, scheduler.Entry = self, len(self.beats), entry

        def now() -> datetime:
            return (self.now + timedelta(seconds=clock)).astimezone(self.app.timezone)

        for name, make in entries.items():
            fields = {"schedule": make(now, self.app), "task": task, "options": dict(options or {})}
            fields["last_run_at"] = last
            scheduler.update_from_dict({name: fields})
        scheduler.beat = Beat(scheduler, self.states, settings) if is_shared else None
        self.beats.append(scheduler)
        self._wakes[scheduler.number] = self.now
        return scheduler

    def pair(self, make: Make, seconds: float, clocks: Sequence[float] = (0, 0)) -> tuple[Any, Any]:
        """Run two beats with one entry for so long; returns who has sent its last tick, and the other."""
        beats = [self.beat({"entry": make}, clock=clock) for clock in clocks]
        self.run(seconds)
        return beats[self.sent[-1].by], beats[1 - self.sent[-1].by]

    def kill(self, scheduler: Any) -> None:
        """Let a beat be no more."""
        self._wakes.pop(scheduler.number, None)

    def is_dead(self, scheduler: Any) -> bool:
        """Whether it was killed."""
        return scheduler.number not in self._wakes

    def stop(self, scheduler: Any, seconds: float) -> None:
        """Let a beat stand still, as after SIGSTOP."""
        self._wakes[scheduler.number] = self.now + timedelta(seconds=seconds)

    def server_is_back(self) -> None:
        """Let the lock server answer, and each beat notice it."""
        self.states.is_away = False
        for scheduler in self.beats:
            if scheduler.beat is not None and scheduler.beat._outage is not None:
                scheduler.beat._ask_on()

    def run(self, seconds: float) -> None:
        """Let so much time pass: each beat ticks, and sleeps for as long as its tick says."""
        end = self.now + timedelta(seconds=seconds)
        for _ in range(1_000_000):
            number, wake = min(self._wakes.items(), key=lambda each: each[1], default=(-1, end))
            if wake >= end:
                break
            self.now = max(self.now, wake)
            # A tick takes some time, or two of the same beat would be one moment.
            self.now += timedelta(microseconds=37)
            try:
                delay = self.beats[number].tick()
            except Killed:
                self.kill(self.beats[number])
            if number in self._wakes and self._wakes[number] <= self.now:
                self._wakes[number] = self.now + timedelta(seconds=max(delay or 0.0, 0.0005))
        else:
            raise AssertionError("the beats do not sleep")
        self.now = end

    def times(self, name: str) -> list[datetime]:
        """When an entry was sent."""
        return [each.at for each in self.sent if each.name == name]

    def ticks(self, name: str) -> Counter[str]:
        """How often each tick of an entry was sent, by its identity."""
        return Counter(each.options["headers"]["redislock_tick"] for each in self.sent if each.name == name)

    def gaps(self, name: str) -> list[float]:
        """Seconds between two sends of an entry."""
        return [(b - a).total_seconds() for a, b in itertools.pairwise(self.times(name))]
