"""A call whose key is held: skipped, refused, or published without a claim; and what its caller sees."""

import logging
import re
import time
from contextlib import nullcontext, suppress
from itertools import product
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as NoResult

from celery_redislock import DuplicateTask, LockOptionError, lock_conflict
from celery_redislock.locks import Lock
from celery_redislock.locks.tasklock import Says, TaskLock
from celery_redislock.publishing.conflict import log_skip
from celery_redislock.store.memory import MemoryStore
from celery_redislock.testing import hold
from tests.stores import hold_of
from tests.unit.shop import Down, Shop, body, carried, debts, raising


@pytest.mark.parametrize("says", ["skip", "wait", "raise"])
@pytest.mark.parametrize("is_callable", [False, True])
def test_a_duplicate_gets_the_strategy_of_its_task(shop: Shop, says: str, *, is_callable: bool) -> None:
    """Skipped, it is the holder's result; retried, the worker decides; refused, its error names the holder.

    A callable is given every fact of the duplicate. Whatever it says, the holder's claim stays.
    """
    asked = []

    def decide(conflict: Any) -> str:
        asked.append(conflict)
        return says

    task = shop.unique(body, on_conflict=decide if is_callable else says, lock_key="account:{account_id}")
    first = task.delay(7, amount=1)
    shop.messages()
    with pytest.raises(DuplicateTask) if says == "raise" else nullcontext() as refusal:
        result = task.apply_async((7,), {"amount": 2}, task_id="second")

    sent = [(each.key, each.claimed, each.must_run) for each in map(carried, shop.messages())]
    assert sent == ([("account:7", False, False)] if says == "wait" else [])
    assert [claim.owner for claim in shop.held().values()] == [first.id]
    if says == "raise":
        assert (refusal.value.task_id, refusal.value.key) == (first.id, "account:7")
        assert refusal.value.expires_in == pytest.approx(3600, abs=1)
    else:
        expected = (first.id, True) if says == "skip" else ("second", False)
        assert (result.id, result.is_duplicate, type(result)) == (*expected, type(first))
    for conflict in asked:
        assert (conflict.task, conflict.args, conflict.kwargs) == (task, (7,), {"amount": 2})
        assert (conflict.task_id, conflict.key, conflict.holder) == ("second", "account:7", first.id)
        assert (conflict.side, conflict.expires_in) == ("client", pytest.approx(3600, abs=1))
    assert len(asked) == is_callable


EXPIRED: dict[str, Any] = {"lock": "until_expired", "lock_period": 60.0}


