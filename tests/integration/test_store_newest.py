"""What every store promises of calls of which the newest waits: its place, its time, and who gives way."""

import json
import secrets
from typing import Any

import pytest

from celery_redislock.store.store import Entry, Merge, Parked
from tests.stores import HOME, JOBS, StoreCase, at_home, granted, in_line

A, B, C, D, E, F = JOBS

#: When a call is made after all others.
LATER = 500_000 * 10**10

#: What a call says that is refused, of a task whose calls coalesce.
REFUSED = '{"task":"shop.index","state":"queued","on_conflict":"coalesce"}'


def meet(
    case: StoreCase, token: str, *, number: int | None = None, instead_of: str = "", task: str = "shop.index",
    pause: float = 0.0, longest: float = 0.0, mark_ttl: float = 3600.0, kind: Any = "push", **options: Any,
) -> Parked:  # fmt: skip
    """Park a message that takes the place of an older call of its task."""
    facts = json.dumps({"task": task, "state": "queued", "line": 1}, separators=(",", ":"))
    to = HOME if kind == "give" else case.queue()
    entry = Entry(kind, to, 30.0, facts, f"text of {token}")
    merge = Merge(f'"{token}"\0{token}', pause, longest, number, instead_of, mark_ttl)
    return case.store.park("n", token, entry, nonce=secrets.token_hex(8), merge=merge, **options)


def take_place(case: StoreCase, token: str, of: str, **options: Any) -> None:
    """Park a message whose call is the newest, in the place of this one."""
    answer = meet(case, token, **options)
    assert (answer.word, answer.held_by and answer.held_by.token) == ("older", of)
    assert meet(case, token, instead_of=of, **options).word in {"parked", "woken"}


def test_the_mark_of_one_that_gave_way_lives_for_as_long_as_a_copy_may_come(case: StoreCase) -> None:
    """As a visibility timeout of two hours has it: later a copy would run with older arguments."""
    case.take(A)
    meet(case, B, number=1)
    take_place(case, C, of=B, number=2, mark_ttl=7200.0)
    assert 7100.0 < (case.remaining(part=f"mark:{B}") or 0.0) <= 7200.0


def test_a_place_that_another_one_has_taken_is_asked_for_again(case: StoreCase) -> None:
    """Two workers have told the same older caller that it gives way."""
    case.take(A)
    meet(case, B, number=1)
    take_place(case, C, of=B, number=2)
    answer = meet(case, D, number=3, instead_of=B)
    assert (answer.word, answer.held_by and answer.held_by.token) == ("older", C)
    assert in_line(case) == [C]


def test_each_task_of_a_key_has_its_newest(case: StoreCase) -> None:
    case.take(A)
    assert meet(case, B, number=1).word == "parked"
    assert meet(case, C, number=2, task="shop.report").word == "parked"
    assert in_line(case) == [B, C]


def test_one_that_has_left_is_followed_by_nobody(case: StoreCase) -> None:
    case.take(A)
    meet(case, B, number=1)
    assert case.store.leave("n", B)[0] == "left"
    assert meet(case, C, number=2).word == "parked"
    assert in_line(case) == [C]


def test_a_revoked_one_that_waits_swallows_no_later_call(case: StoreCase) -> None:
    """It keeps its place until its turn, and does not run then."""
    case.take(A)
    meet(case, B, number=1)
    assert list(case.store.release_claims(["job-b"])) == []
    assert meet(case, C, number=2).word == "parked"
    assert in_line(case) == [B, C]


def test_the_time_of_the_first_bounds_the_wait_of_all(case: StoreCase) -> None:
    """``lock_wait_timeout``: calls that keep coming do not put it off."""
    case.take(A)
    meet(case, B, number=1, within=0.5)
    take_place(case, C, of=B, number=2, within=60.0)
    assert case.bounded() == {C}
    case.make_late(C)
    case.make_due()
    case.store.sweep()
    assert (in_line(case), case.pushed()) == ([], [f"text of {C}"])


def test_the_longest_wait_ends_a_pause_as_well(case: StoreCase) -> None:
    """Nobody holds the lock, and the one whose time is over does not get it: its run takes it, if it may."""
    meet(case, B, pause=30.0, within=1.0)
    case.make_due()
    assert 0.0 < case.store.sweep().next_in <= 1.0
    case.make_late(B)
    case.make_due()
    case.store.sweep()
    assert (case.holder(), in_line(case), case.pushed()) == (None, [], [f"text of {B}"])


def test_a_full_line_takes_one_more_argument_and_no_more_entries(case: StoreCase) -> None:
    case.take(A)
    meet(case, B, number=1, most=1)
    take_place(case, C, of=B, number=2, most=1)
    assert meet(case, D, number=3, task="shop.report", most=1).word == "full"


def test_nobody_yields_to_a_revoked_call(case: StoreCase) -> None:
    """Else an earlier one whose worker was killed would end for the sake of one that never runs."""
    granted(case.store.acquire("n", A, 30.0, facts=REFUSED))
    meet(case, B, number=LATER)
    assert case.store.newest("n", "shop.index", A, None) == B
    list(case.store.release_claims(["job-b"]))
    assert case.store.newest("n", "shop.index", A, None) == ""


@pytest.mark.parametrize(
    "way", ["dropped", "waited for too long", "given, and waited for too long", "unpublished"]
)
def test_nobody_yields_to_a_call_that_left_without_a_run(case: StoreCase, way: str) -> None:
    """Law 2: else an earlier one whose worker was killed would end, and neither would have run."""
    granted(case.store.acquire("n", A, 30.0, facts=REFUSED))
    if way == "unpublished":
        assert case.store.release("n", A, opened_by=A).released
        assert case.store.newest("n", "shop.index", B, None) == ""
        return
    kind = "give" if way.startswith("given") else "push"
    if kind == "give":
        at_home(case)
    meet(case, B, number=LATER, kind=kind, within=None if way == "dropped" else 60.0)
    assert case.store.newest("n", "shop.index", A, None) == B
    if way == "dropped":
        case.store.leave("n", B, unless_held=True)
    else:
        case.make_late(B)
        case.make_due()
        case.store.sweep()
    if kind == "give":
        case.store.settle("n", B, 30.0)
    assert in_line(case) == []
    assert case.store.newest("n", "shop.index", A, None) == ""


def test_nobody_forgets_a_call_that_has_run(case: StoreCase) -> None:
    """Also where its end ends a period: an earlier one that comes back has nothing to say."""
    granted(case.store.acquire("n", B, 30.0, facts=REFUSED))
    running = REFUSED.replace("queued", "running")
    granted(case.store.acquire("n", "job-b/run", 30.0, facts=running, instead_of=B))
    case.store.release("n", "job-b/run", opened_by=B)
    assert case.store.newest("n", "shop.index", A, None) == B
