"""What a worker and a beat say when they start: how many tasks are unique, and where the locks are."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import celery
import pytest

from celery_redislock.declaring.options import LockSettings
from celery_redislock.scheduling.startup import tell, tell_of_beat
from tests.unit.shop import Shop, body, forget_unique

Said = Callable[[], list[str]]


@pytest.fixture
def shop(shop: Shop) -> Shop:
    forget_unique(shop.app)
    return shop


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """Return what tells the lines that were logged."""
    caplog.set_level(logging.INFO, "celery_redislock")
    return lambda: [record.getMessage() for record in caplog.records]


def entries(*tasks: str) -> list[Any]:
    return [SimpleNamespace(name=f"e{number:02}", task=task) for number, task in enumerate(tasks)]


def test_one_line_says_how_many_tasks_are_unique_and_where_the_locks_are(shop: Shop, said: Said) -> None:
    """A task that is switched off takes none; one whose options are wrong is meant to."""
    shop.unique(body)
    shop.unique(body, name="shop.off", lock=None)
    shop.app.task(name="shop.plain", shared=False, lazy=False)(body)

    tell(shop.app, LockSettings())
    shop.unique(body, name="shop.wrong").lock_ttl = "long"
    tell(shop.app, LockSettings())

    tell(shop.app, LockSettings(enabled=False))

    where = f"locks on memory (prefix {shop.store.prefix})"
    off = "locking is switched off (redislock_enabled)"
    assert said() == [f"redislock: {told}" for told in (
        f"1 unique task, {where}", f"2 unique tasks, {where}", f"2 unique tasks, {off}"
    )]  # fmt: skip


def test_a_program_without_a_unique_task_says_nothing(shop: Shop, said: Said) -> None:
    """Unless its beat shares an entry."""
    plain = entries("shop.plain", "shop.other")
    tell(shop.app, LockSettings())
    tell_of_beat(shop.app, LockSettings(), plain)
    assert said() == []
    tell_of_beat(shop.app, LockSettings(beat=("*",)), plain)
    assert len(said()) == 1
    assert said()[0].startswith("redislock: 0 unique tasks, locks on memory")
    assert said()[0].endswith("; beat shares 2 of 2 entries")


def test_a_beat_names_the_entries_that_each_beat_sends(shop: Shop, said: Said) -> None:
    """Ten of them, and what would share them."""
    shop.unique(body, name="shop.sync")
    tell_of_beat(shop.app, LockSettings(), entries("shop.sync", "plain", "shop.sync", "other"))
    tell_of_beat(shop.app, LockSettings(), entries(*["plain"] * 12))
    remedy = '(redislock_beat = "all" shares all)'
    assert said()[0].endswith(f"; beat shares 2 of 4 entries, not shared: e01, e03 {remedy}")
    assert (
        f"; beat shares 0 of 12 entries, not shared: {', '.join(f'e{i:02}' for i in range(10))}" in said()[1]
    )
    assert said()[1].endswith(f", e09 and 2 more {remedy}")


def test_an_untested_celery_is_named(shop: Shop, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """This package stands in for methods of Celery's that have changed before."""
    shop.unique(body)
    monkeypatch.setattr(celery, "__version__", "5.x")
    for version in (5, 4, 9), (5, 5, 0), (5, 7, 3), (5, 8, 0):
        monkeypatch.setattr(celery, "VERSION", version)
        tell(shop.app, LockSettings())
    assert [line.endswith("; Celery 5.x is untested") for line in said()] == [True, False, False, True]
