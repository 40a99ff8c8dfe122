"""Options of one call: they win over the task's, travel with the message, and arrive as they were."""

import json
from datetime import timedelta

import pytest

from celery_redislock.declaring.call_options import from_header, split_call_options, to_header
from celery_redislock.declaring.options import LockOptions
from celery_redislock.declaring.scopes import OnConflict
from celery_redislock.declaring.table import INHERIT
from tests.unit.declaring.asking import called, decide, problems, read


def test_our_keywords_are_taken_out_of_a_call():
    """What is left there becomes a message property."""
    ours = {"lock": None, "lock_ttl": 60, "on_conflict": "raise", "on_lock_error": "run"}
    others = {"countdown": 5, "link": [], "locked": True, "lockstep": 1}
    options = {**others, **ours}
    assert split_call_options(options) == ours
    assert options == others
    assert split_call_options(options) == {}


def test_a_call_wins_over_its_task_in_what_it_says():
    base = read({"lock_ttl": 60, "on_conflict": {"client": "raise", "server": "wait"}})
    options = called(base, lock_ttl=timedelta(minutes=2), lock_key="account:{account_id}", on_lock_error=None)
    assert options.lock_ttl == 120.0
    assert options.lock_key == "account:{account_id}"
    assert options.on_lock_error == "raise"
    assert (options.client, options.server) == ("raise", "wait")
    assert base.lock_ttl == 60.0
    assert called(base) == called(base, lock=INHERIT, lock_ttl=None, on_conflict=None) == base
    options = called(read({"on_conflict": "raise"}), on_conflict={"client": "wait"})
    assert (options.client, options.server) == ("wait", "raise")


def test_another_scope_brings_its_own_sides_and_defaults():
    """The default of the old scope is not carried into the new one."""
    assert called(read({"lock": "while_executing"}), lock="until_executed").server == "skip"
    assert called(read({"on_conflict": {"client": "raise"}}), lock="while_executing").client is None
    assert called(read({"on_conflict": "raise"}), lock="while_executing").server == "raise"


def test_a_callable_of_one_call_counts_at_publish_only():
    """It cannot travel with the message."""
    options = called(read({"on_conflict": {"server": "wait"}}), on_conflict=decide)
    assert (options.client, options.server) == (decide, "wait")
    assert "cannot travel" in problems(called, on_conflict={"server": decide})[0]
    assert "cannot travel" in problems(called, on_lock_lost=decide)[0]
    assert called(lock_key=decide).lock_key is decide


# --- the header ------------------------------------------------------------------------------

TRAVELS = {
    "lock": "until_executed",
    "lock_period": timedelta(seconds=90),
    "lock_period_on_failure": "keep",
    "lock_ttl": 60,
    "lock_queue_ttl": 10,
    "lock_max_hold": 100,
    "lock_retry_delay": 1,
    "on_conflict": {"client": "raise", "server": "wait"},
    "on_lock_lost": "terminate",
    "on_lock_error": "run",
}


TASKS = [{}, {"on_conflict": "wait", "lock_ttl": 50}, {"lock": "while_executing"}]
ASKED = [
    {},
    TRAVELS,
    {"lock": "until_expired", "lock_period": timedelta(seconds=90), "lock_queue_ttl": 10},
    {"lock": None},
    {"lock": False},
    {"on_conflict": "raise"},
    {"on_conflict": {"server": "raise"}},
    {"lock": "while_executing", "on_conflict": "skip"},
    {"lock_ttl": None, "lock": INHERIT},
]


@pytest.mark.parametrize("asked", ASKED, ids=repr)
@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_what_a_call_asks_for_arrives_at_the_worker(asked, task):
    """Through JSON; publisher and worker come to the same options."""
    base = read(task)
    header = json.loads(json.dumps(to_header(asked)))
    assert resolved(from_header(base, header)) == resolved(called(base, **asked))


def resolved(options):
    """What decides: how the strategies were asked for is history."""
    return options._replace(on_conflict=OnConflict())


def test_callables_and_the_key_stay_with_the_publisher():
    """The computed key travels instead."""
    mine = {"lock_key": "account:{account_id}", "on_conflict": decide, "on_lock_lost": decide}
    sides = to_header({"on_conflict": {"client": decide, "server": "raise"}})
    assert to_header({**mine, "lock_ttl": 60}) == {"lock_ttl": 60.0}
    assert sides == {"on_conflict": {"server": "raise"}}
    assert to_header({"lock": False}) == {"lock": None}


@pytest.mark.parametrize(
    "data",
    [
        *(None, 5, "text", [1], {}, {5: 6}),
        *({"lock": lock} for lock in ("until_tomorrow", ["x"], {}, "until_expired")),
        *({"lock_ttl": ttl} for ttl in ("x", [1], float("nan"))),
        {"lock_ttl": 60, "lock_max_hold": 5},
        *({"on_conflict": strategy} for strategy in ("queue", {"up": 1}, [[]])),
        {"on_lock_lost": decide},
        {"lock_key": "x", "client": "raise", "unknown": 1, "lock_future": {}},
    ],
)
def test_a_header_from_another_version_never_raises(data):
    """The worker's own options hold."""
    base = read({"lock_key": ("account_id",), "on_conflict": "raise"})
    assert from_header(base, data) == base


def test_what_is_known_in_a_header_counts_beside_what_is_not():
    options = from_header(LockOptions(), {"lock_ttl": 60, "lock_future": 1, "on_conflict": "queue"})
    assert (options.lock_ttl, options.client) == (60.0, "skip")
