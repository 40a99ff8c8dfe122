"""``Lock``, on the store in memory: waiting, re-entry, threads, terms."""

import asyncio
import pickle
import threading
from collections.abc import Callable
from functools import partial
from inspect import getcoroutinestate
from typing import Any

import pytest
import redis

from celery_redislock.exceptions import LockBusy, LockLost, LockOptionError, LockUnavailable
from celery_redislock.locks import Lock, MemoryStore, ReadWriteLock, Semaphore, aio
from celery_redislock.locks.attempt import PAUSE
from celery_redislock.locks.watchdog import watchdog_of
from tests.clocks import ManualClock
from tests.facts import wait_until
from tests.scripted import FailingStore, LinedStore, ToldStore, lock_on


@pytest.fixture
def other(store: FailingStore, clock: ManualClock) -> Lock:
    """Somebody else's lock of the same name."""
    return lock_on(store, clock)


def _in_thread(work: Callable[[], object]) -> object:
    result: list[object] = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    thread.join(10)
    return result[0]


class TestWaiting:
    @pytest.mark.parametrize(
        ("timeout", "acquired", "least", "most"),
        [(0, False, 0.0, 0.0), (5.0, False, 5.0, 5.001), (None, True, 30.0, 30.01)],
        ids=["one attempt", "bounded", "without bound"],
    )
    def test_a_wait_ends_at_its_bound_or_with_the_holder(
        self,
        clock: ManualClock,
        lock: Lock,
        other: Lock,
        timeout: Any,
        least: float,
        most: float,
        *,
        acquired: bool,
    ) -> None:
        """The bound is fixed once, not recomputed with every turn of the loop."""
        assert lock.acquire(timeout=0)
        assert other.acquire(timeout=timeout) is acquired
        assert least - 0.001 <= clock.now - 1000.0 <= most

    def test_a_block_raises_who_holds_and_for_how_long(self, store: FailingStore, clock: ManualClock) -> None:
        lock_on(store, clock, owner="nightly").acquire()
        with pytest.raises(LockBusy) as caught, lock_on(store, clock, wait=5.0):
            pytest.fail("the block was entered")
        assert (caught.value.key, caught.value.holder) == ("n", "nightly")
        assert caught.value.expires_in == pytest.approx(25.0)

    def test_any_text_is_the_name_of_a_lock_of_its_own(self, store: FailingStore) -> None:
        """Braces would cut the Cluster's hash tag: they are escaped. A key as ``list`` shows it is a name."""
        names = ["{a}", "a", "a\0b", "a b", "x" * 300, "x" * 301, "50%", "path:{p}", "naïve/Ü", "a\nb"]
        assert all(Lock(store, name, auto_renew=False).acquire(timeout=0) for name in names)
        keys = store.names()
        assert len(keys) == len(names)
        assert not any(set("{}\0 ") & set(key) or len(key) > 200 for key in keys)
        assert not any(Lock(store, name, auto_renew=False).acquire(timeout=0) for name in [*names, *keys])

    @pytest.mark.parametrize(
        "terms",
        [
            *({"ttl": ttl} for ttl in (0, -1.0, 0.0001, float("nan"), float("inf"), "30", True, None)),
            *({"wait": wait} for wait in (True, False, "5", float("nan"))),
            *({"owner": owner} for owner in (b"x", 5, "\ud800")),
            *({"name": name} for name in ("", b"x", 5, None)),
        ],
        ids=str,
    )
    def test_terms_that_cannot_be_kept_are_refused(self, store: FailingStore, terms: dict[str, Any]) -> None:
        """When the lock is made, and with what was given; ``True`` is what other locks take for "wait"."""
        (word,) = terms
        with pytest.raises(LockOptionError, match=word):
            Lock(store, **{"name": "n", **terms})

    def test_what_is_no_token_text_or_time_is_refused(self, store: FailingStore, lock: Lock) -> None:
        seats: Any = Semaphore(store, "n", 2)
        for token in (None, b"t", ""):
            with pytest.raises(LockOptionError, match="token="):
                seats.release(token)
        for by in (b"x", 5, "\ud800"):
            with pytest.raises(LockOptionError, match="by="):
                seats.set_limit(3, by=by)
        for timeout in (True, False, float("nan")):
            with pytest.raises(LockOptionError, match="None waits for ever, 0 asks once"):
                lock.acquire(timeout)
        assert (store.limit("n"), lock.held) == (None, False)


