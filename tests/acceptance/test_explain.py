"""``explain`` in each state that a call may be in: the answers of a system that is really in it."""

import os
import re
import signal
from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from celery.utils import uuid
from click.testing import CliRunner

from celery_redislock.cli import redislock
from celery_redislock.declaring.server import store_of
from tests.acceptance.conftest import ProjectMaker, opening
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.paths import RABBITMQ
from tests.acceptance.project import open_project
from tests.acceptance.terms import CLAIM_GONE, PATIENCE, SHORT_LEASE

pytestmark = pytest.mark.xdist_group("explain")

#: Seconds of a lease that counts as late for a while before it ends, and until a call is due.
LATE_FOR_A_WHILE = 15.0
LATER = 600

#: What is told, by state: a pattern for the row of each label.
TOLD: Mapping[str, Mapping[str, str]] = {
    "running": {
        "held by": r"{id} \(project.executed, running, .*",
        "": r"last renewed .* ago, due every .* s",
        "message": r"in the hands of worker {worker}: running",
    },
    "in hand": {
        "held by": r"{id} \(project.executed, queued, .*",
        "message": r"in the hands of worker {worker}: received, and not started",
    },
    "queued": {
        "held by": r"{id} \(project.executed, queued, .*",
        "message": r"in the queue 'celery', number 1 of 3. Consumed by {worker}",
    },
    "queued without a lock": {
        "key": r"work:.*",
        "held by": "nobody",
        "message": r"in the queue 'celery', number 2 of 3. Consumed by {worker}",
    },
    "due later, by ETA": {
        "held by": r"{id} \(project.executed, queued, .*",
        "message": r"held back by worker {worker}, which answers; due in (5\d\d|600) s",
    },
    "due later, by retry": {
        "held by": r"{id} \(project.executed, queued, .*",
        "message": r"held back by worker {worker}, which answers; due in (5\d\d|600) s",
    },
    "waits for a period": {
        "held by": r"(?!{id}).* \(project.while_executing, period, .*",
        "": r"its period ends in 0:(09|10):.*",
        "message": r"in the line of work:.*, number 1 of 1",
    },
    "waits as the first": {
        "call": r"project.while_executing\[{id}\] waits, since .*",
        "held by": r"(?!{id}).* \(project.while_executing, running, .*",
        "message": r"in the line of work:.*, number 1 of 3",
    },
    "waits as the last": {
        "call": r"project.while_executing\[{id}\] waits, since .*",
        "message": r"in the line of work:.*, number 3 of 3",
    },
    "in a line without a worker": {
        "held by": "nobody",
        "next": r"the first in line gets work:.* when .* No worker answers: start one",
        "message": r"in the line of work:.*, number 1 of 1",
    },
    "late": {
        "held by": r"{id} \(project.executed, running, .*",
        "": r"not renewed for .*: probably dead; free in .* s",
        "message": "taken by a worker that does not answer, and without a result yet",
    },
    "held by a dead process": {
        "held by": r"{id} \(project.executed_acks_late, running, .*",
        "": r"not renewed for .*: probably dead; free in .* s",
        "message": r"in the hands of a worker that does not answer: the worker {worker} .*; if it is .*",
        "free it": r".* release --reason TEXT -- work:.*",
    },
    "over, with success": {"message": "its result says SUCCESS, .*"},
    "over, with failure": {"message": "its result says FAILURE: ValueError: .*"},
    "over, revoked": {"message": "its result says REVOKED: TaskRevokedError: .*"},
    "skipped": {
        "held by": r"(?!{id}).* \(project.executed, running, .*",
        "message": "skipped, and so not published",
        "skipped": r".*: project.executed\[{id}\] at publish on .*, on_conflict=skip",
    },
    "purged": {
        "held by": r"{id} \(project.executed, queued, .*",
        "message": "in no queue that is known, in no worker's hands, and without a result: it was purged, .*",
        "free it": r".* release --reason TEXT -- work:.*",
    },
    "under a wrong prefix": {
        "key": r"work:.*",
        "held by": "nobody",
        "message": r"in the queue '.*-aside', number 2 of 3\. None of the workers that answer .*",
        "elsewhere": r"it is held under the prefix '.*:other', and looked for under '.*:redislock': .*",
    },
    "in a queue that nobody consumes": {
        "held by": r"{id} \(project.executed, queued, .*",
        "message": r"in the queue '(.*-aside)', number 1 of 3. None .* consumes it: start one with -Q \1",
    },
    "handed its lock": {
        "held by": r"{id} \(project.while_executing, queued, .*",
        "handed on": r"{id} has not started",
        "message": r"in the hands of worker {worker}: received, and not started",
        "free it": r".* waiting work:\S+ --drop {id} --reason TEXT",
    },
}

