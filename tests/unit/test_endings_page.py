"""The page of all endings is what the rows and the committed figures make it."""

import json
from pathlib import Path

import pytest

from tests.acceptance.ladder.ending import EVERY_POOL, Ending
from tests.acceptance.ladder.figures import Figures, note, read
from tests.acceptance.ladder.page import endings_page, main
from tests.acceptance.ladder.rows import GROUPS

PAGE = Path(__file__).parents[2] / "docs" / "endings.md"
ENDINGS = [ending for group in GROUPS for ending in group.endings]


def test_the_page_is_made_of_the_rows_and_figures() -> None:
    assert PAGE.read_text(encoding="utf-8") == endings_page(read()), (
        "run python -m tests.acceptance.ladder.page docs/endings.md"
    )


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name)
def test_every_row_is_in_the_page_with_a_figure_for_each_of_its_pools(ending: Ending) -> None:
    pools = [pool for case in ending.cases for pool in case.pools]

    assert f"| {ending.name} |" in PAGE.read_text(encoding="utf-8")
    assert sorted(read().seconds[ending.name]) == sorted(pools)


def test_every_figure_belongs_to_a_row() -> None:
    assert set(read().seconds) == {ending.name for ending in ENDINGS}


def test_every_ending_has_a_name_of_its_own_and_each_pool_once() -> None:
    names = [ending.name for ending in ENDINGS]
    pools = [[pool for case in ending.cases for pool in case.pools] for ending in ENDINGS]

    assert sorted(set(names)) == sorted(names)
    assert [each for each in pools if len(set(each)) != len(each)] == []
    assert {pool for each in pools for pool in each} == {*EVERY_POOL, "caller"}


def test_the_page_says_what_was_measured() -> None:
    figures = read()
    slow: dict[str, float | None] = dict.fromkeys(EVERY_POOL, 7.25)
    seconds = {**figures.seconds, "error": slow}

    page = endings_page(Figures(figures.versions, seconds))

    (line,) = [line for line in page.splitlines() if line.startswith("| error |")]
    assert line.count("7.25") == len(EVERY_POOL)


def test_the_page_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    main([str(tmp_path / "page.md")])

    assert (tmp_path / "page.md").read_text(encoding="utf-8") == endings_page(read())
    with pytest.raises(SystemExit, match="usage"):
        main([])


def test_figures_are_noted_where_a_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figures.json"
    monkeypatch.setenv("LADDER_JSON", str(path))

    note("success", "prefork", 0.1234)
    note("success", "solo", None)
    note("error", "solo", 2.0)

    assert read(path).seconds == {"success": {"prefork": 0.12, "solo": None}, "error": {"solo": 2.0}}
    assert "celery" in read(path).versions
    assert json.loads(path.read_text(encoding="utf-8"))


def test_no_figure_is_noted_where_no_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LADDER_JSON", raising=False)
    before = read()

    note("success", "prefork", 9.0)

    assert read() == before
