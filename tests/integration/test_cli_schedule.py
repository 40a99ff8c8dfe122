"""``celery -A proj redislock schedule`` and its ``run``, ``pause``, ``resume``: processes, on real states."""

import base64
import getpass
import json
import re
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.beat import Scheduler

from celery_redislock import SingletonTask
from celery_redislock.declaring.options import LockSettings
from celery_redislock.locks import connect
from celery_redislock.scheduling.beat import Beat
from celery_redislock.scheduling.state import State, States, finished
from tests.facts import wait_until
from tests.integration.commands import ODD, run_command
from tests.integration.test_cli import APP, Shell
from tests.states import state_of
from tests.unit.scheduling.world import nothing


class Beats(Shell):
    """Runs commands about a schedule, and does what beats do to its states."""

    @property
    def states(self) -> States:
        return States(self.store, "cli_app")

    @property
    def client(self) -> Any:
        return redis.Redis.from_url(self.url)

    def take(self, entry: str, *, bound: float = 60.0, is_sent: bool = True) -> State:
        """Take a tick as a beat of another host does, and say that it is sent."""
        now = datetime.now(timezone.utc)
        about = {"at": now.isoformat(), "before": now.isoformat(), "by": "web1:77", "ran": None}
        about |= {"due": time.time() + 3600.0, "nonce": uuid.uuid4().hex}
        known = self.states.read([entry])[1][0]
        answer = self.states.take(entry, known, about, bound=bound, next_in=600.0)
        assert answer.status == "taken"
        if is_sent:
            following = finished(answer.text, is_sent=True)
            assert self.states.replace(entry, answer.text, following, 600.0)
        return state_of(self.states.read([entry])[1][0])

    def tick(self, entry: str, options: Mapping[str, Any], *, skipped: int) -> None:
        """Let a beat with this entry tick until so many ticks in a row were skipped."""
        app = Celery("cli_app", broker=self.celery_url, set_as_current=False)
        app.conf.broker_transport_options = {"global_keyprefix": self.prefix}
        app.task(base=SingletonTask, name="shop.nightly", lock_key="night", shared=False)(nothing)
        scheduler = Scheduler(app, schedule={}, lazy=True)
        fields = {"task": "shop.nightly", "schedule": timedelta(seconds=0.05), "options": {**options}}
        scheduler.update_from_dict({entry: fields})
        beat = Beat(scheduler, self.states, LockSettings())

        def is_done() -> bool:
            beat.tick()
            state = self.state(entry)
            return state is not None and state.skip is not None and state.skip.in_a_row >= skipped

        assert wait_until(is_done, 30.0)

    def state(self, entry: str) -> State | None:
        return State.read(self.states.read([entry])[1][0])

    def rows(self, *words: str) -> dict[str, Any]:
        done = self.celery("schedule", "--json", *words)
        assert done.returncode == 0, done.stderr
        return {row["name"]: row for row in json.loads(done.stdout)["entries"]}

    def messages(self, queue: str = "celery") -> list[Any]:
        """Return what was published, last first: headers, arguments (``body``) and properties."""
        found = [json.loads(text) for text in self.client.lrange(f"{self.prefix}{queue}", 0, -1)]
        bodies = [json.loads(base64.b64decode(message["body"]))[:2] for message in found]
        return [
            {**message["headers"], "body": body, "properties": message["properties"]}
            for message, body in zip(found, bodies, strict=True)
        ]


@pytest.fixture
def beats(redis_url: str, celery_url: str, prefix: str) -> Iterator[Beats]:
    with Beats.on(redis_url, celery_url, prefix) as beats:
        yield beats


def _line(done: subprocess.CompletedProcess[str], name: str) -> str:
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"{name} ")]
    return line


