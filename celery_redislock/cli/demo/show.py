"""The running commentary, the table at the end, and the exit status."""

import sys
import threading
import time
from collections.abc import Mapping, Sequence

from celery_redislock.cli.demo.promises import PROMISES, Line
from celery_redislock.cli.demo.scenes import SCENES, Scene
from celery_redislock.cli.demo.stage import Interrupted, NotReadyError, interruptible, server_at, worker_for
from celery_redislock.cli.demo.worker import CONCURRENCY
from celery_redislock.embedded import EmbeddedServerError

__all__ = ["Commentary", "exit_status", "run", "table"]

#: Seconds after which a group of scenes is given up: each of their waits ends before.
GROUP_TIMEOUT = 60.0


def run(url: str | None = None, *, verbose: bool = False) -> int:
    """Show every promise and return the exit status. Call it in a process's main thread.

    Args:
        url: a server to use instead of an embedded one; only keys with a random prefix are written
            there, and they are deleted.
        verbose: print the worker's log as well.

    Returns:
        0 when everything was seen as promised, 1 when not, 2 when there was no server or worker,
        128 + n when ended by signal n.
    """
    commentary = Commentary()
    try:
        with interruptible():
            lines = _play(commentary, url, verbose=verbose)
    except (NotReadyError, EmbeddedServerError) as error:
        commentary.close()
        print(f"celery-redislock demo: {error}", file=sys.stderr)
        return 2
    except Interrupted as interrupted:
        commentary.close()
        print("\ninterrupted", file=sys.stderr)
        return 128 + interrupted.signum
    print(f"\n{table(lines)}\n")
    agreeing = sum(line.agrees for line in lines)
    print(f"{agreeing} of {len(lines)} promises kept in {commentary.elapsed:.0f} s")
    return exit_status(lines)


def exit_status(lines: Sequence[Line]) -> int:
    """Return 0 if there are lines and all agree, else 1."""
    return 0 if lines and all(line.agrees for line in lines) else 1


def table(lines: Sequence[Line]) -> str:
    """Lay out the verdicts for a terminal of 80 columns and up: a block for each promise."""
    blocks = [
        f"{'kept  ' if line.agrees else 'BROKEN'}  {number}. {line.title}\n"
        f"          expected  {line.expected}\n"
        f"          seen      {line.seen}"
        for number, line in enumerate(lines, start=1)
    ]
    return "\n".join(blocks)


class Commentary:
    """Prints what happens when it happens, with the time since the start. Thread-safe."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def say(self, text: str, *, number: int | None = None) -> None:
        """Print a line, with the number of the scene it belongs to."""
        with self._lock:
            if not self._is_closed:
                mark = "   " if number is None else f"[{number}]"
                print(f"{self.elapsed:5.1f} s  {mark} {text}", flush=True)

    def close(self) -> None:
        """Print no more, whatever a scene still has to say."""
        with self._lock:
            self._is_closed = True


def _play(commentary: Commentary, url: str | None, *, verbose: bool) -> list[Line]:
    with server_at(url) as server:
        commentary.say("server: one of our own" if url is None else "server: the one you named")
        with worker_for(server, verbose=verbose) as worker:
            commentary.say(f"worker: process {worker.pid}, {CONCURRENCY} pool processes")
            lines: dict[str, Line] = {}
            for group in SCENES:
                lines |= _play_group(commentary, group)
            commentary.say("done: ending worker and server")
    return [lines[name] for name in PROMISES]


def _play_group(commentary: Commentary, group: Mapping[str, Scene]) -> dict[str, Line]:
    lines: dict[str, Line] = {}

    def play(name: str, scene: Scene) -> None:
        number = list(PROMISES).index(name) + 1
        try:
            facts = scene(lambda text: commentary.say(text, number=number))
            lines[name] = PROMISES[name].line(facts)
        except Exception as error:  # noqa: BLE001  whatever breaks a scene, it is a broken promise
            lines[name] = PROMISES[name].broken(error)
        commentary.say("as promised" if lines[name].agrees else f"BROKEN: {lines[name].seen}", number=number)

    # Daemons: an interrupt does not wait for what they wait for.
    threads = [threading.Thread(target=play, args=item, daemon=True) for item in group.items()]
    deadline = time.monotonic() + GROUP_TIMEOUT
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = TimeoutError(f"not finished after {GROUP_TIMEOUT:.0f} s")
    return {name: lines[name] if name in lines else PROMISES[name].broken(late) for name in group}
