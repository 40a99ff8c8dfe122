"""What every store promises to those who wait in the line of a lock: place, wake-up, and no way round."""

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from celery_redislock.embedded import EmbeddedServer
from celery_redislock.exceptions import LockKeyError, LockUnavailable
from celery_redislock.store.store import Entry, Mark, Marked, Parked, Promotion, Release, Turn
from tests.faults import Fault, FaultyProxy
from tests.stores import ABOUT, RedisCase, StoreCase, granted, refused

A, B, C, D, E, F = (f"job-{each}/1" for each in "abcdef")

#: Where entries that are given are published from.
HOME = "amqp:here"

#: What a claim says that a line has handed over.
IN_LINE = '{"state":"queued","line":1}'

#: Of a message: with a nonce of our own, a broker's, one of a foreign publisher, and none.
TOKENS = [
    "2f6d6a30-27d0-43c1-8f7b-1c4c1c6e0f0a/kV3-x_9bQ2Zt",
    "2f6d6a30-27d0-43c1-8f7b-1c4c1c6e0f0a/0b9f6a52-0d43-4a57-9d0c-6f1f7f0c2b11",
    "job/elevenbytes",
    "job/жжжжжж",
    "job/a%2Fb/жжжжж_",
    "job/",
    "no-slash-in-it",
]


def park(
    case: StoreCase,
    id_: str,
    kind: str = "push",
    *,
    to: str | None = None,
    name: str = "n",
    **options: object,
) -> Parked:
    """Park an entry whose text is its id, with what most tests do not care about."""
    to = to or {"push": case.queue(), "give": HOME, "ring": case.queue("q:bell"), "hold": ""}[kind]
    entry = Entry(kind, to, 30.0, IN_LINE, id_)
    options = {"nonce": secrets.token_hex(8), **options}
    return case.store.park(name, id_, entry, **options)  # type: ignore[arg-type]


def in_line(case: StoreCase) -> list[str]:
    """The ids that wait, in order."""
    length, waiters = case.store.waiting("n")
    assert length == len(waiters)
    return [waiter.id for waiter in waiters]


def served(case: StoreCase) -> list[str]:
    """The ids in the order in which the holders' releases serve them, until nobody waits."""
    while (holder := case.holder()) is not None:
        assert case.store.release("n", holder).released
    assert (in_line(case), case.lines()) == ([], [])
    return case.pushed()


def at_home(case: StoreCase, home: str = HOME) -> list[Promotion]:
    """Let the store's process publish what it is given, and note it."""
    store = case.memory if hasattr(case, "memory") else case.redis  # type: ignore[attr-defined]
    given: list[Promotion] = []
    store.home = home
    store.on_promoted = given.extend
    return given


