"""One beat among any number: it asks the lock server before it sends a tick of the schedule.

There is no leader. Every beat looks at every entry as Celery's scheduler does (5.5.0 to 5.7.0, ``beat.py``),
and a tick is a compare-and-set of the entry's ``last_run_at``, shared by all::

    due here        take     this state is still what this beat knows: "sending", for some seconds
                    send     the scheduler's own apply_entry
                    report   "sent" or spent; put back if broker or lock server is away

    refused         the entry's own schedule is asked whether it is due from the shared moment on
      not due       somebody has sent it: the shared moment is taken over, the next look is 0.2 s late
      due           take again
      being sent    look again each 0.1 s for a second, then each second; if its beat has died, send this tick
                    once more, with its identity, and then the next one, by the moment of this one

``Service.start`` sends ``beat_init`` and calls ``scheduler.tick()``. That calls ``is_due``, ``reserve``,
``apply_entry`` and ``_when``; and ``apply_entry`` swallows what ``apply_async`` raises, which calls
``send_task`` for a task that beat does not import. Those seven are wrapped, on the scheduler's instance. All
this runs in the thread that calls ``tick()``.

A long file, because the way of one tick is to be read in one place, from top to bottom.
"""

import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, NamedTuple

from celery.beat import Scheduler
from celery.utils.time import maybe_make_aware
from kombu.exceptions import OperationalError

from celery_redislock.declaring.options import LockSettings
from celery_redislock.declaring.unknown import OF_ENTRIES
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.log import logger
from celery_redislock.publishing.message import TICK, tick_id
from celery_redislock.publishing.signals import lock_conflict
from celery_redislock.publishing.tick import Tick
from celery_redislock.scheduling.entries import is_shared
from celery_redislock.scheduling.state import NOTHING, Answer, SkippedTick, State, States, finished, prolonged
from celery_redislock.store.store import Hold
from celery_redislock.wire.clock import boottime

#: Another beat may send a tick whose sender has not said that it is sent: after an interval and ``STAND_BY``.
#: In seconds; an interval counts as no longer than this, and as no shorter than a publish may take.
LONGEST_BOUND = 10.0
SHORTEST_BOUND = 2.0

#: Seconds by which a beat that did not send the last tick comes later than the one that did. It asks once and
#: is refused; or it sends, if the other one is gone.
STAND_BY = 0.2

#: Seconds between two looks at a tick that another beat is sending, while it is younger than ``LOOK_AGAIN``.
LOOK = 0.1

#: Seconds between two looks at an older one.
LOOK_AGAIN = 1.0

#: Seconds until a tick is tried again that could not be taken or sent.
RETRY = 1.0

#: Seconds a tick may be late and is not missed yet (``redislock_catchup="none"``).
MISSED_AFTER = 60.0

#: A schedule that is due in more seconds than this counts as one that does not say when.
FURTHEST = 1e10

#: How often one tick is asked for before it is looked at again later.
ATTEMPTS = 5

#: A beat whose entry is behind sends this text as the state it knows. No state has it, so the answer is the
#: present state.
_ASK = "?"

#: Characters that are kept of a holder's name: another program's lock may have any.
LONGEST_NAME = 200

#: The scheduler's methods that send a tick, and all that a beat stands in for.
_SENDING = ("apply_entry", "apply_async", "send_task")
WRAPPED = ("tick", "is_due", "_when", "reserve", *_SENDING)


@dataclass(eq=False)
class _Tick:
    """A tick of an entry that is due here.

    Attributes:
        reserved: the entry as it is reserved for its next tick.
        last, runs: its ``last_run_at`` and ``total_run_count`` before that.
        next_in: seconds until it is due again.
        text, before: once it is taken, the text of its state on the server, and of the state before it.
        identity: the entry, and the shared moment that the tick advances: the same for all beats.
        asked_at: when it was asked for, by ``boottime``.
        outcome: what has become of it since it was taken.
        skipped: by whom its key was held, if its task skipped or refused it; the last of several messages.
    """

    entry: Any
    reserved: Any
    last: datetime
    runs: int
    next_in: float
    text: str = NOTHING
    before: str = NOTHING
    identity: Tick = Tick("")  # noqa: RUF009  nobody sends it
    asked_at: float = 0.0
    outcome: Literal["unsent", "sending", "sent", "spent"] = "unsent"
    skipped: SkippedTick | None = None

    @property
    def bound(self) -> float:
        # A short interval's next tick is to be due then, also by a clock that is a little behind.
        return min(LONGEST_BOUND, max(SHORTEST_BOUND, self.next_in)) + STAND_BY


