"""Random histories of a lock that several may hold, in memory and on a server, against a model of a page.

Holders and waiters know limits of 1, 2 and 3, none, or one that no number reaches, as those that read do.
Some take two places. A limit may be set, permits expire one by one, and who is alone may let others in.
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

from celery_redislock.locks.readwrite import READERS
from celery_redislock.store.store import Entry, Grant, Promotion, Refusal, Term, owner_of
from tests.integration.test_store_limits import HOME, facts
from tests.stores import MemoryCase, RedisCase, StoreCase

#: What a process knows: no limit at all, as a task without one, or so many.
limits = st.sampled_from([1, 2, 3, 3, None, READERS])
#: How many places one takes; a claim of a task takes one.
weights = st.sampled_from([1, 1, 2])
any_of_them = st.integers(0, 4)

#: What may be asked of a park.
PARKS: dict[str, Any] = {
    "limit": limits,
    "weight": weights,
    "kind": st.sampled_from(["push", "push", "give"]),
    "how": st.sampled_from(["ask", "refused"]),
    #: Seldom another delivery of what holds the lock.
    "copy_of": st.sampled_from([0, 9, 9, 9]),
}


def places(weight: int) -> dict[str, int]:
    """What one says that takes several places."""
    return {"permits": weight} if weight > 1 else {}


class Waiting(NamedTuple):
    """One that waits."""

    id: str
    limit: int | None
    kind: str
    weight: int


class Model:
    """Who holds, under which limit; who waits in order; and what was sent.

    Who was handed the lock, and has not started, keeps its place; if its hold ends, it waits again.
    """

    def __init__(self) -> None:
        self.holders: dict[str, int | None] = {}
        self.running: set[str] = set()
        self.weights: dict[str, int] = {}
        self.alone: str | None = None
        self.places: list[Waiting] = []
        self.handed_on: set[str] = set()
        self.sends: Counter[str] = Counter()
        self.sent: list[str] = []
        self.told: int | None = None

    @property
    def line(self) -> list[Waiting]:
        """Who waits, in order."""
        return [each for each in self.places if each.id not in self.handed_on]

    def waiting(self) -> list[Waiting]:
        """Those in line who hold nothing, nor are another delivery of what holds it."""
        return [each for each in self.line if not self.is_here(each.id)]

    def hand_over(self, id_: str, *, sent: bool) -> None:
        """Keep one apart until it starts."""
        self.handed_on.add(id_)
        self.sends[id_] += sent

    def room(self, limit: int | None) -> int:
        """How many more that know this limit may hold it."""
        if self.alone:
            return 0
        if limit is None:
            return int(not self.holders)
        most = self.told or min([limit, *(each or 1 for each in self.holders.values())])
        return most - sum(self.weights.get(token, 1) for token in self.holders)

    def is_here(self, id_: str) -> bool:
        """Whether it holds the lock, or another delivery of it does."""
        return owner_of(id_) in map(owner_of, self.holders)

    def grant(self, token: str, limit: int | None, weight: int = 1) -> None:
        """Let one hold it: alone, where it knows of no limit."""
        if limit is None:
            self.alone = token
        self.holders[token] = limit
        self.weights[token] = weight

    def may_run(self, claim: str, limit: int | None) -> bool:
        """Whether one that has a place may run beside those that run already."""
        beside = self.holders.keys() - {claim}
        known = [each or 1 for each in (limit, *map(self.holders.get, beside))]
        most = self.told if self.told and limit else min(known)
        return not beside or sum(self.weights.get(each, 1) for each in beside & self.running) < most

    def end(self, token: str) -> bool:
        """End a hold, and serve who waits."""
        was_held = token in self.holders
        self.holders.pop(token, None)
        self.alone = None if self.alone == token else self.alone
        self.handed_on.discard(token)
        return was_held

    def wake(self, *, gives: bool = True) -> None:
        """Serve those at the head, as long as there is room; one that is to be given ends it.

        ``gives``: whoever asks publishes it.
        """
        while self.waiting():
            first = self.waiting()[0]
            if self.room(first.limit) < first.weight or (first.kind == "give" and not gives):
                return
            self.grant(first.id, first.limit, first.weight)
            # What was pushed is there yet: nobody takes it from its queue.
            is_there = first.kind == "push" and self.sends[first.id] > 0
            self.sent += [] if is_there else [first.id]
            if first.kind == "give":
                return
            self.hand_over(first.id, sent=not is_there)

    def settle(self, id_: str, *, sent: bool) -> bool:
        """Return whether it was in line; a late answer settles one that was given again meanwhile, too."""
        was_there = id_ in self.holders and id_ in [each.id for each in self.line]
        if was_there:
            self.hand_over(id_, sent=sent)
        if not self.alone:
            self.wake()
        return was_there

    def take_out(self, id_: str) -> bool:
        """Let one leave, if it waits or was handed the lock."""
        found = [each for each in self.places if each.id == id_]
        self.places = [each for each in self.places if each.id != id_]
        self.handed_on.discard(id_)
        del self.sends[id_]
        return bool(found)


class Histories(RuleBasedStateMachine):
    """One history."""

    make_case: Callable[[], StoreCase]
    #: How often each request arrives: twice, where its answer got lost.
    times = 1

    def __init__(self) -> None:
        super().__init__()
        self.case = type(self).make_case()
        self.model = Model()
        self.given: list[str] = []
        store: Any = getattr(self.case, "memory", None) or getattr(self.case, "redis", None)
        self.store = self.case.store = store
        store.home = HOME
        store.on_promoted = self.published
        self.numbers = itertools.count()

    def published(self, promoted: list[Promotion]) -> None:
        self.given += [each.id for each in promoted]

    def teardown(self) -> None:
        if isinstance(self.case, RedisCase):
            self.case.close()

    def ask(self, verb: str, *args: Any, **options: Any) -> Any:
        """Send a request as often as it arrives; return the first answer."""
        answers = [getattr(self.store, verb)(*args, **options) for _ in range(self.times)]
        return answers[0]

    def wake(self) -> None:
        """Whoever ends a hold, settles or sets a limit looks at the line each time."""
        for _ in range(self.times):
            self.model.wake()

    def fresh(self) -> str:
        return f"job-{next(self.numbers)}/1"

    def one_of(self, which: int) -> str:
        """A holder, or one that is none."""
        return [*sorted(self.model.holders), self.fresh()][min(which, len(self.model.holders))]

    @rule(limit=limits, weight=weights, starts=st.booleans())
    def acquire(self, limit: int | None, weight: int, starts: bool) -> None:
        token = self.fresh()
        weight = weight if limit else 1
        waiting = self.model.waiting()
        expected = self.model.room(limit) >= weight and not waiting
        if waiting and self.model.room(limit) >= weight and not starts and limit is None:
            # Who waits goes first, and needs nobody else to say so.
            self.model.wake(gives=False)
        said = facts(limit, state="running" if starts else "queued", **places(weight))
        answer = self.ask("acquire", "n", token, 30.0, facts=said, limit=limit, starts_run=starts)

        assert isinstance(answer, Grant) == expected
        if expected:
            self.model.grant(token, limit, weight)
        if expected and starts:
            self.model.running.add(token)

    @precondition(lambda self: self.model.waiting())
    @rule(limit=limits)
    def start_late(self, limit: int | None) -> None:
        """The message starts of one that holds the lock no more; nobody goes before the first."""
        first = self.model.waiting()[0]
        run = f"{first.id.partition('/')[0]}/{next(self.numbers)}0"
        said = facts(limit, line=1)
        sends = self.model.sends[first.id] + 1

        answer = self.store.acquire(
            "n", run, 30.0, facts=said, limit=limit, instead_of=first.id, starts_run=True
        )

        assert isinstance(answer, Grant) == (self.model.room(limit) >= 1)
        if isinstance(answer, Grant):
            assert answer.sent_again == (sends > 1)
            self.model.take_out(first.id)
            self.model.grant(run, limit)
            self.model.running.add(run)

    @precondition(lambda self: self.model.holders)
    @rule(which=any_of_them, limit=limits, kind=PARKS["kind"])
    def start(self, which: int, limit: int | None, kind: str) -> None:
        """The message of a holder starts; its worker may know another limit. Refused, it waits anew."""
        claim = self.one_of(which)
        if claim not in self.model.holders:
            return
        limit = None if self.model.alone == claim else limit
        run = f"{claim.partition('/')[0]}/{next(self.numbers)}0"
        sends = self.model.sends[claim] + (claim in [each.id for each in self.model.line])
        answer = self.ask(
            "acquire",
            "n",
            run,
            30.0,
            facts=facts(limit, line=1),
            limit=limit,
            instead_of=claim,
            starts_run=True,
        )

        may_run = self.model.may_run(claim, limit)
        was_alone = self.model.alone == claim
        if not may_run:
            assert isinstance(answer, Refusal)
            self.model.end(claim)
            self.model.running.discard(claim)
            self.park_it(claim, limit, 1, kind, "refused")
            return
        assert isinstance(answer, Grant)
        assert (answer.taken_over, answer.sent_again) == (True, sends > 1)
        del self.model.holders[claim]
        self.model.take_out(claim)
        self.model.running.add(run)
        self.model.holders[run] = limit
        self.model.alone = run if was_alone else self.model.alone

    @rule(which=any_of_them)
    def release(self, which: int) -> None:
        token = self.one_of(which)

        assert self.ask("release", "n", token).released == self.model.end(token)
        self.model.take_out(token)
        if not self.model.alone:
            self.wake()

    @precondition(lambda self: self.model.holders)
    @rule(which=any_of_them)
    def expire(self, which: int) -> None:
        """Nobody is told until somebody asks."""
        token = self.one_of(which)
        if token not in self.model.holders:
            return
        if self.model.alone:
            self.case.expire()
        else:
            self.case.expire_permit(token)
        self.model.end(token)

    @rule(which=any_of_them)
    def renew(self, which: int) -> None:
        token = self.one_of(which)
        is_there = token in self.model.holders

        assert (self.ask("renew", [Term("n", token, 30.0)]).renewed[0] is True) == is_there

    @precondition(lambda self: self.model.alone)
    @rule(limit=st.sampled_from([2, READERS]))
    def downgrade(self, limit: int) -> None:
        """The one that holds it alone lets others in."""
        token = self.model.alone or ""

        said = facts(limit, line=1)  # it may have been given, and not settled
        assert self.ask("downgrade", "n", token, 30.0, facts=said).released
        self.model.alone = None
        self.model.running.add(token)
        self.model.holders[token] = limit
        self.wake()

    def park(self, limit: int | None, weight: int, kind: str, how: str, copy_of: int) -> None:
        id_ = self.fresh()
        if copy_of < len(self.model.holders):
            id_ = f"{self.one_of(copy_of).partition('/')[0]}/{next(self.numbers)}1"
        self.park_it(id_, limit, weight if limit else 1, kind, how)

    def park_it(self, id_: str, limit: int | None, weight: int, kind: str, how: str) -> None:
        to = {"push": self.case.queue(), "give": HOME}[kind]
        entry = Entry(kind, to, 30.0, facts(limit, state="queued", line=1, **places(weight)), id_)
        has_room = self.model.room(limit) >= weight
        # Where nobody holds it, who asks for more than there is learns that from the request for the lock.
        runs = how == "ask" and (has_room or not self.model.holders) and not self.model.line

        was_there = id_ in [each.id for each in self.model.places]
        new = Waiting(id_, limit, kind, weight)
        word = self.ask("park", "n", id_, entry, nonce=secrets.token_hex(8), how=how).word
        if runs or was_there:
            assert word == ("runs" if runs else "repeated")
            self.model.places = [new if each.id == id_ else each for each in self.model.places]
            return
        self.model.places.append(new)
        if has_room or not self.model.holders:
            self.model.wake()
        assert word == ("parked" if id_ in [each.id for each in self.model.line] else "woken")

    park_one = rule(**PARKS)(park)
    park_another = rule(**PARKS)(park)

    @precondition(lambda self: self.model.places)
    @rule(which=any_of_them, unless_held=st.booleans())
    def leave(self, which: int, unless_held: bool) -> None:
        id_ = self.model.places[min(which, len(self.model.places) - 1)].id
        was_sent = id_ in self.model.handed_on

        word = self.ask("leave", "n", id_, unless_held=unless_held)[0]
        if unless_held and not was_sent and id_ in self.model.holders:
            assert word == "kept"
            return
        self.model.take_out(id_)
        is_left = id_ not in self.model.holders or (was_sent and unless_held)
        assert word == ("left" if is_left else "released")
        if self.model.end(id_):
            self.model.wake()

    @precondition(lambda self: self.given)
    @rule(sent=st.booleans())
    def settle(self, sent: bool) -> None:
        """Sent once at most: after each third one its place is another, which the model of a line knows."""
        id_ = self.given[-1]
        sent = sent and self.model.sends[id_] < 2
        expected = [self.model.settle(id_, sent=sent) for _ in range(self.times)]

        assert self.ask("settle", "n", id_, 30.0, sent=sent) == expected[0]

    @precondition(lambda self: self.model.places)
    @rule()
    def sweep(self) -> None:
        if "n" in self.case.lines():
            self.case.make_due()
        self.ask("sweep")
        if not self.model.alone:
            self.model.wake()

    @rule(told=st.sampled_from([1, 2, 4, None]))
    def set_limit(self, told: int | None) -> None:
        self.ask("limit", "n", told, ttl=600.0)
        self.model.told = told
        self.wake()

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        """One whose hold has ended waits again when somebody asks for anything."""
        waiting = [waiter.id for waiter in self.store.waiting("n")[1]]
        handed_on = {waiter.id: waiter.sends for waiter in self.store.waiting("n", handed_on=True)[1]}
        holders = {hold.token for hold in self.store.holders("n")}
        assert holders == set(self.model.holders)
        assert waiting == [each.id for each in self.model.line if each.id not in handed_on]
        assert {*waiting, *handed_on} == {each.id for each in self.model.places}
        assert handed_on.keys() & holders == self.model.handed_on
        assert handed_on.items() <= dict(self.model.sends).items()
        assert sorted([*self.case.pushed(), *self.given]) == sorted(self.model.sent)

    @invariant()
    def a_line_is_looked_at_sometime(self) -> None:
        assert self.case.lines() == ["n"] * bool(self.model.places)


@pytest.mark.parametrize("times", [1, 2], ids=["once", "each request twice"])
@pytest.mark.parametrize(("where", "count"), [("memory", 150), ("embedded", 60)])
def test_every_history_of_a_limit_is_the_models(where: str, count: int, times: int, redis_url: str) -> None:
    """Law 1 with a limit: never more holders than it says, those who wait in order, and nobody lost."""
    make: Callable[[], StoreCase] = MemoryCase if where == "memory" else lambda: RedisCase(redis_url)
    histories = type("Histories", (Histories,), {"make_case": staticmethod(make), "times": times})
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
