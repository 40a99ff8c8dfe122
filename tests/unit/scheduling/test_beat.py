"""Any number of beats, each tick once: Celery's own scheduler on a clock that the test turns."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pytest
from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, crontab, schedule
from kombu.exceptions import OperationalError

from celery_redislock import SingletonTask
from celery_redislock.declaring.options import LockSettings
from celery_redislock.exceptions import DuplicateTask
from celery_redislock.publishing.message import tick_id
from celery_redislock.publishing.signals import lock_conflict
from celery_redislock.publishing.tick import Tick
from celery_redislock.scheduling import beat as module
from celery_redislock.scheduling.beat import LONGEST_BOUND, LOOK_AGAIN, RETRY, STAND_BY
from celery_redislock.store.store import Hold
from tests.unit.scheduling.world import APPLY_ASYNC, START, Killed, Recording, Row, Rows, World, nothing


def every(seconds: float, **options: Any) -> Callable[..., Any]:
    return lambda now, app: schedule(timedelta(seconds=seconds), nowfun=now, app=app, **options)


def at(**fields: str) -> Callable[..., Any]:
    return lambda now, app: crontab(nowfun=now, app=app, **fields)


class Clocked(schedule):  # type: ignore[misc]  # celery-types has it untyped
    """As django-celery-beat's: due once a moment has passed, whenever it was sent."""

    def is_due(self, _last: datetime) -> tuple[bool, float]:
        left = (START + timedelta(seconds=10) - self.now()).total_seconds()
        return left <= 0, left if left > 0 else 60.0


class OneOff(ScheduleEntry):
    """Sent once, as a row of django-celery-beat's that says so."""

    model = property(lambda _self: SimpleNamespace(one_off=True))

    def is_due(self) -> Any:
        return (False, 3600.0) if self.total_run_count else super().is_due()


def clocked(now: Any, app: Any) -> Any:
    return Clocked(timedelta(days=1), nowfun=now, app=app)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def away(_entry: Any) -> None:
    """The broker does not answer."""
    raise OperationalError("away")


def identity(sent: Any) -> Any:
    """The tick that an entry or a message is sent for."""
    return sent.options["headers"]["redislock_tick"]


def once(scheduler: Any, act: Callable[[Any], None]) -> None:
    """Let something happen at a beat's next publish."""

    def publish(entry: Any) -> None:
        scheduler.publish = None
        act(entry)

    scheduler.publish = publish


def kill_at_publish(scheduler: Any, *, after: bool) -> list[str]:
    """Let a beat die at its next publish, before the message has left or after; notes the tick's identity."""
    ticks: list[str] = []

    def die(entry: Any) -> None:
        ticks.append(identity(entry))
        if after:
            type(scheduler).apply_async(scheduler, entry)
        scheduler.beat._report = lambda _tick: None
        raise Killed

    once(scheduler, die)
    return ticks


# --- what one beat would send ----------------------------------------------------------------


@pytest.mark.parametrize("clocks", [(0, 0, 0), (0, 3, -3), (-3, 0, 3), (-0.04, 0, 0.04), (-40, 40)], ids=str)
@pytest.mark.parametrize(
    ("make", "expected"), [(every(2), 60), (at(minute="*"), 2), (at(minute="*/2"), 1)], ids=["2s", "1m", "2m"]
)
def test_beats_send_what_one_would_send(world: World, clocks: Any, make: Any, expected: int) -> None:
    """A schedule shared by beats that start one after the other, and whose clocks are apart."""
    for clock in clocks:
        world.beat({"entry": make}, clock=clock)
        world.run(1.3)
    world.run(120 - 1.3 * len(clocks))
    assert abs(len(world.times("entry")) - expected) <= 1
    assert set(world.ticks("entry").values()) == {1}


def test_the_beat_that_sent_last_sends_again_and_the_others_ask_once_each(world: World) -> None:
    """Who sent a tick looks at the next one first; nobody else is late, and nobody races."""
    for _ in range(3):
        world.beat({"entry": every(5)})
        world.run(1.0)
    world.run(20)
    world.sent.clear()
    world.states.asked.clear()
    world.run(50)
    assert len({each.by for each in world.sent}) == 1
    assert world.gaps("entry") == pytest.approx([5.0] * 9, abs=0.01)
    assert world.states.asked.count("take") == 30
    assert world.states.asked.count("replace") == 10


def test_a_beat_alone_makes_two_requests_a_tick_and_one_when_it_starts(world: World) -> None:
    """Law 10: nothing is asked for an entry that is not due.

    Whichever beat sends it, the message's task id and header follow from the tick; its entry stays as it is.
    """
    options = {"queue": "q", "headers": {"mine": 1}, "redislock_catchup": "one"}
    scheduler = world.beat({"entry": every(5), "daily": at(minute="0", hour="3")}, options=options)
    world.run(51)
    assert world.states.asked == ["read"] + ["take", "replace"] * 10
    sent = world.sent[0]
    tick = sent.options["headers"].pop("redislock_tick")
    assert tick.startswith("shop/entry@2026-06-01T12:00:00")
    assert sent.options == {"queue": "q", "headers": {"mine": 1}, "task_id": tick_id(tick)}
    assert scheduler.schedule["entry"].options == options


