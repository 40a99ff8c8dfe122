"""The story: see the README beside it."""

from examples.in_line.shop import app, charge
from examples.stage import Stage, stage, wait_until

__all__ = ["main"]

#: The account that is busy, and one that is free.
BUSY, FREE = 1, 2
#: The charges on the busy one, in the order in which they are made.
CHARGES = list(range(1, 21))
#: Seconds anything may take.
PATIENCE = 40.0


def main() -> None:
    """Charge one account twenty times, and another one meanwhile."""
    with stage(app) as here:
        here.worker(concurrency=2)
        twenty_charges_stand_in_line(here)


def twenty_charges_stand_in_line(here: Stage) -> None:
    here.say(
        f"Twenty charges on account {BUSY}, and then one on account {FREE}; the worker has two processes."
    )
    calls = [charge.delay(BUSY, number) for number in CHARGES]
    free = charge.delay(FREE, 1)
    lock = charge.lock_for(BUSY, 1)
    wait_until(lambda: here.lines(f"account {FREE}: ") or len(lock.waiting()) > 15, PATIENCE)
    line = [waiter.owner for waiter in lock.waiting()]
    here.say(f"  {len(line)} of them wait in line now, and hold no process of the worker")
    made = [call.id for call in calls]
    first = made.index(line[0]) if line else 0
    in_order = made[first : first + len(line)]
    here.expect("they stand in the order in which they were made", line and line == in_order)
    free.get(timeout=PATIENCE, propagate=False)
    ended = len(here.lines(f"account {BUSY}: ", "ends"))
    here.expect(
        f"account {FREE} was not held up: it was charged when {ended} of the twenty had ended",
        ended < len(CHARGES) / 2,
    )
    for call in calls:
        call.get(timeout=PATIENCE, propagate=False)
    lines = here.lines(f"account {BUSY}: ")
    expected = [f"account {BUSY}: charge {n} {what}" for n in CHARGES for what in ("begins", "ends")]
    here.expect("each ran once, in order, and ended before the next one began", lines == expected)
    here.expect("nobody waits any more", lock.waiting() == [])


if __name__ == "__main__":
    main()
