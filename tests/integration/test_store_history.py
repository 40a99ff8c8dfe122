"""What every server notes of refusals, counts and releases by force."""

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from celery_redislock.embedded import EmbeddedServer
from celery_redislock.locks import MemoryStore
from celery_redislock.locks.force import facts_of_force
from celery_redislock.locks.tasklock import Says, TaskLock
from celery_redislock.store.store import Counts, Entry, Grant, LockStore, Refusal
from tests.facts import wait_until
from tests.faults import Fault, FaultyProxy
from tests.stores import ClusterCase, RedisCase

A, B, C = "job-a/1", "job-b/2", "job-c/3"


@pytest.fixture
def case(plain_case: RedisCase) -> RedisCase:
    """On a server only."""
    return plain_case


@pytest.fixture
def store(case: RedisCase) -> LockStore:
    """Of a server."""
    return case.store


def said(state: str = "queued", task: str = "shop.sync", **more: object) -> str:
    """What a holder of a task says."""
    facts = {"task": task, "host": "web-1", "pid": 7, "state": state, "on_conflict": "skip", **more}
    return json.dumps(facts, separators=(",", ":"))


def numbers(case: RedisCase) -> dict[str, int]:
    """What was counted of the task."""
    return {what: n for (task, what), n in case.store.counts().numbers.items() if task == "shop.sync"}


def test_a_refusal_is_noted_with_who_held_the_lock_and_who_was_refused(
    store: LockStore, case: RedisCase
) -> None:
    """By the step that refuses it: when, by whom, which strategy, how often."""
    store.acquire("n", A, 30.0, facts=said())
    assert isinstance(store.acquire("n", B, 30.0, facts=said()), Refusal)
    (first,) = store.happened("n").refused
    assert wait_until(lambda: (case.redis.clock() or 0.0) > first.last + 0.002, 5)
    assert isinstance(store.acquire("n", C, 30.0, facts=said()), Refusal)
    (entry,) = store.happened("n").refused
    assert first.first == entry.first < entry.last
    assert (entry.times, entry.holder, entry.hold.owner) == (2, "job-a", "job-c")
    assert entry.hold.facts["on_conflict"] == "skip"
    assert entry.hold.facts["host"] == "web-1"
    assert 0 <= entry.last - entry.first < 5
    assert store.refused() == ["n"]
    assert numbers(case) == {"accepted": 1, "skipped": 2}
    case.check_every_key_expires()


def by_a_period(case: RedisCase) -> None:
    case.store.release("n", A)
    case.store.acquire("n", C, 30.0, facts=said(), period=60.0)


def for_the_sake_of_a_line(case: RedisCase) -> None:
    case.store.park("n", B, Entry("give", "elsewhere", 30.0, said(line=1), "text"), nonce="1")
    case.expire()
    case.store.acquire("n", C, 30.0, facts=said())


#: How A has the lock, and ways to be refused then.
REFUSED: dict[str, tuple[dict[str, Any], Callable[[RedisCase], object]]] = {
    "by a period": ({"period": 60.0}, by_a_period),
    "under a limit": ({"limit": 1}, lambda case: case.store.acquire("n", C, 30.0, facts=said(), limit=1)),
    "at its start": (
        {},
        lambda case: case.store.acquire("n", C, 30.0, facts=said(), message="m", starts_run=True),
    ),
    "by a look": ({}, lambda case: case.store.look("n", C, facts=said())),
    "with its message": (
        {},
        lambda case: case.store.claim_and_push("n", C, 30.0, queue=case.queue(), text="{}", facts=said()),
    ),
    "for the sake of a line": ({}, for_the_sake_of_a_line),
}


@pytest.mark.parametrize("how", REFUSED)
def test_every_way_to_be_refused_is_noted(case: RedisCase, how: str) -> None:
    """The publisher that looks first asks for nothing more."""
    store = case.store
    assert store.look("n", B, facts=said()) is None
    terms, is_refused = REFUSED[how]
    store.acquire("n", A, 30.0, facts=said(), **terms)
    is_refused(case)
    assert store.happened("n").refused[0].hold.owner == "job-c"
    assert numbers(case)["skipped"] == 1


