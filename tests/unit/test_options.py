"""The laws of options: one table, every problem at once, and each source in its turn."""

import json
import pickle
import threading
from dataclasses import FrozenInstanceError, fields, replace
from datetime import timedelta
from pathlib import Path

import pytest
from celery_redislock.options import (
    INHERIT,
    Asked,
    LockOptions,
    LockSettings,
    from_header,
    override,
    read_options,
    read_settings,
    split_call_options,
    to_header,
    unknown_attributes,
    unknown_settings,
)
from celery_redislock.options.call import _CELERYS
from celery_redislock.options.reference import reference_page
from celery_redislock.options.table import ROWS, SETTING_ROWS, TASK_ROWS

from celery_redislock.exceptions import LockOptionError

PARAMETERS = ("account_id", "amount")
PAGE = Path(__file__).parents[2] / "docs" / "options.md"


def decide(conflict):
    """A strategy of the user's own."""
    return "skip"


def read(attributes=None, settings=None):
    return read_options("shop.sync", attributes or {}, (settings or {}).get, parameters=PARAMETERS)


def settings_of(settings=None, environ=None):
    return read_settings("app", (settings or {}).get, environ or {})


def called(base=None, **options):
    return override(base or LockOptions(), "shop.sync", options, parameters=PARAMETERS)


def problems(action, *args, **kwargs):
    with pytest.raises(LockOptionError) as refusal:
        action(*args, **kwargs)
    return refusal.value.problems


# --- sources ---------------------------------------------------------------------------------


def test_an_unadorned_task_gets_the_defaults_of_the_table():
    """Works with nothing but the base class."""
    assert read() == LockOptions()
    assert LockOptions() == LockOptions(
        lock="until_executed",
        lock_key=None,
        on_conflict=Asked(),
        client="skip",
        server="skip",
        lock_ttl=30.0,
        lock_queue_ttl=3600.0,
        lock_max_hold=None,
        lock_period=None,
        lock_retry_delay=5.0,
        on_lock_lost="log",
        on_lock_error="raise",
    )


def test_settings_have_the_defaults_of_the_table():
    assert settings_of() == LockSettings()
    assert LockSettings() == LockSettings(
        url=None,
        prefix="redislock",
        socket_timeout=1.0,
        start_timeout=10.0,
        min_replicas=0,
        fence="time",
        eager=False,
        enabled=True,
        check="warn",
    )


def test_every_row_is_a_field_and_every_field_a_row():
    """Nothing is said twice, and nothing is forgotten."""
    live = {name for name, row in TASK_ROWS.items() if not row.is_planned}
    app_wide = {row.setting.removeprefix("redislock_") for row in ROWS if row.attribute is None}

    assert {field.name for field in fields(LockOptions)} == live | {"client", "server"}
    assert {field.name for field in fields(LockSettings)} == app_wide
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_a_settings_name_is_the_attributes_without_lock():
    """One rule for all names, so that none has to be looked up."""
    for row in ROWS:
        if row.attribute and row.setting:
            assert row.setting == "redislock_" + row.attribute.removeprefix("lock_")


SAMPLES = [
    ("lock", "while_executing", "while_executing"),
    ("on_conflict", "raise", Asked("raise", "raise")),
    ("lock_ttl", 60, 60.0),
    ("lock_queue_ttl", timedelta(minutes=5), 300.0),
    ("lock_max_hold", 600, 600.0),
    ("lock_retry_delay", 0.5, 0.5),
    ("on_lock_lost", "terminate", "terminate"),
    ("on_lock_lost", decide, decide),
    ("on_lock_error", "run", "run"),
]


@pytest.mark.parametrize(("name", "given", "expected"), SAMPLES)
def test_an_attribute_or_a_setting_says_what_holds(name, given, expected):
    setting = TASK_ROWS[name].setting

    assert getattr(read({name: given}), name) == expected
    assert getattr(read({}, {setting: given}), name) == expected
    assert getattr(read({name: None if name != "lock" else INHERIT}, {setting: given}), name) == expected


