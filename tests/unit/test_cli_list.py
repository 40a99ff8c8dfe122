"""``list``, without a server: whose locks it shows, and in which state."""

import json
from typing import Any

import pytest

from celery_redislock.operating import held as listed
from celery_redislock.store.store import Entry
from tests.unit.shop import KEY, Shop
from tests.unit.test_cli_line import answer, call


def wait_for(shop: Shop, key: str) -> None:
    """Put a call into the line of a key that another program holds."""
    shop.store._keep(key, b"nightly.sh on 10.0.0.7", 300.0)
    facts = '{"task":"shop.sync","state":"queued"}'
    shop.store.park(key, f"a of {key}/1", Entry("push", "celery", 30.0, facts), nonce=key, how="refused")


def keys(shop: Shop, *words: str) -> list[str]:
    """Whose holders it shows."""
    return sorted(lock["key"] for lock in answer(shop, "list", *words)["locks"])


class TestAnotherProgramsLock:
    """It is on no list of a server's."""

    @pytest.fixture(autouse=True)
    def unlisted(self, shop: Shop, monkeypatch: Any) -> None:
        """Nor of this store's."""
        walk = shop.store.walk_holds
        ours = lambda **how: ([hold for hold in holds if hold.state] for holds in walk(**how))  # noqa: E731
        monkeypatch.setattr(shop.store, "walk_holds", ours)

    def test_it_is_shown_where_calls_wait_for_it(self, shop: Shop) -> None:
        """Beside ours, and by the options that narrow the list."""
        wait_for(shop, KEY)
        shop.store._keep("no line", b"nightly.sh", 300.0)
        shop.store.acquire("ours", "b/1", 30.0, facts='{"task":"shop.sync","state":"queued"}')
        shop.store.park("ours", "c/1", Entry("push", "celery", 30.0, "{}"), nonce="c", how="refused")
        assert keys(shop) == [KEY, "ours"]
        assert keys(shop, "--state", "foreign") == [KEY]
        assert keys(shop, "account:*") == [KEY]
        assert keys(shop, "--task", "shop.sync") == ["ours"]
        assert "2 locks: " in call(shop, "list").stdout

    def test_of_many_so_many_are_looked_at(self, shop: Shop, monkeypatch: Any) -> None:
        monkeypatch.setattr(listed, "MOST_BESIDE", 2)
        for number in range(3):
            wait_for(shop, f"account:{number}")
        assert len(keys(shop)) == 2


@pytest.mark.parametrize(("left", "state"), [(30.0, "running  "), (5.0, "running, late  ")])
def test_a_run_that_is_not_renewed_in_time_is_late(shop: Shop, left: float, state: str) -> None:
    """In its row, in the line that counts, and for programs."""
    facts = json.dumps({"task": "shop.sync", "state": "running", "ttl": 30.0})
    shop.store.acquire(KEY, "a/1", left, facts=facts)
    is_late = "late" in state
    row, total = call(shop, "list").stdout.splitlines()[1:]
    assert row.startswith(f"{KEY}  {state}")
    assert total.startswith(f"1 lock: 1 running{' (1 late)' if is_late else ''}; oldest ")
    assert answer(shop, "list")["locks"][0]["is_late"] is is_late
