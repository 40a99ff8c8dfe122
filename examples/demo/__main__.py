"""The demo: eleven promises, kept in front of your eyes by two real workers and two beats."""

import sys
import threading
import time
from collections.abc import Sequence

from celery_redislock.embedded import EmbeddedServerError
from examples.demo import shop
from examples.demo.scenes import GROUPS, Promise, Verdict
from examples.stage import Stage, stage

__all__ = ["main", "table"]

#: Seconds after which a group of scenes is given up: each of their waits ends before.
GROUP_TIMEOUT = 60.0


class Commentary:
    """Prints what happens when it happens, with the time since the start. Thread-safe."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self.is_over = False

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def say(self, text: str, mark: str = "   ") -> None:
        """Print a line, with the mark of the scene it belongs to."""
        with self._lock:
            if not self.is_over:
                print(f"{self.elapsed:5.1f} s  {mark} {text}", flush=True)


def main() -> int:
    """Show every promise, and return the exit status.

    Returns:
        0 if everything was seen as promised, 1 if not, 2 if there was no server or no worker, 130 if
        interrupted.
    """
    commentary = Commentary()
    try:
        with stage(shop.app, shows_logs=False) as here:
            verdicts = _play(here, commentary)
    except (EmbeddedServerError, RuntimeError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    kept = sum(verdict.is_kept for verdict in verdicts)
    print(f"\n{table(verdicts)}\n\n{kept} of {len(verdicts)} promises kept in {commentary.elapsed:.0f} s")
    return 0 if kept == len(verdicts) else 1


def table(verdicts: Sequence[Verdict]) -> str:
    """Lay out the verdicts for a terminal of 80 columns and up: a block for each promise."""
    blocks = [
        f"{'kept  ' if verdict.is_kept else 'BROKEN'}  {number}. {verdict.title}\n"
        f"          expected  {verdict.expected}\n"
        f"          seen      {verdict.seen}"
        for number, verdict in enumerate(verdicts, start=1)
    ]
    return "\n".join(blocks)


def _play(here: Stage, commentary: Commentary) -> list[Verdict]:
    commentary.say("server: one of our own")
    worker = here.worker(concurrency=4)
    commentary.say(f"worker: process {worker.pid}, 4 pool processes")
    other = here.worker("--queues", shop.PARCELS, "--prefetch-multiplier", "5", concurrency=1)
    commentary.say(f"another: process {other.pid}, 1 pool process, for the queue {shop.PARCELS!r}")
    pids = [here.beat().pid for _ in range(2)]
    commentary.say(f"beats: processes {pids[0]} and {pids[1]}")
    verdicts: list[Verdict] = []
    try:
        for group in GROUPS:
            verdicts += _play_group(commentary, group, first=len(verdicts) + 1)
    except BaseException:
        commentary.is_over = True
        worker.kill()
        other.kill()
        raise
    commentary.say("done: ending workers and server")
    return verdicts


def _play_group(commentary: Commentary, group: Sequence[Promise], first: int) -> list[Verdict]:
    late = f"not finished after {GROUP_TIMEOUT:.0f} s"
    verdicts = [Verdict(each.title, each.wording.format(**each.expected), late, False) for each in group]

    def play(place: int) -> None:
        mark = f"[{first + place}]"
        verdict = group[place].play(lambda text: commentary.say(text, mark))
        verdicts[place] = verdict
        commentary.say("as promised" if verdict.is_kept else f"BROKEN: {verdict.seen}", mark)

    # Daemons: an interrupt does not wait for what they wait for.
    threads = [threading.Thread(target=play, args=(place,), daemon=True) for place in range(len(group))]
    deadline = time.monotonic() + GROUP_TIMEOUT
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return list(verdicts)


if __name__ == "__main__":
    sys.exit(main())
