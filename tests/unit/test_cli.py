"""The command line without a server: arguments, tables, and what importing it costs."""

import json
import subprocess
import sys
from typing import Any

import click
import pytest
from click.testing import CliRunner

from celery_redislock.cli import main, redislock
from celery_redislock.cli.commands import _table
from celery_redislock.cli.schedule import pause
from celery_redislock.cli.subject import Seen, _arguments, duration, printable
from celery_redislock.locks.store import Hold


def _seen(**changes: Any) -> Seen:
    about = {"task": "proj.add", "state": "running", "host": "web1", "pid": 7, "since": 100.0}
    facts = {"name": "key", "token": "id/nonce", "about": about, "expires_in": 12.0, **changes}
    return Seen.of(Hold(**facts))


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
    def test_each_is_json_or_else_a_string_and_a_name_makes_it_a_keyword(
        self, words: list[str], args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        assert _arguments(words) == (args, kwargs)


class TestSeen:
    def test_json_has_what_the_holder_wrote_about_itself(self) -> None:
        document = _seen().as_json()

        age = document.pop("age")
        assert age == round(age, 3) > 100.0
        assert document == {
            "key": "key",
            "state": "running",
            "task": "proj.add",
            "owner": "id",
            "host": "web1",
            "pid": 7,
            "since": 100.0,
            "remaining": 12.0,
            "token": "id/nonce",
        }

    def test_another_programs_lock_without_an_end_is_shown_and_is_json_too(self) -> None:
        """It may have written anything about itself, or nothing."""
        about = {"task": [1], "state": "running", "host": 3, "pid": "x", "since": "yesterday"}
        for each in ({}, about):
            seen = _seen(about=each, token="somebody", expires_in=float("inf"))  # noqa: S106  no password

            document = json.loads(json.dumps(seen.as_json(), allow_nan=False))

            assert document["remaining"] is document["age"] is None
            assert "no end" in _table([seen])

    def test_a_clock_behind_the_holders_makes_no_negative_age(self) -> None:
        assert _seen(about={"since": 2e11}).age == 0.0

    def test_the_columns_of_a_table_are_aligned(self) -> None:
        lines = _table([_seen(), _seen(name="a much longer key")]).splitlines()

        assert [line.index("running") for line in lines[1:]] == [lines[0].index("STATE")] * 2

    def test_a_long_owner_does_not_widen_the_table(self) -> None:
        """A task id can be anything; JSON and ``show`` have all of it."""
        seen = _seen(token=f"{'a' * 300}/nonce")

        assert f"  {'a' * 39}…  " in _table([seen])
        assert seen.as_json()["owner"] == "a" * 300

    def test_what_a_terminal_would_obey_is_escaped(self) -> None:
        assert printable("a\x1b[2J\nb\u202e") == "a\\x1b[2J\\nb\\u202e"
        assert "\x1b" not in _table([_seen(name="a\x1b[2J")])
        assert "\x1b" not in str(_seen(token="\x1b[2J/n"))  # noqa: S106  no password

    @pytest.mark.parametrize(
        ("seconds", "words"),
        [(None, "-"), (0.44, "0.4 s"), (185.0, "0:03:05"), (349300.0, "4 days, 1:01:40")],
    )
    def test_a_duration_is_written_for_people(self, seconds: float | None, words: str) -> None:
        assert duration(seconds) == words


class TestTimes:
    @pytest.mark.parametrize(
        ("given", "seconds"),
        [("90", 90), ("90s", 90), ("15m", 900), ("1h", 3600), ("2d", 172800), ("366d", 31622400)],
    )
    def test_a_time_has_a_unit(self, given: str, seconds: int) -> None:
        assert pause.make_context("pause", ["nightly", "--for", given]).params["seconds"] == seconds

    @pytest.mark.parametrize("given", ["0", "-1", "1w", "h", "1.5h", "367d", "٣", ""])
    def test_a_time_that_is_none_is_refused(self, given: str) -> None:
        with pytest.raises(click.BadParameter, match="write 90, 90s, 15m, 1h or 2d"):
            pause.make_context("pause", ["nightly", f"--for={given}"])


class TestGroups:
    @pytest.mark.parametrize("group", [redislock, main])
    def test_every_command_has_its_help(self, group: click.Group) -> None:
        result = CliRunner().invoke(group, ["--help"])

        assert result.exit_code == 0
        commands = result.output.partition("Commands:")[2]
        names = ["beat", "list", "pause", "release", "resume", "run-now", "show"]
        assert [line.split()[0] for line in commands.splitlines() if line.strip()] == names
        for name in names:
            assert CliRunner().invoke(group, [name, "--help"]).exit_code == 0

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["relase"], "No such command 'relase'"),
            (["release", "key", "--yes"], "Missing option '--reason'"),
        ],
    )
    def test_a_mistake_in_usage_is_exit_status_2(self, words: list[str], said: str) -> None:
        result = CliRunner().invoke(main, ["--url", "redis://localhost", *words])

        assert result.exit_code == 2
        assert said in result.output

    @pytest.mark.parametrize("given", [None, ""])
    def test_without_a_url_it_says_how_to_give_one(self, given: str | None) -> None:
        result = CliRunner(env={"REDIS_URL": given}).invoke(main, ["list"])

        assert result.exit_code == 2
        assert result.output == "Error: no lock server: give --url redis://host:port/db, or set REDIS_URL\n"

    @pytest.mark.parametrize(
        "url",
        [
            "rediz://me:hush@host/0",
            "redis://me:hu/sh@host:1/0",
            "me:hush@host",
            "redis://h/0?PASSWORD=hush",
        ],
    )
    def test_a_url_that_cannot_be_read_is_one_line_that_says_what_to_do_without_its_password(
        self, url: str
    ) -> None:
        result = CliRunner().invoke(main, ["--url", url, "list"])

        assert result.exit_code == 2
        assert result.output.count("\n") == 1
        assert "hush" not in result.output
        assert "hu/sh" not in result.output
        assert "use redis://host:port/db" in result.output


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

    assert output.split() == ["celery_redislock", "celery_redislock.cli"]
