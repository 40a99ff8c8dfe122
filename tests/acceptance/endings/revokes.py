"""Revoked, and expired."""

import time

from celery import states

from tests.acceptance.endings.ending import EVERY, NARROW, PREFORK, Act, Case, Ending, Free
from tests.acceptance.endings.scene import Scene
from tests.acceptance.harness import wait_until
from tests.acceptance.messages import captured, deliver
from tests.acceptance.terms import FREED, LEASE, LONG_LEASE, PATIENCE

#: Seconds until a message expires.
EXPIRES = 1.0


def _revoke(scene: Scene, **options: object) -> float:
    assert scene.result is not None
    revoked = time.monotonic()
    scene.project.app.control.revoke(scene.result.id, **options)
    return revoked


def _wait_flagged(scene: Scene) -> None:
    assert scene.result is not None
    scene.project.wait_lines("flagged as revoked", scene.result.id)


def _queued(task: str = "executed", **options: object) -> Act:
    """Revoke a message in a queue that no worker consumes."""

    def act(scene: Scene) -> float:
        scene.publish(task, queue="of-nobody", lock_period=LONG_LEASE)
        return _revoke(scene, **options)

    return act


def _prefetched(scene: Scene) -> float | None:
    with scene.behind_another():
        scene.project.wait_received(scene.publish().id)
        _revoke(scene)
        _wait_flagged(scene)
        turn = time.monotonic()
    return turn if scene.project.pool == "prefork" else None


def _waiting_for_its_eta(scene: Scene) -> float:
    eta = time.monotonic() + 2.0
    scene.project.wait_received(scene.publish(countdown=2.0).id)
    _revoke(scene)
    _wait_flagged(scene)
    return eta


def _running(name: str) -> Act:
    """Revoke a running task with a signal, and let it be until it has ended."""

    def act(scene: Scene) -> float | None:
        if scene.project.pool == "threads":
            return _running_in_vain(scene, name)
        with scene.running(lock_ttl=LEASE):
            revoked = _revoke(scene, terminate=True, signal=name)
            wait_until(
                lambda: scene.watch is not None and scene.watch.last.state != states.PENDING,
                PATIENCE,
                "the worker has heard it",
            )
        return revoked

    return act


def _running_in_vain(scene: Scene, name: str) -> None:
    """Revoke a task whose pool cannot end it; its cause is its own end."""
    with scene.running():
        _revoke(scene, terminate=True, signal=name)
        scene.project.wait_lines("Terminating", scene.result.id if scene.result is not None else "")


def _terminated(name: str, ends: str | None) -> Ending:
    return Ending(
        f"running, terminated with {name}",
        _running(name),
        (
            Case(("prefork",), (ends,), Free.RELEASED, FREED, states.REVOKED),
            Case(("gevent",), ("GreenletExit",), Free.RELEASED, FREED, states.REVOKED),
            Case(("threads",), ("",)),
        ),
    )


_IN_QUEUE = Case(PREFORK, (), Free.RELEASED, FREED, states.REVOKED, stores=False)

REVOKED = (
    # Celery 5.5 stores no state for an id that no worker knows; 5.7 does before its command returns.
    Ending("revoked in its queue, received by nobody", _queued(), (_IN_QUEUE._replace(pools=EVERY),)),
    Ending("revoked in its queue, with terminate", _queued(terminate=True), (_IN_QUEUE,)),
    Ending("revoked in its queue, two locks", _queued("until_and_while"), (_IN_QUEUE,)),
    # Other pools ask only when they receive a message: the task runs (worker/request.py, execute_using_pool).
    Ending(
        "revoked, prefetched",
        _prefetched,
        (Case(("prefork",), (), Free.RELEASED, state=states.REVOKED), Case(("threads", "gevent"), ("",))),
        NARROW,
    ),
    Ending(
        "revoked, waiting for its ETA",
        _waiting_for_its_eta,
        (Case(EVERY, (), Free.RELEASED, state=states.REVOKED),),
    ),
    _terminated("SIGTERM", "SystemExit"),
    _terminated("SIGKILL", None),
)


def _expired_on_arrival(scene: Scene) -> float:
    """The claim ends with ``expires``, before anybody has the message."""
    scene.publish(queue=scene.project.aside, expires=EXPIRES)
    expires = time.monotonic() + EXPIRES
    message = captured(scene.project)
    wait_until(lambda: time.monotonic() > expires + 0.2, PATIENCE, "it has expired")
    deliver(scene.project, message)
    return expires


def _expired_prefetched(scene: Scene) -> float | None:
    with scene.behind_another():
        published = scene.publish(expires=EXPIRES)
        expires = time.monotonic() + EXPIRES
        scene.project.wait_received(published.id)
        wait_until(lambda: time.monotonic() > expires + 0.2, PATIENCE, "it has expired")
    return expires if scene.project.pool == "prefork" else None


def _expired_at_its_eta(scene: Scene) -> float:
    scene.publish(countdown=2.0, expires=1.0)
    return time.monotonic() + 1.0


_EXPIRED = Case(EVERY, (), Free.EXPIRED, state=states.REVOKED)

EXPIRED = (
    Ending("expired on arrival", _expired_on_arrival, (_EXPIRED,)),
    Ending(
        "expired, prefetched",
        _expired_prefetched,
        (_EXPIRED._replace(pools=("prefork",)), Case(("threads", "gevent"), ("",))),
        NARROW,
    ),
    Ending("expired at its ETA", _expired_at_its_eta, (_EXPIRED,)),
)
