"""Play the everyday scenarios with every library, and write the table.

::

    python -m benchmarks.scoreboard                           # all of it; writes results.json and both pages
    python -m benchmarks.scoreboard --pages                   # plays nothing; writes both pages again
    python -m benchmarks.scoreboard --only celery_redislock   # exit status 1 if it misses one; writes nothing
    python -m benchmarks.scoreboard --scenario 15 --verbose

Each scenario has a server, a worker and a publisher of its own, which end with
it. Each library is installed, beside the Celery and redis-py of the
interpreter that is called, into an environment of its own below
``.venv-scoreboard``; ours is played from this checkout.
"""

import argparse
import signal
import sys
import time
from types import FrameType

from benchmarks.pairs import say
from benchmarks.scoreboard.board import RESULTS, Board, check_pages, write_pages
from benchmarks.scoreboard.libraries import LIBRARIES, OURS
from benchmarks.scoreboard.playing import PlayError, play, python_of, surroundings_of
from benchmarks.scoreboard.scenarios import SCENARIOS

__all__ = ["main"]

TITLES = {number: each.title for number, each in SCENARIOS.items()}


def main() -> int:
    """Return 0 if ours passed every scenario played, 1 if not, 2 if one could not be played."""
    arguments = _arguments()
    if arguments.pages:
        check_pages()
        write_pages(Board.read(), TITLES)
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    libraries, numbers = arguments.only or list(LIBRARIES), sorted(arguments.scenario or SCENARIOS)
    is_whole = set(libraries) == set(LIBRARIES) and set(numbers) == set(SCENARIOS) and not arguments.quick
    board = Board.read() if arguments.write and not is_whole else Board()
    if arguments.write or is_whole:
        check_pages()  # before, not after a quarter of an hour
    try:
        for library in libraries:
            _play_all(library, numbers, board, quick=arguments.quick, verbose=arguments.verbose)
    except PlayError as error:
        say(f"cannot be played: {error}")
        return 2
    if arguments.write or is_whole:
        board.write(RESULTS)
        write_pages(board, TITLES)
    print(board.table({number: TITLES[number] for number in numbers}))
    return int(any(outcome.passed is False for outcome in board.outcomes.get(OURS, {}).values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scoreboard", description=(__doc__ or "").partition("\n")[0]
    )
    several = "may be given several times"
    parser.add_argument("--only", action="append", choices=list(LIBRARIES), help=f"one library; {several}")
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help=f"one row; {several}")
    parser.add_argument("--quick", action="store_true", help="a tenth of the numbers; writes nothing")
    parser.add_argument("--write", action="store_true", help="write the results of a part as well")
    parser.add_argument("--pages", action="store_true", help="play nothing: write both pages again")
    parser.add_argument("--verbose", action="store_true", help="show the workers' logs")
    arguments = parser.parse_args()
    if arguments.quick and arguments.write:
        parser.error("figures of a quick run are not written")
    if arguments.pages and (arguments.only or arguments.scenario or arguments.quick or arguments.write):
        parser.error("--pages plays nothing")
    return arguments


def _play_all(library: str, numbers: list[str], board: Board, *, quick: bool, verbose: bool) -> None:
    python = python_of(library)
    conditions, board.versions[library] = surroundings_of(library, python)
    if board.conditions not in ({}, conditions):
        message = f"{library} has {conditions}, the others had {board.conditions}: measure all of them"
        raise PlayError(message)
    board.conditions = conditions
    column = board.outcomes.setdefault(library, {})
    for number in numbers:
        began = time.monotonic()
        column[number] = play(library, number, python, quick=quick, verbose=verbose)
        say(f"{library:17} {number}  {column[number]}  ({time.monotonic() - began:.0f} s)")


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