class TestPlace:
    """Who comes before whom."""

    def test_those_who_wait_are_served_in_the_order_they_came(self, case: StoreCase) -> None:
        case.take(A)

        answers = [park(case, id_) for id_ in (B, C, D)]

        assert [(answer.word, answer.place) for answer in answers] == [
            ("parked", 0),
            ("parked", 1),
            ("parked", 2),
        ]
        assert [answer.held_by and answer.held_by.token for answer in answers] == [A, A, A]
        assert in_line(case) == [B, C, D]
        assert case.lines() == ["n"]
        assert served(case) == [B, C, D]

    def test_a_band_is_served_before_the_next_one(self, case: StoreCase) -> None:
        case.take(A)
        for id_, band in [(B, 9), (C, 255), (D, 0), (E, 9), (F, 0)]:
            park(case, id_, band=band)

        assert served(case) == [D, F, B, E, C]

    def test_a_copy_of_a_message_that_is_ending_goes_without_the_lock(self, case: StoreCase) -> None:
        """Law 5: who has seen the result finds the lock free, or with the next one."""
        case.take(A)
        park(case, B)
        park(case, C)
        park(case, D)

        case.store.release("n", A, mark=Mark(B, 30.0))
        assert (case.holder(), in_line(case)) == (C, [D])
        case.store.release("n", C, mark=Mark(D, 30.0))

        assert (case.holder(), in_line(case), case.lines()) == (None, [], [])
        assert case.pushed() == [B, C, D]

    @pytest.mark.parametrize("token", TOKENS)
    def test_a_mark_is_found_whatever_the_token_of_its_message_looks_like(
        self, case: StoreCase, token: str
    ) -> None:
        """Law 8: by the copy that asks, and by the one that waits in line; and no other message has it."""
        another = f"{token[:-1]}?"
        case.take(A)
        park(case, token)
        park(case, another)

        case.store.release("n", A, mark=Mark(token, 30.0, is_done=True))

        assert (case.holder(), in_line(case), case.pushed()) == (another, [], [token, another])
        case.store.release("n", another)
        assert isinstance(case.take(C, message=token), Marked)
        granted(case.take(C, message=another))

    def test_a_copy_that_is_given_lets_the_next_one_have_the_lock(self, case: StoreCase) -> None:
        given = at_home(case)
        case.take(A)
        park(case, B, "give")
        park(case, C, "give")

        case.store.release("n", A, mark=Mark(B, 30.0))
        assert case.holder() is None
        case.store.settle("n", B, 60.0)

        assert case.holder() == C
        assert [each.id for each in given] == [B, C]

    def test_a_line_is_emptied_in_order_without_the_lock(self, case: StoreCase) -> None:
        given = at_home(case)
        case.take(A)
        for id_ in (B, C, D):
            park(case, id_)
        park(case, E, "give")

        assert case.store.drain("n", most=2)[0] == 2
        assert in_line(case) == [D, E]
        case.store.drain()

        assert (case.holder(), in_line(case)) == (A, [E])
        assert [each.id for each in given] == [E]
        assert sorted(case.pushed()) == [B, C, D]
        assert case.store.drain() == (0, ()), "another process has it, and publishes it"

    def test_only_those_that_are_named_go_to_their_queue(self, case: StoreCase) -> None:
        case.take(A)
        for id_ in (B, C, D):
            park(case, id_)

        assert case.store.drain("n", ids=[B, F, D]) == (2, ())

        assert (in_line(case), case.pushed(), case.holder()) == ([C], [D, B], A)

    def test_what_another_home_gives_keeps_nobody_else(self, case: StoreCase) -> None:
        """It stays in line, and does not count among those that leave."""
        at_home(case)
        case.take(A)
        case.take(A, name="other")
        for id_ in (B, C):
            park(case, id_, "give", to="amqp:elsewhere")
        for id_ in (D, E):
            park(case, id_, name="other")

        assert case.store.drain(most=2) == (2, ())

        assert (in_line(case), case.pushed()) == ([B, C], [E, D])

    def test_lines_are_named_while_somebody_waits(self, case: StoreCase) -> None:
        for name in ("n", "other", "free"):
            case.take(A, name=name)
        park(case, B)
        park(case, C, name="other")
        for name in ("n", "other"):
            case.make_due(name)  # those too whose time has come

        assert sorted(case.store.lines()) == ["n", "other"]
        assert len(case.store.lines(limit=1)) == 1
        case.store.leave("n", B)
        assert case.store.lines() == ["other"]

    def test_waiting_tells_who_waits_and_how_it_is_told(self, case: StoreCase) -> None:
        case.take(A)
        park(case, B)
        park(case, C, "give")
        park(case, D)

        length, (waiter,) = case.store.waiting("n", first=1, last=1)

        assert (length, waiter.id, waiter.kind, waiter.to) == (3, C, "give", HOME)
        assert (waiter.hold.token, waiter.hold.state, waiter.hold.expires_in) == (C, "queued", 30.0)
        assert [each.id for each in case.store.waiting("n", first=1)[1]] == [C, D]
        assert case.store.waiting("other") == (0, [])


class TestLongLine:
    """A look at many that wait keeps nobody else from the server for long."""

    @pytest.mark.parametrize(
        ("number", "size", "pages"),
        [(250, 10, 3), (5, 200_000, 3), (100, 10, 1)],
        ids=["many", "large", "few"],
    )
    def test_it_is_told_whole_and_read_in_pages(
        self, plain_case: RedisCase, number: int, size: int, pages: int
    ) -> None:
        """Of 100, and of a quarter of a megabyte. While the line moves nobody in it is passed over."""
        ids = [f"job-{number:03}/1" for number in range(number)]
        parked_at_once(plain_case, ids, size)
        at_work = plain_case.redis._scripts
        asked: list[str] = []

        def begin(verb: str, *args: Any, **options: Any) -> Any:
            answer = type(at_work).begin(at_work, verb, *args, **options)()
            asked.append(verb)
            plain_case.client.zpopmin(plain_case.key(part="line"))  # the first has got the lock
            return lambda: answer

        at_work.begin = begin  # type: ignore[method-assign]
        _, waiters = plain_case.redis.waiting("n")
        del at_work.begin

        assert [waiter.id for waiter in waiters] == ids
        assert asked == ["waiting"] * pages

    def test_any_part_of_it_can_be_told(self, case: StoreCase) -> None:
        ids = [f"job-{number:03}/1" for number in range(250)]
        parked_at_once(case, ids, 10)

        assert case.store.waiting("n", first=0, last=0)[0] == 250
        for first, last in (0, 0), (0, 99), (0, 100), (20, 239), (249, 249), (240, 300), (250, 260):
            told = case.store.waiting("n", first=first, last=last)[1]
            assert [each.id for each in told] == ids[first : last + 1]


def parked_at_once(case: StoreCase, ids: list[str], size: int) -> None:
    """Park entries with a text of so many bytes, behind somebody who holds the lock."""
    case.take(A)
    store: Any = case.memory if hasattr(case, "memory") else case.redis  # type: ignore[attr-defined]
    for id_ in ids:
        entry = Entry("push", case.queue(), 30.0, IN_LINE, "x" * size)
        store.park("n", id_, entry, nonce=secrets.token_hex(8), how="refused")


