"""Messages that never become a run."""

import base64
import time
from typing import Any

import pytest
from celery import states

from tests.acceptance.bodies import new_body
from tests.acceptance.endings.ending import EVERY, PREFORK, Act, Case, Ending, Free, own
from tests.acceptance.endings.scene import Scene
from tests.acceptance.messages import captured, deliver
from tests.acceptance.project import RESOURCE
from tests.acceptance.terms import SHORT_LEASE


def _unknown(scene: Scene) -> float:
    """A task that only the publisher knows."""
    app = scene.project.app
    if "project.unknown" not in app.tasks:
        app.task(name="project.unknown", bind=True, shared=False, lock_key=RESOURCE)(new_body())
    published = time.monotonic()
    scene.publish("unknown")
    return published


def _tampered(change: dict[str, str], **options: Any) -> Act:
    """Deliver a message that was changed on its way."""

    def act(scene: Scene) -> float:
        scene.publish(queue=scene.project.aside, **options)
        message = captured(scene.project)
        delivered = time.monotonic()
        deliver(scene.project, {**message, **change})
        return delivered

    return act


_UNREADABLE = {"body": base64.b64encode(b"{").decode()}
_GONE = {
    "content-type": "application/x-python-serialize",
    "content-encoding": "binary",
    "body": base64.b64encode(b"cof_nobody\nGone\n.").decode(),
}


def _purge(scene: Scene) -> float:
    scene.publish(lock_queue_ttl=SHORT_LEASE)
    purged = time.monotonic()
    assert scene.project.app.control.purge() == 1
    return purged


def _purge_and_release(scene: Scene) -> float:
    scene.publish()
    assert scene.project.app.control.purge() == 1
    released = time.monotonic()
    assert scene.project.executed.lock_for(scene.key).release(reason="purged", only="queued") is not None
    return released


def _unwritable(scene: Scene) -> None:
    with pytest.raises(Exception, match="of nobody"):
        scene.project.executed.apply_async((scene.key,), serializer="of nobody")
    assert scene.project.holder(scene.key) is None


#: In the main process, or at the publisher's, the pool makes no difference.
def _never(free: Free, pools: tuple[str, ...] = PREFORK, **rest: object) -> tuple[Case, ...]:
    return (Case(pools, (), free, **{"state": states.PENDING, **rest}),)  # type: ignore[arg-type]  # by name


_EXPIRED = {"within": SHORT_LEASE + 1.0, "is_lost": True}

MESSAGES = (
    Ending("unknown task", _unknown, _never(Free.RELEASED, EVERY, state=states.FAILURE)),
    Ending(
        "content type not accepted",
        _tampered({"content-type": "application/x-of-nobody"}),
        _never(Free.BEFORE_RESULT),
    ),
    # Celery logs and acknowledges it (worker/consumer/consumer.py, on_decode_error).
    Ending("body not readable", _tampered(_UNREADABLE), _never(Free.RELEASED, EVERY, is_lost=True)),
    Ending(
        "body not readable, as a class is missing",
        _tampered(_GONE, task="until_expired"),
        _never(Free.RELEASED, is_lost=True),
    ),
    Ending("purged", _purge, _never(Free.EXPIRED, **_EXPIRED), own(workers=0)),
    Ending(
        "purged, and released with --queued",
        _purge_and_release,
        _never(Free.RELEASED, is_lost=True),
        own(workers=0),
    ),
    Ending("cannot be written", _unwritable, _never(Free.RELEASED)),
)
