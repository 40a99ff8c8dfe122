"""The README beside it, carried out: a worker, the buttons pressed, and a beat, on a server of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

from examples.stage import Stage, stage, wait_until

__all__ = ["main"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Ticks of the schedule, which are five seconds apart; each comes twice.
TICKS = 2
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
    reported = wait_until(lambda: here.lines("reported"), PATIENCE)
    here.expect("of three reports one was accepted, and ran", reported and "accepted: 1 " in pressed.stdout)


def tick(here: Stage) -> None:
    here.say("celery -A shop beat")
    seen = len(here.lines("reported"))
    beat = here.beat()
    here.say(f"  the report is in the schedule twice; waiting for {TICKS} ticks")
    came = wait_until(lambda: len(here.lines("reported")) - seen >= TICKS <= len(skipped(here)), PATIENCE)
    beat.stop()
    runs = len(here.lines("reported")) - seen
    here.expect(
        f"of each pair one ran and one was skipped: {runs} runs, {len(skipped(here))} skipped",
        came and runs == len(skipped(here)),
    )


def skipped(here: Stage) -> list[str]:
    """Return beat's lines that say so."""
    return here.lines("beat: skipped shop.report[")


if __name__ == "__main__":
    main()
