"""What every store promises of calls of which the newest waits: its place, its time, and who gives way."""

import json
import secrets
from typing import Any

import pytest

from celery_redislock.store.store import Entry, Mark, Merge, Parked
from tests.stores import HOME, JOBS, StoreCase, at_home, granted, in_line, park, refused

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


def facts_in_line(case: StoreCase) -> list[dict[str, Any]]:
    """What those say about themselves that wait."""
    return [dict(each.hold.facts) for each in case.store.waiting("n")[1]]


def test_of_one_task_the_newest_waits_in_the_place_of_the_first(case: StoreCase) -> None:
    """Others of its key stand before and behind it, and keep their places."""
    case.take(A)
    park(case, D)
    assert meet(case, B, number=1).word == "parked"
    park(case, E)
    take_place(case, C, of=B, number=2)
    assert in_line(case) == [D, C, E]
    assert [facts.get("merged") for facts in facts_in_line(case)] == [None, 1, None]
    case.store.release("n", A)
    case.store.release("n", D)
    assert case.holder() == C
    assert case.pushed()[-1] == f"text of {C}"


def test_the_one_that_gave_way_comes_back_and_is_done(case: StoreCase) -> None:
    """A copy of its message, from a worker that died before it was acknowledged, overwrites nobody."""
    case.take(A)
    meet(case, B, number=1)
    take_place(case, C, of=B, number=2)
    assert meet(case, B, number=1).word == "done"
    assert in_line(case) == [C]


def test_a_copy_of_one_that_is_ending_is_not_done(case: StoreCase) -> None:
    """Law 8: its worker may have died before the result was stored. Then it runs again."""
    case.take(A)
    case.store.release("n", D, mark=Mark(B, 30.0))
    assert meet(case, B, number=1).word == "parked"
    assert in_line(case) == [B]


def test_the_mark_of_one_that_gave_way_lives_for_as_long_as_a_copy_may_come(case: StoreCase) -> None:
    """As a visibility timeout of two hours has it: later a copy would run with older arguments."""
    case.take(A)
    meet(case, B, number=1)
    take_place(case, C, of=B, number=2, mark_ttl=7200.0)
    assert 7100.0 < (case.remaining(part=f"mark:{B}") or 0.0) <= 7200.0


def test_the_one_that_was_called_earlier_gives_way_whenever_it_comes(case: StoreCase) -> None:
    """The order of receipt says nothing: of five calls a worker may receive the first one last."""
    case.take(A)
    meet(case, C, number=2)
    answer = meet(case, B, number=1)
    assert (answer.word, answer.held_by and answer.held_by.token) == ("newer", C)
    assert in_line(case) == [C]


def test_one_that_was_called_earlier_gives_way_to_one_that_waits_no_more(case: StoreCase) -> None:
    """It runs, or has run: a copy from a worker that died, or a late message, comes after it."""
    granted(case.store.acquire("n", A, 30.0, facts=REFUSED))
    answer = meet(case, B, number=1, pause=5.0)
    assert (answer.word, answer.held_by and answer.held_by.owner) == ("newer", "job-a")
    assert in_line(case) == []
    assert meet(case, C, number=LATER).word == "parked"
    case.store.release("n", A)
    case.store.release("n", C)
    answer = meet(case, D, number=LATER - 1, pause=5.0)
    assert (answer.word, answer.held_by and answer.held_by.owner) == ("newer", "job-c")
    # Of another task nothing follows, nor for one of which nobody knows when it was called.
    assert meet(case, E, number=1, task="shop.report", pause=5.0).word == "parked"
    assert meet(case, F, pause=5.0).word == "parked"


@pytest.mark.parametrize(("place", "word"), [("last", "older"), ("job-x/1", "newer")])
def test_where_nobody_knows_when_it_was_called_the_order_of_receipt_counts(
    case: StoreCase, place: str, word: str
) -> None:
    """One that was received before another one that is parked, and refused after it, goes before that."""
    case.take(A)
    meet(case, B)
    assert meet(case, C, place=place).word == word


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


