"""An operator's hold on every store: nobody starts behind it, and its time or a release ends it."""

import json
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from celery_redislock.cli import main
from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks import Lock, connect
from celery_redislock.publishing.handle import LockHandle
from celery_redislock.store.joined import joined
from celery_redislock.store.store import Parked, Refusal
from tests import stores
from tests.facts import wait_until
from tests.faults import Fault, FaultyProxy
from tests.stores import JOBS, RedisCase, StoreCase, granted, refused

A, B, C, D, E, _ = JOBS


def said(limit: int | None = None, **more: object) -> str:
    """What a holder writes about itself."""
    facts = {"state": "running", "task": "shop.sync", "on_conflict": "skip", **more}
    facts |= {} if limit is None else {"limit": limit}
    return json.dumps(facts, separators=(",", ":"))


def take(case: StoreCase, token: str, limit: int | None = None) -> Any:
    """Acquire as a run does."""
    return case.store.acquire("n", token, 30.0, facts=said(limit), starts_run=True, limit=limit)


def park(case: StoreCase, token: str, limit: int | None = None) -> Parked:
    """Park a message that was refused."""
    return stores.park(case, token, facts=said(limit, state="queued", line=1), how="refused")


def handle(case: StoreCase) -> LockHandle:
    """A handle on the lock."""
    return LockHandle(SimpleNamespace(name="shop.sync"), case.store, "n")


def owners(case: StoreCase) -> list[str]:
    """Who holds it."""
    return [hold.owner for hold in case.store.holders("n")]


def test_a_free_key_is_held_at_once_and_tells_by_whom_and_why(case: StoreCase) -> None:
    """Its state is its own; no process is named that could be found dead; its time ends it."""
    assert handle(case).hold(reason="the bank is down", for_=60, by="ann") == []
    refusal = refused(take(case, A))
    assert refusal.hold.is_operators
    [hold] = case.store.holders("n")
    assert (hold.owner, hold.state, hold.facts["about"]) == ("operator ann", "hold", "the bank is down")
    assert "at" not in hold.facts
    assert 59 < hold.expires_in <= 60


@pytest.mark.parametrize("limit", [None, 3])
def test_runs_end_first_and_nobody_starts_behind_it(case: StoreCase, limit: int | None) -> None:
    """Neither who asks, nor who waits; a limit leaves no room beside it."""
    granted(take(case, A, limit))
    others = [B] if limit else []
    for token in others:
        granted(take(case, token, limit))
    if limit is None:
        park(case, D)
    still = handle(case).hold(reason="x", by="ann")
    assert sorted(each.token for each in still) == sorted([A, *others])
    refusal = refused(take(case, C, limit))
    assert refusal.hold.is_operators is bool(limit)  # where there is room, the hold refuses
    for token in others:
        case.store.release("n", token)
        assert isinstance(take(case, C, limit), Refusal)
    case.store.release("n", A)
    assert owners(case) == ["operator ann"]
    assert refused(take(case, C, limit)).hold.is_operators


def test_released_it_hands_the_lock_to_as_many_as_may_have_it(case: StoreCase) -> None:
    """In their order."""
    handle(case).hold(reason="x", by="ann")
    for token in (A, B, C, D):
        park(case, token, 3)
    taken_from = handle(case).release(reason="over")
    assert taken_from is not None
    assert taken_from.owner == "operator ann"
    assert {hold.token for hold in case.store.holders("n")} == {A, B, C}


def test_one_that_waits_far_behind_is_found(case: StoreCase, monkeypatch: Any) -> None:
    """An operator has moved others before it: a second hold replaces it, and a release ends that."""
    monkeypatch.setattr("celery_redislock.locks.hold.LOOKED_AT", 1)
    granted(take(case, A))
    park(case, B)
    for by in ("ann", "bob"):
        handle(case).hold(reason="x", by=by)
        [waits] = [each for each in case.store.waiting("n")[1] if each.hold.is_operators]
        assert waits.hold.owner == f"operator {by}"
        assert case.store.move("n", waits.id, "last")
    released = handle(case).release(reason="over")
    assert released is not None
    assert released.owner == "operator bob"
    assert [each.id for each in case.store.waiting("n")[1]] == [B]


