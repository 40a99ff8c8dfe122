"""What type checkers make of users' modules: the right ones pass, and each mistake is reported on its line.

Checked as a user's own, beside an installed package: in an environment with
``celery-types``, and in one without.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import NamedTuple

import pytest

import celery_redislock

HERE = Path(__file__).parent
MARK = re.compile(r"# expect-error( \(mypy: with celery-types\))?$")
MODULES = ("shop.py", "classes.py", "mistakes.py", "class_mistakes.py")
#: What users without celery-types set for Celery as it is, in mypy's configuration.
LENIENT = """
disallow_untyped_decorators = false
[mypy-celery.*]
ignore_missing_imports = true
"""


class Error(NamedTuple):
    """What a checker reports."""

    file: str
    line: int
    code: str


class Report(NamedTuple):
    """What a checker says of all modules, in one environment."""

    checker: str
    has_celery_types: bool
    errors: list[Error]

    def lines(self, *names: str) -> list[tuple[str, int]]:
        """Where it sees errors in these modules."""
        return sorted({(error.file, error.line) for error in self.errors if error.file in names})

    def expected(self, name: str) -> list[tuple[str, int]]:
        """Where it should see them: on the marked lines."""
        lines = (HERE / name).read_text().splitlines()
        marks = [(number, MARK.search(line)) for number, line in enumerate(lines, start=1)]
        everywhere = self.checker != "mypy" or self.has_celery_types
        return [(name, number) for number, mark in marks if mark and (everywhere or not mark[1])]


def needs(*modules: str) -> None:
    """Skip where a module is missing; with ``CI=true`` the test fails."""
    for module in modules:
        if importlib.util.find_spec(module) is None and not os.environ.get("CI"):
            pytest.skip(f"{module} is not installed: pip install --group dev")


@pytest.fixture(
    scope="module",
    params=[
        (checker, has_celery_types)
        for checker in ("mypy", "basedpyright")
        for has_celery_types in (True, False)
    ],
    ids=["mypy with celery-types", "mypy without", "pyright with celery-types", "pyright without"],
)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Each checker in each environment, as strict as its users call it."""
    checker, has_celery_types = request.param
    needs(checker, *(["celery-stubs"] if has_celery_types else []))
    python = _environment(tmp_path_factory.mktemp("environment"), has_celery_types=has_celery_types)
    folder = tmp_path_factory.mktemp("project")
    for name in MODULES:
        shutil.copy(HERE / name, folder)
    check = _mypy if checker == "mypy" else _pyright
    return Report(checker, has_celery_types, check(folder, python, has_celery_types=has_celery_types))


def _environment(folder: Path, *, has_celery_types: bool) -> Path:
    """Make one of what is installed here, and of this package; return its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        is_ours = installed.name.startswith(("celery_redislock", "__editable__"))
        is_left_out = is_ours or installed.suffix == ".pth"
        # celery-types brings more than one: what Celery is made of has none either.
        is_stub = installed.name.endswith("-stubs")
        if not is_left_out and (has_celery_types or not is_stub) and not (own / installed.name).exists():
            (own / installed.name).symlink_to(installed)
    (own / "celery_redislock").symlink_to(Path(celery_redislock.__file__).parent)
    return folder / "bin" / "python"


def _mypy(folder: Path, python: Path, *, has_celery_types: bool) -> list[Error]:
    (folder / "mypy.ini").write_text("[mypy]\nstrict = true\n" + ("" if has_celery_types else LENIENT))
    options = ["--python-executable", str(python), "--cache-dir", str(folder / "cache")]
    said = _run([sys.executable, "-m", "mypy", *options, "."], folder)
    found = re.findall(r"^(\S+?):(\d+): error: .*  \[([\w-]+)\]$", said, re.MULTILINE)
    assert found or "Success: no issues found" in said, said
    return [Error(file, int(line), code) for file, line, code in found]


def _pyright(folder: Path, python: Path, *, has_celery_types: bool) -> list[Error]:
    # Strict, it also reports what is unknown: without celery-types that is all of Celery.
    mode = "strict" if has_celery_types else "standard"
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": mode}))
    said = _run([sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", str(python)], folder)
    report = json.loads(said)
    assert report["summary"]["filesAnalyzed"] > 0, said
    return [
        Error(Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["rule"])
        for one in report["generalDiagnostics"]
        if one["severity"] == "error"
    ]


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=110, cwd=folder)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_tasks_as_classes_and_locks_are_typed_with_and_without_celery_types(report: Report) -> None:
    assert report.lines("classes.py") == []
    assert report.lines("class_mistakes.py") == report.expected("class_mistakes.py")


@pytest.mark.slow
def test_decorated_tasks_are_typed_with_celery_types(report: Report) -> None:
    """Without them, mypy takes a decorated task for anything, and pyright for its function."""
    if report.has_celery_types:
        assert report.lines("shop.py") == []
        assert report.lines("mistakes.py") == report.expected("mistakes.py")
    else:
        codes = {error.code for error in report.errors if error.file == "shop.py"}
        # mypy reports nothing but the module's own statements on types, which are all Any.
        assert codes == {"assert-type", "no-any-return"} or "reportFunctionMemberAccess" in codes
