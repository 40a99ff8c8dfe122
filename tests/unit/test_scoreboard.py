"""The scoreboard: its table is the measured one, we pass all of it, and its judgements are right."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.scoreboard.board import BEGIN, END, README, Board, table_in, with_table
from benchmarks.scoreboard.judging import Body, Outcome, bodies_of, most_at_once, number_of
from benchmarks.scoreboard.libraries import LIBRARIES, OURS
from benchmarks.scoreboard.scenarios import SCENARIOS
from benchmarks.scoreboard.stage import WITHIN, NeverCameError, Stage

MEASURED = Board.read()
TITLES = {number: scenario.title for number, scenario in SCENARIOS.items()}


class Clock:
    """Time that passes only in sleep."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Notes:
    """A journal without a server."""

    def __init__(self) -> None:
        self.noted: list[Body] = []

    def bodies(self) -> list[Body]:
        return self.noted


def body(start: float, end: float | None, task_id: str = "first") -> Body:
    return Body("job", task_id, 1, 0, False, start, end)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def stage(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(clock=Clock())
    monkeypatch.setitem(vars(stage), "shop", SimpleNamespace(journal=notes))
    return stage


def looks(*answers: bool) -> Callable[[], bool]:
    """Answer one look after another; the last one for ever."""
    left = list(answers)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


class TestTheTable:
    def test_the_readme_has_the_measured_table(self) -> None:
        assert table_in(README.read_text(encoding="utf-8")) == MEASURED.table(TITLES), (
            "run python -m benchmarks.scoreboard"
        )

    def test_every_library_was_measured_in_every_scenario_it_has_the_means_for(self) -> None:
        assert list(MEASURED.outcomes) == list(LIBRARIES)
        for name, library in LIBRARIES.items():
            column = MEASURED.outcomes[name]
            assert list(column) == list(SCENARIOS)
            assert {number for number, each in column.items() if each.passed is None} == set(library.lacks)

    def test_we_pass_all_eighteen(self) -> None:
        assert MEASURED.passed(OURS) == "18 of 18"

    def test_what_was_measured_with_is_told(self) -> None:
        assert set(MEASURED.versions) == set(LIBRARIES)
        assert {"Celery", "kombu", "redis-py", "Python"} <= set(MEASURED.conditions)

    def test_a_board_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        MEASURED.write(tmp_path / "results.json")

        assert Board.read(tmp_path / "results.json") == MEASURED
        assert Board.read(tmp_path / "none.json") == Board()

    def test_a_changed_outcome_changes_the_table(self) -> None:
        outcomes: dict[str, dict[str, Outcome]] = {OURS: {"01": Outcome(False, "7 runs")}}
        board = Board({"Celery": "5.7.0"}, {OURS: "1"}, outcomes)

        assert "| 01 pressed | ✗ 7 runs |" in board.table({"01": "pressed"})
        assert "| **passed** | **0 of 1** |" in board.table({"01": "pressed"})

    def test_what_a_library_has_no_means_for_does_not_count(self) -> None:
        column = {
            "01": Outcome(True, "1 run"),
            "02": Outcome(False, "9 of 10"),
            "11": Outcome(None, "no TTL"),
        }

        assert Board(outcomes={OURS: column}).passed(OURS) == "1 of 2"

    def test_only_what_is_between_the_marks_is_replaced(self) -> None:
        page = f"before\n{BEGIN}\n\nold\n\n{END}\nafter\n"

        assert with_table(page, "new") == page.replace("old", "new")
        assert with_table(with_table(page, "new"), "old") == page
        assert table_in(page) == "old"

    def test_a_page_without_its_marks_is_refused(self) -> None:
        with pytest.raises(ValueError, match="there must be one"):
            table_in(f"{BEGIN} alone")


class TestTheScenarios:
    def test_they_are_numbered_without_a_gap(self) -> None:
        assert list(SCENARIOS) == [f"{number:02}" for number in range(1, 19)]

    @pytest.mark.parametrize("number", SCENARIOS)
    def test_each_says_what_is_wanted_and_why(self, number: str) -> None:
        assert SCENARIOS[number].play.__doc__


class TestJudging:
    @pytest.mark.parametrize(
        ("bodies", "most"),
        [
            ([], 0),
            ([body(1, 2)], 1),
            ([body(1, 2), body(2, 3)], 1),
            ([body(1, 3), body(2, 4)], 2),
            ([body(1, 9), body(2, 3), body(4, 5)], 2),
            ([body(1, 9), body(2, 5), body(4, 6)], 3),
            ([body(1, None), body(100, 101)], 2),
        ],
    )
    def test_bodies_on_at_once_are_counted(self, bodies: list[Body], most: int) -> None:
        """One that follows at the very moment does not overlap; one without an end is on for ever."""
        assert most_at_once(reversed(bodies)) == most

    def test_notes_become_bodies_in_the_order_they_began(self) -> None:
        about: dict[str, Any] = {"task": "job", "task_id": "first", "pid": 1, "retries": 0, "eager": False}
        starts = {"b": {**about, "start": 2.0}, "a": {**about, "start": 1.0}}

        assert bodies_of(starts, {"a": 3.0}) == [body(1.0, 3.0), body(2.0, None)]

    def test_numbers_are_told_in_words(self) -> None:
        assert [number_of(count, "run") for count in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]

    def test_an_outcome_shows_its_verdict(self) -> None:
        assert [str(Outcome(passed, "so")) for passed in (True, False, None)] == ["✓ so", "✗ so", "n/a: so"]


class TestWaiting:
    def test_a_fact_is_waited_for_until_it_comes(self, stage: Stage) -> None:
        assert stage.until(looks(False, False, True))

    def test_a_fact_that_does_not_come_is_given_up_in_time(self, stage: Stage) -> None:
        assert stage.until(looks(False), 5.0) is None
        with pytest.raises(NeverCameError, match="the moon"):
            stage.must(looks(False), "the moon")

    def test_rest_ends_a_wait_only_when_seen_twice(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What ends between two looks may just have published the next."""
        monkeypatch.setattr(stage, "is_at_rest", looks(True, False, True, False, False))
        assert stage.until(looks(*[False] * 5, True), or_rest=True)

        monkeypatch.setattr(stage, "is_at_rest", looks(False, True))
        assert stage.until(looks(*[False] * 50, True), or_rest=True) is None

    def test_a_call_that_runs_is_accepted(self, stage: Stage, notes: Notes) -> None:
        notes.noted.append(body(1, 2, "first"))
        calls = iter([None, None, body(3, 4, "again")])

        def call() -> None:
            if made := next(calls):
                notes.noted.append(made)

        assert stage.accepted_again(call) == Outcome(True, "within 1 s")

    def test_a_body_of_an_earlier_message_is_no_acceptance(self, stage: Stage, notes: Notes) -> None:
        outcome = stage.accepted_again(lambda: notes.noted.append(body(3, 4, "revoked")), "revoked")

        assert outcome == Outcome(False, f"not within {WITHIN:.0f} s")

    def test_a_call_refused_with_an_error_is_made_again(self, stage: Stage, notes: Notes) -> None:
        left = [ValueError("refused"), ValueError("refused")]

        def call() -> None:
            if left:
                raise left.pop()
            notes.noted.append(body(3, 4, "again"))

        assert stage.accepted_again(call).passed
        assert not left
