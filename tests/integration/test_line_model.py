"""Random histories of one lock and its line, in memory and on a server, against a model of a page.

Each step asks the store and the model for the same, and compares all that can be seen afterwards.
"""

import itertools
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from celery_redislock.store.store import Entry, Grant, Promotion
from tests.stores import ABOUT, MemoryCase, RedisCase, StoreCase

#: Where what is given is published from, and how many may wait.
HOME, MOST = "amqp:here", 5

IN_LINE = '{"state":"queued","line":1}'

#: Any of those that wait, by a number.
any_of_them = st.integers(0, MOST)


#: What may be asked of a park.
PARKS: dict[str, Any] = {
    "kind": st.sampled_from(["push", "give", "give", "hold", "ring", "ring"]),
    "band": st.sampled_from([0, 9, 255]),
    "how": st.sampled_from(["ask", "behind", "refused"]),
    "place": st.sampled_from(["first", "last", "before"]),
    "which": any_of_them,
    "who": st.sampled_from(["fresh", "fresh", "fresh", "holder", "waiting"]),
}


class Waiting(NamedTuple):
    """One that waits."""

    band: int
    id: str
    kind: str


class Model:
    """What a lock and its line are: who holds, who waits in order, and what was sent to whom.

    Who was handed the lock keeps its place among those who wait until its message has started.
    """

    def __init__(self) -> None:
        self.holder: str | None = None
        self.places: list[Waiting] = []
        self.handed_on: set[str] = set()
        self.sends: Counter[str] = Counter()
        self.pushed: list[str] = []
        self.given: list[str] = []
        self.gone: list[str] = []
        self.late: set[str] = set()
        #: Whether a message has waited since nobody did.
        self.is_data = False

    @property
    def line(self) -> list[Waiting]:
        """Who waits, in order."""
        return [each for each in self.places if each.id not in self.handed_on]

    def ids(self) -> list[str]:
        """Who waits, in order."""
        return [each.id for each in self.line]

    @property
    def living(self) -> list[str]:
        """The processes that wait, in order."""
        return [each.id for each in self.line if each.kind == "ring" and each.id not in self.late]

    def take_out(self, id_: str) -> bool:
        """Let one leave, if it waits or was handed the lock."""
        if id_ not in [each.id for each in self.places]:
            return False
        self.places = [each for each in self.places if each.id != id_]
        self.handed_on.discard(id_)
        del self.sends[id_]
        self.gone.append(id_)
        return True

    def bury(self) -> None:
        """Let those leave that are first and no process waits for any more."""
        while self.line and self.line[0].id in self.late:
            self.take_out(self.line[0].id)

    def put(self, new: Waiting, at: int) -> None:
        """Let one have this place."""
        self.is_data = new.kind != "ring" or (self.is_data and bool(self.places))
        rest = [each for each in self.places if each.id != new.id]
        self.places = [*rest[:at], new, *rest[at:]]

    def hand_over(self, id_: str, *, sent: bool) -> None:
        """Keep one apart until it starts."""
        self.handed_on.add(id_)
        self.sends[id_] += sent

    def bring_back(self, id_: str) -> None:
        """Let one wait again that has not started: in its place, and at the end after each third send."""
        self.handed_on.remove(id_)
        (back,) = (each for each in self.places if each.id == id_)
        if self.sends[id_] and self.sends[id_] % 3 == 0:
            self.put(back._replace(band=self.places[-1].band), len(self.places))

    def bring_all_back(self) -> None:
        """Let those wait again that hold the lock no more."""
        for id_ in [each.id for each in self.places if each.id in self.handed_on - {self.holder}]:
            self.bring_back(id_)

    def wake(self, only: str | None = None, *, gives: bool = True) -> str | None:
        """Serve the first, or this one; return its id where it is on its way.

        ``gives``: whoever asks publishes it.
        """
        if only is None:
            self.bring_all_back()
            self.bury()
        first = next((each for each in self.line if only in {None, each.id}), None)
        if first is None or (first.kind == "give" and not gives):
            return None
        self.holder = first.id
        if first.kind == "give":
            self.given.append(first.id)
            return None
        if first.kind == "push":
            is_there = self.sends[first.id] > 0
            self.pushed += [] if is_there else [first.id]
            self.hand_over(first.id, sent=not is_there)
        else:
            self.take_out(first.id)
        return first.id

    def may_start(self, claim: str) -> bool:
        """Return whether the lock is free, and nobody goes before this one."""
        if self.holder is None:
            self.bring_all_back()
        return self.holder is None and claim in (self.ids()[:1] or [claim])

    def park(self, new: Waiting, how: str, place: str) -> str:
        """Return the word of the answer."""
        is_own = self.holder == new.id
        if new.id in self.handed_on and not is_own:
            self.bring_back(new.id)
        if new.id in self.ids() or (new.id in self.handed_on and how == "refused"):
            self.places = [
                each._replace(kind=new.kind) if each.id == new.id else each for each in self.places
            ]
            self.late.discard(new.id)
            return "repeated"
        if how != "refused" and (is_own or (how == "ask" and self.holder is None and not self.places)):
            return "runs"
        if len(self.line) >= MOST and not is_own:
            return "full"
        # Before one that waits, and behind who was handed the lock before that; or behind its band.
        others = [each for each in self.line if place == each.id] or [
            each for each in self.line if place != "last" and each.band == new.band
        ]
        if others:
            self.put(new._replace(band=others[0].band), self.places.index(others[0]))
        else:
            self.put(new, len([each for each in self.places if each.band <= new.band]))
        woken = None
        if is_own:
            woken = self.wake(new.id)
        elif self.holder is None and how != "behind":
            woken = self.wake()
        return "woken" if woken == new.id else "parked"

    def release(self, token: str) -> None:
        """End a hold, or find that there is none; its message is not sent again."""
        self.take_out(token)
        if self.holder == token:
            self.holder = None
        if self.holder is None:
            self.wake()

    def hand_on(self, old: str, new: str) -> None:
        """Turn a hold into another's, or find that there is none."""
        if self.holder == old:
            self.holder = new
            if new == old:
                self.take_out(old)
            elif new in self.ids():
                self.wake(new)
        elif self.holder is None:
            self.wake()

    def move(self, id_: str, place: str) -> bool:
        """Return whether it is in line."""
        moved = next((each for each in self.line if each.id == id_), None)
        if moved is None:
            return False
        first, last = self.line[0], self.line[-1]
        if place == "first" and moved is not first:
            self.put(moved._replace(band=first.band), self.places.index(first))
        elif place == "last" and moved is not last:
            self.put(moved._replace(band=self.places[-1].band), len(self.places))
        return True

    def leave(self, id_: str, *, unless_held: bool = False) -> str:
        """Return the word of the answer."""
        was_sent = id_ in self.handed_on
        if unless_held and self.holder == id_ and not was_sent:
            return "kept"
        was_there = self.take_out(id_)
        if self.holder == id_:
            self.holder = None
            self.wake()
            return "left" if was_sent and unless_held else "released"
        return "left" if was_there else "missing"

    def sweep(self) -> None:
        """Let those wait again that hold the lock no more; serve the first. Who is dead leaves."""
        for id_ in self.late & {each.id for each in self.line} if self.holder else ():
            self.take_out(id_)
        self.bring_all_back()
        if self.holder is None:
            self.wake()

    def settle(self, id_: str, *, sent: bool) -> bool:
        """Return whether it was in line."""
        was_there = self.holder == id_ and id_ in self.ids()
        if was_there:
            self.hand_over(id_, sent=sent)
        if self.holder is None:
            self.wake()
        return was_there


