"""What follows a run: the next call, the next link of a chain, a chord's callback, a retry."""

import time
from contextlib import suppress
from functools import partial

from benchmarks.scoreboard.judging import Outcome
from benchmarks.scoreboard.scenarios.scenario import scenario
from benchmarks.scoreboard.stage import Stage

__all__ = [
    "call_after_result",
    "chain_of_the_same",
    "chord_with_duplicate",
    "duplicate_during_retry",
    "retry",
]

#: Seconds a caller waits for one result, and for all of them.
ONE, ALL = 5.0, 180.0


@scenario("02", "`r.get(); delay()`, 1000 times: 1000 runs")
def call_after_result(stage: Stage) -> Outcome:
    """Who has seen a result knows that the job is over: the next call is no duplicate."""
    from celery.exceptions import TimeoutError as NoResultError

    calls = stage.times(1000)
    deadline = time.monotonic() + ALL
    for _ in range(calls):
        result = stage.attempt(lambda: stage.shop.job.delay(1))
        if result is not None:
            with suppress(NoResultError):
                # Also the result of a duplicate that was refused with an exception.
                result.get(timeout=ONE, propagate=False)
        if time.monotonic() > deadline:
            break
    stage.settle()

    runs = stage.shop.journal.begun()
    return Outcome(runs == calls, f"{runs} of {calls}")


@scenario("03", "`chain(t.si(1), t.si(1))`, 40 times: all finish")
def chain_of_the_same(stage: Stage) -> Outcome:
    """The second link is published by the first one's run, and is no duplicate of it."""
    from celery import chain

    chains = stage.times(40)
    finished = 0
    for _ in range(chains):
        links = chain(stage.shop.job.si(1), stage.shop.job.si(1))
        result = stage.attempt(links.apply_async)
        if result is not None and stage.until(result.ready, or_rest=True):
            finished += result.successful()
    return Outcome(finished == chains, f"{finished} of {chains}")


@scenario("04", "a chord whose header holds a duplicate: its callback runs")
def chord_with_duplicate(stage: Stage) -> Outcome:
    """A member that is dropped is one the callback waits for in vain."""
    from celery import chord

    header = [stage.shop.job.si(1), stage.shop.job.si(1), stage.shop.job.si(2)]
    with stage.kept_on("job"):
        try:
            chord(header)(stage.shop.total.s())
        except Exception as error:  # noqa: BLE001  each library has its own
            return Outcome(False, f"{type(error).__name__} at publish")
        stage.must(stage.is_received, "the queue was never read")
    if stage.until(lambda: stage.bodies("total"), or_rest=True):
        return Outcome(True, "it ran")
    return Outcome(False, "it hangs")


@scenario("07", "`self.retry(countdown=1)`, 10 tasks: each runs a second time")
def retry(stage: Stage) -> Outcome:
    """A retry is published under the id of the run that holds the lock; it is no duplicate."""
    tasks = stage.times(10)
    for number in range(tasks):
        stage.attempt(partial(stage.shop.retried.delay, number))

    def second_runs() -> list[object]:
        return [body for body in stage.bodies("retried") if body.retries]

    stage.until(lambda: len(second_runs()) == tasks, or_rest=True)
    return Outcome(len(second_runs()) == tasks, f"{len(second_runs())} of {tasks}")


@scenario("08", "a duplicate called while a retry waits: it does not run")
def duplicate_during_retry(stage: Stage) -> Outcome:
    """The job is not over: the lock is kept until the retry has run."""
    with stage.kept_on("retried"):
        first = stage.shop.retried.delay(1)
        stage.must(lambda: first.state not in {"PENDING", "STARTED"}, "it never ended")
        stage.attempt(lambda: stage.shop.retried.delay(1))

        def second_run() -> list[object]:
            return [body for body in stage.bodies("retried") if body.retries and body.task_id == first.id]

        stage.until(second_run, or_rest=True)
        stage.must(stage.is_received, "the queue was never read")
    stage.settle()

    if any(body.task_id != first.id for body in stage.bodies("retried")):
        return Outcome(False, "it ran" if second_run() else "it ran, the retry did not")
    return Outcome(True, "it did not") if second_run() else Outcome(False, "the retry never ran")
