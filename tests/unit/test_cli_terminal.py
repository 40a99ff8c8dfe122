"""The command line on a terminal: each line fits it, and what is copied stays in one piece."""

import json
import time
from collections.abc import Callable
from itertools import chain
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from celery_redislock import cli
from celery_redislock.cli import explain, figures, main, output, redislock, schedule
from celery_redislock.operating.explain import Explanation
from celery_redislock.operating.figures import EVENTS, Figures
from celery_redislock.operating.server import LockServer
from celery_redislock.operating.telling import briefly
from celery_redislock.store.store import Entry
from tests.unit.shop import Shop

WIDTHS = (80, 100, 120, 200)

#: What is shown, in names as they are and in names that fit no terminal.
SHORT = {
    "key": "account:42",
    "task": "shop.sync",
    "owner": "job-1",
    "host": "web-7",
    "about": "order 7",
    "reason": "host died",
}
LONG = {
    "key": f"proj.billing.tasks.sync_account:v1:{'33ad68c0ffee' * 12}",
    "task": f"proj.{'billing.' * 20}tasks.sync_account",
    "owner": f"7f1c0c9e-2f4e-4b53-9a3c-{'2d4e0d4b7a11' * 8}",
    "host": f"web-7.{'example.' * 10}com",
    "about": "an order of many items " * 6,
    "reason": "the bank is down, and nobody knows for how long " * 4,
}

#: The names that each table shows.
_NAMED = {
    "list": {"key", "task", "owner", "host", "about"},
    "waiting": {"key", "task", "host", "about"},
    "history": {"key", "owner", "host", "reason"},
    "schedule": {"key", "task", "owner", "host", "reason"},
    "stats": {"task"},
}

SERVER = "redis://redislock:***@locks-1.eu-central-1.internal.example.com:6379/0"

COMMANDS = ("list", "waiting", "history", "schedule", "stats", "explain")

Show = Callable[..., list[str]]


def _entry(names: dict[str, str]) -> dict[str, Any]:
    """An entry of a schedule, whose last tick was skipped."""
    now = time.time()
    skip = {"at": now - 7, "task_id": names["owner"], "state": "queued", "held_for": 723.0, "in_a_row": 164}
    return {
        "name": names["key"], "task": names["task"], "schedule": "crontab: 0 3 * * * (m/h/dM/MY/d)",
        "in_schedule": True, "shared": True, "last_sent": now - 723, "beat": f"{names['host']}:7",
        "next_due": now + 7205, "sending_since": None, "last_skip": skip, "paused": True,
        "paused_until": now + 60, "paused_by": "ann on web-7", "paused_since": now,
        "pause_reason": names["reason"],
    }  # fmt: skip


def _figures(*events: str) -> Figures:
    """Of a task to which these have happened."""
    return Figures(events={event: 1200 * (event in events) for event in EVENTS}, in_line=3)


