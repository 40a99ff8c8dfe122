"""Names that are meant for this package and mean nothing to it are refused; all others are the user's."""

import pytest

from celery_redislock.declaring.call_options import split_call_options
from celery_redislock.declaring.table import SETTING_ROWS
from celery_redislock.declaring.unknown import GONE, unknown_options, unknown_settings
from tests.unit.declaring.asking import problems


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("lock_tll", "lock_tll is no option; did you mean lock_ttl?"),
        ("lock_keys", "did you mean lock_key?"),
        ("on_conflicts", "did you mean on_conflict?"),
        ("on_lock_loss", "did you mean on_lock_lost?"),
        (
            "lock_zzz",
            "known are everyday: lock, lock_key, on_conflict, lock_period, lock_limit, lock_describe; times",
        ),
        ("lock_for", "lock_for is no option"),
        ("lock_fence", "lock_fence is no option of a task; set redislock_fence on the app"),
        ("redislock_url", "redislock_url is no option of a task; set redislock_url on the app"),
        ("redislock_ttl", "redislock_ttl is no option; did you mean lock_ttl?"),
        ("redislock_on_conflict", "did you mean on_conflict?"),
        # Other libraries'.
        (
            "unique_on",
            "celery-singleton's (celery_redislock.compat.celery_singleton takes it); write lock_key=(",
        ),
        ("raise_on_duplicate", "write on_conflict='raise' for True, and nothing for False"),
        ("lock_order", "lock_order is no option; for the order of publishing write on_conflict='wait'"),
        ("lock_collect", "lock_collect is no option; for all calls in one run, push what came to a list"),
        ("lock_expiry", "write lock_queue_ttl="),
        ("once", "celery-once's (celery_redislock.compat.celery_once takes it); write lock_key=("),
        ("queue_lock", "celery-once-task's; write lock='until_and_while_executing' for True, and for False "),
        ("running_lock", "for True, and 'until_executing' for False"),
        ("heimdall", "celery-heimdall's; write lock_key="),
    ],
)
def test_a_name_that_is_meant_for_us_is_refused_with_what_to_write(wrong, hint):
    """As an attribute it would be passed over in silence; in a call it would become a message property."""
    given = {"lock_ttl": 60, wrong: 1, "countdown": 5}
    (problem,) = unknown_options(given)
    assert problem.startswith(wrong)
    assert hint in problem
    assert problems(split_call_options, given) == [problem]
    assert given == {"lock_ttl": 60, wrong: 1, "countdown": 5}


@pytest.mark.parametrize(
    "name",
    [
        "locked", "locker", "locks", "clock", "block", "unlock", "_lock", "LOCK_TTL", "block_key", "look_key",
        "on_block_error", "on_connect", "on_confirm", "no_conflict", "key", "ttl", "redis", "redis_key",
        "rate_limit", "on_failure", "unique", "unique_key", "link", "link_error", "task_id", "headers",
    ],
)  # fmt: skip
def test_names_of_the_users_own_and_of_celery_are_left_alone(name):
    assert unknown_options([name]) == []
    assert split_call_options({name: 1, "lock": None}) == {"lock": None}


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("redislock_lock_ttl", "did you mean redislock_ttl?"),
        ("redislock_socket_timout", "did you mean redislock_socket_timeout?"),
        ("redislock_zzz", "known are redislock_beat, "),
        ("REDISLOCK_TTL", "did you mean redislock_ttl?"),
        ("CELERY_REDISLOCK_TTTL", "did you mean CELERY_REDISLOCK_TTL?"),
    ],
)
def test_an_unknown_setting_gets_the_nearest(wrong, hint):
    """In capitals with Celery's namespace, as Django has them, settings are read; without it they are not."""
    others = ["CELERY_REDISLOCK_TTL", "broker_url", "redis_url", "my_redislock_thing", "lock_ttl", "once"]
    (problem,) = unknown_settings([wrong, *SETTING_ROWS, *others])
    assert problem.startswith(f"{wrong} is no setting; ")
    assert hint in problem


QUEUE = "what has waited goes back to its own queue; for another, set task_routes"
SYNC = "set appendfsync always on the lock server: it answers only what is on its disk"


@pytest.mark.parametrize(
    ("gone", "instead"),
    [
        *(("lock_wait_queue", QUEUE), ("redislock_wait_queue", QUEUE)),
        *(("redislock_sync", SYNC), ("redislock_park_sync", SYNC)),
        ("redislock_through", "name the lock server by its URL; tests take memory_locks()"),
    ],
)
def test_what_was_taken_out_is_refused_with_what_to_write(gone, instead):
    """On a task and in a call; a setting in Django's spelling, too."""
    assert gone in GONE
    assert unknown_options([gone]) == [f"{gone} is no option; {instead}"]
    if gone.startswith("redislock_"):
        settings = [gone, f"CELERY_{gone.upper()}"]
        assert unknown_settings(settings) == [f"{name} is no setting; {instead}" for name in settings]
