"""Scenarios in programs of their own, in the environment of their library."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.peers import ROOT, environment, surroundings
from benchmarks.scoreboard.judging import Outcome
from benchmarks.scoreboard.libraries import LIBRARIES, OURS

__all__ = ["PlayError", "play", "python_of", "surroundings_of"]

#: Seconds one scenario may take, whatever hangs in it.
LIMIT = 420
#: Seconds an interrupted program may take to end what it started.
ENDING = 15
HOMES = ROOT / ".venv-scoreboard"


class PlayError(Exception):
    """A scenario could not be played: something is wrong with it, or with its surroundings."""


def python_of(library: str) -> Path:
    """Return the interpreter that has a library; makes its environment at the first time.

    Ours runs where the program was called, if that has all it needs.
    """
    if library == OURS:
        if find_spec("celery") and find_spec("redis"):
            return Path(sys.executable)
        return environment(HOMES / library)
    return environment(HOMES / library, library)


def surroundings_of(library: str, python: Path) -> tuple[dict[str, str], str]:
    """Return what is measured with, and the library's version.

    Raises:
        PlayError: the environment cannot tell.
    """
    told = _run(library, "about", python, [])
    return dict(told["conditions"]), str(told["version"])


def play(library: str, number: str, python: Path, *, quick: bool, verbose: bool) -> Outcome:
    """Play a scenario with a library.

    Raises:
        PlayError: its program ended with an error.
    """
    if reason := LIBRARIES[library].lacks.get(number):
        return Outcome(None, reason)
    options = ["--quick"] * quick + ["--verbose"] * verbose
    try:
        return Outcome(**_run(library, number, python, options))
    except subprocess.TimeoutExpired:
        return Outcome(False, f"hung for {LIMIT} s")


def _run(library: str, what: str, python: Path, options: list[str]) -> dict[str, Any]:
    command = [str(python), "-m", "benchmarks.scoreboard.play", library, what, *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=surroundings({}), cwd=ROOT
    ) as program:
        try:
            output, _ = program.communicate(timeout=LIMIT)
        except BaseException:
            # At Ctrl-C it hears of it as well and ends what it started; what it leaves ends with its pipes.
            _end(program)
            raise
    if program.returncode:
        message = f"{library}, scenario {what}: exit status {program.returncode}"
        raise PlayError(message)
    told: dict[str, Any] = json.loads(output)
    return told


def _end(program: subprocess.Popen[str]) -> None:
    program.terminate()
    try:
        program.wait(ENDING)
    except subprocess.TimeoutExpired:
        program.kill()