class TestBeat:
    def test_every_entry_is_shown_with_when_it_was_sent_and_when_it_is_due(self, beats: Beats) -> None:
        """By which beat, or that it never was, or is not shared; moments are local, with their age."""
        before = beats.take("nightly")
        done = beats.celery("schedule")
        assert (done.returncode, done.stderr) == (0, "")
        heads = re.split("  +", done.stdout.splitlines()[0])
        assert heads == ["NAME", "TASK", "SCHEDULE", "LAST SENT", "BEAT", "NEXT DUE", "STATE"]
        cells = re.split("  +", _line(done, "nightly"))
        assert cells[:3] == ["nightly", "shop.nightly", "crontab: 0 3 * * * (m/h/dM/MY/d)"]
        assert before.ran is not None
        at = time.localtime(before.at.timestamp())
        assert cells[3].startswith(time.strftime("%Y-%m-%d %H:%M:%S %z (", at))
        assert re.search(r"\(\d\.\d s ago\)$|\(0:\d\d:\d\d ago\)$", cells[3])
        assert cells[4] == "web1:77"
        assert re.search(r"\(in (0:59:\d\d|1:00:00)\)$", cells[5])
        assert cells[6] == "shared"
        # Shared are unique tasks, and what redislock_beat names.
        states = {
            name: re.split("  +", _line(done, name)) for name in ("tick", "refused", "alone", "by name")
        }
        unshared = ["another.programs", "-", "not shared: each beat sends it"]
        assert [states["tick"][3::3], states["refused"][3::3]] == [["never", "shared"]] * 2
        assert states["alone"][3::3] == unshared[1:]
        assert [states["by name"][1], *states["by name"][3::3]] == unshared
        # A time of day is due whenever its beat began; an interval counts from there.
        assert "(in " in states["alone"][5]
        assert states["tick"][5] == "-"

    def test_a_beat_that_is_stuck_in_a_tick_is_seen(self, beats: Beats) -> None:
        """Since when, by the server's clock, also after its time to send is over."""
        beats.take("nightly")
        before = beats.take("nightly", bound=0.001, is_sent=False)
        done, rows = beats.celery("schedule"), beats.rows()
        said = re.split("  +", _line(done, "nightly"))[6]
        assert re.fullmatch(r"sending since .* \(.* ago\)", said)
        assert abs(rows["nightly"]["sending_since"] - before.taken_at) < 1.0
        assert rows["nightly"]["last_sent"] is None
        assert rows["nightly"]["beat"] == "web1:77"
        assert rows["tick"]["sending_since"] is None

    @pytest.mark.parametrize("options", [{}, {"on_conflict": "raise"}], ids=str)
    def test_ticks_that_were_skipped_do_not_count_as_sent(self, beats: Beats, options: Any) -> None:
        """The holder, its state, for how long it has had the key, and how many ticks it has cost."""
        sent = beats.take("nightly")
        facts = {"task": "shop.nightly", "state": "queued", "since": time.time() - 725.0}
        beats.store.acquire("night", "holder/1", 60.0, facts=json.dumps(facts))
        beats.tick("nightly", options, skipped=3)

        row = beats.rows()["nightly"]
        line = _line(beats.celery("schedule"), "nightly")

        assert row["last_sent"] == pytest.approx(sent.at.timestamp())
        expected = {"at": pytest.approx(time.time(), abs=60.0), "task_id": "holder", "state": "queued"}
        in_a_row = row["last_skip"].pop("in_a_row")
        assert row["last_skip"] == {**expected, "held_for": pytest.approx(725.0, abs=60.0)}
        assert in_a_row >= 3
        said = r"  shared; last tick skipped \d+\.\d s ago: held by holder \(queued, for 0:1\d:\d\d\)"
        assert re.search(said + r", \d+ skipped in a row$", line)
        assert beats.messages() == []

    def test_json_is_one_document_with_the_documented_names(self, beats: Beats) -> None:
        """Times are seconds since the epoch. A state without an entry, which was removed, is shown too."""
        before = beats.take(ODD)
        beats.take("removed {one}")
        beats.states.pause("removed {one}", None)
        beats.states.pause("nightly", 600.0)
        beats.states.pause("tick", None)
        removed = _line(beats.celery("schedule"), "removed {one}")
        assert ("web1:77" in removed, removed.endswith("not in this schedule, paused")) == (True, True)

        done = beats.celery("schedule", "--json")

        document = json.loads(done.stdout)
        assert list(document) == ["version", "server", "entries"]
        rows = {row["name"]: row for row in document["entries"]}
        assert [*rows] == sorted(rows)
        assert list(rows[ODD].values()) == [
            ODD, "shop.nightly", "freq: 1.00 hour", True, True, pytest.approx(before.at.timestamp()),
            "web1:77", pytest.approx(time.time() + 3600.0, abs=60.0), None, None,
            False, None, None, None, None,
        ]  # fmt: skip
        assert list(rows[ODD]) == [
            "name", "task", "schedule", "in_schedule", "shared", "last_sent", "beat", "next_due",
            "sending_since", "last_skip", "paused", "paused_until", "paused_by", "paused_since",
            "pause_reason",
        ]  # fmt: skip
        assert [rows["removed {one}"][name] for name in ("in_schedule", "task", "schedule")] == [
            False,
            None,
            None,
        ]
        assert rows["nightly"]["paused"] is True
        assert rows["nightly"]["paused_until"] == pytest.approx(time.time() + 600.0, abs=60.0)
        assert (rows["tick"]["paused"], rows["tick"]["paused_until"]) == (True, None)

    def test_another_scheduler_brings_its_own_entries(self, beats: Beats) -> None:
        """As ``celery beat --scheduler`` does; a command that looks sets up no schedule."""
        rows = beats.rows("-S", f"{APP}:Rows")
        assert list(rows) == ["row"]
        row = rows["row"]
        assert (row["task"], row["schedule"], row["shared"]) == ("shop.nightly", "each: minute", True)

    @pytest.mark.parametrize(
        ("scheduler", "said"),
        [(f"{APP}:Broken", "ConnectionError: no database at db"), ("no.such:One", "No module named 'no'")],
    )
    def test_an_unreadable_schedule_is_one_line(self, beats: Beats, scheduler: str, said: str) -> None:
        done = beats.celery("schedule", "-S", scheduler)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert f"the entries of the scheduler {scheduler} cannot be read: " in done.stderr
        assert said in done.stderr