@pytest.mark.parametrize(("name", "given", "expected"), SAMPLES)
def test_the_attribute_wins_over_the_setting(name, given, expected):
    setting, default = TASK_ROWS[name].setting, TASK_ROWS[name].default or 3000

    assert getattr(read({name: given}, {setting: default}), name) == expected


@pytest.mark.parametrize("off", [None, False])
def test_none_and_false_switch_locking_off(off):
    """Only for ``lock`` is None an answer; "not said here" is INHERIT there."""
    for options in (read({"lock": off}), read({}, {"redislock_lock": off}), called(lock=off)):
        assert (options.lock, options.client, options.server) == (None, None, None)
    assert read({"lock": INHERIT}, {"redislock_lock": "until_executing"}).lock == "until_executing"
    assert read({"lock": INHERIT}).lock == "until_executed"


def test_a_setting_of_none_is_no_setting():
    assert read({}, {"redislock_ttl": None}) == LockOptions()
    assert settings_of({"redislock_prefix": None}) == LockSettings()


def test_options_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        read().lock_ttl = 1


def test_inherit_survives_pickling_as_itself():
    """Identity decides; a copy would be a scope nobody knows."""
    assert pickle.loads(pickle.dumps(INHERIT)) is INHERIT  # noqa: S301  our own bytes
    assert repr(INHERIT) == "INHERIT"


# --- ranges ----------------------------------------------------------------------------------

DURATIONS = [row for row in ROWS if "timedelta" in row.kind.wording]


def asked_of(row, value):
    """What a row makes of a value, wherever it belongs."""
    extra = {"lock_max_hold": 1e6} if row.name == "lock_ttl" else {}
    if row.attribute:
        return read({**extra, row.attribute: value})
    return settings_of({row.setting: value})


@pytest.mark.parametrize("row", DURATIONS, ids=lambda row: row.name)
@pytest.mark.parametrize(
    "wrong",
    [0, -1, True, "30", float("nan"), float("inf"), -float("inf"), 10**400, 315_360_001, timedelta(0), [1]],
    ids=str,
)
def test_a_duration_out_of_range_is_refused(row, wrong):
    """Milliseconds, booleans, texts and endless times are mistakes; none becomes a lock."""
    found = problems(asked_of, row, wrong)

    assert len(found) == 1
    assert found[0].startswith(f"{row.name} is ")
    assert "seconds (" in found[0]


def test_the_bounds_of_durations_are_allowed():
    assert read({"lock_ttl": 0.1}).lock_ttl == 0.1
    assert "lock_ttl is 0.09;" in problems(read, {"lock_ttl": 0.09})[0]
    assert (
        read({"lock_queue_ttl": 0.001, "lock_period": 0.001, "lock_retry_delay": 0.001}).lock_period == 0.001
    )
    assert read({"lock_ttl": 315_360_000}).lock_ttl == 315_360_000.0
    assert isinstance(read({"lock_ttl": 60}).lock_ttl, float)


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("redislock_min_replicas", -1),
        ("redislock_min_replicas", True),
        ("redislock_min_replicas", 1.0),
        ("redislock_min_replicas", 101),
        ("redislock_fence", "clock"),
        ("redislock_fence", ["time"]),
        ("redislock_eager", "false"),
        ("redislock_enabled", 0),
        ("redislock_check", "raise!"),
        ("redislock_check", decide),
        ("redislock_prefix", ""),
        ("redislock_prefix", "a{b"),
        ("redislock_prefix", "a b"),
        ("redislock_prefix", 5),
        ("redislock_url", "localhost"),
        ("redislock_url", 5),
    ],
)
def test_a_setting_that_is_not_allowed_is_refused(setting, wrong):
    found = problems(settings_of, {setting: wrong})

    assert len(found) == 1
    assert found[0].startswith(setting)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("redislock_min_replicas", 2),
        ("redislock_fence", "strict"),
        ("redislock_eager", True),
        ("redislock_check", "error"),
        ("redislock_check", "ignore"),
        ("redislock_prefix", "shop:locks"),
        ("redislock_url", "redis://:secret@cache/1"),
        ("redislock_socket_timeout", 0.25),
    ],
)
def test_a_setting_that_is_allowed_is_kept(setting, value):
    assert getattr(settings_of({setting: value}), setting.removeprefix("redislock_")) == value


