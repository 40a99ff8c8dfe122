"""The demo's verdicts: made from facts alone, and against the project where the facts are."""

from collections.abc import Mapping
from typing import Any

import pytest

from celery_redislock.cli.demo.promises import PROMISES, AtMost, Line
from celery_redislock.cli.demo.records import Entry, count_runs, most_at_once
from celery_redislock.cli.demo.scenes import SCENES
from celery_redislock.cli.demo.show import exit_status, table
from celery_redislock.cli.demo.stage import NotReadyError, celery_url


def _kept(name: str) -> dict[str, Any]:
    """Facts as promised."""
    expected: Mapping[str, Any] = PROMISES[name].expected
    return {k: v.number if isinstance(v, AtMost) else v for k, v in expected.items()}


def _other(value: Any) -> Any:
    """A fact that is not as promised, of the same type."""
    if isinstance(value, str):
        return f"not {value}"
    return value[:-1] if isinstance(value, list) else value + 1


def _entries(*what: str) -> list[Entry]:
    return [Entry(word, "id", 1) for word in what]


class TestVerdict:
    @pytest.mark.parametrize("name", PROMISES)
    def test_facts_as_promised_agree(self, name: str) -> None:
        line = PROMISES[name].line(_kept(name))

        assert line.agrees

    @pytest.mark.parametrize(("name", "fact"), [(n, f) for n in PROMISES for f in PROMISES[n].expected])
    def test_each_single_wrong_fact_breaks_its_promise(self, name: str, fact: str) -> None:
        """No fact is decoration: the verdict looks at every one."""
        facts = _kept(name)
        facts[fact] = _other(facts[fact])

        line = PROMISES[name].line(facts)

        assert not line.agrees
        assert line.seen != PROMISES[name].line(_kept(name)).seen

    @pytest.mark.parametrize("name", PROMISES)
    def test_a_missing_fact_breaks_its_promise(self, name: str) -> None:
        facts = _kept(name)
        facts.popitem()

        assert not PROMISES[name].line(facts).agrees

    def test_a_scene_that_raised_broke_its_promise_and_says_why(self) -> None:
        line = PROMISES["crowd"].broken(TimeoutError("waited 20 s"))

        assert not line.agrees
        assert line.seen == "TimeoutError: waited 20 s"

    def test_every_promise_has_one_scene(self) -> None:
        assert sorted(name for group in SCENES for name in group) == sorted(PROMISES)

    @pytest.mark.parametrize(
        ("agreeing", "status"), [([True, True], 0), ([True, False], 1), ([False, False], 1), ([], 1)]
    )
    def test_the_exit_status_is_0_only_if_every_line_agrees(self, agreeing: list[bool], status: int) -> None:
        lines = [Line("title", "expected", "seen", agrees) for agrees in agreeing]

        assert exit_status(lines) == status

    def test_the_table_names_what_is_broken(self) -> None:
        text = table([Line("one", "1", "1", agrees=True), Line("two", "1", "2", agrees=False)])

        assert text.splitlines()[0] == "kept    1. one"
        assert text.splitlines()[3:] == [
            "BROKEN  2. two",
            "          expected  1",
            "          seen      2",
        ]


class TestRecords:
    def test_runs_one_after_the_other_do_not_overlap(self) -> None:
        entries = _entries("start", "end", "start", "end")

        assert (count_runs(entries), most_at_once(entries)) == (2, 1)

    def test_a_start_before_the_last_end_is_an_overlap(self) -> None:
        entries = _entries("start", "start", "end", "start", "end", "end")

        assert (count_runs(entries), most_at_once(entries)) == (3, 2)

    def test_nothing_written_down_is_no_run(self) -> None:
        assert (count_runs([]), most_at_once([])) == (0, 0)


class TestUrl:
    @pytest.mark.parametrize(
        ("given", "celerys"),
        [
            ("redis://host:1/2", "redis://host:1/2"),
            ("rediss://host", "rediss://host"),
            ("redis+socket:///run/s?virtual_host=1", "redis+socket:///run/s?virtual_host=1"),
            ("unix:///run/s?db=1", "redis+socket:///run/s?virtual_host=1"),
            ("valkey://host", "redis://host"),
            ("valkeys://host", "rediss://host"),
        ],
    )
    def test_every_form_of_a_single_servers_url_becomes_celerys(self, given: str, celerys: str) -> None:
        assert celery_url(given) == celerys

    def test_another_scheme_is_refused_without_its_password(self) -> None:
        with pytest.raises(NotReadyError) as caught:
            celery_url("amqp://me:hush@host")

        assert "amqp://***@host" in str(caught.value)
        assert "hush" not in str(caught.value)