class TestLongestWait:
    """Who waits for some time at most goes without the lock then, whatever its place."""

    def test_who_is_over_time_goes_to_its_queue_and_leaves_the_lock_to_its_holder(
        self, case: StoreCase
    ) -> None:
        case.take(A)
        for id_ in (B, C, D):
            park(case, id_, within=None if id_ == B else 60.0)
        case.make_late(C)
        case.make_due()

        case.store.sweep()

        assert (case.holder(), in_line(case), case.pushed()) == (A, [B, D], [C])
        assert case.bounded() == {D}
        assert served(case) == [C, B, D]

    def test_the_line_is_looked_at_when_the_first_one_is_over_time(self, case: StoreCase) -> None:
        """Else it would wait for another two seconds."""
        case.take(A)
        park(case, B, within=1.0)
        case.make_due()

        assert 0.0 < case.store.sweep().next_in <= 1.0

    def test_what_is_given_stays_in_line_until_it_is_settled_and_is_given_once(self, case: StoreCase) -> None:
        given = at_home(case)
        case.take(A)
        park(case, B, "give")
        park(case, C, "give", within=60.0)
        case.make_late(C)
        for _ in range(2):
            case.make_due()
            case.store.sweep()

        assert (given, in_line(case)) == ([Promotion("n", C, C.encode())], [B, C])
        assert case.store.settle("n", C, 60.0)
        assert (case.holder(), in_line(case), case.bounded()) == (A, [B], set())

    def test_what_only_another_home_can_give_is_left_to_that_home(self, case: StoreCase) -> None:
        case.take(A)
        park(case, B, "give", within=60.0)
        case.make_late(B)
        case.make_due()

        assert case.store.sweep().promoted == ()
        given = at_home(case)
        case.make_due()
        case.store.sweep()

        assert [each.id for each in given] == [B]

    def test_one_that_is_handed_the_lock_in_time_is_not_let_go_any_more(self, case: StoreCase) -> None:
        """It is given, and its publisher may take a while."""
        given = at_home(case)
        case.take(A)
        park(case, B, "give", within=60.0)
        case.store.release("n", A)
        case.make_due()

        case.store.sweep()

        assert [each.id for each in given] == [B]
        assert (case.holder(), case.pushed()) == (B, [])

    @pytest.mark.parametrize("way", ["served", "leave", "settle", "drain", "start", "release"])
    def test_who_leaves_the_line_in_time_leaves_no_trace(self, case: StoreCase, way: str) -> None:
        """Its time would stay for ever, as no line is looked at for it any more.

        One that was handed the lock may come back until it has started, and keeps its time.
        """
        at_home(case)
        case.take(A)
        park(case, B, "push" if way in {"served", "leave", "drain"} else "give", within=60.0)
        assert case.bounded() == {B}

        if way == "leave":
            case.store.leave("n", B)
        elif way == "drain":
            case.store.drain()
        else:
            case.store.release("n", A)
        if way == "settle":
            case.store.settle("n", B, 60.0)
        if way in {"served", "settle"}:
            assert case.bounded() == {B}
        if way in {"served", "settle", "start"}:
            granted(case.take(C, instead_of=B, starts_run=True))
        elif way == "release":
            case.store.release("n", B)

        assert (case.bounded(), in_line(case)) == (set(), [])

    def test_one_that_comes_back_without_a_bound_has_none(self, case: StoreCase) -> None:
        case.take(A)
        park(case, B, within=60.0)
        case.make_late(B)
        case.make_due()
        case.store.sweep()

        park(case, B)

        assert (in_line(case), case.bounded()) == ([B], set())


