"""The checks of ``make attack``: each finds what it is for, and nothing in a history that keeps the laws."""

import json
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_redislock.locks import connect
from celery_redislock.store.store import Entry as Waiting
from tests.servers import EmbeddedServer
from tools.attack import checks
from tools.attack.checks import Entry, Facts
from tools.attack.draw import BROKERS, HOT, LOCK_SERVERS, draw, draw_hot, draw_line, draw_round, hot_tasks
from tools.attack.lines import Lines
from tools.attack.record import Record, written

CALL = {"task": "t", "number": 1, "id": "a", "early": False, "droppable": False, "fixed": False}
DONE = Facts(calls=[[CALL]], finished={1: 0}, states={"a": ("SUCCESS", "")})


def facts(*, calls: Any = ({},), **about: Any) -> Facts:
    """What is known about calls that differ from ``CALL`` in what is given."""
    given = {"finished": {}, "states": {"a": ("PENDING", "")}, **about}
    return Facts(calls=[[{**CALL, **call} for call in calls]], **given)


def of_dead(messages: set[str] | None, **about: Any) -> Facts:
    """What is known of a call that a dead worker had received, and that is acknowledged early."""
    known = {"calls": [{"early": True}], "received_by_dead": frozenset("a"), **about}
    return facts(messages=messages and {"a": messages}, **known)


def of_quiet_retry(killed: set[tuple[int, int]], taken_for_done: set[str]) -> Facts:
    """What is known of a call whose first body asked for a retry, went on, and stored its success."""
    known = {"finished": {1: 0}, "asked": {1: 1}, "states": {"a": ("SUCCESS", "")}}
    return facts(**known, killed=frozenset(killed), taken_for_done=frozenset(taken_for_done))


def body(start: float = 0.0, fence: int = 1, **about: Any) -> dict[str, Any]:
    """A body that has begun."""
    known = {"task": "t", "number": 1, "id": "a", "retries": 0, "pid": 1, "key": "k", "message": None}
    return {"limit": 1, **known, "fence": fence, "start": start, "deadline": start + 9, **about}


#: Of calls whose newest has to run.
NEWEST = {"of": "t k", "takes_part": True, "is_numbered": True}
MERGED = {"newest": NEWEST, "droppable": True}


@pytest.mark.parametrize(
    ("known", "fate"),
    [
        (DONE, "finished"),
        (facts(calls=[MERGED], states={"a": ("SUCCESS", "")}, bodies={("a", 0): "begun"}), "finished"),
        (facts(calls=[MERGED], states={"a": ("SUCCESS", "")}), "lost: SUCCESS "),
        (facts(), "lost: PENDING "),
        (facts(states={"a": ("FAILURE", "KeyError")}), "lost: FAILURE KeyError"),
        (facts(states={"a": ("REVOKED", "")}), "lost: REVOKED "),
        (facts(finished={1: 0}), "lost: the result, which is PENDING"),
        (facts(finished={1: 0}, asked={1: 1}, states={"a": ("SUCCESS", "")}), "lost: SUCCESS "),
        (facts(finished={1: 1}, asked={1: 1}, states={"a": ("SUCCESS", "")}), "finished"),
        (facts(revoked=frozenset("a")), "revoked"),
        (facts(calls=[{"droppable": True}], states={"a": ("REVOKED", "")}), "dropped as a duplicate"),
        (facts(calls=[{"droppable": True}]), "lost: PENDING "),
        (facts(calls=[{"early": True}]), "lost: PENDING "),
        (facts(received_by_dead=frozenset("a")), "lost: PENDING "),
        (facts(received_by_dead=frozenset("a"), finished={1: 0}), "lost: the result, which is PENDING"),
        (of_dead(None, finished={1: 0}), "died with its worker"),
        (of_dead(None, begun={1: 0}), "died with its worker"),
        (of_dead(None, begun={1: 0}, asked={1: 1}), checks.NOT_BEGUN),
        (facts(in_flight=1, messages={"a": {"pushed"}}), checks.TAKEN),
        (
            facts(in_flight=1, messages={"a": {"pushed"}}, waited=frozenset("a")),
            f"lost: it had waited in line; {checks.TAKEN}",
        ),
        (
            of_dead({"acknowledged"}, waited=frozenset("a")),
            f"lost: it had waited in line; {checks.NOT_BEGUN}",
        ),
        (of_dead({"acknowledged"}, waited=frozenset("b")), checks.NOT_BEGUN),
        (facts(in_flight=1, messages={"a": {"acknowledged"}}), "lost: PENDING "),
        (facts(in_flight=0, messages={"a": {"pushed"}}), "lost: PENDING "),
        (of_dead({"acknowledged"}), checks.NOT_BEGUN),
        (of_dead({"acknowledged"}, begun={1: 0}), "died with its worker"),
        (of_dead({"acknowledged", "in hand"}), "lost: acknowledged, in hand, and not begun"),
        (of_dead({"in hand"}, asked={1: 1}, begun={1: 0}, bodies={("a", 0): "killed"}), checks.WAITS),
        (
            of_dead({"pushed"}, asked={1: 1}, begun={1: 0}, bodies={("a", 0): "killed"}),
            "lost: pushed, and not begun",
        ),
        (facts(states={"a": ("FAILURE", "WorkerLostError")}), "died with its child"),
        (facts(states={"a": ("FAILURE", "WorkerLostError")}, asked={1: 1}), "lost: FAILURE WorkerLostError"),
        (of_quiet_retry(killed={(1, 1)}, taken_for_done={"a"}), "died with its child"),
        (of_quiet_retry(killed={(1, 0)}, taken_for_done={"a"}), "lost: SUCCESS "),
        (of_quiet_retry(killed={(2, 1)}, taken_for_done={"a"}), "lost: SUCCESS "),
        (of_quiet_retry(killed={(1, 1)}, taken_for_done=set()), "lost: SUCCESS "),
    ],
)
def test_what_plain_celery_would_not_lose_is_told_from_the_rest(known: Facts, fate: str) -> None:
    assert list(checks.fates(known).values()) == [fate]