class _Basis(NamedTuple):
    """The state of an entry by which a beat asks for the entry's next tick.

    Attributes:
        text: of the state that must still be on the server.
        ran: when the last tick was sent, by its sender's clock; ``None`` for never.
        since: when the entry was last due, by this beat's clock: its schedule continues from there.
        before: the same moment as the beats share it; the tick advances it.
        at: of a tick that a dead beat was sending, when it was taken, by this beat's clock: the tick is sent
            once more, and the schedule continues from there. ``None`` for any other tick.
        skip: the last tick that was skipped since one was sent; ``None`` for none.
    """

    text: str
    ran: datetime | None
    since: datetime
    before: datetime
    at: datetime | None = None
    skip: SkippedTick | None = None


class Beat:
    """A beat's scheduler, wrapped. Used by the thread that calls its ``tick()``."""

    def __init__(self, scheduler: Any, states: States, settings: LockSettings) -> None:
        """Wrap the scheduler, and let its entries continue from the shared moments; one request or more."""
        self._scheduler = scheduler
        self._app = scheduler.app
        self._states = states
        self._patterns = settings.beat or ()
        self._catchup = settings.catchup
        self._me = f"{socket.gethostname()}:{os.getpid()}"
        self._known: dict[str, State | None] = {}  # by entry, as all in this class
        self._look_at: dict[str, float] = {}  # by time.monotonic; not before
        # Celery calls is_due, reserve, apply_entry, apply_async and _when one after the other for one entry,
        # and hands nothing of this from one to the next.
        #: Seconds until the entry is due again. Set by ``is_due``, taken by ``reserve``.
        self._next_in = 0.0
        #: The tick that is due. Set by ``reserve``, used by ``apply_entry``.
        self._due: _Tick | None = None
        #: The tick that was taken and not sent yet. Set by ``_send``, used by ``apply_async``.
        self._taken: _Tick | None = None
        #: The tick that is being published. Set by ``_send``, used by ``apply_async`` and ``_note_conflict``.
        self._leaving: _Tick | None = None
        #: The entry that is not sent, and in how many seconds it is looked at. Set by ``_leave``, taken by
        #: ``when``, as Celery puts the entry back into its heap.
        self._push_in: tuple[Any, float] | None = None
        self._outage: LockUnavailable | None = None
        self._held_back: set[str] = set()
        #: Entries whose rows are to be written (django-celery-beat): those this beat has sent.
        self._dirty: set[str] = getattr(scheduler, "_dirty", set())
        self._is_behind = True  # until its entries continue from the shared moments
        self._theirs = {name: getattr(scheduler, name) for name in WRAPPED}
        #: Another kind of scheduler may make several messages of a tick.
        self._is_plain = all(getattr(type(scheduler), each) is getattr(Scheduler, each) for each in _SENDING)
        for name in WRAPPED:
            setattr(scheduler, name, getattr(self, name.lstrip("_")))
        # Celery 5.5 takes the methods of two objects for one receiver.
        lock_conflict.connect(self._note_conflict, dispatch_uid=id(self))
        self._adopt()

    def _adopt(self) -> None:
        """Let each entry continue from its shared moment, or this beat's phase would be another one."""
        all_entries = [*self._scheduler.schedule.values()]
        for each in all_entries:  # a row that has been sent has its newer entry in the heap alone
            each.last_run_at = _in_row(each, "last_run_at") or each.last_run_at
        entries = {each.name: each for each in all_entries if is_shared(self._app, each, self._patterns)}
        try:
            now, texts = self._states.read([*entries])
        except LockUnavailable as error:
            self._note_outage(error)
            return
        for entry, text in zip(entries.values(), texts, strict=True):
            state = State.read(text, entry.name)
            # A row that is to be sent once may have been enabled again since it was.
            if state is None or _in_row(entry, "one_off") or entry.name in self._known:
                continue
            if state.sending_until:  # perhaps by a beat that has died: then it is still to be sent
                _set_last_run(entry, min(state.before, _seen(state, entry, now)))
            else:
                self._known[entry.name] = state
                _set_last_run(entry, _seen(state, entry, now))
        self._is_behind = False

    # --- in place of the scheduler's methods -----------------------------------------------------

    def tick(self) -> Any:
        """In place of ``Scheduler.tick``."""
        if self._is_behind and self._outage is None:
            self._adopt()
            self._scheduler._heap = None  # made anew
        delay = self._theirs["tick"]()
        return min(delay, RETRY) if self._is_behind else delay

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
        """In place of ``Scheduler._when``: when an entry comes up in the heap."""
        if self._push_in is not None and self._push_in[0] is entry:
            next_time_to_run = self._push_in[1] + 0.01  # Celery takes that off again (``adjust``)
            self._push_in = None
        return self._theirs["_when"](entry, next_time_to_run, *args, **kwargs)

    def reserve(self, entry: Any) -> Any:
        """In place of ``Scheduler.reserve``, which advances the entry before it is sent."""
        last = entry.last_run_at
        count = entry.total_run_count
        next_in = self._next_in
        reserved = self._theirs["reserve"](entry)
        is_known = isinstance(next_in, int | float) and 0 <= next_in < FURTHEST
        self._due = _Tick(entry, reserved, last, count, next_in if is_known else 0.0)
        return reserved

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """In place of ``Scheduler.apply_entry``: send a due tick, unless another beat does."""
        tick = self._due
        self._due = None
        if tick is None or tick.entry is not entry or not is_shared(self._app, entry, self._patterns):
            self._theirs["apply_entry"](entry, producer=producer)
            return
        self._dirty.discard(entry.name)  # Celery's scheduler may write it right after a publish that failed
        outage = self._outage
        try:
            if outage is None and self._take(tick):
                self._send(tick, producer)
        except LockUnavailable as error:
            self._note_outage(error)
            outage = error
        except Exception:
            # Raised by its schedule, or by its name; as with plain beat, the other entries are still sent.
            logger.exception("%r is not sent this time", entry.name)
        if outage is not None:
            self._go_without(tick, outage)

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of ``Scheduler.apply_async``: learn the outcome of a tick that was taken."""
        tick = self._leaving
        if tick is None or tick.entry is not entry:
            return self._theirs["apply_async"](entry, *args, **kwargs)
        is_first = self._taken is tick
        self._taken = None
        try:
            if is_first:
                if not self._still_has(tick):
                    return None
                tick.outcome = "sending"
            return self._theirs["apply_async"](entry, *args, **kwargs)
        except Exception as error:
            # Celery raises a SchedulingError in place of the error. Where broker or lock server was away, the
            # tick is not spent. OSError, which transports have among theirs, an entry's arguments may raise.
            theirs = self._scheduler.connection.connection_errors
            kept = [kind for kind in theirs if not issubclass(OSError, kind)]
            says_away = (OperationalError, LockUnavailable, ConnectionError, TimeoutError, *kept)
            if isinstance(error.__context__ or error, says_away):
                tick.outcome = "unsent"
            elif is_first:
                tick.outcome = "spent"
            raise

    def send_task(self, name: str, *args: Any, **options: Any) -> Any:
        """In place of ``Scheduler.send_task``: tell the messages of a tick apart, as a publish does."""
        if (tick := Tick.of(options)) and type(self._scheduler).send_task is Scheduler.send_task:
            options["task_id"] = tick.name(options, name, args, options.get("args"), options.get("kwargs"))
        return self._theirs["send_task"](name, *args, **options)

    # --- one tick --------------------------------------------------------------------------------

    def _take(self, tick: _Tick) -> bool:
        """Take the tick of an entry that is due here; tell whether it is to be sent now.

        It is taken if the state on the server is still the one by which this beat asks. Any other state is in
        the answer, and the next one to ask by, if the tick is due by it as well.
        """
        name = tick.entry.name
        last = _utc(tick.last)
        basis = _Basis(NOTHING, None, since=last, before=last)
        if (known := self._known.get(name)) is not None:
            # A row read again (django-celery-beat) may be behind what this beat knows: then it asks first.
            text = known.text if last >= known.at else _ASK
            basis = _Basis(text, known.ran, since=last, before=known.at, skip=known.skip)
        for _ in range(ATTEMPTS):
            answer = self._ask_for(tick, basis)
            if answer.status in {"taken", "paused"}:
                return self._is_to_be_sent(tick, basis, answer.status)
            state = State.read(answer.text, name)
            if answer.status == "sending":
                look_in = LOOK_AGAIN  # the sender may be a beat of another version
                if state is not None:
                    logger.debug("%s is being sent by %s", name, state.by)
                    has_just_begun = answer.now - state.taken_at < LOOK_AGAIN
                    look_in = LOOK if has_just_begun else min(LOOK_AGAIN, state.sending_until - answer.now)
                self._wait(tick, look_in)
                return False
            if state is None:  # the server has lost its data: the entry continues from what this beat knows
                basis = basis._replace(text=answer.text, ran=None, skip=None)
                continue
            following = self._due_by(tick, state, answer.now)
            if following is None:
                return False
            basis = following
            # Where this beat has stood still, it is later by now.
            _set_last_run(tick.reserved, basis.at or _utc(tick.entry.default_now()))
        self._wait(tick, LOOK)
        return False

    def _ask_for(self, tick: _Tick, basis: _Basis) -> Answer:
        """Ask for a tick; note what is needed to send and to report it, if it is taken."""
        name = tick.entry.name
        fields = {
            "at": _utc(tick.reserved.last_run_at).isoformat(),
            "before": basis.before.isoformat(),
            "by": self._me,
            "ran": basis.ran and basis.ran.isoformat(),
            "skip": basis.skip and basis.skip._asdict(),
            "due": time.time() + tick.next_in,
            "nonce": uuid.uuid4().hex,
        }
        asked_at = boottime()
        answer = self._states.take(name, basis.text, fields, bound=tick.bound, next_in=tick.next_in)
        if answer.status in {"taken", "paused"}:
            self._known[name] = State.read(answer.text, name)
            tick.identity = Tick(f"{self._states.app}/{name}@{fields['before']}")
            tick.text = answer.text
            tick.before = basis.text
            tick.asked_at = asked_at
        return answer

    def _due_by(self, tick: _Tick, state: State, now: float) -> _Basis | None:
        """Return by what to ask, now that the server has this state; leave the entry where it is not due."""
        name = tick.entry.name
        since = _seen(state, tick.entry, now)
        has_died = state.sending_until > 0  # the beat that took this state's tick
        basis = _Basis(state.text, state.ran, since, state.at, skip=state.skip)
        if has_died:
            # Its message may be missing while its claim is there, which refuses all other ticks.
            earlier = since - abs(state.at - state.before)
            basis = basis._replace(since=earlier, before=state.before, at=since)
        is_sent = not has_died and state.at > _utc(tick.last)
        is_due, next_in = self._is_due_since(basis.since, tick, is_sent=is_sent)
        if not is_due:
            logger.debug("%s was sent by %s", name, state.by)
            self._known[name] = state
            look_in = None if next_in is None else next_in + STAND_BY
            self._leave(tick, basis.since, tick.runs + 1, look_in)
            return None
        if has_died:
            form = "%s: %s died, or stood still, while it sent a tick; sending it once more"
            logger.warning(form, name, state.by)
        return basis

    def _is_due_since(self, moment: datetime, tick: _Tick, *, is_sent: bool) -> tuple[bool, float | None]:
        """Ask the entry's own schedule whether it is due if its last tick was at this moment.

        Returns also the seconds until it is; ``None`` for one that is to be sent once, and has been.
        """
        if is_sent and _in_row(tick.entry, "one_off"):
            return False, None
        is_due, next_in = tick.entry.schedule.is_due(_like(moment, tick.entry.default_now()))
        return is_due, next_in or 0.0

    def _is_to_be_sent(self, tick: _Tick, basis: _Basis, status: str) -> bool:
        """Whether a tick that was taken is to be sent: its entry is not paused, and it was not missed."""
        name = tick.entry.name
        late = self._missed_by(tick, basis)
        if basis.at is not None:
            is_due, next_in = self._is_due_since(basis.at, tick, is_sent=True)
            if next_in is not None:
                # Where the dead beat's message had left, a worker has 0.2 s to drop the copy with its claim.
                self._leave(tick, basis.at, tick.runs + 1, STAND_BY if is_due else next_in)
        if status == "taken" and not late:
            return True
        self._leave(tick, _utc(tick.reserved.last_run_at), tick.runs)
        if status == "paused":
            logger.info("%s is paused: its tick is not sent", name)
        else:
            logger.warning("%s is %.0f s late, and is not sent (redislock_catchup='none')", name, late)
            tick.outcome = "spent"
            self._report(tick)
        return False

    def _missed_by(self, tick: _Tick, basis: _Basis) -> float:
        """Return the seconds by which a tick was missed that is not to be made up for, or 0."""
        schedule = tick.entry.schedule
        since = basis.since
        if start := _in_row(tick.entry, "start_time"):
            since = max(since, _utc(start))  # until then its row says that it ran 30 years ago
        if tick.entry.options.get(OF_ENTRIES, self._catchup) == "none":
            # A dead beat's tick is late by an interval at least, where that is short.
            interval = getattr(schedule, "run_every", None) if basis.at is None else None
            patience = min(MISSED_AFTER, interval.total_seconds()) if interval else MISSED_AFTER
            with suppress(NotImplementedError):  # somebody's own schedule
                left: timedelta = schedule.remaining_estimate(_like(since, tick.entry.default_now()))
                late = -left.total_seconds()
                return late if late > patience else 0.0
        return 0.0

    def _send(self, tick: _Tick, producer: Any) -> None:
        """Let the scheduler send a tick that was taken, and report its outcome."""
        self._taken = tick
        self._leaving = tick
        try:
            self._apply(tick.entry, producer, tick.identity)
            # By a scheduler's own apply_entry perhaps, without its apply_async.
            if tick.outcome == "sending" or self._taken is tick:
                tick.outcome = "sent"
        except Exception:
            if self._taken is tick:
                tick.outcome = "spent"  # before its publish, by a scheduler's own apply_entry
            raise
        finally:
            # Also when beat is told to stop in between: a tick that has not been sent is another beat's then.
            self._taken = None
            self._leaving = None
            self._report(tick)

    def _note_conflict(self, task_id: str, holder: Hold, strategy: str, **_: Any) -> None:
        """Note by whom a tick was refused that its task skips, or raises about: ``lock_conflict``."""
        tick = self._leaving
        # The signal is for all that this process publishes, in each of its threads.
        if tick is None or strategy == "wait" or task_id not in tick.identity.ids:
            return
        now = time.time()
        held_for = None if holder.since is None else max(0.0, now - holder.since)
        tick.identity.ids.remove(task_id)
        tick.skipped = SkippedTick(now, holder.owner[:LONGEST_NAME], holder.state, held_for)

    def _apply(self, entry: Any, producer: Any, tick: Tick | None = None) -> None:
        """Let the scheduler send an entry, as this tick if one is given."""
        options = entry.options
        entry.options = {name: value for name, value in options.items() if name != OF_ENTRIES}
        if tick is not None:
            entry.options["headers"] = {**(options.get("headers") or {}), TICK: tick}
            publish = self._app.tasks.get(entry.task, self._app.Task).apply_async
            if self._is_plain and publish.__module__ in {"celery.app.task", "celery_redislock.task"}:
                # Nobody makes several messages of it: it has the tick's own identity.
                entry.options.setdefault("task_id", tick_id(tick))
            tick.ids += filter(None, [entry.options.get("task_id")])
        try:
            self._theirs["apply_entry"](entry, producer=producer)
        finally:
            entry.options = options

    def _still_has(self, tick: _Tick) -> bool:
        """Whether the tick is still this beat's: asked for where the process stood still since it took it."""
        passed = boottime() - tick.asked_at
        if passed <= tick.bound / 2:
            return True
        longer = prolonged(tick.text, passed + tick.bound)
        is_ours = self._states.replace(tick.entry.name, tick.text, longer, tick.next_in)
        tick.text = longer
        return is_ours

    def _report(self, tick: _Tick) -> None:
        """Tell the other beats the outcome of a tick: it is spent, or another beat's to send."""
        name = tick.entry.name
        outcome = tick.outcome
        if outcome == "sending":
            return  # interrupted in the middle of its publish: another beat sends it again, as one message
        if outcome == "unsent":
            following = tick.before
            self._wait(tick, RETRY)
        else:
            skipped = None if tick.identity.ids else tick.skipped
            following = finished(tick.text, is_sent=outcome == "sent", skipped=skipped)
            self._dirty.add(name)
        try:
            if self._states.replace(name, tick.text, following, tick.next_in):
                state = State.read(following)
                # A dead beat's tick is the first to be sent still, and not what follows it.
                self._known[name] = None if state is not None and state.sending_until else state
            else:
                logger.warning("%s took so long to send that another beat did not wait for it", name)
        except LockUnavailable as error:
            logger.warning(
                "%s may be sent once more, in %.0f s, as the same message: %s", name, tick.bound, error
            )
            self._note_outage(error)

    # --- an entry that is not sent ---------------------------------------------------------------

    def _leave(self, tick: _Tick, moment: datetime, count: int, next_in: float | None = None) -> None:
        """Let an entry continue from a moment, unsent; look in ``next_in`` seconds, else when it is due."""
        entry = tick.reserved
        _set_last_run(entry, moment, count)
        if next_in is not None:
            self._push_in = entry, next_in
            self._look_at[entry.name] = time.monotonic() + next_in

    def _wait(self, tick: _Tick, seconds: float) -> None:
        """Let an entry stay due, and look at it again later."""
        self._leave(tick, _utc(tick.last), tick.runs, seconds)

    # --- the lock server is away -----------------------------------------------------------------

    def _note_outage(self, error: LockUnavailable) -> None:
        """Ask in the background from now on; until the server answers, nothing else is asked."""
        if self._outage is None:
            self._outage = error
            threading.Thread(target=self._ask_on, name="redislock-beat", daemon=True).start()

    def _go_without(self, tick: _Tick, error: LockUnavailable) -> None:
        """Treat a tick that cannot be taken as ``on_lock_error`` says."""
        name = tick.entry.name
        task = self._app.tasks.get(tick.entry.task)
        policy = getattr(task, "on_lock_error", None) or self._app.conf.get("redislock_on_lock_error")
        if policy == "run":
            logger.warning("sending %s, as any other beat may: %s", name, error)
            self._apply(tick.entry, self._scheduler.producer)
            self._dirty.add(name)
            self._known[name] = None  # it continues from now, and not from the shared moment
            return
        if name not in self._held_back:
            logger.error("%s is due, and waits until the lock server answers: %s", name, error)
            self._held_back.add(name)
        self._wait(tick, RETRY)

    def _ask_on(self) -> None:
        """Ask each second whether the server answers again, for all entries; in a thread of its own."""
        since = time.monotonic()
        while True:
            time.sleep(RETRY)
            with suppress(LockUnavailable):
                self._states.write_nothing()
                break
        names = sorted(self._held_back)
        self._held_back = set()
        self._outage = None
        text = "the lock server answers again after %.0f s; entries that waited: %s"
        logger.warning(text, time.monotonic() - since, ", ".join(names) or "none")


