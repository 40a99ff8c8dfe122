"""However a task ends, its lock is freed: the same call is accepted again, and its body begins, in time."""

import os
import signal
import time

from benchmarks.scoreboard.judging import Outcome
from benchmarks.scoreboard.scenarios.scenario import scenario
from benchmarks.scoreboard.stage import Stage

__all__ = [
    "expired_in_the_queue",
    "hard_time_limit",
    "killed_process",
    "publish_fails",
    "revoked_in_the_queue",
    "revoked_while_running",
]

#: Where no server listens.
NOWHERE = "redis://127.0.0.1:1/0"
#: Seconds until a message expires.
SOON = 1.0


@scenario("12", "hard `time_limit`: the lock is freed")
def hard_time_limit(stage: Stage) -> Outcome:
    """The pool kills the process: nothing of the task's own runs any more."""
    with stage.kept_on("limited"):
        stage.shop.limited.delay(1)
        stage.wait_gone(stage.started("limited"))
    return stage.accepted_again(lambda: stage.shop.limited.delay(1))


@scenario("14", "the publish fails: the lock is freed")
def publish_fails(stage: Stage) -> Outcome:
    """With the broker away for a moment, the caller sees an error, and calls again."""
    from kombu import Connection

    broken = Connection(NOWHERE, transport_options={"max_retries": 1, "interval_start": 0})
    try:
        stage.shop.job.apply_async((1,), connection=broken, retry=False)
    except Exception:  # noqa: BLE001  kombu's, or what a library makes of it
        return stage.accepted_again(lambda: stage.shop.job.delay(1))
    return Outcome(False, "nobody was told")


@scenario("15", "the pool process is killed (SIGKILL): the same call is accepted within 15 s")
def killed_process(stage: Stage) -> Outcome:
    """The system is short of memory and kills the largest process."""
    with stage.kept_on("job"):
        stage.shop.job.delay(1)
        body = stage.started("job")
        os.kill(body.pid, signal.SIGKILL)
        stage.wait_gone(body)
    return stage.accepted_again(lambda: stage.shop.job.delay(1))


@scenario("16", "revoked before it starts: the lock is freed")
def revoked_in_the_queue(stage: Stage) -> Outcome:
    """The worker drops the message when its turn comes; no body runs."""
    with stage.full_pool():
        result = stage.shop.job.delay(1)
        stage.must(lambda: stage.is_reserved(result.id), "the worker never got it")
        stage.revoke(result)
    return stage.accepted_again(lambda: stage.shop.job.delay(1), result.id)


@scenario("17", "`expires` has passed before it starts: the lock is freed")
def expired_in_the_queue(stage: Stage) -> Outcome:
    """The same, by the clock."""
    with stage.full_pool():
        result = stage.shop.job.apply_async((1,), expires=SOON)
        expiry = time.time() + SOON
        stage.must(lambda: stage.is_reserved(result.id), "the worker never got it")
        stage.must(lambda: time.time() > expiry, "time stands still")
    return stage.accepted_again(lambda: stage.shop.job.delay(1), result.id)


@scenario("18", "`revoke(terminate=True)` while it runs: the lock is freed")
def revoked_while_running(stage: Stage) -> Outcome:
    """The worker ends the process that runs it."""
    with stage.kept_on("job"):
        result = stage.shop.job.delay(1)
        body = stage.started("job")
        stage.revoke(result, terminate=True)
        stage.wait_gone(body)
    return stage.accepted_again(lambda: stage.shop.job.delay(1))
