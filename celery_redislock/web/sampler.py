"""The looks of a process at the lock server: one thread, for all who look at the page."""

import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from celery_redislock.declaring.scopes import WAITING
from celery_redislock.exceptions import RedisLockError
from celery_redislock.log import logger
from celery_redislock.operating.server import LockServer, Place
from celery_redislock.publishing.handle import Holder
from celery_redislock.store.store import HELD, LockStore
from celery_redislock.web.around import Around
from celery_redislock.web.markup import opened
from celery_redislock.web.sample import Sample, sample_of

#: Seconds between two looks at least; and how many times as long as it cost the lock server, or took here.
#: Fifty times would be 2 % of its core already: what is asked seldom, and `explain`, cost it something, too.
REST = 5.0
RESTS_OF_SERVER = 60
RESTS_OF_PROCESS = 10

#: Seconds that curves show, and after which nothing is looked at any more if nobody has asked for the page.
AN_HOUR = 3600.0

#: Seconds that the first page waits for the first look.
PATIENCE = 0.05

#: Keys that a look asks about one by one: those that nobody seems to hold, have rates, or have refused.
#: Events and points of curves that are kept.
MOST_BESIDES = 100
MOST_EVENTS = 1000
MOST_POINTS = 720


class Event(NamedTuple):
    """Something that happened since the page's process began: ``what``, to which key or task, in words.

    Of each task what happened last to a key is kept.
    """

    at: float
    what: str
    subject: str
    told: str
    task: str = ""


class Cost:
    """What is asked in this block costs the lock server: ``rest`` is how long nothing else is asked then.

    In seconds, as ``took`` is. What others ask of that server meanwhile counts as well, as it does not tell
    whose time is whose; never more than the block took.
    """

    rest: float = 0.0
    took: float = 0.0

    def __init__(self, store: LockStore) -> None:
        """Of this server."""
        self._store = store

    def __enter__(self) -> "Cost":
        self._used = _cpu(self._store)
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.took = time.monotonic() - self._began
        used = _cpu(self._store) - self._used
        self.rest = RESTS_OF_SERVER * (min(used, self.took) if used > 0 else self.took)