def test_a_password_is_never_shown():
    secret = "secret@cache"

    assert secret not in repr(settings_of({"redislock_url": f"redis://:{secret}/1"}))
    assert secret not in problems(settings_of, {"redislock_url": secret})[0]
    assert secret not in problems(settings_of, {"redislock_url": [f"redis://:{secret}/1"]})[0]


@pytest.mark.parametrize("wrong", ["Log", 5, True, ["log"]])
def test_an_unknown_reaction_is_refused(wrong):
    assert problems(read, {"on_lock_lost": wrong})[0].startswith("on_lock_lost is")
    assert problems(read, {"on_lock_error": wrong})[0].startswith("on_lock_error is")


# --- the switch in the environment -----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", False),
        ("false", False),
        (" No ", False),
        ("OFF", False),
        ("1", True),
        ("true", True),
        ("on", True),
    ],
)
def test_the_environment_wins_over_the_setting(text, expected):
    """The switch for an incident needs no deploy."""
    environ = {"REDISLOCK_ENABLED": text}

    assert settings_of({"redislock_enabled": not expected}, environ).enabled is expected


def test_without_the_variable_the_setting_holds():
    assert settings_of({"redislock_enabled": False}).enabled is False
    assert settings_of({"redislock_enabled": False}, {"REDISLOCK_ENABLED": ""}).enabled is False


def test_a_switch_that_cannot_be_understood_is_a_problem():
    """Silence would leave an operator in the belief that locking is off."""
    assert "'disabled'" in problems(settings_of, {}, {"REDISLOCK_ENABLED": "disabled"})[0]


# --- scopes and strategies -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "client", "server"),
    [
        ("until_executed", "skip", "skip"),
        ("until_executing", "skip", "skip"),
        ("until_expired", "skip", "skip"),
        ("while_executing", None, "retry"),
    ],
)
def test_each_scope_has_its_own_defaults(scope, client, server):
    """What runs anyway is never dropped by default."""
    options = read({"lock": scope, "lock_period": 60})

    assert (options.client, options.server) == (client, server)


@pytest.mark.parametrize(
    ("scope", "asked", "expected"),
    [
        ("until_executed", "raise", ("raise", "raise")),
        ("until_executed", {"client": "raise"}, ("raise", "skip")),
        ("until_executed", {"server": "retry", "client": None}, ("skip", "retry")),
        ("until_executed", {"client": decide, "server": "raise"}, (decide, "raise")),
        ("until_executed", decide, (decide, decide)),
        ("while_executing", "skip", (None, "skip")),
        ("while_executing", {"server": "raise"}, (None, "raise")),
        ("while_executing", {"server": "raise", "client": None}, (None, "raise")),
        ("while_executing", decide, (None, decide)),
    ],
)
def test_a_strategy_counts_where_the_scope_has_a_side(scope, asked, expected):
    options = read({"lock": scope, "on_conflict": asked})

    assert (options.client, options.server) == expected


def test_a_strategy_for_a_side_the_scope_lacks_is_a_contradiction():
    """Asked for by the task it is a mistake; as a setting it counts for those it can count for."""
    mapping = {"client": "raise", "server": "skip"}

    assert "client side" in problems(read, {"lock": "while_executing", "on_conflict": mapping})[0]
    assert read({"lock": "while_executing"}, {"redislock_on_conflict": mapping}).server == "skip"
    assert "client side" in problems(called, lock="while_executing", on_conflict=mapping)[0]


@pytest.mark.parametrize(
    "wrong",
    [5, True, [], ["skip"], {}, {"sever": "skip"}, {"client": 5}, {"client": {}}, dict, "", {5: "skip"}],
)
def test_a_strategy_that_is_none_is_refused(wrong):
    assert problems(read, {"on_conflict": wrong})[0].startswith("on_conflict is")


