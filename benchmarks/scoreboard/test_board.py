"""What the scoreboard writes into the pages, and when it refuses to."""

import sys
from pathlib import Path

import pytest

from benchmarks.scoreboard import __main__ as program
from benchmarks.scoreboard import board as boards
from benchmarks.scoreboard.board import BEGIN, END, PAGE, README, Board, table_in
from benchmarks.scoreboard.judging import Outcome

EMPTY = f"before\n\n{BEGIN}\n{END}\n\nafter\n"


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The page and the README of another place."""
    page, readme = tmp_path / "scoreboard.md", tmp_path / "README.md"
    monkeypatch.setattr(boards, "PAGE", page)
    monkeypatch.setattr(boards, "README", readme)
    page.write_text(EMPTY)
    readme.write_text(EMPTY)
    return page, readme


def play(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["scoreboard", *arguments])
    return program.main()


def test_the_committed_pages_have_what_was_measured_last() -> None:
    board = Board.read()

    assert table_in(PAGE.read_text()) == board.table(program.TITLES)
    assert table_in(README.read_text()) == board.totals()


def test_the_readme_gets_the_last_row_of_the_table(
    pages: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert play(monkeypatch, "--pages") == 0

    page, readme = (path.read_text() for path in pages)
    header, _, *rows = table_in(page).partition("\n\n")[0].splitlines()
    small_header, _, last = table_in(readme).splitlines()
    assert len(rows) == len(program.TITLES) + 1
    assert last == rows[-1]
    assert small_header.split("|")[2:] == header.split("|")[2:]
    assert "Measured: " in page
    for text in (page, readme):
        assert text.startswith("before\n\n<!-- ")
        assert text.endswith(" -->\n\nafter\n")


def test_writing_the_pages_again_changes_nothing(
    pages: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, "--pages")
    first = [path.read_text() for path in pages]
    play(monkeypatch, "--pages")

    assert [path.read_text() for path in pages] == first


@pytest.mark.parametrize("arguments", [[], ["--pages"], ["--write", "--scenario", "15"]], ids=" ".join)
@pytest.mark.parametrize("lacking", [0, 1])
@pytest.mark.parametrize("text", ["", BEGIN, EMPTY + EMPTY])
def test_nothing_is_played_or_written_if_a_page_has_no_place_for_it(
    pages: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, lacking: int, text: str, arguments: list[str]
) -> None:
    monkeypatch.setattr(program, "_play_all", lambda *_, **__: pytest.fail("it plays"))
    pages[lacking].write_text(text)

    with pytest.raises(ValueError, match=rf"{pages[lacking].name}: there must be one"):
        play(monkeypatch, *arguments)

    assert pages[lacking].read_text() == text
    assert pages[1 - lacking].read_text() == EMPTY


@pytest.mark.parametrize("argument", ["--quick", "--write", "--only=celery-once", "--scenario=15"])
def test_what_is_to_be_played_is_refused_where_nothing_is_played(
    monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    with pytest.raises(SystemExit) as refused:
        play(monkeypatch, "--pages", argument)

    assert refused.value.code == 2


def test_what_a_library_has_no_means_for_counts_neither_way() -> None:
    column = {"01": Outcome(True, "1 run"), "02": Outcome(False, "hangs"), "03": Outcome(None, "no TTL")}

    assert Board(outcomes={"celery-once": column}).passed("celery-once") == "1 of 2"
