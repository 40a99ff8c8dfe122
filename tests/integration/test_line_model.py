"""Random histories of one lock and its line, in memory and on a server, against a model of a page.

Each step asks the store and the model for the same, and compares all that can be seen afterwards.
"""

import itertools
import secrets
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
    "kind": st.sampled_from(["push", "give", "give", "hold"]),
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
    """What a lock and its line are: who holds, who waits in order, and what was sent to whom."""

    def __init__(self) -> None:
        self.holder: str | None = None
        self.line: list[Waiting] = []
        self.pushed: list[str] = []
        self.given: list[str] = []
        self.gone: list[str] = []

    def ids(self) -> list[str]:
        """Who waits, in order."""
        return [each.id for each in self.line]

    def take_out(self, id_: str) -> bool:
        """Let one leave the line, if it is there."""
        if id_ not in self.ids():
            return False
        self.line = [each for each in self.line if each.id != id_]
        self.gone.append(id_)
        return True

    def wake(self, only: str | None = None) -> str | None:
        """Serve the first, or this one; return its id where it is on its way."""
        if not self.line:
            return None
        first = next(each for each in self.line if only in {None, each.id})
        self.holder = first.id
        if first.kind == "give":
            self.given.append(first.id)
            return None
        if first.kind == "push":
            self.pushed.append(first.id)
        self.take_out(first.id)
        return first.id

    def park(self, new: Waiting, how: str, place: str) -> str:
        """Return the word of the answer."""
        if new.id in self.ids():
            return "repeated"
        is_own = self.holder == new.id
        if how != "refused" and (is_own or (how == "ask" and self.holder is None and not self.line)):
            return "runs"
        if len(self.line) >= MOST and not is_own:
            return "full"
        if place in self.ids():
            at = self.ids().index(place)
            new = new._replace(band=self.line[at].band)
        else:
            before = [each for each in self.line if each.band < new.band + (place == "last")]
            at = len(before)
        self.line.insert(at, new)
        woken = None
        if is_own:
            woken = self.wake(new.id)
        elif self.holder is None and how != "behind":
            woken = self.wake()
        return "woken" if woken == new.id else "parked"

    def release(self, token: str) -> None:
        """End a hold, or find that there is none."""
        if self.holder == token:
            self.take_out(token)
            self.holder = None
        if self.holder is None:
            self.wake()

    def hand_on(self, old: str, new: str) -> None:
        """Turn a hold into another's, or find that there is none."""
        if self.holder == old:
            self.holder = new
            if new in self.ids():
                self.wake(new)
        elif self.holder is None:
            self.wake()

    def move(self, id_: str, place: str) -> bool:
        """Return whether it is in line."""
        moved = next((each for each in self.line if each.id == id_), None)
        if moved is not None:
            rest = [each for each in self.line if each is not moved]
            band = self.line[0 if place == "first" else -1].band
            rest.insert(0 if place == "first" else len(rest), moved._replace(band=band))
            self.line = rest
        return moved is not None

    def leave(self, id_: str, *, unless_held: bool = False) -> str:
        """Return the word of the answer."""
        if unless_held and self.holder == id_:
            return "kept"
        was_there = self.take_out(id_)
        if self.holder == id_:
            self.holder = None
            self.wake()
            return "released"
        return "left" if was_there else "missing"


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
        assert granted == (is_free and not self.model.line)
        if granted:
            self.model.holder = token
        elif is_free and not starts and self.model.line[0].kind != "give":
            self.model.wake()

    @precondition(lambda self: self.model.holder is not None)
    @rule()
    def start(self) -> None:
        """The message of the holder, if it is a claim, starts."""
        claim = self.model.holder
        token = self.fresh()
        self.repeat = None

        assert self.case.take(token, starts_run=True, instead_of=claim).taken_over
        self.model.take_out(claim or "")
        self.model.holder = token

    @rule(is_holder=st.sampled_from([True, True, False]))
    def release(self, is_holder: bool) -> None:
        token = (is_holder and self.model.holder) or self.fresh()

        def step() -> None:
            assert self.store.release("n", token).released == (self.model.holder == token)
            self.model.release(token)

        self.do(step)

    @rule(is_holder=st.sampled_from([True, True, False]), heir=any_of_them)
    def hand_on(self, is_holder: bool, heir: int) -> None:
        """To a message that waits already, or to another; a lease, not the claim of one that was given."""
        old = (is_holder and self.model.holder) or self.fresh()
        if old in self.model.ids():
            return
        new = self.model.ids()[heir] if heir < len(self.model.line) else self.fresh()

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
        ids = self.model.ids()
        one_of_them = ids[which] if which < len(ids) else "nobody/1"
        id_ = {"holder": self.model.holder, "waiting": one_of_them}.get(who) or self.fresh()
        if id_ in {"nobody/1", *self.model.gone}:
            id_ = self.fresh()
        place = one_of_them if place == "before" else place
        to = {"push": self.case.queue(), "give": HOME, "hold": ""}[kind]
        entry = Entry(kind, to, 30.0, IN_LINE, id_)
        nonce = secrets.token_hex(8)
        expected = self.model.park(Waiting(band, id_, kind), how, place)

        def ask() -> str:
            return self.store.park(
                "n", id_, entry, nonce=nonce, how=how, band=band, place=place, most=MOST
            ).word

        assert ask() == expected
        self.repeat = None
        if expected in {"parked", "woken"}:
            self.repeat = lambda: _expect(ask() == "repeated")

    # Three more of it: most histories would else be of empty lines.
    park_one = rule(**PARKS)(park)
    park_another = rule(**PARKS)(park)
    park_more = rule(**PARKS)(park)

    @precondition(lambda self: self.model.line)
    @rule(which=any_of_them, place=st.sampled_from(["first", "last"]))
    def move(self, which: int, place: str) -> None:
        ids = [*self.model.ids(), self.model.holder or self.fresh()]
        id_ = ids[min(which, len(ids) - 1)]

        def step() -> None:
            expected = self.model.move(id_, place)
            assert self.store.move("n", id_, place) == expected

        self.do(step)

    @precondition(lambda self: self.model.line)
    @rule(which=any_of_them, unless_held=st.booleans())
    def leave(self, which: int, unless_held: bool) -> None:
        ids = [*self.model.ids(), self.model.holder or self.fresh()]
        id_ = ids[min(which, len(ids) - 1)]

        def step() -> None:
            expected = self.model.leave(id_, unless_held=unless_held)
            assert self.store.leave("n", id_, unless_held=unless_held)[0] == expected

        self.do(step)

    @precondition(lambda self: self.model.given)
    @rule()
    def settle(self) -> None:
        id_ = self.model.given[-1]

        def step() -> None:
            is_there = id_ in self.model.ids()
            assert self.store.settle("n", id_, 30.0) == is_there
            self.model.take_out(id_)
            if self.model.holder is None:
                self.model.wake()

        self.do(step)

    @precondition(lambda self: self.model.line)
    @rule()
    def sweep(self) -> None:
        def step() -> None:
            if "n" in self.case.lines():
                self.case.make_due()
            held = self.store.sweep().held
            if self.model.line:
                assert [hold.token for hold in held] == [self.model.holder] * (self.model.holder is not None)
            if self.model.holder is None:
                self.model.wake()

        self.do(step)

    @precondition(lambda self: self.model.line and self.model.holder is not None)
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
        self.start()

    # --- what is true after each of them ---------------------------------------------------------

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        """One holds at most, who waits is in order, and a line is looked at, also one whose lock is free.

        A token holds or waits, but for one that was given, and whose publisher has not settled that.
        """
        holder = self.case.holder()
        waiting = {waiter.id: waiter.kind for waiter in self.store.waiting("n")[1]}
        assert holder == self.model.holder
        assert [*waiting] == self.model.ids()
        assert self.case.pushed() == self.model.pushed
        assert self.given == self.model.given
        assert not waiting or self.case.lines() == ["n"]
        if holder in waiting:
            assert waiting[holder] == "give"
            assert holder in self.given

    @invariant()
    def everybody_leaves_once(self) -> None:
        for left in (self.case.pushed(), self.model.gone):
            assert len(left) == len(set(left))

    @invariant()
    def a_band_is_served_before_the_next(self) -> None:
        bands = [each.band for each in self.model.line]
        assert bands == sorted(bands)


def _expect(is_so: bool) -> None:
    assert is_so


@pytest.mark.parametrize(("where", "count"), [("memory", 150), ("embedded", 50)])
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
