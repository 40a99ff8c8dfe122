"""The recipes of CONTRIBUTING's "Break a promise, and see a test fail", played in a copy of the project."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT

#: A file, what to change in it and into what, and the command whose test then fails.
_RECIPE = re.compile(
    r"\*\*(?P<promise>[^*]+)\.\*\* In `(?P<path>[^`]+)`[^`]*: make `(?P<before>[^`]+)`"
    r" a plain `(?P<after>[^`]+)`"
    r".*?\.venv/bin/python -m pytest (?P<words>\S+ -k (?P<test>\w+))\n",
    re.DOTALL,
)
#: A test there is one of the project, and no part of this one.
_OURS = ("PYTEST_", "COV_")


def _recipes() -> list[re.Match[str]]:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition("## Break a promise, and see a test fail\n")[2].partition("\n## ")[0]
    recipes = list(_RECIPE.finditer(section))
    assert len(recipes) == section.count("```sh") > 0, "a recipe is written in another form"
    return recipes


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package, its examples and its tests, which run from there."""
    for folder in ("celery_redislock", "examples", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def _outcome(copy: Path, words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *words.split()],
        cwd=copy,
        env={**kept, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.parametrize("recipe", _recipes(), ids=lambda recipe: recipe["promise"])
def test_a_broken_promise_fails_the_test_that_its_recipe_names(recipe: re.Match[str], copy: Path) -> None:
    """A newcomer's first exercise works as it is written, and the tests notice the broken promise."""
    file = copy / recipe["path"]
    text = file.read_text()
    assert text.count(recipe["before"]) == 1, f"{recipe['path']} has not once: {recipe['before']}"
    file.write_text(text.replace(recipe["before"], recipe["after"]))

    done = _outcome(copy, recipe["words"])

    # 1: tests failed. What cannot be collected, or is not there, ends with another status.
    assert done.returncode == 1, done.stdout + done.stderr
    failed = re.findall(r"^FAILED \S+::(\w+)", done.stdout, re.MULTILINE)
    assert failed == [recipe["test"]], done.stdout
