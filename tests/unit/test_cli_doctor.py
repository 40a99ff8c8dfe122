"""What ``doctor`` makes of what a server says of itself, of an app's tasks, and of its workers."""

import json
import time
from collections.abc import Mapping
from importlib.metadata import requires
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from celery_redislock.cli import redislock
from celery_redislock.operating import doctor
from celery_redislock.operating.server import LockServer
from celery_redislock.publishing import promote
from tests.unit.shop import Shop, body

#: What a server says with which nothing is wrong.
WELL = {
    "redis_version": "7.0.15",
    "maxmemory": "0",
    "used_memory": "1000000",
    "maxmemory_policy": "noeviction",
    "aof_enabled": "1",
    "aof_last_write_status": "ok",
    "rdb_last_bgsave_status": "ok",
    "connected_slaves": "0",
}


@pytest.fixture
def shop(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """One task, a server that is well, and a worker with the same settings."""
    monkeypatch.setattr(promote, "install", lambda *_: None)
    shop.unique(body)
    says(shop, monkeypatch)
    answers(shop, monkeypatch, {"w@here": {}})
    return shop


def says(shop: Shop, monkeypatch: pytest.MonkeyPatch, **changes: str | None) -> None:
    """Let the server say this of itself."""
    said = {**WELL, **changes}
    monkeypatch.setattr(shop.store, "server_says", lambda _, name: said.get(name))


def answers(shop: Shop, monkeypatch: pytest.MonkeyPatch, told: Mapping[str, Any] | None) -> None:
    """Let these workers answer."""
    inspect = SimpleNamespace(conf=lambda: told)
    monkeypatch.setattr(shop.app.control, "inspect", lambda **_: inspect)


def ask(shop: Shop) -> tuple[int, dict[str, list[str]]]:
    """Return the exit status, and the texts by level."""
    result = CliRunner().invoke(redislock, ["doctor", "--json"], obj=SimpleNamespace(app=shop.app))
    texts: dict[str, list[str]] = {level: [] for level in ("ok", "note", "warning", "error")}
    for each in json.loads(result.stdout)["findings"]:
        texts[each["level"]].append(each["text"])
    return result.exit_code, texts


def test_where_nothing_is_wrong_it_ends_with_0(shop: Shop, monkeypatch: Any) -> None:
    """A proxy, a fake, a managed server says nothing of itself: nothing is claimed about it."""
    for said in ({}, dict.fromkeys(WELL)):
        says(shop, monkeypatch, **said)
        status, texts = ask(shop)
        assert (status, texts["note"], texts["warning"], texts["error"]) == (0, [], [], [])
    # Tasks that other tests have shared are this app's, too.
    assert [text for text in texts["ok"] if "unique tasks, and nothing is wrong with their options" in text]
    assert not [text for text in texts["ok"] if "append-only" in text or "short of memory" in text]


@pytest.mark.parametrize(
    ("changes", "level", "said"),
    [
        ({"redis_version": "6.0.16"}, "error", "Redis 6.0.16 is older than 6.2"),
        ({"redis_version": "10.0-rc1"}, None, ""),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, None, ""),
        ({"maxmemory": "1050000"}, "warning", "95% of its memory"),
        ({"maxmemory": "1000000"}, "error", "100% of its memory"),
        ({"maxmemory": "2000000"}, None, ""),
        ({"maxmemory_policy": "volatile-lru"}, "warning", "maxmemory-policy 'volatile-lru'"),
        ({"aof_enabled": "0"}, "note", "appendonly yes keeps them"),
        ({"rdb_last_bgsave_status": "err"}, "warning", "its last snapshot failed"),
        ({"aof_last_write_status": "err"}, "warning", "its last write to disk failed"),
        ({"connected_slaves": "2"}, "note", "it has 2 replicas"),
    ],
    ids=str,
)
def test_what_a_server_says_is_weighed(
    shop: Shop, monkeypatch: Any, changes: dict[str, str], level: str | None, said: str
) -> None:
    says(shop, monkeypatch, **changes)
    status, texts = ask(shop)
    found = {name: texts[name] for name in ("note", "warning", "error") if texts[name]}
    assert [*found] == ([level] if level else [])
    assert status == {"warning": 1, "error": 2}.get(level or "", 0)
    for (text,) in found.values():
        assert said in text