class TestRunNow:
    def test_it_publishes_the_entry_and_leaves_the_schedule_alone(self, beats: Beats) -> None:
        """With its arguments and options, as a new message: it carries no tick's identity."""
        before = beats.take(ODD)
        done = beats.celery("schedule", "run", ODD)
        assert done.returncode == 0, done.stderr
        (message,) = beats.messages()
        assert done.stdout == f"sent {ODD}: shop.nightly[{message['id']}]\n"
        assert message["body"] == [[42], {}]
        assert not [name for name in message if "tick" in name]
        assert '"b"' not in message["redislock"]
        assert beats.state(ODD) == before

    def test_a_plain_task_gets_its_evaluated_arguments_and_no_option_of_ours(self, beats: Beats) -> None:
        """``redislock_catchup`` is the entry's own; ``BeatLazyFunc`` is called as beat calls it.

        A task that this program does not know is sent by its name.
        """
        for entry in ("alone", "by name"):
            done = beats.celery("schedule", "run", entry)
            assert done.returncode == 0, done.stderr
        assert [message["task"] for message in beats.messages()] == ["another.programs"]
        (message,) = beats.messages("other\x06\x163")  # of priority 3
        assert message["body"] == [[1], {"lazy": beats.prefix}]
        assert message["properties"]["priority"] == 3
        assert not [name for name in message if "redislock" in name]
        assert "catchup" not in json.dumps(message)

    @pytest.mark.parametrize("entry", ["nightly", "refused"])
    def test_a_duplicate_is_not_sent_and_says_of_what(self, beats: Beats, entry: str) -> None:
        """Whatever ``on_conflict`` says: the holder's id, and exit status 1."""
        owner = beats.hold("night", state="running")
        done = beats.celery("schedule", "run", entry)
        assert (done.returncode, done.stderr) == (1, "")
        assert done.stdout.startswith(f"skipped {entry}: duplicate of task {owner}")
        assert beats.messages() == []