class TestPark:
    """Who is put into a line, and who is not."""

    def test_a_repeated_request_parks_once_also_where_its_entry_was_served(self, case: StoreCase) -> None:
        case.take(A)
        park(case, B, nonce="one")
        assert park(case, B, nonce="one").word == "repeated"
        assert in_line(case) == [B]

        case.store.release("n", A)

        assert park(case, B, nonce="one").word == "repeated"
        assert (in_line(case), case.pushed(), case.holder()) == ([], [B], B)

    def test_one_that_was_refused_and_holds_its_claim_by_now_is_on_its_way(self, case: StoreCase) -> None:
        case.take(A)
        park(case, C)
        case.store.hand_on("n", A, B, 30.0, facts=ABOUT)

        assert park(case, B, most=1).word == "woken"
        assert (case.holder(), case.pushed(), in_line(case)) == (B, [B], [C])

    def test_the_one_ahead_holds_the_lock_that_others_wait_for_and_begins(self, case: StoreCase) -> None:
        """Else its run would be refused in favour of those that are behind it."""
        ahead = f"{A}\0{IN_LINE}"

        answers = [park(case, id_, how="behind", ahead=ahead) for id_ in (B, C)]

        assert [answer.held_by and answer.held_by.token for answer in answers] == [A, A]
        assert 9.0 < (case.remaining() or 0.0) <= 10.0
        assert granted(case.take("job-a/run", starts_run=True, instead_of=A)).taken_over
        case.store.release("n", "job-a/run")
        assert (case.holder(), in_line(case)) == (B, [C])

    def test_where_the_lock_is_held_nobody_ahead_gets_a_claim(self, case: StoreCase) -> None:
        case.take(D)

        answer = park(case, B, how="behind", ahead=f"{A}\0{IN_LINE}")

        assert (answer.held_by and answer.held_by.token, case.holder()) == (D, D)

    def test_nobody_goes_ahead_of_those_who_wait_already(self, case: StoreCase) -> None:
        """It may wait by now itself: a claim that nobody takes over would keep all others waiting."""
        case.take(A)
        park(case, D, "give")
        case.store.release("n", A)  # another process has to serve D
        park(case, C)

        answer = park(case, B, how="behind", ahead=f"{C}\0{IN_LINE}")

        assert (answer.held_by, case.holder(), in_line(case)) == (None, None, [D, C, B])

    def test_a_full_line_takes_nobody_and_one_that_left_makes_room(self, case: StoreCase) -> None:
        case.take(A)
        park(case, B, most=2)
        park(case, C, most=2)

        assert park(case, D, most=2).word == "full"
        assert in_line(case) == [B, C]

        case.store.leave("n", C)
        assert park(case, D, most=2).word == "parked"

    def test_its_delivery_is_acknowledged_with_it(self, server_case: RedisCase) -> None:
        """And so is another delivery of it; one that may run is not."""
        keys = server_case.queue("q:unacked"), server_case.queue("q:tags")
        server_case.foreign = keys
        for tag in ("1", "2", "3"):
            server_case.client.hset(keys[0], tag, "text")
            server_case.client.zadd(keys[1], {tag: 1.0})

        park(server_case, C, how="ask", acknowledge=(*keys, "3"))
        server_case.take(A)
        park(server_case, B, acknowledge=(*keys, "1"))
        park(server_case, B, acknowledge=(*keys, "2"))

        assert server_case.client.hkeys(keys[0]) == [b"3"]
        assert server_case.client.zrange(keys[1], 0, -1) == [b"3"]


Ending = Callable[[StoreCase], Release]


def _hand_on_to_one_that_is_done(case: StoreCase) -> Release:
    case.store.mark_done("n", F, 60.0)
    return case.store.hand_on("n", A, F, 30.0, facts=ABOUT)


#: Each ends A's hold, or finds that it has ended.
ENDINGS: dict[str, Ending] = {
    "release": lambda case: case.store.release("n", A),
    "release with a mark": lambda case: case.store.release("n", A, opened_by=A, mark=Mark("m", 9.0)),
    "release and store": lambda case: case.store.release_and_store("n", A, case.queue("q:r"), "{}", 9)[0],
    "force_release": lambda case: case.store.force_release("n"),
    "hand_on to one that is done": _hand_on_to_one_that_is_done,
    "leave": lambda case: case.store.leave("n", A)[2],
}
endings = pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)


