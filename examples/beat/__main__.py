"""The story: see the README beside it."""

import os
import re
import subprocess
import sys
from pathlib import Path

from examples.beat.shop import BACKUP, DURATION, INTERVAL, NIGHT, PRICES, app, nightly
from examples.stage import Process, Stage, stage, wait_until

__all__ = ["main"]

#: How many runs of ``tally`` are waited for.
TICKS = 5
#: Seconds for them, and for anything else.
PATIENCE = TICKS * INTERVAL + 20.0


def main() -> None:
    """Let two beats tick for one worker, and kill one of them."""
    with stage(app) as here:
        here.say(f"One worker and two beats, both with the whole schedule: every {INTERVAL:.0f} s.")
        here.worker(concurrency=4)
        beats = [here.beat("examples.beat.accident") for _ in range(2)]
        left = kill_in_the_middle(here, beats)
        run_again_by_hand(here)
        enough = wait_until(lambda: len(here.lines("tally begins")) >= TICKS, PATIENCE)
        here.expect("the schedule goes on", enough)
        left.stop()
        once_per_tick(here)
        never_two_at_once(here)


def kill_in_the_middle(here: Stage, beats: list[Process]) -> Process:
    """Kill the beat that stands still after its publish; return the other one."""
    wait_until(lambda: sent(here), PATIENCE)
    pid, message = sent(here)[0]
    killed, left = sorted(beats, key=lambda beat: beat.pid != pid)
    killed.kill()
    here.say(f"kill -9 {pid}: it has sent backup, and told nobody")
    here.expect("it was one of the two beats", killed.pid == pid)
    again = wait_until(lambda: (left.pid, message) in sent(here), BACKUP)
    here.expect("the other beat sent it again, as the same message", again)
    done = "was delivered again after it was done"
    copy = again and wait_until(lambda: here.lines(message, done), PATIENCE)
    here.expect("the worker did nothing with the copy", copy)
    here.expect("it ran once", len(here.lines("backup begins:", message)) == 1)
    return left


def run_again_by_hand(here: Stage) -> None:
    here.say(f"nightly fails, as what it reads is not there; its next tick is {NIGHT:.0f} s away:")
    began = wait_until(lambda: here.lines("nightly begins"), PATIENCE)
    here.expect("it has run", began)
    prices = Path(here.directory) / PRICES.name
    ended = wait_until(lambda: nightly.lock_for().holder() is None, PATIENCE)
    here.expect("and failed", ended and not here.lines("nightly has read"))
    prices.write_text("the prices")
    command = ["-A", str(app.main), "redislock", "schedule", "run", "nightly"]
    here.say(f"celery {' '.join(command)}")
    addresses = {"BROKER_URL": here.url, "RESULT_URL": here.url}
    done = subprocess.run(
        [sys.executable, "-m", "celery", *command],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **addresses},
    )
    here.say(f"    {done.stdout.strip()}")
    here.expect("it was sent at once", done.returncode == 0 and "sent nightly" in done.stdout)
    read = wait_until(lambda: here.lines("nightly has read the prices"), PATIENCE)
    here.expect("and did its work", read)


def once_per_tick(here: Stage) -> None:
    here.say("tally, of which each beat had every tick:")
    ticks = [int(line.split()[-1]) for line in here.lines("tally begins")]
    here.say(f"  {len(ticks)} runs, of the ticks {ticks[0]} to {ticks[-1]}" if ticks else "  no run")
    here.expect("no tick ran twice", len({*ticks}) == len(ticks))
    here.expect("none was left out", ticks and {*ticks} == {*range(ticks[0], ticks[-1] + 1)})


def never_two_at_once(here: Stage) -> None:
    here.say(f"rebuild takes {DURATION:.0f} s, longer than the interval:")
    ended = wait_until(
        lambda: len(here.lines("rebuild ends")) == len(here.lines("rebuild begins")), DURATION + 15.0
    )
    here.expect("the last run has ended", ended)
    runs, skipped = len(here.lines("rebuild begins")), len(here.lines("beat: skipped", "shop.rebuild["))
    here.say(f"  of {runs + skipped} ticks {runs} ran; skipped, as it was still running: {skipped}")
    in_turn = here.lines("rebuild ") == ["rebuild begins", "rebuild ends"] * runs
    here.expect("each run had ended before the next one began", in_turn)
    here.expect("about every other tick was skipped", skipped and abs(runs - skipped) <= 2)


def sent(here: Stage) -> list[tuple[int, str]]:
    """Return which beats, by process, have sent which messages of ``backup``."""
    found = [re.fullmatch(r"beat: (\d+) has sent backup: (\S+)", line) for line in here.lines("has sent")]
    return [(int(each[1]), each[2]) for each in found if each]


if __name__ == "__main__":
    main()
