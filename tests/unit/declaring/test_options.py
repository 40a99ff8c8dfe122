"""The laws of options: one table, every problem at once, and each source in its turn."""

import math
import pickle
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from types import NoneType

import pytest

from celery_redislock.declaring.call_options import from_header
from celery_redislock.declaring.options import LockOptions, LockSettings, risks
from celery_redislock.declaring.scopes import SCOPES, OnConflict
from celery_redislock.declaring.table import INHERIT, ROWS, TASK_ROWS
from tests.unit.declaring.asking import called, decide, problems, read, settings_of
from tools.options_page import options_page

PAGE = Path(__file__).parents[3] / "docs" / "options.md"


# --- the table -------------------------------------------------------------------------------


def test_every_row_is_a_field_and_every_field_a_row():
    """Nothing is said twice, and nothing is forgotten; one rule for all names, so that none is looked up."""
    app_wide = {row.setting.removeprefix("redislock_") for row in ROWS if row.attribute is None}
    derived = {"scope", "client", "server", "claims_plainly"}
    assert set(LockOptions._fields) == TASK_ROWS.keys() - {"lock"} | derived
    assert set(LockSettings._fields) == app_wide
    assert len({row.name for row in ROWS}) == len(ROWS)
    both = [row for row in ROWS if row.attribute and row.setting]
    assert all(row.setting == "redislock_" + row.attribute.removeprefix("lock_") for row in both)


def test_the_committed_page_is_current_and_names_every_option_and_setting():
    page = options_page()
    assert PAGE.read_text(encoding="utf-8") == page, "run make docs"
    assert all(f"`{name}`" in page for row in ROWS for name in (row.attribute, row.setting) if name)


# --- sources ---------------------------------------------------------------------------------


def test_an_unadorned_task_gets_the_defaults_of_the_table():
    """Works with nothing but the base class."""
    assert read() == LockOptions()
    assert settings_of() == LockSettings()


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("lock", "while_executing", SCOPES["while_executing"]),
        ("on_conflict", "raise", OnConflict("raise", "raise")),
        ("lock_ttl", 60, 60.0),
        ("lock_queue_ttl", timedelta(minutes=5), 300.0),
        ("lock_max_hold", 600, 600.0),
        ("lock_retry_delay", 0.5, 0.5),
        ("on_lock_lost", "terminate", "terminate"),
        ("on_lock_lost", decide, decide),
        ("on_lock_error", "run", "run"),
    ],
)
def test_an_attribute_wins_over_a_setting_and_that_over_the_default(name, given, expected):
    """``None`` is "not said here"; for ``lock``, where it means off, that is INHERIT."""
    row, field = TASK_ROWS[name], "scope" if name == "lock" else name
    silence, default = INHERIT if name == "lock" else None, row.default or 3000
    assert getattr(read({name: given}), field) == expected
    assert getattr(read({}, {row.setting: given}), field) == expected
    assert getattr(read({name: silence}, {row.setting: given}), field) == expected
    assert getattr(read({name: given}, {row.setting: default}), field) == expected
    assert getattr(read({name: silence}, {row.setting: silence}), field) == row.default
    # Identity decides; a copy would be a scope nobody knows.
    assert pickle.loads(pickle.dumps(INHERIT)) is INHERIT  # noqa: S301  our own bytes
    assert repr(INHERIT) == "INHERIT"


# --- ranges ----------------------------------------------------------------------------------

DURATIONS = [row for row in ROWS if row.kind.wording.startswith("seconds")]


def asked_of(row, value):
    """What a row makes of a value, wherever it belongs."""
    return read({row.attribute: value}) if row.attribute else settings_of({row.setting: value})


@pytest.mark.parametrize("row", DURATIONS, ids=lambda row: row.name)
@pytest.mark.parametrize(
    "wrong",
    [0, -1, True, "30", float("nan"), float("inf"), -float("inf"), 10**400, 315_360_001, timedelta(0), [1]],
    ids=str,
)
def test_a_duration_out_of_range_is_refused(row, wrong):
    """Milliseconds, booleans, texts and endless times are mistakes; none becomes a lock."""
    (problem,) = problems(asked_of, row, wrong)
    assert problem.startswith(f"{row.name} is ")
    assert "seconds (" in problem


@pytest.mark.parametrize(
    ("given", "seconds"), [(True, 30.0), (False, math.inf), (6, 6.0), (timedelta(minutes=2), 120.0)], ids=str
)
def test_what_a_killed_worker_had_is_restored_after_seconds_or_never(given, seconds):
    """Its messages are in hand for over a second, and two thirds of the time are left for it to be late."""
    assert settings_of({"redislock_restore": given}).restore == seconds
    for wrong in (5.9, 0, -1, "30", NoneType, float("inf")):
        (problem,) = problems(settings_of, {"redislock_restore": wrong})
        assert problem.startswith("redislock_restore is ")
        assert "give True, False, or seconds (6 " in problem