class TestEnds:
    """Whoever ends a hold hands the lock to the first in line, in the same step."""

    @endings
    def test_the_end_of_a_hold_serves_the_first_in_line(self, case: StoreCase, end: Ending) -> None:
        case.take(A)
        park(case, B)
        park(case, C)

        assert end(case).released
        assert (case.holder(), case.pushed(), in_line(case)) == (B, [B], [C])
        assert case.remaining() == pytest.approx(30.0, abs=5.0)
        assert case.store.names() == ["n"]
        assert served(case) == [B, C]

    @endings
    def test_what_it_gives_is_told_once_and_stays_in_line_until_it_is_settled(
        self, case: StoreCase, end: Ending
    ) -> None:
        given = at_home(case)
        case.take(A)
        park(case, B, "give")
        park(case, C, "give")

        promoted = end(case).promoted

        assert given == list(promoted) == [Promotion("n", B, B.encode())]
        assert (case.holder(), in_line(case), case.pushed()) == (B, [B, C], [])
        assert (case.store.settle("n", B, 60.0), case.store.settle("n", B, 60.0)) == (True, False)
        assert in_line(case) == [C]
        assert case.remaining() == pytest.approx(60.0, abs=5.0)

    def test_a_line_is_looked_at_soon_again_once_its_turn_is_settled(self, case: StoreCase) -> None:
        """The run that begins now may die with its process, long before its message had to be published."""
        at_home(case)
        case.take(A)
        park(case, B, "give")
        park(case, C, "give")
        case.store.release("n", A)

        case.store.settle("n", B, 60.0)

        assert case.store.sweep().next_in <= 2.1

    def test_the_end_of_a_revoked_claim_serves_the_first_in_line(self, case: StoreCase) -> None:
        case.store.acquire("n", A, 30.0, facts='{"state":"queued"}')
        park(case, B)

        assert list(case.store.release_claims(["job-a"])) == [("n", A)]
        assert (case.holder(), case.pushed()) == (B, [B])

    @pytest.mark.parametrize("verb", ["release", "release and store", "hand_on to one that is done"])
    def test_a_release_that_finds_nothing_serves_the_first_in_line(self, case: StoreCase, verb: str) -> None:
        """The hold had expired, and nobody has looked since."""
        case.take(A)
        park(case, B)
        case.expire()

        assert not ENDINGS[verb](case).released
        assert (case.holder(), case.pushed(), in_line(case)) == (B, [B], [])

    def test_a_release_of_anothers_hold_serves_nobody(self, case: StoreCase) -> None:
        case.take(A)
        park(case, C)

        assert not case.store.release("n", B).released
        assert not case.store.force_release("n", expected=B).released
        assert not case.store.hand_on("n", B, D, 30.0, facts=ABOUT).released
        assert (case.holder(), in_line(case)) == (A, [C])

    def test_a_claim_handed_to_one_that_waits_already_sends_it(self, case: StoreCase) -> None:
        """A retry's message that came before its body had unwound: nobody else would publish it."""
        case.take(A)
        park(case, C)
        park(case, B)

        assert case.store.hand_on("n", A, B, 99.0, facts=ABOUT).released
        assert (case.holder(), case.pushed(), in_line(case)) == (B, [B], [C])
        assert served(case) == [B, C]

    def test_a_claim_handed_to_one_that_only_another_home_can_give_is_left_to_that_home(
        self, case: StoreCase
    ) -> None:
        """Not for as long as the claim would live: a day, where it is that of a retry."""
        case.take(A)
        park(case, B, "give")
        assert case.store.hand_on("n", A, B, 86400.0, facts=ABOUT).promoted == ()
        assert (case.remaining() or 0.0) <= 1.0
        case.expire()
        case.make_due()

        given = at_home(case)

        assert [each.id for each in case.store.sweep().promoted] == [B]
        assert [each.id for each in given] == [B]

    def test_a_bell_is_waited_for_and_its_ring_taken_once(self, case: StoreCase) -> None:
        """Whether it rings before the wait, or in it; and a wait in vain ends."""
        bell = case.store.bell("n", "nonce")
        case.take(A)
        park(case, B, "ring", to=bell)
        assert not case.store.await_bell(bell, 0.01)

        releasing = threading.Timer(0.1, case.store.release, ("n", A))
        releasing.start()
        assert case.store.await_bell(bell, 10.0)
        releasing.join()
        park(case, C, "ring", to=bell)
        case.store.release("n", B)

        assert case.store.await_bell(bell, 10.0)
        assert not case.store.await_bell(bell, 0.01)

    def test_a_bell_is_rung_and_a_hold_is_only_handed_over(self, case: StoreCase) -> None:
        case.take(A)
        park(case, B, "ring")
        park(case, C, "hold")

        case.store.release("n", A)
        assert (case.holder(), case.pushed("q:bell")) == (B, [B])

        case.store.release("n", B)
        assert (case.holder(), case.pushed("q:bell"), in_line(case)) == (C, [B], [])


class TestStart:
    """A run that starts, where others wait."""

    def test_a_newcomers_run_does_not_overtake_after_an_expiry(self, case: StoreCase) -> None:
        case.take(A)
        park(case, B)
        case.expire()

        hold = refused(case.take(C, starts_run=True)).hold
        assert (hold.token, hold.state, hold.is_period, case.holder()) == (B, "queued", False, None)
        assert refused(case.take(C, starts_run=True, instead_of=D)).hold.token == B

    def test_the_run_of_one_that_has_waited_meets_a_period_and_begins_its_own(self, case: StoreCase) -> None:
        """To be handed a lock is no acceptance: nobody gets round ``lock_period`` by waiting."""
        case.take(A, period=60.0)
        park(case, B)
        park(case, C)
        case.store.release("n", A)

        hold = refused(case.take("job-b/run", starts_run=True, instead_of=B, period=60.0)).hold
        assert (hold.is_period, hold.owner) == (True, "job-a")
        case.store.release("n", B)
        case.expire(part="period")
        granted(case.take("job-c/run", starts_run=True, instead_of=C, period=60.0))

        assert case.remaining(part="period")

    def test_one_whose_claim_ran_out_before_it_was_published_is_given_again(self, case: StoreCase) -> None:
        given = at_home(case)
        case.take(A)
        park(case, B, "give")
        case.store.release("n", A)
        case.expire()
        case.make_due()

        case.store.sweep()

        assert [each.id for each in given] == [B, B]


