"""The command line without a server: arguments, tables, and what importing it costs."""

import json
import re
import subprocess
import sys
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from celery_redislock.cli import main, redislock
from celery_redislock.cli.locks import _table
from celery_redislock.cli.output import UNCUT
from celery_redislock.cli.schedule import pause
from celery_redislock.operating.figures import BOUNDS
from celery_redislock.operating.subject import arguments
from celery_redislock.operating.telling import age, as_json, duration
from celery_redislock.publishing.handle import Holder
from celery_redislock.store.store import QUEUED, RUNNING
from tests.stores import hold_of
from tests.unit.shop import Shop


def _holder(**changes: Any) -> Holder:
    about = {"task": "proj.add", "state": "running", "host": "web1", "pid": 7, "since": 100.0}
    facts = {"name": "key", "token": "id/nonce", "facts": about, "expires_in": 12.0, **changes}
    return Holder.of(hold_of(**facts))


def sync(account_id: int) -> None:
    """Do nothing; nobody runs it here."""


class TestArguments:
    @pytest.mark.parametrize(
        ("words", "args", "kwargs"),
        [
            ([], [], {}),
            (["42", "1.5", "true", "null"], [42, 1.5, True, None], {}),
            (['[1, "a"]', '{"b": 2}'], [[1, "a"], {"b": 2}], {}),
            (["london", "a b", "", "01", "True"], ["london", "a b", "", "01", "True"], {}),
            (['"42"', '"a=b"'], ["42", "a=b"], {}),
            (["account_id=42", "name=london"], [], {"account_id": 42, "name": "london"}),
            (["1", "b=2", "3"], [1, 3], {"b": 2}),
            (["a=b=c", "größe=1", "text=one\ntwo"], [], {"a": "b=c", "größe": 1, "text": "one\ntwo"}),
            (["1=2", "a-b=3"], ["1=2", "a-b=3"], {}),
        ],
    )
    def test_each_is_json_or_else_a_string_or_a_keyword(self, words: Any, args: Any, kwargs: Any) -> None:
        assert arguments(words) == (args, kwargs)


class TestHolder:
    def test_json_has_what_the_holder_wrote_about_itself(self) -> None:
        document = as_json(_holder())
        since = document.pop("age")
        assert since == round(since, 3) > 100.0
        assert document == {
            "key": "key", "state": "running", "task": "proj.add", "owner": "id", "host": "web1", "pid": 7,
            "since": 100.0, "remaining": 12.0, "token": "id/nonce", "queued": None, "ttl": None,
            "about": None,
            "due": None,
            "merged": None,
            "place": None,
            "length": None,
            "is_late": False,
        }  # fmt: skip

    def test_another_programs_lock_without_an_end_is_shown_and_is_json_too(self) -> None:
        """It may have written anything about itself, or nothing."""
        about = {"task": [1], "state": "running", "host": 3, "pid": "x", "since": "yesterday"}
        for each in ({}, about):
            holder = _holder(facts=each, token="somebody", expires_in=float("inf"))  # noqa: S106  no password
            document = json.loads(json.dumps(as_json(holder), allow_nan=False))
            assert document["remaining"] is document["age"] is None
            assert "no end" in _table([holder], UNCUT)[1]

    def test_a_list_fits_its_terminal_and_cuts_owners_first(self) -> None:
        """A task id can be anything; JSON, ``explain`` and a pipe have all of it."""
        holder = _holder(token=f"{'a' * 300}/nonce")
        about = {"task": "proj.a_task_with_a_name", "host": "a-host-with-a-name", "about": "x" * 60}
        about["state"] = "running"
        many = _holder(name="a key of some length, and more", facts=about)
        lines = _table([_holder(), _holder(name="a much longer key")], UNCUT)
        assert [line.index("running") for line in lines[1:]] == [lines[0].index("STATE")] * 2
        assert "a" * 300 in _table([holder], UNCUT)[1]
        assert max(map(len, _table([holder], 80))) == 80
        assert f"  {'a' * 8}…  " in _table([holder, many], 100)[1]
        assert max(map(len, _table([holder, many], 100))) <= 100
        assert as_json(holder)["owner"] == "a" * 300

    def test_a_duration_is_written_for_people(self) -> None:
        """A clock behind the holder's makes no negative age."""
        written = [duration(seconds) for seconds in (None, 0.44, 185.0, 349300.0, 366 * 86400.0)]
        assert written == ["-", "0.4 s", "0:03:05", "4 days, 1:01:40", "366 days"]
        assert age(_holder(facts={"since": 2e11})) == 0.0


