"""The command line without a server: arguments, words, tables, and what importing it costs."""

import json
import subprocess
import sys
from typing import Any

import click
import pytest
from click.testing import CliRunner

from celery_redislock.cli import main, redislock
from celery_redislock.cli.place import Place, Trouble
from celery_redislock.cli.subject import parse_arguments
from celery_redislock.cli.view import LockView, duration, printable, table
from celery_redislock.locks.memory import MemoryStore
from celery_redislock.locks.store import Hold


def _view(**changes: Any) -> LockView:
    about = {"task": "proj.add", "state": "running", "host": "web1", "pid": 7, "since": 100.0}
    facts = {"name": "key", "token": "id/nonce", "about": about, "expires_in": 12.0, **changes}
    return LockView.of(Hold(**facts), now=160.0)


class TestArguments:
    @pytest.mark.parametrize(
        ("words", "args", "kwargs"),
        [
            ([], [], {}),
            (["42", "1.5", "true", "null"], [42, 1.5, True, None], {}),
            (['[1, "a"]', '{"b": 2}'], [[1, "a"], {"b": 2}], {}),
            (["london", "a b", ""], ["london", "a b", ""], {}),
            (['"42"'], ["42"], {}),
            (["account_id=42", "name=london"], [], {"account_id": 42, "name": "london"}),
            (["1", "b=2", "3"], [1, 3], {"b": 2}),
            (['"a=b"'], ["a=b"], {}),
            (["a=b=c"], [], {"a": "b=c"}),
            (["1=2", "a-b=3"], ["1=2", "a-b=3"], {}),
            (["größe=1"], [], {"größe": 1}),
            (["text=one\ntwo"], [], {"text": "one\ntwo"}),
        ],
    )
    def test_each_is_json_or_else_a_string_and_a_name_makes_it_a_keyword(
        self, words: list[str], args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        assert parse_arguments(words) == (args, kwargs)

    @pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "01", "True", "None"])
    def test_what_only_python_calls_a_value_is_a_string(self, word: str) -> None:
        """A worker would never get such a value from JSON either."""
        assert parse_arguments([word]) == ([word], {})

    def test_a_keyword_given_twice_is_refused(self) -> None:
        with pytest.raises(Trouble, match="account_id is given twice"):
            parse_arguments(["account_id=1", "account_id=2"])


class TestView:
    def test_it_says_what_the_holder_wrote_about_itself(self) -> None:
        view = _view()

        assert view.as_json() == {
            "key": "key",
            "state": "running",
            "task": "proj.add",
            "owner": "id",
            "host": "web1",
            "pid": 7,
            "since": 100.0,
            "age": 60.0,
            "remaining": 12.0,
            "token": "id/nonce",
        }

    def test_a_foreign_lock_without_an_end_is_json_too(self) -> None:
        view = _view(about={}, token="somebody", expires_in=float("inf"))  # noqa: S106  no password

        document = json.loads(json.dumps(view.as_json(), allow_nan=False))
        assert (document["state"], document["owner"]) == ("foreign", "somebody")
        assert document["remaining"] is document["age"] is document["pid"] is None
        assert view.row()[4:] == ("-", "-", "no end")

    def test_a_foreign_lock_may_write_anything_about_itself(self) -> None:
        about = {"task": [1], "state": "running", "host": 3, "pid": "x", "since": "yesterday"}

        view = _view(about=about)

        assert (view.task, view.host, view.pid, view.since, view.age) == (None,) * 5

    def test_a_clock_behind_the_holders_makes_no_negative_age(self) -> None:
        assert _view(about={"since": 1000.0}).age == 0.0

    def test_the_columns_of_a_table_are_aligned(self) -> None:
        lines = table([_view(), _view(name="a much longer key")]).splitlines()

        assert [line.index("running") for line in lines[1:]] == [lines[0].index("STATE")] * 2

    def test_what_a_terminal_would_obey_is_escaped(self) -> None:
        assert printable("a\x1b[2J\nb\u202e") == "a\\x1b[2J\\nb\\u202e"
        assert "\x1b" not in table([_view(name="a\x1b[2J")])
        assert "\x1b" not in str(_view(token="\x1b[2J/n"))  # noqa: S106  no password

    @pytest.mark.parametrize(
        ("seconds", "words"),
        [
            (0.44, "0.4 s"),
            (12.4, "12 s"),
            (185.0, "3 min 5 s"),
            (7800.0, "2 h 10 min"),
            (349300.0, "4 d 1 h"),
        ],
    )
    def test_a_duration_is_said_as_people_say_it(self, seconds: float, words: str) -> None:
        assert duration(seconds) == words


