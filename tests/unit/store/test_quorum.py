"""What a majority decides, on answers that a test wrote down: no server, no clock that runs."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from celery_redislock.exceptions import LockBusy, LockKeyError, LockOptionError, LockUnavailable
from celery_redislock.locks import Lock, connect
from celery_redislock.store import quorum
from celery_redislock.store.quorum import QuorumStore
from celery_redislock.store.store import Grant, Hold, LockStore, Refusal, Release, Renewal, Term
from tests.clocks import ManualClock
from tests.scripted import FailingStore
from tests.stores import granted, hold_of, refused

A, B, C = "job-a/1", "job-b/1", "job-c/1"
URLS = [f"redis://127.0.0.1:{port}/0" for port in range(7001, 7006)]

AWAY = LockUnavailable("redis://somewhere:1/0", "acquire", "no answer in time")


class Answering:
    """In place of what asks the servers: answers as written down, by script, and notes what was asked.

    Attributes:
        asked: the script and its arguments, request by request.
        takes: seconds of each round.
    """

    def __init__(self, clock: ManualClock, **answers: Sequence[Any]) -> None:
        self.clock = clock
        self.asked: list[tuple[str, list[str]]] = []
        self.answers = answers
        self.takes = 0.0

    def begin(
        self, operation: str, _keys: list[str], args: list[str], _understand: object, **_: object
    ) -> Callable[[], Any]:
        def read() -> Any:
            self.asked.append((operation, args))
            self.clock.advance(self.takes)
            answers = [each() if callable(each) else each for each in self.answers[operation]]
            return quorum._DECIDES[operation](answers, len(answers) // 2 + 1)

        return read

    @property
    def operations(self) -> list[str]:
        """The scripts, in order."""
        return [operation for operation, _ in self.asked]


def _store(clock: ManualClock, **answers: Sequence[Any]) -> tuple[QuorumStore, Answering]:
    store = connect(URLS)
    assert isinstance(store, QuorumStore)
    answering = Answering(clock, **answers)
    store._scripts = answering  # type: ignore[assignment]
    store._clock = clock
    return store, answering


def _grant(fence: int = 1, sent_at: float = 1000.0, answered_at: float = 1000.0) -> Grant:
    return Grant(fence, False, sent_at, answered_at)


def _refusal(token: str = B, expires_in: float = 5.0) -> Refusal:
    return Refusal((hold_of(token, {}, expires_in),))


def _acquire(store: LockStore, ttl: float = 10.0) -> object:
    return store.acquire("n", A, ttl, facts="{}")


RELEASED = [Release(True)] * 5


class TestAcquiring:
    def test_the_largest_fence_of_the_majority_is_written_back_and_granted(self, clock: ManualClock) -> None:
        store, asked = _store(
            clock, acquire=[_grant(7), _grant(9), _refusal(), AWAY, _grant(8)], fence=[True] * 5
        )
        assert granted(_acquire(store)).fence == 9
        assert asked.operations == ["acquire", "fence"]
        assert asked.asked[1][1][:2] == [f"{A}\0", "9"]

    def test_a_grant_is_dated_from_the_first_request_to_the_last_answer(self, clock: ManualClock) -> None:
        """So a lease is shortened by what acquiring and writing back took: that is the drift's share, too."""
        store, asked = _store(clock, acquire=[_grant(answered_at=1000.5)] * 5, fence=[True] * 5, renew=[])
        asked.takes = 0.5
        answer = granted(_acquire(store))
        assert (answer.sent_at, answer.answered_at) == (1000.0, 1001.0)
        lock = Lock(store, "n", ttl=10.0, auto_renew=False, clock=clock)
        asked.answers["release"] = RELEASED
        clock.now = 1000.0
        lock.acquire(0)
        assert lock._required().lease.deadline == pytest.approx(1000.0 + 10.0 - 1.0)

    def test_a_ttl_that_passes_meanwhile_grants_nothing(self, clock: ManualClock) -> None:
        store, asked = _store(clock, acquire=[_grant()] * 5, fence=[True] * 5, release=RELEASED)
        asked.takes = 0.5
        with pytest.raises(LockUnavailable, match=r"1\.000 s of a ttl of 1 s"):
            _acquire(store, ttl=1.0)
        assert asked.operations == ["acquire", "fence", "release"]

    @pytest.mark.parametrize(
        ("acquire", "holder"),
        [
            ([_grant(), _grant(), _refusal(), _refusal(C), _refusal(C)], C),
            ([_refusal()] * 5, B),
            ([_grant(), _grant(), _refusal(C), AWAY, AWAY], C),
            ([_refusal(B, 1.0), _refusal(C, 3.0), AWAY, _refusal("d/1", 2.0), AWAY], C),
        ],
        ids=["split", "held", "two away", "all have one vote: the last to end"],
    )
    def test_without_a_majority_it_is_refused_after_all_has_been_released(
        self, clock: ManualClock, acquire: Sequence[Any], holder: str
    ) -> None:
        store, asked = _store(clock, acquire=acquire, release=[Release(False)] * 5)
        assert refused(_acquire(store)).hold.token == holder
        assert asked.operations == ["acquire", "release"]

    @pytest.mark.parametrize("answer", [_grant(), _refusal()], ids=["granted", "refused"])
    def test_too_few_answers_are_no_refusal(self, clock: ManualClock, answer: object) -> None:
        """Who tells a caller "somebody holds it" must know; and what was taken is released."""
        store, asked = _store(clock, acquire=[answer, answer, AWAY, AWAY, AWAY], release=[AWAY] * 5)
        with pytest.raises(LockUnavailable, match=r"2 of 5 servers .*no answer in time") as caught:
            _acquire(store)
        assert (caught.value.operation, caught.value.was_sent) == ("acquire", True)
        assert asked.operations == ["acquire", "release"]

    @pytest.mark.parametrize("fence", [[True, True, False, False, False], [True, True, AWAY, AWAY, AWAY]])
    def test_a_fence_that_is_not_written_back_to_a_majority_grants_nothing(
        self, clock: ManualClock, fence: Sequence[Any]
    ) -> None:
        store, asked = _store(clock, acquire=[_grant()] * 5, fence=fence, release=RELEASED)
        with pytest.raises(LockUnavailable):
            _acquire(store)
        assert asked.operations == ["acquire", "fence", "release"]

    def test_another_programs_key_counts_as_no_vote(self, clock: ManualClock) -> None:
        """Where they are too many the caller is told which key it is."""
        broken = LockKeyError("n", "WRONGTYPE on redis://somewhere:1/0")
        grants = [_grant()] * 3
        store, _ = _store(clock, acquire=[broken, broken, *grants], fence=[True] * 5, release=RELEASED)
        granted(_acquire(store))
        store, _ = _store(clock, acquire=[broken, broken, AWAY, *grants[:2]], release=RELEASED)
        with pytest.raises(LockKeyError, match="WRONGTYPE"):
            _acquire(store)