class TestSweep:
    """Nobody released: the lines are looked at."""

    def test_a_look_after_an_expiry_serves_the_first_in_line(self, case: StoreCase) -> None:
        case.take(A)
        park(case, B)
        park(case, C)
        assert 0.0 < case.store.sweep().next_in <= 5.0
        case.expire()
        case.make_due()

        assert case.store.sweep().held == ()
        assert (case.holder(), case.pushed(), in_line(case)) == (B, [B], [C])
        assert case.lines() == ["n"]

    def test_a_line_is_due_when_its_hold_expires(self, case: StoreCase) -> None:
        case.take(A, 2.0)
        park(case, B)

        assert 0.0 < case.store.sweep().next_in <= 2.1

    def test_a_look_at_a_line_whose_lock_is_held_tells_by_whom(self, case: StoreCase) -> None:
        case.take(A)
        park(case, B)
        case.make_due()

        (hold,) = case.store.sweep().held

        assert (hold.name, hold.token, hold.facts["host"]) == ("n", A, "here")
        assert 0.0 < case.store.sweep().next_in <= 5.0

    def test_two_that_look_share_the_work(self, case: StoreCase) -> None:
        names = [f"n{number}" for number in range(5)]
        for name in names:
            case.take(A, name=name)
            case.store.park(name, B, Entry("push", case.queue(), 30.0, IN_LINE, name), nonce=name)
            case.make_due(name)

        looks = [[hold.name for hold in case.store.sweep(most=3).held] for _ in range(3)]

        assert [len(look) for look in looks] == [3, 2, 0]
        assert sorted(looks[0] + looks[1]) == names

    def test_what_another_home_gives_is_left_to_its_look(self, case: StoreCase) -> None:
        case.take(A)
        park(case, B, "give")
        assert case.store.release("n", A).promoted == ()
        assert case.holder() is None
        case.make_due()

        answer = case.store.sweep()

        assert (answer.promoted, case.holder()) == ((), None)
        assert 0.5 < answer.next_in <= 1.1, "never at once: each look would find it due again"

        given = at_home(case)
        case.make_due()
        assert case.store.sweep().promoted == (Promotion("n", B, B.encode()),)
        assert [each.id for each in given] == [B]

    def test_nobody_waits_nothing_is_due(self, case: StoreCase) -> None:
        case.take(A)
        park(case, B)
        case.store.release("n", A)
        granted(case.take(C, instead_of=B, starts_run=True))

        assert case.store.sweep() == case.store.sweep(most=1)
        assert case.store.sweep().next_in == float("inf")


class TestLeave:
    """One that does not want to wait any more."""

    def test_one_that_waits_leaves_and_gets_back_what_it_parked(self, case: StoreCase) -> None:
        case.take(A)
        park(case, B)
        park(case, C)

        word, entry, release = case.store.leave("n", B)

        assert (word, release.released) == ("left", False)
        assert entry.split(b"\0") == [b"push", case.queue().encode(), b"30000", IN_LINE.encode(), B.encode()]
        assert case.store.leave("n", B)[:2] == ("missing", b"")
        assert served(case) == [C]

    def test_the_last_one_leaves_nothing_behind(self, case: StoreCase) -> None:
        case.take(A)
        park(case, B)

        assert case.store.leave("n", B)[0] == "left"
        assert (case.lines(), case.holder()) == ([], A)


class TestMove:
    """An operator's change of the order."""

    def test_one_that_was_moved_has_the_priority_of_its_neighbour(self, case: StoreCase) -> None:
        """So those that come later go where they would have gone."""
        case.take(A)
        for id_, band in [(B, 9), (C, 9), (D, 255)]:
            park(case, id_, band=band)
        case.store.move("n", B, "last")
        case.store.move("n", D, "first")

        park(case, E, band=0)
        park(case, F, band=9)

        assert served(case) == [E, D, C, F, B]


class TestBrokenKeys:
    """One key's trouble stays with that key; servers only."""

    def test_an_entry_that_nobody_can_read_is_passed_over_and_kept(self, server_case: RedisCase) -> None:
        server_case.take(A)
        park(server_case, B)
        park(server_case, C)
        server_case.client.hset(server_case.key(part="parked"), B, "what?")

        assert server_case.store.release("n", A).released

        assert (server_case.holder(), server_case.pushed(), in_line(server_case)) == (C, [C], [])
        assert server_case.client.hget(server_case.key(part="parked"), B) == b"what?"

        park(server_case, B)
        assert in_line(server_case) == [B], "delivered again, it waits as any other"

    @pytest.mark.parametrize("part", ["line", "parked"])
    def test_a_key_of_another_type_is_told_and_keeps_nobody_else(
        self, server_case: RedisCase, part: str
    ) -> None:
        for name in ("n", "other"):
            server_case.take(A, name=name)
            server_case.store.park(
                name, B, Entry("push", server_case.queue(), 30.0, IN_LINE, name), nonce=name
            )
        server_case.client.set(server_case.key(part=part), "another program's")
        server_case.foreign = (server_case.key(part=part),)

        with pytest.raises(LockKeyError):
            park(server_case, C)
        assert server_case.store.hand_on("n", A, D, 30.0, facts=ABOUT).released
        assert server_case.store.release("n", D).released
        assert server_case.store.release("other", A).released
        assert server_case.pushed() == ["other"]

    def test_a_look_tells_of_a_line_of_another_type_and_goes_on(self, server_case: RedisCase) -> None:
        for name in ("n", "other"):
            server_case.take(A, name=name)
            server_case.store.park(
                name, B, Entry("push", server_case.queue(), 30.0, IN_LINE, name), nonce=name
            )
            server_case.expire(name)
            server_case.make_due(name)
        server_case.client.set(server_case.key(part="line"), "another program's")
        server_case.foreign = (server_case.key(part="line"),)

        ((name, words),) = server_case.store.sweep().broken

        assert (name, "WRONGTYPE" in words) == ("n", True)
        assert server_case.pushed() == ["other"]
        server_case.store.release("other", B)
        assert server_case.store.sweep().next_in > 4.0

    def test_nobody_leaves_a_line_of_another_type(self, server_case: RedisCase) -> None:
        """What is parked stays, to be looked at."""
        server_case.take(A)
        park(server_case, B)
        server_case.client.set(server_case.key(part="line"), "theirs", px=60_000)

        with pytest.raises(LockKeyError):
            server_case.store.leave("n", B)
        assert server_case.client.hexists(server_case.key(part="parked"), B)

    def test_where_a_queue_takes_nothing_its_message_stays_in_line(self, server_case: RedisCase) -> None:
        """And the lock stays free, for a publisher; its line is looked at a minute later."""
        server_case.client.set(server_case.queue(), "no list")
        server_case.take(A)
        park(server_case, B)

        assert server_case.store.release("n", A).released
        assert (server_case.holder(), in_line(server_case)) == (None, [B])
        assert 50.0 < server_case.store.sweep().next_in <= 60.0

        server_case.client.delete(server_case.queue())
        server_case.make_due()
        server_case.store.sweep()
        assert (server_case.holder(), server_case.pushed()) == (B, [B])