def test_who_was_handed_the_lock_keeps_its_arguments(case: StoreCase) -> None:
    """A later call opens another place; what is sent again is what was sent."""
    case.take(A)
    meet(case, B, number=1)
    case.store.release("n", A)
    assert case.holder() == B
    assert meet(case, C, number=2).word == "parked"
    assert in_line(case) == [C]
    case.expire()
    case.make_due()
    case.store.sweep()
    assert (case.holder(), case.pushed()[-1]) == (B, f"text of {B}")


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


def test_one_that_is_not_due_waits_though_the_lock_is_free(case: StoreCase) -> None:
    """It starts when it is due, by the look at the line that is due then."""
    assert meet(case, B, pause=30.0).word == "parked"
    assert (case.holder(), in_line(case)) == (None, [B])
    assert 2.0 < case.store.sweep().next_in <= 30.0
    case.come_due(B)
    case.make_due()
    case.store.sweep()
    assert (case.holder(), in_line(case)) == (B, [])


def test_one_that_is_not_due_keeps_the_lock_from_nobody(case: StoreCase) -> None:
    """Neither from a new call, nor from those that wait behind it, one or several at once."""
    meet(case, B, pause=30.0)
    granted(case.take(A))
    park(case, C)
    case.store.release("n", A)
    assert (case.holder(), in_line(case)) == (C, [B])
    case.store.release("n", C)
    assert (case.holder(), in_line(case)) == (None, [B])
    granted(case.store.acquire("n", D, 30.0, facts='{"limit":2}', limit=2))
    granted(case.store.acquire("n", E, 30.0, facts='{"limit":2}', limit=2, starts_run=True))


def test_one_whose_time_comes_while_the_lock_is_held_starts_when_that_is_released(case: StoreCase) -> None:
    meet(case, B, pause=30.0)
    case.take(A)
    case.come_due(B)
    refused(case.take(C))
    case.store.release("n", A)
    assert case.holder() == B


def test_each_call_puts_the_start_off_and_the_longest_time_does_not_move(case: StoreCase) -> None:
    """The beginning of a burst lives with the call that waits, and ends with it."""
    meet(case, B, number=1, pause=30.0, longest=30.0)
    [first] = facts_in_line(case)
    assert first["due"] == first["first"] + 30_000
    take_place(case, C, of=B, number=2, pause=30.0, longest=30.0)
    [second] = facts_in_line(case)
    assert [second[each] for each in ("due", "first", "merged")] == [first["due"], first["first"], 1]
    take_place(case, D, of=C, number=3, pause=60.0)
    [third] = facts_in_line(case)
    assert third["due"] >= first["due"] + 30_000
    case.store.leave("n", D)
    meet(case, E, pause=30.0, longest=30.0)
    [fourth] = facts_in_line(case)
    assert (fourth["due"], fourth["merged"]) == (fourth["first"] + 30_000, 0)


def test_a_refused_call_that_coalesces_is_told_when_it_was_made(case: StoreCase) -> None:
    """Each later one has a larger number, whoever asks."""
    case.take(A)
    numbers = [refused(case.store.acquire("n", token, 30.0, facts=REFUSED)).number for token in (B, C)]
    assert None not in numbers
    assert numbers[0] <= numbers[1]
    assert refused(case.store.acquire("n", D, 30.0, facts=REFUSED.replace("coalesce", "wait"))).number is None


def test_a_call_learns_whether_a_later_one_of_its_task_was_accepted(case: StoreCase) -> None:
    """At publish, in line, or as it starts; of no other task, and not of itself."""
    granted(case.store.acquire("n", A, 30.0, facts=REFUSED))
    assert case.store.newest("n", "shop.index", B, None) == A
    assert case.store.newest("n", "shop.index", A, None) == ""
    assert case.store.newest("n", "shop.report", B, None) == ""
    assert case.store.newest("m", "shop.index", B, None) == ""
    assert case.store.newest("n", "shop.index", C, 1) == A
    assert case.store.newest("n", "shop.index", C, LATER) == ""
    assert case.store.newest("n", "shop.index", A, None) == C
    meet(case, D, number=LATER + 1)
    assert case.store.newest("n", "shop.index", C, LATER) == D


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