@pytest.mark.parametrize(
    ("steps", "last"),
    [("P", "pushed"), ("PH", "in hand"), ("PHD", "acknowledged"), ("PHPD", "pushed"), ("PHDP", "pushed"),
     ("PHDPHD", "acknowledged"), ("PH!", "in hand")],
)  # fmt: skip
def test_a_record_tells_what_the_broker_was_last_told_of_a_message(
    tmp_path: Path, steps: str, last: str
) -> None:
    """Restored messages are pushed before they are deleted, or after it; the last write may be half there."""
    message = json.dumps({"headers": {"id": "a"}, "properties": {"delivery_tag": "tag"}})
    hold, delete = ("HSET", "unacked", "tag", f'[{message}, "", "queue"]'), ("hdel", "unacked", "tag")
    commands = {"P": ("LPUSH", "queue", message), "H": hold, "D": delete}
    texts = ["".join(f"${len(word)}\r\n{word}\r\n" for word in commands.get(step, delete)) for step in steps]
    text = "".join(f"*{text.count('$')}\r\n{text}" for text in texts)
    (tmp_path / "appendonlydir").mkdir()
    log = tmp_path / "appendonlydir" / "appendonly.aof.1.incr.aof"
    log.write_bytes(text.encode()[: -9 if "!" in steps else None])

    assert Record(tmp_path, "queue").messages() == {"a": {last}}


@pytest.mark.parametrize(
    ("about", "end", "hits", "found"),
    [
        ({"early": False}, (1.0, "", 9.0), [], True),
        ({"early": False}, (1.0, "OnPurpose", None), [], True),
        ({"early": False}, (1.0, "", 9.0), [(1.3, 1)], False),
        ({"early": False}, (1.0, "", 9.0), [(1.3, 2), (0.5, 1), (2.0, 1)], True),
        ({"early": False}, (1.0, "", 0.8), [], False),
        ({"early": False}, (1.0, "LockLost", 9.0), [], False),
        ({"early": False}, None, [], False),
        ({"early": True}, None, [(1.3, 1)], True),
        ({"early": False, "message": None}, (1.0, "", 9.0), [], False),
        ({"early": True, "number": -1}, None, [], False),
    ],
)
def test_a_body_that_begins_again_without_an_excuse_is_found(
    about: Any, end: Any, hits: Any, found: bool
) -> None:
    """Only what is acknowledged late, and was killed while it ran or lost its lease, runs once more."""
    known = {"message": "m", **about}
    starts = {"x": body(**known), "y": body(2.0, **known)}

    assert bool(checks.repeated(starts, {"x": end} if end else {}, hits)) is found


@pytest.mark.parametrize(
    ("second", "ended_by", "number"),
    [({}, "", 1), ({}, "LockLost", 0), ({"retries": 1}, "", 0), ({"id": "b"}, "", 0)],
)
def test_messages_whose_bodies_ended_twice_are_counted(
    second: dict[str, Any], ended_by: str, number: int
) -> None:
    starts = {"x": body(), "y": body(2.0, **second), "z": body(4.0)}

    assert checks.ended_twice(starts, {"x": (1.0, "", 9.0), "y": (3.0, ended_by, 9.0)}) == number