class TestTheLine:
    """What a waiter does with what the store says; the order itself is the server's."""

    @pytest.fixture
    def store(self, clock: ManualClock) -> LinedStore:
        """A line that does in each wait what the test says."""
        return LinedStore(clock=clock)

    @pytest.fixture(autouse=True)
    def _held(self, lock: Lock) -> None:
        lock.acquire()

    def test_a_lease_begins_when_it_is_handed(
        self, store: LinedStore, clock: ManualClock, lock: Lock, other: Lock
    ) -> None:
        """However long it waited: the whole ttl is left, and its token is that of the entry."""
        lock.renew(200.0)
        store.turns += [lambda: clock.advance(90.0), store.hand_over]
        assert other.acquire(timeout=None)
        hold = store.inspect("n")
        assert (hold.token, hold.expires_in) == (store.entries[0], 30.0)
        other.check()
        assert store.left == []

    def test_who_has_waited_for_a_lock_stands_in_its_line_at_once(self, clock: ManualClock) -> None:
        """A request less, where others wait; once it was free, it is asked for first again."""
        store = ToldStore(clock=clock)
        holder, other = lock_on(store, clock, ttl=200.0), lock_on(store, clock, ttl=200.0)
        holder.acquire()
        assert not other.acquire(timeout=0.5)
        assert store.asked == ["acquire", "acquire", "park"]
        store.asked.clear()
        assert not other.acquire(timeout=0.5)
        assert store.asked == ["park"]
        holder.release()
        store.asked.clear()
        assert other.acquire(timeout=0.5)
        assert store.asked == ["park", "acquire"]
        assert store.inspect("n").expires_in == 200.0
        other.release()
        store.asked.clear()
        assert other.acquire(timeout=0.5)
        assert store.asked == ["acquire"]

    def test_who_was_never_told_of_a_holder_asks_once_more_when_its_time_is_up(
        self, store: LinedStore, clock: ManualClock, lock: Lock, other: Lock
    ) -> None:
        """It is never taken for one that holds."""
        store.turns += [lambda: clock.advance(store.waits[-1])] * 2
        assert not other.acquire(timeout=0.5)
        lock.release()
        assert other.acquire(timeout=0.5)
        assert store.inspect("n").token == store.entries[-1]

    def test_who_gives_up_leaves(self, store: LinedStore, clock: ManualClock, other: Lock) -> None:
        """In pieces of a second at most, and never past the bound."""
        store.turns += [lambda: clock.advance(store.waits[-1])] * 4
        assert not other.acquire(timeout=2.5)
        assert store.waits == [PAUSE, PAUSE, pytest.approx(0.5)]
        assert store.left == store.entries[:1]

    def test_it_looks_when_the_hold_has_expired(
        self, store: LinedStore, clock: ManualClock, lock: Lock, other: Lock
    ) -> None:
        """Nobody rings then: the look itself hands the lock to the first in line."""
        lock.renew(0.3)
        store.turns += [lambda: clock.advance(store.waits[-1]), store.hand_over]
        assert other.acquire(timeout=5.0)
        assert store.waits == [pytest.approx(0.3, abs=0.01), PAUSE]

    def test_a_late_hand_off_is_waited_for_in_front(self, store: LinedStore, lock: Lock, other: Lock) -> None:
        """This process stood still, and the next in line has the lock."""

        def hand_over_to_the_next() -> bool:
            lock.release()
            store.acquire("n", "next/1", 2.0, facts="{}")
            return True

        store.turns += [hand_over_to_the_next, store.hand_over]
        assert other.acquire(timeout=5.0)
        assert store.places == ["last", "first"]
        assert len(set(store.entries)) == 1

    def test_a_lost_ring_is_found_by_the_look(self, store: LinedStore, other: Lock) -> None:
        def hand_over_in_silence() -> bool:
            store.hand_over()
            return False

        store.turns += [hand_over_in_silence, lambda: False]
        assert other.acquire(timeout=5.0)
        assert other.held

    @pytest.mark.parametrize("is_handed", [False, True])
    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, LockUnavailable("memory", "park", "")])
    def test_an_error_leaves_the_line_in_the_background(
        self, store: LinedStore, clock: ManualClock, other: Lock, error: Any, *, is_handed: bool
    ) -> None:
        """Also where the lock has just been handed over: nobody has it afterwards."""

        def fail() -> bool:
            if is_handed:
                store.hand_over()
            clock.advance(5.0)
            raise error

        store.turns += [fail]
        with pytest.raises(error if isinstance(error, type) else LockUnavailable):
            other.acquire(timeout=5.0)
        assert not other.held
        assert wait_until(lambda: store.left == store.entries, 10)
        assert (store.inspect("n") is None) is is_handed

    def test_a_server_that_is_away_is_asked_again_until_time_is_up_and_that_is_told_once(
        self, store: LinedStore, clock: ManualClock, other: Lock, caplog: Any
    ) -> None:
        """It stands in line, and says by its timeout how long it waits."""

        def fail() -> bool:
            clock.advance(1.0)
            raise LockUnavailable("memory", "await_bell", "away")

        store.turns += [fail, fail, fail, store.hand_over]
        assert other.acquire(timeout=5.0)
        assert len(store.entries) == 1
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "tries again until its time is up" in caplog.text

    def test_a_server_that_is_away_before_it_stands_in_line_is_told_of_at_once(
        self, store: LinedStore, other: Lock
    ) -> None:
        for away in ("acquire", "park"):
            store.fails = frozenset({away})
            with pytest.raises(LockUnavailable):
                other.acquire(timeout=5.0)
            assert store.waits == []

    def test_a_lost_leave_is_owed(self, store: LinedStore, clock: ManualClock, other: Lock) -> None:
        store.fails = frozenset({"leave"})
        store.turns += [lambda: clock.advance(5.0)]
        with pytest.raises(LockUnavailable):
            other.acquire(timeout=1.0)
        assert store.left == []
        store.fails = frozenset()
        assert wait_until(lambda: store.left == store.entries[:1], 10)

    def test_a_fork_in_the_middle_waits_for_itself(
        self, store: LinedStore, other: Lock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Under a token of its own: the parent's entry, and the lock that it may be handed, stay."""

        def fork() -> bool:
            monkeypatch.setattr("os.getpid", lambda: -1)
            return True

        store.turns += [fork, store.hand_over]
        assert other.acquire(timeout=5.0)
        assert len(set(store.entries)) == 2
        assert store.left == []


class TestHolding:
    def test_the_thread_that_holds_may_enter_again(self, store: FailingStore, lock: Lock) -> None:
        with lock, lock:
            assert lock.acquire(timeout=0)
            assert lock.release()
            inside = lock.held
        assert (inside, lock.held) == (True, False)
        assert store.inspect("n") is None

    def test_another_coroutine_of_the_thread_is_refused(self, lock: Lock) -> None:
        """The thread holds the lock, and both would go on at once."""
        inside: list[str] = []

        async def work(name: str) -> None:
            with lock, lock:  # the same one may enter again
                inside.append(name)
                await asyncio.sleep(0)

        async def both() -> list[object]:
            return await asyncio.gather(work("first"), work("second"), return_exceptions=True)

        first, second = asyncio.run(both())
        assert (first, inside) == (None, ["first"])
        assert isinstance(second, RuntimeError)
        assert "another coroutine of this thread" in str(second)
        assert not lock.held
        assert lock.acquire(timeout=0)

    @pytest.mark.parametrize("verb", ["release", "renew", "check"])
    def test_a_thread_that_does_not_hold_is_told_so(self, lock: Lock, verb: str) -> None:
        def misuse() -> None:
            with pytest.raises(RuntimeError, match="does not hold"):
                getattr(lock, verb)()

        misuse()
        with lock:
            _in_thread(misuse)
            assert lock.held

    def test_a_renewal_starts_the_ttl_anew_and_tells_of_a_loss(self, clock: ManualClock, lock: Lock) -> None:
        lock.acquire()
        clock.advance(20.0)
        assert lock.renew()
        clock.advance(20.0)
        lock.check()
        assert lock.renew(ttl=100.0)
        clock.advance(90.0)
        lock.check()
        clock.advance(11.0)
        assert not lock.renew()
        with pytest.raises(LockLost):
            lock.check()

    @pytest.mark.parametrize(
        ("ttl", "asked"), [(30.0, 1.0), (2.0, 60.0)], ids=["a shorter ttl is believed", "a longer one is not"]
    )
    def test_without_an_answer_the_shorter_of_two_ttls_counts(
        self, store: FailingStore, clock: ManualClock, other: Lock, ttl: float, asked: float
    ) -> None:
        """Law 1: the server may have shortened it, and may not have heard of a longer one."""
        lock = lock_on(store, clock, ttl=ttl)
        lock.acquire()
        store.fails = frozenset({"renew"})
        with pytest.raises(LockUnavailable):
            lock.renew(asked)
        clock.advance(min(ttl, asked))
        assert other.acquire(timeout=0) is (asked < ttl)
        with pytest.raises(LockLost):
            lock.check()

    def test_what_is_lost_is_renewed_no_more(self, store: FailingStore, clock: ManualClock) -> None:
        """Whoever learnt of the loss was told for good; the server, which may know better, lets it expire."""
        lock = lock_on(store, clock, ttl=10.0)
        lock.acquire()
        clock.advance(9.95)
        store.fails = frozenset({"renew"})
        with pytest.raises(LockLost):
            lock.check()
        store.fails = frozenset()
        clock.advance(9.0)
        assert not lock.renew()
        hold = store.inspect("n")
        assert hold is None or hold.expires_in == pytest.approx(1.0)

    def test_another_ttl_moves_the_next_renewal(self) -> None:
        """A renewal due in a hundred seconds would come too late."""
        store = MemoryStore()
        lock = Lock(store, "n", ttl=300.0)
        lock.acquire()
        watchdog = watchdog_of(store)
        before = watchdog._next_due()
        lock.renew(ttl=100.0)
        assert watchdog._next_due() < before - 60.0


class TestLoss:
    def test_a_block_that_lost_its_lock_raises(
        self, store: FailingStore, clock: ManualClock, lock: Lock
    ) -> None:
        def body() -> None:
            with lock:
                clock.advance(31.0)
                assert lock_on(store, clock, owner="next").acquire(timeout=0)

        with pytest.raises(LockLost):
            body()
        hold = store.inspect("n")
        assert hold.owner == "next"

    @pytest.mark.parametrize(
        "trouble",
        [
            lambda *_: None,
            lambda _store, clock, _lock: clock.advance(31.0),
            lambda _store, _clock, lock: lock.release(),
            lambda store, _clock, _lock: setattr(store, "fails", frozenset({"release"})),
        ],
        ids=["none", "lost", "released in the block", "the server is away"],
    )
    def test_the_bodys_own_error_goes_through_unchanged(
        self, store: FailingStore, clock: ManualClock, lock: Lock, trouble: Callable[..., object]
    ) -> None:
        """Busy, lost and unavailable never mask it."""
        error = ValueError("the body's own")

        def body() -> None:
            with lock:
                trouble(store, clock, lock)
                raise error

        with pytest.raises(ValueError, match="the body's own") as caught:
            body()
        assert caught.value is error
        store.fails = frozenset()
        assert wait_until(lambda: store.inspect("n") is None, 10)

    def test_a_late_release_ends_no_later_hold_of_the_same_object(
        self, store: FailingStore, clock: ManualClock, lock: Lock
    ) -> None:
        """The token belongs to the hold, not to the object: neither another thread's nor one's own ends."""
        lock.acquire()
        first = lock.token
        clock.advance(31.0)
        assert _in_thread(lambda: lock.acquire(timeout=0)) is True
        second = store.inspect("n").token
        assert not lock.release()
        assert store.inspect("n").token == second != first

    def test_a_lost_hold_is_not_entered_again(self, clock: ManualClock, lock: Lock) -> None:
        """A new term for the inner block would let the outer one go on as if nothing had happened."""
        lock.acquire()
        clock.advance(31.0)
        with pytest.raises(LockLost):
            lock.acquire(timeout=0)
        assert not lock.release()
        assert lock.acquire(timeout=0)

    def test_a_callback_that_returns_a_coroutine_is_told_to_do_nothing(
        self, store: FailingStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nobody awaits it. It is closed, so that Python does not say so later, when nobody knows why."""
        made: list[Any] = []

        async def notify(*_: object) -> None:
            """Nobody gets here."""

        def on_lost(*_: object) -> Any:
            made.append(notify())
            return made[-1]

        lock = lock_on(store, clock, on_lost=on_lost, on_state=on_lost)
        seats: Any = Semaphore(store, "seats", 2, auto_renew=False, on_lost=on_lost, clock=clock)
        lock.acquire()
        permit = seats.acquire()
        clock.advance(31.0)
        for hold in (lock, permit):
            with pytest.raises(LockLost):
                hold.check()
        assert [getcoroutinestate(each) for each in made] == ["CORO_CLOSED"] * 3
        assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
        assert {"returned a coroutine, which nobody awaits" in text for text in caplog.messages} == {True}

    def test_what_nobody_refers_to_is_renewed_no_more(self) -> None:
        """Nobody is left to release it, or to be told of its loss; another lock is renewed."""
        store = MemoryStore()
        told: list[Lock] = []
        lock = Lock(store, "n", on_lost=told.append, on_state=lambda lost, _: told.append(lost))
        other = Lock(store, "other")
        assert lock.acquire()
        assert other.acquire()
        tokens = lock.token, other.token
        watched = watchdog_of(store).watched
        lost, kept = (watched(token or "") for token in tokens)
        del lock
        assert (bool(lost.orphaned), bool(kept.orphaned)) == (True, False)
        lost.lose("it has expired")
        assert told == []
        other.release()


class TestElsewhere:
    """A hold that is continued, renewed or released by its token."""

    def test_another_thread_continues_a_hold(self, store: FailingStore, clock: ManualClock) -> None:
        """Also when its first holder uses its object no more; nobody gets between."""
        first = lock_on(store, clock)
        first.acquire()
        fence, token = first.fence, first.token
        clock.advance(20.0)

        def go_on() -> tuple[object, ...]:
            nonlocal first
            with lock_on(store, clock, token=token) as second:
                del first
                clock.advance(20.0)
                second.check()
                return second.token, second.fence, lock_on(store, clock).acquire(0)

        assert _in_thread(go_on) == (token, None, False)
        again = lock_on(store, clock)
        assert again.acquire(0)
        assert (again.fence or 0) > (fence or 0)

    def test_a_hold_is_renewed_checked_and_released_by_its_token(self) -> None:
        """That is no loss of its first holder, who is renewed no more. Who continues it has his own ttl."""
        store = MemoryStore()
        told: list[Lock] = []
        first = Lock(store, "n", ttl=30.0, on_lost=told.append)
        first.acquire()
        other = Lock(store, "n", ttl=600.0, token=first.token)
        assert other.renew()
        other.check()
        assert not other.held
        assert other.release()
        assert store.inspect("n") is None
        assert not other.release()
        assert not first.held
        assert watchdog_of(store).watched(first.token or "") is None
        assert not first.release()
        assert told == []
        first.acquire()
        assert Lock(store, "n", ttl=600.0, token=first.token).acquire()
        assert 500 < (store.inspect("n") or pytest.fail("free")).expires_in <= 600

    def test_a_hold_that_is_gone_is_not_continued(self, store: FailingStore, clock: ManualClock) -> None:
        """Nor taken anew, although it is free: what it protected may have been changed.

        And ``on_lost`` is about holds that it has had.
        """
        told: list[Any] = []
        first = lock_on(store, clock)
        first.acquire()
        token = first.token
        first.release()
        gone = lock_on(
            store, clock, token=token, on_lost=told.append, on_state=lambda _, state: told.append(state)
        )
        with pytest.raises(LockLost, match="nobody holds it under the token"):
            gone.acquire()
        with pytest.raises(LockLost):
            gone.check()
        assert not gone.renew()
        assert (store.inspect("n"), told) == (None, [])

    @pytest.mark.parametrize("count", [1, 20])
    def test_the_token_of_a_permit_a_reader_or_several_names_is_no_hold_of_one(self, count: int) -> None:
        """Others may have one as well, and only some of many are told; the other names would go on."""
        store = MemoryStore()
        seats = Semaphore(store, "seats", 20, auto_renew=False)
        permits = [seats.acquire(timeout=0) for _ in range(count)]
        book, both = ReadWriteLock(store, "book"), Lock(store, ["a", "b"])
        book.read.acquire()
        both.acquire()
        for name, token in (("seats", permits[-1].token), ("book", book.read.token), ("a", both.token)):  # type: ignore[union-attr]
            with pytest.raises(LockOptionError, match=r"is a reader's, a permit's or of other names"):
                Lock(store, name, token=token).acquire()
        book.read.release()
        with book.write:
            assert Lock(store, "book", token=book.write.token).acquire()
        with pytest.raises(LockLost):
            Lock(store, ["a", "b", "c"], token=both.token).acquire()
        assert Lock(store, ["b", "a"], token=both.token).acquire()

    def test_what_is_no_token_is_refused_and_that_of_any_owner_taken(self, store: FailingStore) -> None:
        """Not as a hold that was lost, of which nothing may be written any more."""
        others: list[Any] = [
            "",
            b"t",
            7,
            "a\0b",
            "rubbish",
            "owner/short",
            "6a204bd89f3c8348afd5c77c717a097a",
        ]
        others += [f"owner/{'x' * 11}é", f"a\0b/{'x' * 12}", f"\ud800/{'x' * 12}", f"owner/{'x' * 12}\n"]
        for token in others:
            with pytest.raises(LockOptionError, match=r"token=.* is none that this package makes; give"):
                Lock(store, "n", token=token)
        for owner in ("line\nbreak", "a/b", "", "née"):
            first = Lock(store, f"n {owner}", owner=owner)
            first.acquire()
            assert Lock(store, f"n {owner}", token=first.token).acquire()


class TestWordsOfOthers:
    """What was written for another library's lock."""

    def test_a_word_of_another_library_is_answered_with_ours(self, store: FailingStore) -> None:
        """``timeout`` is redis-py's word for the ttl, and would have been a wait: it is neither."""
        kinds: list[Any] = [Lock, partial(Semaphore, limit=3), ReadWriteLock]
        kinds += [lambda _store, *args, **terms: aio.Lock(aio.connect("redis://h"), *args, **terms)]
        words = {"timeout": "ttl= .* wait=", "blocking_timeout": "wait=", "blocking": r"acquire\(0\)"}
        words |= {"expire": "ttl=", "thread_local": "token=", "sleep": "leave it out"}
        for kind in kinds:
            for word, instead in words.items():
                with pytest.raises(LockOptionError, match=f"{word}=300.*{instead}"):
                    kind(store, "n", **{word: 300})

    def test_what_a_lock_raises_is_redis_pys_error(self, store: FailingStore, clock: ManualClock) -> None:
        """``except LockError`` and ``suppress(LockError)`` go on working; ``except RuntimeError``, too."""
        lock = lock_on(store, clock)
        with pytest.raises(redis.exceptions.LockError) as unheld:
            lock.release()
        lock.acquire()
        with pytest.raises(redis.exceptions.LockError) as busy, lock_on(store, clock, wait=0):
            pytest.fail("the block was entered")
        clock.advance(31.0)
        with pytest.raises(redis.exceptions.LockNotOwnedError) as lost:
            lock.check()
        for told, kind in ((unheld, RuntimeError), (busy, LockBusy), (lost, LockLost)):
            error = told.value
            again = pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes
            assert isinstance(error, kind)
            assert (type(again), str(again)) == (type(error), str(error))
            assert type(error).__name__ in repr(error)


@pytest.mark.parametrize("how", ["acquire unheard", "acquire cut", "release unheard", "release unsent"])
def test_what_is_held_without_the_locks_knowing_is_released_later(
    store: FailingStore, lock: Lock, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """An acquire that nobody answered, or that Ctrl-C cut short; a release that nobody answered, or heard."""
    acquire = store.acquire

    def interrupted(*args: Any, **kwargs: Any) -> None:
        acquire(*args, **kwargs)
        raise KeyboardInterrupt

    verb = how.split(maxsplit=1)[0]
    if verb == "release":
        lock.acquire()
    monkeypatch.setattr(LockUnavailable, "was_sent", how != "release unsent")
    if how == "acquire cut":
        monkeypatch.setattr(store, "acquire", interrupted)
    store.fails = frozenset({"release"} if how == "acquire cut" else {verb, "release"})
    with pytest.raises((LockUnavailable, KeyboardInterrupt)):
        getattr(lock, verb)()
    assert store.inspect("n") is not None
    assert not lock.held
    store.fails = frozenset()
    assert wait_until(lambda: store.inspect("n") is None, 10)


def test_an_acquire_that_was_never_sent_leaves_nothing_to_release(
    store: FailingStore, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 9: a program whose server refuses connections would wait three seconds for it at its end."""
    monkeypatch.setattr(LockUnavailable, "was_sent", False)
    store.fails = frozenset({"acquire", "release"})
    with pytest.raises(LockUnavailable):
        lock.acquire()
    assert watchdog_of(store)._debts == []