def test_each_task_of_a_key_has_an_entry_of_its_own(store: LockStore, case: RedisCase) -> None:
    """A resource is shared: the one that was refused last comes first."""
    store.acquire("n", A, 30.0, facts=said())
    store.acquire("n", B, 30.0, facts=said(task="shop.bill"))
    now = case.redis.clock() or 0.0
    wait_until(lambda: (case.redis.clock() or 0.0) > now + 0.002, 5)
    store.acquire("n", C, 30.0, facts=said(on_conflict="callable"))
    assert [entry.hold.facts["task"] for entry in store.happened("n").refused] == ["shop.sync", "shop.bill"]
    assert numbers(case) == {"accepted": 1, "asked": 1}


def test_neither_a_lock_without_a_task_nor_a_second_delivery_is_noted(
    store: LockStore, case: RedisCase
) -> None:
    """The one has no duplicates, the other is none."""
    store.acquire("n", A, 30.0, facts=said("running"), starts_run=True)
    store.acquire("n", B, 30.0, facts='{"host":"web-1"}')
    store.acquire("n", "job-a/9", 30.0, facts=said("running"), starts_run=True)
    assert store.happened("n").refused == ()
    assert numbers(case) == {}


def test_one_that_waits_is_counted_when_it_is_put_into_the_line(store: LockStore, case: RedisCase) -> None:
    """Not as skipped."""
    store.acquire("n", A, 30.0, facts=said("running"), starts_run=True)
    store.acquire("n", B, 30.0, facts=said("running", on_conflict="wait"), starts_run=True)
    store.park("n", B, Entry("push", case.queue(), 30.0, said(line=1), "text"), nonce="1")
    store.release("n", A)
    assert isinstance(store.acquire("n", "job-b/9", 30.0, facts=said("running"), instead_of=B), Grant)
    assert numbers(case) == {"waited": 1}


def test_who_releases_by_force_leaves_who_why_and_when(store: LockStore, case: RedisCase) -> None:
    store.acquire("n", A, 30.0, facts=said())
    store.force_release("n", expected=A, by='{"by":"ann","reason":"host died","since":1.5}')
    assert store.happened("n").forced == {"by": "ann", "reason": "host died", "since": 1.5}
    assert numbers(case)["forced"] == 1
    case.check_every_key_expires()


def test_what_only_its_caller_has_seen_is_counted_with_the_look(case: RedisCase) -> None:
    """A lost lock, and a message that was restored."""
    case.store.happened("n", task="shop.sync", what="lost")
    assert numbers(case) == {"lost": 1}
    counts = case.store.counts()
    assert counts.since is not None


def test_what_a_process_has_added_up_is_written_in_one_request(store: LockStore, case: RedisCase) -> None:
    """Starts by their number; refusals as those that the script notes, with who was refused last."""
    store.acquire("n", A, 30.0, facts=said())
    store.look("n", B, facts=said())
    store.happened("n", task="shop.sync", what="started", times=7)
    store.happened("n", task="shop.sync", times=40, value=f"{C}\0{said()}", holder=A)
    (entry,) = store.happened("n").refused
    assert (entry.times, entry.holder, entry.hold.owner) == (41, "job-a", "job-c")
    assert numbers(case) == {"accepted": 1, "started": 7, "skipped": 41}
    case.check_every_key_expires()


def test_how_long_calls_wait_and_run_is_counted_where_a_task_asks_for_it(store: LockStore) -> None:
    """In the steps that start and release; in buckets, and as a sum of milliseconds."""
    for timed in (1, 0):
        store.acquire("n", A, 30.0, facts=said(since=1.0, timed=timed))
        lease = said("running", since=9e9, timed=timed)
        store.acquire("n", B, 30.0, facts=lease, instead_of=A, starts_run=True)
        store.release("n", B)
    found = {
        what: n
        for (task, *what), n in store.counts().numbers.items()
        if task == "shop.sync"
        for what in [tuple(what)]
    }
    assert found.pop(("wait", "ms")) > 1e12
    assert found == {("accepted",): 2, ("wait", "inf"): 1, ("hold", "0.1"): 1, ("hold", "ms"): 0}


def test_what_a_claim_tells_of_its_arguments_is_told_by_its_run_and_by_its_retry(store: LockStore) -> None:
    """Where they do not know it. That it waited in line is not: it would be taken for a place there."""
    about = {"args": "0a1b2c3d", "about": 'order {7}, "urgent"}'}
    store.acquire("n", A, 30.0, facts=said(line=1, since=1.5, **about))
    store.acquire("n", B, 30.0, facts=said("running"), instead_of=A, starts_run=True)
    (run,) = store.holders("n")
    store.hand_on("n", B, C, 30.0, facts=said())
    (claim,) = store.holders("n")
    assert [{name: hold.facts[name] for name in about} for hold in (run, claim)] == [about, about]
    assert (claim.state, "line" in run.facts) == ("queued", False)
    own = said("running", args="", about="order 8")
    store.acquire("n", B, 30.0, facts=own, instead_of=C, starts_run=True)
    (run,) = store.holders("n")
    assert (run.facts["about"], run.text.count(b'"args"')) == ("order 8", 1)