class PerTenant(Recording):
    """Somebody's own scheduler: a tick becomes two messages."""

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        for _ in range(2):
            super().apply_entry(entry, producer=producer)


class Silent(Recording):
    """Another one, which makes one message."""

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        return super().apply_async(*args, **kwargs)


class ByName(Recording):
    """Another one, which sends the task by its name, to each tenant."""

    def send_task(self, *args: Any, **kwargs: Any) -> Any:
        return super().send_task(*args, **kwargs)


class PerRegion(SingletonTask):
    """A base class of tasks, each of whose calls may be several messages."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        return super().apply_async(*args, **options)


@pytest.mark.parametrize(
    ("kind", "base"), [*((kind, None) for kind in (PerTenant, Silent, ByName)), (Recording, PerRegion)]
)
def test_several_messages_of_one_tick_are_told_apart(world: World, kind: type[Recording], base: Any) -> None:
    """Law 2: with one task id for all of them, they would be copies of one message."""
    if base is not None:
        world.app.task(name="regional", shared=False, base=base)(nothing)
    world.beat({"entry": every(5)}, kind=kind, task="regional" if base else "unique")
    world.run(6)
    assert world.sent
    for sent in world.sent:
        assert "task_id" not in sent.options
        assert type(sent.options["headers"]["redislock_tick"]) is Tick
        assert identity(sent) == identity(world.sent[0]) == "shop/entry@2026-06-01T12:00:00.250000+00:00"


@pytest.mark.parametrize("error", [Killed(), OperationalError("away")], ids=repr)
def test_a_tick_is_sent_again_that_was_not_sent_to_the_end(world: World, error: BaseException) -> None:
    """Law 2: its beat was told to end between two messages, or the broker went away."""
    beats = [world.beat({"entry": every(5)}, kind=PerTenant) for _ in range(2)]
    sender = beats[0]

    def fail_at_the_second(_entry: Any) -> None:
        if world.sent:
            sender.publish = None
            raise error

    sender.publish = fail_at_the_second
    world.run(12)

    assert sender.publish is None
    assert [identity(sent) for sent in world.sent[1:3]] == [identity(world.sent[0])] * 2


def test_so_are_those_of_a_task_that_beat_does_not_import(world: World, monkeypatch: Any) -> None:
    """The worker knows them by their task ids, which follow from their headers."""
    sent: list[tuple[str, str]] = []

    def send_task(_name: str, args: Any, _kwargs: Any, **options: Any) -> None:
        assert options["task_id"] == tick_id(options["headers"]["redislock_tick"])
        sent.append((args[0], options["task_id"]))

    monkeypatch.setattr(world.app, "send_task", send_task)
    for tenants in ["eu", "us", "eu"], ["us", "eu", "eu"]:
        scheduler = world.beat({"entry": every(5)}, task="unknown", kind=PerTenant)
        tick = Tick("the same")
        for tenant in tenants:
            scheduler.send_task("unknown", [tenant], {}, headers={"redislock_tick": tick})

    assert len(set(sent)) == 3
    assert sorted(sent[:3]) == sorted(sent[3:])
    # A send_task of somebody's own may make several messages of one call.
    monkeypatch.setattr(world.app, "send_task", lambda *_, **options: sent.append(options.get("task_id")))
    scheduler = world.beat({"entry": every(5)}, task="unknown", kind=ByName)
    scheduler.send_task("unknown", [7], {}, headers={"redislock_tick": Tick("one")})
    assert sent[6:] == [None]


def test_entries_of_other_tasks_are_left_to_each_beat_unless_the_setting_names_them(world: World) -> None:
    """``redislock_beat``: unique tasks by default; patterns match an entry's name or its task's."""
    for patterns in [(), ("oth*",), ("pla*",), ("*",)]:
        world.sent.clear()
        world.states.texts.clear()
        settings = LockSettings(beat=patterns)
        beats = [world.beat({"entry": every(5)}, task="plain", settings=settings) for _ in range(2)]
        world.run(6)
        assert len(world.sent) == (1 if patterns in {("pla*",), ("*",)} else 2), patterns
        for each in beats:
            world.kill(each)


@pytest.mark.parametrize("enable_utc", [True, False])
@pytest.mark.parametrize(
    "change", [datetime(2026, 3, 29, 1), datetime(2026, 10, 25, 1)], ids=["spring", "autumn"]
)
@pytest.mark.parametrize(
    "make",
    [at(minute="0"), at(minute="30", hour="2"), at(minute="0", hour="3"), every(1800), every(86400)],
    ids=["hourly", "2:30", "3:00", "30min", "24h"],
)
def test_at_a_change_of_summer_time_beats_send_what_one_would(
    monkeypatch: pytest.MonkeyPatch, make: Any, change: datetime, enable_utc: bool
) -> None:
    """Both changes of Europe/Berlin, two days around each, three beats, one of which is killed."""
    start, conf = change.replace(tzinfo=timezone.utc) - timedelta(hours=20), {"timezone": "Europe/Berlin"}
    alone = World(monkeypatch, start, enable_utc=enable_utc, **conf)
    alone.beat({"entry": make}, is_shared=False)
    alone.run(48 * 3600)
    shared = World(monkeypatch, start, enable_utc=enable_utc, **conf)
    beats = [shared.beat({"entry": make}) for _ in range(3)]
    shared.run(24 * 3600)
    shared.kill(beats[0])
    shared.run(24 * 3600)

    def seconds(world: World) -> list[float]:
        return [each.timestamp() for each in world.times("entry")]

    assert len(seconds(alone)) > 0
    assert seconds(shared) == pytest.approx(seconds(alone), abs=LOOK_AGAIN + STAND_BY)


# --- what ends a beat ------------------------------------------------------------------------


@pytest.mark.parametrize("clock", [-20, 0, 5, 50])
@pytest.mark.parametrize("interval", [1, 5, 60])
def test_another_beat_is_there_when_the_sender_is_killed(world: World, interval: float, clock: float) -> None:
    """A beat killed between two ticks costs the stand-by offset, once, and no tick, whatever its clock is."""
    sender, _ = world.pair(every(interval), interval * 3.5, (clock, 0))
    assert sender.number == 0
    world.kill(sender)
    world.run(interval * 4)
    assert len(world.times("entry")) == 7
    assert max(world.gaps("entry")) <= interval + STAND_BY + 0.05
    assert set(world.ticks("entry").values()) == {1}


@pytest.mark.parametrize("clock", [-50, 50])
def test_an_interval_from_the_hour_is_due_by_the_clock(monkeypatch: pytest.MonkeyPatch, clock: float) -> None:
    """``relative=True`` rounds the due time, so that it is one moment only by the sender's reading."""
    world = World(monkeypatch, START + timedelta(minutes=30))
    for each in (clock, 0):
        world.beat({"entry": every(3600, relative=True)}, clock=each)
    world.run(4 * 3600)
    assert len(world.times("entry")) == 4
    assert min(world.gaps("entry")) > 3500


