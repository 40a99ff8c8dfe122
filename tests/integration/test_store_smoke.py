"""Each script, once, on every kind of server and through every kind of client."""

from collections.abc import Callable

import pytest

from celery_redislock.scheduling.state import NOTHING, States, finished
from celery_redislock.scheduling.state import SCRIPTS as OF_TICKS
from celery_redislock.store.joined import OF_SEVERAL, joined
from celery_redislock.store.redisstore import SCRIPTS
from celery_redislock.store.store import Entry, LockStore, Mark, Marked, Parked, Term, Turn
from celery_redislock.wire.scripts import script
from tests.kinds import KINDS, Kind, ids_of, store_case
from tests.stores import ABOUT, FACTS, RedisCase, granted, refused

A, B, C, D = (f"job-{each}/abcdefghijk{each}" for each in "abcd")

#: Sent by a quorum, and by locks of asyncio, whose tests run on each server.
ELSEWHERE = {"fence", "ring"}


@pytest.mark.parametrize("kind", KINDS, ids=ids_of)
def test_every_script_answers_as_it_does_where_the_contract_is_played(
    url_of: Callable[[str], str], kind: Kind
) -> None:
    """A command or an option that a server lacks, or an answer of another type, is noticed here."""
    rooms = ("celery_redislock.scheduling", "celery_redislock.store")
    missing = {*SCRIPTS, *OF_SEVERAL, *OF_TICKS} - ELSEWHERE
    for story in (_hold, _mark, _line, _publish, _limit, _several, _history, _ticks):
        with store_case(kind, url_of) as case:
            story(case)
            missing = {each for each in missing if not case.client.script_exists(script(each, *rooms)[1])[0]}
    assert missing == set()


def _hold(case: RedisCase) -> None:
    store = case.store
    assert granted(case.take(A, period=60.0)).fence > 0
    hold = refused(case.take(B)).hold
    assert (hold.token, hold.facts, hold.is_period) == (A, FACTS, False)
    assert refused(store.look("n", B)).hold.token == A
    assert store.renew([Term("n", A, 60.0), Term("gone", A, 60.0)]).renewed == [True, None]
    assert 50.0 < (case.remaining() or 0.0) <= 60.0
    assert [each[0].token for each in store.holders_of_each(["n"])] == [A]
    assert [[hold.token for hold in some] for some in store.walk_holds()] == [[A]]
    assert store.names() == store.names(limit=100_000) == ["n"]
    assert granted(case.take(B, instead_of=A)).taken_over
    assert not store.release("n", A).released
    assert store.release("n", B, opened_by=A).released
    granted(case.take(A))
    assert store.force_release("n", expected=A).released
    assert case.holder() is None
    assert case.redis.clock() > 1_600_000_000


def _mark(case: RedisCase) -> None:
    store = case.store
    granted(case.take(A))
    assert store.hand_on("n", A, B, 30.0, facts=ABOUT, mark=Mark("m", 30.0)).released
    assert isinstance(case.take(C, message="m"), Marked)
    store.mark_done("n", "m", 30.0)
    answer, is_stored = case.redis.release_and_store("n", B, case.queue("result"), "text", 60)
    assert (answer.released, is_stored) == (True, True)
    granted(store.acquire("n", A, 30.0, facts='{"state":"queued"}'))
    assert list(store.release_claims(["job-a"])) == [("n", A)]


def _line(case: RedisCase) -> None:
    store = case.store
    bell = store.bell("n", "nonce")
    granted(case.take(A))
    for place, token in enumerate((B, C)):
        parked = store.park("n", token, Entry("push", case.queue(), 30.0, ABOUT, token), nonce=token)
        assert (parked.word, parked.place) == ("parked", place)
    assert store.move("n", C, "first")
    assert [each.id for each in store.waiting("n")[1]] == [C, B]
    assert store.lines() == ["n"]
    assert [(line.length, line.first.id) for some in store.walk_lines() for line in some] == [(2, C)]
    assert store.release("n", A).released
    assert (case.holder(), case.pushed()) == (C, [C])
    assert store.settle("n", C, 30.0) is False
    case.make_due()
    assert [hold.token for hold in store.sweep().held] == [C]
    assert store.leave("n", B)[0] == "left"
    store.park("n", A, Entry("ring", bell, 2.0, ABOUT), nonce="1", within=30.0)
    assert store.release("n", C).released
    assert store.await_bell(bell, 1.0)
    store.park("n", B, Entry("push", case.queue(), 30.0, ABOUT, B), nonce="2")
    assert store.drain("n") == (1, ())
    assert store.release("n", A).released
    assert store.homes("amqp:here", "name")["amqp:here"].name == "name"


def _publish(case: RedisCase) -> None:
    turn = Turn("(claimed)", "(unclaimed)", "(parked)", ABOUT, 1, 100, hand_off=30.0)
    to = {"queue": case.queue(), "facts": ABOUT}
    granted(case.store.claim_and_push("n", A, 30.0, text="a(claimed)", **to))
    parked = case.store.claim_and_push("n", B, 30.0, text="b(claimed)", turn=turn, **to)
    assert isinstance(parked, Parked)
    assert case.store.release("n", A).released
    assert case.pushed() == ["a(claimed)", "b(parked)"]
    assert case.store.newest("n", "shop.sync", C, 1) == ""
    assert case.store.newest("n", "shop.sync", D, None) == C


def _limit(case: RedisCase) -> None:
    store, two = case.store, '{"limit":2}'
    set_to = store.limit("n", 2, ttl=60.0, facts=ABOUT)
    assert set_to is not None
    assert (set_to.value, set_to.facts) == (2, FACTS)
    for token in (A, B):
        granted(store.acquire("n", token, 30.0, facts=two, limit=2))
    refused(store.acquire("n", C, 30.0, facts=two, limit=2))
    assert {hold.token for hold in store.holders("n")} == {A, B}
    assert store.limit("n", ttl=60.0) is None
    granted(store.acquire("m", A, 30.0, facts=ABOUT))
    assert store.downgrade("m", A, 30.0, facts=two).released
    granted(store.acquire("m", B, 30.0, facts=two, limit=2))


def _several(case: RedisCase) -> None:
    both = joined(case.redis)
    granted(both.acquire("n m", A, 30.0, facts=ABOUT))
    assert both.park("n m", B, Entry("push", case.queue(), 30.0, ABOUT, B), nonce="3").word == "parked"
    assert both.leave("n m", B)[0] == "left"
    assert both.hand_on("n m", A, C, 30.0, facts=ABOUT).released
    assert both.release("n m", C).released


def _history(case: RedisCase) -> None:
    store: LockStore = case.store
    said = '{"task":"shop.sync","state":"queued","on_conflict":"skip"}'
    store.acquire("n", A, 30.0, facts=said)
    refused(store.acquire("n", B, 30.0, facts=said))
    assert store.happened("n").refused[0].hold.owner == "job-b"
    assert store.counts().numbers["shop.sync", "skipped"] == 1
    store.acts('{"what":"drain"}')
    assert store.acts() == [{"what": "drain"}]


def _ticks(case: RedisCase) -> None:
    states = States(case.redis, "shop")
    said = {"at": "2026-06-01T12:00:00+00:00", "before": "2026-06-01T12:00:00+00:00", "by": "host:a"}
    answer = states.take(
        "e", NOTHING, {**said, "ran": None, "due": None, "nonce": "a"}, bound=30.0, next_in=60.0
    )
    assert answer.status == "taken"
    after = finished(answer.text, is_sent=True)
    assert states.replace("e", answer.text, after, 60.0)
    assert states.read(["e"])[1] == [after]