@pytest.fixture
def cut_off(proxy: FaultyProxy, tcp_server: EmbeddedServer) -> Iterator[RedisCase]:
    """A store whose answers get lost; it and its server know each other."""
    url = tcp_server.redis_url
    with closing(RedisCase(proxy.url, client_url=url, socket_timeout=0.5)) as case:
        case.take(A, name="before")
        case.store.park("before", B, Entry("hold", "", 30.0, IN_LINE), nonce="before")
        case.store.release("before", A)
        case.store.release("before", B)
        case.store.sweep()
        case.store.leave("before", B)
        case.store.settle("before", B, 1.0)
        yield case


class TestLostAnswers:
    """A request is sent again, and does nothing twice."""

    @pytest.mark.parametrize("fault", [Fault.REQUEST_LOST, Fault.REPLY_LOST], ids=lambda fault: fault.name)
    def test_a_park_is_carried_out_once(self, proxy: FaultyProxy, cut_off: RedisCase, fault: Fault) -> None:
        cut_off.take(A)
        proxy.fail(fault, of="park")
        park(cut_off, B)
        assert in_line(cut_off) == [B]

        cut_off.store.release("n", A)
        cut_off.store.release("n", B)
        proxy.heal()
        proxy.fail(fault, of="park")
        answer = park(cut_off, C)

        assert answer.word == ("woken" if fault is Fault.REQUEST_LOST else "repeated")
        assert (cut_off.pushed(), cut_off.holder(), in_line(cut_off)) == ([B, C], C, [])
        assert proxy.fired == 2

    @pytest.mark.parametrize("verb", ["release", "force_release", "leave", "hand_on to one that is done"])
    def test_the_end_of_a_hold_serves_one(self, proxy: FaultyProxy, cut_off: RedisCase, verb: str) -> None:
        """An operator's release says whose hold it means: one that means anybody takes the next one's too."""
        cut_off.take(A)
        park(cut_off, B)
        park(cut_off, C)
        proxy.fail(Fault.REPLY_LOST, of=verb.partition(" ")[0])

        if verb == "force_release":
            cut_off.store.force_release("n", expected=A)
        else:
            ENDINGS[verb](cut_off)

        assert proxy.fired == 1
        assert (cut_off.pushed(), cut_off.holder(), in_line(cut_off)) == ([B], B, [C])

    def test_one_that_leaves_is_told_although_the_answer_got_lost(
        self, proxy: FaultyProxy, cut_off: RedisCase
    ) -> None:
        """It was in the line only, so else nobody had it any more."""
        cut_off.take(A)
        park(cut_off, B)
        proxy.fail(Fault.REPLY_LOST, of="leave")

        word, entry, _ = cut_off.store.leave("n", B)

        assert (word, entry.endswith(B.encode()), in_line(cut_off)) == ("left", True, [])

    def test_what_was_given_in_an_answer_that_got_lost_is_given_again_when_its_claim_has_run_out(
        self, proxy: FaultyProxy, cut_off: RedisCase
    ) -> None:
        given = at_home(cut_off)
        cut_off.take(A)
        park(cut_off, B, "give")
        proxy.fail(Fault.REPLY_LOST, of="release")
        assert cut_off.store.release("n", A).promoted == ()
        assert (cut_off.holder(), given) == (B, [])

        cut_off.expire()
        cut_off.make_due()
        cut_off.store.sweep()

        assert [each.id for each in given] == [B]

    @pytest.mark.parametrize("verb", ["settle", "sweep"])
    def test_a_settlement_and_a_look_may_be_repeated(
        self, proxy: FaultyProxy, cut_off: RedisCase, verb: str
    ) -> None:
        at_home(cut_off)
        cut_off.take(A)
        park(cut_off, B, "give")
        park(cut_off, C, "push")
        cut_off.store.release("n", A)
        proxy.fail(Fault.REPLY_LOST, of=verb)

        if verb == "settle":
            cut_off.store.settle("n", B, 60.0)
        else:
            cut_off.make_due()
            cut_off.store.sweep()

        assert (cut_off.holder(), cut_off.pushed()) == (B, [])
        assert in_line(cut_off) == ([C] if verb == "settle" else [B, C])