class TestRenewing:
    @pytest.mark.parametrize(
        ("votes", "renewed"),
        [
            ([True, True, True, None, False], True),
            ([True, True, True, AWAY, AWAY], True),
            ([True, True, None, None, None], None),
            ([True, None, None, False, AWAY], None),
            ([True, False, False, None, AWAY], False),
        ],
    )
    def test_a_term_is_renewed_by_a_majority_and_missing_where_none_can_be_one(
        self, clock: ManualClock, votes: Sequence[Any], renewed: object
    ) -> None:
        answers = [each if each is AWAY else Renewal([each], 1.0, 2.0) for each in votes]
        store, _ = _store(clock, renew=answers)
        assert store.renew([Term("n", A, 1.0)]).renewed == [renewed]

    def test_a_term_is_in_doubt_as_long_as_the_silent_could_make_it_a_majority(
        self, clock: ManualClock
    ) -> None:
        """It is asked for again until its deadline, alone, so that the others of its batch are renewed."""
        two = Renewal([True, True], 1.0, 2.0)
        one = Renewal([True, None], 1.0, 2.0)
        store, _ = _store(clock, renew=[two, two, one, AWAY, AWAY])
        with pytest.raises(Exception, match="1 of 2 renewals") as caught:
            store.renew([Term("n", A, 1.0), Term("m", A, 1.0)])
        assert not isinstance(caught.value, LockUnavailable)
        alone = [Renewal([each], 1.0, 2.0) for each in (True, True, None)]
        store, _ = _store(clock, renew=[*alone, AWAY, AWAY])
        with pytest.raises(LockUnavailable):
            store.renew([Term("m", A, 1.0)])

    def test_too_few_answers_say_nothing(self, clock: ManualClock) -> None:
        store, _ = _store(
            clock, renew=[Renewal([None], 1.0, 2.0), AWAY, AWAY, AWAY, Renewal([None], 1.0, 2.0)]
        )
        with pytest.raises(LockUnavailable):
            store.renew([Term("n", A, 1.0)])