@pytest.mark.parametrize("wrong", [threading.Lock(), True, 0, 5, ["until_executed"], object()])
def test_a_lock_attribute_of_somebody_elses_is_told_to_be_renamed(wrong):
    found = problems(read, {"lock": wrong})[0]

    assert "no scope" in found
    assert "renamed" in found


# --- not yet ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lock", "until_and_while_executing"),
        ("on_conflict", "wait"),
        ("on_conflict", "replace"),
        ("on_conflict", "cancel"),
        ("on_conflict", "coalesce"),
        ("on_conflict", {"server": "wait"}),
        ("lock_limit", 3),
        ("lock_limit", True),
        ("lock_order", "publish"),
        ("lock_max_waiting", 100),
        ("lock_wait_queue", "slow"),
        ("lock_debounce", 5),
        ("lock_debounce_max", 60),
        ("lock_key", object()),
    ],
)
def test_what_does_not_exist_yet_says_so_and_what_to_use_meanwhile(name, value):
    for action in (read, lambda options: called(**options)):
        found = problems(action, {name: value})

        assert len(found) == 1
        assert found[0].startswith(f"{name} ")
        assert "not yet" in found[0]
        assert any(word in found[0] for word in ("meanwhile", "leave it out"))


@pytest.mark.parametrize(("name", "value"), [("redislock_max_waiting", 5), ("redislock_wait_queue", "slow")])
def test_a_setting_that_does_not_exist_yet_says_so(name, value):
    assert "not yet" in problems(read, {}, {name: value})[0]


def test_a_quorum_is_not_yet_there():
    assert "not yet" in problems(settings_of, {"redislock_url": ["redis://a", "redis://b"]})[0]


def test_asking_for_what_happens_anyway_is_allowed():
    assert read({"lock_limit": 1, "lock_order": "arrival"}) == LockOptions()


# --- what does not go together ---------------------------------------------------------------


def test_until_expired_needs_a_period():
    assert "needs lock_period" in problems(read, {"lock": "until_expired"})[0]
    assert "needs lock_period" in problems(called, lock="until_expired")[0]
    assert called(lock="until_expired", lock_period=60).lock_period == 60.0


def test_the_longest_hold_is_longer_than_a_lease():
    assert "longer than lock_ttl" in problems(read, {"lock_ttl": 60, "lock_max_hold": 60})[0]
    assert read({"lock_ttl": 60, "lock_max_hold": 60.1}).lock_max_hold == 60.1


def test_all_problems_are_told_at_once():
    """One deploy, one list."""
    found = problems(
        read,
        {"lock": "until_exekuted", "lock_key": ("acount_id", "x"), "lock_ttl": 0, "lock_limit": 2},
        {"redislock_queue_ttl": "1h", "redislock_on_conflict": "drop"},
    )

    assert sorted(text.split()[0] for text in found) == [
        "lock",
        "lock_key",
        "lock_key",
        "lock_limit",
        "lock_ttl",
        "redislock_on_conflict",
        "redislock_queue_ttl",
    ]
    assert (
        len(problems(settings_of, {"redislock_fence": 1, "redislock_eager": 1}, {"REDISLOCK_ENABLED": "?"}))
        == 3
    )


