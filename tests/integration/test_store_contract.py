"""What every store promises, verb by verb: acquire, release, renew, inspect, force_release."""

import time

import pytest

from celery_redislock.locks.lease import new_token
from celery_redislock.store.store import Term
from tests.stores import ABOUT, ClusterCase, MemoryCase, StoreCase, granted, refused

A, B, C = "job-a/1", "job-b/1", "job-c/1"


def test_locks_of_different_names_do_not_know_each_other(case: StoreCase) -> None:
    case.take(A, name="one")
    granted(case.take(B, name="two"))
    assert (case.holder("one"), case.holder("two")) == (A, B)


def test_acquiring_again_with_the_same_token_keeps_the_hold_and_starts_its_ttl_anew(case: StoreCase) -> None:
    """A request whose reply got lost is simply repeated; that is not told as a take-over."""
    first = granted(case.take(A, 5.0))
    second = granted(case.take(A, 30.0))
    assert (second.taken_over, second.repeated) == (False, True)
    assert second.fence > first.fence
    assert (case.remaining() or 0) > 25.0


def test_an_expired_hold_is_anybodys(case: StoreCase) -> None:
    case.take(A)
    case.expire()
    granted(case.take(B))
    assert case.holder() == B


@pytest.mark.parametrize("ttl", [0.001, 0.9, 86400.0])
def test_a_ttl_is_kept_to_the_millisecond(case: StoreCase, ttl: float) -> None:
    """What is left is the TTL less the time that has passed, neither rounded to seconds nor cut."""
    started = time.monotonic()
    case.take(A, ttl)
    left = case.remaining() or 0.0
    passed = time.monotonic() - started
    assert ttl - passed - 0.002 <= left <= ttl, "a millisecond of rounding for each of the two commands"


def test_only_its_token_releases_a_hold(case: StoreCase) -> None:
    case.take(A)
    answer = case.store.release("n", B)
    assert not answer.released
    assert answer.held_by is not None
    assert (answer.held_by.token, case.holder()) == (A, A)
    assert 25.0 < answer.held_by.expires_in <= 30.0
    assert case.store.release("n", A).released
    assert case.holder() is None


def test_a_release_that_comes_too_late_lets_nobody_in(case: StoreCase) -> None:
    """A's hold expires, B has the lock, A releases, C asks: C would hold it beside B."""
    case.take(A)
    case.expire()
    case.take(B)
    late = case.store.release("n", A)
    assert not late.released
    assert late.held_by is not None
    assert late.held_by.token == B
    assert refused(case.take(C)).hold.token == B
    assert case.store.renew([Term("n", B, 30.0)]).renewed == [True]


def test_a_token_is_compared_whole(case: StoreCase) -> None:
    """Neither an owner, nor a prefix, nor a longer token is the token."""
    case.take(A)
    for token in (B, "job-a", "job-a/", "job-a/11", "/1", "*", ""):
        assert not case.store.release("n", token).released
        assert case.store.renew([Term("n", token, 99.0)]).renewed == [False]
        assert not case.store.force_release("n", expected=token).released
        assert case.holder() == A
    assert (case.remaining() or 99.0) <= 30.0


def test_a_free_lock_is_granted_and_releasing_it_twice_is_harmless(case: StoreCase) -> None:
    grant = granted(case.take(A))
    assert (grant.taken_over, grant.repeated) == (False, False)
    assert grant.sent_at <= grant.answered_at
    answers = [case.store.release("n", A) for _ in range(3)]
    assert [answer.released for answer in answers] == [True, False, False]
    assert [answer.held_by for answer in answers] == [None] * 3


def test_renewing_sets_the_full_ttl_and_never_adds_up(case: StoreCase) -> None:
    case.take(A, 5.0)
    for _ in range(3):
        assert case.store.renew([Term("n", A, 10.0)]).renewed == [True]
    assert 9.0 < (case.remaining() or 0.0) <= 10.0


def test_renewing_never_creates_a_lock(case: StoreCase) -> None:
    case.take(A)
    case.expire()
    assert case.store.renew([Term("n", A, 30.0), Term("never", A, 30.0)]).renewed == [None, None]
    assert (case.holder(), case.holder("never")) == (None, None)


def test_a_batch_of_renewals_answers_each_in_its_place(case: StoreCase) -> None:
    """Also across the calls a large batch is cut into."""
    names = [f"n{number}" for number in range(450)]
    for name in names[:3] + names[-3:]:
        case.store.acquire(name, A, 5.0, facts="{}")
    tokens = {names[1]: B, names[-2]: B}
    answer = case.store.renew([Term(name, tokens.get(name, A), 30.0) for name in names])
    assert list(answer.renewed) == [True, False, True, *[None] * 444, True, False, True]
    assert list(case.store.renew([]).renewed) == []
    assert (case.remaining(names[-1]) or 0.0) > 25.0


@pytest.mark.parametrize(
    ("expected", "taken"),
    [(None, True), (B, True), (A, False)],
    ids=["anybody", "whom it saw", "the one before"],
)
def test_an_operator_takes_the_lock_from_whom_it_saw_or_from_anybody(
    case: StoreCase, expected: str | None, *, taken: bool
) -> None:
    """Between looking and acting the lock may change hands: compare and delete, not delete."""
    case.take(A)
    case.store.release("n", A)
    case.take(B)
    answer = case.store.force_release("n", expected=expected)
    assert answer.released is taken
    assert answer.held_by is not None
    assert (answer.held_by.token, case.holder()) == (B, None if taken else B)
    if taken:
        again = case.store.force_release("n", expected=expected)
        assert (again.released, again.held_by) == (False, None)


@pytest.mark.parametrize("name", ["naïve/Ünï·✓", "with space\nand line", "a:b:c", "%7Bbraces%7D", "x" * 500])
def test_any_text_is_a_name(case: StoreCase, name: str) -> None:
    token = new_token("owner/with/slashes ✓")
    case.take(token, name=name)
    assert case.holder(name) == token
    assert case.store.names() == [name]
    assert case.store.release(name, token).released


def test_what_is_begun_is_answered_as_an_acquire_is(case: StoreCase) -> None:
    """Sent now, read later: granted, refused, granted again, and taken over."""
    terms = [(A, {}), (B, {}), (A, {}), (B, {"instead_of": A, "period": 60.0, "message": "m"})]
    answers = [case.store.begin("n", token, 30.0, facts=ABOUT, **more)() for token, more in terms]
    assert refused(answers.pop(1)).hold.token == A
    told = [(granted(each).repeated, granted(each).taken_over) for each in answers]
    assert told == [(False, False), (True, False), (False, True)]
    assert case.holder() == B


def test_one_server_tells_its_time_and_nothing_else_does(case: StoreCase) -> None:
    """Seconds since the epoch, to compare with one's own. Many nodes have none, and memory has this one."""
    before = time.time()
    now = case.store.clock()
    after = time.time()
    if isinstance(case, MemoryCase):
        assert case.store.other_prefixes() == []
    if isinstance(case, ClusterCase):
        assert (now, case.store.other_prefixes()) == (None, [])
    else:
        assert now is not None
        assert before - 0.01 <= now <= after + 0.01