class TestPause:
    def test_an_unknown_entry_or_one_that_is_not_shared_is_refused(self, beats: Beats) -> None:
        """With the nearest name; a pause that no beat asks for would be a lie."""
        for command in ("run", "pause"):
            done = beats.celery("schedule", command, "nihgtly")
            said = "the schedule has no entry 'nihgtly'; did you mean 'nightly'?\n"
            assert (done.returncode, done.stdout, done.stderr) == (1, said, "")
        done = beats.celery("schedule", "pause", "alone")
        assert (done.returncode, done.stdout) == (2, "")
        assert "name it in redislock_beat" in done.stderr
        assert (beats.messages(), beats.states.pauses(["nihgtly", "alone"])[1]) == ([], {})

    def test_it_lasts_for_the_time_given_and_says_by_whom_since_when_and_why(self, beats: Beats) -> None:
        """By the server's clock; the key lives no longer. Nothing in it is obeyed by a terminal."""
        done = beats.celery("schedule", "pause", "nightly", "--for", "15m", "--reason", "db\x1b moves")
        shown = _line(beats.celery("schedule"), "nightly")
        row = beats.rows()["nightly"]

        assert done.returncode == 0, done.stderr
        now, ends = beats.states.pauses(["nightly", "tick"])
        assert [*ends] == ["nightly"]
        end = ends["nightly"].until
        assert end == pytest.approx(now + 900, abs=60.0)
        (key,) = beats.client.keys(f"{beats.prefix}*:pause")
        assert beats.client.pttl(key) / 1000 == pytest.approx(end - now, abs=1.0)
        assert done.stdout.startswith("paused nightly until 2")
        assert "paused the entry 'nightly' of the schedule by hand, until 2" in done.stderr
        assert ": db" in done.stderr
        who = f"{getpass.getuser()} on {socket.gethostname()}"
        assert re.search(rf"  paused until 2.* by {re.escape(who)} since 2.* ago\): db\\x1b moves$", shown)
        assert (row["paused_by"], row["pause_reason"]) == (who, "db\x1b moves")
        assert row["paused_since"] == pytest.approx(time.time(), abs=60.0)

    def test_without_a_time_it_lasts_until_it_is_resumed(self, beats: Beats) -> None:
        """A year at most: nothing on the server is for ever. Both are in the log, as a release is."""
        paused = beats.celery("schedule", "pause", ODD)
        (key,) = beats.client.keys(f"{beats.prefix}*:pause")
        ttl = beats.client.pttl(key) / 1000
        shown = beats.celery("schedule")
        resumed, again = beats.celery("schedule", "resume", ODD), beats.celery("schedule", "resume", ODD)

        assert (paused.returncode, paused.stdout) == (0, f"paused {ODD} until it is resumed\n")
        assert f"paused the entry {ODD!r} of the schedule by hand" in paused.stderr
        assert 365 * 86400 < ttl <= 366 * 86400
        who = f"{getpass.getuser()} on {socket.gethostname()}"
        assert re.search(rf"  paused by {re.escape(who)} since \d.* ago\)$", _line(shown, ODD))
        assert (resumed.returncode, resumed.stdout) == (0, f"resumed {ODD}\n")
        assert f"resumed the entry {ODD!r} of the schedule by hand" in resumed.stderr
        assert (again.returncode, again.stdout) == (1, f"{ODD} is not paused\n")
        assert beats.states.pauses([ODD])[1] == {}

    def test_a_pause_of_another_version_is_shown_as_far_as_it_is_known(self, beats: Beats) -> None:
        """The key may have been written by anybody."""
        for entry, facts in {"nightly": {}, "tick": {"by": 1, "since": 1e300, "reason": None}}.items():
            beats.states.pause(entry, None, facts)
        done = beats.celery("schedule")
        assert done.returncode == 0, done.stderr
        assert _line(done, "nightly").endswith("  paused")
        assert _line(done, "tick").endswith("  paused by 1 on -")


class TestHistory:
    def test_what_is_done_to_an_entry_is_kept(self, beats: Beats) -> None:
        """Under its name, with what came of it."""
        for words in (["pause", "nightly", "--for", "15m", "--reason", "db moves"], ["resume", "nightly"]):
            assert beats.celery("schedule", *words).returncode == 0
        sent = beats.celery("schedule", "run", "nightly").stdout.removeprefix("sent nightly: ").strip()
        skipped = beats.celery("schedule", "run", "nightly")

        acts = json.loads(beats.celery("history", "nightly", "--json").stdout)["acts"]

        assert skipped.returncode == 1
        assert [(act["act"], act["outcome"], act.get("reason")) for act in acts] == [
            ("pause", "for 900 s", "db moves"),
            ("resume", "resumed", None),
            ("run", f"sent: {sent}", None),
            ("run", f"skipped: {skipped.stdout.partition(': ')[2].strip()}", None),
        ]
        assert {act["by"] for act in acts} == {getpass.getuser()}


class TestTrouble:
    @pytest.mark.parametrize("words", [[], ["run", "x"]])
    def test_without_an_app_each_command_says_that_it_needs_one(self, beats: Beats, words: list[str]) -> None:
        done = beats.standalone("schedule", *words)
        said = "Error: a schedule is an app's: name the app, celery -A proj redislock …\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", said)

    @pytest.mark.parametrize(
        ("program", "words"),
        [("standalone", ["list"]), ("celery", ["schedule"]), ("celery", ["schedule", "run", ODD])],
    )
    def test_an_unreachable_server_is_one_line(self, prefix: str, program: str, words: list[str]) -> None:
        """Also where the publish fails of it, whose error Celery wraps."""
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"redis://me:hush@127.0.0.1:{unused.getsockname()[1]}/0"
            done = getattr(Beats(url, url, prefix, connect(url)), program)(*words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "Connection refused" in done.stderr
        assert "hush" not in done.stderr

    def test_a_schedule_file_is_neither_read_nor_written(self, beats: Beats, tmp_path: Path) -> None:
        """Beat's own, which a beat may have open at this moment."""
        for words in ([], ["run", "tick"], ["pause", "tick"], ["resume", "tick"]):
            command = ["-A", APP, "redislock", "schedule", *words]
            done = run_command("celery", command, beats.environment, tmp_path)
            assert done.returncode == 0, done.stderr
        assert list(tmp_path.iterdir()) == []
