"""The story: see the README beside it."""

from examples.beat.shop import DURATION, INTERVAL, app
from examples.stage import Stage, stage, wait_until

__all__ = ["main"]

#: How many ticks of both beats are waited for.
TICKS = 3
#: Seconds for them.
PATIENCE = (TICKS + 1) * INTERVAL + 15.0


def main() -> None:
    """Let two beats tick for one worker."""
    with stage(app) as here:
        here.say(f"One worker and two beats; both beats publish both tasks every {INTERVAL:.0f} s.")
        here.worker(concurrency=4)
        beats = [here.beat(), here.beat()]
        here.say(f"Waiting until both have ticked {TICKS} times.")
        both_ticked = wait_until(lambda: min(runs_and_skips(here, "tally")) >= TICKS, PATIENCE)
        here.expect("they did", both_ticked)
        for beat in beats:
            beat.stop()
        once_per_tick(here)
        never_two_at_once(here)


def once_per_tick(here: Stage) -> None:
    here.say("tally has a period of 0.8 intervals:")
    runs, skipped = runs_and_skips(here, "tally")
    here.say(f"  {runs + skipped} ticks came from the two beats: {runs} ran, {skipped} were skipped")
    lines = [line.split() for line in here.lines("tally begins")]
    late = {int(words[-1]): float(words[2]) for words in lines}  # by tick
    here.expect("no tick ran twice", len(late) == runs)
    left_out = {tick for tick in range(min(late, default=0), max(late, default=0)) if tick not in late}
    # One that is accepted so late that its period is not over at the next tick costs that one.
    allowed = {tick + 1 for tick, seconds in late.items() if seconds > 0.2 * INTERVAL}
    here.expect("none was left out", late and allowed.issuperset(left_out))
    # Not exactly as many: one beat began before the other, and ticked alone perhaps; what a late tick
    # costs is skipped by both, the last one among them.
    here.expect(
        "one beat's tick ran, the other's was skipped",
        TICKS <= skipped <= runs + 2 * len(allowed - late.keys()),
    )


def never_two_at_once(here: Stage) -> None:
    here.say(f"rebuild takes {DURATION:.0f} s, longer than the interval:")
    ended = wait_until(
        lambda: len(here.lines("rebuild ends")) == len(here.lines("rebuild begins")), DURATION + 15.0
    )
    here.expect("the last run has ended", ended)
    runs, skipped = runs_and_skips(here, "rebuild")
    here.say(f"  {runs + skipped} ticks came from the two beats: {runs} ran, {skipped} were skipped")
    in_turn = here.lines("rebuild ") == ["rebuild begins", "rebuild ends"] * runs
    here.expect("each run had ended before the next one began", in_turn)
    here.expect("more ticks were skipped than ran", skipped > runs)


def runs_and_skips(here: Stage, task: str) -> tuple[int, int]:
    """Return how many ticks of a task have led to a run, and how many were skipped."""
    return len(here.lines(f"{task} begins")), len(here.lines(f"skipped examples.beat.shop.{task}["))


if __name__ == "__main__":
    main()