class Sampler:
    """Looks at a lock server again and again, and keeps the last look.

    Thread-safe. Each process of a site has one; it starts with the first page, also after a fork, and rests
    when nobody has asked for a page for an hour.

    Attributes:
        server: the lock server.
        first: when this process began to look, and what was counted then; ``None`` until there is one.
        last: the last look; likewise.
        around: what workers, queues, beats and the check of the set-up say.
        trouble: why the last look failed; '' if it did not.
        events: what happened, the latest first.
        curve: of each look its time and figures.
        rest: seconds until the next look.
    """

    def __init__(self, server: LockServer) -> None:
        """Look at this server; asks nothing yet."""
        self.server = server
        self._starting = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self.first: Sample | None = None
        self.last: Sample | None = None
        self.around = Around(self.server)
        self.trouble = ""
        self.events: list[Event] = []
        self.curve: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=MOST_POINTS)
        self.rest = REST
        self._refused_by: float | None = None  # by the lock server's clock, which may be another one
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._wanted_at = time.monotonic()
        self._has_looked = threading.Event()

    def wake(self) -> None:
        """See that looks are taken, as somebody asks for the page; waits a moment for the first one."""
        with self._starting:
            if self._pid != os.getpid():
                self._reset()
                self._pid = os.getpid()
            self._wanted_at = time.monotonic()
            if self._thread is None or not self._thread.is_alive():
                self._has_looked.clear()  # the last look may be hours old
                self._thread = threading.Thread(target=self._run, name="redislock-page", daemon=True)
                self._thread.start()
        self._has_looked.wait(PATIENCE)

    def _run(self) -> None:
        while time.monotonic() - self._wanted_at < AN_HOUR:
            with Cost(self.server.store) as cost:
                try:
                    self._look()
                    self.trouble = ""
                except RedisLockError as error:
                    self.trouble = str(error)
                except Exception as error:  # a look that fails must not end all later ones
                    logger.exception("the page could not look at the locks")
                    self.trouble = f"{type(error).__name__}: {error}"
            self._has_looked.set()
            self.around.ask()
            # A look that failed has waited, and cost little: a server that is back is soon seen again.
            self.rest = REST if self.trouble else max(REST, cost.rest, RESTS_OF_PROCESS * cost.took)
            time.sleep(self.rest)

    def _look(self) -> None:
        before = self.last
        store = self.server.store
        at = time.time()
        counts = store.counts()
        holders = [*self.server.holders()]
        lines = [*self.server.places(last=0)]
        now = store.clock() or at
        events = [*self._refusals(self._refused_by or now)]
        self._refused_by = max([now, *(event.at for event in events)])
        held = {holder.key for holder in holders}
        may_start = [line for line in lines if _may_start(line, now)]
        # A lock of another program is on no list of ours.
        named = [*(key for line in (*may_start, *lines) for key in _keys_of(line))]
        named += [event.subject for event in events]
        beside = [*islice(dict.fromkeys(key for key in named if key not in held), MOST_BESIDES)]
        found = [Holder.of(hold) for holds in store.holders_of_each(beside) for hold in holds]
        nobodys = {*beside}.difference(holder.key for holder in found)
        values = [holder.owner for holder in (*holders, *found) if holder.state == "foreign"]
        events = [event._replace(told=opened(event.told, values)) for event in events]
        firsts = {line.waiter.key: line.waiter.token for line in lines}
        alone = [line for line in may_start if nobodys.issuperset(_keys_of(line)) and _is_first(line, firsts)]
        said = {
            line.waiter.key: line.facts for line in (*alone, *lines) if line.rank and "rate" in line.facts
        }
        asked = dict(islice(said.items(), MOST_BESIDES))
        rates = self.server.full_rates(asked)
        # What was not asked is no reason to say that a line stands still.
        free = frozenset(line.waiter.key for line in alone).difference(rates, said.keys() - asked.keys())
        sample = sample_of(
            at, [*holders, *found], lines, counts=counts, rates=rates, unserved=self.server.unserved(lines),
            free=free, headless=free & (before.free if before else frozenset()),
        )  # fmt: skip
        self.first = self.first or Sample(at, counts=counts)
        if before is not None:
            events += _counted(self.first, before, sample)
        latest = {_of_what(event): event for event in sorted(events)}
        others = [event for event in self.events if _of_what(event) not in latest]
        self.events = [*reversed(latest.values()), *others][:MOST_EVENTS]
        # Derived now, for all who look.
        sample.by_key, sample.queued  # noqa: B018
        self.curve.append((at, sample.figures(self.first, len(self.around.workers))))
        while self.curve[0][0] < at - AN_HOUR:
            self.curve.popleft()
        self.last = sample  # at the end: a page that is made meanwhile needs all else

    def _refusals(self, since: float) -> Iterator[Event]:
        for key in self.server.store.refused(limit=MOST_BESIDES):
            latest = [each for each in self.server.store.happened(key).refused if each.last > since]
            if not latest:
                return
            for each in latest:
                about = each.hold.facts.get("about")
                task = str(each.hold.facts.get("task"))
                times = f", {each.times} times in the last hour" if each.times > 1 else ""
                told = f"{task}{f', {about}' if about else ''}: held by {each.holder}{times}"
                waits = each.hold.facts.get("on_conflict") in WAITING
                yield Event(each.last, "had to wait" if waits else "skipped", key, told, task)


def _keys_of(place: Place) -> tuple[str, ...]:
    """Return the locks that one in line waits for."""
    return (place.waiter.key, *place.names)


def _is_first(place: Place, firsts: Mapping[str, str]) -> bool:
    """Whether nobody is before it in the lines of the other locks that it waits for."""
    token = place.waiter.token
    return all(firsts.get(name, token) == token for name in place.names)


def _may_start(place: Place, now: float) -> bool:
    """Whether the first of a line waits for nothing but its locks, by the lock server's clock."""
    waiter = place.waiter
    return place.rank == 1 and waiter.state != HELD and (waiter.due is None or waiter.due < now)


def _counted(first: Sample, before: Sample, now: Sample) -> Iterator[Event]:
    """Yield what was counted of tasks between two looks, and how often it was since the first one."""
    for what in ("lost", "restored"):
        for task, number in now.counted(what).items():
            if number > before.counted(what).get(task, 0):
                times = number - first.counted(what).get(task, 0)
                yield Event(now.at, what, task, f"{times} times since this page's process began")


def _of_what(event: Event) -> tuple[str, ...]:
    """Return what tells one event from others that are worth a row."""
    return event.what, event.subject, event.task


def _cpu(store: LockStore) -> float:
    """Return the processor's seconds that the lock server has used; 0 where it does not say."""
    try:
        used = [store.server_says("cpu", f"used_cpu_{kind}") for kind in ("sys", "user")]
    except RedisLockError:
        return 0.0
    return sum(float(one or 0) for one in used)
