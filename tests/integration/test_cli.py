"""``celery -A proj redislock`` and ``celery-redislock``, as processes, on real locks."""

import fcntl
import getpass
import json
import os
import pty
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import redis
from typing_extensions import Self

from celery_redislock.locks import connect
from celery_redislock.locks.lease import new_token
from celery_redislock.store.redisstore import RedisStore
from celery_redislock.store.store import Entry
from tests.integration.commands import ROOT, run_command
from tests.servers import EmbeddedServer

APP = "tests.integration.cli_app"
#: What the entry point ``celery-redislock`` does.
_STANDALONE = [sys.executable, "-c", "from celery_redislock.cli import main; main()"]


@dataclass(frozen=True)
class Shell:
    """Runs commands against one server, under one prefix."""

    url: str
    celery_url: str
    prefix: str
    store: RedisStore

    @classmethod
    @contextmanager
    def on(cls, redis_url: str, celery_url: str, prefix: str) -> Iterator[Self]:
        """Open one, and leave nothing under its prefix."""
        store = connect(redis_url, prefix=f"{prefix}-redislock")
        with closing(store), closing(redis.Redis.from_url(redis_url)) as client:
            yield cls(redis_url, celery_url, f"{prefix}-", store)
            for key in client.scan_iter(f"{prefix}*", count=1000):
                client.delete(key)

    def celery(self, *words: str, app: str | None = APP) -> subprocess.CompletedProcess[str]:
        chosen = ["-A", app] if app else []
        return run_command("celery", [*chosen, "redislock", *words], self.environment)

    def standalone(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_command("celery-redislock", [*self.where, *words], self.environment)

    @property
    def server(self) -> str:
        """How the commands of an app name the server."""
        named: str = json.loads(self.celery("list", "--json").stdout)["server"]
        return named

    @property
    def where(self) -> list[str]:
        """What tells ``celery-redislock`` of the server."""
        return ["--url", self.url, "--prefix", f"{self.prefix}redislock"]

    def hold(
        self,
        key: str,
        *,
        task: str = "shop.nightly",
        state: str = "queued",
        ttl: float = 60.0,
        owner: str = "",
        host: str = "",
        **more: object,
    ) -> str:
        """Take a lock as a publisher or a run does; return the owner."""
        owner = owner or f"owner-of-{key}"
        about = {"task": task, "state": state, "pid": os.getpid()}
        about |= {"host": host or socket.gethostname(), "since": time.time(), **more}
        self.store.acquire(key, new_token(owner), ttl, facts=json.dumps(about))
        return owner

    def park(self, key: str, owner: str, *, task: str = "shop.nightly") -> None:
        """Let a message wait in the line of a lock, whose queue is a list of its task's name."""
        said = {"task": task, "state": "queued", "since": time.time(), "line": 1}
        facts = json.dumps(said, separators=(",", ":"))
        entry = Entry("push", f"{self.prefix}{task}", 60.0, facts, owner)
        self.store.park(key, new_token(owner), entry, nonce=owner)

    def in_line(self, key: str) -> list[str]:
        """Who waits for a lock, in order."""
        return [waiter.hold.owner for waiter in self.store.waiting(key)[1]]

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k != "REDIS_URL" and not k.startswith("CELERY_")}
        return {**kept, "CLI_APP_URL": self.celery_url, "CLI_APP_PREFIX": self.prefix}


@pytest.fixture
def shell(redis_url: str, celery_url: str, prefix: str) -> Iterator[Shell]:
    with Shell.on(redis_url, celery_url, prefix) as shell:
        yield shell


def _key_of(shell: Shell, *words: str) -> str:
    return str(json.loads(shell.celery("explain", "--quick", *words, "--json").stdout)["keys"][0])


