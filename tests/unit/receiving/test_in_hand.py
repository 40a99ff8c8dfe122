"""Which workers write their name into what they have in hand, and how long it stands for them."""

from types import SimpleNamespace
from typing import Any

import pytest

from celery_redislock.declaring.server import settings_of
from celery_redislock.receiving.in_hand import InHand, WorkerName
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
def test_a_worker_without_need_has_no_such_step(
    shop: Shop, conf: dict[str, Any], *, is_unique: bool, is_there: bool
) -> None:
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
