"""Scopes and strategies: what each scope takes when, and which strategy counts on which side."""

import threading

import pytest

from celery_redislock.declaring.scopes import SCOPES
from tests.unit.declaring.asking import called, decide, problems, read


@pytest.mark.parametrize(
    ("name", "claim", "lease", "client", "server"),
    [
        ("until_executed", "end", True, "skip", "skip"),
        ("until_executing", "start", False, "skip", "skip"),
        ("until_expired", "period", False, "skip", "skip"),
        ("while_executing", None, True, None, "wait"),
        ("until_and_while_executing", "start", True, "skip", "wait"),
    ],
)
def test_a_scope_says_when_it_locks_and_what_its_duplicates_do(name, claim, lease, client, server):
    """What was not refused at publish is never dropped by default."""
    options = read({"lock": name, "lock_period": 60})
    scope = options.scope
    assert scope is SCOPES[name]
    assert (scope.claim, scope.lease) == (claim, lease)
    assert (options.client, options.server) == (client, server)


@pytest.mark.parametrize(
    ("scope", "asked", "expected"),
    [
        ("until_executed", "raise", ("raise", "raise")),
        ("until_executed", {"client": "raise"}, ("raise", "skip")),
        ("until_executed", {"server": "wait", "client": None}, ("skip", "wait")),
        ("until_executed", {"client": decide, "server": "raise"}, (decide, "raise")),
        ("until_executed", decide, (decide, decide)),
        ("while_executing", "skip", (None, "skip")),
        ("while_executing", {"server": "raise"}, (None, "raise")),
        ("while_executing", {"server": "raise", "client": None}, (None, "raise")),
        ("while_executing", decide, (None, decide)),
        ("until_and_while_executing", "raise", ("raise", "raise")),
        ("until_and_while_executing", {"client": "raise"}, ("raise", "wait")),
        ("until_executed", "wait", ("wait", "wait")),
        # What has to leave without a claim must not be skipped on the worker.
        ("until_executing", {"client": "wait"}, ("wait", "wait")),
        ("until_executed", {"client": "wait", "server": "skip"}, ("wait", "skip")),
    ],
)
def test_a_strategy_counts_where_the_scope_has_a_side(scope, asked, expected):
    options = read({"lock": scope, "on_conflict": asked})
    assert (options.client, options.server) == expected


def test_as_a_setting_wait_counts_for_those_who_can():
    """A message without a claim waits for the end of the period, which is a fact."""
    setting = {"redislock_on_conflict": "wait"}
    expired = {"lock": "until_expired", "lock_period": 60}
    assert (read(expired, setting).client, read(expired, setting).server) == ("skip", "wait")
    assert read({**expired, "on_conflict": {"server": "wait"}}).server == "wait"
    assert (read({}, setting).client, read({"lock": "while_executing"}, setting).client) == ("wait", None)


@pytest.mark.parametrize(
    "wrong",
    [5, True, [], ["skip"], {}, {"sever": "skip"}, {"client": 5}, {"client": {}}, dict, "", {5: "skip"}],
)
def test_a_strategy_that_is_none_is_refused(wrong):
    assert problems(read, {"on_conflict": wrong})[0].startswith("on_conflict is")


@pytest.mark.parametrize("wrong", [threading.Lock(), True, 0, 5, ["until_executed"], object()])
def test_a_lock_attribute_of_somebody_elses_must_be_renamed(wrong):
    (problem,) = problems(read, {"lock": wrong})
    assert "no scope" in problem
    assert "renamed" in problem


@pytest.mark.parametrize("off", [None, False])
def test_none_and_false_switch_locking_off(off):
    """Only for ``lock`` is None an answer."""
    for options in (read({"lock": off}), read({}, {"redislock_lock": off}), called(lock=off)):
        assert (options.scope, options.client, options.server) == (None, None, None)
