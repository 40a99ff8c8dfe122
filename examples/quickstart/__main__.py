"""The README beside it, carried out on a server of its own: a worker, the buttons pressed, two beats."""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from examples.stage import Stage, stage, wait_until

__all__ = ["main"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Ticks of the schedule that are waited for, and the seconds between two.
TICKS, INTERVAL = 3, 5.0
#: Seconds anything may take.
PATIENCE = 60.0


def main() -> None:
    """Do what the README says, and check what it says is to be seen."""
    # The shop is a module named as its README starts it: celery -A shop, in this folder.
    sys.path.insert(0, str(HERE))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")])
    from shop import app  # type: ignore[import-not-found]  # noqa: PLC0415  found from here on

    with stage(app) as here:
        here.say("celery -A shop worker")
        here.worker(concurrency=4)
        press(here)
        tick(here)


def press(here: Stage) -> None:
    here.say("python press.py")
    pressed = subprocess.run(
        [sys.executable, "press.py"],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        cwd=HERE,
        env={**os.environ, "BROKER_URL": here.url, "RESULT_URL": here.url, "REDISLOCK_URL": here.url},
    )
    here.say("\n".join(f"    {line}" for line in pressed.stdout.splitlines()))
    here.expect("it ended well", pressed.returncode == 0)
    presses = re.findall(r"(\S+)  (published|duplicate)", pressed.stdout)
    here.expect(
        "of five calls of sync_account one was published and four were duplicates, all with one id",
        [what for _, what in presses] == ["published", *["duplicate"] * 4]
        and len({i for i, _ in presses}) == 1,
    )
    here.expect("its lock was free when its result was there", "its lock after get(): free" in pressed.stdout)
    here.expect("three charges of one account ran, and no two overlapped", "overlaps: 0" in pressed.stdout)


def tick(here: Stage) -> None:
    here.say("celery -A shop beat, twice")
    beats = [here.beat(), here.beat()]
    here.say(f"  waiting for {TICKS} ticks")
    came = wait_until(lambda: len(reported(here)) >= TICKS, PATIENCE)
    for beat in beats:
        beat.stop()
    times = reported(here)
    here.expect(f"{len(times)} ticks ran", came)
    apart = [later - earlier for earlier, later in pairwise(times)]
    here.expect(f"each of them once, {INTERVAL:.0f} s apart", min(apart, default=0) > INTERVAL / 2)


def reported(here: Stage) -> list[float]:
    """Return when the report has run."""
    return [float(line.split()[-2]) for line in here.lines("reported at")]


if __name__ == "__main__":
    main()
