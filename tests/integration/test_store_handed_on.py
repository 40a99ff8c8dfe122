"""What stores promise to those who were handed the lock and have not started: place, text, no way round.

A message on its way may be lost with the worker that has just received it, or with its queue.
"""

import json
import time
from typing import Any

import pytest

from celery_redislock.store.store import Parked
from tests import stores
from tests.stores import IN_LINE, A, B, C, D, StoreCase, at_home, in_line, look, refused

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

    def test_woken_without_anybody_before_it_its_line_is_looked_at(self, case: StoreCase) -> None:
        """Its message may be lost as any other."""
        assert park(case, B).word == "woken"
        assert case.lines() == ["n"]

    def test_one_that_waits_for_less_time_brings_the_look_forward(self, case: StoreCase) -> None:
        """The line was to be looked at seldom, as its holder had held the lock for long."""
        case.store.acquire("n", A, 300.0, facts='{"state":"running","since":1.0}')
        park(case, B)
        assert look(case).next_in > 50.0
        park(case, C, within=3.0)
        assert case.store.sweep().next_in <= 3.0

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
