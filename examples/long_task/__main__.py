"""The story: see the README beside it."""

import time

from examples.long_task.shop import TTL, VISIBILITY, app, rebuild_index
from examples.stage import Process, Stage, stage, wait_until

__all__ = ["main"]

#: Seconds the long job takes.
LONG = 6.0
#: Seconds anything may take beside.
PATIENCE = 30.0


def main() -> None:
    """Run a job that is longer than its lock lives, then kill the worker of another one."""
    with stage(app) as here:
        here.say(f"A lock lives {TTL:.0f} s from its last renewal.")
        here.say(f"The broker delivers again what is not acknowledged after {VISIBILITY:.0f} s.")
        worker = here.worker()
        longer_than_its_lock_lives(here)
        killed_in_the_middle(here, worker)


def longer_than_its_lock_lives(here: Stage) -> None:
    here.say(f"1. A job of {LONG:.0f} s; somebody asks for it again each second.")
    job = rebuild_index.delay("articles", seconds=LONG)
    wait_until(lambda: here.lines("articles: begins"), PATIENCE)
    remaining, duplicates = [], []
    until = time.monotonic() + LONG - 2.0
    while time.monotonic() < until:
        time.sleep(1.0)
        holder = rebuild_index.lock_for("articles").holder()
        remaining.append(holder.remaining if holder else 0.0)
        duplicates.append(rebuild_index.delay("articles", seconds=LONG))
    here.say(f"  seconds left to the lock, each time: {', '.join(f'{seconds:.1f}' for seconds in remaining)}")
    here.expect(
        f"the lock was renewed: always there, never for more than {TTL:.0f} s",
        all(0 < seconds <= TTL for seconds in remaining),
    )
    here.expect(
        f"{len(duplicates)} calls were duplicates of the one at work",
        all(call.is_duplicate and call.id == job.id for call in duplicates),
    )
    here.expect(f"the result is {job.get(timeout=LONG + PATIENCE)!r}", job.state == "SUCCESS")
    here.expect("the broker had delivered it again; that copy waited", here.lines(job.id, "runs already"))
    told = wait_until(lambda: here.lines(job.id, "was delivered again after"), PATIENCE)
    here.expect("when its outcome was recorded, the copy did nothing", told)
    here.expect("one body ran", len(here.lines("articles: begins")) == len(here.lines("articles: ends")) == 1)


def killed_in_the_middle(here: Stage, worker: Process) -> None:
    here.say("2. Another job; its worker is killed in the middle, as by a failing machine.")
    job = rebuild_index.delay("prices", seconds=2.0)
    began = wait_until(lambda: here.lines("prices: begins"), PATIENCE)
    worker.kill()
    killed_at = time.monotonic()
    here.expect("it was at work, and did not end", began and not here.lines("prices: ends"))
    here.expect("its lock is still there, for nobody could give it back", is_held_by(job.id))
    free = wait_until(lambda: rebuild_index.lock_for("prices").holder() is None, TTL + PATIENCE)
    here.expect(f"its lock has died, {time.monotonic() - killed_at:.1f} s later", free)
    here.say("  another worker comes, and the broker gives it the message")
    here.worker()
    here.expect(f"the result is {job.get(timeout=VISIBILITY + PATIENCE)!r}", job.state == "SUCCESS")
    bodies = len(here.lines("prices: begins")), len(here.lines("prices: ends"))
    here.expect(f"{bodies[0]} bodies began, {bodies[1]} ended", bodies == (2, 1))
    here.expect("the lock is free", rebuild_index.lock_for("prices").holder() is None)


def is_held_by(task_id: str) -> bool:
    holder = rebuild_index.lock_for("prices").holder()
    return holder is not None and holder.owner == task_id


if __name__ == "__main__":
    main()
