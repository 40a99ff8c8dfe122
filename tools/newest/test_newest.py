"""What `make newest` would run is what the pages say, and it counts what was run."""

import json
import sys

import pytest

from tests.pages import PAGES, ROOT
from tools.newest.__main__ import COLUMNS, merged
from tools.newest.combinations import COMBINATIONS
from tools.newest.sources import exchanged, sources_for
from tools.newest.trial import Outcome, failed_in, outcome_of, server_version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BOOKWORM = {"ID": "debian", "VERSION_CODENAME": "bookworm", "PRETTY_NAME": "Debian GNU/Linux 12 (bookworm)"}
LINES = """\
# deb http://127.0.0.1/debian bookworm main
deb [signed-by=/keys.gpg] http://127.0.0.1/debian bookworm main contrib
deb http://127.0.0.1/debian bookworm-updates main
deb-src http://127.0.0.1/debian bookworm main
deb http://127.0.0.1/others stable main
"""
STANZAS = """\
Types: deb
URIs: http://127.0.0.1/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /keys.gpg

Types: deb
URIs: http://127.0.0.1/debian-security
Suites: bookworm-security
Components: main
"""


def report(tests: int, failures: int = 0, errors: int = 0, skipped: int = 0) -> str:
    """Return what pytest writes into its report, but for the tests themselves."""
    counts = f'tests="{tests}" failures="{failures}" errors="{errors}" skipped="{skipped}"'
    return f'<?xml version="1.0"?><testsuites><testsuite name="pytest" {counts}></testsuite></testsuites>'


def test_only_the_suite_is_exchanged_in_sources_of_this_release_and_others_are_left_out() -> None:
    """Address, keys and components stay. A suite that is not released has no updates or security fixes."""
    assert exchanged("sources.list", LINES, "bookworm", "testing") == (
        "deb [signed-by=/keys.gpg] http://127.0.0.1/debian testing main contrib\n"
    )
    assert exchanged("debian.sources", STANZAS, "bookworm", "testing").splitlines() == [
        "Types: deb",
        "URIs: http://127.0.0.1/debian",
        "Suites: testing",
        "Components: main",
        "Signed-By: /keys.gpg",
    ]
    assert exchanged("debian.sources.disabled", STANZAS, "bookworm", "testing") == ""


def test_each_file_with_sources_of_this_release_is_read(tmp_path) -> None:
    (tmp_path / "sources.list").write_text(LINES)
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/debian.sources").write_text(STANZAS)
    (tmp_path / "sources.list.d/others.list").write_text("deb http://127.0.0.1/others stable main\n")
    assert sources_for("testing", BOOKWORM, tmp_path).keys() == {"sources.list", "debian.sources"}


def test_another_system_is_refused_with_what_can_be_run_there(tmp_path) -> None:
    ubuntu = {"ID": "ubuntu", "VERSION_CODENAME": "noble", "PRETTY_NAME": "Ubuntu 24.04 LTS"}
    with pytest.raises(
        SystemExit, match=r"testing, and this machine is Ubuntu 24\.04 LTS: .* ARGS='3\.10 3\.12'"
    ):
        sources_for("testing", ubuntu, tmp_path)
    with pytest.raises(SystemExit, match="this machine is no Linux that tells its name"):
        sources_for("testing", {}, tmp_path)


def test_a_machine_without_sources_of_its_own_release_is_refused(tmp_path) -> None:
    with pytest.raises(
        SystemExit, match="is of this release, bookworm, itself: nothing tells where the suite"
    ):
        sources_for("testing", BOOKWORM, tmp_path)


def test_what_did_not_pass_at_once_is_told_in_its_cell() -> None:
    assert outcome_of(report(3717, skipped=8)) == Outcome(3709, skipped=8)
    assert str(outcome_of(report(3717, skipped=8))) == "3,709, 8 skipped"
    assert str(outcome_of(report(80, failures=1, errors=2))) == "77, 3 **failed**"
    assert outcome_of(report(80, failures=1, errors=2), again=report(3, failures=1)) == Outcome(79, 1, 2)
    assert str(Outcome(80, 0, 2)) == "80, 2 of them at the second try"


def test_a_test_that_failed_is_tried_again_without_the_group_that_it_ran_in(tmp_path) -> None:
    """pytest-xdist writes the group behind the name, and knows no test of that name."""
    (tmp_path / "v/cache").mkdir(parents=True)
    (tmp_path / "v/cache/lastfailed").write_text(json.dumps({"tests/a.py::test_b[x@y]@fused, prefork": True}))
    assert failed_in(tmp_path) == ["tests/a.py::test_b[x@y]"]


def test_a_server_is_named_with_its_version() -> None:
    assert (
        server_version("Redis server v=8.0.6 sha=00000000:0 malloc=jemalloc-5.3.1 bits=64") == "Redis 8.0.6"
    )
    assert server_version("Valkey server v=8.1.1 sha=00000000:0 malloc=libc bits=64") == "Valkey 8.1.1"


def test_new_rows_replace_those_of_the_same_python_and_others_stay() -> None:
    assert merged([["3.9.1", "a"], ["3.14.8", "a"]], [["3.14.9", "b"], ["3.10.2", "b"]]) == [
        ["3.9.1", "a"],
        ["3.10.2", "b"],
        ["3.14.9", "b"],
    ]


def test_the_policy_has_a_row_for_each_combination_and_none_for_another() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGES["docs/policy.md"].splitlines()]
    told = [tuple(row[:3]) for row in rows if row[-1] == "before a release"]
    assert told == [(each.python, each.celery, each.server) for each in COMBINATIONS]


def test_what_was_kept_is_of_these_combinations_and_nothing_failed() -> None:
    """The versions that were really run are those that the policy tells."""
    kept = json.loads((ROOT / "docs/proof.json").read_text(encoding="utf-8"))["newest"]
    ((columns, rows),) = kept["tables"]
    assert columns == [*COLUMNS]
    assert len(rows) == len(COMBINATIONS)
    for row, combination in zip(rows, COMBINATIONS, strict=True):
        python, celery, _kombu, _redis, server, *_ = row
        assert python.startswith(f"{combination.python}.")
        assert celery.startswith(f"{combination.celery}.")
        assert server.startswith(f"{combination.server}.")
        assert not [cell for cell in row if "failed" in cell]


def test_each_python_that_is_run_has_a_classifier_and_no_other() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    minors = [each.rpartition(" ")[2] for each in project["classifiers"] if ":: Python :: 3." in each]
    assert minors == sorted(
        [*(each.python for each in COMBINATIONS), "3.11"], key=lambda each: each.split(".")
    )
