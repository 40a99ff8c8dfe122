"""Random histories of a lock and its line: a server must answer, and be left, as the store in memory.

Holders and waiters know limits of 1, 2 and 3, none, or one that no number reaches, as those that read do.
Some take two places. A limit may be set, permits expire one by one, and who is alone may let others in.
Where one holds it, calls of one task take each other's places, and are put off.
In some histories most of those that ask have a rate, whose span passes when a step says so.
"""

import itertools
import re
import secrets
from collections.abc import Sequence
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from celery_redislock.locks.readwrite import READERS
from celery_redislock.store.store import (
    Entry,
    Grant,
    Hold,
    Mark,
    Merge,
    Parked,
    Promotion,
    Refusal,
    Term,
    owner_of,
)
from tests.integration.test_store_limits import facts
from tests.stores import HOME, MemoryCase, RedisCase

#: How many may wait.
MOST = 5

#: What a process knows where several may hold the lock: so many, or no limit at all, as a task without one.
SEVERAL = [1, 2, 3, 3, None, READERS]

#: Milliseconds in which so many start: longer than a history takes.
SPAN = 600_000

any_of_them = st.integers(0, MOST)

#: What a release leaves behind of a message; and the period that one asks for.
MARKS = st.sampled_from([None, None, None, "done", "ending"])
PERIODS = st.sampled_from([None, None, None, 600.0])

#: What a line is kept in.
DATA = ("line", "parked", "sent", "until")

#: What may be asked of a park.
PARKS: dict[str, Any] = {
    "kind": st.sampled_from(["push", "push", "give", "hold", "ring"]),
    "band": st.sampled_from([0, 9, 255]),
    "how": st.sampled_from(["ask", "behind", "refused"]),
    "place": st.sampled_from(["first", "last", "before"]),
    "which": any_of_them,
    "who": st.sampled_from(["fresh", "fresh", "fresh", "holder", "waiting", "copy", "refused"]),
    # Whether it takes another one's place; and is put off.
    "merges": st.sampled_from([None, None, 0.0, 600.0]),
    # It is accepted when it starts, and waits for the period of another one.
    "period": st.sampled_from([False, False, True]),
    # When it was called.
    "number": st.sampled_from([None, None, *range(1, 9)]),
}


def told(answer: Any) -> Any:  # noqa: PLR0911  one for each kind of answer
    """What an answer says, but for times, and for the number of a fence."""
    if isinstance(answer, Hold):
        timeless = {name: fact for name, fact in answer.facts.items() if name not in {"due", "first"}}
        # Of a rate that those keep who are on their way to a start, nobody has started last.
        return answer.state == "rate" or answer.token, timeless, answer.is_period
    if isinstance(answer, Grant):
        return answer._replace(fence=answer.fence and 1, sent_at=0, answered_at=0)
    if isinstance(answer, Parked):
        # Its rank may differ: who has lost its place among several waits again when somebody asks.
        return answer.word, told(answer.promoted)
    if isinstance(answer, bytes):
        return re.sub(rb'"(due|first)":\d+,', b"", answer)
    if isinstance(answer, float):
        return float
    if not isinstance(answer, (tuple, list)):
        return answer
    each = [told(one) for one in answer]
    return sorted(each, key=str) if answer and isinstance(answer[0], Hold) else each