#: Seconds in which a process that waits must give a sign of life; and that a line outlives it, about.
WITHIN, OUTLIVED = 300.0, 60.0


def bell(case: StoreCase, id_: str) -> Parked:
    """Let a process wait, or give a sign of life."""
    return park(case, id_, "ring", within=WITHIN)


def ends(case: RedisCase) -> set[float]:
    """When the keys of a line end, in seconds, about; -1 for never."""
    found = case.keys()
    keys = [
        *(key for key in found if key.endswith(":lines")),
        *(case.key(part=part) for part in ("line", "parked", "sent", "until")),
    ]
    return {
        round(end / 10_000) * 10.0 if end > 0 else end for key in keys if (end := case.client.pttl(key)) != -2
    }


class TestDeadProcesses:
    """What waits is data, and has no end: but processes that are dead."""

    def test_a_line_of_nothing_but_processes_ends_after_the_last_sign_of_life(
        self, server_case: RedisCase
    ) -> None:
        server_case.take(A)
        assert bell(server_case, B).word == "parked"
        assert ends(server_case) == {WITHIN + OUTLIVED}
        before = server_case.keys()
        for key in before:
            if server_case.client.pttl(key) > 5_000:  # type: ignore[operator]
                server_case.client.pexpire(key, 5_000)

        assert bell(server_case, B).word == "repeated"
        assert ends(server_case) == {WITHIN + OUTLIVED}

        park(server_case, C, "ring", within=1.0)
        assert ends(server_case) == {WITHIN + OUTLIVED}

    @pytest.mark.parametrize("how", ["parked", "published"])
    def test_a_message_among_processes_has_no_end_also_when_it_was_handed_the_lock(
        self, server_case: RedisCase, how: str
    ) -> None:
        """Whichever of them comes first, or gives a sign of life: its text would be lost."""
        server_case.take(A)
        bell(server_case, B)
        if how == "parked":
            park(server_case, C)
        else:
            turn = Turn("claimed", "unclaimed", "parked", IN_LINE, 0, 10, hand_off=30.0)
            answer = server_case.store.claim_and_push(
                "n", C, 60.0, queue=server_case.queue(), text="claimed", turn=turn
            )
            assert isinstance(answer, Parked)
        assert ends(server_case) == {-1}

        bell(server_case, B)
        bell(server_case, D)
        assert ends(server_case) == {-1}

        for process in (B, D):
            server_case.store.leave("n", process)
        server_case.store.release("n", A)
        assert in_line(server_case) == []
        bell(server_case, D)
        assert ends(server_case) == {-1}

        server_case.expire()
        server_case.make_due()
        server_case.store.sweep()
        assert [waiter.id for waiter in server_case.store.waiting("n", handed_on=True)[1]] == [C]


class TestOutOfMemory:
    """A server that takes nothing more: what waits already is served."""

    @pytest.fixture
    def full(self) -> Iterator[RedisCase]:
        """A store on a server of its own, without memory from now on; B and C wait for A."""
        with EmbeddedServer(port=0) as server, closing(RedisCase(server.redis_url)) as case:
            case.take(A)
            park(case, B)
            park(case, C)
            case.client.config_set("maxmemory-policy", "noeviction")
            case.client.config_set("maxmemory", 1)
            yield case
            case.client.config_set("maxmemory", 0)

    def test_nobody_else_is_parked_and_nothing_is_half_done(self, full: RedisCase) -> None:
        before = full.keys()

        with pytest.raises(LockUnavailable, match=r"OOM|maxmemory"):
            park(full, D)

        assert (in_line(full), full.keys()) == ([B, C], before)

    @endings
    def test_the_end_of_a_hold_serves_the_first_in_line(self, full: RedisCase, end: Ending) -> None:
        if end is ENDINGS["hand_on to one that is done"]:
            full.store.release("n", "nobody/1", mark=Mark(F, 60.0, is_done=True))

        assert end(full).released
        assert (full.holder(), full.pushed(), in_line(full)) == (B, [B], [C])

    def test_a_look_after_an_expiry_serves_the_first_in_line(self, full: RedisCase) -> None:
        full.expire()
        full.client.config_set("maxmemory", 0)
        full.make_due()
        full.client.config_set("maxmemory", 1)

        full.store.sweep()

        assert (full.holder(), full.pushed(), in_line(full)) == (B, [B], [C])
