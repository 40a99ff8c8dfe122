"""What a worker has received and not started is not lost with it."""

import math
import time

from benchmarks.scoreboard.judging import Outcome, number_of
from benchmarks.scoreboard.scenarios.scenario import scenario
from benchmarks.scoreboard.stage import WITHIN, Stage

__all__ = ["killed_worker"]

#: Messages in the hands of the worker.
IN_HAND = 4
#: Seconds until a worker without a sign of life is taken for dead: ours only, the least it allows.
TERM = 6.0


@scenario(
    "23",
    f"a worker is killed (SIGKILL) with {IN_HAND} messages in hand:"
    f" each runs elsewhere within {WITHIN:.0f} s, once",
    term=TERM,
)
def killed_worker(stage: Stage) -> Outcome:
    """Another worker lives, and each call is made once more after the kill: a duplicate."""
    with stage.full_pool():
        results = [stage.shop.job.delay(number) for number in range(IN_HAND)]
        for result in results:
            stage.must(lambda result=result: stage.is_reserved(result.id), "the worker never got it")
        stage.start_worker()
        stage.wait_ready()
        stage.kill_worker()
        killed_at = time.monotonic()
        for number in range(IN_HAND):
            stage.attempt(lambda number=number: stage.shop.job.delay(number))
    ids = {result.id for result in results}

    def have_begun() -> bool:
        return ids <= {body.task_id for body in stage.bodies("job")}

    if not stage.until(have_begun, WITHIN - (time.monotonic() - killed_at)):
        begun = ids & {body.task_id for body in stage.bodies("job")}
        return Outcome(False, f"{len(begun)} of {IN_HAND} ran")
    seconds = math.ceil(time.monotonic() - killed_at)
    stage.settle()
    runs = len(stage.bodies("job"))
    return Outcome(runs == IN_HAND, f"{number_of(runs, 'run')} within {seconds} s")
