"""Random faults under load, for minutes: ``python -m tests.soak [--seconds 600] [--workers 4] [--keys 50]``.

Real servers, real workers, real kills. Exit status 0 only if nothing was lost,
nothing overlapped, and nothing was left behind.
"""

import argparse
import os
import random
import sys
import time
from collections import Counter
from typing import NamedTuple

from tests.history import violations
from tests.soak.faults import FAULTS
from tests.soak.shop import TTL
from tests.soak.stage import Stage

#: Seconds what was accepted may take to end after the last fault: redeliveries, retries, waiting.
DRAIN = 240.0
#: Seconds after the last end until nothing may be held: leases of killed workers, what is given back late.
SETTLE = 3 * TTL + 5.0
#: Connections to the lock server a process may have: its bodies' and its watchdog's.
PER_PROCESS = 3


class Line(NamedTuple):
    """One line of the report."""

    what: str
    seen: object
    expected: object | None = None

    @property
    def holds(self) -> bool:
        return self.expected is None or self.seen == self.expected


def main() -> int:
    """Run it and print the report; return the exit status."""
    arguments = _arguments()
    seed = arguments.seed if arguments.seed is not None else int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}, {arguments.seconds:g} s, {arguments.workers} workers, {arguments.keys} keys")
    with Stage(workers=arguments.workers, keys=arguments.keys, seed=seed) as stage:
        done = _hurt(stage, arguments.seconds, random.Random(seed))  # noqa: S311  not for secrets
        lines = _report(stage, done)
    width = max(len(line.what) for line in lines)
    for line in lines:
        expected = "" if line.expected is None else f"expected {line.expected}"
        print(f"{'  ' if line.holds else '! '}{line.what:{width}}  {line.seen!s:>10}  {expected}")
    return 0 if all(line.holds for line in lines) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="how long faults are made (600)")
    parser.add_argument("--workers", type=int, default=4, help="of two processes each (4)")
    parser.add_argument("--keys", type=int, default=50, help="resources the tasks share (50)")
    parser.add_argument("--seed", type=int, help="of the faults, to try the same ones again")
    return parser.parse_args()


def _hurt(stage: Stage, seconds: float, chance: random.Random) -> Counter[str]:
    """Publish, and make one fault after the other, two to five seconds apart."""
    done: Counter[str] = Counter()
    stage.start_publishing()
    until = time.monotonic() + seconds
    try:
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, chance.uniform(2.0, 5.0)))
            name = chance.choice(list(FAULTS))
            print(f"{seconds - max(0.0, until - time.monotonic()):7.1f} s  {name}", flush=True)
            FAULTS[name](stage, chance)
            done[name] += 1
    finally:
        stage.stop_publishing()
    return done


def _report(stage: Stage, done: Counter[str]) -> list[Line]:
    deadline = time.monotonic() + DRAIN
    while stage.unfinished() and time.monotonic() < deadline:
        time.sleep(0.5)
    unfinished = len(stage.unfinished())
    deadline = time.monotonic() + SETTLE
    while stage.lock_keys() and time.monotonic() < deadline:
        time.sleep(0.2)
    runs = stage.journal.runs()
    breaches = violations(run.at_work for run in runs)
    for breach in breaches:
        print("!", breach)
    announced = stage.journal.announced()
    settled = {run.token for run in runs if run.lost is not None}
    detected = {run.token for run in runs if run.lost}
    most = PER_PROCESS * 3 * len(stage.workers)
    return [
        *(Line(f"fault: {name}", count) for name, count in sorted(done.items())),
        Line("publishes refused as duplicates", stage.refused),
        Line("publishes told that the lock server was away", stage.unavailable),
        Line("publishes accepted", len(stage.accepted)),
        Line("bodies run", len(runs)),
        Line("  of them killed", sum(run.ended_by is None for run in runs)),
        Line("  of them ended by a lost lease", sum(run.ended_by == "LockLost" for run in runs)),
        Line("overlaps before a deadline, fences out of order", len(breaches), 0),
        Line("accepted and not ended", unfinished, 0),
        Line("accepted and lost", len(stage.lost()), 0),
        Line("keys left behind", len(stage.lock_keys()), 0),
        Line("losses announced", len([token for token in announced if token in settled]), len(detected)),
        Line("losses announced twice", len(announced) - len(set(announced)), 0),
        Line(f"connections to the lock server above {most}", max(0, stage.lock_connections() - most), 0),
        Line("memory of the workers' main processes, MiB", stage.memory() // 1024),
    ]


if __name__ == "__main__":
    sys.exit(main())