#: What is told on RabbitMQ of a message that no worker names.
UNSEEN = (
    "in the hands of no worker that answers, and without a result: it is queued, or lost. This broker's "
    r"queues cannot be looked into; messages there: 3 in '\S+', 3 in '\S+-aside', which nobody consumes\. "
    "Workers that answer: {worker}"
)
#: Calls that hold nothing while they are queued: their ids are in their messages alone.
NAMELESS_ON_RABBITMQ = {
    "queued without a lock": {"message": f"nobody holds the key {{id}}, .*; or it is {UNSEEN}"},
    "under a wrong prefix": {"message": f"nobody holds the key {{id}}, .*; or it is {UNSEEN}"},
}
#: What is told there, where the broker hands out nothing but whole messages.
TOLD_ON_RABBITMQ: Mapping[str, Mapping[str, str]] = {
    **TOLD,
    **NAMELESS_ON_RABBITMQ,
    **{state: {**TOLD[state], "message": UNSEEN} for state in ("queued", "purged", "handed its lock")},
    "in a queue that nobody consumes": {**TOLD["queued"], "message": UNSEEN},
    "held by a dead process": {
        **TOLD["held by a dead process"],
        "message": "taken by a worker that does not answer, and .*; if that is dead, .*, it is queued again",
    },
    "late": {**TOLD["late"], "message": f"{TOLD['late']['message']}; if that is dead, .*"},
}

Answer = tuple[int, dict[str, list[str]], dict[str, str]]


def ask(app: Any, *words: str) -> tuple[int, dict[str, list[str]]]:
    """Ask as ``celery -A`` does; return the exit status and the rows by label."""
    done = CliRunner().invoke(redislock, ["explain", *words], obj=SimpleNamespace(app=app))
    rows: dict[str, list[str]] = {}
    for line in done.output.splitlines():
        rows.setdefault(line[:13].strip(), []).append(line[13:])
    return done.exit_code, rows


def assert_told(told: Mapping[str, str], rows: Mapping[str, list[str]], about: Mapping[str, str]) -> None:
    for label, pattern in told.items():
        expected = re.compile(pattern.replace("{id}", about["id"]).replace("{worker}", about["worker"]))
        assert [row for row in rows[label] if expected.fullmatch(row)], (label, pattern, rows)


class Stage:
    """Calls in their states, and what was told of them."""

    def __init__(self, project: Project, concurrency: int) -> None:
        self.app = project.app
        self.answers: dict[str, Answer] = {}
        self.name = f"shop@{project.plan['prefix']}"
        self.worker = project.start_worker("prefork", "-n", self.name, concurrency=concurrency)
        # No other one will answer, or is a worker of this project.
        self.app.control.inspect = partial(self.app.control.inspect, destination=[self.name])

    def ask(self, state: str, word: str) -> None:
        about = {"id": word, "worker": self.name}
        self.answers[state] = (*ask(self.app, word), about)


def without_a_worker(project: Project) -> Iterator[Any]:
    """Play what is left of calls whose worker stops, and is killed."""
    stage = Stage(project, 3)
    worker = stage.worker
    with project.kept_on("late", "dead", "line"):
        late = project.executed.apply_async(("late",), lock_ttl=LATE_FOR_A_WHILE)
        dead = project.executed_acks_late.apply_async(("dead",), lock_ttl=LATE_FOR_A_WHILE)
        project.while_executing.apply_async(("line",), lock_ttl=SHORT_LEASE)
        for key in ("late", "dead", "line"):
            project.wait_started(key)
        waits = project.while_executing.delay("line")
        project.wait_parked("line", 1)
        os.killpg(worker.process.pid, signal.SIGSTOP)
        yield None  # whatever else there is to do, until it is late
        wait_until(lambda: project.holder("late").is_late, PATIENCE, "it is late")  # type: ignore[union-attr]
        stage.ask("late", late.id)
        os.killpg(worker.process.pid, signal.SIGKILL)
        stage.ask("held by a dead process", dead.id)
        project.wait_free("line")
        stage.ask("in a line without a worker", waits.id)
    yield stage.answers


