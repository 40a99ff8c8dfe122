"""What stores promise to those who were handed the lock and have not started: place, text, no way round.

A message on its way may be lost with the worker that has just received it, or with its queue.
"""

import json
import secrets
import time
from typing import Any

import pytest

from celery_redislock.store.store import Entry, Mark, Parked, Promotion, Refusal
from tests.stores import StoreCase, granted, refused

A, B, C, D = (f"job-{each}/1" for each in "abcd")

#: Where entries that are given are published from.
HOME = "amqp:here"

#: What a claim says that a line has handed over.
IN_LINE = '{"state":"queued","line":1}'

KINDS = ("push", "give")


def text_of(id_: str, more: str = "") -> str:
    """A message as kombu's Redis has it, with a user's header of a misleading name."""
    headers = {"delivery_tag": "a header's", "said": 'a "delivery_tag": "text"'}
    return json.dumps({"body": more, "headers": headers, "properties": {"delivery_tag": f"tag-{id_}"}})


def park(
    case: StoreCase,
    id_: str,
    kind: str = "push",
    *,
    store: Any = None,
    name: str = "n",
    facts: str = IN_LINE,
    **options: Any,
) -> Parked:
    """Park an entry with a message of kombu's."""
    to = {"push": case.queue(), "give": HOME, "ring": case.queue("q:bell")}[kind]
    entry = Entry(kind, to, options.pop("ttl", 30.0), facts, options.pop("text", text_of(id_)))
    return (store or case.store).park(name, id_, entry, nonce=secrets.token_hex(8), **options)


def at_home(case: StoreCase) -> list[Promotion]:
    """Let the store's process publish what it is given, and note it."""
    store = case.memory if hasattr(case, "memory") else case.redis  # type: ignore[attr-defined]
    given: list[Promotion] = []
    store.home = HOME
    store.on_promoted = given.extend
    return given


def ids(case: StoreCase, name: str = "n", *, handed_on: bool = False) -> list[str]:
    """Those who wait, or were handed the lock and have not started."""
    return [each.id for each in case.store.waiting(name, handed_on=handed_on)[1]]


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
    assert (case.holder(), ids(case, handed_on=True)) == (B, [B])


def look(case: StoreCase, name: str = "n") -> Any:
    """Let a worker look at the line."""
    case.make_due(name)
    return case.store.sweep()


def start(case: StoreCase, id_: str = B, token: str = "run/1", **options: Any) -> Any:  # noqa: S107  no secret
    """Start the run of a message."""
    return case.take(token, instead_of=id_, starts_run=True, **options)


