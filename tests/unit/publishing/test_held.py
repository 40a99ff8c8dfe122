"""``held``: who holds the locks of an app, for a page of somebody's own."""

from typing import Any

import pytest

from celery_redislock import LockOptionError
from celery_redislock.publishing.held import held
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


@pytest.mark.parametrize("app", [None, "redis://localhost"])
def test_only_an_app_has_a_list(app: Any) -> None:
    with pytest.raises(LockOptionError, match="is no Celery app"):
        held(app)


@pytest.mark.parametrize(
    "wrong", [{"offset": -1}, {"limit": 0}, {"limit": "10"}, {"limit": 100_001}], ids=str
)
def test_a_page_that_is_none_is_refused(shop: Shop, wrong: dict[str, Any]) -> None:
    with pytest.raises(LockOptionError, match=f"{next(iter(wrong))}="):
        held(shop.app, **wrong)
