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
from tests.stores import (
    ABOUT,
    HOME,
    IN_LINE,
    JOBS,
    RedisCase,
    StoreCase,
    at_home,
    granted,
    in_line,
    line_up,
    look,
    park,
)

A, B, C, D, E, F = JOBS

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


def served(case: StoreCase) -> list[str]:
    """The ids in the order in which the holders' releases serve them, until nobody waits."""
    while (holder := case.holder()) is not None:
        assert case.store.release("n", holder).released
    assert (in_line(case), case.lines()) == ([], [])
    return case.pushed()


class TestPlace:
    def test_a_band_is_served_before_the_next_one(self, case: StoreCase) -> None:
        case.take(A)
        for id_, band in [(B, 9), (C, 255), (D, 0), (E, 9), (F, 0)]:
            park(case, id_, band=band)
        assert served(case) == [D, F, B, E, C]

    @pytest.mark.parametrize("token", TOKENS)
    def test_a_mark_is_found_whatever_the_token_of_its_message_looks_like(
        self, case: StoreCase, token: str
    ) -> None:
        """Law 8: by the copy that asks, and by the one that waits in line; and no other message has it."""
        another = f"{token[:-1]}?"
        line_up(case, token, another)
        case.store.release("n", A, mark=Mark(token, 30.0, is_done=True))
        assert (case.holder(), in_line(case), case.pushed()) == (another, [], [another, token])
        case.store.release("n", another)
        assert isinstance(case.take(C, message=token), Marked)
        granted(case.take(C, message=another))

    def test_a_line_is_emptied_in_order_without_the_lock(self, case: StoreCase) -> None:
        given = at_home(case)
        line_up(case, B, C, D)
        park(case, E, "give")
        assert case.store.drain("n", most=2)[0] == 2
        assert in_line(case) == [D, E]
        case.store.drain()
        assert (case.holder(), in_line(case)) == (A, [E])
        assert [each.id for each in given] == [E]
        assert sorted(case.pushed()) == [B, C, D]
        assert case.store.drain() == (0, ()), "another process has it, and publishes it"

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
    def test_who_is_over_time_goes_to_its_queue_and_leaves_the_lock_to_its_holder(
        self, case: StoreCase
    ) -> None:
        case.take(A)
        for id_ in (B, C, D):
            park(case, id_, within=None if id_ == B else 60.0)
        case.make_late(C)
        look(case)
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
        line_up(case, B, kind="give")
        park(case, C, "give", within=60.0)
        case.make_late(C)
        for _ in range(2):
            look(case)
        assert (given, in_line(case)) == ([Promotion("n", C, C.encode())], [B, C])
        assert case.store.settle("n", C, 60.0)
        assert (case.holder(), in_line(case), case.bounded()) == (A, [B], set())

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
        look(case)
        park(case, B)
        assert (in_line(case), case.bounded()) == ([B], set())


