"""The verdict on time: it finds each key that stood still for too long, and no other."""

from typing import Any

import pytest

from tools.attack.draw import APART, FUSED, RABBITMQ, TERM
from tools.attack.standstill import Call, Run, Standstill, history, longest, standstills, too_long

#: From 2 s on nobody runs, a call waits; at 8 s it runs.
BEFORE, WAITS, AFTER = Run(("k",), 0.0, 2.0, "a"), Call(("k",), 1.0, 8.0), Run(("k",), 8.0, 8.1, "b")
SHIFT = (0.0, 20.0, 2)
STILL = Standstill("k", 2.0, 6.0, 8.0, "b", frozenset("k"))
CALL = {"number": 1, "id": "b", "names": ["k"], "at": 0.9}


def stood(
    *more: Call | Run, waits: Call = WAITS, shifts: Any = (SHIFT,), disturbances: Any = ()
) -> list[Standstill]:
    """What is found where the key ``k`` stands still for six seconds, and more happens."""
    calls = [waits, *(one for one in more if isinstance(one, Call))]
    runs = [BEFORE, AFTER, *(one for one in more if isinstance(one, Run))]
    return standstills(calls, runs, shifts, disturbances)


def test_a_key_stands_still_from_its_last_body_to_the_next_while_a_call_waits() -> None:
    assert stood() == [STILL]


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"waits": Call(("k",), 6.0, 8.0)}, [2.0]),
        ({"waits": Call(("k",), 7.8, 8.0)}, []),
        # One worker gone at 5 s; none from 3 s to 7 s; one that runs nothing more.
        ({"shifts": [SHIFT, (0.0, 5.0, 2)]}, [6.0]),
        ({"shifts": [(0.0, 3.0, 2), (7.0, 9.0, 2)]}, [2.0]),
        ({"shifts": []}, []),
        ({"disturbances": [(3.0, 5.0), (4.0, 6.0)]}, [3.0]),
    ],
)
def test_only_time_counts_in_which_a_call_waits_for_a_worker_that_could_run_it(
    changes: dict[str, Any], seconds: list[float]
) -> None:
    assert [one.seconds for one in stood(**changes)] == seconds


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ([Run(("k",), 4.0, 5.0, "c")], [2.0, 3.0]),
        ([Run(("k",), 1.0, 7.0, "c")], [1.0]),
        ([Run(("other",), 1.0, 9.0, "c")], [6.0]),
        ([Run(("other",), 1.0, 9.0, "c"), Run(("third",), 1.0, 6.0, "d")], [2.0]),
    ],
)
def test_bodies_end_a_standstill_of_their_key_and_take_places_from_others(
    more: list[Run], seconds: list[float]
) -> None:
    assert [one.seconds for one in stood(*more)] == seconds


@pytest.mark.parametrize(
    ("busy", "seconds"), [((1.0, 7.0), [1.0, 1.0]), ((1.0, 9.0), []), ((0.0, 0.1), [6.0, 6.0])]
)
def test_a_call_of_two_keys_waits_for_neither_while_one_is_in_use(
    busy: tuple[float, float], seconds: list[float]
) -> None:
    calls, uses = [Call(("j", "k"), 2.0, 8.0)], Run(("j",), *busy, "c")
    runs = [BEFORE, uses, Run(("j", "k"), 8.0, 8.1, "b")] if busy[1] < 8.0 else [BEFORE, uses]
    found = standstills(calls, runs, [SHIFT], [])

    assert [round(one.seconds, 6) for one in found] == seconds


def test_a_key_whose_call_never_begins_stands_still_to_the_end() -> None:
    calls = [Call(("k",), 1.0, 20.0)]

    assert standstills(calls, [BEFORE], [SHIFT], []) == [Standstill("k", 2.0, 18.0, 20.0, "", frozenset("k"))]


def journal(**changes: Any) -> dict[str, Any]:
    """A journal of one call, accepted at 1 s, which began in process 7 at 8 s and ended a second later."""
    return {
        "attempts": {"1": [CALL]},
        "outcomes": {"1": ["accepted", "b", 1.0]},
        "starts": {"x": {"number": 1, "id": "b", "pid": 7, "start": 8.0}},
        "beats": {},
        "ends": {"x": [9.0, "", None]},
        **changes,
    }


def test_a_journal_tells_from_when_on_a_call_waited_and_when_it_ran() -> None:
    told = history(journal(), [], [], [], 20.0)

    assert told == ([WAITS], [Run(("k",), 8.0, 9.0, "b")], [])


@pytest.mark.parametrize(
    ("hits", "beats", "end"),
    [([(5.0, 7), (8.5, 7), (9.5, 7)], {}, 8.5), ([(8.5, 6)], {"x": [8.3, None]}, 8.3), ([], {}, 8.0)],
)
def test_a_body_without_an_end_ended_when_its_process_was_killed(hits: Any, beats: Any, end: float) -> None:
    """If nobody is known to have killed it, it ended with its last sign of life."""
    _, runs, _ = history(journal(ends={}, beats=beats), hits, [], [], 20.0)

    assert [run.end for run in runs] == [end]


