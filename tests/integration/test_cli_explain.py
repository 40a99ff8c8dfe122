"""``celery -A proj redislock explain``: why does it not run, as a process, on real locks and queues."""

import json
import re
import shlex
from collections.abc import Iterator

import pytest
import redis

from celery_redislock.locks.lease import new_token
from tests.facts import wait_until
from tests.integration.test_cli import Shell


@pytest.fixture
def shell(redis_url: str, celery_url: str, prefix: str) -> Iterator[Shell]:
    with Shell.on(redis_url, celery_url, prefix) as shell:
        yield shell


def explained(shell: Shell, *words: str, status: int = 0) -> dict[str, list[str]]:
    """What the command prints, by label."""
    done = shell.celery("explain", *words)
    assert (done.returncode, done.stderr) == (status, ""), done.stderr
    rows: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        rows.setdefault(line[:13].strip(), []).append(line[13:])
    return rows


def run_on(shell: Shell, key: str, owner: str, *, ttl: float = 30.0, left: float = 30.0) -> None:
    """Hold a lock as a run does that was renewed so long ago that so much is left of its ttl."""
    facts = {"task": "shop.nightly", "state": "running", "host": "web-1", "pid": 7, "ttl": ttl}
    shell.store.acquire(key, new_token(owner), left, facts=json.dumps(facts), starts_run=True)


def refuse(shell: Shell, key: str, owner: str, *, task: str = "shop.nightly") -> None:
    """Be refused as a call at publish is."""
    facts = f'{{"task":"{task}","state":"queued","host":"web-2","pid":8,"on_conflict":"skip"}}'
    shell.store.acquire(key, new_token(owner), 60.0, facts=facts)


def test_a_tasks_call_is_explained_by_its_key_holder_and_what_a_call_would_meet(shell: Shell) -> None:
    """With the command that frees it, ready to paste. A free key is told to be free."""
    told = explained(shell, "shop.nightly")
    assert told["held by"] == ["nobody"]
    assert told["now"] == ["a call now would be published, and start as soon as a worker has it"]

    run_on(shell, "night", "job-1")
    refuse(shell, "night", "job-2")
    told = explained(shell, "shop.nightly")

    assert told["key"] == ["night"]
    assert told["held by"] == ["job-1 (shop.nightly, running, web-1:7)"]
    assert told[""][0].startswith("last renewed ")
    assert told[""][0].endswith(" s ago, due every 10 s")
    assert told["now"] == ["a call now would be skipped, because job-1 holds the key (running)"]
    assert "shop.nightly[job-2] at publish on web-2:8: night was held by job-1" in told["skipped"][0]
    assert told["if freed"] == [
        "A running task continues without its lock, and another one may start beside it."
    ]
    assert told["free it"][0].endswith(" redislock release --reason TEXT -- night")
    assert any(line.startswith("nightly (") for line in told["schedule"])


def test_the_message_of_a_queued_call_that_waits_behind_a_hold_is_in_the_line(shell: Shell) -> None:
    """It holds its place in the queue, and is no message that was lost."""
    assert shell.celery("hold", "beside", "--reason", "the bank is down").returncode == 0
    facts = json.dumps({"task": "shop.beside", "state": "queued", "published": True}, separators=(",", ":"))
    shell.store.acquire("queued:beside", new_token("job-1"), 60.0, facts=facts)
    shell.park("beside", "job-1", task="shop.beside")
    assert explained(shell, "shop.beside")["message"] == ["of job-1: in the line of beside, number 1 of 1"]


def test_a_holder_that_is_not_renewed_is_told_to_be_dead_and_when_it_is_free(shell: Shell) -> None:
    """Its renewals are due every third of its ttl."""
    run_on(shell, "night", "job-1", ttl=3600.0, left=1700.0)
    told = explained(shell, "shop.nightly")
    life = told[""][0]
    assert life.startswith("not renewed for 0:31:")
    assert "due every 1200 s: probably dead; free in 0:28:" in life
    assert told["now"][0].endswith("; made on that machine it is accepted, if the processes are dead")