class TestGroups:
    @pytest.mark.parametrize(
        ("group", "names"),
        [(redislock, ["list", "release", "show"]), (main, ["demo", "list", "release", "show"])],
    )
    def test_every_command_has_its_help(self, group: click.Group, names: list[str]) -> None:
        result = CliRunner().invoke(group, ["--help"])

        assert result.exit_code == 0
        commands = result.output.partition("Commands:")[2]
        assert [line.split()[0] for line in commands.splitlines() if line.strip()] == names
        for name in names:
            assert CliRunner().invoke(group, [name, "--help"]).exit_code == 0

    @pytest.mark.parametrize("group", [redislock, main])
    def test_a_mistyped_command_is_told_the_nearest(self, group: click.Group) -> None:
        result = CliRunner().invoke(group, ["relase"])

        assert result.exit_code == 2
        assert "Did you mean" in result.output
        assert "release" in result.output

    def test_a_release_without_a_reason_is_refused(self) -> None:
        result = CliRunner().invoke(main, ["--url", "redis://localhost", "release", "key", "--yes"])

        assert result.exit_code == 2
        assert "--reason" in result.output

    def test_without_a_url_it_says_how_to_give_one(self) -> None:
        result = CliRunner(env={"REDIS_URL": None}).invoke(main, ["list"])

        assert result.exit_code == 2
        assert result.output == "Error: no lock server: give --url redis://host:port/db, or set REDIS_URL\n"

    @pytest.mark.parametrize("url", ["rediz://me:hush@host/0", "redis://me:hu/sh@host:1/0", "me:hush@host"])
    def test_a_url_that_cannot_be_read_is_one_line_without_its_password(self, url: str) -> None:
        result = CliRunner().invoke(main, ["--url", url, "list"])

        assert result.exit_code == 2
        assert result.output.count("\n") == 1
        assert "hu" not in result.output.replace("host", "")

    @pytest.mark.parametrize(
        "url", ["redis://h/0?PASSWORD=hush", "foo://h/?password=hush", "redis://me:hush@h/x"]
    )
    def test_an_error_about_a_url_says_what_to_do_without_its_password(self, url: str) -> None:
        """What stands behind the URL in the sentence was swallowed with the password."""
        result = CliRunner().invoke(main, ["--url", url, "list"])

        assert "hush" not in result.output
        assert "use redis://host:port/db" in result.output


class TestNearest:
    @pytest.mark.parametrize(
        ("word", "near"),
        [
            ("shop.snyc_account", "shop.sync_account"),
            ("sync.shop_account", "shop.sync_account"),
            ("add", "shop.sums.add"),
            ("adds", "shop.sums.add"),
            ("7:account", "account:7"),
            ("ba", "ab"),
        ],
    )
    def test_what_was_meant_is_found(self, word: str, near: str) -> None:
        """Swapped letters and parts, and a task without its module, are as likely as a wrong letter."""
        store = MemoryStore()
        for key in ("account:7", "ab"):
            store.acquire(key, "id/nonce", 30.0, about={})
        place = Place(store, command="celery-redislock")

        found = place.nearest(word, ["shop.sync_account", "shop.sums.add", "shop.mail"])

        assert found[0] == near
        assert len(found) <= 3

    def test_what_is_like_nothing_is_like_nothing(self) -> None:
        assert Place(MemoryStore(), command="").nearest("nonsense", ["shop.add"]) == []


class TestImport:
    def test_importing_the_command_line_imports_nothing_that_celery_has_not(self) -> None:
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

        assert output.split() == ["celery_redislock", "celery_redislock.cli"]