class Histories(RuleBasedStateMachine):
    """One history, on a server and in memory."""

    url: str
    #: The limits that processes know.
    limits: Sequence[int | None]

    def __init__(self) -> None:
        super().__init__()
        self.server = RedisCase(self.url)
        self.memory = MemoryCase()
        self.queue, self.bell = self.server.queue(), self.server.queue("bell")
        self.given: dict[Any, list[Promotion]] = {}
        for case, store in self.cases:
            # Without the check of all keys after each verb, which the contract's tests make.
            case.store = store
            store.home = HOME
            store.on_promoted = self.given.setdefault(case, []).extend
        self.numbers = itertools.count()
        self.last: tuple[str, tuple[Any, ...], dict[str, Any]] | None = None
        self.refused: str | None = None
        #: Of each message: whether it takes another one's place, and for how long it is put off.
        self.merging: dict[str, float | None] = {}
        self.gone: set[str] = set()
        self.late: set[str] = set()
        self.is_data = False
        self.rate: str | None = None
        self.look()

    @property
    def is_several(self) -> bool:
        """Whether several may hold the lock."""
        return any(self.limits)

    @property
    def cases(self) -> list[tuple[Any, Any]]:
        return [(self.server, self.server.redis), (self.memory, self.memory.memory)]

    def teardown(self) -> None:
        self.server.close()

    def look(self) -> None:
        """Note what can be seen of the server: for the choices of the next step, and what must be true now.

        Every rule does so when it has asked or changed something; else each check would ask by itself.
        """
        self.of_server = self.seen(self.server.store)
        holds, waiting, handed_on = self.of_server
        self.holders = {hold.token: hold for hold in holds if not hold.is_period}
        self.waiting = {each.id: each for each in waiting}
        self.handed_on = {each.id: each for each in handed_on}
        with self.server.client.pipeline(transaction=False) as asked:
            for part in DATA:
                asked.pttl(self.server.key(part=part))
            asked.pttl(f"{self.server.prefix}:lines")
            asked.zrange(f"{self.server.prefix}:lines", 0, -1)
            asked.hkeys(self.server.key(part="merge"))
            asked.lrange(self.queue, 0, -1)
            asked.lrange(self.bell, 0, -1)
            *ends, lines, self.merges, pushed, rung = asked.execute()
        self.ends = [end for end in ends if end != -2]
        self.lines, self.pushed, self.rung = (
            [text.decode() for text in texts] for texts in (lines, pushed, rung)
        )
        self.places = [*self.waiting, *self.handed_on]
        self.kinds = {each.id: each.kind for each in (*self.waiting.values(), *self.handed_on.values())}
        self.is_data = bool(self.kinds) and (self.is_data or {*self.kinds.values()} != {"ring"})

    def ask(self, verb: str, *args: Any, **options: Any) -> Any:
        """Ask both for the same; return the answer, which must be the same."""
        if self.rate and options.get("period"):
            options["period"] = None  # no task has both
        self.last = (verb, args, options)
        of_server, of_memory = (getattr(store, verb)(*args, **options) for _, store in self.cases)
        assert told(of_server) == told(of_memory), (told(of_server), told(of_memory))
        before = self.places
        self.look()
        self.gone |= set(before) - set(self.places)
        return of_server

    def fresh(self) -> str:
        """An id; those that come later are not always larger."""
        number = next(self.numbers)
        return f"job-{number * 7 % 10}{number}/1"

    def delivery_of(self, token: str) -> str:
        """Another token of the same task."""
        return f"{owner_of(token)}/{next(self.numbers)}0"

    def one_of(self, which: int, *choices: str) -> str:
        """One of these, of the holders, of those that wait, or nobody."""
        among = [*choices, *sorted(self.holders), *self.places, self.fresh()]
        return among[which % len(among)]

    def said(self, data: Any, limit: int | None, weight: int = 1, **more: object) -> dict[str, Any]:
        """The facts and the limit of one that asks; some tasks of a key say no rate."""
        places: dict[str, object] = {"permits": weight} if limit and weight > 1 else {}
        if self.rate and data.draw(st.sampled_from([True, True, True, False])):
            places["rate"] = self.rate
        return {"facts": facts(limit, task="t", **more, **places), "limit": limit}

    # --- steps -----------------------------------------------------------------------------------

    @initialize(rate=st.sampled_from([f"1/{SPAN}", None, f"3/{SPAN} 2/{SPAN + 1}"]))
    def begin(self, rate: str | None) -> None:
        """So many may start until a step lets the span pass."""
        self.rate = rate

    @rule(data=st.data(), weight=st.sampled_from([1, 1, 2]), starts=st.booleans(), period=PERIODS)
    def acquire(self, data: Any, weight: int, starts: bool, period: float | None) -> None:
        said = self.said(data, self.limit(data), weight, state="running" if starts else "queued")
        self.ask("acquire", "n", self.fresh(), 30.0, starts_run=starts, period=period, **said)

    @rule(which=any_of_them, period=PERIODS)
    def look_before(self, which: int, period: float | None) -> None:
        """As a publisher does that would claim."""
        answers = [
            store.look("n", self.one_of(which), limit=None, period=period) is None for _, store in self.cases
        ]
        assert answers[0] == answers[1]
        self.look()

    def limit(self, data: Any) -> int | None:
        return data.draw(st.sampled_from(self.limits))

    @rule(data=st.data(), which=any_of_them, period=PERIODS, asks=st.booleans())
    def start(self, data: Any, which: int, period: float | None, asks: bool) -> None:
        """The message starts of a holder, or of one whose claim has ended; its worker may know another."""
        claim = self.one_of(which, *list(self.waiting)[:1], *self.handed_on)
        said = {
            **self.said(data, self.limit(data), line=1),
            "period": period,
            "message": claim if asks else None,
        }
        answer = self.ask(
            "acquire", "n", self.delivery_of(claim), 30.0, instead_of=claim, starts_run=True, **said
        )
        self.refused = claim if isinstance(answer, Refusal) else None

    @rule(which=any_of_them, whose=any_of_them, leaves=MARKS, ends=st.booleans())
    def release(self, which: int, whose: int, leaves: str | None, ends: bool) -> None:
        """It may leave a mark of a message, and end the period that began with a token."""
        token, message = self.one_of(which), self.one_of(whose)
        # A process has none; and what was sent before, and has come back, may be sent once more.
        sent = {*self.pushed, *(each.id for each in self.given[self.server])}
        has_mark = leaves and self.kinds.get(message) != "ring" and message not in sent
        mark = Mark(message, 600.0, is_done=leaves == "done") if has_mark else None
        self.ask("release", "n", token, mark=mark, opened_by=token if ends else None)

    @precondition(lambda self: self.holders)
    @rule(which=any_of_them)
    def renew(self, which: int) -> None:
        self.ask("renew", [Term("n", self.one_of(which), 30.0)])

    @precondition(lambda self: not self.is_several)
    @rule(which=any_of_them, heir=any_of_them)
    def hand_on(self, which: int, heir: int) -> None:
        """To a message that waits already, or to another; a lease, not the claim of one that was given."""
        old = self.one_of(which)
        new = [*self.waiting, old, self.fresh()][heir % (len(self.waiting) + 2)]
        if new == old or old not in self.places:
            self.ask("hand_on", "n", old, new, 30.0, facts=facts(None, line=1))

    @precondition(lambda self: self.holders)
    @rule(which=any_of_them)
    def force(self, which: int) -> None:
        self.ask("force_release", "n", expected=sorted(self.holders)[which % len(self.holders)])
        self.last = None  # who was there instead is told in another way: a marker, for several holders

    @precondition(lambda self: self.is_several and self.is_alone() and not {*self.holders} & {*self.places})
    @rule(limit=st.sampled_from([2, READERS]))
    def downgrade(self, limit: int) -> None:
        """The one that holds it alone lets others in: a process, which is in no line by then."""
        self.ask("downgrade", "n", min(self.holders), 30.0, facts=facts(limit, line=1))

    def park(
        self, data: Any, weight: int, kind: str, band: int, how: str, place: str, which: int, who: str,
        merges: float | None, period: bool, number: int | None,
    ) -> None:  # fmt: skip
        if self.is_several:
            # The rest is about places in line, and is told apart where one holds the lock.
            kind, band, place = {"hold": "push", "ring": "give"}.get(kind, kind), 0, "last"
            how, who = "ask" if how == "ask" else "refused", "copy" if who == "waiting" else who
        holder = self.one_of(which, *self.holders)
        known = {
            "holder": holder,
            "waiting": self.one_of(which, *self.places),
            "copy": self.delivery_of(holder),
            "refused": self.refused,
        }
        id_ = known.get(who) or self.fresh()
        if id_ in self.gone:
            id_ = self.fresh()
        place = self.one_of(which, *self.waiting) if place == "before" else place
        there = {**self.waiting, **self.handed_on}.get(id_)
        if "ring" in {kind, there and there.kind}:
            kind = there.kind if there else "ring"  # a process is no message, and always waits in one way
            how = "refused"
        to = {"push": self.queue, "give": HOME, "hold": "", "ring": self.bell}[kind]
        limit = self.limit(data)
        timed = {"period": 1} if period and kind != "ring" else {}
        said = self.said(data, limit, weight, state="queued", line=1, **timed)
        more: dict[str, Any] = {}
        # Another delivery of it says the same.
        merges = self.merging.setdefault(id_, None if kind == "ring" or self.is_several or there else merges)
        if merges is not None:
            more["merge"] = Merge(f'"{id_}"\0{id_}', merges, 0.0, number)
        entry = Entry(kind, to, 30.0, said["facts"], id_)
        self.late.discard(id_)
        # Among several, one that has lost its place is counted once it waits again.
        most = 10 * MOST if self.is_several else MOST
        nonce = secrets.token_hex(8)
        for _ in range(2):
            answer = self.ask(
                "park", "n", id_, entry, nonce=nonce, how=how, band=band, place=place, most=most,
                within=3600.0 if kind == "ring" else None, **more,
            )  # fmt: skip
            if answer.word != "older":
                break
            more["merge"] = more["merge"]._replace(instead_of=answer.held_by.token)
        new_data = kind != "ring" and answer.word in {"parked", "woken"}
        self.is_data = bool(self.places) and (self.is_data or new_data)

    # Three of it: most histories would else be of empty lines.
    park_one = rule(data=st.data(), weight=st.sampled_from([1, 1, 2]), **PARKS)(park)
    park_another = rule(data=st.data(), weight=st.sampled_from([1, 1, 2]), **PARKS)(park)
    park_more = rule(data=st.data(), weight=st.sampled_from([1, 1, 2]), **PARKS)(park)

    @precondition(lambda self: self.living())
    @rule(which=any_of_them)
    def pause(self, which: int) -> None:
        """A process that waits gives no sign of life for longer than it may."""
        id_ = self.living()[which % len(self.living())]
        for case, _ in self.cases:
            case.make_late(id_)
        self.late.add(id_)
        self.last = None
        self.look()

    @precondition(lambda self: self.put_off())
    @rule(which=any_of_them)
    def come_due(self, which: int) -> None:
        """The pause of a call is over; nobody is told until somebody asks."""
        id_ = self.put_off()[which % len(self.put_off())]
        for case, _ in self.cases:
            case.come_due(id_)
        self.last = None
        self.look()

    @precondition(lambda self: self.server.remaining(part="period"))
    @rule()
    def let_the_period_pass(self) -> None:
        """Nobody is told until somebody asks."""
        self.server.expire(part="period")
        del self.memory.memory._periods["n"]
        self.last = None
        self.look()

    @precondition(lambda self: self.rate and not self.holders)
    @rule(data=st.data())
    def run_and_end(self, data: Any) -> None:
        """Often: else a rate is seldom used up."""
        token = self.fresh()
        self.ask(
            "acquire", "n", token, 30.0, starts_run=True, **self.said(data, self.limit(data), state="running")
        )
        self.ask("release", "n", token)

    @precondition(lambda self: self.rate and self.claims())
    @rule(data=st.data())
    def start_a_claim(self, data: Any) -> None:
        """Often: where the rate has had its starts, it loses that."""
        claim = self.claims()[0]
        said = self.said(data, self.limit(data), state="running", line=1)
        answer = self.ask(
            "acquire", "n", self.delivery_of(claim), 30.0, instead_of=claim, starts_run=True, **said
        )
        self.refused = claim if isinstance(answer, Refusal) else None

    def claims(self) -> list[str]:
        """Those that hold it and have not started."""
        return sorted(token for token, hold in self.holders.items() if hold.state == "queued")

    @precondition(lambda self: any(self.memory.memory._starts.values()))
    @rule()
    def let_the_span_pass(self) -> None:
        """A place of the rate opens; nobody is told until somebody asks."""
        self.server.client.delete(*(self.server.key(part=f"starts:{each}") for each in (SPAN, SPAN + 1)))
        self.memory.memory._starts.clear()
        self.last = None
        self.look()

    def put_off(self) -> list[str]:
        """The calls that wait until they are due."""
        return [each.id for each in self.waiting.values() if each.hold.facts.get("due", 0) > 1]

    @precondition(lambda self: not self.is_several)
    @rule(which=any_of_them, number=st.sampled_from([None, *range(1, 9)]))
    def ask_for_the_newest(self, which: int, number: int | None) -> None:
        """As a run does whose message may be an old one."""
        self.ask("newest", "n", "t", self.one_of(which), number)

    def living(self) -> list[str]:
        """The processes that wait."""
        return [each.id for each in self.waiting.values() if each.kind == "ring" and each.id not in self.late]

    @precondition(lambda self: self.places and not self.is_several)
    @rule(which=any_of_them, place=st.sampled_from(["first", "last"]))
    def move(self, which: int, place: str) -> None:
        self.ask("move", "n", self.one_of(which, *self.waiting), place)

    @precondition(lambda self: self.places)
    @rule(which=any_of_them, unless_held=st.booleans())
    def leave(self, which: int, unless_held: bool) -> None:
        self.ask("leave", "n", self.one_of(which, *self.places), unless_held=unless_held)

    @precondition(lambda self: self.given[self.server])
    @rule(which=st.sampled_from([1, 1, 2]), sent=st.sampled_from([True, True, False]))
    def settle(self, which: int, sent: bool) -> None:
        """Not published, where it was sent before, and may still be there."""
        given = self.given[self.server]
        chosen = given[-min(1 if self.is_several else which, len(given))]
        sent = sent or not chosen.sends
        if self.is_several and chosen.sends > 1:
            sent = False
        self.ask("settle", "n", chosen.id, 30.0, sent=sent)

    @precondition(lambda self: self.places)
    @rule()
    def sweep(self) -> None:
        """What was pushed counts as there: nobody takes it from its queue."""
        for case, _ in self.cases:
            if "n" in case.lines():
                case.make_due()
        self.ask("sweep")

    @precondition(lambda self: self.is_several)
    @rule(limit=st.sampled_from([1, 2, 4, None]))
    def set_limit(self, limit: int | None) -> None:
        self.ask("limit", "n", limit, ttl=600.0)

    def is_alone(self) -> bool:
        """Whether its holder knows no limit."""
        return self.memory.memory._is_alone("n")

    def end(self, token: str) -> None:
        """Let a hold expire."""
        if self.is_alone():
            self.server.expire()
        else:
            self.server.expire_permit(token)
        self.memory.expire_permit(token)
        self.look()

    @precondition(lambda self: self.holders)
    @rule(which=any_of_them)
    def expire(self, which: int) -> None:
        """Nobody is told until somebody asks."""
        self.end(sorted(self.holders)[which % len(self.holders)])

    @precondition(lambda self: self.holders.keys() & self.handed_on.keys())
    @rule(which=any_of_them)
    def lose_what_was_handed_on(self, which: int) -> None:
        """Often: its message is nowhere."""
        handed_on = sorted(self.holders.keys() & self.handed_on.keys())
        self.end(handed_on[which % len(handed_on)])

    @precondition(lambda self: self.last is not None)
    @rule()
    def repeat_the_last(self) -> None:
        """As a process does whose answer got lost."""
        verb, args, options = self.last
        self.ask(verb, *args, **options)

    @precondition(lambda self: self.last is not None)
    @rule()
    def repeat_it(self) -> None:
        """Often: it says most."""
        self.repeat_the_last()

    @precondition(lambda self: self.holders.keys() & self.waiting.keys())
    @rule(data=st.data())
    def start_what_was_given(self, data: Any) -> None:
        """Often: before it is settled."""
        claim = min(self.holders.keys() & self.waiting.keys())
        said = self.said(data, self.limit(data), line=1)
        self.ask("acquire", "n", self.delivery_of(claim), 30.0, instead_of=claim, starts_run=True, **said)

    # --- what is true after each of them ---------------------------------------------------------

    @invariant()
    def both_are_in_the_same_state(self) -> None:
        """Who holds, who waits in order, to whom what was sent; and a line is looked at."""
        of_server = self.told(*self.of_server)
        of_memory = self.told(*self.seen(self.memory.memory))
        # One that has lost its place among several waits again once somebody asks, there or here.
        lost = {*of_server.pop("lost"), *of_memory.pop("lost")}
        for seen in (of_server, of_memory):
            seen["everybody"] = sorted({*seen["waiting"], *lost})
            seen["waiting"] = [each for each in seen["waiting"] if each not in lost]
        assert of_server == of_memory
        assert self.pushed == self.memory.pushed(self.queue)
        assert self.rung == self.memory.pushed(self.bell)
        assert told(self.given[self.server]) == told(self.given[self.memory])
        assert self.lines == self.memory.lines() == ["n"] or not self.places

    def seen(self, store: Any) -> tuple[Any, Any, Any]:
        """Who holds the lock, who waits in order, and to whom it was handed."""
        return store.holders("n"), store.waiting("n")[1], store.waiting("n", handed_on=True)[1]

    def told(self, holds: Any, waiting: Any, handed_on: Any) -> dict[str, Any]:
        """What must be the same of it."""
        tokens = {hold.token for hold in holds}
        handed_on = [(each.id, each.kind, each.to, each.sends) for each in handed_on]
        lost = [each for each in handed_on if self.is_several and each[0] not in tokens]
        return {
            "holds": told(holds),
            "waiting": [(each.id, each.kind, each.to) for each in waiting],
            "handed on": [each for each in handed_on if each not in lost],
            "lost": [each[:3] for each in lost],
        }

    @invariant()
    def a_line_of_nothing_but_processes_ends_and_no_other_one(self) -> None:
        """What a message waits in has no end, and neither has what keeps one that was handed the lock."""
        if self.places:
            assert {end == -1 for end in self.ends[:-1]} == {self.is_data}
            assert self.ends[-1] == -1 or not self.is_data

    @invariant()
    def nobody_takes_the_place_of_one_that_does_not_wait(self) -> None:
        """Of each call that others join there are two fields, and none is left behind."""
        fields = self.merges
        assert {field[1:].decode() for field in fields if field.startswith(b"\0")} <= {*self.waiting}

    @invariant()
    def no_more_hold_it_than_its_limit_says(self) -> None:
        """One alone, where nobody knows a limit."""
        assert len(self.holders) <= 1 or any(self.limits)

    @invariant()
    def a_message_is_pushed_once(self) -> None:
        assert len(self.pushed) == len(set(self.pushed))


@pytest.mark.parametrize("limits", [[None], SEVERAL], ids=["one holder", "several"])
def test_a_server_answers_every_history_as_the_store_in_memory(
    limits: Sequence[int | None], redis_url: str
) -> None:
    """Law 1, with and without a limit: never more holders than it says, order in line, nobody lost."""
    histories = type("Histories", (Histories,), {"url": redis_url, "limits": limits})
    # The same histories each time, for others change the count; the shortest one that fails is printed.
    settings = hypothesis.settings(
        max_examples=80,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run_state_machine_as_test(histories, settings=settings)  # type: ignore[no-untyped-call]
