"""The soak's checks find what they are for: each is shown ticks that are wrong."""

import pytest

from tests.acceptance.ticks import Tick
from tools.soak.verdict import Trouble, Verdict, of_interval, of_minutes

KILL = Trouble("killed", 103.4, 103.4, late=2.0)
LOSS = Trouble("lost its data", 103.4, 105.0, late=2.0, repeats=1)


def ticks(*moments: float, same: tuple[int, ...] = ()) -> list[Tick]:
    """Return ticks sent at these moments; those in ``same`` have the identity of the one before."""
    made: list[Tick] = []
    for number, at in enumerate(moments):
        identity = made[-1].tick if number in same else str(number)
        made.append(
            Tick(key="k", task_id=identity or "", token=identity, tick=identity, at=at, wall=at, pid=1)
        )
    return made


def judged(*moments: float, troubles: tuple[Trouble, ...] = (), same: tuple[int, ...] = ()) -> Verdict:
    return of_interval(ticks(*moments, same=same), 1.0, moments[-1] + 0.5, troubles)


def test_ticks_in_time_are_no_problem() -> None:
    verdict = judged(100, 101.2, 102.2, 103.5, 104.5)
    assert (verdict.problems, verdict.explained, verdict.merged) == ([], [], 0)


@pytest.mark.parametrize(
    ("moments", "same"),
    [((100, 101, 101.3, 102), ()), ((100, 101, 102), (2,)), ((100, 101, 103, 104), ())],
    ids=["twice", "one identity twice", "one missing"],
)
def test_a_tick_that_comes_twice_or_not_at_all_is_a_problem(
    moments: tuple[float, ...], same: tuple[int, ...]
) -> None:
    assert len(judged(*moments, same=same).problems) == 1


def test_an_end_of_all_ticks_is_a_problem() -> None:
    assert of_interval(ticks(100, 101), 1.0, 104.0, ()).problems
    assert of_interval([], 1.0, 104.0, ()).problems
    assert of_minutes([], 100.0, 300.0, ()).problems


def test_a_trouble_explains_a_late_tick_and_only_one_that_was_due_then() -> None:
    late = judged(102, 103, 105.5, 106.5, troubles=(KILL,))
    assert (late.problems, len(late.explained), late.merged) == ([], 1, 1)
    assert judged(102, 103, 106.5, troubles=(KILL,)).problems
    assert judged(100, 102, 103, troubles=(KILL,)).problems
    assert judged(106, 107, 109.5, troubles=(KILL,)).problems


def test_lost_data_explains_one_repeat_and_a_kill_none() -> None:
    again = (102, 103, 105.5, 105.7, 106.7)
    assert judged(*again, troubles=(LOSS,)).problems == []
    assert judged(*again, 106.9, 107.9, troubles=(LOSS,)).problems
    assert judged(*again, troubles=(KILL,)).problems


def test_each_minute_has_one_tick_in_time() -> None:
    assert of_minutes(ticks(60.1, 120.2, 180.0), 30.0, 200.0, ()).problems == []
    assert of_minutes(ticks(60.1, 180.0), 30.0, 200.0, ()).problems == ["none was sent at 120.00"]
    assert len(of_minutes(ticks(60.1, 120.2, 121.0, 180.0), 30.0, 200.0, ()).problems) == 1
    assert len(of_minutes(ticks(60.1, 122.0, 180.0), 30.0, 200.0, ()).problems) == 1
    slow = Trouble("stopped", 119.0, 119.0, late=10.0)
    assert of_minutes(ticks(60.1, 128.0, 180.0), 30.0, 200.0, (slow,)).problems == []