@pytest.mark.parametrize("again", [{"retries": 1}, {"message": "n"}, {"number": 2}])
def test_another_message_of_a_call_is_no_body_that_begins_again(again: dict[str, Any]) -> None:
    """A retry, and the retry of what was killed and has asked for it once more."""
    starts = {"x": body(early=False, message="m"), "y": body(2.0, early=False, **{"message": "m", **again})}

    assert checks.repeated(starts, {"x": (1.0, "", 9.0)}, []) == []


@pytest.mark.parametrize(
    ("entry", "is_found"),
    [
        (Entry("a", 0, "name+", is_late=True), True),
        (Entry("a", 0, "name", is_late=False), False),
        (Entry("a", 1, "name", is_late=False), True),
        (Entry("b", 1, "name", is_late=False), False),
        (Entry("b", 1, "name+", is_late=True), True),
        (Entry("c", 0, "", is_late=False), True),
        (Entry("forged-1", 0, "name", is_late=False), False),
    ],
)
def test_what_the_broker_keeps_for_a_worker_at_the_end_is_found(entry: Entry, is_found: bool) -> None:
    known = facts(bodies={("a", 0): "begun", ("b", 0): "killed"})

    assert bool(checks.left_in_hand([entry], known)) is is_found


def test_what_a_dead_worker_had_needs_no_lock_where_it_is_restored() -> None:
    dead = {"received_by_dead": frozenset("a"), "finished": {1: 0}, "states": {"a": ("SUCCESS", "")}}

    assert (checks.over(facts(**dead)), checks.over(facts(**dead, messages={}))) == ([], ["a"])


def test_a_killed_worker_takes_no_more_messages_with_it_than_redis_has_sent_to_it() -> None:
    calls = [[CALL], [{**CALL, "number": 2, "id": "b"}]]
    messages = {name: frozenset({"pushed"}) for name in "ab"}
    found = checks.fates(Facts(calls=calls, in_flight=1, messages=messages)).values()

    assert sorted(found) == [checks.TAKEN, "lost: PENDING "]


@pytest.mark.parametrize(
    ("first", "rest"), [("REVOKED", "its workflow broke"), ("PENDING", "lost: PENDING ")]
)
def test_a_workflow_may_miss_what_follows_a_link_that_ended_otherwise(first: str, rest: str) -> None:
    calls = [{"droppable": first == "REVOKED"}, {"number": 2, "id": "b"}]
    states = {"a": (first, ""), "b": ("PENDING", "")}

    assert list(checks.fates(facts(calls=calls, states=states)).values())[1] == rest


@pytest.mark.parametrize(
    ("second", "ends", "found"),
    [
        (body(2.0, 2), {"x": (1.0, "", 9.0)}, 0),
        (body(0.5, 2), {"x": (1.0, "", 9.0)}, 1),
        (body(0.5, 2, key="other"), {"x": (1.0, "", 9.0)}, 0),
        (body(0.5, 2, key="other", message="m"), {"x": (1.0, "", 9.0)}, 1),
        (body(2.0, 1), {"x": (1.0, "", 9.0)}, 1),
        (body(0.5, 2, key="j k"), {"x": (1.0, "", 9.0)}, 1),
        (body(0.5, 2, key="j kk"), {"x": (1.0, "", 9.0)}, 0),
        # What was paused beyond its lease, and killed, counts as long as it could be trusted.
        (body(10.0, 2), {"x": (12.0, "LockLost", 9.0)}, 0),
        (body(8.0, 2), {}, 0),
        # One that knows a limit lets others in up to the least of what they know; the first knows of none.
        (body(0.5, 2, limit=3), {"x": (1.0, "", 9.0)}, 1),
    ],
)
def test_two_bodies_at_once_under_a_key_or_of_one_message_are_found(
    second: Any, ends: Any, found: int
) -> None:
    starts = {"x": body(message="m"), "y": second}

    assert len(checks.overlaps(starts, {"x": [3.0, 9.0]}, {**ends, "y": (20.0, "", 30.0)})) == found


@pytest.mark.parametrize(("limits", "found"), [((3, 3, 3), 0), ((3, 2, 3), 1), ((2, 3), 0), ((1, 3), 1)])
def test_more_bodies_than_the_least_limit_they_know_are_found(limits: tuple[int, ...], found: int) -> None:
    starts = {f"{n}": body(n / 10, 0, number=n, id=f"{n}", limit=limit) for n, limit in enumerate(limits)}
    for each in starts.values():
        each["fence"] = None
    ends = dict.fromkeys(starts, (1.0, "", 9.0))

    assert len(checks.overlaps(starts, {}, ends)) == found


