"""One beat among any number: it asks the lock server before it sends a tick of the schedule.

There is no leader. Every beat looks at every entry as Celery's scheduler does (5.5.0 to 5.7.0, ``beat.py``),
and a tick is a compare-and-set of the entry's ``last_run_at``, shared by all::

    due here        take     this state is still what this beat knows: "sending", for some seconds
                    send     the scheduler's own apply_entry
                    settle   "sent"; released if the broker is away

    refused         the entry's own schedule is asked whether it is due from the shared moment on
      not due       somebody has sent it: the shared moment is taken over, the next look is 0.2 s late
      due           take again
      being sent    look again in 0.1 s, then each second; if its beat has died, send it with its identity

``Service.start`` sends ``beat_init`` and calls ``scheduler.tick()``. That calls ``is_due``, ``reserve``,
``apply_entry`` and ``_when``; and ``apply_entry`` swallows what ``apply_async`` raises. Those five are
wrapped, on the scheduler's instance. All this runs in the thread that calls ``tick()``.

A long file, because the way of one tick is to be read in one place, from top to bottom.
"""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from celery.beat import Scheduler
from celery.utils.time import maybe_make_aware
from kombu.exceptions import OperationalError

from celery_redislock.declaring.call_options import OF_ENTRIES
from celery_redislock.declaring.options import LockSettings, read_settings
from celery_redislock.declaring.server import store_of
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks.lease import boottime
from celery_redislock.locks.redisstore import RedisStore
from celery_redislock.publishing.message import TICK, tick_id
from celery_redislock.scheduling.entries import is_shared, problems_of
from celery_redislock.scheduling.state import (
    KEPT,
    NOTHING,
    PAUSED,
    REFUSED,
    TAKEN,
    State,
    States,
    prolonged,
    settled,
)

__all__ = ["Beat", "app_name", "join"]

logger = logging.getLogger("celery_redislock")

#: Seconds until another beat may send a tick whose sender has died: the longest, for entries with long
#: intervals, and the shortest, which a publish has to be done in.
LONGEST_BOUND, SHORTEST_BOUND = 10.0, 2.0

#: Seconds by which a beat that did not send the last tick looks later than the one that did, so that it asks
#: once and in vain, and is there at once when that one is not.
STAND_BY = 0.2

#: Seconds until a tick that another beat is sending is looked at again, at first and then.
LOOK, LOOK_AGAIN = 0.1, 1.0

#: Seconds until a tick is tried again that could not be taken or sent.
RETRY = 1.0

#: Seconds a tick may be late and is not missed yet (``redislock_catchup="none"``).
MISSED_AFTER = 60.0

#: Seconds until an entry is due again from which on that counts as unknown: schedules may say what they like.
FURTHEST = 1e10

#: How often one tick is asked for before it is looked at again later.
ATTEMPTS = 5

#: Seconds for which a state may say at most that it is being sent: one that says more is nonsense, or the
#: server's clock has been set back. ``tick_take`` has the same number.
FURTHEST_BOUND = 60.0

#: A text no state has: what this beat knows is older than what it has been told.
_ASK = "?"

_WRAPPED = ("is_due", "_when", "reserve", "apply_entry", "apply_async")

#: What became of a tick that was taken.
_TAKEN, _UNSENT, _SENDING, _SENT, _SPENT, _LOST = "taken", "unsent", "sending", "sent", "spent", "lost"


class _Due(NamedTuple):
    """An entry that is due here: as it was, and as it is reserved for its next tick.

    Attributes:
        last, runs: its ``last_run_at`` and ``total_run_count`` before it was reserved.
        next_in: seconds until it is due again.
    """

    entry: Any
    reserved: Any
    last: datetime
    runs: int
    next_in: float

    @property
    def bound(self) -> float:
        return min(LONGEST_BOUND, max(SHORTEST_BOUND, self.next_in))


class _Tick:
    """A tick this beat has taken: ``text`` is its state on the server, ``before`` what was there."""

    outcome = _TAKEN

    def __init__(self, due: _Due, about: Mapping[str, Any], before: str, text: str, asked_at: float) -> None:
        self.due, self.about, self.before, self.text, self.asked_at = due, about, before, text, asked_at


