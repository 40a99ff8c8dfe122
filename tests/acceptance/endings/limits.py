"""Time limits."""

from celery import states

from tests.acceptance.endings.ending import Act, Case, Ending, Free
from tests.acceptance.endings.scene import Scene
from tests.acceptance.terms import FREED

#: Seconds: ``time_limit`` of the project's task.
LIMIT = 2.0


def _soft(then: str | None = None) -> Act:
    def act(scene: Scene) -> None:
        scene.publish("executed_soft_time_limit", then, 20.0, seconds=0.0 if then else 1.5)

    return act


def _hard(then: str | None = None) -> Act:
    """The cause is the limit's passing."""

    def act(scene: Scene) -> float | None:
        if scene.project.pool == "threads":
            scene.publish("executed_time_limit", seconds=LIMIT + 0.5)
            return None
        scene.publish("executed_time_limit", then, 20.0, seconds=0.0 if then else 20.0)
        return scene.project.wait_started(scene.key).start + LIMIT

    return act


#: Threads keep no limit, and gevent no soft one: the task runs to its end.
LIMITS = (
    Ending(
        "soft limit",
        _soft(),
        (
            Case(("prefork",), ("SoftTimeLimitExceeded",), state=states.FAILURE),
            Case(("threads", "gevent"), ("",)),
        ),
    ),
    Ending("soft limit, caught", _soft("give_in"), (Case(("prefork",), ("",)),)),
    # Celery stores the failure first, and kills the child then.
    Ending(
        "hard limit",
        _hard(),
        (
            Case(("prefork",), ("SystemExit",), Free.SOON, FREED, states.FAILURE),
            Case(("gevent",), ("Timeout",), state=states.FAILURE),
            Case(("threads",), ("",)),
        ),
    ),
    Ending(
        "hard limit, the body swallows SIGTERM",
        _hard("swallow"),
        (Case(("prefork",), (None,), Free.SOON, FREED, states.FAILURE),),
    ),
)