def test_names_that_refused_somebody_long_ago_are_taken_off(store: LockStore, case: RedisCase) -> None:
    """The list of a busy server would grow else, as it lives as long as anybody is refused."""
    refusals = f"{case.prefix}:refusals"
    store.acquire("n", A, 30.0, facts=said())
    case.client.zadd(refusals, {f"old-{number}": number for number in range(50)})

    def is_tidy() -> bool:
        store.acquire("n", B, 30.0, facts=said())
        return case.client.zcard(refusals) == 1

    assert wait_until(is_tidy, 10)


def test_a_repeated_request_is_counted_once(store: LockStore, case: RedisCase) -> None:
    for _ in range(3):
        store.acquire("n", A, 30.0, facts=said())
    assert numbers(case) == {"accepted": 1}


def test_what_was_added_up_is_counted_once_where_its_answer_got_lost(
    proxy: FaultyProxy, tcp_server: EmbeddedServer
) -> None:
    """The request is sent again: its number would be counted twice."""
    with closing(RedisCase(proxy.url, client_url=tcp_server.redis_url)) as case:
        store = case.store
        store.acquire("n", A, 30.0, facts=said())
        store.happened("n")  # the server knows the script from now on
        proxy.fail(Fault.REPLY_LOST, of="happened")
        store.happened("n", task="shop.sync", what="started", times=7)
        proxy.fail(Fault.REPLY_LOST, of="happened")
        store.happened("n", task="shop.sync", times=40, value=f"{C}\0{said()}", holder=A)
        assert proxy.fired == 2
        assert numbers(case) == {"accepted": 1, "started": 7, "skipped": 40}


def test_of_several_locks_one_claim_is_counted_once(case: RedisCase) -> None:
    """With the last of them, whatever it is called."""
    for names in ('["a","n"]', '["a","\\u00e9"]'):
        for name in json.loads(names):
            facts = f'{{"names":{names},{said()[1:]}'
            case.store.acquire(name, f"{A}{name}", 30.0, facts=facts)
    assert numbers(case) == {"accepted": 2}


def test_a_task_is_counted_under_its_own_name(store: LockStore) -> None:
    """In any alphabet: what scripts count and what Python counts are one row."""
    store.acquire("n", A, 30.0, facts=said(task="tâche"))
    store.happened("n", task="tâche", what="lost")
    assert store.counts().numbers == {("tâche", "accepted"): 1, ("tâche", "lost"): 1}


def test_where_several_may_hold_it_the_same_is_noted_told_and_counted(
    store: LockStore, case: RedisCase
) -> None:
    """Refused by the first of the holders; a copy of a holder is no duplicate."""
    about = {"args": "0a1b2c3d", "about": "order 7"}
    lease = said("running", limit=1, timed=1, since=9e9)
    store.acquire("n", A, 30.0, facts=said(limit=1, **about), limit=1)
    store.acquire("n", B, 30.0, facts=lease, instead_of=A, starts_run=True, limit=1)
    assert store.look("n", C, limit=1, facts=said(limit=1))
    store.look("n", "job-b/9", limit=1, facts=said(limit=1))
    (run,) = store.holders("n")
    (refused,) = store.happened("n").refused
    store.hand_on("n", B, C, 30.0, facts=said(limit=1))
    (claim,) = store.holders("n")
    store.release("n", C)
    assert (refused.times, refused.holder) == (1, "job-b")
    assert [hold.facts["about"] for hold in (run, claim)] == ["order 7"] * 2
    assert numbers(case) == {"accepted": 1, "skipped": 1}


def test_what_a_hold_of_several_took_is_counted_and_that_of_a_claim_is_not(store: LockStore) -> None:
    """A claim that is released was never a run."""
    for state in ("queued", "running"):
        store.acquire("n", A, 30.0, facts=said(state, limit=2, timed=1, since=9e9), limit=2, starts_run=True)
        store.release("n", A)
        store.acquire("m", A, 30.0, facts=said(state, timed=1, since=9e9), starts_run=True)
        store.release("m", A)
    found = {tuple(what): n for (_, *what), n in store.counts().numbers.items() if what[0] == "hold"}
    assert found == {("hold", "0.1"): 2, ("hold", "ms"): 0}


