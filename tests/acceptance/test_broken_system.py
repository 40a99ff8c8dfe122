"""The broken system is in each of its states, and the commands say so."""

import time
from typing import Any

import pytest

from tests.acceptance import broken_names
from tests.acceptance.broken_system import Broken

#: More than ten seconds to start, for all of them together.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def held(broken: Broken) -> list[dict[str, Any]]:
    """What ``list`` says."""
    locks: list[dict[str, Any]] = broken.ask("list")["locks"]
    return locks


@pytest.fixture(scope="module")
def waiting(broken: Broken) -> dict[str, Any]:
    """What ``waiting`` says."""
    document: dict[str, Any] = broken.ask("waiting")
    return document


@pytest.fixture(scope="module")
def entries(broken: Broken) -> dict[str, dict[str, Any]]:
    """What ``schedule`` says, by entry."""
    return {entry["name"]: entry for entry in broken.ask("schedule")["entries"]}


def of(held: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [holder for holder in held if holder["key"] == key]


def head(waiting: dict[str, Any], key: str) -> dict[str, Any]:
    """The first in the line of a key."""
    (first,) = [each for each in waiting["waiting"] if each["key"] == key]
    return first  # type: ignore[no-any-return]


def test_a_dead_holder_is_late_and_stays_and_calls_wait_behind_it(
    broken: Broken, held: list[dict[str, Any]], waiting: dict[str, Any]
) -> None:
    """Nobody here can tell that it is dead: it was on another machine. It stays for ten minutes at least."""
    (holder,) = of(held, broken_names.DEAD)
    assert (holder["state"], holder["host"]) == ("running", "worker-7")
    assert holder["ttl"] / 2 > holder["remaining"] > 600
    assert holder["age"] > 1800
    assert head(waiting, broken_names.DEAD)["in_line"] == 4


def test_a_line_without_a_head_belongs_to_a_broker_without_workers(
    held: list[dict[str, Any]], waiting: dict[str, Any]
) -> None:
    assert of(held, broken_names.HEADLESS) == []
    assert head(waiting, broken_names.HEADLESS)["in_line"] == 3
    assert [*waiting["unserved"]] == [broken_names.HEADLESS]


def test_what_nobody_consumes_has_been_queued_for_half_an_hour(
    broken: Broken, held: list[dict[str, Any]]
) -> None:
    (holder,) = of(held, broken_names.UNCONSUMED)
    assert (holder["state"], holder["age"] > 1800) == ("queued", True)
    told = broken.ask("explain", broken_names.UNCONSUMED)["message"]["told"]
    assert "in the queue 'reports'" in told
    assert "start one with -Q reports" in told


def test_ticks_of_an_entry_are_skipped_in_a_row(entries: dict[str, dict[str, Any]]) -> None:
    assert entries[broken_names.SKIPPED]["last_skip"]["in_a_row"] >= broken_names.IN_A_ROW


def test_an_entry_that_no_beat_knows_is_overdue(entries: dict[str, dict[str, Any]]) -> None:
    """It was sent half an hour ago, and due again five seconds later."""
    entry = entries[broken_names.OVERDUE]
    assert entry["next_due"] < time.time() - 1800
    assert (entry["shared"], entry["paused"], entry["last_skip"]) == (True, False, None)


def test_an_entry_is_paused_and_says_why(entries: dict[str, dict[str, Any]]) -> None:
    entry = entries[broken_names.PAUSED]
    assert (entry["paused"], entry["pause_reason"]) == (True, "the provider is down")


def test_a_rate_has_had_its_starts_and_calls_wait_for_it(broken: Broken, held: list[dict[str, Any]]) -> None:
    assert of(held, broken_names.RATE) == []
    told = broken.ask("waiting", broken_names.RATE)
    assert len(told["waiting"]) == 3
    ((rate,),) = told["rates"].values()
    assert (rate["starts"], rate["opens_in_seconds"] > 600) == (3, True)


def test_a_debounced_call_waits_and_others_were_merged_into_it(waiting: dict[str, Any]) -> None:
    first = head(waiting, broken_names.DEBOUNCED)
    assert (first["in_line"], first["merged"], first["due"] > time.time() + 600) == (1, 2, True)


def test_a_full_line_takes_no_more(broken: Broken) -> None:
    """Two of four wait; the others are refused at start, again and again."""
    told = broken.ask("explain", broken_names.FULL)
    assert told["in_line"] == {broken_names.FULL: 2}
    assert told["refused"][0]["times"] > 4


def test_another_programs_key_is_in_the_way(broken: Broken) -> None:
    told = broken.ask("explain", broken_names.FOREIGN)
    (holder,) = told["locks"]
    assert (holder["state"], holder["owner"]) == ("foreign", broken_names.FOREIGN_VALUE)
    assert told["in_line"] == {broken_names.FOREIGN: 1}


def test_doctor_warns_of_results_that_are_not_kept_for_long_enough(broken: Broken) -> None:
    found = {each["level"]: each["text"] for each in broken.ask("doctor")["findings"]}
    assert "result_expires" in found["warning"]
    assert broken_names.HEADLESS in found["error"]


def test_an_operator_holds_a_key_and_has_released_another(broken: Broken, held: list[dict[str, Any]]) -> None:
    (holder,) = of(held, broken_names.HELD)
    assert (holder["state"], holder["about"]) == ("hold", "dispute, ticket 12")
    assert of(held, broken_names.FORCED) == []
    acts = {act["act"]: act["reason"] for act in broken.ask("history")["acts"]}
    assert acts["release"] == "asked for by mistake"


def test_the_rest_of_it_is_well(broken: Broken, held: list[dict[str, Any]]) -> None:
    """Runs that are renewed and say what they do, permits, periods, calls that were skipped."""
    well = [holder for holder in held if holder["state"] == "running" and holder["host"] != "worker-7"]
    assert {holder["about"] for holder in well} >= {"shelf tools", "shelf toys", "acme, page 1"}
    assert all(holder["remaining"] > holder["ttl"] / 2 for holder in well)
    assert len(of(held, broken_names.PERMITS)) == 3
    assert [holder["state"] for holder in of(held, broken_names.PERIOD)] == ["period"]
    (refused,) = broken.ask("explain", broken_names.SKIPS)["refused"]
    assert refused["on_conflict"] == "skip"


def test_hostile_texts_are_keys_tasks_descriptions_and_a_host(held: list[dict[str, Any]]) -> None:
    hostile = [holder for holder in held if holder["task"] == broken_names.HOSTILE_TASK]
    assert {holder["about"] for holder in hostile} >= {*broken_names.HOSTILE[:7]}
    assert {holder["host"] for holder in hostile} == {broken_names.HOSTILE_HOST}
    assert any("<script>" in holder["key"] for holder in hostile)