class TestTwoLocks:
    """A scope that keeps its queued call under a second name, beside the lock of its run."""

    @pytest.fixture
    def shop(self, shop: Shop) -> Shop:
        """One runs, one is queued, for ``shop.sync`` of account 7."""
        shop.unique(sync, lock_key="account:{account_id}", lock="until_and_while_executing")
        for key, owner, state in (("account:7", "first", RUNNING), ("queued:account:7", "second", QUEUED)):
            shop.store.acquire(key, f"{owner}/x", 30.0, facts=json.dumps({"state": state}))
        return shop

    def run(self, shop: Shop, *words: str) -> dict[str, Any]:
        result = CliRunner().invoke(redislock, [*words, "--json"], obj=SimpleNamespace(app=shop.app))
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    @pytest.mark.parametrize("words", [["shop.sync", "7"], ["account:7"]])
    def test_explain_names_the_run_and_the_call_queued_beside_it(self, shop: Shop, words: list[str]) -> None:
        document = self.run(shop, "explain", "--quick", *words)
        held = {lock["key"]: lock["owner"] for lock in document["locks"]}
        assert [*held.items()] == [("account:7", "first"), ("queued:account:7", "second")]

    @pytest.mark.parametrize(
        ("words", "taken"),
        [
            (["shop.sync", "7"], "first"),
            (["shop.sync", "7", "--queued"], "second"),
            (["account:7"], "first"),
            (["queued:account:7"], "second"),
        ],
    )
    def test_release_takes_one_of_the_two(self, shop: Shop, words: list[str], taken: str) -> None:
        document = self.run(shop, "release", *words, "--reason", "x")
        assert [lock["owner"] for lock in document["released"]] == [taken]
        assert {hold.owner for hold in shop.held().values()} == {"first", "second"} - {taken}

    def test_queued_takes_the_claim_of_a_scope_that_the_task_has_no_more(self, shop: Shop) -> None:
        """A deploy has changed its scope; the claim of another task of the same resource is not its own."""
        shop.app.tasks["shop.sync"].lock = "until_executed"
        taken = []
        for task in ("shop.sync", "shop.other"):
            shop.store.force_release("queued:account:7")
            facts = json.dumps({"state": QUEUED, "task": task})
            shop.store.acquire("queued:account:7", f"{task}/x", 30.0, facts=facts)
            taken += self.run(shop, "release", "shop.sync", "7", "--queued", "--reason", "x")["released"]
        assert [lock["owner"] for lock in taken] == ["shop.sync"]
        assert {hold.owner for hold in shop.held().values()} == {"first", "shop.other"}

    def test_queued_spares_a_run_that_nothing_is_queued_beside(self, shop: Shop) -> None:
        """Law 3: the run is named as kept."""
        shop.store.release("queued:account:7", "second/x")
        document = self.run(shop, "release", "shop.sync", "7", "--queued", "--reason", "x")
        assert document["released"] == []
        assert [lock["owner"] for lock in document["kept"]] == ["first"]


def test_a_time_has_a_unit_and_what_is_none_is_refused() -> None:
    units = {"90": 90, "90s": 90, "15m": 900, "1h": 3600, "2d": 172800, "366d": 31622400}
    for given, seconds in units.items():
        assert pause.make_context("pause", ["nightly", "--for", given]).params["seconds"] == seconds
    for given in ("0", "-1", "1w", "h", "1.5h", "367d", "٣", ""):
        with pytest.raises(click.BadParameter, match="write 90, 90s, 15m, 1h or 2d"):
            pause.make_context("pause", ["nightly", f"--for={given}"])


def test_a_url_that_is_missing_or_cannot_be_read_is_one_line_that_says_what_to_do() -> None:
    """Without its password."""
    for given in (None, ""):
        result = CliRunner(env={"REDIS_URL": given}).invoke(main, ["list"])
        assert result.exit_code == 2
        assert result.output == "Error: no lock server: give --url redis://host:port/db, or set REDIS_URL\n"
    for url in ("rediz://me:hush@h/0", "redis://me:hu/sh@h:1/0", "me:hush@h", "redis://h/0?PASSWORD=hush"):
        result = CliRunner().invoke(main, ["--url", url, "list"])
        assert (result.exit_code, result.output.count("\n")) == (2, 1)
        assert "use redis://host:port/db" in result.output
        assert not {word for word in ("hush", "hu/sh") if word in result.output}


def test_importing_the_command_line_imports_nothing_that_celery_has_not() -> None:
    """Every ``celery`` command pays for this import."""
    program = (
        "import sys, celery.bin.celery; "
        "gone = [sys.modules.pop(m) for m in list(sys.modules) if m.startswith('celery_redislock')]; "
        "before = set(sys.modules); import celery_redislock.cli; "
        "print(*sorted(set(sys.modules) - before))"
    )
    output = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True, text=True
    ).stdout

    assert output.split() == [
        "celery_redislock",
        "celery_redislock.cli",
        "celery_redislock.log",
        "celery_redislock.scheduling",
        "celery_redislock.scheduling.plug",
    ]


def test_the_buckets_that_are_shown_are_those_that_the_scripts_count() -> None:
    """A bucket that nobody reads would be missing from the sum."""
    text = (files("celery_redislock.store") / "lua" / "history.lua").read_text("utf-8")
    (bounds,) = re.findall(r"^ *local BOUNDS = \{(.*)\}$", text, re.MULTILINE)
    assert (*bounds.split(", "), "inf") == BOUNDS