@pytest.mark.parametrize(
    ("key", "left", "value", "found"),
    [
        ("redislock:{k}:lock", 5, b'a/1\0{"state":"running"}', True),
        ("redislock:{k}:lock", 5, b'a/1\0{"state":"queued"}', False),
        ("redislock:{k}:lock", 5, b'b/1\0{"state":"queued"}', True),
        ("redislock:{k}:lock", 5, b'b/1\0{"state":"queued","line":1}', False),
        ("redislock:{k}:lock", 3_600_000, b'b/1\0{"state":"queued","line":1}', True),
        ("redislock:{k}:parked", -1, b"", True),
        ("redislock:{k}:period", 5, b"a/1\0{}", False),
        ("redislock:{k}:mark:m", -1, b"1", True),
        ("redislock:index", -1, b"", True),
    ],
)
def test_what_is_left_and_what_lives_for_ever_is_found(
    key: str, left: int, value: bytes, found: bool
) -> None:
    assert bool(checks.left_behind({key: (left, value)}, ["b"])) is found


@pytest.mark.parametrize(
    ("path", "error", "found"),
    [
        ("celery_redislock/store/store.py", "KeyError: 'x'", True),
        ("celery_redislock/store/store.py", "celery_redislock.exceptions.LockLost: gone", False),
        ("celery/app/trace.py", "KeyError: 'x'", False),
    ],
)
def test_a_traceback_that_passes_through_the_package_is_found_in_a_log(
    path: str, error: str, found: bool
) -> None:
    raised = f'Traceback (most recent call last):\n  File "/x/{path}", line 1, in f\n    f()\n{error}\n'
    cause = 'Traceback (most recent call last):\n  File "/x/y.py", line 1, in f\nLookupError: no\n\n'
    direct = "The above exception was the direct cause of the following exception:\n\n"

    assert len(checks.tracebacks(f"[INFO] before\n{cause}{direct}{raised}[INFO] after\n")) == found


def test_a_refusal_for_nobodys_sake_is_found() -> None:
    assert checks.unexplained(["a", "n\0l", "b"], ["a", "n\0l"]) == ["b"]


@pytest.mark.parametrize(
    ("writes", "found"),
    [
        ("park a 1, park b 2, hand a, leave a, hand b, leave b", 0),
        ("park a 1, park b 2, hand b", 1),
        ("park a 1, park b 0.5, hand b, leave b, hand a", 0),
        ("park a 1, park b 2, leave a, hand b", 0),
        # Given, and not settled yet; its run takes over the claim.
        ("park a 1, park b 2, hand a, run x, leave a, free, hand b", 0),
        # On its way before those that wait; a retry that was handed the lock, and came before that.
        ("park a 1, hand c, run x", 0),
        ("park a 1, park b 2, run b, hand b, leave b", 0),
        ("park a 1, park b 2, run b, free, hand b", 1),
    ],
)
def test_who_is_handed_a_lock_before_the_first_in_line_is_found(writes: str, found: int) -> None:
    commands: list[list[bytes]] = [[b"MULTI"], [b"SELECT", b"0"]]
    for write in writes.split(", "):
        verb, *arguments = write.encode().split()
        entry, score = [*arguments, b"", b""][:2]
        commands.append({
            b"park": [b"ZADD", b"l:{n}:line", score, entry],
            b"leave": [b"ZREM", b"l:{n}:line", entry],
            b"hand": [b"SET", b"l:{n}:lock", entry + b'\0{"state":"queued","line":1}', b"PXAT", b"9"],
            b"run": [b"SET", b"l:{n}:lock", entry + b'\0{"state":"running"}', b"PXAT", b"9"],
            b"free": [b"DEL", b"l:{n}:lock"],
        }[verb])  # fmt: skip

    assert len(Lines().read(commands).out_of_turn) == found


def test_a_seed_draws_the_same_round_again() -> None:
    kinds = BROKERS, LOCK_SERVERS

    assert draw(3, 4, *kinds) == draw(3, 4, *kinds) != draw(3, 5, *kinds)


def test_every_second_round_is_of_hot_keys_and_all_brokers_take_turns() -> None:
    kinds = BROKERS, LOCK_SERVERS
    rounds = [draw_round(3, number, *kinds, hot=None, kills=False) for number in range(1, 25)]

    assert {drawn.where for drawn in rounds[::2]} == {""}
    assert {drawn.broker for drawn in rounds[::2]} == set(BROKERS)
    assert {drawn.where for drawn in rounds[1::2]} == set(HOT)


