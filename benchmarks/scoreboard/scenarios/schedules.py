"""What beat sends: each tick runs once, however many beats there are and whatever becomes of one.

The beats are real ones, with nothing set but the schedule and the file of each.
The pages of the five others do not speak of beat. celery-singleton, celery-once
(``graceful``, a timeout of an hour), celery-once-task (all of its set-up) and
rhubarb are used as in every other scenario, and so is ours. celery-heimdall's have a "unique
interval task", which is what is played, with 0.8 of the interval.
"""

import time

from benchmarks.scoreboard.judging import Outcome, once_a_tick
from benchmarks.scoreboard.libraries import EVERY
from benchmarks.scoreboard.scenarios.scenario import scenario
from benchmarks.scoreboard.stage import Stage

__all__ = ["beat_replaced", "two_beats_by_the_clock", "two_beats_on_an_interval"]

#: Entries that are due at the same moment, as many are at midnight.
ENTRIES = 10
#: Seconds from the start of one beat to that of the other.
APART = 1.3
#: Seconds after a tick, or after the moment of one that nobody sent.
SOON = 0.5
#: Seconds by which two readings of clocks may differ.
GRACE = 0.1


@scenario("19", f"two beats started {APART} s apart, an entry every {EVERY} s: one run a tick")
def two_beats_on_an_interval(stage: Stage) -> Outcome:
    """Each counts the interval from its own start."""
    ticks = stage.times(6)
    _two_beats(stage, "interval")
    # Half an interval around each tick, from the first run on: also what comes early belongs to it.
    first = stage.started("periodic").start - EVERY / 2
    stage.wait_for(first + ticks * EVERY)
    return once_a_tick(stage.bodies("periodic"), first, EVERY, ticks)


@scenario("20", f"the same, {ENTRIES} entries by the clock, as `crontab`: one run a tick")
def two_beats_by_the_clock(stage: Stage) -> Outcome:
    """Both send at the same moment; which is the first differs from entry to entry."""
    ticks = stage.times(6)
    _two_beats(stage, "clock", ENTRIES)
    first = _next_moment()
    stage.wait_for(first + ticks * EVERY)
    return once_a_tick(stage.bodies("periodic"), first, EVERY, ticks, ENTRIES)


@scenario("21", "a beat is killed (SIGKILL) and replaced, with its schedule file and without: one run a tick")
def beat_replaced(stage: Stage) -> Outcome:
    """A beat writes its file every three minutes, and a new container has none.

    The second one comes at once and finds the file of the first one; the third
    one comes late, after a moment at which there was no beat, and has a file of
    its own.
    """
    beat, second, third = (stage.load_beat("clock", name) for name in ("kept", "kept", "other"))
    stage.let_go(beat)
    first = _next_moment()
    stage.wait_for(first + 2 * EVERY + SOON)
    beat.kill()
    stage.let_go(second)
    stage.wait_for(first + 4 * EVERY + SOON)
    second.kill()
    stage.wait_for(first + 5 * EVERY + SOON)
    stage.let_go(third)
    stage.wait_for(first + 8 * EVERY)
    return once_a_tick(stage.bodies("periodic"), first, EVERY, 8)


def _two_beats(stage: Stage, schedule: str, entries: int = 1) -> None:
    one, other = (stage.load_beat(schedule, name, entries=entries) for name in ("one", "other"))
    began = time.monotonic()
    stage.let_go(one)
    stage.wait_for(began + APART)
    stage.let_go(other)


def _next_moment() -> float:
    """Return when an entry by the clock is due next, by the clock of the bodies."""
    return time.monotonic() + EVERY - time.time() % EVERY - GRACE
