"""Revoked, and expired."""

import time
from collections.abc import Callable
from contextlib import nullcontext

from celery import states

from tests.acceptance.harness import wait_until
from tests.acceptance.ladder.ending import EVERY_POOL, NARROW, Act, Case, Ending, Freed, Group, own
from tests.acceptance.ladder.scene import Scene
from tests.acceptance.messages import captured, deliver

__all__ = ["EXPIRED", "REVOKED"]

#: Seconds, of leases that would have expired if nobody renewed them.
RENEWED = 2.0
SUBMITTED = (
    "this pool asks only when it takes a message in, so the task runs (`worker/request.py`, "
    "`execute_using_pool`)"
)
DEAF = "the revocation is not carried out: the task runs to its end"


def _revoke(scene: Scene, **options: object) -> float:
    assert scene.result is not None
    revoked = time.monotonic()
    scene.shop.app.control.revoke(scene.result.id, **options)
    return revoked


def _wait_flagged(scene: Scene) -> None:
    assert scene.result is not None
    task_id = scene.result.id
    wait_until(
        lambda: any(task_id in line for line in scene.shop.lines("flagged as revoked")), 20.0, "it is heard"
    )


def _queued(scene: Scene) -> float:
    scene.publish(queue="of-nobody")
    return _revoke(scene)


def _prefetched(scene: Scene) -> float | None:
    with scene.behind_another():
        scene.wait_received(scene.publish().id)
        _revoke(scene)
        _wait_flagged(scene)
        turn = time.monotonic()
    return turn if scene.shop.pool == "prefork" else None


def _waiting_for_its_eta(scene: Scene) -> float:
    eta = time.monotonic() + 2.0
    scene.wait_received(scene.publish(countdown=2.0).id)
    _revoke(scene)
    _wait_flagged(scene)
    return eta


def _running(name: str, then: str | None = None, more: float = 3.0) -> Act:
    """Revoke a running task with a signal, and let it be until it has ended."""

    def act(scene: Scene) -> float:
        with nullcontext() if then else scene.shop.kept_on(scene.key):
            scene.publish("sell", then, more, seconds=0.0, lock_ttl=RENEWED)
            scene.shop.wait_started(scene.key, timeout=20.0)
            if then == "hold_on":
                wait_until(lambda: scene.shop.notes(f"holding {scene.key}"), 20.0, "it is in C code")
            revoked = _revoke(scene, terminate=True, signal=name)
            wait_until(
                lambda: scene.watch is not None and scene.watch.last.state != states.PENDING,
                20.0,
                "it is heard",
            )
        return revoked

    return act


def _running_in_vain(name: str) -> Act:
    """Revoke a running task that hears nothing of it; its cause is its own end."""

    def act(scene: Scene) -> None:
        with scene.running():
            _revoke(scene, terminate=True, signal=name)
            if scene.shop.pool == "threads":
                wait_until(lambda: scene.shop.lines("Terminating"), 20.0, "it is heard")

    return act


def _each(*acts: tuple[Act, tuple[str, ...]]) -> Act:
    """Bring the ending about in the way the pool has."""

    def act(scene: Scene) -> float | None:
        return next(one for one, pools in acts if scene.shop.pool in pools)(scene)

    return act


KILLABLE, DEAF_POOLS = ("prefork", "gevent", "eventlet"), ("threads", "solo")


def _terminated(name: str, ends: str | None) -> Ending:
    greens = Case(("gevent", "eventlet"), ("GreenletExit",), Freed.DEAD, 10.0, states.REVOKED)
    return Ending(
        f"running, terminated with {name}",
        _each((_running(name), KILLABLE), (_running_in_vain(name), DEAF_POOLS)),
        (
            Case(("prefork",), (ends,), Freed.DEAD, 10.0, states.REVOKED),
            greens,
            Case(DEAF_POOLS, ("",), Freed.RUN, note=DEAF),
        ),
    )


