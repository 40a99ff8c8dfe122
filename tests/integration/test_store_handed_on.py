"""What stores promise to those who were handed the lock and have not started: place, text, no way round.

A message on its way may be lost with the worker that has just received it, or with its queue.
"""

import json
import time
from typing import Any

import pytest

from celery_redislock.store.store import Entry, Mark, Marked, Parked
from tests import stores
from tests.stores import HOME, IN_LINE, A, B, C, D, StoreCase, at_home, granted, in_line, look, refused

KINDS = ("push", "give")


def text_of(id_: str, more: str = "") -> str:
    """A message as kombu's Redis has it, with a user's header of a misleading name."""
    headers = {"delivery_tag": "a header's", "said": 'a "delivery_tag": "text"'}
    return json.dumps({"body": more, "headers": headers, "properties": {"delivery_tag": f"tag-{id_}"}})


def park(case: StoreCase, id_: str, kind: str = "push", **options: Any) -> Parked:
    """Park an entry with a message of kombu's."""
    return stores.park(case, id_, kind, **{"text": text_of(id_), **options})


def sends(case: StoreCase, name: str = "n") -> list[int]:
    """How often the message was sent of each that was handed the lock."""
    return [each.sends for each in case.store.waiting(name, handed_on=True)[1]]


def hand_on(case: StoreCase, *behind: str, kind: str = "push", **options: Any) -> None:
    """Let one hold the lock, B wait, others behind it, and B be handed the lock and sent."""
    case.take(A)
    for id_ in (B, *behind):
        park(case, id_, kind, **options)
    case.store.release("n", A)
    if kind == "give":
        assert case.store.settle("n", B, 30.0)
    assert (case.holder(), in_line(case, handed_on=True)) == (B, [B])


def start(case: StoreCase, id_: str = B, token: str = "run/1", **options: Any) -> Any:  # noqa: S107  no secret
    """Start the run of a message."""
    return case.take(token, instead_of=id_, starts_run=True, **options)


