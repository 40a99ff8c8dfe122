"""The laws of options where the newest of many calls runs: what it needs, what is refused, with a remedy."""

import re
from datetime import timedelta

import pytest

from celery_redislock.declaring.call_options import from_header
from celery_redislock.declaring.scopes import COMBINATIONS
from celery_redislock.declaring.unknown import OTHER_LIBRARIES
from celery_redislock.exceptions import LockOptionError
from tests.pages import PAGES
from tests.unit.declaring.asking import called, read, refused


@pytest.mark.parametrize("lock", ["until_executed", "until_executing"])
def test_who_coalesces_does_so_at_publish_and_on_the_worker(lock):
    """Its message may have to go there without a claim."""
    for asked in ("coalesce", {"client": "coalesce"}):
        options = read({"lock": lock, "on_conflict": asked})
        assert (options.client, options.server, options.claims_plainly) == ("coalesce", "coalesce", False)


@pytest.mark.parametrize(
    ("lock", "instead"),
    [
        ("until_expired", "use lock='until_executed' without lock_period"),
        ("while_executing", "use lock='until_executed'"),
        ("until_and_while_executing", "leave on_conflict out, or use lock='until_executed'"),
        (None, None),
    ],
)
@pytest.mark.parametrize(
    "asked", [{"on_conflict": "coalesce"}, {"lock_debounce": 5}], ids=["coalesce", "debounce"]
)
def test_other_scopes_refuse_it_and_tell_what_to_write(lock, instead, asked):
    period = {"lock_period": 60} if lock == "until_expired" else {}
    found = refused(lock=lock, **asked, **period)
    assert [instead in problem for problem in found if repr(lock) in problem] == ([True] if instead else [])


@pytest.mark.parametrize(
    "asked", [{"on_conflict": "coalesce"}, {"lock_debounce": 5}], ids=["coalesce", "debounce"]
)
def test_a_period_refuses_the_newest_call_as_any_other(asked):
    [problem] = refused(**asked, lock_period=60)
    assert "does not go with lock_period" in problem


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("replace", "write on_conflict='coalesce' (docs/flow.md#one-runs-the-newest-waits)"),
        ("cancel", "write a callable that revokes conflict.holder with terminate=True and returns 'wait'"),
        ("oldest", "leave on_conflict out and write lock='until_and_while_executing'"),
    ],
)
@pytest.mark.parametrize("is_by_side", [False, True])
def test_words_of_other_systems_are_refused_with_the_combination(word, instead, *, is_by_side):
    """Each is a row of a table of the docs, and no strategy of its own."""
    [problem] = refused(on_conflict={"client": word} if is_by_side else word)
    assert problem.startswith(f"on_conflict is {word!r}, which is unknown; ")
    assert instead in problem


def test_the_pages_have_what_the_combinations_name():
    """A reader of the error finds the heading."""
    for told in [*COMBINATIONS.values(), OTHER_LIBRARIES["lock_collect"]]:
        page, heading = re.search(r"\((docs/[-a-z]+\.md)#([-a-z]+)\)", told).groups()
        headings = [line.lstrip("# ").lower() for line in PAGES[page].splitlines() if line.startswith("#")]
        assert heading in [re.sub(r"[^-a-z]", "", each.replace(" ", "-")) for each in headings]


@pytest.mark.parametrize(
    "asked",
    [
        {"on_conflict": {"client": "coalesce", "server": "skip"}},
        {"on_conflict": {"client": "skip", "server": "coalesce"}},
        {"lock_debounce": 5, "on_conflict": "skip"},
        {"lock_debounce": 5, "on_conflict": {"server": "wait"}},
    ],
    ids=str,
)
def test_one_strategy_is_for_publish_and_worker(asked):
    """Else a call that is merged at publish would be dropped, or wait as itself, where it comes otherwise."""
    [problem] = refused(**asked)
    assert "is for publish and worker alike, and on_conflict names" in problem


def test_who_coalesces_on_the_worker_does_so_at_publish():
    options = read({"on_conflict": {"server": "coalesce"}})
    assert (options.client, options.server) == ("coalesce", "coalesce")


def test_a_setting_counts_for_the_tasks_that_can_coalesce():
    settings = {"redislock_on_conflict": "coalesce"}
    assert read({}, settings).client == "coalesce"
    assert read({"lock": "while_executing"}, settings).server == "wait"
    assert read({"lock": "until_and_while_executing"}, settings).client == "skip"
    assert read({"lock_period": 60}, settings).client == "skip"
    assert read({"lock_debounce": 5}, {"redislock_on_conflict": "skip"}).client == "coalesce"


def test_a_debounce_coalesces_and_its_times_are_seconds_or_a_timedelta():
    options = read({"lock_debounce": timedelta(seconds=5), "lock_debounce_max": 60})
    assert (options.client, options.server) == ("coalesce", "coalesce")
    assert (options.lock_debounce, options.lock_debounce_max) == (5.0, 60.0)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"lock_debounce": 0.5}, "lock_debounce is 0.5; give seconds (1 …"),
        ({"lock_debounce": "5s"}, "lock_debounce is '5s'; give seconds (1 …"),
        ({"lock_debounce_max": 60}, "lock_debounce, which is not set"),
        (
            {"lock_debounce": 5, "lock_debounce_max": 4},
            "lock_debounce_max (4) is shorter than lock_debounce (5)",
        ),
    ],
)
def test_wrong_times_are_refused(asked, said):
    [problem] = refused(**asked)
    assert said in problem


def test_a_call_may_be_put_off_and_not_change_what_its_task_does_with_the_newest():
    assert called(read(), lock_debounce=5).lock_debounce == 5.0
    assert called(read({"lock_debounce": 5}), lock_debounce=9).lock_debounce == 9.0
    for declared, asked in (
        ({"on_conflict": "coalesce"}, {"lock_period": 60}),
        ({"lock_debounce": 5}, {"lock_period": 60}),
        ({"lock_debounce": 5}, {"on_conflict": "skip"}),
    ):
        with pytest.raises(LockOptionError):
            called(read(declared), **asked)


def test_a_worker_reads_what_travels():
    base = read()
    options = from_header(base, {"lock_debounce": 5, "lock_debounce_max": 60})
    assert (options.lock_debounce, options.lock_debounce_max, options.server) == (5.0, 60.0, "coalesce")
    assert from_header(base, {"lock_debounce": 5, "lock_debounce_max": 1}) == base