class TestPark:
    def test_the_one_ahead_holds_the_lock_that_others_wait_for_and_begins(self, case: StoreCase) -> None:
        """Else its run would be refused in favour of those that are behind it."""
        ahead = f"{A}\0{IN_LINE}"
        answers = [park(case, id_, how="behind", ahead=ahead) for id_ in (B, C)]
        assert [answer.held_by and answer.held_by.token for answer in answers] == [A, A]
        assert 9.0 < (case.remaining() or 0.0) <= 10.0
        assert granted(case.take("job-a/run", starts_run=True, instead_of=A)).taken_over
        case.store.release("n", "job-a/run")
        assert (case.holder(), in_line(case)) == (B, [C])

    def test_nobody_goes_ahead_of_those_who_wait_already(self, case: StoreCase) -> None:
        """It may wait by now itself: a claim that nobody takes over would keep all others waiting."""
        line_up(case, D, kind="give")
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

    def test_its_delivery_is_acknowledged_with_it(self, plain_case: RedisCase) -> None:
        """And so is another delivery of it; one that may run is not."""
        keys = plain_case.queue("q:unacked"), plain_case.queue("q:tags")
        plain_case.foreign = keys
        for tag in ("1", "2", "3"):
            plain_case.client.hset(keys[0], tag, "text")
            plain_case.client.zadd(keys[1], {tag: 1.0})
        park(plain_case, C, how="ask", acknowledge=(*keys, "3"))
        plain_case.take(A)
        park(plain_case, B, acknowledge=(*keys, "1"))
        park(plain_case, B, acknowledge=(*keys, "2"))
        assert plain_case.client.hkeys(keys[0]) == [b"3"]
        assert plain_case.client.zrange(keys[1], 0, -1) == [b"3"]


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
    @endings
    def test_the_end_of_a_hold_serves_the_first_in_line(self, case: StoreCase, end: Ending) -> None:
        line_up(case, B, C)
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
        line_up(case, B, C, kind="give")
        promoted = end(case).promoted
        assert given == list(promoted) == [Promotion("n", B, B.encode())]
        assert (case.holder(), in_line(case), case.pushed()) == (B, [B, C], [])
        assert (case.store.settle("n", B, 60.0), case.store.settle("n", B, 60.0)) == (True, False)
        assert in_line(case) == [C]
        assert case.remaining() == pytest.approx(60.0, abs=5.0)

    def test_a_line_is_looked_at_soon_again_once_its_turn_is_settled(self, case: StoreCase) -> None:
        """The run that begins now may die with its process, long before its message had to be published."""
        at_home(case)
        line_up(case, B, C, kind="give")
        case.store.release("n", A)
        case.store.settle("n", B, 60.0)
        assert case.store.sweep().next_in <= 2.1

    def test_the_end_of_a_revoked_claim_serves_the_first_in_line(self, case: StoreCase) -> None:
        case.store.acquire("n", A, 30.0, facts='{"state":"queued"}')
        park(case, B)
        assert list(case.store.release_claims(["job-a"])) == [("n", A)]
        assert (case.holder(), case.pushed()) == (B, [B])

    def test_a_claim_handed_to_one_that_only_another_home_can_give_is_left_to_that_home(
        self, case: StoreCase
    ) -> None:
        """Not for as long as the claim would live: a day, where it is that of a retry."""
        line_up(case, B, kind="give")
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


class TestSweep:
    def test_a_line_is_due_when_its_hold_expires_and_a_look_tells_whose_it_is(self, case: StoreCase) -> None:
        case.take(A, 2.0)
        park(case, B)
        assert 0.0 < case.store.sweep().next_in <= 2.1
        (hold,) = look(case).held
        assert (hold.name, hold.token, hold.facts["host"]) == ("n", A, "here")
        assert 0.0 < case.store.sweep().next_in <= 2.1

    def test_what_another_home_gives_is_left_to_its_look(self, case: StoreCase) -> None:
        line_up(case, B, kind="give")
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