@pytest.mark.parametrize("other", ["stands by", "is behind", "starts later", "is ahead, without a broker"])
@pytest.mark.parametrize("after", [False, True], ids=["before the publish", "after it"])
@pytest.mark.parametrize("interval", [2, 10, 15])
def test_a_dead_beats_tick_is_sent_once_more_before_the_next(
    world: World, interval: float, after: bool, other: str
) -> None:
    """Its claim may be there without its message: that lets its own tick through, and refuses all others."""
    # Without catching up as well: the tick was taken in time.
    settings = LockSettings(catchup="one" if other == "starts later" else "none")
    clock = {"is behind": -20, "is ahead, without a broker": 20}.get(other, 0)
    first = world.beat({"entry": every(interval)}, settings=settings)
    second = world.beat({"entry": every(interval)}, settings=settings, clock=clock)
    world.run(interval * 2.5)
    dead = kill_at_publish(first, after=after)
    if "without a broker" in other:
        once(second, away)
    elif other == "starts later":
        world.kill(second)
        world.run(interval * 2.5)
        world.beat({"entry": every(interval)}, settings=settings)
    world.run(interval * 6 + LONGEST_BOUND)

    again, *later = (each for each in world.sent if each.by != first.number)
    assert [identity(again)] == dead
    ticks = world.ticks("entry")
    assert {tick: times for tick, times in ticks.items() if times > 1} == dict.fromkeys(dead * after, 2)
    waited = (again.at - START).total_seconds() - interval * 3
    assert waited < min(interval, LONGEST_BOUND) + 2 * RETRY + 0.5 or other == "starts later"
    due_at = START + timedelta(seconds=interval * 4)
    expected = max(again.at + timedelta(seconds=STAND_BY), due_at)
    assert abs(later[0].at - expected) < timedelta(seconds=0.1)
    assert world.gaps("entry")[-2:] == pytest.approx([interval] * 2, abs=0.1)


@pytest.mark.parametrize("make", [clocked, every(5), every(60)], ids=["clocked", "5s", "60s"])
@pytest.mark.parametrize("is_read_again", [False, True])
def test_a_tick_that_no_other_follows_is_sent_once_more(world: World, make: Any, is_read_again: bool) -> None:
    """Django's clocked is due from any moment on, and its ``one_off`` but once: neither has a next tick."""
    kill_at_publish(world.beat({"entry": make}, entry=OneOff), after=True)
    world.run(61)
    second = world.beat({"entry": make}, entry=OneOff)
    if is_read_again:  # its row, which says that it has never run
        second.schedule["entry"].last_run_at = world.now
    world.run(80)
    assert [*world.ticks("entry").values()] == [2]


@pytest.mark.parametrize("interval", [0.5, 1, 2])
def test_a_slow_answer_is_not_taken_for_a_schedule_that_is_always_due(world: World, interval: float) -> None:
    """The entry is due again by then, and still the dead beat's tick is the only one that is sent again."""
    sender, _ = world.pair(every(interval), interval * 2.5)
    dead = kill_at_publish(sender, after=True)

    def pass_time() -> None:
        world.now += timedelta(seconds=interval if world.is_dead(sender) else 0)

    world.states.before_take = pass_time
    world.run(interval + 12)
    assert len(world.sent) > 4
    assert [tick for tick, times in world.ticks("entry").items() if times > 1] == dead