def app_name(app: Any) -> str:
    """Return what tells an app's entries from those of another one on the same prefix."""
    return str(app.main or "celery")


def join(service: Any) -> "Beat | None":
    """Make a beat share its schedule, as ``redislock_beat`` says; ``None`` where it is left alone.

    Called by ``beat_init``, in beat's process, before its first tick.

    Raises:
        LockOptionError: a setting is wrong.
        TypeError: the scheduler is none that can be wrapped.
    """
    app, scheduler = service.app, service.scheduler
    settings = read_settings(app.main or "settings", app.conf.get, os.environ)
    kind = type(scheduler)
    if not settings.enabled or settings.beat is None:
        return None
    if kind.__module__.partition(".")[0] == "redbeat":
        if not getattr(scheduler, "lock_key", None):
            logger.warning(
                "redislock: RedBeat's lock is off: each beat sends each tick; set redbeat_lock_key"
            )
        return None
    if kind.tick is not Scheduler.tick or not all(hasattr(scheduler, each) for each in _WRAPPED):
        message = (
            f"the scheduler {kind.__module__}.{kind.__qualname__} has a tick() of its own, so its ticks "
            "cannot be shared between beats; use celery.beat:PersistentScheduler or "
            "django_celery_beat.schedulers:DatabaseScheduler, or set redislock_beat = False and run one beat"
        )
        raise TypeError(message)
    store = store_of(app, settings)
    if not isinstance(store, RedisStore):
        return None  # a test's, in memory: nobody shares it
    if settings.check != "ignore":
        for problem in problems_of(app, scheduler.schedule.values()):
            logger.warning("redislock: %s", problem)
    return Beat(scheduler, States(store, app_name(app)), settings)