class TestReleasingAndLooking:
    @pytest.mark.parametrize(
        ("votes", "released", "gave_back"),
        [
            ([True, True, True, False, AWAY], True, True),
            ([True, True, False, False, False], False, False),
            ([True, True, False, False, AWAY], False, True),
            ([True, False, False, False, AWAY], False, False),
        ],
    )
    def test_it_is_released_by_a_majority_and_perhaps_by_those_who_are_silent(
        self, clock: ManualClock, votes: Sequence[Any], *, released: bool, gave_back: bool
    ) -> None:
        store, _ = _store(clock, release=[each if each is AWAY else Release(each) for each in votes])
        answer = store.release("n", A)
        assert answer.released is released
        assert answer.gave_back(trusted=True) is gave_back
        assert answer.gave_back(trusted=False) is released

    def test_an_answer_to_a_repeated_release_may_have_been_one(self, clock: ManualClock) -> None:
        votes = [Release(True), Release(True), Release(False, repeated=True), Release(False), AWAY]
        assert _store(clock, release=votes)[0].release("n", A).gave_back(trusted=True)

    @pytest.mark.parametrize(
        ("tokens", "holder"),
        [
            ([A, A, A, B, None], A),
            ([A, A, B, B, None], None),
            ([A, A, None, None, None], None),
            ([None] * 5, None),
        ],
    )
    def test_the_holder_is_the_majoritys_or_nobody(
        self, clock: ManualClock, tokens: Sequence[str | None], holder: str | None
    ) -> None:
        """It holds until the third of five forgets it."""
        holds: list[tuple[Hold, ...]] = [
            () if token is None else (hold_of(token, {}, float(number)),)
            for number, token in enumerate(tokens, 1)
        ]
        hold = _store(clock, inspect=holds)[0].inspect("n")
        assert (hold and hold.token) == holder
        assert hold is None or hold.expires_in == 1.0

    def test_an_operator_sees_what_a_majority_has(self, clock: ManualClock) -> None:
        victim = hold_of(A, {})
        names = [["n", "m"], ["n"], ["n", "x"], ["x"], []]
        store, _ = _store(
            clock, force_release=[Release(True, victim)] * 3 + [Release(False)] * 2, names=names
        )
        answer = store.force_release("n")
        assert answer.released
        assert answer.held_by == victim
        assert store.names() == ["n"]

    def test_a_walk_tells_what_a_majority_has_and_of_no_lines(self, clock: ManualClock) -> None:
        holds = [(hold_of(A, {}),)] * 3 + [()] * 2
        store, _ = _store(clock, names=[["n"]] * 3 + [[]] * 2, inspect=holds)
        assert [[hold.token for hold in some] for some in store.walk_holds()] == [[A]]
        store, _ = _store(clock, names=[[]] * 5)
        assert [*store.walk_lines()] == []


@pytest.mark.parametrize(
    ("urls", "problems"),
    [
        ([], ["a quorum of 0 .* three or five"]),
        (URLS[:1], ["a quorum of 1 .* by its URL alone"]),
        (URLS[:2], ["a quorum of 2 does not outlive"]),
        (URLS[:4], ["a quorum of 4 outlives .* than one of 3"]),
        ([*URLS[:2], URLS[0]], ["7001/0 and redis://127.0.0.1:7001/0 are one server"]),
        ([*URLS[:2], "redis://localhost:7001/5"], [r"7001/0 and redis://localhost:7001/5 are one server"]),
        (["unix:///a?db=0", "unix:///a?db=1", *URLS[:2]], ["a quorum of 4", "one server, also with two"]),
        ([*URLS[:2], URLS[2:]], ["each of a quorum must be a single server"]),
    ],
    ids=repr,
)  # fmt: skip
def test_servers_that_cannot_vote_are_refused_all_at_once(urls: Any, problems: Sequence[str]) -> None:
    with pytest.raises(LockOptionError) as caught:
        connect(urls)
    assert len(caught.value.problems) == len(problems)
    for said, problem in zip(caught.value.problems, problems, strict=True):
        assert re.search(problem, said)


@pytest.mark.parametrize("wrong", [5, None, b"redis://a", [*URLS[:2], 5]], ids=repr)
def test_what_names_no_server_is_refused(wrong: Any) -> None:
    with pytest.raises(LockOptionError, match="cannot be used: its pool makes no connections"):
        connect(wrong)


def test_replicas_are_nothing_a_quorum_waits_for() -> None:
    with pytest.raises(LockOptionError, match="leave it out"):
        connect(URLS, min_replicas=1)


def test_a_quorum_says_where_it_is_without_passwords() -> None:
    urls = [url.replace("//", "//:secret@") for url in URLS[:3]]
    assert connect(urls).server == f"quorum of {', '.join(URLS[:3])}"
    with pytest.raises(LockOptionError) as caught:
        connect([*urls[:2], urls[1]])
    assert "secret" not in str(caught.value)


class TestWaitingByChance:
    """Where a store keeps no lines, a ``Lock`` asks again after random pauses."""

    @pytest.fixture
    def lineless(self, clock: ManualClock) -> FailingStore:
        store = FailingStore(clock=clock)
        store.keeps_lines = False
        return store

    def test_who_waits_gets_the_lock_after_its_holder(
        self, lineless: FailingStore, clock: ManualClock
    ) -> None:
        first = Lock(lineless, "n", ttl=0.3, auto_renew=False, clock=clock)
        first.acquire()
        assert Lock(lineless, "n", auto_renew=False, clock=clock).acquire(10.0)
        assert lineless.lines() == []

    def test_a_wait_ends_at_its_bound(self, lineless: FailingStore, clock: ManualClock) -> None:
        """With a last attempt then."""
        Lock(lineless, "n", owner="first", auto_renew=False, clock=clock).acquire()
        with pytest.raises(LockBusy, match="held by first"), Lock(lineless, "n", wait=0.1, clock=clock):
            pytest.fail("the block was entered")