def _answered(shell: Shell, answer: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``celery-redislock`` on a terminal, where somebody answers what it asks."""
    ours, its = pty.openpty()
    with os.fdopen(ours, "wb", 0) as person, os.fdopen(its, "rb", 0) as terminal:
        person.write(f"{answer}\n".encode())
        return subprocess.run(
            [*_STANDALONE, *shell.where, *words],
            cwd=ROOT, stdin=terminal, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip


def _on_terminal(shell: Shell, columns: int, *words: str) -> str:
    """Run ``celery-redislock`` whose output is a terminal of so many columns; return what it shows there."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with os.fdopen(ours, "rb", 0) as person, os.fdopen(its, "wb", 0) as terminal:
        subprocess.run(
            [*_STANDALONE, *shell.where, *words],
            cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=terminal, timeout=60, check=True,
        )  # fmt: skip
        # A terminal's other side is emptied before this one is closed, or what it has is lost.
        shown = person.read(65536)
    return shown.decode().replace("\r\n", "\n")


class TestList:
    def test_that_nothing_is_held_is_said_and_is_no_failure(self, shell: Shell) -> None:
        """A script under ``set -e`` goes on where nothing runs, or where the app's modules are not there."""
        broken = "tests.integration.cli_app_broken"
        done, as_json = shell.celery("list"), shell.celery("list", "--json")
        of_task = shell.celery("list", "--task", "shop.nightly", app=broken)
        assert {(each.returncode, each.stderr) for each in (done, as_json, of_task)} == {(0, "")}
        assert done.stdout.startswith("no lock is held on ")
        assert of_task.stdout.startswith("no lock for shop.nightly is held on ")
        document = json.loads(as_json.stdout)
        assert list(document) == ["version", "server", "locks", "more"]
        assert (document["locks"], document["more"]) == ([], False)

    def test_locks_are_listed_oldest_first_with_their_number_by_state(self, shell: Shell) -> None:
        shell.hold("late", ttl=300.0)
        shell.hold("early", state="running", ttl=100.0)
        done = shell.celery("list")
        assert (done.returncode, done.stderr) == (0, "")
        head, first, second, totals = done.stdout.splitlines()
        assert head.split() == ["KEY", "STATE", "TASK", "OWNER", "WHERE", "AGE", "REMAINING"]
        assert first.split()[:4] == ["late", "queued", "shop.nightly", "owner-of-late"]
        assert second.split()[:4] == ["early", "running", "shop.nightly", "owner-of-early"]
        assert totals.startswith("2 locks: 1 queued, 1 running; oldest ")

    @pytest.mark.parametrize(
        ("words", "keys"),
        [
            ([], ["b", "a", "c"]),
            (["--sort", "key"], ["a", "b", "c"]),
            (["--sort", "task"], ["c", "a", "b"]),
            (["--sort", "remaining"], ["a", "c", "b"]),
            (["--state", "running"], ["b"]),
            (["--state", "running", "--state", "queued", "--task", "shop.n*"], ["b", "a"]),
            (["--older-than", "1h"], ["b"]),
            (["[ac]"], ["a", "c"]),
            (["[ab]", "--task", "shop.nightly", "--limit", "1"], ["b"]),
        ],
    )
    def test_a_list_is_narrowed_and_sorted(self, shell: Shell, words: list[str], keys: list[str]) -> None:
        """By key, age, state, task and number; in any order."""
        shell.hold("b", state="running", ttl=300.0, since=time.time() - 7200)
        shell.hold("a", ttl=100.0)
        shell.hold("c", task="shop.a", ttl=200.0)
        document = json.loads(shell.celery("list", "--json", *words).stdout)
        assert ([lock["key"] for lock in document["locks"]], document["more"]) == (keys, "--limit" in words)

    def test_all_that_fits_is_counted_also_where_few_are_shown(self, shell: Shell) -> None:
        """The oldest are shown, which need not be the first to expire."""
        for number in range(5):
            shell.hold(f"k{number}", ttl=100.0 + number, since=time.time() - 600 * number)
        shell.hold("other", task="shop.a")
        done = shell.standalone("list", "--limit", "2", "--task", "shop.nightly")
        _, first, second, totals = done.stdout.splitlines()
        assert [first.split()[0], second.split()[0]] == ["k4", "k3"]
        assert totals.startswith("5 locks: 5 queued; oldest 0:40:0")
        assert totals.endswith("; 2 are shown: --limit")

    def test_a_list_fits_its_terminal_and_a_pipe_is_not_cut(self, shell: Shell) -> None:
        """At 80 columns, with ids and names as they are, and a lock that is days old; unless ``--wide``."""
        key = "proj.billing.tasks.sync_account:v1:33ad68c0ffee33ad68c0ffee33ad68c0"
        owner = "7f1c0c9e-2f4e-4b53-9a3c-2d4e0d4b7a11"
        about = {"task": "proj.billing.tasks.sync_account", "host": "web-7.example.com", "about": "order 7"}
        shell.hold(key, owner=owner, ttl=300_000.0, since=time.time() - 400_000, **about)

        cut, wide = _on_terminal(shell, 80, "list"), _on_terminal(shell, 80, "list", "--wide")
        pipe = shell.standalone("list").stdout

        assert (key in pipe, owner in pipe, "…" in cut, "…" in wide) == (True, True, True, False)
        assert max(map(len, cut.splitlines())) <= 80
        assert cut.splitlines()[0].split() == pipe.splitlines()[0].split()
        # What lock_describe says has a column where it says anything.
        head, first, _ = wide.splitlines()
        assert (head.split()[-1], first.endswith("  order 7")) == ("ABOUT", True)


class TestExplainQuick:
    def test_a_tasks_lock_is_found_by_its_arguments_however_they_are_given(self, shell: Shell) -> None:
        """They are bound as delay() binds them, defaults filled in."""
        key = _key_of(shell, "shop.sync_account", "42")
        shell.hold(key, task="shop.sync_account")
        for words in (["42", "false"], ["account_id=42"], ["deep=false", "account_id=42"]):
            done = shell.celery("explain", "--quick", "shop.sync_account", *words)
            assert done.returncode == 0, done.stderr
            assert f"held by      owner-of-{key} (" in done.stdout
        assert shell.celery("explain", "--quick", "shop.sync_account", "43").returncode == 1
        assert shell.celery("explain", "--quick", "shop.sync_account", '"42"').returncode == 1

    def test_a_task_id_stands_for_all_that_its_task_holds(self, shell: Shell) -> None:
        """It is what one has from Flower, Sentry or a log; a key of that name comes first."""
        for key, owner in (("night", "job-1"), ("day", "job-1"), ("noon", "job-2"), ("job-2", "job-3")):
            shell.hold(key, owner=owner)

        shown = shell.standalone("explain", "--quick", "job-1")
        second = shell.celery("explain", "--quick", "job-1", "--json")
        (by_key,) = json.loads(shell.standalone("explain", "--quick", "job-2", "--json").stdout)["locks"]
        nobody = shell.standalone("explain", "--quick", "job-4")

        assert shown.returncode == 0, shown.stderr
        assert {"key          night", "key          day"} <= set(shown.stdout.splitlines())
        document = json.loads(second.stdout)
        assert {lock["key"] for lock in document["locks"]} == {*document["keys"]} == {"night", "day"}
        assert document["release_command"].endswith(document["locks"][0]["key"])
        assert (by_key["key"], by_key["owner"]) == ("job-2", "job-3")
        assert nobody.returncode == 1
        assert nobody.stdout.endswith(
            "nobody holds the key job-4, and no task of that id holds a lock; list shows what is held\n"
        )
        released = shell.standalone("release", "job-1", "--reason", "host died", "--yes")
        assert released.returncode == 0, released.stderr
        assert "released night: taken from job-1" in released.stdout
        assert sorted(shell.store.names()) == ["job-2", "noon"]

    def test_a_task_of_an_included_module_is_known(self, shell: Shell) -> None:
        done = shell.celery("explain", "--quick", "shop.included", "1")
        assert done.returncode == 1
        assert "nobody holds the key shop.included:v1:" in done.stdout
        assert "task of that id" not in done.stdout
        assert "did you mean 'shop.included'?" in shell.celery("explain", "--quick", "shop.incluted").stdout

    def test_the_release_command_it_shows_releases_the_lock(self, shell: Shell) -> None:
        shell.hold("a 'quoted' night")
        done = shell.standalone("explain", "--quick", "a 'quoted' night", "--json")
        program, *words = shlex.split(json.loads(done.stdout)["release_command"])
        assert program == "celery-redislock"
        command = [*_STANDALONE, *words[:-2], "--yes", *words[-2:]]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        assert shell.store.inspect("a 'quoted' night") is None

    def test_a_lock_that_is_called_as_its_task_is_can_be_named(self, shell: Shell) -> None:
        """By its key as ``list`` prints it; the command that ``explain`` offers releases it."""
        assert shell.celery("explain", "--quick", "shop.report").returncode == 1
        shell.hold("shop.report", task="shop.report", state="running")
        for words in (["shop.report"], ["shop.report", "monday"]):
            shown = shell.celery("explain", "--quick", *words, "--json")
            assert json.loads(shown.stdout)["locks"][0]["owner"] == "owner-of-shop.report"
        command = shlex.split(json.loads(shown.stdout)["release_command"])
        released = shell.celery(*command[command.index("release") :][:-2], "--yes", "--", "shop.report")
        assert (released.returncode, shell.store.inspect("shop.report")) == (0, None)

    @pytest.mark.parametrize(
        ("words", "status", "said"),
        [
            (["shop.sync_acount", "1"], 2, "is not a task known here, and a key takes no arguments"),
            (["sync_account", "1"], 2, "(given: 1); did you mean 'shop.sync_account'?"),
            (["zzz", "1"], 2, "(given: 1); give its full name, with its module"),
            (["shop.plain"], 2, "takes no lock"),
            (["shop.sync_account", "deep=true"], 2, "missing a required argument: 'account_id'"),
            (["shop.sync_account", "deep=true"], 2, "or the key itself (list --task shop.sync_account shows"),
            (["shop.sync_account", "1", "account_id=1"], 2, "multiple values for argument 'account_id'"),
        ],
    )
    def test_a_mistake_is_named(self, shell: Shell, words: list[str], status: int, said: str) -> None:
        done = shell.celery("explain", "--quick", *words)
        assert done.returncode == status
        assert said in done.stderr


class TestRelease:
    def test_it_takes_the_lock_away_and_says_from_whom(self, shell: Shell) -> None:
        owner = shell.hold("night", state="running")
        done = shell.celery("release", "shop.nightly", "--reason", "host died", "--yes")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"released night: taken from {owner} (shop.nightly, running, ")
        assert f"released 'night' by force from {owner!r} (running): 'host died'" in done.stderr
        assert shell.store.inspect("night") is None

    @pytest.mark.parametrize(("answer", "status", "is_held"), [("y", 0, False), ("n", 1, True)])
    def test_on_a_terminal_it_asks(self, shell: Shell, answer: str, status: int, is_held: bool) -> None:
        owner = shell.hold("night", state="running")
        done = _answered(shell, answer, "release", "night", "--reason", "x")
        assert done.returncode == status
        assert f"night is held by {owner}" in done.stdout
        assert "continues without its lock" in done.stdout
        assert (shell.store.inspect("night") is not None) is is_held

    def test_queued_with_a_task_releases_all_its_claims_and_nothing_else(self, shell: Shell) -> None:
        """For use after a purge: the messages are gone, their claims are not."""
        task = "shop.sync_account"
        shell.hold("one", task=task)
        shell.hold("two", task=task)
        shell.hold("queued:three", task=task)  # beside a run's lock
        shell.hold("at work", task=task, state="running")
        shell.hold("another's")

        done = shell.celery("release", task, "--queued", "--reason", "purged", "--json")

        document = json.loads(done.stdout)
        assert done.returncode == 0
        assert {lock["key"] for lock in document["released"]} == {"one", "two", "queued:three"}
        assert {lock["key"] for lock in document["kept"]} == {"at work"}
        assert set(shell.store.names()) == {"at work", "another's"}

    def test_a_period_that_is_not_released_as_queued_says_how_it_is(self, shell: Shell) -> None:
        """What until_expired has accepted is a period, also while its message is queued."""
        shell.hold("mail:7", task="shop.mail", state="period")
        done = shell.celery("release", "mail:7", "--queued", "--reason", "test", "--yes")
        assert done.returncode == 1
        assert "to end it, release it without --queued" in done.stdout
        assert shell.store.names() == ["mail:7"]

    def test_nothing_held_is_exit_status_1(self, shell: Shell) -> None:
        nothing = f"no lock for shop.nightly is held on {shell.server}"
        for words, said in ([], "nobody holds the key night"), (["--queued"], nothing):
            done = shell.celery("release", "shop.nightly", *words, "--reason", "test", "--yes")
            assert (done.returncode, done.stdout) == (1, f"{said}\nnothing was released\n")

    @pytest.mark.parametrize(
        ("words", "taken"),
        [
            (["plan:*"], ["plan:1", "plan:2"]),
            (["plan:[2-9]"], ["plan:2"]),
            (["--task", "shop.old_name"], ["other", "plan:2"]),
            (["--task", "shop.*", "--host", "web-[12]"], ["plan:2"]),
            (["--host", "web-1", "plan:*"], ["plan:2"]),
            (["--host", "web-1", "--queued"], ["plan:1"]),
            (["shop.old_name", "--queued"], ["other"]),
            (["[x]"], ["[x]"]),
        ],
        ids=" ".join,
    )
    def test_many_are_released_by_patterns(self, shell: Shell, words: list[str], taken: list[str]) -> None:
        """Also under a task's name that no code has any more. A key of that very name is that key alone.

        A host's are the locks of its runs: a claim that was published there may have its message anywhere.
        """
        shell.hold("plan:1", host="web-1")
        shell.hold("plan:2", task="shop.old_name", host="web-1", state="running")
        shell.hold("other", task="shop.old_name")
        shell.hold("[x]")
        shell.hold("x")

        would = json.loads(
            shell.celery("release", *words, "--dry-run", "--reason", "x", "--yes", "--json").stdout
        )
        held = set(shell.store.names())
        done = shell.celery("release", *words, "--reason", "renamed", "--yes", "--json")

        assert {lock["key"] for lock in would["would_release"]} == {*taken}
        assert would["released"] == []
        assert held == {"plan:1", "plan:2", "other", "[x]", "x"}
        assert {lock["key"] for lock in json.loads(done.stdout)["released"]} == {*taken}
        assert done.returncode == (0 if taken else 1)
        assert set(shell.store.names()) == held - {*taken}

    def test_of_many_it_tells_how_many_of_which_task_and_asks(self, shell: Shell) -> None:
        for number in range(12):
            shell.hold(f"job:{number}", task="shop.old", state="running" if number < 4 else "queued")

        dry = shell.celery("release", "--task", "shop.old", "--dry-run")
        no = _answered(shell, "n", "release", "--task", "shop.old", "--reason", "x")

        told = ["8 of shop.old, queued", "4 of shop.old, running"]
        told += [
            "A running task continues without its lock, and another one may start beside it.",
            "A queued call still runs, unless its message is lost; until then another one may be queued.",
        ]
        assert (dry.returncode, dry.stdout.splitlines()) == (0, [*told, "nothing was released"])
        assert "Release these 12?" in no.stdout
        assert "8 of shop.old, queued" in no.stdout
        assert (no.returncode, len(shell.store.names())) == (1, 12)

        done = shell.celery("release", "--task", "shop.old", "--queued", "--reason", "purged", "--yes")

        *each, total = done.stdout.splitlines()
        assert sum(line.startswith("released job:") for line in each) == 8
        assert sum(line.startswith("kept job:") for line in each) == 4
        assert (done.returncode, total) == (0, "released 8, kept 4")

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ([], "Missing argument"),
            (["night"], "--reason"),
            (["shop.sync_account", "42", "--task", "shop.*", "--reason", "x"], "--task and --host go with"),
        ],
        ids=["nothing named", "no reason", "arguments beside a pattern"],
    )
    def test_what_it_cannot_do_is_told_first(self, shell: Shell, words: list[str], said: str) -> None:
        done = shell.celery("release", *words, *(["--reason", "x"] if not words else []))
        assert done.returncode == 2
        assert said in done.stderr


