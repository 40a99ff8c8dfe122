"""What a repository asks of its service: it runs, builds and asks for what is really there."""

import re
import sys
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from celery_redislock.cli import redislock
from tests.acceptance.compose import COMPOSE
from tests.pages import ROOT
from tools.newest.combinations import COMBINATIONS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def read(name: str) -> Any:
    """Return what a file says."""
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def commands(name: str) -> list[str]:
    """Return what the steps of a workflow run."""
    jobs = read(f".github/workflows/{name}.yml")["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def test_the_tests_run_on_each_supported_python() -> None:
    """The package page names them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    job = read(".github/workflows/ci.yml")["jobs"]["tests"]
    assert job["strategy"]["matrix"]["python"] == named


@pytest.mark.parametrize("workflow", ["ci", "release"])
def test_a_workflow_runs_what_everybody_can_run(workflow: str) -> None:
    """Targets of the Makefile, and what .ci/run runs."""
    targets = [target for command in commands(workflow) for target in re.findall(r"make (\w+)", command)]
    assert targets
    assert [target for target in targets if not re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)] == []


def test_only_what_is_published_or_attested_may_ask_for_an_identity() -> None:
    """And no job may write to the repository."""
    for name in ("ci", "release"):
        workflow = read(f".github/workflows/{name}.yml")
        assert workflow["permissions"] == {}
        for job, said in workflow["jobs"].items():
            may = said["permissions"]
            assert may.get("contents") in {None, "read"}
            assert ("id-token" in may) == (job in {"attest", "publish"})


def test_a_report_has_what_doctor_and_explain_print() -> None:
    """Nobody can help without it."""
    fields = {field["id"]: field for field in read(".github/ISSUE_TEMPLATE/bug.yml")["body"] if "id" in field}
    for command in ("doctor", "explain"):
        assert command in redislock.list_commands(click.Context(redislock))
        assert f"redislock {command}" in fields[command]["attributes"]["label"]
        assert fields[command]["validations"]["required"]


def test_the_hooks_before_a_commit_are_programs_of_make_lint_and_tests_that_are_there() -> None:
    """Nothing is checked that nobody else checks."""
    (local,) = read(".pre-commit-config.yaml")["repos"]
    for hook in local["hooks"]:
        program, *words = hook["entry"].removeprefix(".venv/bin/").split()
        files = [word for word in words if word.startswith("tests/")]
        assert all((ROOT / file).exists() for file in files)
        assert f"$(BIN)/{program}" in MAKEFILE


def test_the_servers_of_the_compose_file_are_of_versions_that_were_run() -> None:
    """The lock server's, and Python's."""
    images = dict(service["image"].split(":") for service in COMPOSE["services"].values())
    assert f"Redis {images['redis'].removesuffix('-alpine')}" in {each.server for each in COMBINATIONS}
    assert images["python"].removesuffix("-slim") in {each.python for each in COMBINATIONS}
