"""The laws of ``lock_rate``: what it is written as, and what it does not go with."""

import pytest

from celery_redislock.declaring.call_options import from_header, to_header
from celery_redislock.declaring.kinds import Rates
from celery_redislock.exceptions import LockOptionError
from tests.unit.declaring.asking import called, read, refused


@pytest.mark.parametrize(
    ("rate", "told"),
    [
        ("10/s", "10/1000"),
        ("10/m", "10/60000"),
        ("1/h", "1/3600000"),
        ("100000/d", "100000/86400000"),
        ("10/90s", "10/90000"),
        ("1/5m", "1/300000"),
        (["10/s", "1000/h"], "10/1000 1000/3600000"),
        (("10/s",), "10/1000"),
    ],
)
def test_a_rate_is_so_many_starts_in_a_span(rate, told):
    options = read({"lock_rate": rate})
    assert Rates.for_scripts(options.lock_rate) == told
    # As a message brings it.
    assert from_header(read(), to_header({"lock_rate": rate})).lock_rate == options.lock_rate


@pytest.mark.parametrize(
    "rate",
    [
        "fast",
        "0/s",
        "10",
        "10/2d",
        "10/90000s",
        "10/0s",
        "10/",
        "/s",
        [],
        ["1/s"] * 3,
        ["1/s", 5],
        ["10/m", "5/60s"],
        {},
        True,
    ],
)
def test_what_is_no_rate_is_refused_with_examples_that_are(rate):
    [problem] = refused(lock_rate=rate)
    assert problem.startswith(f"lock_rate is {rate!r}; give a text such as '10/m', '1/s' or '10/90s'")


@pytest.mark.parametrize("rate", [10, 0.5, "0.5/s"])
def test_what_only_celerys_rate_limit_takes_is_told_from_it(rate):
    [problem] = refused(lock_rate=rate)
    assert problem.endswith("; Celery's rate_limit is another option")


@pytest.mark.parametrize("lock", ["until_executing", "until_expired", "until_and_while_executing"])
def test_it_is_about_the_one_lock_of_a_run(lock):
    period = {"lock_period": 60} if lock == "until_expired" else {}
    problems = refused(lock=lock, lock_rate="1/s", **period)
    assert any("lock_rate" in problem for problem in problems)
    assert not any("use 'until_and" in problem or "or 'until_and" in problem for problem in problems)
    with pytest.raises(LockOptionError, match="lock_rate"):
        called(read({"lock_rate": "1/s"}), lock=lock, **period)


def test_it_does_not_go_with_a_period():
    [problem] = refused(lock_rate="1/s", lock_period=60)
    assert "lock_rate does not go with lock_period" in problem
    with pytest.raises(LockOptionError, match="lock_period"):
        called(read({"lock_rate": "1/s"}), lock_period=60)


@pytest.mark.parametrize("on_conflict", ["skip", "raise", "wait", "coalesce"])
def test_any_strategy_decides_about_what_is_over(on_conflict):
    assert read({"lock_rate": "1/s", "on_conflict": on_conflict}).client == on_conflict