def test_who_waits_for_a_dead_beat_asks_once_a_second(world: World) -> None:
    """Whatever its own bound is: its interval is shorter now."""
    kill_at_publish(world.beat({"entry": every(60)}), after=False)
    world.run(60.1)
    world.states.asked.clear()
    world.beat({"entry": every(1)})
    world.run(9)
    assert world.states.asked.count("take") < 20


def test_a_beat_that_stood_still_while_it_asked_goes_on_from_when_it_woke_up(world: World) -> None:
    """It goes on with a later tick than it had asked for, which would be due again from that moment."""
    first, second = (world.beat({"entry": at(minute="*")}) for _ in range(2))
    world.run(30)
    world.stop(first, 80)
    world.run(60)
    world.kill(second)
    waits = iter([30])

    def pass_time() -> None:
        world.now += timedelta(seconds=next(waits, 0))

    world.states.before_take = pass_time
    world.run(120)
    assert [each.minute for each in world.times("entry")] == [1, 2, 3]


@pytest.mark.parametrize("interval", [5, 60])
@pytest.mark.parametrize("there", ["before", "after"])
def test_the_moment_of_a_clock_far_ahead_is_not_believed(world: World, there: str, interval: float) -> None:
    """Its entry would be silent for as long as that clock was ahead, in beats that run and that start."""
    first = world.beat({"entry": every(interval)}, clock=3600)
    if there == "before":
        world.beat({"entry": every(interval)})
    world.run(interval * 2.5)
    kill_at_publish(first, after=False)
    world.run(interval)
    sent = len(world.sent)
    if there == "after":
        world.beat({"entry": every(interval)})
    world.run(interval + LONGEST_BOUND + LOOK_AGAIN)
    assert len(world.sent) > sent


def test_a_scheduler_with_an_apply_entry_of_its_own_is_shared(world: World) -> None:
    """One that never calls its ``apply_async``: what it does is taken for sent, by all beats."""
    for _ in range(2):
        scheduler = world.beat({"entry": every(5)})
        own = partial(type(scheduler).apply_async, scheduler)
        scheduler.beat._theirs["apply_entry"] = own
    world.run(26)
    assert len(world.sent) == 5
    assert set(world.ticks("entry").values()) == {1}


@pytest.mark.parametrize("is_away", [False, True], ids=["at once", "before the lock server"])
@pytest.mark.parametrize("left", ["killed while it sent", "released", "away at a tick"])
def test_a_beat_that_starts_goes_on_from_what_is_left(world: World, left: str, is_away: bool) -> None:
    """One beat is replaced; or all of them start at once where a host does, with the lock server."""
    first = world.beat({"daily": at(minute="0", hour="13")})
    is_killed = left == "killed while it sent"
    if is_killed:
        kill_at_publish(first, after=False)
        world.run(3601)
    else:
        world.run(86400.0)
        first.publish = away
        if left == "away at a tick":
            world.kill(first)
        world.run(3700)
        world.kill(first)
    sent = len(world.sent)
    world.states.is_away = is_away
    world.beat({"daily": at(minute="0", hour="13")})
    world.run(5)
    world.server_is_back()
    world.run(LONGEST_BOUND if is_killed else 2)
    assert (sent, len(world.sent)) == ((0, 1) if is_killed else (1, 2))


@pytest.mark.parametrize("late", [0.0, LONGEST_BOUND], ids=["before the publish", "in the middle of it"])
def test_a_beat_told_to_stop_releases_a_tick_only_if_it_has_not_left(world: World, late: float) -> None:
    """SIGTERM raises SystemExit in whatever beat does. What may have left is sent again after the bound."""
    sender, _ = world.pair(every(60), 65)

    def stop(_what: object) -> bool:
        world.kill(sender)
        raise SystemExit

    if late:
        sender.publish = stop
    else:
        sender.beat._still_has = stop
    with pytest.raises(SystemExit):
        world.run(60)
    world.run(15)

    assert world.gaps("entry") == pytest.approx([60.0 + late], abs=LOOK_AGAIN + 0.1)


@pytest.mark.parametrize("stops_in", ["between ticks", "in the middle"])
def test_a_beat_that_stood_still_sends_nothing_twice(world: World, stops_in: str) -> None:
    """SIGSTOP for 30 s, also after the tick was taken: it asks again before it sends."""
    sender, _ = world.pair(every(5), 12)
    still_has = sender.beat._still_has

    def stand_still(tick: Any) -> bool:
        sender.beat._still_has = still_has
        world.stop(sender, 30)
        world.run(30)
        return bool(still_has(tick))

    if stops_in == "between ticks":
        world.stop(sender, 30)
    else:
        sender.beat._still_has = stand_still
    world.run(60)

    assert set(world.ticks("entry").values()) == {1}
    assert max(world.gaps("entry")) <= 5 + 5 + LOOK_AGAIN


