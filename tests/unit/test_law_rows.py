"""Every law has a row in the acceptance tests for every broker, and one for every pool."""

import json
import subprocess
import sys

import pytest

from tests.laws import BROKERS, LAWS, POOLS, laws_of
from tests.pages import ROOT


@pytest.fixture(scope="module")
def rows() -> set[tuple[int, str, str]]:
    """Law, broker and pool of each acceptance test."""
    collect = ["--collect-only", "-qq", "-p", "tests.laws", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *collect, "tests/acceptance"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[[")]
    assert len(lines) == 1, done.stdout[-4000:] + done.stderr[-4000:]
    return {(law, broker, pool) for law, broker, pool in json.loads(lines[0])}


@pytest.mark.parametrize("law", LAWS)
def test_every_law_has_a_row_for_each_broker(rows: set[tuple[int, str, str]], law: int) -> None:
    assert {broker for of, broker, _ in rows if of == law} == {*BROKERS}


@pytest.mark.parametrize("law", LAWS)
def test_every_law_has_a_row_for_each_pool(rows: set[tuple[int, str, str]], law: int) -> None:
    assert {pool for of, _, pool in rows if of == law and pool} == {*POOLS}


@pytest.mark.parametrize(
    ("docstring", "laws"),
    [
        ("Law 3: its own.", [3]),
        ("Laws 2 and 8: x 9.", [2, 8]),
        ("Laws 1, 2, 4 and 9: x.", [1, 2, 4, 9]),
        ("By law 3.", []),
        (None, []),
    ],
)
def test_the_laws_of_a_test_are_those_it_begins_with(docstring: str | None, laws: list[int]) -> None:
    assert laws_of(docstring) == laws