class TestEveryStore:
    """Memory and servers alike."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_one_handed_the_lock_waits_no_more_and_is_told_apart(self, case: StoreCase, kind: str) -> None:
        """Nobody who walks over a line meets it."""
        at_home(case)
        hand_on(case, C, kind=kind)

        assert (ids(case), sends(case)) == ([C], [1])
        assert not case.store.move("n", B, "last")
        count, given = case.store.drain()
        assert (count + len(given), ids(case, handed_on=True)) == (1, [B])

    @pytest.mark.parametrize("kind", KINDS)
    def test_its_start_ends_that(self, case: StoreCase, kind: str) -> None:
        at_home(case)
        hand_on(case, kind=kind)

        grant = granted(start(case))

        assert (grant.taken_over, grant.sent_again) == (True, False)
        assert ids(case, handed_on=True) == []

    @pytest.mark.parametrize("kind", KINDS)
    def test_if_its_claim_ends_it_has_its_place_again_before_those_behind_it(
        self, case: StoreCase, kind: str
    ) -> None:
        """It may be there still, so it is not sent blindly."""
        given = at_home(case)
        hand_on(case, C, kind=kind)
        case.expire()

        look(case)

        assert (case.holder(), ids(case)[-1]) == (B, C)
        if kind == "push":
            assert (case.pushed(), ids(case, handed_on=True)) == ([text_of(B)], [B])
        else:
            assert [(each.id, each.sends, each.kept) for each in given] == [(B, 0, 0), (B, 1, 0)]

    def test_one_that_comes_later_stands_behind_it_although_the_line_was_empty(self, case: StoreCase) -> None:
        at_home(case)
        hand_on(case, kind="give")
        park(case, C, "give")
        case.expire()
        look(case)

        assert (case.holder(), ids(case)) == (B, [B, C])

    def test_one_that_comes_back_first_stands_behind_it(self, case: StoreCase) -> None:
        at_home(case)
        hand_on(case, D, kind="give")
        park(case, C, "give", place="first")
        case.expire()
        look(case)

        assert ids(case) == [B, C, D]

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

    def test_a_settlement_that_is_repeated_changes_nothing(self, case: StoreCase) -> None:
        at_home(case)
        hand_on(case, kind="give")

        assert not case.store.settle("n", B, 30.0)
        assert sends(case) == [1]

    def test_one_that_was_given_again_meanwhile_stays_with_whom_that_has(self, case: StoreCase) -> None:
        """Whoever settles late has published a copy, and takes nobody out of the line."""
        given = at_home(case)
        case.take(A)
        park(case, B, "give")
        park(case, C, "give")
        case.store.release("n", A)
        case.expire()

        assert not case.store.settle("n", B, 30.0)

        assert ([each.id for each in given], ids(case)) == ([B, B], [B, C])

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

    @pytest.mark.parametrize("starts", [True, False])
    def test_nobody_who_knows_a_limit_passes_it_either(self, case: StoreCase, starts: bool) -> None:
        """The permits have ended with their lock."""
        at_home(case)
        hand_on(case, kind="give", facts=IN_LINE[:-1] + ',"limit":2}')
        case.expire()

        refused(case.take(D, starts_run=starts, limit=2))

        assert [*ids(case), *ids(case, handed_on=True)] == [B]

    @pytest.mark.parametrize("place", ["first", "before", "moved"])
    def test_whoever_goes_before_others_in_line_stands_behind_it(self, case: StoreCase, place: str) -> None:
        """It was the first, and is the first when it comes back."""
        at_home(case)
        case.take(A)
        park(case, C, "give")
        park(case, B, "give", place=C)  # half of a place from C
        park(case, D, "give")
        case.store.release("n", A)
        assert case.store.settle("n", B, 30.0)
        if place == "moved":
            assert case.store.move("n", D, "first")
        else:
            park(case, "early/1", "give", place=C if place == "before" else "first")
        case.expire()

        look(case)

        assert (case.holder(), ids(case)[0]) == (B, B)

    def test_started_before_its_second_publish_is_settled_it_is_told_of_that(self, case: StoreCase) -> None:
        """Two copies of it are on their way, whatever is counted by then."""
        given = at_home(case)
        hand_on(case, kind="give")
        case.expire()
        look(case)

        assert (len(given), granted(start(case)).sent_again) == (2, True)

    def test_asked_for_while_it_holds_the_lock_it_runs(self, case: StoreCase) -> None:
        """It is not parked behind itself until its own claim has ended."""
        hand_on(case, C)

        assert park(case, B, how="behind").word == "runs"
        assert park(case, B, how="ask").word == "runs"
        assert (case.holder(), ids(case, handed_on=True), ids(case)) == (B, [B], [C])

    def test_beside_one_that_has_been_handed_a_place_another_runs(self, case: StoreCase) -> None:
        """There is room for both."""
        limited = IN_LINE[:-1] + ',"limit":2}'
        hand_on(case, facts=limited)

        assert park(case, C, how="ask", facts=limited).word == "runs"

    def test_parked_anew_it_waits_under_the_limit_that_its_last_process_knows(self, case: StoreCase) -> None:
        """It would be sent again at once, to be refused again."""
        limited = IN_LINE[:-1] + ',"limit":2}'
        running = '{"state":"running","limit":2}'
        for id_ in (A, D):
            granted(case.store.acquire("n", id_, 30.0, facts=running, limit=2, starts_run=True))
        park(case, B, facts=limited)
        case.store.release("n", A)
        assert isinstance(start(case), Refusal)

        assert park(case, B).word == "repeated"
        look(case)

        assert (ids(case), {hold.token for hold in case.store.holders("n")}) == ([B], {D})

    def test_once_the_last_has_started_nobody_looks_at_its_line(self, case: StoreCase) -> None:
        """Nor is that shown as one."""
        hand_on(case)
        granted(start(case))

        assert (case.lines(), case.store.lines()) == ([], [])

    def test_woken_without_anybody_before_it_its_line_is_looked_at(self, case: StoreCase) -> None:
        """Its message may be lost as any other."""
        assert park(case, B).word == "woken"

        assert case.lines() == ["n"]

    @pytest.mark.parametrize("kind", KINDS)
    def test_it_starts_itself_then(self, case: StoreCase, kind: str) -> None:
        at_home(case)
        hand_on(case, C, kind=kind)
        case.expire()

        granted(start(case))

        assert (ids(case, handed_on=True), ids(case)) == ([], [C])

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

        assert (ids(case), ids(case, handed_on=True)) == ([], [])

    def test_dropped_it_leaves_the_lock_to_the_next(self, case: StoreCase) -> None:
        """It is no holder: its message has not started."""
        at_home(case)
        hand_on(case, C)

        word, entry, _ = case.store.leave("n", B, unless_held=True)

        assert (word, entry.split(b"\0")[4]) == ("left", text_of(B).encode())
        assert (case.holder(), ids(case, handed_on=True)) == (C, [C])
        granted(start(case, C))
        assert case.store.leave("n", C, unless_held=True)[0] == "missing"

    def test_sent_three_times_without_a_start_it_goes_to_the_end_of_its_line(self, case: StoreCase) -> None:
        """It may be what kills its workers."""
        at_home(case)
        hand_on(case, C, D, kind="give")
        for _ in range(2):
            case.expire()
            look(case)
            assert (case.holder(), ids(case)) == (B, [B, C, D])
            case.store.settle("n", B, 30.0)
        case.expire()

        look(case)

        assert (case.holder(), ids(case)) == (C, [C, D, B])

    def test_one_that_was_found_after_its_third_send_keeps_its_place(self, case: StoreCase) -> None:
        """It is not lost: its queue is long."""
        at_home(case)
        hand_on(case, kind="give")
        for was_sent in (True, True, False):
            case.expire()
            look(case)
            case.store.settle("n", B, 30.0, sent=was_sent)
        park(case, C, "give")
        case.expire()

        look(case)

        assert (case.holder(), ids(case)) == (B, [B, C])

    def test_one_that_waits_for_less_time_brings_the_look_forward(self, case: StoreCase) -> None:
        """The line was to be looked at seldom, as its holder had held the lock for long."""
        case.store.acquire("n", A, 300.0, facts='{"state":"running","since":1.0}')
        park(case, B)
        assert look(case).next_in > 50.0

        park(case, C, within=3.0)

        assert case.store.sweep().next_in <= 3.0

    def test_a_hand_on_to_one_that_was_sent_does_not_send_it_again(self, case: StoreCase) -> None:
        hand_on(case)
        pushed = case.pushed()

        case.store.hand_on("n", B, C, 30.0, facts=IN_LINE)
        case.store.hand_on("n", C, B, 30.0, facts=IN_LINE)

        assert case.pushed() == pushed

    def test_handed_the_lock_in_time_it_is_not_let_go(self, case: StoreCase) -> None:
        given = at_home(case)
        hand_on(case, kind="give", within=60.0)
        case.make_late(B)

        look(case)

        assert (len(given), case.pushed(), ids(case, handed_on=True)) == (1, [], [B])

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

    def test_it_keeps_what_it_was_handed_and_goes_on_by_itself(self, case: StoreCase) -> None:
        """It waits in another line from now on, and holds its claim in this one."""
        hand_on(case, C)

        answer = case.store.hand_on("n", B, B, 300.0, facts=IN_LINE)

        assert (answer.released, case.holder(), ids(case, handed_on=True), ids(case)) == (True, B, [], [C])
        assert (case.remaining() or 0) > 290.0

    def test_put_off_by_a_period_it_goes_on_by_the_clock(self, case: StoreCase) -> None:
        case.take(D, period=60.0)
        case.store.release("n", D)
        hand_on(case)

        answer = refused(start(case, period=60.0))

        assert (answer.hold.is_period, ids(case, handed_on=True)) == (True, [])

    @pytest.mark.parametrize("is_done", [True, False])
    def test_a_copy_whose_message_has_run_is_done_with(self, case: StoreCase, is_done: bool) -> None:
        hand_on(case)
        if is_done:
            case.store.mark_done("n", B, 60.0)
        else:
            case.store.release("n", "-", mark=Mark(B, 60.0))

        answer = start(case, message=B)

        assert (type(answer).__name__, ids(case, handed_on=True)) == ("Marked", [])

    def test_of_several_that_hold_it_the_one_whose_claim_ends_is_first_again(self, case: StoreCase) -> None:
        """The others keep theirs."""
        at_home(case)
        facts = IN_LINE[:-1] + ',"limit":2}'
        for id_ in (A, "job-z/1"):
            granted(case.store.acquire("n", id_, 30.0, facts='{"state":"running","limit":2}', limit=2))
        for id_ in (B, C, D):
            park(case, id_, "give", facts=facts)
        for id_, waiter in ((A, B), ("job-z/1", C)):
            case.store.release("n", id_)
            assert case.store.settle("n", waiter, 30.0)
        assert ids(case, handed_on=True) == [B, C]
        case.expire_permit(B)

        look(case)

        assert (ids(case), ids(case, handed_on=True)) == ([B, D], [C])
        assert {hold.token for hold in case.store.holders("n")} == {B, C}

    def test_refused_under_another_limit_it_is_back_in_its_place(self, case: StoreCase) -> None:
        """Who comes back finds it there: it was never out of the line of anybody."""
        facts = IN_LINE[:-1] + ',"limit":2}'
        running = '{"state":"running","limit":1}'
        for id_ in (A, D):
            granted(case.store.acquire("n", id_, 30.0, facts='{"state":"running","limit":2}', limit=2))
        park(case, B, facts=facts)
        park(case, C, facts=facts)
        case.store.release("n", A)
        case.store.acquire("n", D, 30.0, facts=running, limit=1, starts_run=True)

        answer = start(case, limit=1)

        assert isinstance(answer, Refusal)
        assert (ids(case), ids(case, handed_on=True)) == ([B, C], [])


class TestRhythm:
    """How often a line is looked at while its lock is held."""

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