@pytest.mark.parametrize("where", HOT)
def test_a_seed_draws_the_same_hot_keys_again_and_a_deploy_other_options_of_the_same_tasks(
    where: str,
) -> None:
    drawn = draw_hot(3, 4, where)
    deployed = hot_tasks(random.Random(1))  # noqa: S311  not for secrets

    assert drawn == draw_hot(3, 4, where) != draw_hot(3, 5, where)
    assert (drawn.where, draw_line(3, 4, where).where) == (where, where)
    assert drawn.tasks != deployed
    # What a round keeps of a call beside its task's options.
    for name, options in deployed.items():
        assert options["acks_late"] == drawn.tasks[name]["acks_late"]
        assert isinstance(options["lock_key"], list) == (len(drawn.keys[name][0]) == 2)


def test_the_record_of_a_real_server_tells_who_was_parked_and_handed_on(tmp_path: Path) -> None:
    """First by the scripts, then by somebody who passes over the first in line."""
    turn = '{"state":"queued","line":1}'
    # By default a server may be seconds late with its file, while an earlier write is on its way to the disk.
    at_once = ["--appendfsync", "always"]
    with (
        EmbeddedServer(data_dir=tmp_path, extra_args=at_once) as server,
        closing(connect(server.redis_url)) as store,
    ):
        store.acquire("n", "a/1", 30.0, facts="{}")
        for token in ("b/1", "c/1", "d/1"):
            store.park("n", token, Waiting("push", "q", 30.0, turn, token), nonce=token[0])
        store.release("n", "a/1")
        lines = Lines().read(written(tmp_path))
        assert (lines.seen, lines.out_of_turn) == ({"parked": 3, "handed on": 1}, [])
        assert (lines.waited, lines.started) == ({"b", "c", "d"}, set())

        facts = '{"state":"running","message":"b/1"}'
        store.acquire("n", "b/run", 30.0, facts=facts, instead_of="b/1")
        assert Lines().read(written(tmp_path)).started == {"b"}

        with redis.Redis.from_url(server.redis_url) as client:
            client.set("redislock:{n}:lock", f"d/1\0{turn}", px=30_000)
        assert len(Lines().read(written(tmp_path)).out_of_turn) == 1


def test_a_server_keeps_its_record_whole_however_long_it_is(tmp_path: Path) -> None:
    """Redis rewrites its file above 64 MB, and what became of a message is not in it any more."""
    with (
        EmbeddedServer(data_dir=tmp_path) as server,
        redis.Redis.from_url(server.redis_url, decode_responses=True) as client,
    ):
        assert client.config_get("auto-aof-rewrite-percentage") == {"auto-aof-rewrite-percentage": "0"}


@pytest.mark.parametrize(
    ("changes", "outcome", "known", "is_found"),
    [
        ({}, ("accepted", "b"), {}, True),
        ({}, ("refused", "a"), {}, True),
        ({}, ("accepted", "b"), {"begun": {2: 0}}, False),
        ({}, ("accepted", "b"), {"revoked": frozenset("b")}, False),
        ({}, ("refused", "a"), {"received_by_dead": frozenset("a")}, False),
        ({}, ("accepted", "b"), {"bodies": {("b", 0): "killed"}}, False),
        ({}, ("failed", "OperationalError"), {}, False),
        ({"takes_part": False}, ("accepted", "b"), {"begun": {1: 0}}, False),
        ({"is_numbered": False}, ("accepted", "b"), {}, False),
        ({"of": "t another"}, ("accepted", "b"), {"begun": {2: 0}}, True),
    ],
)
def test_the_newest_call_that_did_not_run_is_found(
    changes: dict[str, Any], outcome: tuple[str, str], known: dict[str, Any], is_found: bool
) -> None:
    """Two calls of a task and a key; nobody has run the first one either, unless it is said."""
    later = {**CALL, "number": 2, "id": "b", "newest": {**NEWEST, **changes}}
    attempts = {"1": [{**CALL, "newest": NEWEST}], "2": [later]}
    outcomes = {"1": ("accepted", "a"), "2": outcome}
    assert bool(checks.outdated(attempts, outcomes, facts(**known))) is is_found


@pytest.mark.parametrize(("last", "found"), [(1999, 1), (2000, 0)])
def test_a_key_that_starts_more_often_than_its_rate_says_is_found(last: int, found: int) -> None:
    """By what the lock server has written, each key by itself."""
    times = [(b"a", 0), (b"a", 1), (b"b", 1), (b"a", 1000), (b"b", 1001), (b"a", last)]
    commands = [[b"LPUSH", b"redislock:{%b}:starts:2000" % key, b"%d a/1" % at] for key, at in times]
    assert len(checks.too_often(commands)) == found
