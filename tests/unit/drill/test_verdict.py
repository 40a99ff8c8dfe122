"""The verdict on histories made by hand: it can fail, and a clean one passes."""

from collections.abc import Sequence

import pytest

from celery_redislock.drill.verdict import Held, judge


def held(
    fence: int,
    start: float,
    end: float,
    *,
    deadline: float = 99.0,
    writes: Sequence[float] = (),
    is_lost: bool = False,
) -> Held:
    """A hold of a client of its own."""
    writes = writes or [start, end]
    return Held(f"client {fence}", f"token {fence}", fence, start, writes, end, deadline, is_lost)


def test_a_clean_history_shows_nothing() -> None:
    """Holds that follow each other with growing fences break no promise, in whatever order they are read."""
    verdict = judge([held(2, 2.0, 3.0), held(1, 0.0, 1.0)])
    assert verdict.holds == 2
    assert (verdict.overlaps, verdict.disorder) == ([], [])
    assert (verdict.late, verdict.refused, verdict.slipped) == (0, 0, 0)


def test_two_that_trust_their_leases_at_once_are_an_overlap() -> None:
    """Both were at work, and the deadline of neither had passed."""
    verdict = judge([held(1, 0.0, 3.0), held(2, 2.0, 4.0)])
    assert len(verdict.overlaps) == 1
    assert "at once for 1.000 s" in verdict.overlaps[0]
    assert verdict.refused == 1


def test_a_fence_that_does_not_grow_is_out_of_order() -> None:
    """The later hold has a smaller fence, and a resource refuses all that it writes."""
    verdict = judge([held(5, 0.0, 1.0), held(4, 2.0, 3.0)])
    assert verdict.overlaps == []
    assert len(verdict.disorder) == 1
    assert verdict.refused == 2


def test_one_that_goes_on_after_its_deadline_is_no_overlap_and_the_fence_refuses_it() -> None:
    """A paused holder's late write is refused once somebody newer has written."""
    verdict = judge([held(1, 0.0, 5.0, deadline=1.0), held(2, 2.0, 3.0)])
    assert (verdict.overlaps, verdict.disorder) == ([], [])
    assert (verdict.late, verdict.refused, verdict.slipped) == (1, 1, 0)


def test_a_late_write_before_anybody_newer_slips_in() -> None:
    """A fence cannot refuse who is late while nobody newer has written."""
    verdict = judge([held(1, 0.0, 5.0, deadline=1.0, writes=[2.0, 5.0]), held(2, 4.0, 4.5)])
    assert (verdict.late, verdict.refused, verdict.slipped) == (2, 1, 1)


def test_losses_and_the_longest_time_without_a_holder_are_told() -> None:
    """From the last end to the next start: a hold within another one ends no such time."""
    history = [held(1, 0.0, 5.0), held(2, 1.0, 2.0, is_lost=True), held(3, 5.5, 6.0), held(4, 9.0, 9.5)]

    verdict = judge(history[::-1])

    assert (verdict.lost, verdict.idle) == (1, 3.0)
    assert (judge([]).idle, judge(history[:1]).idle) == (0.0, 0.0)
    assert judge(history, 20.0).idle == 10.5


@pytest.mark.parametrize(("next_start", "idle"), [(4.0, 3.0), (7.0, 6.0)])
def test_who_goes_on_after_the_deadline_holds_nothing_meanwhile(next_start: float, idle: float) -> None:
    """A paused holder's lock is dead, and the time counts until another one has it."""
    assert judge([held(1, 0.0, 5.0, deadline=1.0), held(2, next_start, 9.0)]).idle == idle
