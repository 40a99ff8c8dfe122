"""What pyproject.toml says twice, or promises to users."""

import sys

from tests.pages import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_users_are_offered_the_extras_that_they_can_use_and_no_other() -> None:
    """An extra is published: what contributors need is a dependency group."""
    assert set(PYPROJECT["project"]["optional-dependencies"]) == {"embedded", "prometheus"}


def test_the_group_for_tests_has_what_the_extras_and_a_build_need() -> None:
    """A group cannot name the project's own extras, so it repeats them."""
    extras = PYPROJECT["project"]["optional-dependencies"]
    needed = {*extras["embedded"], *extras["prometheus"], *PYPROJECT["build-system"]["requires"]}
    assert needed - set(PYPROJECT["dependency-groups"]["test"]) == set()