# --- did you mean ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("lock", "until_exekuted", "until_executed"),
        ("lock", "whileexecuting", "while_executing"),
        ("on_conflict", "skipp", "skip"),
        ("on_conflict", {"client": "rais"}, "raise"),
        ("lock_key", ("acount_id",), "account_id"),
        ("lock_key", "a:{acount_id}", "account_id"),
    ],
)
def test_a_misspelled_value_gets_the_nearest(name, wrong, right):
    assert f"did you mean {right!r}?" in problems(read, {name: wrong})[0]


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("lock_tll", "did you mean lock_ttl?"),
        ("lock_keys", "did you mean lock_key?"),
        ("on_conflicts", "did you mean on_conflict?"),
        ("on_lock_loss", "did you mean on_lock_lost?"),
        (
            "lock_zzz",
            "known are lock, lock_key, lock_max_hold, lock_period, ",
        ),
        ("lock_fence", "lock_fence is no option of a task; set redislock_fence on the app"),
    ],
)
def test_an_unknown_attribute_gets_the_nearest(wrong, hint):
    found = unknown_attributes([wrong, "lock", "lock_ttl", "lock_for", "locked", "rate_limit", "on_failure"])

    assert len(found) == 1
    assert found[0].startswith(wrong)
    assert hint in found[0]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("onconflict", "on_conflict"),
        ("on_conflct", "on_conflict"),
        ("on_conlict", "on_conflict"),
        ("on_conflikt", "on_conflict"),
        ("oncnflict", "on_conflict"),
        ("on_confilct", "on_conflict"),
        ("lockttl", "lock_ttl"),
        ("lockkey", "lock_key"),
        ("lock__key", "lock_key"),
        ("lokc_ttl", "lock_ttl"),
        ("lcok_key", "lock_key"),
        ("lok_queue_ttl", "lock_queue_ttl"),
        ("onlocklost", "on_lock_lost"),
        ("onlock_error", "on_lock_error"),
        ("redislock_ttl", "lock_ttl"),
        ("redislock_on_conflict", "on_conflict"),
        ("redislock_lock_ttl", "lock_ttl"),
    ],
)
def test_a_slip_at_the_beginning_of_a_name_is_told_as_well(wrong, right):
    """It would be passed over in silence, and the task lock by the defaults."""
    assert unknown_attributes([wrong]) == [f"{wrong} is no option; did you mean {right}?"]
    with pytest.raises(LockOptionError, match=f"did you mean {right}"):
        split_call_options({wrong: 1, "lock": "while_executing"})


def test_a_setting_that_no_task_has_is_told_apart():
    (problem,) = unknown_attributes(["redislock_url"])

    assert problem == "redislock_url is no option of a task; set it on the app"


#: Words of others' trades, one letter or two from ours.
THEIRS = [
    "locked", "locker", "locks", "clock", "block", "unlock", "_lock", "__lock__", "Lock", "LOCK_TTL",
    "LOCK_EXPIRE", "block_key", "clock_period", "stock_limit", "stock_order", "mock_key", "look_key",
    "loc_key", "dock_order", "on_block_error", "on_clock_error", "on_loc_error", "on_connect", "on_config",
    "on_configure", "on_confirm", "on_contact", "no_conflict", "in_conflict", "conflict", "no_lock_error",
    "key", "ttl", "period", "redis", "redis_key", "on_lost", "rate_limit", "on_failure", "locale_key",
]  # fmt: skip


@pytest.mark.parametrize("name", THEIRS)
def test_attributes_of_the_users_own_are_none_of_our_business(name):
    assert unknown_attributes([name]) == []
    assert split_call_options({name: 1, "lock": None}) == {"lock": None}


@pytest.mark.parametrize(
    "wrong",
    [
        "onconflict",
        "on_conflct",
        "lockttl",
        "lok_key",
        "lcok_ttl",
        "lokc_key",
        "on_lok_lost",
        "on_lcok_error",
    ],
)
def test_a_slip_alone_in_a_call_is_told(wrong):
    """It would become a message property, or an error of the broker's."""
    assert "did you mean" in problems(split_call_options, {"countdown": 5, wrong: 1})[0]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("redis_lock_ttl", "redislock_ttl"),
        ("redislockttl", "redislock_ttl"),
        ("reidslock_ttl", "redislock_ttl"),
        ("redilock_prefix", "redislock_prefix"),
        ("lock_ttl", "redislock_ttl"),
        ("on_conflict", "redislock_on_conflict"),
        ("CELERY_REDIS_LOCK_TTL", "CELERY_REDISLOCK_TTL"),
        ("CELERY_LOCK_TTL", "CELERY_REDISLOCK_TTL"),
    ],
)
def test_a_slip_at_the_beginning_of_a_setting_is_told_as_well(wrong, right):
    assert unknown_settings([wrong]) == [f"{wrong} is no setting; did you mean {right}?"]