@pytest.fixture
def terminal(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let standard output be a terminal, and the server have a name."""
    monkeypatch.setattr(output, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(type(shop.store), "server", SERVER)


@pytest.fixture
def show(shop: Shop, monkeypatch: pytest.MonkeyPatch, terminal: None) -> Show:
    """Fill a system with these names; run a command on a terminal so wide, or where there is none.

    Time stands still.
    """
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    rate = {"starts": 5.0, "span_seconds": 60.0, "opens_in_seconds": 9.0}
    monkeypatch.setattr(LockServer, "full_rates", lambda _, said: {key: [rate] for key in said})
    counted: dict[str, Figures] = {}
    entries: list[dict[str, Any]] = []
    acts: list[dict[str, Any]] = []
    monkeypatch.setattr(figures, "census", lambda *_, **__: (time.time() - 2e6, counted))
    monkeypatch.setattr(schedule, "Schedule", lambda *_: SimpleNamespace(rows=lambda: entries))
    monkeypatch.setattr(shop.store, "acts", lambda: acts)

    def run(command: str, names: dict[str, str], width: int | None, *options: str) -> list[str]:
        stdout = SimpleNamespace(isatty=lambda: width is not None)
        monkeypatch.setattr(output, "sys", SimpleNamespace(stdout=stdout))
        about = {"task": names["task"], "host": names["host"], "pid": 7, "about": names["about"]}
        facts = json.dumps({**about, "state": "running", "since": time.time() - 400_000})
        shop.store.acquire(names["key"], f"{names['owner']}/1", 300_000.0, facts=facts)
        entry = Entry("push", "celery", 30.0, facts, "")
        shop.store.park(names["key"], "next/1", entry, nonce="next", how="refused")
        counted[names["task"]] = _figures(*EVENTS)
        entries[:] = [_entry(names)]
        who = {"by": "ann", "host": names["host"], "since": time.time() - 2e6, "act": "release"}
        outcome = f"taken from {names['owner']}"
        acts[:] = [{**who, "key": names["key"], "outcome": outcome, "reason": names["reason"]}]
        words = {"explain": ["--quick", names["key"]], "waiting": [names["key"]]}.get(command, [])
        environment = {"COLUMNS": str(width or 80)}
        result = CliRunner(env=environment).invoke(
            redislock, [command, *words, *options], obj=SimpleNamespace(app=shop.app)
        )
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    return run


@pytest.mark.parametrize("names", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", COMMANDS)
def test_each_line_fits_the_terminal(show: Show, command: str, width: int, names: dict[str, str]) -> None:
    """But a command to copy, and a name that is longer than a line, behind a label or by itself."""
    over = [line for line in show(command, names, width) if len(line) > width]
    assert not [line for line in over if " redislock " not in line and len(line[13:].split()) > 1]
    assert not over or command in {"explain", "waiting"}
    assert len(over) <= 1 or command == "explain"


@pytest.mark.parametrize("command", ["list", "waiting", "history"])
def test_that_nothing_is_there_fits_the_terminal_too(command: str, shop: Shop, terminal: None) -> None:
    """It names the server, which may be long."""
    result = CliRunner(env={"COLUMNS": "80"}).invoke(redislock, [command], obj=SimpleNamespace(app=shop.app))
    assert SERVER in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_sum_of_a_list_fits_the_terminal(show: Show, shop: Shop) -> None:
    """There are so many states."""
    for state in ("queued", "hold", "accepted"):
        shop.store.acquire(state, f"{state}/1", 300.0, facts=json.dumps({"state": state}))
    lines = show("list", SHORT, 80, "--limit", "1")
    assert " ".join(lines[2:]).endswith("; 1 are shown: --limit")
    assert len(lines) == 4
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("command", [each for each in COMMANDS if each != "explain"])
def test_what_is_no_terminal_and_wide_have_the_whole_of_each_name(show: Show, command: str) -> None:
    """Programs read the one, and people search the other."""
    wide, pipe = ("\n".join(show(command, LONG, *how)) for how in ((80, "--wide"), (None,)))
    assert "…" not in wide + pipe
    names = {name for name, text in LONG.items() if text.strip() in wide}
    assert names == {name for name, text in LONG.items() if text.strip() in pipe} >= _NAMED[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_fits_is_shown_as_in_a_pipe(show: Show, command: str) -> None:
    """Nothing is cut that has room: of ``schedule`` the dates, too."""
    assert [line.split() for line in show(command, SHORT, 400)] == [
        line.split() for line in show(command, SHORT, None)
    ]


class TestTable:
    def test_empty_columns_leave_before_names_are_cut(self) -> None:
        """Most figures of most tasks are zero."""
        rows: list[list[object]] = [["TASK", "STARTED", "LOST", "LATE"], ["shop.sync_account", 12, 0, 0]]
        assert output.table(rows, 26, [("TASK", 5)]) == [
            "TASK               STARTED",
            "shop.sync_account  12",
        ]
        assert len(output.table(rows, 38, [("TASK", 5)])[0].split()) == 4

    def test_a_task_keeps_its_end_and_others_their_beginning(self) -> None:
        """The modules before it are the same for many tasks."""
        rows = [["TASK", "KEY"], ["shop.tasks.sync_account", "account:42"]]
        assert output.table(rows, 23, [("KEY", 6), ("TASK", 5)])[1] == "…s.sync_account  accou…"

    def test_what_does_not_fit_goes_below_beside_the_first_column(self) -> None:
        """Where all figures count, none is left out."""
        head = ["TASK", *(f"FIGURE-{number}" for number in range(12))]
        lines = output.table([head, ["shop.sync_account", *range(1, 13)]], 60, [("TASK", 9)])
        tables = "\n".join(lines).split("\n\n")
        assert max(map(len, lines)) <= 60
        assert [table.split()[0] for table in tables] == ["TASK"] * 3
        assert [word for table in tables for word in table.splitlines()[0].split()[1:]] == head[1:]
        assert [int(word) for table in tables for word in table.splitlines()[1].split()[1:]] == [
            *range(1, 13)
        ]

    def test_stats_of_an_ordinary_task_are_one_line_of_80_columns(self) -> None:
        """Its name is whole, and each figure that counts is there."""
        rows = figures._table({"proj.sync_account": _figures("accepted", "started", "skipped")}, 80)
        assert [row.split() for row in rows] == [
            ["TASK", "ACCEPTED", "STARTED", "SKIPPED", "IN", "LINE"],
            ["proj.sync_account", "1200", "1200", "1200", "3"],
        ]


class TestSchedule:
    def test_times_are_short_where_dates_do_not_fit(self, show: Show) -> None:
        """Its name and its schedule are whole, and its state begins; a pipe has the dates."""
        _, row = show("schedule", SHORT, 80)
        for told in ("account:42  ", "0 3 * * *", "12 min ago", "in 2 h", "paused until"):
            assert told in row
        sent = time.strftime("%Y-%m-%d %H:%M", time.localtime(time.time() - 723))
        for width in (400, None):
            assert f"0 3 * * * (m/h/dM/MY/d)  {sent}" in "".join(show("schedule", SHORT, width))

    def test_a_short_time_is_told_in_its_greatest_unit(self) -> None:
        now = time.time()
        told = [briefly(now + 0.5 + ahead) for ahead in (-6, -724, -7300, -2e6, 7, 725, 7300, 2e6)]
        assert told == [
            "5 s ago",
            "12 min ago",
            "2 h ago",
            "23 d ago",
            "in 7 s",
            "in 12 min",
            "in 2 h",
            "in 23 d",
        ]


class TestExplain:
    @pytest.fixture
    def told(self, monkeypatch: pytest.MonkeyPatch, show: Show) -> Callable[[str, str], list[str]]:
        """Show a row at 80 columns."""

        def run(label: str, text: str) -> list[str]:
            found = Explanation({}, [(label, text)], is_known=True, holders=[])
            monkeypatch.setattr(explain, "explanation", lambda *_, **__: found)
            return show("explain", SHORT, 80)

        return run

    def test_a_text_goes_on_below_itself_and_none_of_it_is_cut(self, told: Any) -> None:
        text = "job-1 (proj.sync_account, running, web-7:7), " + LONG["reason"].strip()
        first, *rest = told("held by", text)
        assert {line[:13] for line in rest} == {" " * 13}
        assert first.startswith("held by      job-1 (")
        assert " ".join(line[13:] for line in (first, *rest)) == text

    def test_a_command_is_one_line_in_a_sentence_too(self, told: Any) -> None:
        """A terminal breaks it where it must, and what is copied has no break in it."""
        command = f"celery -A YOUR_APP redislock waiting --drain --home {LONG['key']}"
        assert told("free it", command) == [f"free it      {command}"]
        assert told("broker", f"nobody can publish the first of them: {command}") == [
            "broker       nobody can publish the first of them:",
            f"             {command}",
        ]

    def test_what_is_escaped_counts_as_it_is_shown(self, told: Any) -> None:
        """A foreign key may have in it what a terminal would obey."""
        lines = told("key", "bell\a " * 12)
        assert [word for line in lines for word in line[13:].split()] == [r"bell\x07"] * 12
        assert max(map(len, lines)) <= 80

    def test_a_key_is_in_one_piece(self, told: Any) -> None:
        """Also one of blanks."""
        assert told("key", LONG["key"]) == [f"key          {LONG['key']}"]
        assert told("key", " " * 100) == [f"key          {' ' * 100}"]


class TestHelp:
    @pytest.fixture(params=[redislock, main])
    def shown(self, request: pytest.FixtureRequest) -> Callable[[], dict[str, list[str]]]:
        """The commands' lines in the help at 80 columns, by group."""

        def run() -> dict[str, list[str]]:
            result = CliRunner(env={"COLUMNS": "80"}).invoke(request.param, ["--help"])
            assert result.exit_code == 0, result.output
            groups = [part.splitlines() for part in result.output.partition("Why:")[2].split("\n\n")]
            return {head.strip(":") or "Why": lines for head, *lines in groups}

        return run

    def test_each_command_is_in_one_group_and_its_text_is_whole_on_one_line(self, shown: Any) -> None:
        """A command that is in no group is not found by who reads the help."""
        groups = shown()
        names = {group: [line.split()[0] for line in lines] for group, lines in groups.items()}
        assert names == {
            "Why": ["explain", "doctor"],
            "Look": ["list", "waiting", "stats", "history", "web"],
            "Change": ["release", "hold", "limit"],
            "More": ["schedule", "exporter", "drill"],
        }
        assert sorted(chain.from_iterable(names.values())) == sorted(cli._MODULES)
        for line in chain.from_iterable(groups.values()):
            assert len(line) <= 80
            assert line.endswith(".")
            assert "..." not in line

    def test_a_command_that_is_not_there_is_left_out(
        self, shown: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(cli._MODULES, "history")
        assert "history" not in [line.split()[0] for line in shown()["Look"]]

    @pytest.mark.parametrize("group", [redislock, main])
    def test_every_command_has_its_help(self, group: click.Group) -> None:
        assert {CliRunner().invoke(group, [name, "--help"]).exit_code for name in cli._MODULES} == {0}
