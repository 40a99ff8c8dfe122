"""How a run enters its lock, scope by scope, and what happens while the lock server is away."""

import time
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from celery.exceptions import Ignore, SoftTimeLimitExceeded

from celery_redislock import DuplicateTask, LockUnavailable, log
from celery_redislock.locks.lease import InertLease
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.publishing.message import HEADER, Message
from celery_redislock.testing import locks_off
from tests.unit.shop import KEY, SCOPES, Down, Shop, body, carried, debts, no_patience


def looking(shop: Shop, seen: list[Any], **options: Any) -> Any:
    """Declare a task whose body notes who holds its key."""
    options = {"lock_key": "account:{account_id}", **options}
    return shop.noting(seen, lambda _task: shop.holder(KEY), **options)


@pytest.mark.parametrize("scope", ["until_executed", "until_executing"])
def test_a_message_that_lost_its_header_takes_over_the_claim_of_its_task_id(shop: Shop, scope: str) -> None:
    """Law 2: whatever lost it on the way, the message was accepted."""
    seen: list[Any] = []
    looking(shop, seen, lock=scope).apply_async((7,), task_id="t1")
    shop.messages()
    shop.app.send_task("shop.sync", (7,), task_id="t1")
    assert shop.run() == 7
    assert [hold and hold.state for hold in seen] == ["running" if scope == "until_executed" else None]
    assert shop.held() == {}


