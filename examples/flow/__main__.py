"""The story: see the README beside it."""

import time

from examples.flow.shop import PAUSE, app, export, reindex
from examples.stage import Stage, stage, wait_until

__all__ = ["main"]

#: How often the document is saved, and the course has changed.
SAVES, SIGNALS = 50, 30
#: Seconds anything may take.
PATIENCE = 40.0


def main() -> None:
    """Save a document fifty times while it is indexed, and then change a course thirty times."""
    with stage(app) as here:
        here.worker(concurrency=2)
        fifty_saves_are_two_runs(here)
        a_burst_is_one_run(here)


def fifty_saves_are_two_runs(here: Stage) -> None:
    here.say(
        f"A document is saved {SAVES} times; the first save starts a re-index, the others come meanwhile."
    )
    first = reindex.delay(1, 1)
    wait_until(lambda: here.lines("document 1: ", "begins"), PATIENCE)
    others = [reindex.delay(1, save) for save in range(2, SAVES + 1)]
    waiting = reindex.lock_for(1, 1).waiting()
    here.say(f"  {len(waiting)} call waits, into which {[each.merged for each in waiting]} were merged")
    values = {call.get(timeout=PATIENCE, propagate=False) for call in [first, *others]}
    lines = here.lines("document 1: ")
    expected = [f"document 1: re-index of save {n} {what}" for n in (1, SAVES) for what in ("begins", "ends")]
    here.expect("it is indexed twice, the last time as it was saved last", lines == expected)
    here.expect(f"who called for save 2 to {SAVES} has the result of save {SAVES}", values == {1, SAVES})
    here.expect("these calls have one task id", len({call.id for call in others}) == 1)


def a_burst_is_one_run(here: Stage) -> None:
    here.say(f"A course changes {SIGNALS} times within a second; it is exported when that has stopped.")
    calls = []
    for signal in range(1, SIGNALS + 1):
        calls.append(export.delay("physics", signal))
        last = time.time()
        time.sleep(1.0 / SIGNALS)
    exported = calls[-1].get(timeout=PATIENCE, propagate=False)
    after = exported - last
    here.say(f"  it was exported {after:.2f} s after the last change")
    lines = here.lines("physics: ")
    here.expect(
        "it is exported once, after the last change", lines == [f"physics: export after signal {SIGNALS}"]
    )
    here.expect(f"the export began {PAUSE:g} s after it, and not before", PAUSE - 0.1 <= after < PAUSE + 5)


if __name__ == "__main__":
    main()