@pytest.mark.parametrize(
    ("lost", "waited", "calls", "gone"),
    [
        ([], [], [], [Call(("k",), 0.9, 20.0)]),
        ([], ["b"], [], []),
        (["b"], ["b"], [Call(("k",), 1.0, 20.0)], []),
    ],
)
def test_a_call_that_never_began_waits_to_the_end_or_is_gone(
    lost: list[str], waited: list[str], calls: list[Call], gone: list[Call]
) -> None:
    assert history(journal(starts={}, ends={}), [], lost, waited, 20.0) == (calls, [], gone)


@pytest.mark.parametrize(
    ("ends", "until"),
    [
        ({}, 8.0),
        ({"y": [9.0, "", None]}, 8.0),
        ({"x": [3.0, "LockLost", None]}, 8.0),
        ({"x": [3.0, "", None]}, 2.0),
        ({"x": [3.0, "", None], "y": [9.0, "", None]}, 2.0),
    ],
)
def test_a_call_waits_until_a_body_begins_that_comes_to_its_end(ends: Any, until: float) -> None:
    """One that was killed waits again. A copy of one that came to its end waits for no key."""
    starts = {
        name: {"number": 1, "id": "b", "pid": 7, "start": start}
        for name, start in {"x": 2.0, "y": 8.0}.items()
    }

    assert history(journal(starts=starts, ends=ends), [], [], [], 20.0)[0] == [Call(("k",), 1.0, until)]


@pytest.mark.parametrize(
    ("where", "seconds", "in_hand", "found"),
    [
        (FUSED, 3.9, [], 0),
        (FUSED, 4.1, [], 1),
        (FUSED, TERM + 2.9, [(2.1, "b")], 0),
        (FUSED, TERM + 3.1, [(2.1, "b")], 1),
        # It was in a dead worker's hands before, or is another.
        (FUSED, 4.1, [(0.5, "b"), (2.1, "c")], 1),
        (APART, 11.3, [], 0),
        (APART, 11.5, [(2.1, "b")], 1),
        (RABBITMQ, 11.9, [], 0),
        (RABBITMQ, 12.1, [], 1),
    ],
)
def test_how_long_a_key_may_stand_still_depends_on_where_its_message_was(
    where: str, seconds: float, in_hand: list[tuple[float, str]], found: int
) -> None:
    one = STILL._replace(seconds=seconds, ended=2.0 + seconds)

    assert len(too_long([one], where, in_hand, [], 30.0)) == found


@pytest.mark.parametrize(
    ("gone", "found"),
    [
        (Call(("k",), 1.9, 40.0), 0),
        (Call(("j", "k"), 1.9, 40.0), 0),
        (Call(("j",), 1.9, 40.0), 1),
        (Call(("k",), 0.5, 40.0), 1),
        (Call(("k",), 5.0, 40.0), 1),
    ],
)
def test_the_claim_of_a_message_that_is_gone_and_had_not_waited_keeps_its_key_as_stated(
    gone: Call, found: int
) -> None:
    one = STILL._replace(seconds=30.5, ended=32.5)

    assert len(too_long([one], FUSED, [], [gone], 30.0)) == found
    assert too_long([one._replace(seconds=34.5)], FUSED, [], [gone], 30.0)


def test_the_longest_of_each_cause_is_told() -> None:
    before = STILL._replace(seconds=1.0, began=0.0, ended=1.0, ended_by="c")
    after = STILL._replace(seconds=3.0, began=9.0, ended=12.0, ended_by="d")
    found = [before, STILL, after]

    assert longest(found, [(2.1, "b")]) == {"lost": 3.0, "restored": 6.0}


def test_keys_are_linked_through_calls_that_lock_two_of_them() -> None:
    calls = [Call(names, 2.0, 20.0) for names in [("a", "b"), ("c", "d"), ("b", "c"), ("k",)]]
    found = standstills(calls, [], [SHIFT], [])

    assert {one.name: "".join(sorted(one.linked)) for one in found} == {
        **dict.fromkeys("abcd", "abcd"),
        "k": "k",
    }


@pytest.mark.parametrize(
    ("beside", "restored", "claimed"),
    [
        ({}, True, True),
        # Another key that no call locks with this one; over before; begun after it.
        ({"name": "other"}, False, False),
        ({"began": 0.5, "ended": 1.9}, False, False),
        ({"began": 8.1, "ended": 9.0}, False, False),
    ],
)
def test_a_key_may_stand_still_for_what_keeps_a_key_that_calls_lock_with_it(
    beside: dict[str, Any], restored: bool, claimed: bool
) -> None:
    """The first in its line waits for both."""
    one = STILL._replace(linked=frozenset("jk"), seconds=5.0)
    about = {"name": "j", "began": 2.5, "seconds": 3.0, "ended": 7.9, "ended_by": "c", **beside}
    other = STILL._replace(**about, linked=frozenset({"j", "k", "other"}))
    gone = Call(("j", "other"), other.began, 40.0)

    assert bool(too_long([one, other], FUSED, [(other.began + 0.1, "c")], [], 30.0)) is not restored
    assert bool(too_long([one, other], FUSED, [], [gone], 30.0)) is not claimed
