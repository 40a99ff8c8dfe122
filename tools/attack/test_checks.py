"""The checks of ``make attack``: each finds what it is for, and nothing in a history that keeps the laws."""

from typing import Any

import pytest

from tools.attack import checks
from tools.attack.checks import Facts
from tools.attack.draw import BROKERS, LOCK_SERVERS, draw

CALL = {"task": "t", "number": 1, "id": "a", "early": False, "droppable": False, "fixed": False}
DONE = Facts(calls=[[CALL]], finished={1: 0}, states={"a": ("SUCCESS", "")})


def facts(*, calls: Any = ({},), **about: Any) -> Facts:
    """What is known about calls that differ from ``CALL`` in what is given."""
    given = {"finished": {}, "states": {"a": ("PENDING", "")}, **about}
    return Facts(calls=[[{**CALL, **call} for call in calls]], **given)


def body(start: float = 0.0, fence: int = 1, **about: Any) -> dict[str, Any]:
    """A body that has begun."""
    known = {"task": "t", "number": 1, "id": "a", "retries": 0, "pid": 1, "key": "k", "message": None}
    return {**known, "fence": fence, "start": start, "deadline": start + 9, **about}


@pytest.mark.parametrize(
    ("known", "fate"),
    [
        (DONE, "finished"),
        (facts(), "lost: PENDING "),
        (facts(states={"a": ("FAILURE", "KeyError")}), "lost: FAILURE KeyError"),
        (facts(states={"a": ("REVOKED", "")}), "lost: REVOKED "),
        (facts(finished={1: 0}), "lost: the result, which is PENDING"),
        (facts(finished={1: 0}, asked={1: 1}, states={"a": ("SUCCESS", "")}), "lost: SUCCESS "),
        (facts(finished={1: 1}, asked={1: 1}, states={"a": ("SUCCESS", "")}), "finished"),
        (facts(revoked=frozenset("a")), "revoked"),
        (facts(calls=[{"droppable": True}], states={"a": ("REVOKED", "")}), "dropped as a duplicate"),
        (facts(calls=[{"droppable": True}]), "lost: PENDING "),
        (facts(in_dead_hands=frozenset("a")), "lost: PENDING "),
        (facts(calls=[{"early": True}], in_dead_hands=frozenset("a")), "died with its worker"),
        (facts(calls=[{"early": True}], received_by_dead=frozenset("a")), "lost: PENDING "),
        (facts(calls=[{"early": True}]), "lost: PENDING "),
        (
            facts(calls=[{"early": True, "fixed": True}], received_by_dead=frozenset("a")),
            "died with its worker",
        ),
        (facts(finished={1: 0}, in_dead_hands=frozenset("a")), "lost: the result, which is PENDING"),
        (
            facts(calls=[{"early": True}], finished={1: 0}, in_dead_hands=frozenset("a")),
            "died with its worker",
        ),
        (facts(in_flight=1), "sent to a worker that was killed"),
        (facts(in_flight=1, received=frozenset("a")), "lost: PENDING "),
        (facts(in_flight=1, states={"a": ("FAILURE", "KeyError")}), "lost: FAILURE KeyError"),
        (facts(states={"a": ("FAILURE", "WorkerLostError")}), "died with its child"),
        (facts(states={"a": ("FAILURE", "WorkerLostError")}, asked={1: 1}), "lost: FAILURE WorkerLostError"),
    ],
)
def test_what_plain_celery_would_not_lose_is_told_from_the_rest(known: Facts, fate: str) -> None:
    assert list(checks.fates(known).values()) == [fate]


def test_a_killed_worker_takes_no_more_messages_with_it_than_redis_has_sent_to_it() -> None:
    calls = [[CALL], [{**CALL, "number": 2, "id": "b"}]]
    found = checks.fates(Facts(calls=calls, in_flight=1)).values()

    assert sorted(found) == ["lost: PENDING ", "sent to a worker that was killed"]


@pytest.mark.parametrize(
    ("dead", "living", "is_in_hand"),
    [
        (["00,001 received"], [], True),
        (["00,001 received", "00,001 ignored"], [], False),
        (["00,001 received"], ["00,002 received"], False),
        (["00,003 received"], ["00,001 received", "00,002 retry: Retry in 1s"], True),
        (["00,001 received", "00,002 ignored", "00,009 received"], ["00,005 received", "00,006 retry"], True),
        ([], ["00,001 received"], False),
    ],
)
def test_a_killed_worker_has_in_hand_what_was_not_seen_again(
    dead: list[str], living: list[str], is_in_hand: bool
) -> None:
    """A call that it had passed on, or that another worker received since, did not die with it."""
    logs = [
        "\n".join(
            f"[2026-01-01 00:00:{time}: INFO/MainProcess] Task t[a\x1b[31m] {what}" for time, what in steps
        )
        for steps in ([line.split(" ", 1) for line in lines] for lines in (dead, living))
    ]

    assert checks.in_hand(logs[:1], logs[1:]) == (frozenset({"a\x1b[31m"}) if is_in_hand else frozenset())


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
        # What was paused beyond its lease, and killed, counts as long as it could be trusted.
        (body(10.0, 2), {"x": (12.0, "LockLost", 9.0)}, 0),
        (body(8.0, 2), {}, 0),
    ],
)
def test_two_bodies_at_once_under_a_key_or_of_one_message_are_found(
    second: Any, ends: Any, found: int
) -> None:
    starts = {"x": body(message="m"), "y": second}

    assert len(checks.overlaps(starts, {"x": [3.0, 9.0]}, {**ends, "y": (20.0, "", 30.0)})) == found


@pytest.mark.parametrize(
    ("key", "left", "value", "found"),
    [
        ("redislock:{k}:lock", 5, b'a/1\0{"state":"running"}', True),
        ("redislock:{k}:lock", 5, b'a/1\0{"state":"queued"}', False),
        ("redislock:{k}:lock", 5, b'b/1\0{"state":"queued"}', True),
        ("redislock:{k}:period", 5, b"a/1\0{}", False),
        ("redislock:{k}:mark:m", -1, b"done", True),
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
        ("celery_redislock/locks/store.py", "KeyError: 'x'", True),
        ("celery_redislock/locks/store.py", "celery_redislock.exceptions.LockLost: gone", False),
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
    assert checks.unexplained(["a", "n%00l", "b"], ["a", "n\0l"]) == ["b"]


def test_a_seed_draws_the_same_round_again() -> None:
    kinds = BROKERS, LOCK_SERVERS

    assert draw(3, 4, *kinds) == draw(3, 4, *kinds) != draw(3, 5, *kinds)
