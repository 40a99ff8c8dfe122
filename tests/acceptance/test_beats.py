"""Any number of beats send each tick once, whatever becomes of one of them.

Ticks are read from a queue that no worker serves: a message says when it left, and from which beat
(``ticks.py``). Their task is unique while it runs, so that no tick is a duplicate of one that waits there.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.acceptance.beats import Beat
from tests.acceptance.harness import Project, throughout, wait_until
from tests.acceptance.terms import PATIENCE, SOCKET_TIMEOUT
from tests.acceptance.ticks import Tick, gaps
from tests.acceptance.worker import Worker
from tests.faults import faulty_proxy
from tests.servers import EmbeddedServer

#: Seconds a beat may be late on a busy machine.
SLACK = 0.7
#: Seconds by which a beat stands back that did not send the tick before, so that not all ask at once.
STANDBY = 0.2
#: Seconds after which another beat goes on where one died between taking and sending a tick, at most.
BOUND = 10.2

#: Two beats of an entry of this interval, started so far apart, would send in turn.
INTERVAL, APART = 2.0, 1.0
#: Of the clock: a tick whose beat died is sent once more long before the next one is due.
LONG = {"seconds": 15.0}

UNIQUE = "project.while_executing"
#: A task that is not unique, where beat does not import it: the project's class is for unique ones.
PLAIN = "project.unlocked"

ProjectMaker = Callable[..., Project]


def entry(key: str, schedule: Any = INTERVAL, task: str = UNIQUE, **more: Any) -> dict[str, Any]:
    return {"task": task, "schedule": schedule, "args": [key], **more}


@pytest.fixture
def project(new_project: ProjectMaker, key: str) -> Project:
    """A project with an entry, ``often``."""
    project = new_project()
    project.schedule["often"] = entry(key)
    return project


def start_apart(
    project: Project, *plans: dict[str, Any], seconds: float = APART, arguments: tuple[str, ...] = ()
) -> list[Beat]:
    """Start beats (two, unless plans are given) whose intervals end so many seconds apart."""
    plans = plans or ({}, {})
    names = [f"beat {len(project.beats) + place}" for place in range(len(plans))]
    with ExitStack() as stack:
        gates = [stack.enter_context(ExitStack()) for _ in names]
        for gate, name in zip(gates, names, strict=True):
            gate.enter_context(project.kept_on(f"{name}@starting"))
        beats = [
            project.launch_beat(*arguments, plan={"name": name, **plan})
            for name, plan in zip(names, plans, strict=True)
        ]
        wait_until(lambda: all(project.notes(f"{name}@starting") for name in names), PATIENCE, "all are up")
        for gate, beat in zip(gates, beats, strict=True):
            gate.close()
            beat.wait_ready()
            time.sleep(seconds if beat is not beats[-1] else 0.0)
    return beats


def beat_of(project: Project, tick: Tick) -> Beat:
    """Return the beat that sent a tick."""
    return next(beat for beat in project.beats if beat.pid == tick.pid)


def kill_after_it_sent(project: Project, key: str) -> Tick:
    """Start two beats and a worker, kill the beat that has sent the first tick; return that."""
    project.start_worker("prefork")
    with project.kept_on(f"{key}@sent"):
        start_apart(project)
        wait_until(lambda: project.notes(f"{key}@sent"), PATIENCE, "a beat has sent it")
        (killed,) = project.leaving(key)
        project.wait_ended(key)
        beat_of(project, killed).kill()
    return killed


def assert_once(ticks: list[Tick], interval: float = INTERVAL, late: float = STANDBY) -> None:
    """Assert that each tick of an interval is among these once; one may be late by ``late`` seconds."""
    about = "\n".join(f"{tick.at:.2f} beat {tick.pid}: {tick.tick}" for tick in ticks)
    assert len({tick.tick for tick in ticks} - {None}) == len(ticks), about
    assert min(gaps(ticks)) > interval - SLACK, about
    assert max(gaps(ticks)) < interval + late + SLACK, about


@pytest.mark.timing
def test_two_beats_send_each_tick_of_an_interval_once(project: Project, key: str) -> None:
    """Two beats whose intervals end at different moments send as often as one, without a setting."""
    start_apart(project)

    assert_once(project.wait_ticks(key, 5))


@pytest.mark.timing
def test_two_beats_send_each_tick_of_the_clock_once(new_project: ProjectMaker, key: str) -> None:
    """A schedule that goes by the clock, as a crontab, is due for all beats at the same moment."""
    project = new_project()
    project.schedule["on the clock"] = entry(key, {"seconds": 2})
    start_apart(project)

    ticks = project.wait_ticks(key, 5)
    numbers = [tick.wall // 2 for tick in ticks]
    assert numbers == list(range(int(numbers[0]), int(numbers[0]) + 5))
    assert max(tick.wall % 2 for tick in ticks) < STANDBY + SLACK


@pytest.mark.timing
def test_the_others_send_when_a_beat_is_killed_and_one_joins_when_it_is_replaced(
    project: Project, key: str
) -> None:
    """No tick is missing and none comes twice: one is late by the stand-by offset."""
    start_apart(project)
    sender = beat_of(project, project.wait_ticks(key, 2)[-1])
    sender.kill()
    project.start_beat()

    ticks = project.wait_ticks(key, 6)
    assert_once(ticks)
    assert {tick.pid for tick in ticks[2:]} - {sender.pid}


@pytest.mark.timing
def test_a_new_beat_goes_on_where_the_last_one_was_killed(new_project: ProjectMaker, key: str) -> None:
    """Without a schedule file, as in a new container, an interval would begin again: it is asked for."""
    project = new_project()
    project.schedule["often"] = entry(key, 4.0)
    beat = project.start_beat()
    project.wait_ticks(key, 1)
    time.sleep(1.5)
    beat.kill()
    project.start_beat()

    assert_once(project.wait_ticks(key, 2), 4.0, late=0.0)


@pytest.mark.timing
def test_a_beat_with_an_old_schedule_file_sends_nothing_again(project: Project, key: str) -> None:
    """It asks the lock server when it starts, so it goes on from what was sent while it was away."""
    first, _second = start_apart(project)
    project.wait_ticks(key, 1)
    assert first.terminate() == 0
    before = project.wait_ticks(key, len(project.ticks(key)) + 2)
    time.sleep(INTERVAL / 2)
    project.start_beat(schedule_file=first.schedule_file)

    assert_once(project.wait_ticks(key, len(before) + 2))


@pytest.mark.timing
def test_a_beat_that_stood_still_sends_nothing_again(project: Project, key: str) -> None:
    """When it goes on (SIGSTOP, SIGCONT), ticks are due for it that another one has sent."""
    start_apart(project)
    stopped = beat_of(project, project.wait_ticks(key, 1)[-1])
    stopped.pause()
    others = wait_until(
        lambda: others if len(others := [t for t in project.ticks(key) if t.pid != stopped.pid]) == 2 else [],
        PATIENCE,
        "another beat sends two ticks",
    )
    time.sleep(max(0.0, others[-1].at + INTERVAL / 2 - time.monotonic()))
    stopped.resume()

    ticks = project.wait_ticks(key, len(project.ticks(key)) + 2)
    assert_once(ticks, late=STANDBY + 1)  # the one that stood still may have been about to ask


@pytest.mark.timing
def test_a_beat_that_stood_still_with_a_tick_in_hand_does_not_send_it_after_another(
    project: Project, key: str
) -> None:
    """Stopped between taking and sending, it asks whether the tick is still its own when it goes on."""
    with project.kept_on(f"{key}@taken"):
        start_apart(project, arguments=("-S", "tests.acceptance.scheduled:Gated"))
        (pid,) = wait_until(lambda: project.notes(f"{key}@taken"), PATIENCE, "a beat has taken a tick")
        stopped = next(beat for beat in project.beats if beat.pid == pid)
        stopped.pause()
    ticks = project.wait_ticks(key, 2)
    time.sleep(max(0.0, ticks[-1].at + INTERVAL / 2 - time.monotonic()))
    stopped.resume()

    assert_once(project.wait_ticks(key, 5), late=STANDBY + 1)
    assert pid not in {tick.pid for tick in project.ticks(key)[:3]}


@pytest.mark.timing
@pytest.mark.parametrize("how", [Beat.kill, Beat.terminate], ids=["SIGKILL", "SIGTERM"])
def test_a_tick_whose_beat_ends_while_it_sends_is_sent_as_the_same_message(
    new_project: ProjectMaker, key: str, how: Callable[[Beat], Any]
) -> None:
    """Nobody can know whether it was sent: so another beat sends it, and it keeps its identity."""
    project = new_project()
    project.schedule["seldom"] = entry(key, LONG)
    with project.kept_on(f"{key}@sending"):
        start_apart(project)
        (ended,) = wait_until(lambda: project.leaving(key), PATIENCE, "a beat is about to send")
        how(beat_of(project, ended))
        at = time.monotonic()
    (sent,) = project.wait_ticks(key, 1)

    assert (sent.task_id, sent.token, sent.tick) == (ended.task_id, ended.token, ended.tick)
    assert sent.pid != ended.pid
    assert sent.at < at + BOUND + 1 + SLACK


@pytest.mark.timing
def test_a_tick_whose_beat_is_killed_after_it_sent_it_runs_once(new_project: ProjectMaker, key: str) -> None:
    """It is sent again as the same message, and the second copy does nothing: the first is over."""
    project = new_project()
    project.schedule["seldom"] = entry(key, LONG, "project.executed")
    killed = kill_after_it_sent(project, key)
    project.wait_received(killed.task_id, 2)
    project.wait_ended(key, 2, PATIENCE + LONG["seconds"])

    assert [body.task_id for body in project.bodies(key)].count(killed.task_id) == 1
    assert [tick.token for tick in project.leaving(key)].count(killed.token) == 2


@pytest.mark.timing
def test_a_short_interval_goes_on_with_the_next_tick_when_a_beat_is_killed_after_it_sent_one(
    new_project: ProjectMaker, key: str
) -> None:
    """A copy that does nothing would stand in the place of the tick that is due by then: it would be lost."""
    project = new_project()
    project.schedule["often"] = entry(key, task="project.executed")
    kill_after_it_sent(project, key)
    ran = project.wait_ended(key, 4)

    assert_once(project.leaving(key))
    assert len({body.task_id for body in ran}) == len(ran)
    assert max(b.start - a.start for a, b in pairwise(ran)) < INTERVAL + STANDBY + SLACK


@pytest.mark.timing
def test_a_short_interval_goes_on_with_the_next_tick_when_a_beat_is_killed_before_it_sent_one(
    project: Project, key: str
) -> None:
    """Whether it had left cannot be known: what was due since then is one tick, late by an interval."""
    with project.kept_on(f"{key}@sending"):
        start_apart(project)
        (killed,) = wait_until(lambda: project.leaving(key), PATIENCE, "a beat is about to send")
        beat_of(project, killed).kill()
        died = time.monotonic()
    first, *_ = ticks = project.wait_ticks(key, 3)

    assert first.tick != killed.tick
    assert first.at < died + INTERVAL + STANDBY + 1 + SLACK
    assert_once(ticks)


@pytest.mark.timing
def test_a_beat_that_is_told_to_end_before_it_sends_a_tick_gives_it_back(project: Project, key: str) -> None:
    """SIGTERM between taking and sending: nothing was sent, and another beat sends it within a second."""
    with project.kept_on(f"{key}@taken"):
        start_apart(project, arguments=("-S", "tests.acceptance.scheduled:Gated"))
        (pid,) = wait_until(lambda: project.notes(f"{key}@taken"), PATIENCE, "a beat has taken a tick")
        assert next(beat for beat in project.beats if beat.pid == pid).terminate() == 0
        ended = time.monotonic()
        assert not project.ticks(key)
    first, *_ = ticks = project.wait_ticks(key, 3)

    assert first.pid != pid
    assert first.at < ended + 1 + SLACK
    assert_once(ticks)


@pytest.mark.timing
def test_a_beat_whose_broker_is_away_gives_its_ticks_to_the_others(
    new_project: ProjectMaker, celery_url: str, key: str
) -> None:
    """A publish that the broker never got is no sent tick: another beat, which reaches it, sends it."""
    with EmbeddedServer(port=0) as server, redis.Redis.from_url(server.redis_url) as broker:
        assert server.port is not None
        with faulty_proxy(server.port) as proxy:
            conf = {"redislock_url": celery_url}
            project = new_project(broker=server.url, backend=celery_url, conf=conf)
            project.schedule["often"] = entry(key)
            cut_off, reaching = start_apart(project, {"broker": proxy.url}, {})
            project.wait_ticks(key, 2, server=broker)
            proxy.close()
            before = project.ticks(key, broker)
            ticks = project.wait_ticks(key, len(before) + 3, server=broker)

            assert before[-1].pid == cut_off.pid  # so that it is the first to take the next one
            assert "Message Error" in cut_off.log
            # Its publish is tried again for 0.6 s before it gives up.
            assert_once(ticks, late=1 + STANDBY)
            assert {tick.pid for tick in ticks[len(before) :]} == {reaching.pid}
            assert cut_off.runs
            project.close()


@pytest.mark.timing
def test_an_entry_that_cannot_be_sent_is_logged_and_disturbs_no_other(
    new_project: ProjectMaker, key: str
) -> None:
    """Arguments that make no key: the tick is spent, as with Celery alone, and not tried again and again."""
    project = new_project()
    project.schedule["broken"] = entry(None)  # type: ignore[arg-type]  # it is what is wrong
    project.schedule["often"] = entry(key)
    beats = start_apart(project)
    ticks = project.wait_ticks(key, 5)

    errors = [line for beat in beats for line in beat.log.splitlines() if "Message Error" in line]
    assert 3 <= len(errors) <= 6
    assert_once(ticks)


@pytest.mark.timing
@pytest.mark.parametrize("trouble", ["gone", "silent", "silent after a tick was sent"])
def test_while_the_lock_server_is_away_a_tick_waits_and_plain_entries_are_sent(
    new_project: ProjectMaker, lock_server: EmbeddedServer, key: str, trouble: str
) -> None:
    """The entry is tried again each second, loudly, and sent once on return; beat lives, nobody else waits.

    A server that is silent is waited for once, for two times ``redislock_socket_timeout``.
    """
    plain = f"{key} plain"
    project = new_project(conf={"redislock_url": lock_server.url}, locks=lock_server.redis_url)
    project.schedule["unique"] = entry(key)
    project.schedule["plain"] = entry(plain, 1.0, task=PLAIN)
    with ExitStack() as before_it_says_so:
        if trouble == "silent after a tick was sent":
            before_it_says_so.enter_context(project.kept_on(f"{key}@sent"))
        beat = project.start_beat(plan={"unknown": [PLAIN]})
        project.wait_ticks(key, 1)
        (lock_server.kill if trouble == "gone" else lock_server.pause)()
    away = time.monotonic()
    project.wait_ticks(plain, len(project.ticks(plain)) + 4)
    assert [tick for tick in project.ticks(key) if tick.at > away] == []
    assert [line for line in beat.log.splitlines() if "unique" in line and "ERROR" in line]
    (lock_server.restart if trouble == "gone" else lock_server.resume)()
    back = time.monotonic()
    sent = project.wait_ticks(key, 3)[1:]

    # What was asked for in vain may have been done, so that the tick is taken, by this beat.
    assert sent[0].at < back + 1 + INTERVAL + SLACK
    assert_once(sent)
    waits = [gap - 1 for gap in gaps(project.ticks(plain)) if gap > 1 + SLACK]
    assert len(waits) <= (trouble != "gone")
    assert max(waits, default=0.0) < 2 * SOCKET_TIMEOUT + SLACK
    assert beat.runs


@pytest.mark.timing
def test_while_the_lock_server_is_away_ticks_are_sent_where_that_is_asked_for(
    new_project: ProjectMaker, lock_server: EmbeddedServer, key: str
) -> None:
    """``redislock_on_lock_error="run"``: each beat sends, as without this package."""
    conf = {"redislock_url": lock_server.url, "redislock_on_lock_error": "run"}
    project = new_project(conf=conf, locks=lock_server.redis_url)
    project.schedule["unique"] = entry(key)
    project.start_beat()
    project.wait_ticks(key, 1)
    lock_server.kill()
    away = time.monotonic()

    ticks = wait_until(
        lambda: sent if len(sent := [tick for tick in project.ticks(key) if tick.at > away]) == 3 else [],
        PATIENCE,
        "three ticks are sent without a lock server",
    )
    assert max(gaps(ticks)) < INTERVAL + SLACK


@pytest.mark.timing
def test_entries_of_one_name_in_two_apps_are_told_apart(new_project: ProjectMaker, key: str) -> None:
    """Two apps on one server and prefix, each with its own beat: each sends all its ticks."""
    project = new_project()
    others = f"{key} of another app"
    project.schedule["often"] = entry(key)
    other = {"main": "another", "schedule": {"often": entry(others)}}
    start_apart(project, {}, other)

    assert_once(project.wait_ticks(key, 4))
    assert_once(project.wait_ticks(others, 4))


@pytest.mark.timing
def test_a_shared_state_that_cannot_be_read_stops_no_schedule(new_project: ProjectMaker, key: str) -> None:
    """Rubbish, another version, another type: a warning, treated as absent: the beats know what was sent."""
    rubbish = ["rubbish", "0 0 {}", '0 0 {"v": 99}', "99999999999999999999 0 null", b"\xff\x00", ["a list"]]
    project = new_project()
    keys = [f"{key} {number}" for number in range(len(rubbish))]
    project.schedule.update({f"often {each}": entry(each) for each in keys})
    beats = start_apart(project)
    last = max(project.wait_ticks(each, 2)[-1].at for each in keys)
    # Both have asked for that tick, but not for the next one: who had not would send it again.
    time.sleep(max(0.0, last + INTERVAL / 2 - time.monotonic()))
    names = list(project.redis.scan_iter(f"{project.plan['prefix']}:redislock:{{*}}:beat", count=1000))
    for name, value in zip(names, rubbish, strict=True):
        project.redis.delete(name)
        if isinstance(value, list):
            project.redis.rpush(name, *value)
        else:
            project.redis.set(name, value)

    for each in keys:
        assert_once(project.wait_ticks(each, 5))
    assert any("WARNING" in line and "state" in line for beat in beats for line in beat.log.splitlines())


@pytest.mark.timing
def test_the_setting_says_which_entries_are_sent_once(new_project: ProjectMaker, key: str) -> None:
    """``redislock_beat``: patterns, for tasks that are not unique, or that beat does not import."""
    sent_twice = f"{key} twice"
    project = new_project(conf={"redislock_beat": ["guarded*"]})
    project.schedule["guarded plain"] = entry(key, task=PLAIN)
    project.schedule["left alone"] = entry(sent_twice, task=PLAIN)
    start_apart(project, {"unknown": [PLAIN]}, {"unknown": [PLAIN]})

    assert_once(project.wait_ticks(key, 4))
    assert min(gaps(project.wait_ticks(sent_twice, 6))) < INTERVAL - SLACK


def test_a_scheduler_that_goes_its_own_way_ends_beat_with_a_sentence(
    new_project: ProjectMaker, key: str
) -> None:
    """Its ticks could come twice, which nobody would notice; ``redislock_beat=False`` lets it run."""
    own = ("-S", "tests.acceptance.scheduled:OwnTick")
    project = new_project()
    project.schedule["often"] = entry(key, 1.0)
    beat = project.launch_beat(*own)
    assert beat.wait_ended(PATIENCE) != 0
    assert "OwnTick" in beat.log
    assert "redislock_beat" in beat.log
    assert not project.ticks(key)

    project = new_project(conf={"redislock_beat": False})
    project.schedule["often"] = entry(key, 1.0)
    project.start_beat(*own)
    project.wait_ticks(key, 2)


@pytest.mark.timing
@pytest.mark.parametrize("is_locked", [True, False], ids=["locked", "without its lock"])
def test_redbeat_is_left_alone(new_project: ProjectMaker, key: str, is_locked: bool) -> None:
    """It elects one beat that sends; where that is switched off, a warning says what happens."""
    pytest.importorskip("redbeat")
    project = new_project(conf={} if is_locked else {"redbeat_lock_key": None})
    prefix = f"{project.plan['prefix']}:redbeat:"
    project.plan["conf"].update(redbeat_redis_url=project.plan["journal"], redbeat_key_prefix=prefix)
    project.schedule["often"] = entry(key, 1.0)
    first, second = start_apart(project, arguments=("-S", "redbeat.RedBeatScheduler", "--max-interval", "1"))
    ticks = project.wait_ticks(key, 4)

    assert {tick.tick for tick in ticks} == {None}
    assert ("RedBeat's lock is off" in first.log, "RedBeat's lock is off" in second.log) == (
        not is_locked,
    ) * 2
    assert {tick.pid for tick in ticks} == ({first.pid} if is_locked else {first.pid, second.pid})


@pytest.mark.timing
def test_a_beat_inside_each_of_two_workers_sends_each_tick_once(
    new_project: ProjectMaker, key: str, tmp_path: Path
) -> None:
    """``celery worker -B``: for development, says Celery, and started twice by accident."""
    project = new_project()
    project.schedule["often"] = entry(key, task="project.executed")
    plan = {**project.plan, "schedule": project.schedule}
    for place in range(2):
        options = ("-B", "-s", str(tmp_path / f"schedule-{place}"))
        project.workers.append(Worker(plan, "prefork", 1, options, app="tests.acceptance.scheduled"))
        project.workers[-1].wait_ready()
        time.sleep(INTERVAL / 2)

    project.wait_ended(key, 4)
    assert_once(project.leaving(key)[:4])
    task_ids = [body.task_id for body in project.bodies(key)]
    assert len(set(task_ids)) == len(task_ids)


@pytest.mark.parametrize("unknown", [[], ["project.executed"]], ids=["imported", "by its name"])
def test_a_task_slower_than_its_interval_is_skipped_while_it_runs(
    new_project: ProjectMaker, key: str, unknown: list[str]
) -> None:
    """Its ticks are duplicates of the run, and none waits; also where beat does not import the task."""
    project = new_project()
    project.schedule["often"] = {**entry(key, 0.5, "project.executed"), "kwargs": {"seconds": 2.0}}
    project.start_worker("prefork", concurrency=4)
    project.start_beat(plan={"unknown": unknown})
    bodies = project.wait_ended(key, 3)

    assert project.overlaps(key, killed=len(bodies) - 3) == []
    assert len(project.leaving(key)) >= (2 if unknown == [] else 8)
    assert project.queued() == 0


def test_a_task_slower_than_its_interval_waits_where_that_is_asked_for(
    new_project: ProjectMaker, key: str
) -> None:
    """``while_executing``: its ticks run one after the other, and none is dropped."""
    project = new_project()
    project.schedule["often"] = {**entry(key, 0.5), "kwargs": {"seconds": 1.0}}
    project.start_worker("prefork", concurrency=4)
    beat = project.start_beat()
    wait_until(lambda: len(project.leaving(key)) >= 6, PATIENCE, "six ticks are sent")
    beat.kill()
    *sure, last = (tick.task_id for tick in project.leaving(key))
    sent = set(sure)

    def left() -> set[str]:
        return sent - {body.task_id for body in project.bodies(key) if body.ended_by == ""}

    wait_until(lambda: not left(), PATIENCE, "all have run")
    if last in project.received():  # it may not have left when the beat was killed
        sent.add(last)
        wait_until(lambda: not left(), PATIENCE, "the last one has run")
    assert project.overlaps(key) == []


def test_a_sole_beat_sends_as_without_this_package(new_project: ProjectMaker, key: str) -> None:
    """It notices nothing: its entries keep their phase, to a few milliseconds."""
    plain = f"{key} plain"
    project = new_project()
    project.schedule["unique"] = entry(key, 1.0)
    project.schedule["plain"] = entry(plain, 1.0, task=PLAIN)
    project.start_beat()
    project.wait_ticks(plain, 5)

    apart = [u.at - p.at for u, p in zip(project.ticks(key), project.ticks(plain), strict=False)]
    assert max(map(abs, apart)) < SLACK
    assert throughout(0.0, lambda: len(project.ticks(key))) >= [4]