def test_behind_a_line_that_nobody_serves_a_call_is_told_what_becomes_of_it(shell: Shell) -> None:
    """The lock is free, and goes to the first in line, whoever asks next."""
    run_on(shell, "night", "job-1", left=0.05)
    shell.park("night", "job-2")
    assert wait_until(lambda: not shell.store.holders("night"), 10.0)
    told = explained(shell, "shop.nightly")
    assert told["now"] == ["a call now would be skipped: 1 wait before it"]


def test_a_message_that_is_queued_is_told_its_place_and_that_no_worker_is_there(shell: Shell) -> None:
    """For the task, by its id, and if a call is told to be a duplicate of it."""
    done = shell.celery("schedule", "run", "nightly")
    task_id = done.stdout.strip().rpartition("[")[2].rstrip("]")
    told = explained(shell, task_id)
    assert told["message"] == ["in the queue 'celery', number 1 of 1. No worker answers: start one"]
    assert told["held by"][0].startswith(f"{task_id} (shop.nightly, queued, ")
    assert explained(shell, "shop.nightly")["message"] == [f"of {task_id}: {told['message'][0]}"]


@pytest.mark.parametrize("arguments", [(), ("7",)], ids=["all calls", "a call"])
def test_locks_of_a_renamed_task_are_told_with_what_frees_them(
    shell: Shell, arguments: tuple[str, ...]
) -> None:
    """The deploy that renamed it left its claims behind; nobody knows the keys of its calls any more."""
    shell.hold("a", task="shop.nightli")
    shell.hold("b", task="shop.nightli")
    told = explained(shell, "shop.nightli", *arguments)
    said = "shop.nightli is no task of this app: renamed, or removed; did you mean 'shop.nightly'?"
    assert said in told["task"]
    assert len(told["held by"]) == 2
    assert told["free them"][0].endswith(" release --reason TEXT --task shop.nightli")


def test_a_release_by_force_is_told_with_who_why_and_when(shell: Shell) -> None:
    """For an hour."""
    shell.hold("night", owner="job-1")
    assert shell.celery("release", "night", "--reason", "host died", "--yes").returncode == 0
    (told,) = explained(shell, "night")["force"]
    assert told.startswith("night was released by force ")
    assert told.endswith("'host died'")


def test_of_another_programs_value_that_is_gone_the_beginning_is_told(shell: Shell, redis_url: str) -> None:
    """Who knows it all could release its next lock: neither a refusal nor a release by force keeps it."""
    with redis.Redis.from_url(redis_url) as client:
        client.set(f"{shell.store.prefix}:{{night}}:lock", "nightly.sh on 10.0.0.7", px=60_000)
    refuse(shell, "night", "job-2")
    assert shell.celery("release", "night", "--reason", "it is gone", "--yes").returncode == 0
    document = json.loads(shell.celery("explain", "night", "--json").stdout)
    assert document["refused"][0]["held_by"] == "nightly.…"
    assert document["forced"]["night"]["owner"] == "nightly.…"
    assert "taken from nightly.… (foreign)" in shell.celery("history", "night", "--json").stdout.replace(
        "\\u2026", "…"
    )


def test_what_nobody_knows_of_is_told_so(shell: Shell) -> None:
    """And not that a message was lost, which nobody has heard of."""
    told = explained(shell, "nonsense", status=1)
    assert told["key"] == ["none for nonsense is known here"]
    assert told["message"][0].startswith("nobody holds the key nonsense, and no task of that id holds a lock")