@pytest.mark.parametrize("asleep", [8, 40], ids=["alone", "with its host"])
def test_a_beat_that_stood_still_has_its_tick_for_as_long_as_before(world: World, asleep: float) -> None:
    """What it is about to send is its own, so it has the time for it that it would have had."""
    sender, other = world.pair(every(60), 65)
    still_has = sender.beat._still_has

    def stand_still(seconds: float) -> None:
        world.stop(sender, asleep + 30)
        world.run(seconds)

    def still_has_it(tick: Any) -> bool:
        if asleep > LONGEST_BOUND:
            world.stop(other, asleep)
        stand_still(asleep)
        return bool(still_has(tick))

    sender.beat._still_has = still_has_it
    once(sender, lambda _entry: stand_still(5))
    world.run(60)

    assert len(world.sent) == 2
    assert set(world.ticks("entry").values()) == {1}


# --- what goes wrong -------------------------------------------------------------------------


def test_a_broker_that_is_away_for_the_sender_leaves_the_tick_to_another(world: World) -> None:
    """The tick is released, and sent a tenth of a second later by who has seen that it is being sent."""
    sender, _ = world.pair(every(60), 65)

    def slowly(entry: Any) -> None:
        world.stop(sender, 5)
        world.run(0.4)
        away(entry)

    sender.publish = slowly
    world.run(120)

    assert world.gaps("entry") == pytest.approx([60.5, 60.0], abs=0.15)
    assert {each.by for each in world.sent[1:]} == {1 - sender.number}


def test_a_broker_that_is_away_for_all_is_tried_each_second_and_the_tick_is_sent_once(world: World) -> None:
    """As the same message: it may have left when the connection broke."""
    for _ in range(2):
        world.beat({"entry": every(60)}).publish = away
    world.run(70)
    for each in world.beats:
        each.publish = None
    world.run(10)
    assert len(world.sent) == 1
    assert world.sent[0].at - START <= timedelta(seconds=70 + RETRY + 0.1)


@pytest.mark.parametrize("task", ["plain", "unique"], ids=["the broker", "the lock server"])
@pytest.mark.parametrize(
    "is_own", [False, True], ids=["Celery's apply_entry", "one that lets errors through"]
)
def test_an_error_of_a_server_spends_no_tick(world: World, task: str, is_own: bool) -> None:
    """What Celery's own publish has met counts, whether the scheduler swallows it or not."""
    at_once = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
    world.app.conf.update(task_publish_retry=False, broker_transport_options=at_once)
    scheduler = world.beat({"entry": every(60)}, task=task, settings=LockSettings(beat=("*",)))
    if is_own:
        scheduler.beat._theirs["apply_entry"] = partial(scheduler.apply_async)
    once(scheduler, lambda entry: APPLY_ASYNC(scheduler, entry, advance=False))
    world.run(61)
    world.server_is_back()  # for whom it waits where it is told
    world.run(1.1)
    assert scheduler.publish is None
    assert len(world.sent) == 1


@pytest.mark.parametrize("error", [ValueError("no key"), FileNotFoundError("its argument")], ids=str)
def test_an_entry_that_cannot_be_sent_spends_its_tick(world: World, error: Exception) -> None:
    """Its error is logged by Celery; it is not tried for ever, by no beat."""
    tried = []

    def broken(entry: Any) -> None:
        if entry.name == "broken":
            tried.append(entry)
            raise error

    for _ in range(2):
        world.beat({"broken": every(5), "entry": every(5)}).publish = broken
    world.run(26)

    assert len(tried) == 5
    assert len(world.times("entry")) == 5
    assert world.states.state("broken").ran is None


def test_a_lock_server_that_is_away_holds_its_entries_back(world: World, caplog: Any) -> None:
    """Told once for each, asked by one; the ticks missed meanwhile are one when it answers again."""
    beats = [world.beat({"entry": every(5), "other": every(5)}) for _ in range(2)]
    world.beat({"plain": every(5)}, task="plain")
    world.run(12)
    world.states.is_away = True
    before = len(world.states.asked)
    world.run(20)
    assert len(world.times("entry")) == 2
    assert len(world.states.asked) - before == len(beats)
    world.server_is_back()
    world.run(6)

    assert len(world.times("entry")) in {3, 4}
    assert set(world.ticks("entry").values()) == {1}
    assert world.gaps("plain") == pytest.approx([5.0] * 6, abs=0.05)
    waits = [text for text in caplog.messages if "waits until the lock server" in text]
    assert sorted(text.split()[0] for text in waits) == ["entry", "entry", "other", "other"]
    assert caplog.text.count("entries that waited: entry, other") == len(beats)


def test_a_lock_server_that_only_answers_reads_is_told_once(world: World, caplog: Any) -> None:
    """A replica, or one without memory: it is back when it takes what is written."""
    scheduler = world.beat({"one": every(5)})
    world.states.is_full = True
    looks: list[float] = []

    def look(_seconds: float) -> None:
        looks.append(world.time())
        assert len(looks) < 9, "nobody writes"
        world.states.is_full = len(looks) < 5

    world.run(8)
    module.time.sleep = look  # type: ignore[assignment]
    world.server_is_back()
    world.run(6)

    assert len(looks) == 5
    assert scheduler.beat._outage is None
    assert caplog.text.count("waits until the lock server") == 1
    assert len(world.times("one")) == 2