class Beat:
    """A beat's scheduler, wrapped. Used by the thread that calls its ``tick()``."""

    def __init__(self, scheduler: Any, states: States, settings: LockSettings) -> None:
        """Wrap the scheduler, and let its entries go on from the shared moments; one request or more."""
        self._scheduler, self._app, self._states = scheduler, scheduler.app, states
        self._patterns, self._catchup = settings.beat or (), settings.catchup
        self._me = f"{socket.gethostname()}:{os.getpid()}"
        self._known: dict[str, State | None] = {}  # by entry, as all in this class
        self._look_at: dict[str, float] = {}  # by time.monotonic; not before
        self._next_in = 0.0
        #: Where the entry that is put back into the heap next goes, in seconds from now.
        self._push_in: tuple[Any, float] | None = None
        self._due: _Due | None = None
        self._tick: _Tick | None = None
        self._outage: LockUnavailable | None = None
        self._held_back: set[str] = set()
        self._theirs = {name: getattr(scheduler, name) for name in _WRAPPED}
        for name in _WRAPPED:
            setattr(scheduler, name, getattr(self, name.lstrip("_")))
        self._go_on()

    def _go_on(self) -> None:
        """Let each entry go on from its shared moment, or this beat's phase would be another one."""
        entries = {entry.name: entry for entry in self._scheduler.schedule.values() if self._shares(entry)}
        try:
            now, texts = self._states.read([*entries])
        except LockUnavailable as error:
            self._has_failed(error)
            return
        for entry, text in zip(entries.values(), texts, strict=True):
            state = State.read(text, entry.name)
            if state is None:
                continue
            if state.sending_until:  # perhaps by a beat that has died: then it is still to be sent
                _place(entry, state.before)
            else:
                self._known[entry.name] = state
                _place(entry, state.seen_from(_now(entry), now))

    def _shares(self, entry: Any) -> bool:
        return is_shared(self._app, entry, self._patterns)

    # --- in place of the scheduler's methods -----------------------------------------------------

    def is_due(self, entry: Any) -> Any:
        """In place of ``Scheduler.is_due``."""
        answer = self._theirs["is_due"](entry)
        look_at = self._look_at.get(entry.name)
        if answer[0] and look_at is not None:
            # No longer than that, as its schedule may have been changed meanwhile.
            now = time.monotonic()
            left = min(look_at - now, LOOK_AGAIN)
            if left > 0:
                self._look_at[entry.name] = now + left
                return False, left
            del self._look_at[entry.name]
        self._next_in = answer[1]
        return answer

    def when(self, entry: Any, next_time_to_run: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of ``Scheduler._when``: an entry's place in the heap."""
        if self._push_in is not None and self._push_in[0] is entry:
            # Celery takes ten milliseconds off again (``adjust``).
            next_time_to_run, self._push_in = self._push_in[1] + 0.01, None
        return self._theirs["_when"](entry, next_time_to_run, *args, **kwargs)

    def reserve(self, entry: Any) -> Any:
        """In place of ``Scheduler.reserve``, which advances the entry before it is sent."""
        last, count, next_in = entry.last_run_at, entry.total_run_count, self._next_in
        self._next_in = 0.0
        reserved = self._theirs["reserve"](entry)
        is_known = isinstance(next_in, int | float) and 0 <= next_in < FURTHEST
        self._due = _Due(entry, reserved, last, count, next_in if is_known else 0.0)
        return reserved

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """In place of ``Scheduler.apply_entry``: send a due tick, unless another beat does."""
        due, self._due = self._due, None
        if due is None or due.entry is not entry or not self._shares(entry):
            self._theirs["apply_entry"](entry, producer=producer)
            return
        if (outage := self._outage) is not None:
            self._has_failed(outage, due)
            return
        try:
            if (tick := self._take(due)) is not None:
                self._send(tick, producer)
        except LockUnavailable as error:
            self._has_failed(error, due)
        except Exception:
            # Its own schedule's, or its name's; as plain beat, this one goes on with the other entries.
            logger.exception("%r is not sent this time", entry.name)

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of ``Scheduler.apply_async``: learn what becomes of a tick that was taken."""
        tick = self._tick
        if tick is None or tick.due.entry is not entry:
            return self._theirs["apply_async"](entry, *args, **kwargs)
        if not self._still_has(tick):
            tick.outcome = _LOST
            return None
        tick.outcome = _SENDING
        try:
            result = self._theirs["apply_async"](entry, *args, **kwargs)
        except Exception as error:
            # Celery raises a SchedulingError in place of the error. Where broker or lock server was away, the
            # tick is not spent. OSError, which transports have among theirs, an entry's arguments may raise.
            theirs = self._scheduler.connection.connection_errors
            kept = [kind for kind in theirs if not issubclass(OSError, kind)]
            says_away = (OperationalError, LockUnavailable, ConnectionError, TimeoutError, *kept)
            tick.outcome = _UNSENT if isinstance(error.__context__ or error, says_away) else _SPENT
            raise
        tick.outcome = _SENT
        return result

    # --- one tick --------------------------------------------------------------------------------

    def _take(self, due: _Due) -> _Tick | None:
        """Take the tick of an entry that is due here; ``None`` where nothing is to be sent now."""
        name, last = due.entry.name, _utc(due.last)
        known = self._known.get(name)
        # Its rows may have been read again since (django-celery-beat); and who is behind is told first.
        text = NOTHING if known is None else known.text if last >= known.at else _ASK
        since, before = last, last if known is None else known.at
        lost = before  # goes on from there where the server has lost its data
        for _ in range(ATTEMPTS):
            about = {
                "at": _utc(due.reserved.last_run_at).isoformat(),
                "before": before.isoformat(),
                "by": self._me,
                "ran": known.ran.isoformat() if known and known.ran else None,
                "due": time.time() + due.next_in,
                "nonce": uuid.uuid4().hex,
            }
            asked_at = boottime()
            answer = self._states.take(name, text, about, bound=due.bound, ttl=_ttl(due))
            if answer.status != REFUSED:
                self._known[name] = State.read(answer.text, name)
                tick = _Tick(due, about, text, answer.text, asked_at)
                return tick if self._is_to_be_sent(tick, since, answer.status) else None
            text, known = answer.text, State.read(answer.text, name)
            since, before = last, lost
            if known is None:
                continue
            if 0 < (left := known.sending_until - answer.now) <= FURTHEST_BOUND:
                logger.debug("%s is being sent by %s", name, known.by)
                has_just_begun = left > due.bound - LOOK_AGAIN
                self._wait(due, LOOK if has_just_begun else min(LOOK_AGAIN, left))
                return None
            since, before = known.seen_from(_now(due.entry), answer.now), known.at
            if known.sending_until:
                since = before = known.before
            if not self._is_due_since(since, due, known):
                return None
            if known.sending_until:
                logger.warning("%s: %s died, or stood still, while it sent; sending it", name, known.by)
        self._wait(due, LOOK)
        return None

    def _is_due_since(self, moment: datetime, due: _Due, found: State) -> bool:
        """Whether the entry is due if it was last sent at this moment; otherwise it goes on from there."""
        schedule, clock = due.entry.schedule, due.entry.default_now()
        is_due, next_in = schedule.is_due(_like(moment, clock))
        has_been_sent = not found.sending_until and moment > _utc(due.last)
        if is_due and not (
            # Its schedule does not look at when it was sent (django-celery-beat's clocked); it has been.
            has_been_sent and schedule.is_due(_like(_utc(due.reserved.last_run_at), clock))[0]
        ):
            return True
        logger.debug("%s was sent by %s", due.entry.name, found.by)
        self._known[due.entry.name] = found
        self._leave(due, moment, due.runs + 1, None if is_due else (next_in or 0.0) + STAND_BY)
        return False

    def _is_to_be_sent(self, tick: _Tick, since: datetime, status: int) -> bool:
        """Whether a tick that was taken is to be sent: its entry is not paused, and it was not missed."""
        due, name = tick.due, tick.due.entry.name
        late = self._missed_by(due, since)
        if status == TAKEN and not late:
            return True
        self._leave(due, _utc(due.reserved.last_run_at), due.runs)
        if status == PAUSED:
            logger.info("%s is paused: its tick is not sent", name)
        else:
            logger.warning("%s is %.0f s late, and is not sent (redislock_catchup='none')", name, late)
            tick.outcome = _SPENT
            self._settle(tick)
        return False

    def _missed_by(self, due: _Due, since: datetime) -> float:
        """Return the seconds by which a tick was missed that is not to be made up for, or 0."""
        schedule = due.entry.schedule
        if due.entry.options.get(OF_ENTRIES, self._catchup) != "none":
            return 0.0
        interval = getattr(schedule, "run_every", None)
        patience = min(MISSED_AFTER, interval.total_seconds()) if interval else MISSED_AFTER
        with suppress(NotImplementedError):  # somebody's own schedule
            left: timedelta = schedule.remaining_estimate(_like(since, due.entry.default_now()))
            if (late := -left.total_seconds()) > patience:
                return late
        return 0.0

    def _send(self, tick: _Tick, producer: Any) -> None:
        """Let the scheduler send a tick that was taken, and say what became of it."""
        self._tick, entry = tick, tick.due.entry
        # The entry, and the shared moment that the tick advances: the same, whichever beat sends it.
        identity = f"{app_name(self._app)}/{entry.name}@{tick.about['before']}"
        try:
            self._apply(entry, producer, identity)
            if tick.outcome == _TAKEN:
                tick.outcome = _SENT  # by a scheduler's own apply_entry, without its apply_async
        except Exception:
            tick.outcome = _SPENT  # Celery swallows what a publish raises
            raise
        finally:
            # Also when beat is told to stop in between: what has not been sent yet is another beat's then.
            self._tick = None
            self._settle(tick)

    def _apply(self, entry: Any, producer: Any, tick: str | None = None) -> None:
        """Let the scheduler send an entry, as this tick if one is given."""
        options = entry.options
        entry.options = {name: value for name, value in options.items() if name != OF_ENTRIES}
        if tick is not None:
            entry.options["headers"] = {**(options.get("headers") or {}), TICK: tick}
            entry.options.setdefault("task_id", tick_id(tick))
        try:
            self._theirs["apply_entry"](entry, producer=producer)
        finally:
            entry.options = options

    def _still_has(self, tick: _Tick) -> bool:
        """Whether the tick is still this beat's: asked for where the process stood still since it took it."""
        passed, bound = boottime() - tick.asked_at, tick.due.bound
        if passed <= bound / 2:
            return True
        longer = prolonged(tick.text, passed + bound)
        try:
            if self._states.settle(tick.due.entry.name, tick.text, longer, _ttl(tick.due)):
                tick.text = longer
                return True
        except LockUnavailable as error:
            logger.warning("%s is not sent now: %s", tick.due.entry.name, error)
        return False

    def _settle(self, tick: _Tick) -> None:
        """Say what became of a tick: it is spent, or another beat's to send."""
        due, outcome, name = tick.due, tick.outcome, tick.due.entry.name
        if outcome == _SENDING:
            return  # interrupted in the middle of its publish: sent again, if nobody settles it
        if outcome == _LOST:
            self._wait(due, LOOK)
            return
        following = tick.before
        if outcome in {_SENT, _SPENT}:
            ran = {"ran": tick.about["at"]} if outcome == _SENT else {}
            following = settled(tick.text, {**tick.about, **ran}, name)
        else:
            self._wait(due, RETRY)
        try:
            if self._states.settle(name, tick.text, following, _ttl(due)):
                self._known[name] = State.read(following)
            else:
                logger.warning("%s took so long to send that another beat has sent it, too", name)
        except LockUnavailable as error:
            logger.warning(
                "%s may be sent once more, in %.0f s, as the same message: %s", name, due.bound, error
            )
            self._has_failed(error)

    # --- an entry that is not sent ---------------------------------------------------------------

    def _leave(self, due: _Due, moment: datetime, count: int, next_in: float | None = None) -> None:
        """Let an entry go on from a moment, unsent here; look in ``next_in`` seconds, else when it is due."""
        entry = due.reserved
        _place(entry, moment, count)
        # The row is written by the beat that has sent it (django-celery-beat).
        getattr(self._scheduler, "_dirty", set()).discard(entry.name)
        if next_in is not None:
            next_in = max(next_in, 0.001)
            self._push_in = entry, next_in
            self._look_at[entry.name] = time.monotonic() + next_in

    def _wait(self, due: _Due, seconds: float) -> None:
        """Let an entry stay due, and look at it again later."""
        self._leave(due, _utc(due.last), due.runs, seconds)

    # --- the lock server is away -----------------------------------------------------------------

    def _has_failed(self, error: LockUnavailable, due: _Due | None = None) -> None:
        """Do what ``on_lock_error`` says with a tick that could not be taken; ask in the background."""
        if self._outage is None:
            self._outage = error
            threading.Thread(target=self._ask_on, name="redislock-beat", daemon=True).start()
        if due is None:
            return
        name, task = due.entry.name, self._app.tasks.get(due.entry.task)
        asked = getattr(task, "on_lock_error", None) or self._app.conf.get("redislock_on_lock_error")
        if asked == "run":
            logger.warning("sending %s, as any other beat may: %s", name, error)
            self._apply(due.entry, self._scheduler.producer)
            return
        if name not in self._held_back:
            logger.error("%s is due, and waits until the lock server answers: %s", name, error)
            self._held_back.add(name)
        self._wait(due, RETRY)

    def _ask_on(self) -> None:
        """Ask each second whether the server answers again, for all entries; in a thread of its own."""
        since = time.monotonic()
        while self._outage is not None:
            time.sleep(RETRY)
            with suppress(LockUnavailable):
                self._states.write_nothing()
                self._outage = None
        names, self._held_back = sorted(self._held_back), set()
        text = "the lock server answers again after %.0f s; entries that waited: %s"
        logger.warning(text, time.monotonic() - since, ", ".join(names) or "none")


def _place(entry: Any, moment: datetime, count: int | None = None) -> None:
    """Set when an entry was last sent, in the form it has had, and how often; also in its row, if any."""
    for each in (entry, getattr(entry, "model", None)):
        if each is not None:
            each.last_run_at = _like(moment, entry.last_run_at)
            if count is not None:
                each.total_run_count = count


def _ttl(due: _Due) -> float:
    return KEPT + max(due.next_in, 0.0)


def _now(entry: Any) -> datetime:
    return _utc(entry.default_now())


def _utc(moment: datetime) -> datetime:
    aware: datetime = maybe_make_aware(moment)
    return aware.astimezone(timezone.utc)


def _like(moment: datetime, sample: datetime) -> datetime:
    """Return a moment in the zone of another one, or naive, which is UTC to Celery, as that is."""
    if sample.tzinfo is None:
        return moment.astimezone(timezone.utc).replace(tzinfo=None)
    return moment.astimezone(sample.tzinfo)