def with_a_worker(project: Project) -> dict[str, Answer]:
    """Play what becomes of calls while their worker lives, with two bodies at once and room for two more."""
    stage = Stage(project, 2)
    app = project.app
    executed = project.executed
    ids = {}

    ids["over, with success"] = executed.delay("success").id
    ids["over, with failure"] = executed.delay("failure", 0.0, "fail").id
    ids["over, revoked"] = uuid()
    app.control.revoke(ids["over, revoked"], reply=True, timeout=PATIENCE, destination=[stage.name])
    executed.apply_async(("revoked",), task_id=ids["over, revoked"])
    ids["due later, by retry"] = executed.delay("retried", 0.0, "retry", {"countdown": LATER}).id
    project.wait_received(ids["due later, by retry"], 2)
    project.while_executing.apply_async(("period",), lock_period=LATER).get(timeout=PATIENCE)
    ids["waits for a period"] = project.while_executing.apply_async(("period",), lock_period=LATER).id
    project.wait_parked("period", 1)
    ids["due later, by ETA"] = executed.apply_async(("later",), countdown=LATER).id
    project.wait_received(ids["due later, by ETA"])

    with project.kept_on("running", "in hand", "in hand, too"):
        with project.kept_on("line"):
            ids["running"] = executed.delay("running").id
            project.wait_started("running")
            assert executed.delay("running").is_duplicate
            (refused,) = store_of(app).happened("work:running").refused
            ids["skipped"] = refused.hold.owner
            project.while_executing.delay("line")
            project.wait_started("line")
            first, *_, last = [project.while_executing.delay("line").id for _ in range(3)]
            assert project.wait_parked("line", 3)[::2] == [first, last]
            ids["waits as the first"] = first
            ids["waits as the last"] = last
            for key in ("in hand", "in hand, too"):
                ids[key] = executed.delay(key).id
                project.wait_received(ids[key])
            ids["queued"] = executed.delay("queued").id
            ids["queued without a lock"] = project.while_executing.delay("queued, too").id
            wait_until(lambda: project.queued() == 2, PATIENCE, "two are in the queue")
            beside(project, ids)
            for state in TOLD.keys() & ids.keys():
                stage.ask(state, ids[state])
            stage.answers["of one that waits"] = 0, {"": project.lines(f"[{first}] waits: ")}, {}
        project.wait_started("in hand")
        wait_until(lambda: len(project.parked("line")) == 2, PATIENCE, "the first got the lock")
        stage.ask("handed its lock", first)
    project.wait_ended("prefix")
    stage.answers["of a missing claim"] = 0, {"": project.lines(CLAIM_GONE)}, {}
    return stage.answers


def beside(project: Project, ids: dict[str, str]) -> None:
    """Play what becomes of calls in a queue that no worker looks into, some of them of other publishers."""
    aside = {"queue": project.aside}
    ids["purged"] = project.executed.apply_async(("purged",), **aside).id
    with project.app.connection_for_write() as connection:
        connection.default_channel.queue_purge(project.aside)
    ids["in a queue that nobody consumes"] = project.executed.apply_async(("aside",), **aside).id
    plan = project.plan
    elsewhere = open_project({**plan, "conf": {**plan["conf"], "redislock_prefix": "other"}})
    foreign = elsewhere.tasks["project.executed"]
    ids["under a wrong prefix"] = foreign.apply_async(("prefix, too",), **aside).id
    foreign.delay("prefix")
    project.executed.apply_async(("third",), **aside)
    elsewhere.journal.close()
    elsewhere.close()


@pytest.fixture(scope="module")
def answers(open_on: ProjectMaker, path: str) -> Iterator[Mapping[str, Answer]]:
    """What was told in each state."""
    with opening(open_on, []) as make:
        dying = without_a_worker(make(path=path, conf={"redislock_restore": 30.0}))
        next(dying)
        told = with_a_worker(make(path=path))
        yield {**told, **next(dying)}


@pytest.mark.parametrize("state", TOLD)
def test_a_call_is_told_to_be_where_it_is(answers: Mapping[str, Answer], state: str) -> None:
    """With what it waits for, and what to do: no worker that answers is told to be dead."""
    status, *answer = answers[state]
    assert status == 0
    assert_told(TOLD[state], *answer)


@pytest.mark.parametrize("path", [RABBITMQ], indirect=True)
@pytest.mark.parametrize("state", TOLD_ON_RABBITMQ)
def test_where_queues_cannot_be_read_it_is_queued_or_lost(answers: Mapping[str, Answer], state: str) -> None:
    """All else is told as on Redis: nothing that runs, waits or was taken is told to be queued."""
    status, *answer = answers[state]
    assert status == (1 if state in NAMELESS_ON_RABBITMQ else 0)
    assert_told(TOLD_ON_RABBITMQ[state], *answer)


def test_a_worker_prints_the_app_that_it_was_started_with(answers: Mapping[str, Answer]) -> None:
    """Ready to paste."""
    (line,) = answers["of one that waits"][1][""]
    assert " celery -A tests.acceptance.project redislock explain work:line" in line


def test_a_worker_names_the_prefix_of_a_claim_that_it_misses(answers: Mapping[str, Answer]) -> None:
    """Its publisher has another one, or the worker has: until that is mended, each runs beside the other."""
    (line,) = answers["of a missing claim"][1][""]
    assert re.search(
        r"its publisher has the prefix '\S+:other', and this worker '\S+:redislock'; give all", line
    )