def test_the_bounds_of_durations_are_allowed():
    assert read({"lock_ttl": 0.1}).lock_ttl == 0.1
    assert "lock_ttl is 0.09;" in problems(read, {"lock_ttl": 0.09})[0]
    assert read({"lock_period": 0.001}).lock_period == 0.001
    assert read({"lock_ttl": 315_360_000}).lock_ttl == 315_360_000.0
    assert isinstance(read({"lock_ttl": 60}).lock_ttl, float)


async def _await_me(_lease):
    """A callback that nobody would await."""


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        *product(["redislock_min_replicas"], [-1, True, 1.0, 101, "auto"]),
        *product(["redislock_fence"], ["clock", ["time"]]),
        *product(["redislock_check"], ["raise!", decide]),
        *product(["redislock_prefix"], ["", "a{b", "a b", 5]),
        *product(["redislock_url"], ["localhost", 5, ["redis://a", "redis://b"]]),
        *product(["on_lock_lost", "on_lock_error"], ["Log", 5, True, ["log"]]),
        ("redislock_eager", "false"),
        ("redislock_enabled", 0),
    ],
)
def test_a_setting_that_is_not_allowed_is_refused(setting, wrong):
    (problem,) = problems(read if setting.startswith("on_lock") else settings_of, {setting: wrong})
    assert problem.startswith(setting)
    if isinstance(wrong, list) and setting == "redislock_url":
        assert "tasks have no locks on a quorum of servers (Redlock)" in problem
        assert "celery_redislock.locks.connect([...])" in problem


def test_a_loss_is_told_to_no_coroutine_function():
    """As ``on_lost`` of a lock: it would be told to nobody."""

    async def await_me(_lease):
        """Nobody would."""

    for call in (await_me, partial(await_me, 1)):
        for given in ({"on_lock_lost": call}, None), (None, {"redislock_on_lock_lost": call}):
            (problem,) = problems(read, *given)
            assert "on_lock_lost is a coroutine function, and nobody awaits it; give" in problem


def test_a_password_is_never_shown():
    secret = "secret@cache"
    assert secret not in repr(settings_of({"redislock_url": f"redis://:{secret}/1"}))
    assert secret not in problems(settings_of, {"redislock_url": secret})[0]
    assert secret not in problems(settings_of, {"redislock_url": [f"redis://:{secret}/1"]})[0]


# --- the switch in the environment -----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, False) for text in ("0", "false", " No ", "OFF")),
        *((text, True) for text in ("1", "true", "on")),
        *((text, None) for text in ("", None)),
    ],
)
def test_the_environment_wins_over_the_setting(text, expected):
    """The switch for an incident needs no deploy; without the variable the setting holds."""
    environ = {} if text is None else {"REDISLOCK_ENABLED": text}
    for setting in (True, False):
        enabled = settings_of({"redislock_enabled": setting}, environ).enabled
        assert enabled is (setting if expected is None else expected)


def test_a_switch_that_cannot_be_understood_is_a_problem_among_others():
    """Silence would leave an operator in the belief that locking is off."""
    wrong = {"redislock_fence": 1, "redislock_eager": 1}
    assert "'disabled'" in problems(settings_of, wrong, {"REDISLOCK_ENABLED": "disabled"})[2]


# --- what does not go together ---------------------------------------------------------------