def test_on_lock_error_run_sends_without_asking(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Law 9: the policy is a named option; what it costs is said."""
    world.app.conf.redislock_on_lock_error = "run"
    for _ in range(2):
        world.beat({"entry": every(5), "other": every(5)})
    world.states.is_away = True
    asked = len(world.states.asked)
    world.run(11)
    assert len(world.sent) == 8
    # Each request that is not answered may take two socket timeouts, for which no other entry is sent.
    assert len(world.states.asked) - asked == 2
    assert "as any other beat may" in caplog.text


@pytest.mark.parametrize("policy", ["raise", "run"])
def test_a_sent_tick_that_could_not_be_noted_is_not_sent_again(
    world: World, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server went away between the send and its note: the next tick goes on from this beat's state."""
    world.app.conf.redislock_on_lock_error = policy
    scheduler = world.beat({"entry": every(5)})

    def go_away(_entry: Any) -> None:
        world.states.is_away = True

    once(scheduler, go_away)
    world.run(6)
    assert len(world.sent) == 1
    assert "waits until the lock server" not in caplog.text
    world.server_is_back()
    world.run(5)

    assert len(world.sent) == 2
    assert set(world.ticks("entry").values()) == {1}


@pytest.mark.parametrize(
    "text",
    ["rubbish", "99999999999999 1 rubbish", "0 1 []", "0 99999999999999999999 {}", "0 1 " + "[" * 9999],
)
def test_a_state_that_cannot_be_read_stops_nothing(world: World, caplog: Any, text: str) -> None:
    """Of another version, of another type, or nonsense: a warning, and the schedule goes on."""
    world.beat({"entry": every(5)})
    world.states.texts["entry"] = text
    world.run(11)
    assert len(world.sent) == 2
    assert "is treated as absent" in caplog.text


def test_a_state_lost_after_a_send_is_sent_again_as_the_same_message(world: World) -> None:
    """Its done mark stops the second run, where the marks were not lost as well."""
    world.pair(every(60), 65)
    end = world.now + timedelta(seconds=56)
    while len(world.sent) == 1 and world.now < end:
        world.run(0.05)
    world.states.texts.clear()
    world.run(5)
    assert len(world.sent) == 3
    assert len({each.options["task_id"] for each in world.sent}) == 2


def test_a_state_lost_between_two_requests_for_a_tick_costs_none_that_was_sent_before(world: World) -> None:
    """A beat that stood still has learnt of the ticks of others by then. An old identity makes a copy."""
    sender, other = world.pair(every(60), 65)
    world.stop(other, 200)
    world.run(130)
    world.kill(sender)

    def lose_at_the_second() -> None:
        if world.states.asked[-1] == "take":
            world.states.texts.clear()
            world.states.before_take = lambda: None

    world.states.before_take = lose_at_the_second
    world.run(200)

    assert world.states.before_take is not lose_at_the_second
    assert other.number in {each.by for each in world.sent}
    assert set(world.ticks("entry").values()) == {1}


# --- outages of all beats, pauses, changes ---------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "option", "expected"), [("one", None, 1), ("none", None, 0), ("one", "none", 0)]
)
def test_a_missed_tick_is_made_up_for_once_or_not(
    world: World, setting: Any, option: str | None, expected: int
) -> None:
    """Celery's own rule, or ``redislock_catchup = "none"``; what is due next is sent in either case."""
    settings = LockSettings(catchup=setting)
    options = {"redislock_catchup": option} if option else {}
    entries = {"entry": at(minute="0"), "often": every(600)}
    world.kill(world.beat(entries, settings=settings, options=options))
    first = world.beat(entries, settings=settings, options=options)
    world.run(3900)
    world.kill(first)
    world.run(5 * 3600)
    world.sent.clear()
    for _ in range(2):
        world.beat(entries, settings=settings, options=options)
    world.run(60)
    assert (len(world.times("entry")), len(world.times("often"))) == (expected, expected)
    world.run(3600)

    assert len(world.times("entry")) == expected + 1


@pytest.mark.parametrize(("catchup", "expected"), [("one", 1), ("none", 0)])
def test_a_short_interval_is_missed_when_late_by_itself(world: World, catchup: Any, expected: int) -> None:
    """A minute is long for an interval of ten seconds."""
    settings = LockSettings(catchup=catchup)
    first = world.beat({"entry": every(10)}, settings=settings)
    world.run(25)
    world.kill(first)
    world.run(25)
    world.sent.clear()
    world.beat({"entry": every(10)}, settings=settings)
    world.run(8)
    assert len(world.sent) == expected
    world.run(10)
    assert len(world.sent) == expected + 1


def test_a_paused_entry_advances_and_sends_nothing(world: World) -> None:
    """When it is resumed the next tick is sent, and none is made up for."""
    world.pair(every(5), 12)
    ran = world.states.state("entry").ran
    world.states.paused.add("entry")
    world.run(15)
    assert len(world.times("entry")) == 2
    assert world.states.state("entry").ran == ran
    world.states.paused.clear()
    world.run(10)
    assert len(world.times("entry")) == 4
    assert world.gaps("entry") == pytest.approx([5.0, 20.0, 5.0], abs=0.3)


