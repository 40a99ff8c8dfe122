"""Publishing what was handed its lock: it is looked for first where it was published before."""

from math import inf
from typing import Any

import pytest

from celery_redislock import log
from celery_redislock.declaring.options import LockSettings
from celery_redislock.publishing import promote
from celery_redislock.publishing.turn import hand_off
from celery_redislock.store.store import Promotion
from tests.unit.shop import KEY, Shop, body, carried, raising

LOCK = {"lock": "while_executing", "lock_key": KEY}


@pytest.fixture
def given(shop: Shop) -> Promotion:
    """A message that waited, was handed its lock, and is given to this process."""
    promote.install(shop.app, shop.store)
    task = shop.unique(body, **LOCK)
    shop.store.acquire(KEY, "holder/1", 300.0, facts='{"state":"running"}')
    task.apply_async((7,), task_id="t1")
    message = shop.message()
    token = carried(message).token
    shop.run(shop.receive(message))
    promoted: list[Promotion] = []
    shop.store.on_promoted = promoted.extend
    shop.store.release(KEY, "holder/1")
    (given,) = promoted
    assert (given.id, given.sends, shop.messages()) == (token, 0, [])
    return given


@pytest.fixture(autouse=True)
def _nothing_was_told(monkeypatch: Any) -> None:
    monkeypatch.setattr(log, "_told_at", {})


def handed_on(shop: Shop) -> list[int]:
    """How often each was sent that was handed the lock and has not started."""
    return [each.sends for each in shop.store.waiting(KEY, handed_on=True)[1]]


@pytest.mark.parametrize(
    ("sends", "kept", "is_there", "is_sent", "told"),
    [
        (0, 0, None, True, None),
        (1, 0, False, True, None),
        (1, 1, True, False, None),
        # Operators are told from the third extension on, and each third time that it was lost.
        (1, 2, True, False, "lies in its queue since then (looked at 3 times)"),
        (1, 3, True, False, "lies in its queue since then (looked at 4 times)"),
        (2, 5, False, True, None),
        (3, 5, False, True, "sent to its queue 3 times, and has not started"),
        (4, 5, False, True, None),
        (6, 5, False, True, "sent to its queue 6 times, and has not started"),
        # lock_queue_ttl is an hour, and a hand-off lasts 35 s: nobody can look into that queue.
        (1, 102, True, False, "lies in its queue since then (looked at 103 times)"),
        (1, 103, None, True, None),
    ],
)
def test_one_that_was_published_before_is_published_again_if_it_is_not_there(
    shop: Shop, given: Promotion, caplog: Any, sends: int, kept: int, is_there: Any, is_sent: bool, told: Any
) -> None:
    """And operators are told of one that does not start."""
    asked: list[Promotion] = []

    def may_be_there(_: Any, promotion: Promotion) -> bool:
        asked.append(promotion)
        return bool(is_there)

    again = given._replace(sends=sends, kept=kept)
    assert promote.publish_promoted(shop.app, shop.store, again, may_be_there) is is_sent
    assert (len(asked), len(shop.messages())) == (is_there is not None, is_sent)
    assert handed_on(shop) == [is_sent]
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [f"t1 was handed '{KEY}'" in line and told in line for line in warnings] == [True] * bool(told)


@pytest.mark.parametrize("look", [None, raising(OSError("no broker"))], ids=["no look", "it fails"])
def test_without_a_look_what_was_sent_counts_as_there(
    shop: Shop, given: Promotion, caplog: Any, look: Any
) -> None:
    """A command cannot tell, and a worker does it later; if its look fails, the next one does."""
    how = [look] if look else []
    assert not promote.publish_promoted(shop.app, shop.store, given._replace(sends=1), *how)
    assert shop.messages() == []
    assert look is None or handed_on(shop) == []
    assert ("could not publish the next in line of" in caplog.text) == (look is not None)


@pytest.mark.parametrize(("restore", "seconds"), [(30.0, 35.0), (6.0, 9.4), (inf, 60.0)])
def test_a_hand_off_lasts_longer_than_a_restore_of_messages(restore: float, seconds: float) -> None:
    assert hand_off(LockSettings(restore=restore)) == pytest.approx(seconds)