def test_released_while_it_waits_it_leaves_the_line_and_runs_keep_their_lock(case: StoreCase) -> None:
    """A second release means the run."""
    granted(take(case, A))
    handle(case).hold(reason="x", by="ann")
    first = handle(case).release(reason="over")
    assert first is not None
    assert first.state == "hold"
    assert case.store.waiting("n")[0] == 0
    assert [hold.token for hold in case.store.holders("n")] == [A]
    second = handle(case).release(reason="now the run")
    assert second is not None
    assert second.token == A


@pytest.mark.parametrize("runs", [False, True], ids=["held", "waiting"])
def test_a_second_hold_replaces_the_first_and_lets_nobody_through(case: StoreCase, *, runs: bool) -> None:
    """Its time begins anew, and its reason counts."""
    if runs:
        granted(take(case, A))
    handle(case).hold(reason="first", for_=30, by="ann")
    park(case, B)
    handle(case).hold(reason="second", for_=600, by="bob")
    if runs:
        assert case.store.waiting("n")[1][0].hold.owner == "operator bob"
        case.store.release("n", A)
    [hold] = case.store.holders("n")
    assert (hold.owner, hold.facts["about"]) == ("operator bob", "second")
    assert hold.expires_in > 599
    assert [waiter.id for waiter in case.store.waiting("n")[1]] == [B]


def test_it_ends_with_its_time(case: StoreCase) -> None:
    """Nobody renews it, and who waits is handed the lock."""
    handle(case).hold(reason="x", for_=1)
    park(case, A)
    wait_until(lambda: case.store.sweep() and [hold.token for hold in case.store.holders("n")] == [A], 10)


def test_one_that_waits_longer_than_its_time_is_gone(case: StoreCase) -> None:
    """The line then has nobody, and the run goes on."""
    granted(take(case, A))
    handle(case).hold(reason="x", for_=1)
    wait_until(lambda: case.store.sweep() and case.store.waiting("n")[0] == 0, 10)
    assert [hold.token for hold in case.store.holders("n")] == [A]


def test_a_lock_of_a_program_finds_it_held(case: StoreCase) -> None:
    handle(case).hold(reason="x")
    assert not Lock(case.store, "n").acquire(timeout=0)


def test_of_several_names_all_are_held(plain_case: RedisCase, command: Callable[..., Result]) -> None:
    """And freed together, by the key of them all: while it waits, and while it is held."""
    with closing(connect(plain_case.url, prefix=plain_case.store.prefix)) as store:
        both = LockHandle(SimpleNamespace(name="shop.sync"), joined(store), "n m")
        granted(take(plain_case, A))
        assert [each.token for each in both.hold(reason="x", by="ann")] == [A]
        assert command("release", "n m", "--reason", "over", "--yes").exit_code == 0
        assert [store.waiting(name)[0] for name in ("n", "m")] == [0, 0]
        both.hold(reason="x", by="ann")
        plain_case.store.release("n", A)
        assert [hold.owner for hold in both._store.holders("n m")] == ["operator ann"] * 2
        both.hold(reason="once more", by="bob")
        assert [hold.owner for hold in both._store.holders("n m")] == ["operator bob"] * 2


@pytest.mark.parametrize(
    ("terms", "told"),
    [
        ({"reason": " "}, "takes a reason"),
        ({"for_": 0.5}, "for_ is 0.5"),
        ({"for_": 90_000}, "at most a day"),
    ],
)
def test_a_hold_without_a_reason_or_for_too_long_is_refused(
    case: StoreCase, terms: dict[str, Any], told: str
) -> None:
    with pytest.raises(LockOptionError, match=told):
        handle(case).hold(**{"reason": "x", **terms})
    assert case.store.holders("n") == ()


@pytest.fixture
def command(plain_case: RedisCase) -> Callable[..., Result]:
    """Runs a command where the store is."""

    def run(*words: str) -> Result:
        store = plain_case.store
        return CliRunner().invoke(main, ["--url", plain_case.url, "--prefix", store.prefix, *words])

    return run