EXPIRED = {"lock": "until_expired", "lock_period": 90}
WAITS = ["wait", "retry", {"client": "wait"}, {"client": "wait", "server": "skip"}]
OF_A_LEASE = [{"on_lock_lost": "terminate"}, {"on_lock_lost": "log"}, {"lock_max_hold": 100}]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"lock": "until_expired"}, "needs lock_period"),
        ({**EXPIRED, "lock_wait_timeout": 5}, "waits for nothing but the period, by the clock; leave it out"),
        ({"lock_period_on_failure": "keep"}, "which is not set"),
        ({"lock_ttl": 60, "lock_max_hold": 60}, "longer than lock_ttl"),
        (
            {"lock": "while_executing", "on_conflict": {"client": "raise", "server": "skip"}},
            "the client side",
        ),
        (
            {"lock": "while_executing", "on_conflict": {"client": "wait"}},
            "would overtake those that are queued; leave it out",
        ),
        *(
            (
                {**EXPIRED, "on_conflict": asked},
                "on_conflict is 'wait' at publish, and lock='until_expired' is released by nobody",
            )
            for asked in WAITS
        ),
        # Silently, its author would believe that a run is guarded which is not.
        *(
            (
                {**EXPIRED, "lock": lock, **option},
                f"{min(option)} is about the lock of a running task, and lock={lock!r} holds none while it ",
            )
            for lock, option in product(["until_executing", "until_expired"], OF_A_LEASE)
        ),
        ({"lock": "until_exekuted"}, "did you mean 'until_executed'?"),
        ({"lock": "whileexecuting"}, "did you mean 'while_executing'?"),
        ({"on_conflict": "skipp"}, "did you mean 'skip'?"),
        ({"on_conflict": {"client": "rais"}}, "did you mean 'raise'?"),
        ({"lock_period": 9, "lock_period_on_failure": "end"}, "give 'keep' or 'release'"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_what_to_write(asked, words):
    """On a task and in a call; of a task that is not read yet, so that nothing else is wrong."""
    for (problem,) in (problems(read, asked), problems(called, **asked)):
        assert words in problem


def test_what_can_be_honoured_is_taken():
    """By a call which has what its task lacks; a setting is for other tasks as well, and counts for those."""
    keeps = {"lock_period": 9, "lock_period_on_failure": "keep"}
    assert called(lock="until_expired", lock_period=60).lock_period == 60.0
    assert read(keeps).lock_period_on_failure == called(**keeps).lock_period_on_failure == "keep"
    assert read({"lock_ttl": 60, "lock_max_hold": 60.1}).lock_max_hold == 60.1
    for scope in SCOPES.keys() - {"until_expired"}:  # in each a workflow's duplicate may wait
        assert read({"lock": scope, "lock_wait_timeout": 5}).lock_wait_timeout == 5.0
    by_side = {"redislock_on_conflict": {"client": "raise", "server": "skip"}}
    assert read({"lock": "while_executing"}, by_side).server == "skip"
    for scope, option in product(["until_executing", "until_expired"], OF_A_LEASE):
        ((name, value),) = option.items()
        assert called(read(option), **{**EXPIRED, "lock": scope}).scope.name == scope
        setting = {f"redislock_{name.removeprefix('lock_')}": value}
        assert read({**EXPIRED, "lock": scope}, setting).scope.name == scope


@pytest.mark.parametrize("limit", [3, lambda _: 1])
@pytest.mark.parametrize("lock", SCOPES)
def test_a_limit_is_refused_beside_a_period_with_what_to_write(lock, limit):
    """Read as "so many in each period", it would be one. A callable may answer more than 1 some day."""
    both = {"lock": lock, "lock_limit": limit, "lock_period": 60}
    (problem,) = [each for each in problems(read, both) if "lock_limit" in each]
    assert "leave one of them out" in problem
    assert "lock_period=6, on_conflict='wait'" in problem
    assert read({**both, "lock_limit": 1}).lock_period == 60.0


def test_a_call_brings_no_period_to_a_limit_and_no_limit_to_a_period():
    """A message that says both all the same, of an older publisher, runs by what its task says."""
    limited = read({"lock_limit": 3})
    periodic = read({"lock_period": 60})
    for base, option in ((limited, {"lock_period": 60}), (periodic, {"lock_limit": 3})):
        assert "lock_limit does not go with" in problems(called, base, **option)[0]
        assert from_header(base, option) == base


# --- what a worker warns of ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "limit", "said"),
    [
        ({"lock_ttl": 2}, None, "lock_ttl (2) is shorter than three times redislock_socket_timeout (1)"),
        ({"lock_ttl": 3}, None, None),
        ({"lock_ttl": 2, "lock": "until_executing"}, None, None),
        ({"lock_max_hold": 100}, 200, "lock_max_hold (100) is shorter than the hard time limit (200)"),
        ({"lock_max_hold": 100}, 50, None),
        ({"lock_max_hold": 100, "on_lock_lost": "terminate"}, 200, None),
    ],
)
def test_what_can_be_honoured_and_endangers_a_lock_is_a_risk(options, limit, said):
    found = risks(read(options), settings_of(), time_limit=limit)
    assert [text[: len(said or "")] for text in found] == ([said] if said else [])


def test_a_run_is_renewed_until_its_hard_time_limit_and_its_killing_have_passed():
    """A lost kill must not be renewed for ever; what the task itself says wins."""
    assert read().max_hold(None) is None
    assert read().max_hold(100) == 110.0
    assert read().max_hold(5) == 60.0  # twice lock_ttl
    assert read({"lock_max_hold": 70}).max_hold(100) == 70.0
