"""What is shared about an entry: read whatever is there, and whenever it was written."""

import json
from datetime import datetime, timedelta, timezone
from math import inf
from typing import Any

import pytest

from celery_redislock.scheduling.state import AHEAD, SkippedTick, State, finished, prolonged
from tests.states import state_of

AT = datetime(2026, 6, 1, 12, 0, 5, 250_000, tzinfo=timezone.utc)
ABOUT = {
    "at": AT.isoformat(),
    "before": "2026-06-01T14:00:00+02:00",
    "by": "host:1",
    "ran": None,
    "due": 1780315210.25,
    "nonce": "n",
}


def text(until: int = 0, taken: int = 1780315205250, **more: Any) -> str:
    return f"{until} {taken} {json.dumps({'v': 1, 'entry': 'e', **ABOUT, **more})}"


def test_a_state_is_read_as_it_was_written(caplog: pytest.LogCaptureFixture) -> None:
    """Moments in UTC, whatever zone they were written in; seconds. No state is nothing to worry about."""
    assert (State.read(""), caplog.text) == (None, "")
    state = state_of(text(1780315215250))
    assert (state.entry, state.at, state.before) == ("e", AT, AT - timedelta(seconds=5.25))
    assert (state.by, state.ran, state.due) == ("host:1", None, 1780315210.25)
    assert (state.taken_at, state.sending_until) == (1780315205.25, 1780315215.25)


def test_a_field_of_another_kind_makes_the_state_absent(caplog: pytest.LogCaptureFixture) -> None:
    """Written by another version, or by another program: a warning, and never an error."""
    wrong: list[dict[str, Any]] = [
        *({"v": 2}, {"entry": 1}, {"by": None}, {"before": 3}, {"ran": "x"}),
        *({"at": at} for at in (None, "soon", "2026-06-01T12:00:00")),
        *({"due": due} for due in ("x", [], inf)),
    ]
    for fields in wrong:
        caplog.clear()
        assert State.read(text(**fields)) is None
        assert "is treated as absent" in caplog.text


@pytest.mark.parametrize(
    ("is_interval", "clock", "seen"),
    [
        (False, 0, AT),
        # Three seconds behind the sender: its reading is the later one.
        (False, -3, AT),
        # Three seconds ahead: as long ago as the server has seen it, by the own clock.
        (False, 3, AT + timedelta(seconds=3)),
        # More than a minute behind: the sender's clock is not believed.
        (False, -AHEAD - 11, AT - timedelta(seconds=AHEAD + 11)),
        # An interval needs no common clock.
        (True, -3, AT - timedelta(seconds=3)),
        (True, 3, AT + timedelta(seconds=3)),
        # The server's reading is a millisecond early, and means the same moment.
        (True, -0.001, AT),
    ],
)
def test_a_moment_is_seen_by_the_later_reading(is_interval: bool, clock: float, seen: datetime) -> None:
    """So beats whose clocks are seconds apart send what one would send; seen two seconds after the tick."""
    state = state_of(text())
    here, now = AT + timedelta(seconds=2 + clock), state.taken_at + 2
    assert abs(state.seen_from(here, now, is_interval=is_interval) - seen) < timedelta(microseconds=100)


def test_a_state_that_is_finished_or_prolonged_keeps_when_it_was_taken() -> None:
    """It is what other beats count from. A process that stood still has its tick for so much longer."""
    state = state_of(finished(text(1780315215250), is_sent=True))
    longer = state_of(prolonged(text(1780315215250), 7.5))
    assert (state.sending_until, state.taken_at, state.ran) == (0, 1780315205.25, AT)
    assert longer._replace(text="") == state_of(text(1780315222750))._replace(text="")


SKIPPED = SkippedTick(1780315205.5, "t1", "queued", 720.0)


def test_a_skipped_tick_moves_no_moment_and_is_counted_until_one_is_sent() -> None:
    """By whom the last one was refused, and how many there were."""
    before = AT - timedelta(minutes=5)
    sending = text(1780315215250, ran=before.isoformat())
    once = finished(sending, is_sent=False, skipped=SKIPPED)
    twice = finished(once, is_sent=True, skipped=SKIPPED._replace(task_id="t2", state=None, held_for=None))
    spent = finished(twice, is_sent=False)
    assert (state_of(once).ran, state_of(once).sending_until) == (before, 0)
    assert state_of(once).skip == SKIPPED
    assert state_of(twice).ran == before
    assert state_of(twice).skip == state_of(spent).skip == (1780315205.5, "t2", None, None, 2)
    sent = state_of(finished(spent, is_sent=True))
    assert (sent.ran, sent.skip) == (AT, None)


def test_a_state_is_read_without_a_skip_and_with_nonsense_for_one() -> None:
    """A state of an earlier beat has none; and nothing of it stops a schedule."""
    assert state_of(text()).skip is None
    wrong: list[dict[str, object]] = [{"at": "soon"}, {"at": inf}, {"held_for": 1e20}, {"in_a_row": inf}]
    for skip in (None, {}, [], "soon", *({**SKIPPED._asdict(), **fields} for fields in wrong)):
        assert state_of(text(skip=skip)) == state_of(text())._replace(text=text(skip=skip))