class TestWaiting:
    """Lines on a server; what each command does is in ``tests/unit/test_cli_line.py``."""

    @pytest.fixture(autouse=True)
    def line(self, shell: Shell) -> None:
        """Three wait for one lock, one for another."""
        for key in ("night", "day"):
            shell.hold(key, state="running")
        for owner in ("a", "b", "c"):
            shell.park("night", owner, task="shop.sync_account" if owner == "b" else "shop.nightly")
        shell.park("day", "d")

    def test_lines_are_listed_with_and_without_an_app(self, shell: Shell) -> None:
        heads = json.loads(shell.standalone("waiting", "--json").stdout)["waiting"]
        line = json.loads(shell.celery("waiting", "shop.nightly", "--json").stdout)
        shown = shell.celery("explain", "--quick", "c")
        told = {(each["key"], each["owner"], each["in_line"]) for each in heads}
        assert told == {("night", "a", 3), ("day", "d", 1)}
        assert line["key"] == "night"
        assert [(each["owner"], each["place"]) for each in line["waiting"]] == [("a", 1), ("b", 2), ("c", 3)]
        assert (shown.returncode, "number 3 of 3" in shown.stdout) == (0, True)

    def test_one_is_dropped_and_a_tasks_messages_go_to_their_queue(
        self, shell: Shell, redis_url: str
    ) -> None:
        dropped = shell.celery("waiting", "night", "--drop", "b", "--reason", "sent twice", "--json")
        drained = shell.celery("waiting", "--drain", "--task", "shop.nightly", "--yes")
        assert json.loads(dropped.stdout)["dropped"]["owner"] == "b"
        assert "dropped b (shop.sync_account) from the line of night by hand: 'sent twice'" in dropped.stderr
        assert drained.stdout == "3 waiting messages are back in their queues\n"
        assert (shell.in_line("night"), shell.in_line("day")) == ([], [])
        with closing(redis.Redis.from_url(redis_url)) as client:
            queue: list[bytes] = client.lrange(f"{shell.prefix}shop.nightly", 0, -1)  # type: ignore[assignment]
        assert sorted(queue) == [b"a", b"c", b"d"]