class TestEveryStore:
    @pytest.mark.parametrize("kind", KINDS)
    def test_one_handed_the_lock_waits_no_more_and_is_told_apart(self, case: StoreCase, kind: str) -> None:
        """Nobody who walks over a line meets it."""
        at_home(case)
        hand_on(case, C, kind=kind)
        assert (in_line(case), sends(case)) == ([C], [1])
        assert not case.store.move("n", B, "last")
        count, given = case.store.drain()
        assert (count + len(given), in_line(case, handed_on=True)) == (1, [B])

    @pytest.mark.parametrize("kind", KINDS)
    def test_if_its_claim_ends_it_has_its_place_again_before_those_behind_it(
        self, case: StoreCase, kind: str
    ) -> None:
        """It may be there still, so it is not sent blindly."""
        given = at_home(case)
        hand_on(case, C, kind=kind)
        case.expire()
        look(case)
        assert (case.holder(), in_line(case)[-1]) == (B, C)
        if kind == "push":
            assert (case.pushed(), in_line(case, handed_on=True)) == ([text_of(B)], [B])
        else:
            assert [(each.id, each.sends, each.kept) for each in given] == [(B, 0, 0), (B, 1, 0)]

    def test_one_that_comes_back_first_stands_behind_it(self, case: StoreCase) -> None:
        at_home(case)
        hand_on(case, D, kind="give")
        park(case, C, "give", place="first")
        case.expire()
        look(case)
        assert in_line(case) == [B, C, D]

    def test_how_often_it_was_sent_is_told_to_who_publishes_it_next(self, case: StoreCase) -> None:
        given = at_home(case)
        hand_on(case, kind="give")
        for was_sent in (False, True):
            case.expire()
            look(case)
            assert case.store.settle("n", B, 30.0, sent=was_sent)
        case.expire()
        look(case)
        assert [(each.sends, each.kept) for each in given] == [(0, 0), (1, 0), (1, 1), (2, 0)]

    def test_a_start_is_told_that_its_message_was_sent_more_than_once(self, case: StoreCase) -> None:
        """Its other copy may come long after it."""
        at_home(case)
        hand_on(case, kind="give")
        case.expire()
        look(case)
        case.store.settle("n", B, 30.0)
        grant = granted(start(case))
        assert (grant.taken_over, grant.sent_again) == (True, True)
        case.store.release("n", "run/1")
        hand_on(case, kind="give")
        assert not granted(start(case)).sent_again

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("starts", [True, False])
    def test_nobody_passes_it_when_its_claim_has_ended(
        self, case: StoreCase, kind: str, starts: bool
    ) -> None:
        """Neither a run nor a call, although the lock is free and nobody is in line."""
        at_home(case)
        hand_on(case, kind=kind)
        case.expire()
        answer = refused(case.take(D, starts_run=starts))
        assert answer.hold.token == B
        assert park(case, C, how="ask").word == "parked"

    def test_asked_for_while_it_holds_the_lock_it_runs(self, case: StoreCase) -> None:
        """It is not parked behind itself until its own claim has ended."""
        hand_on(case, C)
        assert park(case, B, how="behind").word == "runs"
        assert park(case, B, how="ask").word == "runs"
        assert (case.holder(), in_line(case, handed_on=True), in_line(case)) == (B, [B], [C])

    def test_woken_without_anybody_before_it_its_line_is_looked_at(self, case: StoreCase) -> None:
        """Its message may be lost as any other."""
        assert park(case, B).word == "woken"
        assert case.lines() == ["n"]

    @pytest.mark.parametrize("held_by", ["itself", "nobody", "another"])
    def test_a_release_of_its_claim_takes_it_out_whoever_holds_the_lock(
        self, case: StoreCase, held_by: str
    ) -> None:
        """It was revoked, has expired or was skipped: nobody sends it again."""
        at_home(case)
        hand_on(case, kind="give")
        if held_by != "itself":
            case.expire()
        if held_by == "another":
            start(case)
            hand_back = Entry("give", HOME, 30.0, IN_LINE, text_of(B))
            case.store.park("n", B, hand_back, nonce="again")
        case.store.release("n", B)
        assert (in_line(case), in_line(case, handed_on=True)) == ([], [])

    def test_dropped_it_leaves_the_lock_to_the_next(self, case: StoreCase) -> None:
        """It is no holder: its message has not started."""
        at_home(case)
        hand_on(case, C)
        word, entry, _ = case.store.leave("n", B, unless_held=True)
        assert (word, entry.split(b"\0")[4]) == ("left", text_of(B).encode())
        assert (case.holder(), in_line(case, handed_on=True)) == (C, [C])
        granted(start(case, C))
        assert case.store.leave("n", C, unless_held=True)[0] == "missing"

    def test_sent_three_times_without_a_start_it_goes_to_the_end_of_its_line(self, case: StoreCase) -> None:
        """It may be what kills its workers."""
        at_home(case)
        hand_on(case, C, D, kind="give")
        for _ in range(2):
            case.expire()
            look(case)
            assert (case.holder(), in_line(case)) == (B, [B, C, D])
            case.store.settle("n", B, 30.0)
        case.expire()
        look(case)
        assert (case.holder(), in_line(case)) == (C, [C, D, B])

    def test_one_that_waits_for_less_time_brings_the_look_forward(self, case: StoreCase) -> None:
        """The line was to be looked at seldom, as its holder had held the lock for long."""
        case.store.acquire("n", A, 300.0, facts='{"state":"running","since":1.0}')
        park(case, B)
        assert look(case).next_in > 50.0
        park(case, C, within=3.0)
        assert case.store.sweep().next_in <= 3.0

    def test_handed_the_lock_in_time_it_is_not_let_go(self, case: StoreCase) -> None:
        given = at_home(case)
        hand_on(case, kind="give", within=60.0)
        case.make_late(B)
        look(case)
        assert (len(given), case.pushed(), in_line(case, handed_on=True)) == (1, [], [B])

    @pytest.mark.parametrize("way", ["it keeps it", "its claim is released", "it starts", "it is dropped"])
    def test_a_line_that_the_last_one_has_left_is_not_looked_at(self, case: StoreCase, way: str) -> None:
        hand_on(case)
        if way == "it keeps it":
            case.store.hand_on("n", B, B, 300.0, facts=IN_LINE)
        elif way == "its claim is released":
            case.store.release("n", B)
        elif way == "it starts":
            start(case)
        else:
            case.store.leave("n", B, unless_held=True)
        assert case.lines() == []

    @pytest.mark.parametrize("is_done", [True, False])
    def test_a_copy_whose_message_has_run_is_done_with(self, case: StoreCase, is_done: bool) -> None:
        hand_on(case)
        case.store.release("n", "-", mark=Mark(B, 60.0, is_done))
        assert isinstance(start(case, message=B), Marked)
        assert in_line(case, handed_on=True) == []

    def test_it_keeps_what_it_was_handed_and_goes_on_by_itself(self, case: StoreCase) -> None:
        """It waits in another line from now on, and holds its claim in this one."""
        hand_on(case, C)
        answer = case.store.hand_on("n", B, B, 300.0, facts=IN_LINE)
        assert (answer.released, case.holder()) == (True, B)
        assert (in_line(case, handed_on=True), in_line(case)) == ([], [C])
        assert (case.remaining() or 0) > 290.0


class TestRhythm:
    @pytest.mark.parametrize(
        ("held_for", "least", "most"), [(0, 1.9, 2.1), (40, 9.0, 11.0), (3600, 20.0, 30.1)]
    )
    def test_the_longer_a_holder_has_held_it_the_seldomer(
        self, case: StoreCase, held_for: float, least: float, most: float
    ) -> None:
        """A quarter of that time, until its lease ends: 20,000 idle lines cost the server little."""
        since = time.time() - held_for
        case.store.acquire("n", A, 30.0, facts=f'{{"state":"running","since":{since:.3f}}}')
        park(case, B)
        assert least < look(case).next_in <= most

    def test_one_that_has_just_started_is_looked_at_soon(self, case: StoreCase) -> None:
        """Its process may be killed, although its claim was old."""
        case.store.acquire("n", A, 300.0, facts='{"state":"queued","since":1.0}')
        park(case, B)
        assert look(case).next_in > 50.0
        case.store.acquire("n", "run/1", 300.0, facts='{"state":"running"}', instead_of=A, starts_run=True)
        assert case.store.sweep().next_in <= 2.0
