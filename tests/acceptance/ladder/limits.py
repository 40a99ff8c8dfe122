"""Time limits."""

from celery import states

from tests.acceptance.ladder.ending import Act, Case, Ending, Freed, Group
from tests.acceptance.ladder.scene import Scene

__all__ = ["LIMITS"]

#: Seconds, of the shop's tasks.
LIMIT = 1.0
IGNORED = "this pool keeps no such limit: the task runs to its end"


def _soft(then: str | None = None) -> Act:
    def act(scene: Scene) -> None:
        scene.publish("sell_softly", then, 20.0, seconds=0.0 if then else 1.5)

    return act


def _hard(then: str | None = None) -> Act:
    """The cause is the limit's passing."""

    def act(scene: Scene) -> float | None:
        if scene.shop.pool not in {"prefork", "gevent"}:
            scene.publish("sell_in_time", seconds=1.5)
            return None
        scene.publish("sell_in_time", then, 20.0, seconds=0.0 if then else 20.0)
        return scene.shop.wait_started(scene.key).start + LIMIT

    return act


LIMITS = Group(
    "Time limits",
    "After a hard limit the lock is free within seconds, and never before the body is dead: Celery announces "
    "the failure first, and kills the child then.",
    (
        Ending(
            "soft limit",
            _soft(),
            (
                Case(("prefork",), ("SoftTimeLimitExceeded",), Freed.RUN, state=states.FAILURE),
                Case(("threads", "gevent", "eventlet", "solo"), ("",), Freed.RUN, note=IGNORED),
            ),
        ),
        Ending("soft limit, caught", _soft("give_in"), (Case(("prefork",), ("",), Freed.RUN),)),
        Ending(
            "hard limit",
            _hard(),
            (
                Case(("prefork",), ("SystemExit",), Freed.KILLED, 10.0, state=states.FAILURE),
                Case(("gevent",), ("Timeout",), Freed.RUN, state=states.FAILURE),
                Case(("threads", "eventlet", "solo"), ("",), Freed.RUN, note=IGNORED),
            ),
        ),
        Ending(
            "hard limit, the body swallows SIGTERM",
            _hard("swallow"),
            (Case(("prefork",), (None,), Freed.KILLED, 10.0, state=states.FAILURE),),
        ),
    ),
)