class TestHistory:
    """Who did it, a day later, from another shell."""

    def acts(self, shell: Shell, *words: str) -> list[tuple[str, str]]:
        done = shell.celery("history", *words, "--json")
        assert done.returncode == 0, done.stderr
        return [(act["act"], act["key"]) for act in json.loads(done.stdout)["acts"]]

    def test_each_act_is_kept_with_who_did_it_when_and_what_came_of_it(self, shell: Shell) -> None:
        shell.hold("night", state="running")
        for owner in ("a", "b", "c"):
            shell.park("night", owner)
        commands = [
            ["waiting", "night", "--first", "c", "--yes"],
            ["waiting", "night", "--drop", "b", "--reason", "sent twice", "--yes"],
            ["waiting", "night", "--drain", "--yes"],
            ["limit", "shop.three", "5", "--for", "1h"],
            ["limit", "shop.three", "--reset"],
            ["release", "night", "--reason", "host died", "--yes"],
        ]
        before = time.time()
        for words in commands:
            done = shell.celery(*words)
            assert done.returncode == 0, done.stderr

        document = json.loads(shell.celery("history", "--json").stdout)
        table = shell.celery("history").stdout.splitlines()

        assert (document["version"], list(document)) == (1, ["version", "server", "acts"])
        acts = document["acts"]
        assert [(act["act"], act["key"], act["outcome"], act.get("reason")) for act in acts] == [
            ("first", "night", "moved c (shop.nightly) to the front of the line of night", "no reason given"),
            ("drop", "night", "dropped b (shop.nightly) from the line of night", "sent twice"),
            ("drain", "night", "2 of 2 are back in their queues", "no reason given"),
            ("limit", "three", "5 for 3600 s", None),
            ("limit", "three", "that of its processes again", None),
            ("release", "night", "taken from owner-of-night (running)", "host died"),
        ]
        assert {(act["by"], act["host"]) for act in acts} == {(getpass.getuser(), socket.gethostname())}
        assert all(before <= act["since"] <= time.time() for act in acts)
        assert table[0].split() == ["WHEN", "WHO", "ACT", "KEY", "OUTCOME", "REASON"]
        assert f"  {getpass.getuser()}@{socket.gethostname()}  release  night  taken from " in table[-1]
        assert len(table) == 1 + len(commands)

    @pytest.mark.parametrize(
        ("words", "keys"),
        [
            ((), ["a:1", "queued:a:2", "a:[2]", "night"]),
            (("a:1",), ["a:1"]),
            (("a:2",), ["queued:a:2"]),  # the claim of its queued call
            (("a:[2]",), ["a:[2]"]),  # first a key, then a pattern
            (("a:*",), ["a:1", "queued:a:2", "a:[2]"]),
            (("shop.nightly", "7"), ["night"]),
            (("a",), []),
        ],
        ids=str,
    )
    def test_a_key_or_a_pattern_narrows_it(self, shell: Shell, words: tuple[str, ...], keys: Any) -> None:
        for key in ("a:1", "queued:a:2", "a:[2]", "night"):
            shell.store.acts(json.dumps({"act": "release", "key": key}))
        assert sorted(key for _, key in self.acts(shell, *words)) == sorted(keys)

    def test_that_there_are_none_is_said_and_is_no_failure(self, shell: Shell) -> None:
        done = shell.standalone("history", "night")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"no operator did anything to night on {shell.server}\n"

    def test_what_the_servers_user_may_not_do_is_told_and_the_rest_is_done(self) -> None:
        """Who may only read reads it; an act is done without its note, with a warning; no password shows."""
        rights = {
            "reader": ["~*", "+@read"],
            "auditor": ["%R~redislock:acts", "+zrangebyscore"],
            "locks": [
                *(f"~redislock:{part}" for part in ("{*", "index", "lines", "counts", "refusals")),
                "+@all",
            ],
        }
        done = {}
        with (
            EmbeddedServer(port=0) as server,
            closing(redis.Redis.from_url(server.redis_url)) as admin,
            closing(connect(server.redis_url)) as store,
        ):

            def run(user: str, *words: str) -> subprocess.CompletedProcess[str]:
                where = ["--url", f"redis://{user}:password@127.0.0.1:{server.port}/0"]
                return run_command("celery-redislock", [*where, *words], dict(os.environ))

            ask: Any = admin.execute_command
            for user, its in rights.items():
                ask("ACL", "SETUSER", user, "on", ">password", *its)
                store.acts(json.dumps({"act": "release", "key": user}))
            for user in rights:
                done[user] = run(user, "history", "reader", "--json")
            store.acquire("night", "owner/1", 60.0, facts="{}")
            released = run("locks", "release", "night", "--reason", "x", "--yes")
            held = store.inspect("night")

        for user in ("reader", "auditor"):
            assert (done[user].returncode, done[user].stderr) == (0, "")
            assert [act["key"] for act in json.loads(done[user].stdout)["acts"]] == ["reader"]
        assert (done["locks"].returncode, done["locks"].stdout) == (2, "")
        # Of a key that is missed the server does not say which.
        told = "No permissions to access a key: allow its user ~redislock:acts; "
        assert told in done["locks"].stderr
        assert (released.returncode, held) == (0, None)
        assert released.stdout.startswith("released night: ")
        assert "the history of operators' acts lacks the release of 'night': " in released.stderr
        assert "password" not in done["locks"].stderr + released.stderr


class TestTrouble:
    def test_without_an_app_it_says_what_to_do(self, shell: Shell) -> None:
        """Celery then hands over a default app with an amqp:// broker, and says nothing."""
        done = shell.celery("list", app=None)
        assert done.returncode == 2
        assert "celery -A proj redislock" in done.stderr
        assert "celery-redislock --url" in done.stderr
        assert done.stderr.count("\n") == 1


class TestEntryPoints:
    @pytest.mark.skipif(
        not entry_points(group="celery.commands", name="redislock"), reason="the project is not installed"
    )
    def test_celery_lists_the_command(self) -> None:
        celery = Path(sys.executable).with_name("celery")
        done = subprocess.run([celery, "--help"], check=True, capture_output=True, text=True)
        assert "redislock  Look at the locks of unique tasks" in done.stdout
        assert "could not load" not in done.stdout
        assert shutil.which("celery-redislock", path=str(celery.parent))
