"""The demo's verdicts: made from facts alone, and against the project where the facts are."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from examples.demo.__main__ import table
from examples.demo.notes import count_runs, most_at_once
from examples.demo.scenes import GROUPS, Promise, Verdict

PROMISES = {each.title: each for group in GROUPS for each in group}


def _verdict(promise: Promise, facts: Mapping[str, object]) -> Verdict:
    return replace(promise, scene=lambda _say: facts).play(lambda _text: None)


@pytest.mark.parametrize(
    ("title", "fact"), [(title, fact) for title in PROMISES for fact in PROMISES[title].expected]
)
def test_each_single_wrong_or_missing_fact_breaks_its_promise(title: str, fact: str) -> None:
    """No fact is decoration: the verdict looks at every one."""
    promise = PROMISES[title]
    missing = {name: value for name, value in promise.expected.items() if name != fact}

    assert _verdict(promise, promise.expected).is_kept
    assert not _verdict(promise, {**promise.expected, fact: "else"}).is_kept
    assert not _verdict(promise, missing).is_kept


def test_a_scene_that_raised_broke_its_promise_and_says_why() -> None:
    def scene(_say: object) -> Mapping[str, object]:
        raise TimeoutError("waited 20 s")

    verdict = replace(next(iter(PROMISES.values())), scene=scene).play(lambda _text: None)

    assert not verdict.is_kept
    assert verdict.seen == "TimeoutError: waited 20 s"


def test_the_table_names_what_is_broken() -> None:
    text = table([Verdict("one", "1", "1", is_kept=True), Verdict("two", "1", "2", is_kept=False)])

    assert text.splitlines()[0] == "kept    1. one"
    assert text.splitlines()[3:] == ["BROKEN  2. two", "          expected  1", "          seen      2"]


@pytest.mark.parametrize(
    ("what", "runs", "at_once"),
    [
        (["start", "end", "start", "end"], 2, 1),
        (["start", "start", "end", "start", "end", "end"], 3, 2),
        ([], 0, 0),
    ],
)
def test_a_start_before_the_last_end_is_an_overlap(what: list[str], runs: int, at_once: int) -> None:
    notes = [{"what": each} for each in what]

    assert (count_runs(notes), most_at_once(notes)) == (runs, at_once)