@pytest.mark.parametrize(("published", "works"), [(3, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("scope", ["until_executed", "until_executing", "until_and_while_executing"])
def test_a_deploy_that_changes_the_limit_costs_no_call_that_is_on_its_way(
    shop: Shop, scope: str, published: int, works: int
) -> None:
    """Law 2: publishers and workers get it at different times, and a claim is its own message's always."""
    task = shop.unique(body, lock=scope, lock_key=KEY, lock_limit=published)
    calls = [task.delay(7) for _ in range(published)]
    messages = shop.messages()
    task.lock_limit = works
    assert [call.is_duplicate for call in calls] == [False] * published
    assert [shop.run(shop.receive(message)) for message in messages] == [7] * published
    assert shop.held() == {}


def test_a_header_copied_from_another_message_lends_no_hold(shop: Shop) -> None:
    """Law 3: whoever hands on all headers of its request must not hand on its lock."""
    keys: list[str] = []
    task = shop.noting(keys, lambda task: task.lease.key)
    task.apply_async((7,), task_id="t0", lock_key=KEY)
    other = shop.message()
    shop.app.send_task("shop.sync", (7,), task_id="t1", headers={HEADER: other.headers[HEADER]})
    shop.run()
    assert keys == [task.lock_for(7).key]
    assert shop.held()[KEY].token == carried(other).token


@pytest.mark.parametrize(
    ("task_limit", "message_limit", "own", "expected"),
    [(None, None, None, None), (100, None, None, 110), (100, [200, None], None, 210), (100, None, 60, 60)],
)
def test_a_run_is_renewed_for_its_hard_limit_and_no_longer(
    shop: Shop, monkeypatch: Any, task_limit: Any, message_limit: Any, own: Any, expected: Any
) -> None:
    """Law 4: no run is renewed for ever where anything says how long it may last."""
    task = shop.unique(body, lock_key=KEY, time_limit=task_limit, lock_max_hold=own)
    given = []
    monkeypatch.setattr(watchdog_of(shop.store), "watch", lambda _lease, max_hold: given.append(max_hold))
    with shop.running(task, timelimit=message_limit):
        task(7)
    assert given == [expected]


@pytest.mark.parametrize("how", ["", "a retry", "redelivered"])
def test_a_claim_that_had_expired_is_warned_of_and_taken_anew(shop: Shop, caplog: Any, how: str) -> None:
    """Law 2. Where a child was killed the key is open until the next start, and that is nobody's mistake."""
    shop.unique(body, lock_key=KEY).apply_async((7,), task_id="t1", retries=int(how == "a retry"))
    shop.store.force_release(KEY)
    assert shop.run(redelivered=how == "redelivered") == 7
    warning = "the claim of shop.sync[t1] on 'account:7' was gone when it started"
    assert (warning in caplog.text) == (how == "")


@pytest.mark.parametrize("others", [["other"], [], None], ids=["another prefix", "none", "not allowed"])
def test_a_claim_that_is_elsewhere_is_looked_for_once_a_minute(
    shop: Shop, monkeypatch: Any, caplog: Any, others: list[str] | None
) -> None:
    """Under other prefixes, by its term. Of a publisher that has another one, all messages miss theirs."""
    asked: list[tuple[str, ...]] = []

    def other_prefixes(*about: str) -> list[str]:
        asked.append(about)
        if others is None:
            raise LockUnavailable("memory", "survey", "no permission")
        return others

    monkeypatch.setattr(log, "_told_at", {})
    monkeypatch.setattr(shop.store, "other_prefixes", other_prefixes)
    task = shop.unique(body, lock_key=KEY)
    claims = []
    for _ in range(2):
        task.delay(7)
        claims += [hold.token for hold in shop.store.holders(KEY)]
        shop.store.force_release(KEY)
        assert shop.run() == 7

    first, second = [record.getMessage() for record in caplog.records if "was gone" in record.getMessage()]
    assert asked == [(KEY, claims[0])]
    assert ("its publisher has the prefix 'other'" in first) == bool(others)
    assert "maybe another lock server" in second
    assert ("maybe another lock server" in first) == (not others)


@pytest.mark.parametrize(
    ("how", "takes_over"),
    [({"retries": 1}, True), ({"retries": 1, "delivery_info": {"redelivered": True}}, False), ({}, False)],
    ids=["a retry", "a retry delivered again", "a new job"],
)
def test_a_retry_takes_over_a_queued_claim_of_its_own_task_id(shop: Shop, how: Any, takes_over: bool) -> None:
    """Law 7: a claim that the main process made for a lost child does not block the retry."""
    task = shop.unique(body, lock_key=KEY)
    shop.store.acquire(KEY, "t1/other", 100, facts='{"state": "queued", "message": "t1/other"}')
    with shop.running(task, header=Message(KEY, "t1/m", must_run=True), **how):
        if takes_over:
            assert task(7) == 7
        else:
            with pytest.raises(Ignore):
                task(7)
    assert (shop.held() == {}) == takes_over


@pytest.mark.parametrize("strategy", ["retry", "skip", "raise"])
def test_without_a_claim_until_executing_yields_to_one(shop: Shop, monkeypatch: Any, strategy: str) -> None:
    """Law 1: published without a claim, so that the worker decides; the other's publish is long over."""
    seen: list[Any] = []
    task = looking(shop, seen, lock="until_executing", on_conflict={"client": "retry", "server": strategy})
    first = task.delay(7)
    second = task.delay(7)
    one, other = (shop.receive(message) for message in shop.messages())
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 61)
    outcome = shop.run(other)

    assert seen == []
    assert [claim.owner for claim in shop.held().values()] == [first.id]
    if strategy == "retry":
        waiting = shop.receive()
        assert waiting.id == second.id
        shop.run(one)
        shop.run(waiting)
        assert seen == [None, None]
    else:
        assert shop.state(second.id) == {"skip": "REVOKED", "raise": "FAILURE"}[strategy]
        assert isinstance(outcome, DuplicateTask) is (strategy == "raise")


@pytest.mark.parametrize(
    ("scope", "more"),
    [("until_executing", {"must_run": True}), ("until_executing", {}), ("until_expired", {})],
    ids=["a member", "a retry", "a retry of until_expired"],
)
def test_members_and_retries_are_not_decided_about_again(shop: Shop, scope: str, more: Any) -> None:
    """Laws 6 and 7: a member of a workflow, and what was accepted before its retry, run."""
    seen: list[Any] = []
    task = looking(shop, seen, **SCOPES[scope])
    shop.store.acquire(KEY, "queued/claim", 100, facts='{"state": "queued"}')
    with shop.running(task, header=Message(KEY, "t1/bare", **more), retries=0 if more else 1):
        task(7)
    assert [hold.owner for hold in seen] == ["queued"]


def test_until_executing_without_a_claim_begins_its_period_and_passes_through_its_own(shop: Shop) -> None:
    """``lock_period`` counts from the start of what was not accepted at publish; a redelivery was."""
    seen: list[Any] = []
    task = looking(shop, seen, lock="until_executing", lock_period=50)
    for redelivered in (False, True):
        delivery = {"redelivered": redelivered, "routing_key": shop.queue, "exchange": ""}
        with shop.running(task, header=Message(KEY, "t1/bare"), delivery_info=delivery):
            task(7)
    assert [(hold.owner, hold.is_period) for hold in seen] == [("t1", True)] * 2
    assert task.delay(7).is_duplicate


@pytest.mark.parametrize("acks_late", [False, True])
def test_who_is_interrupted_as_its_period_begins_owes_what_it_began_it_by(
    shop: Shop, monkeypatch: Any, acks_late: bool
) -> None:
    """Law 4: a message without a claim takes one, and releases it at once; it may hold a lease beside."""
    owed = debts(shop, monkeypatch)
    release = shop.store.release
    errors = [Down()]

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if errors:
            raise errors.pop()
        return release(*args, **kwargs)

    shop.unique(body, lock="until_executing", lock_key=KEY, lock_period=50, acks_late=acks_late)
    shop.app.send_task("shop.sync", (7,))
    request = shop.receive()
    monkeypatch.setattr(shop.store, "release", interrupted)
    with pytest.raises(Down):
        shop.run(request)

    assert [state for _, state in shop.states()] == ["queued"]
    for pay in owed:
        pay()
    assert shop.holder(KEY) is None


@pytest.mark.parametrize("others", [2, 3])
def test_a_claim_whose_grant_was_missed_is_among_several(shop: Shop, others: int) -> None:
    """Law 2: the publisher went without, and had it. It is released where places are free, too."""
    seen: list[Any] = []
    task = looking(shop, seen, lock="until_executing", lock_limit=4)
    for number in range(others):
        task.apply_async((7,), task_id=f"before-{number}")
    message = Message(KEY, "t1/m")
    facts = '{"state":"queued","limit":4,"published":true}'
    shop.store.acquire(KEY, message.token, 9000.0, facts=facts, limit=4)
    with shop.running(task, header=message):
        assert task(7) == 7
    assert sorted(hold.owner for hold in shop.store.holders(KEY)) == [f"before-{n}" for n in range(others)]


def test_until_expired_without_a_claim_is_accepted_when_it_starts(shop: Shop) -> None:
    """Beat without the task imported: the workers decide which of its messages counts.

    A period counts for each publish, also for those of one task id.
    """
    shop.unique(body, lock="until_expired", lock_period=50, lock_key=KEY)
    for task_id in ("t1", "t2", "t1"):
        shop.app.send_task("shop.sync", (7,), task_id=task_id)
    first, *others = shop.messages()
    assert shop.run(shop.receive(first)) == 7
    assert all(isinstance(shop.run(shop.receive(other)), Ignore) for other in others)
    assert [message.headers["id"] for message in shop.messages()] == ["t1"]  # it waits for the period to pass
    assert shop.run(shop.receive(first, redelivered=True)) == 7
    assert shop.held()[KEY].owner == "t1"
    assert shop.held()[KEY].expires_in == pytest.approx(50, abs=0.9)


@pytest.mark.parametrize("lock", ["until_executing", "until_executed", "while_executing"])
def test_a_member_of_a_workflow_waits_for_the_period_to_pass(shop: Shop, lock: str) -> None:
    """Law 6 drops no member, and ``lock_period`` is the least time between two accepted."""
    task = shop.unique(body, lock=lock, lock_period=50, lock_key=KEY)
    task.delay(7)
    shop.run()
    task.apply_async((7,), group_id="g")
    end = shop.run()
    assert isinstance(end, Ignore)
    shop.store.let_pass(51)
    assert shop.run() == 7


@pytest.mark.parametrize("switch", ["task", "call", "environment", "made by hand"])
def test_what_takes_no_lock_asks_nobody(shop: Shop, switch: str) -> None:
    """``lock=None`` for a task or a call, ``redislock_enabled``; a request without an id has no identity."""
    seen: list[Any] = []
    task = shop.noting(seen, lambda task: task.lease, lock=None if switch == "task" else "until_executed")
    header = Message(None if switch == "call" else KEY, "t1/x", claimed=switch == "environment")
    bare = {"id": None, "headers": None, "properties": None, "delivery_info": None}
    request = bare if switch == "made by hand" else {}
    switched = locks_off() if switch == "environment" else nullcontext()
    with switched, shop.running(task, header=header, **request):
        assert task(7) == 7
    assert [type(lease) for lease in seen] == [InertLease]
    assert shop.store.calls == []


def test_a_worker_asks_until_the_server_answers_and_owes_nothing(shop: Shop, monkeypatch: Any) -> None:
    """Laws 1 and 9: a release owed for an attempt that failed would end the hold the next one got."""
    pauses: list[float] = []
    no_patience(monkeypatch, pauses=pauses)
    owed = debts(shop, monkeypatch)
    shop.unique(body, lock_key=KEY).delay(7)
    shop.store.failures = 3
    assert shop.run() == 7
    assert (len(pauses), owed) == (2, [])


def test_after_the_start_timeout_a_message_is_sent_again(shop: Shop, monkeypatch: Any, caplog: Any) -> None:
    """Law 9: it waits with its id and without a state, and spends no retry."""
    pauses: list[float] = []
    no_patience(monkeypatch, pauses=pauses)
    shop.app.conf.redislock_start_timeout = 4.0
    published = shop.unique(body, lock_key=KEY, lock_retry_delay=50).delay(7)
    request = shop.receive()
    shop.store.failures = float("inf")
    assert isinstance(shop.run(request), Ignore)

    assert f"shop.sync[{published.id}] cannot start" in caplog.text
    again = shop.message()
    assert (again.headers["id"], again.headers["retries"], bool(again.headers["eta"])) == (
        published.id,
        0,
        True,
    )
    assert carried(again) == carried(request.message)
    assert sum(pauses) <= 4.0 < sum(pauses) + 1.0
    assert shop.state(published.id) == "PENDING"


@pytest.mark.parametrize("was_sent", [True, False])
def test_a_start_that_was_never_sent_owes_no_release(shop: Shop, monkeypatch: Any, was_sent: bool) -> None:
    """Without a connection nothing was taken; the same request, if it was sent, may have taken the lock."""
    owed = debts(shop, monkeypatch)
    task = shop.unique(body, lock_key=KEY, on_lock_error="run")
    monkeypatch.setattr(LockUnavailable, "was_sent", was_sent)
    shop.store.failures = 1
    with shop.running(task):
        task(7)
    assert len(owed) == was_sent


@pytest.mark.parametrize("answers_again", [True, False])
def test_a_start_whose_reply_was_lost_loses_nothing(
    shop: Shop, monkeypatch: Any, caplog: Any, answers_again: bool
) -> None:
    """The request that was not answered took over the claim: nobody is told to raise a TTL.

    Law 2: if it is not answered at all, nothing ran under its period, so nobody waits for that.
    """
    no_patience(monkeypatch)
    owed = debts(shop, monkeypatch)
    options: Any = {} if answers_again else {"lock": "while_executing", "lock_period": 3000}
    shop.unique(body, lock_key=KEY, **options).delay(7)
    take, lost = shop.store.acquire, []

    def lose_the_first_reply(*args: Any, **kwargs: Any) -> Any:
        answer = take(*args, **kwargs)
        if lost:
            return answer
        lost.append(answer)
        shop.store.failures = 0 if answers_again else float("inf")
        raise LockUnavailable("memory", "acquire", "its reply was lost")

    with monkeypatch.context() as patched:
        patched.setattr(shop.store, "acquire", lose_the_first_reply)
        outcome = shop.run()
    shop.store.failures = 0
    for release in owed:
        release()

    assert outcome == 7 if answers_again else isinstance(outcome, Ignore)
    assert (len(lost), shop.holder(KEY)) == (1, None)
    assert "was gone when it started" not in caplog.text


def test_a_lease_that_a_soft_limit_cuts_short_is_not_renewed(shop: Shop, monkeypatch: Any) -> None:
    """Law 4: the limit may come between the grant and the note of it; the lease ends with its ttl."""
    watchdog = watchdog_of(shop.store)
    watch = watchdog.watch
    leases = []

    def cut_short(lease: Any, **options: Any) -> None:
        watch(lease, **options)
        leases.append(lease)
        raise SoftTimeLimitExceeded

    shop.unique(body, lock_key=KEY).delay(7)
    request = shop.receive()
    monkeypatch.setattr(watchdog, "watch", cut_short)
    with suppress(SoftTimeLimitExceeded):
        shop.run(request)

    assert (len(leases), shop.renewed()) == (1, {})
