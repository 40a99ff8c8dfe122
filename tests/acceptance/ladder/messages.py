"""Messages that never become a run."""

import base64
import time
from collections.abc import Callable
from typing import Any

import pytest
from celery import states
from kombu.exceptions import OperationalError

from tests.acceptance.endings import new_body
from tests.acceptance.ladder.ending import EVERY_POOL, Act, Case, Ending, Freed, Group, own
from tests.acceptance.ladder.scene import Scene
from tests.acceptance.messages import captured, deliver
from tests.acceptance.shop import SALE

__all__ = ["MESSAGES"]

#: Seconds, of claims nobody gives back.
QUEUE_TTL = 1.5
#: In the main process, where the pool makes no difference.
ONE_POOL = ("prefork",)


def _unknown(scene: Scene) -> float:
    """A task that only the publisher knows."""
    app = scene.shop.app
    if "shop.unheard" not in app.tasks:
        app.task(name="shop.unheard", bind=True, shared=False, lock_key=SALE)(new_body())
    published = time.monotonic()
    scene.publish("unheard")
    return published


def _tampered(change: Callable[[dict[str, Any]], None], **options: Any) -> Act:
    """Deliver a message that was changed on its way."""

    def act(scene: Scene) -> float:
        scene.publish(queue="aside", **options)
        message = captured(scene.shop)
        change(message)
        delivered = time.monotonic()
        deliver(scene.shop, message)
        return delivered

    return act


def _disallow(message: dict[str, Any]) -> None:
    message["content-type"] = "application/x-of-nobody"


def _spoil_eta(message: dict[str, Any]) -> None:
    message["headers"]["eta"] = "soon"


def _spoil_body(message: dict[str, Any]) -> None:
    message["body"] = base64.b64encode(b"{").decode()


def _purge(scene: Scene) -> float:
    scene.publish(lock_queue_ttl=QUEUE_TTL)
    purged = time.monotonic()
    assert scene.shop.app.control.purge() == 1
    return purged


def _purge_and_release(scene: Scene) -> float:
    scene.publish()
    assert scene.shop.app.control.purge() == 1
    released = time.monotonic()
    assert scene.shop.sell.lock_for(scene.key).release(reason="purged", only="queued") is not None
    return released


def _unwritable(scene: Scene) -> None:
    with pytest.raises(Exception, match="of nobody"):
        scene.shop.sell.apply_async((scene.key,), serializer="of nobody")
    assert scene.shop.holder(scene.key) is None


def _broker_away(scene: Scene) -> None:
    scene.broker.kill()
    with pytest.raises(OperationalError):
        scene.shop.sell.delay(scene.key)
    assert scene.shop.holder(scene.key) is None
    scene.broker.restart()


MESSAGES = Group(
    "Messages that never run",
    "A worker that refuses a message gives its claim back. Of a purged or unreadable message nobody "
    "hears: its "
    "claim expires after `lock_queue_ttl`, or is released with `celery redislock release --queued`.",
    (
        Ending("unknown task", _unknown, (Case(EVERY_POOL, (), Freed.TOLD, state=states.FAILURE),)),
        Ending(
            "content type not accepted",
            _tampered(_disallow),
            (Case(ONE_POOL, (), Freed.MAIN, state=states.PENDING),),
        ),
        Ending(
            "ETA not readable", _tampered(_spoil_eta), (Case(ONE_POOL, (), Freed.MAIN, state=states.PENDING),)
        ),
        Ending(
            "body not readable",
            _tampered(_spoil_body, lock_queue_ttl=QUEUE_TTL),
            (
                Case(
                    ONE_POOL,
                    (),
                    Freed.EXPIRY,
                    QUEUE_TTL + 1.0,
                    term="`lock_queue_ttl`",
                    state=states.PENDING,
                    lost="the message: Celery logs and acknowledges it (`worker/consumer/consumer.py`, "
                    "`on_decode_error`)",
                ),
            ),
        ),
        Ending(
            "purged",
            _purge,
            (
                Case(
                    ONE_POOL,
                    (),
                    Freed.EXPIRY,
                    QUEUE_TTL + 1.0,
                    term="`lock_queue_ttl`",
                    state=states.PENDING,
                    lost="the message, as was asked",
                ),
            ),
            stage=own(workers=0),
        ),
        Ending(
            "purged, and released with `--queued`",
            _purge_and_release,
            (Case(ONE_POOL, (), Freed.OPERATOR, state=states.PENDING, lost="the message, as was asked"),),
            stage=own(workers=0),
        ),
        Ending(
            "cannot be written", _unwritable, (Case(ONE_POOL, (), Freed.CALLER, note="the publish raises"),)
        ),
        Ending(
            "the broker is away",
            _broker_away,
            (Case(ONE_POOL, (), Freed.CALLER, note="the publish raises"),),
            stage=own(workers=0, own_broker=True, task_publish_retry=False),
        ),
    ),
)
