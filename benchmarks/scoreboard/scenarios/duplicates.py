"""What is a duplicate, and what keeps it from running."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from benchmarks.scoreboard.judging import Outcome, most_at_once, number_of
from benchmarks.scoreboard.scenarios.scenario import scenario
from benchmarks.scoreboard.stage import Stage

__all__ = [
    "argument_of_another_type",
    "button_pressed_often",
    "default_spelled_out",
    "delivered_again",
    "eager_beside_queued",
    "longer_than_its_ttl",
    "positional_and_keyword",
    "sent_by_name",
]

#: Seconds until the broker delivers again what a worker has not acknowledged, and until a task is due.
VISIBILITY, DUE = 3, 14
#: Seconds between two attempts to publish while a body outlives its lock's TTL.
STEADILY = 0.5


@scenario("01", "200 concurrent `delay()` with the same arguments: one run")
def button_pressed_often(stage: Stage) -> Outcome:
    """A button pressed by everybody at once must start its job once."""
    calls = stage.times(200)
    together = threading.Barrier(calls)

    def press(_: int) -> None:
        together.wait()
        stage.attempt(lambda: stage.shop.job.delay(1))

    def all_press() -> None:
        with ThreadPoolExecutor(calls) as pool:
            list(pool.map(press, range(calls)))

    return _one_run(stage, all_press)


@scenario("05", "the same arguments, positional and as keywords: one lock")
def positional_and_keyword(stage: Stage) -> Outcome:
    """How a caller spells a call does not make it another."""

    def spell() -> None:
        stage.attempt(lambda: stage.shop.job.delay(1, "a"))
        stage.attempt(lambda: stage.shop.job.delay(1, note="a"))
        stage.attempt(lambda: stage.shop.job.delay(x=1, note="a"))

    return _one_run(stage, spell)


@scenario("06", "a default argument, spelled out or not: one lock")
def default_spelled_out(stage: Stage) -> Outcome:
    """Nor does a default that one caller leaves out and another does not."""

    def spell() -> None:
        stage.attempt(lambda: stage.shop.job.delay(1))
        stage.attempt(lambda: stage.shop.job.delay(1, note=""))

    return _one_run(stage, spell)


@scenario("09", "three `send_task()` by name: never two at once")
def sent_by_name(stage: Stage) -> Outcome:
    """Beat without the task imported, or another language, publishes past the task's class."""

    def send() -> None:
        for _ in range(3):
            stage.shop.app.send_task(stage.shop.job.name, (1,))

    _publish_on(stage, send)
    most = most_at_once(stage.bodies("job"))
    return Outcome(most == 1, f"{most} at once")


@scenario("10", "an eager `apply()` leaves the lock of a queued task alone", starts_worker=True)
def eager_beside_queued(stage: Stage) -> Outcome:
    """A direct run, as in a test or a shell, must not free what is not its own."""
    first = stage.shop.job.delay(1)
    stage.attempt(lambda: stage.shop.job.apply((1,)))
    stage.attempt(lambda: stage.shop.job.delay(1))
    with stage.kept_on("job"):
        stage.start_worker()
        stage.wait_ready()
        stage.must(stage.is_received, "the queue was never read")
    stage.settle()

    runs = [body.task_id for body in stage.bodies("job") if not body.eager]
    if first.id not in runs:
        return Outcome(False, "the queued task never ran")
    return Outcome(len(runs) == 1, number_of(len(runs), "queued run"))


@scenario("11", "TTL of 2 s, job of 5 s, called every 0.5 s: never two at once")
def longer_than_its_ttl(stage: Stage) -> Outcome:
    """Nobody knows how long a job will take: the lock must last as long as the job does."""

    def call_steadily() -> None:
        while not any(body.end for body in stage.bodies("short_lived")):
            stage.attempt(lambda: stage.shop.short_lived.delay(1))
            stage.until(lambda: False, STEADILY)

    call_steadily()
    stage.settle()
    most = most_at_once(stage.bodies("short_lived"))
    return Outcome(most == 1, f"{most} at once")


@scenario("13", "a UUID as argument: accepted, and one lock")
def argument_of_another_type(stage: Stage) -> Outcome:
    """What Celery can send, a lock's key must be able to hold."""
    key = UUID("6f1c3f4e-8f0b-4c58-9d38-2f2f0e6f2a11")

    def call_twice() -> None:
        stage.shop.job.delay(key)
        stage.attempt(lambda: stage.shop.job.delay(key))

    try:
        return _one_run(stage, call_twice)
    except TypeError as error:
        return Outcome(False, type(error).__name__)


@scenario(
    "22",
    "3 messages due after the visibility timeout, three workers: 3 runs",
    starts_worker=True,
    visibility=VISIBILITY,
)
def delivered_again(stage: Stage) -> Outcome:
    """The broker takes a message that waits for its ETA for lost, and gives it to the next worker as well."""
    for _ in range(3):
        stage.start_worker()
    stage.wait_ready()
    results = [stage.shop.job.apply_async((number,), countdown=DUE) for number in range(3)]
    stage.must(lambda: len({body.task_id for body in stage.bodies("job")}) == len(results), "one never ran")
    stage.settle()
    runs = len(stage.bodies("job"))
    return Outcome(runs == len(results), number_of(runs, "run"))


def _one_run(stage: Stage, publish: Callable[[], Any]) -> Outcome:
    """Judge calls of which the first is still on when the last one is received."""
    _publish_on(stage, publish)
    runs = len(stage.bodies("job"))
    return Outcome(runs == 1, number_of(runs, "run"))


def _publish_on(stage: Stage, publish: Callable[[], Any]) -> None:
    with stage.kept_on("job"):
        publish()
        stage.must(stage.is_received, "the queue was never read")
    stage.settle()