@pytest.mark.parametrize(
    "name",
    ["lock", "LOCK_TTL", "REDIS_LOCK_TTL", "redlock_ttl", "redis_url", "CELERY_REDIS_URL", "broker_url",
     "redis_max_connections", "lock_key", "redis_lock", "my_redislock_thing", "MY_LOCK_TTL"],
)  # fmt: skip
def test_settings_of_others_are_none_of_our_business(name):
    assert unknown_settings([name]) == []


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("redislock_lock_ttl", "did you mean redislock_ttl?"),
        ("redislock_socket_timout", "did you mean redislock_socket_timeout?"),
        ("redislock_key", "is no setting"),
        ("redislock_zzz", "known are redislock_check, "),
        ("REDISLOCK_TTL", "write redislock_ttl"),
        ("REDISLOCK_TTTL", "did you mean redislock_ttl?"),
        ("CELERY_REDISLOCK_TTTL", "did you mean redislock_ttl?"),
    ],
)
def test_an_unknown_setting_gets_the_nearest(wrong, hint):
    known = [*SETTING_ROWS, "CELERY_REDISLOCK_TTL", "broker_url", "redis_url", "my_redislock_thing"]
    found = unknown_settings([wrong, *known])

    assert len(found) == 1
    assert found[0].startswith(wrong)
    assert hint in found[0]


# --- one call --------------------------------------------------------------------------------


def test_our_keywords_are_taken_out_of_a_call():
    """What is left there becomes a message property."""
    options = {
        "countdown": 5,
        "link": [],
        "lock": None,
        "lock_ttl": 60,
        "on_conflict": "raise",
        "on_lock_error": "run",
        "locked": True,
        "lockstep": 1,
    }

    taken = split_call_options(options)

    assert taken == {"lock": None, "lock_ttl": 60, "on_conflict": "raise", "on_lock_error": "run"}
    assert options == {"countdown": 5, "link": [], "locked": True, "lockstep": 1}
    assert split_call_options(options) == {}


def test_no_keyword_of_celerys_own_is_taken_for_one_of_ours():
    """They are not looked at one by one at each publish."""
    assert unknown_attributes(_CELERYS) == []
    assert split_call_options(dict.fromkeys(_CELERYS)) == {}
    assert not _CELERYS & TASK_ROWS.keys()


@pytest.mark.parametrize("wrong", ["lock_tll", "on_lock_loss", "on_conflicts", "lock_for"])
def test_an_unknown_keyword_of_a_call_is_refused_and_nothing_is_taken(wrong):
    options = {"lock_ttl": 60, wrong: 1}

    assert wrong in problems(split_call_options, options, where="shop.sync")[0]
    assert options == {"lock_ttl": 60, wrong: 1}


def test_a_call_wins_over_its_task():
    base = read({"lock_ttl": 60, "on_conflict": {"client": "raise", "server": "retry"}})

    options = called(base, lock_ttl=timedelta(minutes=2), lock_key="account:{account_id}", on_lock_error=None)

    assert options.lock_ttl == 120.0
    assert options.lock_key == "account:{account_id}"
    assert options.on_lock_error == "raise"
    assert (options.client, options.server) == ("raise", "retry")
    assert base.lock_ttl == 60.0


def test_a_call_that_says_nothing_changes_nothing():
    base = read({"lock_ttl": 60, "lock": "while_executing", "on_conflict": "skip"})

    assert called(base) == base
    assert called(base, lock=INHERIT, lock_ttl=None, on_conflict=None) == base


def test_a_strategy_for_one_side_leaves_the_other_as_the_task_has_it():
    options = called(read({"on_conflict": "raise"}), on_conflict={"client": "retry"})

    assert (options.client, options.server) == ("retry", "raise")


def test_another_scope_brings_its_own_sides_and_defaults():
    """The default of the old scope is not carried into the new one."""
    assert called(read({"lock": "while_executing"}), lock="until_executed").server == "skip"
    assert called(read({"on_conflict": {"client": "raise"}}), lock="while_executing").client is None
    assert called(read({"on_conflict": "raise"}), lock="while_executing").server == "raise"


def test_a_callable_of_one_call_counts_at_publish_only():
    """It cannot travel with the message."""
    options = called(read({"on_conflict": {"server": "retry"}}), on_conflict=decide)

    assert (options.client, options.server) == (decide, "retry")
    assert "cannot travel" in problems(called, on_conflict={"server": decide})[0]
    assert "cannot travel" in problems(called, on_lock_lost=decide)[0]
    assert called(lock_key=decide).lock_key is decide


