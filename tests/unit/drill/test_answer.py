"""What the command ``drill`` makes of a history, and on which servers it plays."""

import json
from dataclasses import asdict, replace
from math import inf
from pathlib import Path

import pytest

from celery_redislock.cli.drill import answer_of
from celery_redislock.drill.client import is_forbidden, read
from celery_redislock.drill.drill import Drill, drill
from celery_redislock.drill.verdict import Held, judge
from celery_redislock.locks import MemoryStore, connect
from celery_redislock.operating.server import LockServer, Trouble

WIDE = 1000


def drilled(*history: Held) -> Drill:
    """A drill with this history."""
    faults = {"kills": 3, "pauses": 2, "cuts": 1}
    losses = [("note", "it has no replica")]
    return Drill("redislock:drill-1", 1.0, faults, [0.001, 0.002], judge(history), losses)


def held(fence: int, start: float, end: float, *, is_over: bool = True) -> Held:
    """A hold of a client of its own."""
    return Held(f"client-{fence}", f"t{fence}", fence, start, [start], end, end + 1.0, is_over=is_over)


def test_a_history_without_an_overlap_ends_with_status_0_and_its_figures() -> None:
    """Each figure is on a line of its own, in fixed columns; then what is lost with the server."""
    answer = answer_of(drilled(held(1, 0.0, 1.0), held(2, 1.002, 2.0), held(3, 3.0, 4.0)), 20.0, WIDE)

    assert answer.status == 0
    assert [*answer.lines] == [
        "kills, pauses, cuts       3, 2, 1 in 20 s, with a ttl of 1.0 s",
        "holds                     3",
        "overlaps                  0",
        "fences out of order       0",
        "losses told               0",
        "longest without a holder  1.00 s",
        "hand-off p50, p99         2.0 ms, 1000.0 ms",
        "round trip p50, p99       1.0 ms, 2.0 ms",
        "note                      it has no replica",
    ]


def test_an_overlap_ends_with_status_1_and_names_both_holders() -> None:
    """Who reads the exit status only learns that the promise was broken; who reads on, by whom."""
    answer = answer_of(drilled(held(1, 0.0, 3.0), held(2, 2.0, 4.0)), 20.0, WIDE)

    assert answer.status == 1
    assert "overlaps                  1" in [*answer.lines]
    told = "client-1 (t1) and client-2 (t2) held it at once for 1.000 s"
    assert f"error                     {told}" in [*answer.lines]
    assert answer.document["overlaps"] == [told]


def test_a_fence_out_of_order_is_told_and_is_no_overlap() -> None:
    """The status is for overlaps; a fence that did not grow is an error in the table."""
    answer = answer_of(drilled(held(2, 0.0, 1.0), held(1, 2.0, 3.0)), 20.0, WIDE)

    assert answer.status == 0
    assert [line for line in answer.lines if line.startswith("error") and "has fence 1" in line]


def test_a_hand_off_is_counted_from_a_release_and_from_no_kill() -> None:
    """A killed holder hands nothing on: its ttl ends the hold."""
    verdict = judge([held(1, 0.0, 1.0), held(2, 1.5, 2.0, is_over=False), held(3, 4.0, 4.5)])

    assert verdict.handed == [0.5]
    assert verdict.idle == 2.0


@pytest.mark.parametrize(
    "store",
    [
        MemoryStore(),
        connect("redis+cluster://127.0.0.1:1"),
        connect([f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]),
    ],
    ids=["memory", "Cluster", "quorum"],
)
def test_a_store_that_is_no_single_server_is_refused_before_anything_is_sent(store: object) -> None:
    """The proxy stands before one server; the sentence says what to give instead."""
    with pytest.raises(Trouble, match=r"a drill plays on one server, .*--url"):
        drill(LockServer(store, "redislock"), 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "words",
    [
        "NOPERM this user has no permissions to run the 'scan' command",
        "NOPERM User locks has no permissions to run the 'zadd' command script: 1",
        "ERR The user executing the script can't run this command or subcommand script: 1",
        "ACL failure in script: User x has no permissions to run the 'rpush' command",
    ],
)
def test_a_missing_right_is_told_from_trouble_that_passes(words: str) -> None:
    """A right will be missing again; a server that does not answer may answer next time."""
    assert is_forbidden(Exception(words))
    assert not is_forbidden(Exception("no answer in time"))


def test_who_is_killed_held_until_then_unless_it_had_ended_its_hold(tmp_path: Path) -> None:
    """What a client wrote last of a hold counts; one that was about to release may have done so.

    A line counts whose end was written.
    """
    open_hold = replace(held(1, 0.0, inf, is_over=False), deadline=9.0)
    ended = held(2, 6.0, 7.0, is_over=False)
    lines = [open_hold, replace(ended, end=inf), ended]
    for name in ("client-1", "client-2"):
        mine = [json.dumps(asdict(each)) for each in lines if each.who == name]
        cut = json.dumps(asdict(ended))[:40]
        (tmp_path / name).write_text("\n".join([*mine, cut]))
    (tmp_path / "client-1.error").write_text("no line of a journal")

    found = read(tmp_path, {"client-1": 5.0, "client-2": 8.0})

    assert [(each.token, each.end) for each in found] == [("t1", 5.0), ("t2", 7.0)]
    assert judge(found).overlaps == []