@pytest.mark.parametrize(
    ("decide", "options", "error", "words"),
    [
        (lambda _: "queue", {}, LockOptionError, "returned 'queue'.*; return one of .*raise.*, skip"),
        (lambda _: 3, {}, LockOptionError, "returned 3.*; return one of .*raise.*, skip"),
        (raising(ZeroDivisionError("mine")), {}, ZeroDivisionError, "mine"),
        # Its turn would not come.
        (lambda _: "wait", EXPIRED, LockOptionError, "returned 'wait' at publish.*use 'skip' or 'raise'"),
    ],
)
def test_a_callable_that_fails_or_answers_what_cannot_be_tells_the_caller_and_changes_nothing(
    shop: Shop, decide: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    """Law 2: nothing is published, nothing is dropped in silence, and the holder keeps its claim."""
    task = shop.unique(body, on_conflict=decide, **options)
    task.delay(7)
    shop.messages()
    before = shop.states()
    with pytest.raises(error, match=words):
        task.delay(7)
    assert (shop.messages(), shop.states()) == ([], before)


@pytest.mark.parametrize(
    ("options", "is_eager", "happens"),
    [
        ({}, False, "skip"),
        ({"on_conflict": "wait"}, False, "wait"),
        ({"group_id": "g"}, False, "wait"),
        ({"retries": 1}, False, "wait"),
        ({"on_conflict": "wait"}, True, "raise"),
        ({"group_id": "g"}, True, "skip"),
    ],
    ids=str,
)
def test_a_conflict_is_announced_as_it_happens(
    shop: Shop, options: dict[str, Any], *, is_eager: bool, happens: str
) -> None:
    """``retry``: published without a claim, and the worker decides. In eager mode that is asked at once."""
    shop.app.conf.update(task_always_eager=is_eager, redislock_eager=True)
    task, heard = shop.unique(body), []

    def listen(sender: Any, **facts: Any) -> None:
        heard.append((sender, facts["strategy"], facts["holder"].owner, facts["task_id"]))

    lock_conflict.connect(listen, sender=task)
    with hold(task, 7, task_id="first"), suppress(DuplicateTask):
        task.apply_async((7,), task_id="second", **options)
    assert heard == [(task, happens, "first", "second")]


@pytest.mark.parametrize(
    ("about", "is_period", "expires_in", "words"),
    [
        ({"state": "queued", "since": 0.0}, False, 3.0, r"\(queued, for \d+\.\d s; "),
        ({"state": "running", "since": 0.0}, False, 3.0, r"for .* s; expires in 3.0 s unless renewed\)"),
        ({"since": 0.0}, True, 3.0, r"\(its period has not passed, accepted .* ago; expires in 3.0 s\)"),
        ({"state": "period"}, False, 3.0, r"\(its period has not passed; expires in 3.0 s\)"),
        ({}, False, float("inf"), r"\(a foreign lock; expires never\)"),
    ],
)
def test_a_skip_writes_one_line_that_says_what_is_known_of_the_holder(
    caplog: Any, about: dict[str, Any], is_period: bool, expires_in: float, words: str
) -> None:
    """Task, key, holder, age and remaining time."""
    lock = TaskLock(MemoryStore(), "shop.sync", 3, 3, None, None, Says(), key="account:7", owner="t1")
    begin = r"skipped shop\.sync\[t1\] at publish: 'account:7' is held by somebody "
    with caplog.at_level(logging.INFO, logger="celery_redislock"):
        log_skip(
            lock, hold_of("somebody", about, expires_in, name="account:7", is_period=is_period), side="client"
        )
    (line,) = caplog.messages
    assert re.match(begin + ".*" + words + ".*: celery -A YOUR_APP redislock explain account:7$", line)


@pytest.mark.parametrize("amount", [5, 700])
def test_a_skip_says_whether_its_arguments_are_the_holders(shop: Shop, caplog: Any, amount: int) -> None:
    """Where the key leaves arguments out, a payment is dropped for another one: the line says how not to."""
    task = shop.unique(body, lock_key="account:{account_id}")
    task.delay(7, 5)
    with caplog.at_level(logging.INFO, logger="celery_redislock"):
        task.delay(7, amount)
    (line,) = caplog.messages
    differs = ", which was called with other arguments that lock_key leaves out (to run both, one after the"
    assert (differs in line) == (amount == 700)
    assert line.endswith(": celery -A YOUR_APP redislock explain account:7")


def test_a_task_skipped_as_a_duplicate_of_its_own_run_is_warned_about(shop: Shop, caplog: Any) -> None:
    """The likeliest mistake with this package must not be silent."""
    results = []

    def again(account_id: int) -> None:
        results.append(shop.app.tasks["shop.sync"].delay(account_id))

    first = shop.unique(again).delay(7)
    shop.run()
    assert results == [first]
    ours = [record for record in caplog.records if record.name == "celery_redislock"]
    (warning,) = [record for record in ours if record.levelno == logging.WARNING]
    assert "published itself from inside its own run" in warning.message
    assert "lock='until_executing' (one may be queued), or 'while_executing'" in warning.getMessage()


@pytest.mark.parametrize(
    ("options", "other", "is_told"),
    [
        ({"lock": "while_executing"}, 7, True),
        ({"lock": "while_executing"}, 8, False),
        ({"lock": "while_executing", "on_conflict": "skip"}, 7, False),
        ({"lock": "while_executing", "lock_limit": 2}, 7, False),
        ({"lock": "until_executed", "on_conflict": "wait"}, 7, True),
        ({"lock": "until_and_while_executing"}, 7, True),
        ({"lock": "until_executing", "on_conflict": "wait"}, 7, False),
    ],
    ids=str,
)
def test_a_body_that_waits_for_a_call_behind_its_own_run_is_warned(
    shop: Shop, caplog: Any, options: dict[str, Any], other: int, is_told: bool
) -> None:
    """Without a timeout it would wait for ever, with its lease renewed. Elsewhere get() says nothing."""
    results = []

    def nest(account_id: int) -> None:
        if not results:
            results.append(shop.app.tasks["shop.sync"].delay(account_id + other - 7))
            with suppress(NoResult):
                results[0].get(timeout=0.001, disable_sync_subtasks=False)

    first = shop.unique(nest, lock_key="account:{account_id}", **options).delay(7)
    shop.run()
    caplog.set_level(logging.WARNING)
    told = [message for message in caplog.messages if "which waits for that run to end" in message]
    with suppress(NoResult):
        results[0].get(timeout=0.001)

    said = f"the run {first.id} waits for the result of {results[0].id}, which waits"
    assert [message.startswith(said) for message in told] == [True] * is_told
    assert [message for message in caplog.messages if "which waits for" in message] == told


@pytest.mark.parametrize(
    ("before", "ignore_result", "after"),
    [
        (None, False, "REVOKED"),
        (None, True, "PENDING"),
        ("STARTED", False, "REVOKED"),
        ("SUCCESS", False, "SUCCESS"),
    ],
)
def test_a_fixed_id_that_was_skipped_is_ready_and_says_why(
    shop: Shop, before: str | None, after: str, *, ignore_result: bool
) -> None:
    """Who waits for that id must not wait for ever.

    Celery's own backend keeps a SUCCESS, and the holder's own id is left alone.
    """
    task = shop.unique(body)
    first = task.delay(7)
    if before is not None:
        shop.app.backend.store_result("mine", 1, before)
    for task_id in ("mine", first.id):
        task.apply_async((7,), task_id=task_id, ignore_result=ignore_result)
    assert (shop.state("mine"), shop.state(first.id)) == (after, "PENDING")
    if after == "REVOKED":
        with pytest.raises(TaskRevokedError, match=f"duplicate of {first.id}"):
            task.AsyncResult("mine").get(timeout=1)


@pytest.mark.parametrize("backend", ["rpc://", "disabled://"])
def test_where_states_cannot_be_read_none_is_written_for_a_skip(backend: str, caplog: Any) -> None:
    """``rpc://`` has nobody to send it to, and would raise."""
    task = Shop(result_backend=backend).unique(body)
    first = task.delay(7)
    assert task.apply_async((7,), task_id="mine").id == first.id
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


@pytest.mark.parametrize("options", [{}, {"task_id": "mine"}])
def test_a_publish_reads_nothing_from_the_result_backend(
    shop: Shop, monkeypatch: Any, caplog: Any, options: dict[str, str]
) -> None:
    """Law 9: a backend that does not answer keeps no caller waiting; one that fails is told of in the log."""
    task = shop.unique(body)
    first, clock = task.delay(7), time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 5)
    for verb in ("get_task_meta", "get_state", "get_status", "get_result", "wait_for", "get", "mget"):
        monkeypatch.setattr(shop.app.backend, verb, raising(Down()))
    monkeypatch.setattr(shop.app.backend, "store_result", raising(OSError("away")))
    result = task.apply_async((7,), **options)
    assert (result.id, result.is_duplicate) == (first.id, True)
    assert len([line for line in caplog.messages if "waits in vain" in line]) == len(options)