def _seen(state: State, entry: Any, now: float) -> datetime:
    """Return an entry's shared moment by this beat's clock, while the server's shows *now*."""
    schedule = entry.schedule
    # ``relative`` rounds the due time to one of the clock; a crontab has no interval.
    is_interval = hasattr(schedule, "run_every") and not getattr(schedule, "relative", False)
    return state.seen_from(_utc(entry.default_now()), now, is_interval=is_interval)


def _set_last_run(entry: Any, moment: datetime, count: int | None = None) -> None:
    """Set when an entry was last sent, in its own time zone, and how often; also in its row, if any."""
    for each in (entry, getattr(entry, "model", None)):
        if each is not None:
            each.last_run_at = _like(moment, entry.last_run_at)
            if count is not None:
                each.total_run_count = count


def _in_row(entry: Any, name: str) -> Any:
    """Return a field of an entry's row (django-celery-beat); ``None`` where it has no row."""
    return getattr(getattr(entry, "model", None), name, None)


def _utc(moment: datetime) -> datetime:
    aware: datetime = maybe_make_aware(moment)
    return aware.astimezone(timezone.utc)


def _like(moment: datetime, sample: datetime) -> datetime:
    """Return a moment in the zone of another one, or naive, which is UTC to Celery, as that is."""
    if sample.tzinfo is None:
        return moment.astimezone(timezone.utc).replace(tzinfo=None)
    return moment.astimezone(sample.tzinfo)
