"""``limit``, and what a handle says of several holders, without a server."""

import getpass
import os
import sys
from datetime import timedelta
from typing import Any

import pytest

from celery_redislock.exceptions import LockOptionError
from celery_redislock.operating.server import LockServer
from tests.unit.shop import KEY, Shop, body
from tests.unit.test_cli_line import LOCK, answer, call

#: What is said of a number that is out of range, to those who mean none.
RANGE = "give a whole number from 1 to 10000; a call without a limit takes lock=None"

DOUBT = (
    "nothing shows that a task with this key has a lock_limit above 1, or a callable; without one the number "
    "has no effect"
)


@pytest.fixture
def task(shop: Shop) -> Any:
    """A task of whose calls three may run for one account; two of them run."""
    task = shop.unique(body, **LOCK, lock_limit=3)
    for owner in ("a", "b"):
        facts = f'{{"state":"running","task":"{task.name}","limit":3}}'
        shop.store.acquire(KEY, f"{owner}/1", 300.0, facts=facts, limit=3)
    return task


@pytest.mark.usefixtures("task")
@pytest.mark.parametrize("words", [[KEY], ["shop.sync", "7"]], ids=["a key", "a task's call"])
def test_a_limit_is_set_shown_and_taken_back(shop: Shop, words: list[str]) -> None:
    """By a key, or by the task and the arguments; for so long, by whoever runs the command."""
    done = call(shop, "limit", *words, "5", "--for", "30d")
    shown = call(shop, "explain", "--quick", KEY)
    document = answer(shop, "limit", KEY)
    back = call(shop, "limit", *words, "--reset")

    assert done.exit_code == shown.exit_code == back.exit_code == 0, done.output
    assert done.stdout.startswith(f"the limit of {KEY} is 5, set by ")
    assert "limit        5, set by " in shown.stdout
    assert document["key"] == KEY
    assert (document["set"]["limit"], round(document["set"]["expires_in"], -2)) == (5, 30 * 86400)
    assert document["set"]["by"]
    assert back.stdout == f"the limit of {KEY} is the one that its task says\n"
    assert call(shop, "limit", KEY).exit_code == 1


def test_the_limit_of_a_key_that_nobody_holds_is_shown_or_that_none_was_set(shop: Shop, caplog: Any) -> None:
    """It counts for the next call. The log tells of changes only."""
    task = shop.unique(body, **LOCK, lock_limit=3)
    done = call(shop, "limit", KEY, "--reset")
    said = f"nothing was set for {KEY}: its limit is the one that its task says\n"
    assert (done.exit_code, done.stdout) == (1, said)
    assert call(shop, "limit", KEY, "--reset", "--json").exit_code == 1
    assert caplog.messages == []

    task.lock_for(7).limit(5, by="billing")
    shown = call(shop, "explain", "--quick", KEY)
    limit = answer(shop, "explain", "--quick", KEY)["limits"][KEY]
    assert (shown.exit_code, "limit        5, set by billing" in shown.stdout) == (1, True)
    assert (limit["limit"], limit["by"], round(limit["expires_in"], -5)) == (5, "billing", 31_600_000)


@pytest.mark.usefixtures("task")
def test_list_and_explain_name_every_holder_and_release_takes_one_or_all(shop: Shop) -> None:
    shown = answer(shop, "explain", "--quick", KEY)
    listed = answer(shop, "list")
    one = call(shop, "release", "b", "--reason", "test", "--yes")
    assert [each["owner"] for each in shown["locks"]] == ["a", "b"]
    assert sorted(each["owner"] for each in listed["locks"]) == ["a", "b"]
    assert one.exit_code == 0
    assert [hold.owner for hold in shop.store.holders(KEY)] == ["a"]
    assert call(shop, "release", KEY, "--reason", "test", "--yes").exit_code == 0
    assert shop.store.holders(KEY) == ()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["account:7", "many"], "'many' is no whole number"),
        (["account:7", "0"], f"limit is 0; {RANGE}"),
        (["account:7", "10001"], f"limit is 10001; {RANGE}"),
        (["account:7", "9" * 5000], "is no whole number from 1 to 10000: give N last"),
        (["account:7", "\N{SUPERSCRIPT TWO}"], "is no whole number"),
        (["account:7", "5", "--for", "soon"], "'soon' is no time of up to a year"),
        (["nobody", "7", "5"], "'nobody' is not a task known here"),
        (["account:7", "5", "--reset"], "a key takes no arguments; --reset takes no N"),
        (["shop.sync", "7", "1", "5", "--reset"], "takes them all); --reset takes no N"),
        (["account:7", "--for", "10m"], "--for is how long an N counts: give N, without --reset"),
        (["account:7", "--reset", "--for", "10m"], "--for is how long an N counts: give N, without --reset"),
    ],
)
@pytest.mark.usefixtures("task")
def test_what_is_no_limit_is_refused(shop: Shop, words: list[str], said: str) -> None:
    done = call(shop, "limit", *words)
    assert done.exit_code == 2
    assert said in done.output
    assert shop.store.limit(KEY) is None