REVOKED = Group(
    "Revoked",
    "What has not begun gives its claim back when its turn comes; what runs gives its lease back once "
    "its body "
    "is dead, however early the revocation was announced.",
    (
        Ending(
            "queued, received by nobody",
            _queued,
            (
                Case(
                    EVERY_POOL,
                    (),
                    Freed.NEXT,
                    10.0,
                    states.REVOKED,
                    note="from 2 s after its own publish; no hook of Celery tells anybody before",
                ),
            ),
            since=(5, 6),
        ),
        Ending(
            "prefetched",
            _prefetched,
            (
                Case(("prefork",), (), Freed.TURN, state=states.REVOKED),
                Case(("threads", "gevent", "eventlet"), ("",), Freed.RUN, note=SUBMITTED),
            ),
            stage=NARROW,
        ),
        Ending(
            "waiting for its ETA",
            _waiting_for_its_eta,
            (Case(EVERY_POOL, (), Freed.TURN, state=states.REVOKED),),
        ),
        _terminated("SIGTERM", "SystemExit"),
        _terminated("SIGKILL", None),
        Ending(
            "running, terminated with SIGUSR1",
            _running("SIGUSR1"),
            (
                Case(
                    ("prefork",),
                    ("SoftTimeLimitExceeded",),
                    Freed.RUN,
                    10.0,
                    states.FAILURE,
                    states.REVOKED,
                    note="the signal of the soft limit; its child and its main process both store an outcome",
                ),
            ),
        ),
        Ending(
            "running, terminated with SIGTERM, which the body swallows",
            _running("SIGTERM", "swallow"),
            (Case(("prefork",), ("",), Freed.RUN, 15.0, note="success is stored over the revocation"),),
            # billiard takes any later end of this child for the termination.
            stage=own(),
        ),
        Ending(
            "running in C code that keeps the interpreter, terminated with SIGTERM",
            _running("SIGTERM", "hold_on"),
            (Case(("prefork",), ("SystemExit",), Freed.DEAD, 30.0, states.REVOKED),),
        ),
    ),
)


def _expired_on_arrival(scene: Scene) -> float:
    """The claim ends with ``expires``, before anybody has the message."""
    scene.publish(queue="aside", expires=1.2)
    expires = time.monotonic() + 1.2
    message = captured(scene.shop)
    wait_until(lambda: time.monotonic() > expires + 0.2, 5.0, "it has expired")
    deliver(scene.shop, message)
    return expires


def _expired_prefetched(scene: Scene) -> float | None:
    with scene.behind_another():
        published = scene.publish(expires=1.2)
        expires = time.monotonic() + 1.2
        scene.wait_received(published.id)
        wait_until(lambda: time.monotonic() > expires + 0.2, 20.0, "it has expired")
    return expires if scene.shop.pool == "prefork" else None


def _expired_at_its_eta(scene: Scene) -> float:
    scene.publish(countdown=2.0, expires=1.0)
    return time.monotonic() + 1.0


def _expires(act: Callable[[Scene], float | None], *cases: Case, **rest: object) -> Ending:
    name = act.__name__.removeprefix("_expired_").replace("_", " ").replace("eta", "ETA")
    return Ending(f"expired {name}", act, cases, **rest)  # type: ignore[arg-type]  # fields by name


EXPIRED = Group(
    "Expired",
    "A claim does not outlive the `expires` of a message that nobody has; a worker that has it gives "
    "the claim "
    "back when its turn comes.",
    (
        _expires(
            _expired_on_arrival, Case(EVERY_POOL, (), Freed.EXPIRY, term="`expires`", state=states.REVOKED)
        ),
        _expires(
            _expired_prefetched,
            Case(("prefork",), (), Freed.EXPIRY, term="`expires`", state=states.REVOKED),
            Case(("threads", "gevent", "eventlet"), ("",), Freed.RUN, note=SUBMITTED),
            stage=NARROW,
        ),
        _expires(
            _expired_at_its_eta, Case(EVERY_POOL, (), Freed.EXPIRY, term="`expires`", state=states.REVOKED)
        ),
    ),
)