@pytest.mark.parametrize("meets", ["queued", "running"])
def test_a_skipped_publish_is_waited_for_only_where_its_result_is_kept(shop: Shop, meets: str) -> None:
    """Nobody stores what ``get()`` would wait for where the call ignores results, or the holder does."""
    met: list[Any] = []

    def meet(account_id: int, of_call: bool) -> None:
        if meets == "running":
            met.append(task.apply_async((7, of_call), ignore_result=of_call))

    task = shop.unique(meet, lock_key="account:{account_id}")
    for of_holder, of_call in product([True, False], repeat=2):
        task.apply_async((7, of_call), ignore_result=of_holder)
        if meets == "queued":
            met.append(task.apply_async((7, of_call), ignore_result=of_call))
        shop.run()

        second = met.pop()
        assert (second.is_duplicate, second.ignored) == (True, of_holder or of_call)
        assert not second.ignored or second.get(timeout=1) is None


@pytest.mark.parametrize("holder", ["a plain lock", "another program"])
def test_a_call_refused_by_no_task_waits_for_none(shop: Shop, holder: str) -> None:
    """Nobody will ever store a result under the holder's name, and ``get()`` would wait for ever."""
    task = shop.unique(body, lock_key="nightly import")
    if holder == "a plain lock":
        assert Lock(shop.store, "nightly import", owner="a script", auto_renew=False).acquire()
    else:
        shop.store.acquire(task.lock_for(7).key, "a script", 30, facts="{}")
    second = task.apply_async((7,), task_id="mine")
    assert (second.is_duplicate, second.id, second.state) == (True, "a script", "REVOKED")
    assert shop.state("mine") == "REVOKED"
    with pytest.raises(TaskRevokedError, match="duplicate of a script"):
        second.get(timeout=1)


