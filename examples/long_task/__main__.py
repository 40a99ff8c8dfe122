"""The story: see the README beside it."""

import time
from pathlib import Path
from typing import Any

from examples.long_task.shop import TTL, VISIBILITY, app, rebuild_index
from examples.stage import Process, Stage, stage, wait_until

__all__ = ["main"]

#: Seconds anything may take.
PATIENCE = 40.0


def main() -> None:
    """Run a job that is longer than its lock lives, then kill the worker of another one."""
    with stage(app) as here:
        here.say(f"A lock lives {TTL:.0f} s from its last renewal.")
        here.say(f"The broker delivers again what is not acknowledged after {VISIBILITY:.0f} s.")
        workers = [here.worker()]
        longer_than_its_lock_lives(here, workers)
        killed_in_the_middle(here, workers)


def longer_than_its_lock_lives(here: Stage, workers: list[Process]) -> None:
    here.say("1. A long job; somebody asks for it again each second.")
    complete = Path(here.directory, "articles-complete")
    job = rebuild_index.delay("articles", str(complete))
    began = wait_until(lambda: here.lines("articles: begins"), PATIENCE), time.monotonic()
    ask_again(here, job, times=3)
    here.say("  a second worker starts, and looks for messages that were not acknowledged")
    workers.append(here.worker())
    waits = wait_until(lambda: here.lines(f"[{job.id}] waits: "), PATIENCE)
    here.expect("the job's message was delivered again; that copy waits", waits)
    ask_again(here, job, times=3)
    here.expect(f"the job has been running for {time.monotonic() - began[1]:.1f} s", began[0])
    complete.touch()
    here.expect(f"the result is {job.get(timeout=PATIENCE)!r}", job.state == "SUCCESS")
    told = wait_until(lambda: here.lines(job.id, "was delivered again after"), PATIENCE)
    here.expect("when the job was done, the copy did nothing", told)
    here.expect("one body ran", bodies(here, "articles") == (1, 1))


def ask_again(here: Stage, job: Any, *, times: int) -> None:
    """Publish the job again, one second after the other, and look at its lock."""
    left, duplicates = [], []
    for _ in range(times):
        time.sleep(1.0)
        holder = rebuild_index.lock_for("articles", "").holder()
        left.append(holder.remaining if holder and holder.owner == job.id else 0.0)
        duplicates.append(rebuild_index.delay("articles", ""))
    here.expect(
        f"its lock is renewed; seconds left: {', '.join(f'{seconds:.1f}' for seconds in left)}",
        all(0 < seconds <= TTL for seconds in left),
    )
    here.expect(
        f"{times} calls were duplicates of it",
        all(call.is_duplicate and call.id == job.id for call in duplicates),
    )


def killed_in_the_middle(here: Stage, workers: list[Process]) -> None:
    here.say("2. Another job; its worker is killed in the middle, as by a failing machine.")
    complete = Path(here.directory, "prices-complete")
    job = rebuild_index.delay("prices", str(complete))
    wait_until(lambda: here.lines("prices: begins"), PATIENCE)
    kill_the_worker(here, workers)
    killed_at = time.monotonic()
    here.expect("the job had begun, and did not end", bodies(here, "prices") == (1, 0))
    holder = rebuild_index.lock_for("prices", "").holder()
    here.expect("its lock is still there: nobody could release it", holder and holder.owner == job.id)
    free = wait_until(lambda: rebuild_index.lock_for("prices", "").holder() is None, PATIENCE)
    here.expect(f"its lock has died, {time.monotonic() - killed_at:.1f} s later", free)
    time.sleep(max(0.0, killed_at + VISIBILITY - time.monotonic()))
    here.say("  a third worker starts, and looks for messages that were not acknowledged")
    here.worker()
    again = wait_until(lambda: bodies(here, "prices") == (2, 0), PATIENCE)
    here.expect("the message was delivered again, and another worker has begun the job anew", again)
    complete.touch()
    here.expect(f"the result is {job.get(timeout=PATIENCE)!r}", job.state == "SUCCESS")
    here.expect("two bodies began, one ended", bodies(here, "prices") == (2, 1))
    here.expect("the lock is free", rebuild_index.lock_for("prices", "").holder() is None)


def kill_the_worker(here: Stage, workers: list[Process]) -> None:
    """Kill the one that its job has named."""
    pids = {int(line.rpartition(" ")[2]) for line in here.lines("prices: begins")}
    for worker in workers:
        if worker.pid in pids:
            worker.kill()


def bodies(here: Stage, name: str) -> tuple[int, int]:
    """Return how many have begun and how many have ended."""
    return len(here.lines(f"{name}: begins")), len(here.lines(f"{name}: ends"))


if __name__ == "__main__":
    main()