@pytest.mark.parametrize("odd", ['a"]b', 'x\\"', "[]", "{}", "%", "\\"])
def test_odd_names_cost_the_count_and_not_the_lock(store: LockStore, odd: str) -> None:
    """A script that failed here would have taken the lock."""
    facts = f'{{"names":{json.dumps(["a", odd])},{said("running", task=odd)[1:]}'
    for name in ("a", odd):
        assert isinstance(store.acquire(name, f"{A}", 30.0, facts=facts, starts_run=True), Grant)
        assert isinstance(store.acquire(name, f"{B}", 30.0, facts=facts, starts_run=True), Refusal)
        assert store.happened(name).refused[0].hold.facts["task"] == odd
    assert store.counts().since is not None


def test_who_took_any_of_several_locks_is_told_and_the_loss_counted_once(case: RedisCase) -> None:
    """A run of several resources loses them all with one."""
    says = (30.0, 60.0, None, None, Says())
    lock = TaskLock(case.store, "shop.sync", *says, "a b", "job-a")
    case.store.acquire("b", A, 30.0, facts=said("running"))
    case.store.force_release("b", by=facts_of_force("job-a", "host died"))
    assert lock.count_loss().endswith(": 'host died'")
    assert numbers(case)["lost"] == 1


def test_what_must_be_confirmed_writes_no_note_that_it_would_wait_for(store: LockStore) -> None:
    """A duplicate would wait for replicas that are away."""
    store.acquire("n", A, 30.0, facts=said(confirmed=1))
    store.acquire("n", B, 30.0, facts=said(confirmed=1))
    assert store.happened("n").refused == ()
    # Nothing confirms a look.
    store.look("n", C, facts=said(confirmed=1))
    assert store.happened("n").refused[0].hold.owner == "job-c"


def test_a_full_server_answers_as_ever(lone_case: RedisCase) -> None:
    """It may cost the note."""
    store = lone_case.store
    store.acquire("n", A, 30.0, facts=said())
    lone_case.client.config_set("maxmemory", 1)
    run: dict[str, Any] = {"facts": said("running"), "starts_run": True}
    refused = store.acquire("n", B, 30.0, **run)
    looked = store.look("n", B, facts=said())
    started = store.acquire("n", "job-a/9", 30.0, instead_of=A, **run)
    assert isinstance(refused, Refusal)
    assert looked is not None
    assert [refused.hold.token, looked.hold.token] == [A, A]
    assert isinstance(started, Grant)
    assert store.release("n", "job-a/9").released
    lone_case.client.config_set("maxmemory", 0)


@pytest.mark.parametrize("key", ["{n}:refused", "refusals", "counts", "{n}:forced"])
def test_a_key_of_another_program_costs_the_note_and_not_the_answer(
    store: LockStore, case: RedisCase, key: str
) -> None:
    """Whatever is there in place of it."""
    raw = f"{case.prefix}:{key}"
    case.client.rpush(raw, "theirs")
    case.foreign = (raw,)
    assert isinstance(store.acquire("n", A, 30.0, facts=said()), Grant)
    assert isinstance(store.acquire("n", B, 30.0, facts=said()), Refusal)
    assert store.force_release("n", expected=A, by="{}").released
    assert case.client.pttl(raw) == -1 or key == "{n}:forced"


def test_memory_notes_nothing_and_says_so(prefix: str) -> None:
    """It is for tests."""
    assert MemoryStore().counts() == Counts()
    assert MemoryStore().happened(prefix).refused == ()


@pytest.mark.slow
@pytest.mark.xdist_group("cluster")
def test_a_cluster_notes_in_each_slot_and_adds_up(cluster_case: ClusterCase) -> None:
    """The nodes know nothing of each other."""
    store = cluster_case.store
    names = ["n", "m", "another"]
    for place, name in enumerate(names):
        store.acquire(name, f"first/{place}", 30.0, facts=said())
        store.acquire(name, f"second/{place}", 30.0, facts=said())
    assert numbers(cluster_case) == {"accepted": 3, "skipped": 3}
    assert sorted(store.refused()) == sorted(names)
    assert [store.happened(name).refused[0].hold.owner for name in names] == ["second"] * 3
    cluster_case.check_every_key_expires()