def test_all_problems_of_a_call_are_told_at_once():
    assert len(problems(called, lock_ttl=0, lock_key="account_id", on_conflict="wait", lock_limit=2)) == 4


@pytest.mark.parametrize("lock", ["until_executing", "until_expired"])
@pytest.mark.parametrize(
    "option", [{"on_lock_lost": "terminate"}, {"on_lock_lost": "log"}, {"lock_max_hold": 100}]
)
def test_an_option_of_a_runs_lock_is_refused_where_a_run_has_none(lock, option):
    """Silently, its author would believe that a run is guarded which is not; a setting is for other tasks."""
    scope = {"lock": lock, "lock_period": 90}

    (name,) = option
    for found in (problems(read, {**scope, **option}), problems(called, read(scope), **option)):
        assert len(found) == 1
        assert found[0].startswith(
            f"{name} is about the lock of a running task, and lock={lock!r} holds none"
        )
    assert called(read(option), **scope).lock == lock
    assert read(scope, {f"redislock_{name.removeprefix('lock_')}": option[name]}).lock == lock


# --- the header ------------------------------------------------------------------------------

TRAVELS = {
    "lock": "until_executed",
    "lock_period": timedelta(seconds=90),
    "lock_ttl": 60,
    "lock_queue_ttl": 10,
    "lock_max_hold": 100,
    "lock_retry_delay": 1,
    "on_conflict": {"client": "raise", "server": "retry"},
    "on_lock_lost": "terminate",
    "on_lock_error": "run",
}


TASKS = [{}, {"on_conflict": "retry", "lock_ttl": 50}, {"lock": "while_executing"}]
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
    return replace(options, on_conflict=Asked())


def test_callables_and_the_key_stay_with_the_publisher():
    """The computed key travels instead."""
    asked = {
        "lock_key": "account:{account_id}",
        "on_conflict": decide,
        "on_lock_lost": decide,
        "lock_ttl": 60,
    }

    assert to_header(asked) == {"lock_ttl": 60.0}
    assert to_header({"on_conflict": {"client": decide, "server": "raise"}}) == {
        "on_conflict": {"server": "raise"}
    }
    assert to_header({"lock": False}) == {"lock": None}


@pytest.mark.parametrize(
    "data",
    [
        None,
        5,
        "text",
        [],
        [1],
        {},
        {"lock": "until_tomorrow"},
        {"lock": ["x"]},
        {"lock": {}},
        {"lock": "until_expired"},
        {"lock_ttl": "x"},
        {"lock_ttl": [1]},
        {"lock_ttl": float("nan")},
        {"lock_ttl": 60, "lock_max_hold": 5},
        {"on_conflict": "wait"},
        {"on_conflict": {"up": 1}},
        {"on_conflict": [[]]},
        {"on_lock_lost": decide},
        {"unknown": 1, "lock_limit": 3},
        {"lock_key": "x", "client": "raise", "lock_max_waiting": {}},
        {5: 6},
    ],
)
def test_a_header_from_another_version_never_raises(data):
    """The worker's own options hold."""
    base = read({"lock_key": ("account_id",), "on_conflict": "raise"})

    assert from_header(base, data) == base


def test_what_is_known_in_a_header_counts_beside_what_is_not():
    options = from_header(LockOptions(), {"lock_ttl": 60, "lock_future": 1, "on_conflict": "wait"})

    assert (options.lock_ttl, options.client) == (60.0, "skip")


# --- the reference page ----------------------------------------------------------------------


def test_the_committed_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == reference_page(), (
        "run python -m celery_redislock.options docs/options.md"
    )


def test_the_page_names_every_option_and_setting():
    page = reference_page()

    assert all(
        f"`{name}`" in page
        for row in ROWS
        for name in (row.attribute, row.setting)
        if name and not row.is_planned
    )
    assert all(f"`{row.name}`" in page for row in ROWS)