def refusing(strategy: str = "skip", facts: str = '"since":1780315000') -> Callable[[Any], None]:
    """Return a publish whose key a message has held since five minutes before the world began."""
    value = f'holder/1\0{{"state":"queued",{facts}}}'.encode()

    def publish(entry: Any) -> None:
        conflict = {"key": "k", "holder": Hold("k", value, 60.0), "side": "client", "strategy": strategy}
        lock_conflict.send(sender=None, task_id="another", **conflict)
        lock_conflict.send(sender=None, task_id=entry.options["task_id"], **conflict)
        if strategy == "raise":
            raise DuplicateTask("k", "holder", 60.0)

    return publish


@pytest.mark.parametrize("strategy", ["skip", "raise"])
def test_a_tick_that_its_task_skips_says_who_held_the_key(world: World, strategy: str) -> None:
    """It goes with the state, so each beat knows it, also one that starts later; the next send ends it."""
    world.beat({"entry": every(5)})
    world.run(6)
    ran = world.states.state("entry").ran
    world.beats[0].publish = refusing(strategy)
    world.run(15)
    world.kill(world.beats[0])
    second = world.beat({"entry": every(5)})
    second.publish = refusing(strategy)
    world.run(6)

    state = world.states.state("entry")
    assert state.ran == ran
    assert state.skip is not None
    assert state.skip.at == pytest.approx(world.time(), abs=6)
    assert state.skip.held_for == pytest.approx(state.skip.at - 1780315000)
    assert (state.skip.task_id, state.skip.state, state.skip.in_a_row) == ("holder", "queued", 4)

    second.publish = None
    world.run(5)
    state = world.states.state("entry")
    assert state.ran == state.at
    assert state.skip is None


@pytest.mark.parametrize("is_sent", [True, False], ids=["one is sent", "none is"])
def test_a_tick_of_several_messages_is_skipped_if_each_of_them_is(world: World, is_sent: bool) -> None:
    """What the commands show: one that left was sent."""
    scheduler = world.beat({"entry": every(5)}, kind=PerTenant)

    def publish(entry: Any) -> None:
        options = dict(entry.options)
        task_id = options["headers"]["redislock_tick"].name(options, "a call")
        if not (is_sent and world.sent):
            refusing()(SimpleNamespace(options={"task_id": task_id}))

    scheduler.publish = publish
    world.run(6)

    state = world.states.state("entry")
    assert (state.ran == state.at, state.skip is None) == (is_sent, is_sent)


def test_a_tick_that_waits_for_its_key_is_sent(world: World) -> None:
    """Its message leaves, and runs in its turn. Else the holder is named, whatever it says of itself."""
    scheduler = world.beat({"entry": every(5)})
    scheduler.publish = refusing("wait")
    world.run(6)
    state = world.states.state("entry")
    assert (state.ran, state.skip) == (state.at, None)
    scheduler.publish = refusing(facts='"since":"soon"')
    world.run(5)
    skip = world.states.state("entry").skip
    assert skip is not None
    assert (skip.task_id, skip.held_for, skip.in_a_row) == ("holder", None, 1)


def test_a_schedule_that_is_changed_is_looked_at_at_once(world: World) -> None:
    """Also by a beat that waits for a tick another one has sent: database schedules change as they run."""
    sender, left = world.pair(every(3600), 3700)
    world.kill(sender)
    left.schedule["entry"].schedule.run_every = timedelta(seconds=60)
    left._heap = None
    world.stop(left, 0)
    world.run(LOOK_AGAIN + 0.1)
    assert len(world.sent) == 2


class Own(BaseSchedule):
    """Somebody's own schedule: every five seconds, with as little as beat needs."""

    next_in = 5.0

    def __init__(self, now: Callable[[], datetime], app: Any) -> None:
        super().__init__(nowfun=now, app=app)

    def is_due(self, last_run_at: datetime) -> Any:
        left = 5 - (self.now() - self.maybe_make_aware(last_run_at)).total_seconds()
        return (True, self.next_in) if left <= 0 else (False, left)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = BaseSchedule.__hash__


@pytest.mark.parametrize("catchup", ["one", "none"])
def test_an_own_schedule_that_has_is_due_alone_is_shared(world: World, catchup: str) -> None:
    """It cannot tell when it was due, so nothing of it is missed."""
    for _ in range(2):
        world.beat({"entry": Own}, settings=LockSettings(catchup=catchup))
    world.run(21)
    assert len(world.sent) == 4
    assert set(world.ticks("entry").values()) == {1}


@pytest.mark.parametrize("next_in", [inf, nan, -1.0, None, 1e300], ids=str)
def test_a_schedule_may_say_anything_of_its_next_due_time(world: World, next_in: Any) -> None:
    """Its tick is sent, and other entries' are."""
    scheduler = world.beat({"odd": type("Odd", (Own,), {"next_in": next_in}), "entry": every(5)})
    scheduler.adjust = lambda n, drift=-0.01: min(n, 60.0) + drift if n and n > 0 else 0
    world.run(6)
    assert {each.name for each in world.sent} == {"odd", "entry"}