class TestMove:
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

    def test_an_entry_that_nobody_can_read_is_passed_over_and_kept(self, plain_case: RedisCase) -> None:
        line_up(plain_case, B, C)
        plain_case.client.hset(plain_case.key(part="parked"), B, "what?")
        assert plain_case.store.release("n", A).released
        assert (plain_case.holder(), plain_case.pushed(), in_line(plain_case)) == (C, [C], [])
        assert plain_case.client.hget(plain_case.key(part="parked"), B) == b"what?"
        park(plain_case, B)
        assert in_line(plain_case) == [B], "delivered again, it waits as any other"

    @pytest.mark.parametrize("part", ["line", "parked"])
    def test_a_key_of_another_type_is_told_and_keeps_nobody_else(
        self, plain_case: RedisCase, part: str
    ) -> None:
        for name in ("n", "other"):
            plain_case.take(A, name=name)
            plain_case.store.park(name, B, Entry("push", plain_case.queue(), 30.0, IN_LINE, name), nonce=name)
        plain_case.client.set(plain_case.key(part=part), "another program's")
        plain_case.foreign = (plain_case.key(part=part),)
        with pytest.raises(LockKeyError):
            park(plain_case, C)
        assert plain_case.store.hand_on("n", A, D, 30.0, facts=ABOUT).released
        assert plain_case.store.release("n", D).released
        assert plain_case.store.release("other", A).released
        assert plain_case.pushed() == ["other"]

    def test_a_look_tells_of_a_line_of_another_type_and_goes_on(self, plain_case: RedisCase) -> None:
        for name in ("n", "other"):
            plain_case.take(A, name=name)
            plain_case.store.park(name, B, Entry("push", plain_case.queue(), 30.0, IN_LINE, name), nonce=name)
            plain_case.expire(name)
            plain_case.make_due(name)
        plain_case.client.set(plain_case.key(part="line"), "another program's")
        plain_case.foreign = (plain_case.key(part="line"),)
        ((name, words),) = plain_case.store.sweep().broken
        assert (name, "WRONGTYPE" in words) == ("n", True)
        assert plain_case.pushed() == ["other"]
        plain_case.store.release("other", B)
        assert plain_case.store.sweep().next_in > 4.0

    def test_nobody_leaves_a_line_of_another_type(self, plain_case: RedisCase) -> None:
        """What is parked stays, to be looked at."""
        line_up(plain_case, B)
        plain_case.client.set(plain_case.key(part="line"), "theirs", px=60_000)
        with pytest.raises(LockKeyError):
            plain_case.store.leave("n", B)
        assert plain_case.client.hexists(plain_case.key(part="parked"), B)

    def test_where_a_queue_takes_nothing_its_message_stays_in_line(self, plain_case: RedisCase) -> None:
        """And the lock stays free, for a publisher; its line is looked at a minute later."""
        plain_case.client.set(plain_case.queue(), "no list")
        line_up(plain_case, B)
        assert plain_case.store.release("n", A).released
        assert (plain_case.holder(), in_line(plain_case)) == (None, [B])
        assert 50.0 < plain_case.store.sweep().next_in <= 60.0
        plain_case.client.delete(plain_case.queue())
        look(plain_case)
        assert (plain_case.holder(), plain_case.pushed()) == (B, [B])


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

    def test_a_message_that_is_published_among_processes_has_no_end(self, plain_case: RedisCase) -> None:
        """Also when it was handed the lock: its text would be lost."""
        plain_case.take(A)
        bell(plain_case, B)
        turn = Turn("claimed", "unclaimed", "parked", IN_LINE, 0, 10, hand_off=30.0)
        queue = plain_case.queue()
        answer = plain_case.store.claim_and_push("n", C, 60.0, queue=queue, text="claimed", turn=turn)
        assert isinstance(answer, Parked)
        assert ends(plain_case) == {-1}
        plain_case.store.leave("n", B)
        plain_case.store.release("n", A)
        bell(plain_case, D)
        assert ends(plain_case) == {-1}

    def test_a_line_of_nothing_but_processes_ends_after_the_last_sign_of_life(
        self, plain_case: RedisCase
    ) -> None:
        plain_case.take(A)
        assert bell(plain_case, B).word == "parked"
        assert ends(plain_case) == {WITHIN + OUTLIVED}
        before = plain_case.keys()
        for key in before:
            if plain_case.client.pttl(key) > 5_000:  # type: ignore[operator]
                plain_case.client.pexpire(key, 5_000)
        assert bell(plain_case, B).word == "repeated"
        assert ends(plain_case) == {WITHIN + OUTLIVED}
        park(plain_case, C, "ring", within=1.0)
        assert ends(plain_case) == {WITHIN + OUTLIVED}


class TestOutOfMemory:
    @pytest.fixture
    def full(self) -> Iterator[RedisCase]:
        """A store on a server of its own, without memory from now on; B and C wait for A."""
        with EmbeddedServer(port=0) as server, closing(RedisCase(server.redis_url)) as case:
            line_up(case, B, C)
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
