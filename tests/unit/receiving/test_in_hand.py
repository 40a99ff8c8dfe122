"""Which workers write their name into what they have in hand, and how long it stands for them."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redislock.declaring.server import settings_of
from celery_redislock.receiving.in_hand import InHand, WorkerName
from celery_redislock.running.delivery import IN_HAND_OF, IN_HAND_SINCE, Delivery
from celery_redislock.wire.clock import boottime
from tests.unit.shop import Shop, body


@pytest.mark.parametrize(
    ("conf", "is_unique", "is_there"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"redislock_restore": False}, True, False),
        ({"redislock_enabled": False}, True, False),
    ],
)
def test_a_worker_without_need_has_no_step(shop: Shop, conf: Any, is_unique: bool, is_there: bool) -> None:
    """Who has no unique task, or wants nothing restored, pays nothing."""
    shop.app.conf.update(conf)
    tasks = {"plain": object(), **({"unique": shop.unique(body)} if is_unique else {})}
    app = SimpleNamespace(main="shop", conf=shop.app.conf, tasks=tasks)
    consumer = SimpleNamespace(app=app)
    assert InHand(consumer).include_if(consumer) is is_there


def test_what_is_restored_was_in_hand_for_longer_than_what_leaves_no_mark(shop: Shop) -> None:
    """Law 8: after 16 s in hand a run leaves a mark (``test_lives.py``), so a copy after 16 s finds it."""
    worker = WorkerName(shop.app, settings_of(shop.app), node="celery@one")
    assert worker.ttl - worker.vouches > 16
    assert worker.pause < worker.vouches


def test_a_worker_that_stands_still_before_it_looks_at_a_message_has_it_in_hand_meanwhile(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 8: it may be restored from the moment the name is stored; so from then its run may leave a mark."""
    shop.unique(body).delay(7)
    worker = WorkerName(shop.app, settings_of(shop.app), node="celery@one")
    worker.name, worker._renewed_at = "name", boottime()
    message = shop.message()
    clock, stored = time.time, []

    def store_and_stand_still(message: Any, tag: str) -> None:
        stored.append(dict(message.properties))
        monkeypatch.setattr(time, "time", lambda: clock() + 20)

    worker.write(store_and_stand_still, message, "tag")
    request = shop.receive(message)

    run = Delivery.of(shop.app.tasks[message.headers["task"]], request._context)
    assert run is not None
    assert run.again == "broker or beat"
    assert (stored[0][IN_HAND_OF], IN_HAND_SINCE in stored[0]) == ("name", False)