class Histories(RuleBasedStateMachine):
    """One history."""

    make_case: Callable[[], StoreCase]

    def __init__(self) -> None:
        super().__init__()
        self.case = type(self).make_case()
        self.model = Model()
        self.given: list[str] = []
        store: Any = getattr(self.case, "memory", None) or getattr(self.case, "redis", None)
        # Without the check of all keys after each verb, which the contract's tests make.
        self.store = self.case.store = store
        store.home = HOME
        store.on_promoted = self.published
        self.numbers = itertools.count()
        self.repeat: Callable[[], object] | None = None

    def published(self, promoted: list[Promotion]) -> None:
        self.given += [each.id for each in promoted]
        assert [each.text.decode() for each in promoted] == [each.id for each in promoted]

    def teardown(self) -> None:
        if isinstance(self.case, RedisCase):
            self.case.close()

    def fresh(self) -> str:
        # Ids that come later are not always larger.
        number = next(self.numbers)
        return f"job-{number * 7 % 10}{number}/1"

    def do(self, step: Callable[[], object]) -> None:
        """Do it, and let it be repeated."""
        step()
        self.repeat = step

    # --- steps -----------------------------------------------------------------------------------

    @rule(starts=st.booleans())
    def acquire(self, starts: bool) -> None:
        """Nobody goes before who waits, who is served at once where it is not a run that asks."""
        token = self.fresh()
        is_free = self.model.holder is None
        self.repeat = None

        granted = isinstance(self.case.take(token, starts_run=starts), Grant)
        if is_free and not starts:
            self.model.bury()
        assert granted == (is_free and not self.model.places)
        if granted:
            self.model.holder = token
        elif is_free and starts:
            self.model.bring_all_back()
        elif is_free:
            self.model.wake(gives=False)

    @rule(which=any_of_them)
    def start(self, which: int) -> None:
        """The message starts of the holder, if that is a claim; or of one whose claim may have ended."""
        claims = [self.model.holder or self.fresh(), *sorted(self.model.handed_on), *self.model.ids()[:1]]
        claim = claims[min(which, len(claims) - 1)]
        token = self.fresh()
        expected = claim == self.model.holder or self.model.may_start(claim)
        sends = self.model.sends[claim] + (claim in self.model.ids())

        answer = self.case.take(token, starts_run=True, instead_of=claim)

        self.repeat = None
        assert isinstance(answer, Grant) == expected
        if isinstance(answer, Grant):
            assert answer.sent_again == (sends > 1)
            self.model.take_out(claim)
            self.model.holder = token

    def one_of_them(self, which: int) -> str:
        """The holder, one that waits or was handed the lock, or nobody."""
        places = [each.id for each in self.model.places]
        return [*places, self.model.holder or self.fresh(), self.fresh()][min(which, len(places) + 1)]

    @rule(is_holder=st.sampled_from([True, True, False]), which=any_of_them)
    def release(self, is_holder: bool, which: int) -> None:
        token = (is_holder and self.model.holder) or self.one_of_them(which)

        def step() -> None:
            assert self.store.release("n", token).released == (self.model.holder == token)
            self.model.release(token)

        self.do(step)

    @rule(is_holder=st.sampled_from([True, True, False]), heir=any_of_them)
    def hand_on(self, is_holder: bool, heir: int) -> None:
        """To a message that waits already, or to another; a lease, not the claim of one that was given."""
        old = (is_holder and self.model.holder) or self.fresh()
        heirs = [*self.model.ids(), old, self.fresh()]
        new = heirs[min(heir, len(heirs) - 1)]
        if new != old in [each.id for each in self.model.places]:
            return

        def step() -> None:
            is_old = self.model.holder in {old, new}
            assert self.store.hand_on("n", old, new, 30.0, facts=ABOUT).released == is_old
            self.model.hand_on(old, new)

        self.do(step)

    @precondition(lambda self: self.model.line)
    @rule(is_holder=st.booleans())
    def force(self, is_holder: bool) -> None:
        token = (is_holder and self.model.holder) or self.fresh()

        def step() -> None:
            was_held = self.model.holder == token
            assert self.store.force_release("n", expected=token).released == was_held
            if was_held:
                self.model.holder = None
                self.model.wake()

        self.do(step)

    def park(self, kind: str, band: int, how: str, place: str, which: int, who: str) -> None:
        ids = [each.id for each in self.model.places]
        one_of_them = ids[which] if which < len(ids) else "nobody/1"
        id_ = {"holder": self.model.holder, "waiting": one_of_them}.get(who) or self.fresh()
        if id_ in {"nobody/1", *self.model.gone}:
            id_ = self.fresh()
        place = one_of_them if place == "before" else place
        kinds = {each.id: each.kind for each in self.model.places}
        if "ring" in {kind, kinds.get(id_)}:
            kind = kinds.get(id_, "ring")  # a process is no message, and how it waits is always the same
            how = "refused"
        within = 3600.0 if kind == "ring" else None
        to = {"push": self.case.queue(), "give": HOME, "hold": "", "ring": self.case.queue("bell")}[kind]
        entry = Entry(kind, to, 30.0, IN_LINE, id_)
        nonce = secrets.token_hex(8)
        expected = self.model.park(Waiting(band, id_, kind), how, place)

        def ask() -> str:
            return self.store.park(
                "n", id_, entry, nonce=nonce, how=how, band=band, place=place, most=MOST, within=within
            ).word

        assert ask() == expected
        self.repeat = None
        if expected in {"parked", "woken"} and kind != "ring":
            self.repeat = lambda: _expect(ask() == "repeated")

    # Three more of it: most histories would else be of empty lines.
    park_one = rule(**PARKS)(park)
    park_another = rule(**PARKS)(park)
    park_more = rule(**PARKS)(park)

    @precondition(lambda self: self.model.living)
    @rule(which=any_of_them)
    def pause(self, which: int) -> None:
        """A process that waits gives no sign of life for longer than it may."""
        id_ = self.model.living[which % len(self.model.living)]
        self.case.make_late(id_)
        self.model.late.add(id_)
        self.repeat = None

    @precondition(lambda self: self.model.places)
    @rule(which=any_of_them, place=st.sampled_from(["first", "last"]))
    def move(self, which: int, place: str) -> None:
        id_ = self.one_of_them(which)

        def step() -> None:
            expected = self.model.move(id_, place)
            assert self.store.move("n", id_, place) == expected

        self.do(step)

    @precondition(lambda self: self.model.places)
    @rule(which=any_of_them, unless_held=st.booleans())
    def leave(self, which: int, unless_held: bool) -> None:
        id_ = self.one_of_them(which)

        def step() -> None:
            expected = self.model.leave(id_, unless_held=unless_held)
            assert self.store.leave("n", id_, unless_held=unless_held)[0] == expected

        self.do(step)

    @precondition(lambda self: self.model.given)
    @rule(which=st.sampled_from([1, 1, 2]), sent=st.sampled_from([True, True, False]))
    def settle(self, which: int, sent: bool) -> None:
        """Not published, where it may still be there."""
        id_ = self.model.given[-min(which, len(self.model.given))]

        def step() -> None:
            expected = self.model.settle(id_, sent=sent)
            assert self.store.settle("n", id_, 30.0, sent=sent) == expected

        self.do(step)

    @precondition(lambda self: self.model.places)
    @rule()
    def sweep(self) -> None:
        """What was pushed counts as there: nobody takes it from its queue."""

        def step() -> None:
            if "n" in self.case.lines():
                self.case.make_due()
            held = self.store.sweep().held
            if self.model.places:
                assert [hold.token for hold in held] == [self.model.holder] * (self.model.holder is not None)
            self.model.sweep()

        self.do(step)

    @precondition(lambda self: self.model.places and self.model.holder is not None)
    @rule()
    def expire(self) -> None:
        """Nobody is told."""
        self.case.expire()
        self.model.holder = None
        self.repeat = None  # memory's clock has passed the time in which a park may be repeated

    @precondition(lambda self: self.repeat is not None)
    @rule()
    def repeat_the_last(self) -> None:
        """As a process does whose answer got lost."""
        assert self.repeat is not None
        self.repeat()

    @precondition(lambda self: self.repeat is not None)
    @rule()
    def repeat_it(self) -> None:
        """Often: it says most."""
        self.repeat_the_last()

    @precondition(lambda self: self.model.holder in self.model.ids())
    @rule()
    def start_what_was_given(self) -> None:
        """Often: before it is settled."""
        self.start(0)

    @precondition(lambda self: self.model.holder in [each.id for each in self.model.places])
    @rule()
    def lose_what_was_handed_on(self) -> None:
        """Often: its message is nowhere."""
        self.expire()

    # --- what is true after each of them ---------------------------------------------------------

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        """One holds at most, who waits is in order, and a line is looked at, also one whose lock is free.

        A token holds or waits, but for one that was given, and whose publisher has not settled that.
        """
        holder = self.case.holder()
        waiting = [waiter.id for waiter in self.store.waiting("n")[1]]
        handed_on = [(waiter.id, waiter.sends) for waiter in self.store.waiting("n", handed_on=True)[1]]
        assert holder == self.model.holder
        assert waiting == self.model.ids()
        assert handed_on == [
            (each.id, self.model.sends[each.id])
            for each in self.model.places
            if each.id in self.model.handed_on
        ]
        assert self.case.pushed() == self.model.pushed
        assert self.given == self.model.given
        # A look that lets the last one go leaves the name to the next.
        assert self.case.lines() == ["n"] or not self.model.places
        assert self.case.lines() in ([], ["n"])
        if holder in waiting:
            assert holder in self.given

    @invariant()
    def a_line_of_nothing_but_processes_ends_and_no_other_one(self) -> None:
        """What a message waits in has no end, and neither has what keeps one that was handed the lock."""
        if not isinstance(self.case, RedisCase) or not self.model.places:
            return
        keys = [self.case.key(part=part) for part in ("line", "parked", "sent", "until")]
        ends = [
            end for key in [*keys, f"{self.case.prefix}:lines"] if (end := self.case.client.pttl(key)) != -2
        ]
        assert {end == -1 for end in ends[:-1]} == {self.model.is_data}
        assert ends[-1] == -1 or not self.model.is_data

    @invariant()
    def everybody_leaves_once(self) -> None:
        for left in (self.case.pushed(), self.model.gone):
            assert len(left) == len(set(left))

    @invariant()
    def a_band_is_served_before_the_next(self) -> None:
        bands = [each.band for each in self.model.places]
        assert bands == sorted(bands)


def _expect(is_so: bool) -> None:
    assert is_so


@pytest.mark.parametrize(("where", "count"), [("memory", 150), ("embedded", 150)])
def test_every_history_of_a_line_is_the_models(where: str, count: int, redis_url: str) -> None:
    """One holder at most; who waits is served once, in order; and no line is forgotten."""
    make: Callable[[], StoreCase] = MemoryCase if where == "memory" else lambda: RedisCase(redis_url)
    histories = type("Histories", (Histories,), {"make_case": staticmethod(make)})
    # The same histories each time; for others change the count, or derandomize.
    settings = hypothesis.settings(
        max_examples=count,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run_state_machine_as_test(histories, settings=settings)  # type: ignore[no-untyped-call]