@pytest.mark.parametrize(
    ("task", "holds", "says"),
    [
        (
            "shop.alone",
            ["one"],
            "would be published; its run would wait in line (a call that is queued holds",
        ),
        ("shop.alone", [], "would be published, and start as soon as a worker has it (a call that is queued"),
        ("shop.beside", ["beside"], "would be published, and start as soon as a worker has it"),
        ("shop.beside", ["queued:beside"], "would be skipped, because other-queued:beside holds the key"),
        ("shop.three", ["three", "three"], "would be published, and start as soon as a worker has it"),
        ("shop.three", ["three"] * 3, "would fail with DuplicateTask, because other-three holds the key"),
        ("shop.two", ["two:b"], "would be published; its run would wait in line (a call"),
    ],
)
def test_what_a_call_would_meet_is_told(shell: Shell, task: str, holds: list[str], says: str) -> None:
    """One scope claims nothing at publish, one has two locks; three may run, or a run holds two."""
    for number, key in enumerate(holds):
        facts = {"task": "t", "state": "running", "limit": 3} if key == "three" else {"state": "running"}
        token = f"other-{key}/{number}" if key != "three" else f"other-{key}{'x' * number}/1"
        limit = 3 if key == "three" else None
        shell.store.acquire(key, token, 60.0, facts=json.dumps(facts, separators=(",", ":")), limit=limit)
    assert says in explained(shell, task)["now"][0]


def test_refusals_of_a_queued_call_and_of_each_of_several_locks_are_told(shell: Shell) -> None:
    """A log names the key as the task knows it."""
    shell.hold("queued:beside")
    refuse(shell, "queued:beside", "job-2", task="shop.beside")
    shell.hold("two:b")
    refuse(shell, "two:b", "job-3", task="shop.two")

    for words in (["shop.beside"], ["beside"]):
        told = explained(shell, *words)
        assert "shop.beside[job-2]" in told["skipped"][0]
        assert told["held by"][0].endswith(", as queued:beside")
    for words in (["shop.two"], ["two:a two:b"]):
        told = explained(shell, *words)
        assert told["key"] == ["two:a", "two:b"]
        assert "shop.two[job-3]" in told["skipped"][0]


def test_a_call_that_had_to_wait_is_no_skipped_one(shell: Shell) -> None:
    """It was published."""
    run_on(shell, "one", "job-1")
    facts = '{"task":"shop.alone","state":"running","on_conflict":"wait"}'
    shell.store.acquire("one", new_token("job-2"), 60.0, facts=facts, starts_run=True)
    told = explained(shell, "shop.alone")
    assert "shop.alone[job-2] at start" in told["had to wait"][0]
    assert "skipped" not in told
    # Its message is lost since.
    assert explained(shell, "job-2")["message"][0].startswith("in no queue that is known, ")


def test_a_task_without_its_arguments_is_told_by_all_that_its_calls_hold(shell: Shell) -> None:
    """Which arguments are meant is not known, so what a call would meet is not told."""
    shell.hold("shop.sync_account:v1:1", task="shop.sync_account", owner="job-1")
    refuse(shell, "shop.sync_account:v1:1", "job-2", task="shop.sync_account")
    told = explained(shell, "shop.sync_account")
    assert told["held by"][0].startswith("job-1 (shop.sync_account, queued, ")
    assert told["held by"][0].endswith(", as shop.sync_account:v1:1")
    assert len(told["skipped"]) == 1
    assert "now" not in told


def test_the_same_is_there_for_programs(shell: Shell) -> None:
    """One JSON document."""
    run_on(shell, "night", "job-1")
    refuse(shell, "night", "job-2")
    done = shell.celery("explain", "shop.nightly", "--json")
    document = json.loads(done.stdout)
    assert document["keys"] == ["night"]
    assert document["locks"][0]["owner"] == "job-1"
    assert document["refused"][0]["task_id"] == "job-2"
    assert document["refused"][0]["times"] == 1
    assert document["now"].startswith("a call now would be skipped")
    assert document["message"]["state"] == "running"


def test_an_entry_of_the_schedule_is_explained_by_its_name(shell: Shell) -> None:
    """It is no message that was lost; with who has paused it, and why."""
    pause = ["schedule", "pause", "nightly", "--for", "2h", "--reason", "the database moves"]
    assert shell.celery(*pause).returncode == 0
    told = explained(shell, "nightly")
    assert re.match(r"nightly \(.*\): never sent; .*paused .*: the database moves", told["schedule"][0])
    assert "message" not in told


@pytest.mark.parametrize("words", [("",), ("", "7")])
def test_an_empty_word_is_refused_in_one_line(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell.celery("explain", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Error: {shlex.join(words)!r} names no task of the app, no task id and no key\n"
