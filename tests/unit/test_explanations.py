"""What ``explain`` says, sentence by sentence, without a server: nothing that another row denies."""

import json
import re
import time
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redislock.operating.explain import _told_of_entry as told_of_entry
from celery_redislock.operating.explain import explanation
from celery_redislock.operating.server import LockServer
from celery_redislock.publishing import promote
from celery_redislock.store.store import Entry
from tests.unit.shop import KEY, Shop, body
from tests.unit.test_cli_line import LOCK, call, held, park

CONTINUES = "continues without its lock, and another one may start beside it."
STILL_RUNS = "A queued call still runs, unless its message is lost; until then another one may be queued."


@pytest.fixture
def shop(shop: Shop, monkeypatch: Any) -> Shop:
    """No worker answers, at once."""
    nobody = SimpleNamespace(**dict.fromkeys(["conf", "query_task", "active_queues"], lambda *_: None))
    monkeypatch.setattr(shop.app.control, "inspect", lambda **_: nobody)
    return shop


def rows(shop: Shop, *words: str, quick: bool = False) -> dict[str, list[str]]:
    """What is explained, by label."""
    found: dict[str, list[str]] = {}
    server = LockServer(shop.store, "celery redislock", shop.app)
    for label, text in explanation(server, words, quick=quick).rows:
        found.setdefault(label, []).append(text)
    return found


class TestWhatFreesIt:
    """The command that frees a lock is alone in its row; the one above it says what that does."""

    @pytest.mark.parametrize(
        ("state", "left", "told"),
        [
            ("running", 30.0, [f"A running task {CONTINUES}"]),
            ("running", 5.0, [f"A task that is not dead {CONTINUES}"]),
            ("queued", 30.0, [STILL_RUNS]),
            ("hold", 30.0, []),
            (None, 30.0, ["The other program is not told: release its lock only if it is gone."]),
        ],
    )
    def test_it_says_before_what_becomes_of_the_holder(
        self, shop: Shop, state: str | None, left: float, told: list[str]
    ) -> None:
        """As ``release`` does before it asks."""
        facts = json.dumps({"state": state, "ttl": 30.0}) if state else ""
        shop.store.acquire(KEY, "holder/1", left, facts=facts)
        explained = rows(shop, KEY, quick=True)
        assert explained.get("if freed", []) == told
        assert [*explained][-1] == "free it"
        assert explained["free it"] == [f"celery redislock release --reason TEXT -- {KEY}"]
        dry = call(shop, "release", KEY, "--dry-run").stdout.splitlines()
        assert dry[1:-1] == told

    def test_a_kind_of_holders_is_told_once(self, shop: Shop) -> None:
        shop.store.acquire(KEY, "a/1", 30.0, facts='{"state":"queued","task":"shop.gone"}')
        shop.store.acquire("account:8", "b/1", 30.0, facts='{"state":"queued","task":"shop.gone"}')
        explained = rows(shop, "shop.gone", quick=True)
        assert (explained["if freed"], len(explained["free them"])) == ([STILL_RUNS], 1)

    def test_a_queued_call_whose_claim_is_released_still_runs(self, shop: Shop) -> None:
        task = shop.unique(body, lock_key=KEY)
        task.apply_async((7, 1))
        assert task.lock_for(7).release(reason="x") is not None
        assert shop.run() == 8

    def test_one_that_was_handed_the_lock_is_dropped_and_does_not_run(self, shop: Shop) -> None:
        task = shop.unique(body, **LOCK)
        held(shop)
        park(shop, task, "a")
        shop.store.release(KEY, "holder/1")
        explained = rows(shop, KEY, quick=True)
        assert explained["free it"] == [f"celery redislock waiting {KEY} --drop a --reason TEXT"]
        assert explained["if freed"] == ["A dropped message does not run: it ends as REVOKED."]


def test_a_key_is_quoted_in_the_command_that_shows_its_line(shop: Shop) -> None:
    """Anybody may have named it, and somebody copies that into a shell."""
    shop.store.acquire("$(id)", "holder/1", 30.0, facts='{"state":"running","task":"shop.gone"}')
    park(shop, shop.unique(body, **{**LOCK, "lock_key": "$(id)"}), "a")
    told = "1 wait for $(id); celery redislock waiting '$(id)'"
    assert rows(shop, "$(id)", quick=True)["in line"] == [told]