@pytest.mark.parametrize("lock_key", ["account:{account_id}", "nightly import", None, "x" * 300, "50%"])
def test_a_plain_lock_excludes_a_task_by_its_key(shop: Shop, lock_key: str | None) -> None:
    """``task.lock_for(...).key`` names the lock for everybody; a text without fields does so by itself."""
    task = shop.unique(body, lock_key=lock_key)
    names = {task.lock_for("a:b c").key, "nightly import" if lock_key == "nightly import" else None}
    for name in names - {None}:
        with Lock(shop.store, name):
            assert task.delay("a:b c").is_duplicate
        with hold(task, "a:b c"):
            assert not Lock(shop.store, name).acquire(timeout=0)


def pack() -> None: ...


#: Every way to publish a task so that somebody waits for it.
WAYS = {
    "group": lambda task, other: group(task.si(7), other.si()).apply_async(),
    "chord header": lambda task, other: chord([task.si(7), other.si()], other.si()).apply_async(),
    "chain's first": lambda task, other: chain(task.si(7), other.si()).apply_async(),
    "chain's last": lambda task, _: task.apply_async((7,), chain=[]),
    "link": lambda task, other: task.apply_async((7,), link=other.si()),
    "link_error": lambda task, other: task.apply_async((7,), link_error=other.si()),
    "a link itself": lambda task, _: task.apply_async((7,), parent_id="p", root_id="r"),
    "a retry": lambda task, _: task.apply_async((7,), retries=1),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("trouble", ["skip", "raise", "no server"])
def test_whom_somebody_waits_for_is_published_without_a_claim(
    shop: Shop, monkeypatch: Any, way: str, trouble: str
) -> None:
    """Laws 2, 6 and 7: a swallowed member hangs its workflow, and an error breaks what is on its way already.

    The message says that it must run, so that it waits on the worker whoever holds the key.
    """
    owed, held = debts(shop, monkeypatch), []
    task = shop.unique(body, on_conflict="raise" if trouble == "raise" else "skip")
    other = shop.unique(pack, name="shop.other", lock=None)
    if trouble == "no server":
        shop.store.failures = float("inf")
    else:
        held = [task.delay(7).id]
        shop.messages()
    WAYS[way](task, other)

    (header,) = [carried(message) for message in shop.messages() if message.headers["task"] == "shop.sync"]
    assert (header.claimed, header.must_run) == (False, True)
    assert [claim.owner for claim in shop.held().values()] == held
    assert owed == []  # what an unanswered request took is found by the message's own run


def test_a_workflows_first_of_its_key_claims(shop: Shop) -> None:
    """And its message must run as well, should that claim be gone by then."""
    task = shop.unique(body)
    group(task.si(7), task.si(8)).apply_async()
    headers = [carried(message) for message in shop.messages()]
    assert [(header.claimed, header.must_run) for header in headers] == [(True, True)] * 2
