"""Publishing what was handed its lock: it is looked for first where it was published before."""

from math import inf
from typing import Any

import pytest

from celery_redislock import log
from celery_redislock.declaring.options import LockSettings
from celery_redislock.publishing import promote
from celery_redislock.publishing.turn import hand_off
from celery_redislock.store.store import Promotion
from tests.unit.shop import KEY, Shop, body, carried

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
    ("sends", "kept", "is_there", "is_sent"),
    [
        (0, 0, None, True),
        (1, 0, True, False),
        (1, 0, False, True),
        # lock_queue_ttl is an hour, and a hand-off lasts 35 s.
        (1, 102, True, False),
        (1, 103, None, True),
    ],
)
def test_one_that_was_published_before_is_published_again_if_it_is_not_there(
    shop: Shop, given: Promotion, sends: int, kept: int, is_there: bool | None, is_sent: bool
) -> None:
    """Nor is it looked for longer than ``lock_queue_ttl`` in a queue that nobody can look into."""
    asked: list[Promotion] = []

    def may_be_there(_: Any, promotion: Promotion) -> bool:
        asked.append(promotion)
        return bool(is_there)

    again = given._replace(sends=sends, kept=kept)

    assert promote.publish_promoted(shop.app, shop.store, again, may_be_there) is is_sent

    assert (len(asked), len(shop.messages())) == (is_there is not None, is_sent)
    assert handed_on(shop) == [is_sent]


def test_without_a_look_what_was_published_counts_as_there(shop: Shop, given: Promotion) -> None:
    """A command cannot tell, and a worker does it later."""
    assert not promote.publish_promoted(shop.app, shop.store, given._replace(sends=1))
    assert shop.messages() == []


def test_a_look_that_fails_leaves_it_to_the_next_one(shop: Shop, given: Promotion, caplog: Any) -> None:
    def fail(*_: Any) -> bool:
        raise OSError("no broker")

    assert not promote.publish_promoted(shop.app, shop.store, given._replace(sends=1), fail)
    assert (shop.messages(), handed_on(shop)) == ([], [])
    assert "could not publish the next in line of" in caplog.text


@pytest.mark.parametrize(
    ("sends", "kept", "is_there", "told"),
    [
        (1, 1, True, None),
        (1, 2, True, "lies in its queue since then (looked at 3 times)"),
        (1, 3, True, "lies in its queue since then (looked at 4 times)"),
        (2, 5, False, None),
        (3, 5, False, "sent to its queue 3 times, and has not started"),
        (4, 5, False, None),
        (6, 5, False, "sent to its queue 6 times, and has not started"),
    ],
)
def test_operators_are_told_of_one_that_does_not_start(
    shop: Shop, given: Promotion, caplog: Any, sends: int, kept: int, is_there: bool, told: str | None
) -> None:
    """From the third extension on, and each third time that it was lost."""
    again = given._replace(sends=sends, kept=kept)
    promote.publish_promoted(shop.app, shop.store, again, lambda *_: is_there)

    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [told in warning for warning in warnings] == ([True] if told else [])  # type: ignore[operator]
    assert all(f"t1 was handed '{KEY}'" in warning for warning in warnings)


@pytest.mark.parametrize(("restore", "seconds"), [(30.0, 35.0), (6.0, 9.4), (inf, 60.0)])
def test_a_hand_off_lasts_longer_than_a_killed_workers_messages_take_to_be_back(
    restore: float, seconds: float
) -> None:
    assert hand_off(LockSettings(restore=restore)) == pytest.approx(seconds)