def test_replicas_are_compared_with_those_that_locks_wait_for(shop: Shop, monkeypatch: Any) -> None:
    told = []
    for wanted, online in (1, "1"), (2, "1"), (1, None):
        says(shop, monkeypatch, connected_slaves=online)
        shop.app.conf.redislock_min_replicas = wanted
        found = ask(shop)[1]
        told.append([level for level in found if "redislock_min_replicas is" in " ".join(found[level])])
    assert told == [["ok"], ["error"], []]


def test_clocks_that_are_apart_are_told_with_figures(shop: Shop, monkeypatch: Any) -> None:
    for ahead, level, said in (
        (0.4, "ok", "0.4 s apart"),
        (5.0, "warning", "5.0 s ahead of"),
        (-90.0, "warning", "90.0 s behind"),
    ):
        monkeypatch.setattr(shop.store, "clock", lambda ahead=ahead: time.time() + ahead)
        assert [text for text in ask(shop)[1][level] if said in text]


def test_a_task_that_cannot_be_published_or_surprises_its_author_is_told_once(shop: Shop) -> None:
    shop.unique(body, name="shop.limited", lock_max_hold=60, time_limit=90)
    status, texts = ask(shop)
    assert status == 1
    assert ["shop.limited: lock_max_hold (60)" in text for text in texts["warning"]] == [True]
    shop.unique(body, name="shop.wrong").lock_ttl = "long"
    status, texts = ask(shop)
    assert (status, ["lock_ttl is 'long'" in text for text in texts["error"]]) == (2, [True])


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ({}, {"redislock_prefix": "redislock", "redislock_enabled": True}, None),
        ({"redislock_url": "redis://:one@a/0"}, {"redislock_url": "redis://:two@a/0"}, None),
        ({"redislock_url": "redis://:one@a/0"}, {"redislock_url": "redis://:two@b/0"}, "redis://***@b/0"),
        ({"redislock_url": lambda: None}, {"redislock_url": "<function at 0x7f>"}, None),
        ({}, {"redislock_prefix": "p"}, "redislock_prefix = 'p', and this program has 'redislock'"),
        ({}, {"redislock_enabled": False}, "redislock_enabled = False, and this program has True"),
    ],
)
def test_a_worker_with_other_settings_is_an_error(
    shop: Shop, monkeypatch: Any, ours: dict[str, Any], theirs: dict[str, Any], said: str | None
) -> None:
    """A default that is written down is no difference, and of a client nobody can tell."""
    shop.app.conf.update(ours)
    answers(shop, monkeypatch, {"w@here": theirs})
    status, texts = ask(shop)
    assert status == (2 if said else 0)
    assert [said in text for text in texts["error"] if said] == [True] * (said is not None)
    assert "two" not in str(texts)


def test_a_version_that_nobody_has_tested_is_a_warning(shop: Shop, monkeypatch: Any) -> None:
    """The versions it knows are those that pip lets be installed, but for Celery's next minor versions."""
    for name, number in ("celery", "5.8.0"), ("celery", "5.4.0"), ("redis", "9.0.0"):
        monkeypatch.setattr(doctor, "version", {"celery": "5.7.0rc1", "redis": "5.2.1", name: number}.get)
        status, texts = ask(shop)
        assert status == 1
        assert [text.startswith(f"{name} {number} is not tested") for text in texts["warning"]] == [True]
    required = {each.name: each.specifier for each in map(Requirement, requires("celery_redislock") or ())}
    assert required["redis"] == SpecifierSet(doctor.TESTED["redis"])
    assert required["celery"].contains("5.8") > SpecifierSet(doctor.TESTED["celery"]).contains("5.8")


def test_a_check_leaves_the_store_of_its_process_as_it_was(shop: Shop, monkeypatch: Any) -> None:
    """A site that shows the check as part of a page goes on to publish, for nobody but itself."""
    monkeypatch.setattr(promote, "install", lambda _app, store: setattr(store, "home", "a broker"))
    [*doctor.findings(LockServer(shop.store, "celery redislock", shop.app))]
    assert shop.store.home == ""