def test_the_commands_hold_show_and_end_it(plain_case: RedisCase, command: Callable[..., Result]) -> None:
    """``hold`` says who runs still; ``list``, ``explain`` and ``waiting`` show it; ``history`` keeps it."""
    granted(take(plain_case, A))
    held = command("hold", "n", "--for", "30m", "--reason", "the bank is down")
    waiting = command("waiting", "n")
    explained = command("explain", "n")
    dropped = command(
        "waiting", "n", "--drop", waiting.stdout.split("operator")[1].split()[0], "--reason", "x"
    )
    plain_case.store.release("n", A)
    listed = command("list", "--state", "hold")
    shown = command("explain", "n")
    released = command("release", "n", "--reason", "over", "--yes")
    history = command("history", "n")

    assert held.exit_code == 0, held.output
    lines = held.stdout.splitlines()
    assert lines[0] == "n is on hold for 0:30:00 as soon as these have ended (1); nothing starts behind them:"
    assert "(shop.sync, running, " in lines[1]
    assert lines[-1].endswith("release --reason TEXT -- n")
    assert "1 of 1" in waiting.stdout
    assert "the bank is down" in waiting.stdout
    assert "1 wait for n" in explained.stdout
    assert "on hold      by operator " in explained.stdout
    assert dropped.exit_code != 0
    assert "hold" in listed.stdout
    assert "the bank is down" in listed.stdout
    assert "hold, " in shown.stdout
    assert released.stdout.startswith("released n: taken from operator ")
    acts = [line for line in history.stdout.splitlines() if " n " in line]
    assert [word for line in acts for word in ("hold", "release") if f"  {word} " in line] == [
        "hold",
        "release",
    ]


def test_release_ends_a_hold_that_waits_before_it_touches_a_run(
    plain_case: RedisCase, command: Callable[..., Result]
) -> None:
    granted(take(plain_case, A))
    command("hold", "n", "--reason", "x")
    shown = command("release", "n", "--dry-run")
    released = command("release", "n", "--reason", "over", "--yes")
    assert "operator" in shown.stdout
    assert A.partition("/")[0] not in shown.stdout
    assert released.stdout.startswith("released n: taken from operator ")
    assert [hold.token for hold in plain_case.store.holders("n")] == [A]
    assert plain_case.store.waiting("n")[0] == 0


def test_a_second_hold_says_whose_it_replaces(plain_case: RedisCase, command: Callable[..., Result]) -> None:
    handle(plain_case).hold(reason="the bank is down", by="ann")
    held = command("hold", "n", "--reason", "still down")
    document = json.loads(command("hold", "n", "--reason", "still", "--json").stdout)
    assert "it replaces the hold by operator ann: the bank is down" in held.stdout
    assert document["replaced"]["about"] == "still down"
    assert document["still"] == []


def test_whom_it_refuses_is_counted_as_one_that_waits(plain_case: RedisCase) -> None:
    """Whatever the strategy: it is not skipped."""
    handle(plain_case).hold(reason="x")
    refused(take(plain_case, A))
    assert ("shop.sync", "skipped") not in plain_case.store.counts().numbers
    assert plain_case.store.happened("n").refused[0].holder.startswith("operator ")


@pytest.mark.parametrize("verb", ["claim", "park", "hand_on", "leave"])
def test_a_lost_reply_changes_nothing_of_it(proxy: FaultyProxy, prefix: str, verb: str) -> None:
    """The request is repeated: there is one hold, by whom it was asked for last."""
    with closing(connect(proxy.url, prefix=prefix, socket_timeout=2.0)) as store:
        both = LockHandle(SimpleNamespace(name="shop.sync"), store, "n")
        runs = verb in {"park", "leave"}
        if runs:
            granted(store.acquire("n", A, 30.0, facts=said(), starts_run=True))
        if verb in {"hand_on", "leave"}:
            both.hold(reason="first", by="ann")
        proxy.fail(Fault.REPLY_LOST, of=verb)
        still = both.hold(reason="second", by="bob")
        assert [each.token for each in still] == ([A] if runs else [])
        assert store.waiting("n")[0] == (1 if runs else 0)
        if runs:
            store.release("n", A)
        assert [hold.owner for hold in store.holders("n")] == ["operator bob"]
