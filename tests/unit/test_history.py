"""The checker of law 1: what it must accept, and above all what it must refuse."""

import pytest

from tests.history import Interval, violations


def at_work(who: str, start: float, end: float, *, fence: int | None = None, key: str = "k") -> Interval:
    """One that believed to the end that it was alone."""
    return Interval(key, who, fence, start, end)


def loser(who: str, start: float, end: float, *, lost_at: float, fence: int | None = None) -> Interval:
    """One that learnt of a loss."""
    return Interval("k", who, fence, start, end, lost_at)


@pytest.mark.parametrize(
    "history",
    [
        [],
        [at_work("a", 1, 5, fence=1)],
        [at_work("a", 1, 2, fence=1), at_work("b", 2, 3, fence=2), at_work("c", 4, 5, fence=9)],
        [at_work("a", 1, 5, fence=1), at_work("b", 2, 3, fence=1, key="another")],
        [at_work("b", 2, 3, fence=2), at_work("a", 1, 2, fence=1)],
        [at_work("a", 1, 2), at_work("b", 2, 3)],
        [loser("a", 1, 9, lost_at=3, fence=1), at_work("b", 3, 4, fence=2), at_work("c", 5, 6, fence=3)],
        [loser("a", 1, 2, lost_at=5, fence=1), at_work("b", 2, 3, fence=2)],
        [at_work("b", 2, 4, fence=2), loser("a", 3, 9, lost_at=1, fence=1)],
    ],
    ids=[
        "nothing",
        "one",
        "one after the other",
        "at once on two keys",
        "written down in any order",
        "without fences",
        "beside one that learnt of its loss, after its deadline",
        "after one that learnt of its loss but ended before its deadline",
        "one that was paused between its grant and its first step",
    ],
)
def test_a_history_that_keeps_the_law_is_accepted(history: list[Interval]) -> None:
    assert violations(history) == []


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ([at_work("a", 1, 3), at_work("b", 2, 4)], "a and b held 'k' at once for 1.000 s"),
        ([at_work("b", 2, 4), at_work("a", 1, 3)], "a and b held 'k' at once"),
        ([at_work("a", 1, 9), at_work("b", 2, 3), at_work("c", 4, 5)], "a and c held 'k' at once"),
        ([at_work("a", 1, 1.5), at_work("b", 1, 3)], "a and b held 'k' at once"),
        ([loser("a", 1, 9, lost_at=3), at_work("b", 2, 4)], "a and b held 'k' at once for 1.000 s"),
        ([loser("a", 1, 2, lost_at=5), at_work("b", 1.5, 3)], "a and b held 'k' at once for 0.500 s"),
        ([at_work("a", 1, 5), loser("b", 2, 9, lost_at=3)], "a and b held 'k' at once"),
        (
            [at_work("a", 1, 2, fence=2), at_work("b", 2, 3, fence=2)],
            "b has fence 2 on 'k', not more than 2 of a",
        ),
        ([at_work("a", 1, 2, fence=7), at_work("b", 2, 3, fence=5)], "b has fence 5 on 'k'"),
        ([at_work("a", 1, 2, fence=7), at_work("x", 2, 3), at_work("b", 3, 4, fence=5)], "7 of a before it"),
        ([loser("a", 1, 9, lost_at=3, fence=5), at_work("b", 4, 5, fence=4)], "b has fence 4 on 'k'"),
        ([at_work("a", 2, 1)], "a ended before it began"),
    ],
    ids=[
        "at once",
        "at once, written down in another order",
        "with one long before, across a short one between",
        "begun at the same moment",
        "before the deadline of one that learnt of its loss",
        "with one that ended before its deadline",
        "begun before the first had ended, and lost itself",
        "the same fence twice",
        "a fence that shrank",
        "a fence that shrank across one without",
        "a fence not larger than that of one that lost",
        "an end before its start",
    ],
)
def test_a_history_that_breaks_the_law_is_refused(history: list[Interval], words: str) -> None:
    found = violations(history)

    assert any(words in each for each in found), found
