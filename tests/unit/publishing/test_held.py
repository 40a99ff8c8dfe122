"""``held`` and ``waiting``: who holds the locks of an app, and who waits, for a page of somebody's own."""

from collections.abc import Callable
from typing import Any

import pytest

from celery_redislock import LockOptionError
from celery_redislock.publishing.handle import Holder
from celery_redislock.publishing.held import held, waiting
from celery_redislock.store.store import Entry
from tests.unit.shop import Shop, body


def test_a_list_is_a_page_of_those_whom_all_patterns_fit(shop: Shop) -> None:
    """In the order of the keys, so that the pages of one list fit together."""
    task = shop.unique(body, lock_key="n:{account_id}")
    for number in (3, 1, 2, 4):
        task.delay(number)

    def keys(**wanted: Any) -> list[str]:
        return [holder.key for holder in held(shop.app, **wanted)]

    assert keys() == ["n:1", "n:2", "n:3", "n:4"]
    assert keys(limit=2) + keys(offset=2, limit=2) == keys()
    assert keys(key="n:[13]", offset=1) == ["n:3"]
    assert keys(task=task.name, host="*", limit=1) == ["n:1"]
    assert keys(task="another.*") == keys(host="nowhere") == keys(offset=4) == []
    (first, *_) = held(shop.app)
    assert (first.state, first.task) == ("queued", task.name)


def park(shop: Shop, key: str, *ids: str, task: str = "shop.charge") -> None:
    """Let somebody hold a lock, and these wait for it."""
    shop.store.acquire(key, "run/1", 30.0, facts="{}")
    for id_ in ids:
        facts = f'{{"task":"{task}","state":"queued","line":1,"merged":2}}'
        shop.store.park(key, f"{id_}/1", Entry("push", "q", 30.0, facts, id_), nonce=key + id_)


def places(found: list[Holder]) -> list[tuple[str, str, int | None, int | None]]:
    """Whose lines these are, who waits, at which place, of how many."""
    return [(one.key, one.owner, one.place, one.length) for one in found]


def test_with_a_key_all_in_its_line_are_told_in_order(shop: Shop) -> None:
    """As the command does; behind them those who wait to be its queued call."""
    park(shop, "n", "a", "b", "c")
    park(shop, "queued:n", "d")
    in_line = [("n", "a", 1, 3), ("n", "b", 2, 3), ("n", "c", 3, 3), ("queued:n", "d", 1, 1)]
    assert places(waiting(shop.app, "n")) == in_line
    assert places(waiting(shop.app, "n", offset=1, limit=2)) == in_line[1:3]
    assert places(waiting(shop.app, "n", offset=2, limit=2)) == in_line[2:]
    assert waiting(shop.app, "another") == []
    (first, *_) = waiting(shop.app, "n")
    assert (first.task, first.state, first.merged, first.remaining) == (
        "shop.charge",
        "queued",
        2,
        float("inf"),
    )


def test_who_was_handed_the_lock_and_has_not_started_has_no_place_before_them(shop: Shop) -> None:
    park(shop, "n", "a", "b")
    shop.store.release("n", "run/1")
    assert places(waiting(shop.app, "n")) == [("n", "a", 0, 1), ("n", "b", 1, 1)]
    assert places(waiting(shop.app)) == [("n", "b", 1, 1)]
    shop.store.leave("n", "b/1")
    assert places(waiting(shop.app, "n")) == places(waiting(shop.app)) == [("n", "a", 0, 0)]


def test_without_a_key_the_first_of_each_line_is_told_in_the_order_of_keys(shop: Shop) -> None:
    """So that the pages of one list fit together."""
    for key in ("n:3", "n:1", "n:2"):
        park(shop, key, "a", "b", task=f"shop.{key}")
    assert places(waiting(shop.app)) == [(key, "a", 1, 2) for key in ("n:1", "n:2", "n:3")]
    assert places(waiting(shop.app, offset=1, limit=1)) == [("n:2", "a", 1, 2)]
    assert [one.key for one in waiting(shop.app, task="*3")] == ["n:3"]


def test_a_pattern_of_tasks_is_looked_for_in_the_whole_line(shop: Shop) -> None:
    park(shop, "n", "a", "b")
    park(shop, "n", "c", "d", task="shop.refund")
    assert places(waiting(shop.app, "n", task="*.refund", offset=1, limit=1)) == [("n", "d", 4, 4)]


def test_a_handle_tells_places_too_and_a_holder_has_none(shop: Shop) -> None:
    task = shop.unique(body, lock="while_executing", lock_key="n")
    park(shop, "n", "a", "b", "c")
    handle = task.lock_for()
    assert places(handle.waiting(offset=1)) == [("n", "b", 2, 3), ("n", "c", 3, 3)]
    holder = handle.holder()
    assert (holder.place, holder.length) == (None, None)


@pytest.mark.parametrize("told", [held, waiting])
@pytest.mark.parametrize("app", [None, "redis://localhost"])
def test_only_an_app_has_a_list(app: Any, told: Callable[..., object]) -> None:
    with pytest.raises(LockOptionError, match="is no Celery app"):
        told(app)


@pytest.mark.parametrize(
    "wrong", [{"offset": -1}, {"limit": 0}, {"limit": "10"}, {"limit": 100_001}], ids=str
)
def test_a_page_that_is_none_is_refused(shop: Shop, wrong: dict[str, Any]) -> None:
    with pytest.raises(LockOptionError, match=f"{next(iter(wrong))}="):
        held(shop.app, **wrong)
    with pytest.raises(LockOptionError, match=f"{next(iter(wrong))}="):
        waiting(shop.app, "n", **wrong)


def test_of_all_lines_a_page_has_a_thousand_at_most(shop: Shop) -> None:
    with pytest.raises(LockOptionError, match="limit=1001 is not a whole number from 1 to 1000"):
        waiting(shop.app, limit=1001)
    assert waiting(shop.app, limit=1000) == waiting(shop.app, "n", limit=1001) == []