@pytest.mark.parametrize(
    ("most", "told"),
    [
        (3, "its run would wait in line behind 2 others (a call"),
        (2, "its run would be retried later: 2 wait, as many as lock_max_waiting lets (a call"),
    ],
)
def test_a_call_whose_line_is_full_is_told_to_be_retried(shop: Shop, most: int, told: str) -> None:
    task = shop.unique(body, **LOCK, lock_max_waiting=most)
    held(shop)
    for task_id in "ab":
        park(shop, task, task_id)
    [now] = rows(shop, task.name, "7")["now"]
    assert told in now


class TestWhoIsNext:
    """When the first in line gets the lock."""

    def next_of(self, shop: Shop) -> str | None:
        """The row, without its key and who answers."""
        shop.store.homes(shop.store.home.partition("\n")[0], "x")  # a worker was there lately
        [told] = rows(shop, KEY).get("next", [""])
        found = re.fullmatch(
            f"the first in line gets {KEY} when (.*) and a worker looks, each second.*", told
        )
        return found and found[1]

    def test_when_the_lock_is_free(self, shop: Shop) -> None:
        """Nobody holds it who would hand it on."""
        held(shop)
        park(shop, shop.unique(body, **LOCK), "a")
        assert self.next_of(shop) == "it is free"

    def test_when_its_rate_has_a_place(self, shop: Shop) -> None:
        task = shop.unique(body, **LOCK, lock_rate="1/m")
        task.apply_async((7,))
        shop.run()
        park(shop, task, "a")
        assert self.next_of(shop) == "its rate has a place"

    def test_when_it_is_due(self, shop: Shop) -> None:
        task = shop.unique(body, lock_key=KEY, lock_debounce=60)
        promote.install(shop.app, shop.store)
        task.apply_async((7,))
        shop.run()
        assert shop.store.waiting(KEY)[0] == 1
        assert self.next_of(shop) == "it is due"

    def test_not_while_an_operators_hold_is_before_all_others(self, shop: Shop) -> None:
        """The row of the hold says that nothing starts before it."""
        task = shop.unique(body, **LOCK)
        held(shop)
        park(shop, task, "a")
        task.lock_for(7).hold(reason="x")
        assert self.next_of(shop) is None
        assert "nothing starts before" in rows(shop, KEY)["on hold"][0]

    def test_not_where_nobody_can_publish_it(self, shop: Shop) -> None:
        """The row of its broker says so."""
        held(shop)
        shop.store.park(KEY, "a/1", Entry("give", "amqp:gone", 30.0, "{}"), nonce="a", how="refused")
        assert self.next_of(shop) is None
        assert "amqp:gone" in rows(shop, KEY)["broker"][0]


class TestEntries:
    """What is said of an entry of the schedule."""

    def told(self, **row: Any) -> str:
        """Of an entry that is well but for this."""
        well = {"name": "nightly", "schedule": "daily", "shared": True, "in_schedule": True, "paused": False}
        empty = dict.fromkeys(("last_sent", "next_due", "sending_since", "last_skip"))
        return told_of_entry({**well, **empty, **row})

    def test_one_that_is_overdue_says_so_and_what_to_do(self) -> None:
        now = time.time()
        told = self.told(last_sent=now - 3600.0, next_due=now - 60.0)
        assert told.endswith("; overdue: no beat sends it; see that one runs, and has this entry")

    def test_one_that_a_beat_died_sending_says_so(self) -> None:
        assert "sending since" in self.told(sending_since=time.time() - 60.0)

    def test_of_one_that_is_well_no_state_is_told(self) -> None:
        assert self.told() == "nightly (daily): never sent"


class TestKeys:
    """A key is taken as it is given, if it is there; several resources otherwise."""

    @pytest.mark.parametrize("key", ["a\nb", "a\tb", " a b ", "a  b"])
    @pytest.mark.parametrize("is_held", [True, False], ids=["held", "waited for"])
    def test_one_with_blanks_is_explained(self, shop: Shop, key: str, *, is_held: bool) -> None:
        held(shop, key)
        if not is_held:
            shop.store.park(key, "a/1", Entry("give", "amqp:gone", 30.0, "{}"), nonce="a", how="refused")
            shop.store.release(key, "holder/1")
            assert not shop.store.holders(key)
        explained = rows(shop, key, quick=True)
        assert (explained["key"], "held by" in explained) == ([key], True)

    def test_several_resources_are_each_explained(self, shop: Shop) -> None:
        held(shop, "b")
        assert rows(shop, "a b", quick=True)["key"] == ["a", "b"]