def test_an_error_of_a_schedule_stops_no_other_entry(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Where plain beat would not have asked it: from the moment that all share."""

    class Choosy(Own):
        def is_due(self, last_run_at: datetime) -> Any:
            if last_run_at.microsecond == 500:
                raise ValueError("not that moment")
            return super().is_due(last_run_at)

    world.beat({"choosy": Choosy, "entry": every(5)})
    shared = world.beat({"choosy": every(1)})
    world.run(2)
    world.kill(shared)
    state = world.states.texts["choosy"]
    world.states.texts["choosy"] = re.sub(r'"at":"[^"]*"', '"at":"2026-06-01T12:00:30.000500+00:00"', state)
    world.run(20)

    assert "'choosy' is not sent this time" in caplog.text
    assert len(world.times("entry")) == 4


def test_an_entry_whose_moment_is_older_here_is_asked_for_first(world: World) -> None:
    """django-celery-beat reads its rows again, which another beat may not have written yet."""
    scheduler = world.beat({"entry": every(60)})
    world.run(61)
    scheduler.schedule["entry"].last_run_at = START - timedelta(days=1)
    scheduler._heap = None
    world.stop(scheduler, 0)
    world.run(30)
    assert len(world.sent) == 1


def read_again(scheduler: Any, last: datetime) -> None:
    """Let a beat read a row again that was changed then, and that says of no run."""
    entry = scheduler.schedule["entry"]
    entry.last_run_at, entry.total_run_count, scheduler._heap = last, 0, None
    scheduler.world.stop(scheduler, 0)


@pytest.mark.parametrize("make", [clocked, every(10)], ids=["clocked", "interval"])
def test_a_row_that_is_to_be_sent_once_is_sent_once(world: World, make: Any) -> None:
    """Its row is written late by the beat that has sent it, and meanwhile says to the others that it is due.

    So to beats that look at it, that read it again, and that start then. Changed later, it is due again.
    """
    beats = [world.beat({"entry": make}, entry=OneOff) for _ in range(2)]
    world.run(61)
    assert len(world.sent) == 1
    for each in beats:
        if each.number != world.sent[0].by:
            read_again(each, START)
    beats.append(world.beat({"entry": make}, entry=OneOff, last=START))
    world.run(61)
    assert len(world.sent) == 1
    for each in beats:
        read_again(each, world.now)
    world.run(61)

    assert len(world.sent) == 2
    assert set(world.ticks("entry").values()) == {1}


def test_a_row_is_to_be_written_once_its_tick_is_sent(world: World) -> None:
    """Celery's scheduler may write it right after a publish that failed: the tick would count as sent."""
    scheduler = world.beat({"entry": every(60)}, entry=Row, kind=Rows)
    written = []

    def publish(_entry: Any) -> None:
        written.append("entry" in scheduler._dirty)
        if len(written) == 1:
            raise OperationalError("away")

    scheduler.publish = publish
    world.run(60.5)
    assert scheduler._dirty == set()
    world.run(10)

    assert written == [False, False]
    assert scheduler._dirty == {"entry"}


def test_what_a_beat_has_sent_before_the_lock_server_answers_is_not_sent_again(world: World) -> None:
    """The heap is made anew then, of entries which are those of the start (django-celery-beat)."""
    world.states.is_away = True
    world.beat({"entry": every(60)}, entry=Row, kind=Rows, task="plain")
    world.run(65)
    world.server_is_back()
    world.run(50)
    assert len(world.sent) == 1


@pytest.mark.parametrize("kind", [Recording, Rows])
def test_a_tick_sent_without_the_lock_server_is_not_sent_again(world: World, kind: type[Recording]) -> None:
    """``on_lock_error="run"``: the moment that the beats have shared before is older."""
    entry = Row if kind is Rows else ScheduleEntry
    world.app.conf.redislock_on_lock_error = "run"
    first = world.beat({"daily": at(minute="0", hour="13")}, entry=entry, kind=kind)
    world.run(3700)
    world.kill(first)
    world.run(86400 - 200)
    world.states.is_away = True
    second = world.beat({"daily": at(minute="0", hour="13")}, entry=entry, kind=kind)
    world.run(300)
    assert len(world.sent) == 2
    assert second.beat._dirty == {"daily"}  # its row, if any, is to be written
    world.server_is_back()
    world.run(60)

    assert len(world.sent) == 2


@pytest.mark.parametrize("catchup", ["one", "none"])
def test_the_first_tick_of_a_row_with_a_start_is_not_missed(world: World, catchup: Any) -> None:
    """django-celery-beat says of it that it ran thirty years ago."""

    class Starting(Row):
        start_time = START

        def is_due(self) -> Any:
            return super().is_due() if self.default_now() > START else (False, 1.0)

    settings = LockSettings(catchup=catchup)
    last = START - timedelta(days=365 * 30)
    world.beat({"entry": every(3600)}, entry=Starting, kind=Rows, settings=settings, last=last)
    world.run(30)

    assert len(world.sent) == 1


def test_a_tick_that_a_beat_of_another_version_is_sending_is_asked_for_each_second(world: World) -> None:
    """What it says of it cannot be read; for how long it is being sent, can."""
    world.beat({"entry": every(60)})
    world.run(59)
    now = round(world.time() * 1000)
    world.states.texts["entry"] = f'{now + 10_000} {now} {{"v": 2}}'
    world.states.asked.clear()
    world.run(9)
    assert 5 <= len(world.states.asked) <= 10
    world.run(5)
    assert len(world.sent) == 1