def test_a_task_that_says_one_asks_for_no_limit(shop: Shop) -> None:
    """Its runs would not notice. A key that begins with its name is its own, whatever other tasks say."""
    task = shop.unique(body, **LOCK)
    for words in (["account:7", "5"], ["shop.sync", "7", "5"], ["account:7", "--reset"]):
        done = call(shop, "limit", *words)
        of_whom = "shop.sync" if words[0] == "shop.sync" else "every unique task of this app"
        said = (
            f"Error: {KEY}: its limit cannot be changed: {of_whom} says lock_limit=1, and its runs ask for "
        )
        assert (done.exit_code, said in done.output) == (2, True)
    assert shop.store.limit(KEY) is None

    shop.unique(body, name="shop.other", **LOCK, lock_limit=3)
    task.lock_key = None
    done = call(shop, "limit", task.lock_for(7).key, "5")
    assert (done.exit_code, "shop.sync says lock_limit=1" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("options", "holder", "key", "is_sure"),
    [
        (None, None, KEY, False),
        (None, '{"state":"running"}', KEY, False),
        (None, '{"state":"running","limit":2}', KEY, True),
        ({**LOCK, "lock_limit": 3}, None, KEY, True),
        ({**LOCK, "lock_limit": 3}, None, "customer:7", False),
        ({"lock_key": lambda _: KEY, "lock_limit": 3}, None, KEY, False),
    ],
    ids=["no app", "a holder without", "a holder with", "its template", "another key", "a callable"],
)
def test_a_number_that_may_have_no_effect_is_told(
    shop: Shop, monkeypatch: Any, options: Any, holder: str | None, key: str, is_sure: bool
) -> None:
    """It is set: a task elsewhere may have this key, and a limit."""
    if options is None:
        server = LockServer(shop.store, "celery-redislock")
        monkeypatch.setattr("celery_redislock.cli.answer.server_of", lambda _ctx: server)
    else:
        shop.unique(body, **options)
    if holder is not None:
        shop.store.acquire(key, "a/1", 300.0, facts=holder)

    done = call(shop, "limit", key, "5")
    document = answer(shop, "limit", key, "5")
    shown = call(shop, "limit", key)

    said = None if is_sure else DOUBT
    assert (done.exit_code, done.stderr.strip() or None) == (0, said)
    assert (document["set"]["limit"], document["warning"]) == (5, said)
    assert shown.stdout.startswith(f"the limit of {key} is 5, ")
    assert shown.stderr == ""


@pytest.mark.parametrize("words", [["account:7", "4"], ["shop.sync", "7", "4"]], ids=["a key", "a call"])
def test_of_a_scope_of_two_locks_the_command_sets_both(shop: Shop, words: list[str]) -> None:
    """By either way to name it; else calls would be refused by the other one."""
    shop.unique(body, name="shop.sync", lock="until_and_while_executing", lock_key="account:{account_id}",
                lock_limit=2)  # fmt: skip
    assert call(shop, "limit", *words).exit_code == 0
    assert [shop.store.limit(key).value for key in (KEY, f"queued:{KEY}")] == [4, 4]  # type: ignore[union-attr]


@pytest.mark.usefixtures("task")
def test_who_has_no_name_on_this_machine_may_set_a_limit(shop: Shop, monkeypatch: Any) -> None:
    """A container's user is often a number only. Nobody is asked for a name to look."""

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(getpass, "getuser", nobody)

    assert call(shop, "limit", KEY, "5").exit_code == 0
    shown = answer(shop, "limit", KEY)
    assert shown["set"]["by"] == f"uid {os.getuid()}"


def test_a_handle_tells_and_changes_a_limit(shop: Shop, task: Any) -> None:
    """As an admin page does, by its own word for who did it."""
    lock = task.lock_for(7)
    assert lock.limit() is None
    for value, options, said in (
        (0, {}, "limit is 0"),
        (10_001, {}, f"limit is 10001; {RANGE}"),
        (True, {}, "limit is True"),
        (5, {"for_": -1}, "for_ is -1"),
        ("5", {}, "limit is '5'"),
    ):
        with pytest.raises(LockOptionError, match=said):
            lock.limit(value, **options)

    assert lock.limit(10_000)[0] == 10_000
    found = lock.limit(5, for_=timedelta(days=30), by="billing")

    assert found is not None
    assert (found.value, found.facts["by"]) == (5, "billing")
    assert round(found.expires_in) == 30 * 86400
    assert lock.limit()[::2] == found[::2]
    assert [holder.owner for holder in lock.holders()] == ["a", "b"]
    assert lock.limit(reset=True) is None


@pytest.mark.parametrize("limit", [0, 10_001, "3", True])
def test_a_limit_that_is_none_is_refused_when_the_task_is_bound(shop: Shop, limit: Any) -> None:
    with pytest.raises(
        LockOptionError, match=rf"lock_limit is {limit!r}; give a whole number from 1 to 10000"
    ):
        shop.unique(body, lock_limit=limit)


def test_a_callable_that_means_no_limit_is_told_how_a_call_has_none(shop: Shop) -> None:
    """The caller is, as of any other answer that is no limit. Such a call takes no lock."""
    task = shop.unique(body, **LOCK, lock_limit=lambda _: sys.maxsize)
    largest = shop.unique(body, name="shop.other", lock_key="order:{account_id}", lock_limit=lambda _: 10_000)
    assert not largest.delay(7).is_duplicate
    shop.message()
    with pytest.raises(LockOptionError, match=f"returned is {sys.maxsize}; {RANGE}"):
        task.delay(7)
    task.apply_async((7,), lock=None)
    assert shop.messages()
    assert shop.store.holders(KEY) == ()


def test_a_callable_is_asked_once_for_each_call(shop: Shop) -> None:
    """By the publisher; what it said travels, and the worker goes by that."""
    asked: list[int] = []

    def limit(arguments: Any) -> int:
        asked.append(arguments["account_id"])
        return 2

    task = shop.unique(body, lock_key="account:{account_id}", lock_limit=limit)
    calls = [task.delay(7) for _ in range(3)]
    results = [shop.run(shop.receive(message)) for message in shop.messages()]

    assert [each.is_duplicate for each in calls] == [False, False, True]
    assert len(results) == 2
    assert asked == [7, 7, 7]
    with pytest.raises(LockOptionError, match="lock_limit is a callable, which cannot travel"):
        task.apply_async((7,), lock_limit=limit)
