"""The clients of a small world, and what may happen to them.

Each step is one request of a client to the store, a fault, or time. Clients do what the package's own do
(``publishing/claim.py``, ``running/start.py``, ``running/finish.py``, ``receiving/parking.py``), for messages
that are acknowledged late. A queue delivers in any order.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

from celery_redislock.store.joinedmemory import JoinedMemory
from celery_redislock.store.memory import MemoryStore
from celery_redislock.store.store import (
    QUEUED,
    RUNNING,
    Entry,
    Grant,
    Mark,
    Marked,
    Merge,
    Promotion,
    Refusal,
    Term,
)
from tools.explore.acts import OVERWRITE, THEIRS, acts
from tools.explore.frozen import BEFORE, Frozen, ends, freeze, thaw
from tools.explore.world import HAND_OFF, LEASE, QUEUED_FOR, SPAN, Copy, Job, Request, Run, State, Step, World

#: As a verb: seconds pass.
TIME = "time"

#: Stages of a call of which nothing is to run any more.
_ENDED = frozenset({"skipped", "merged", "failed", "over", "dead", "dropped"})


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class _Seeing(MemoryStore):
    """A store that can tell which messages there are, as one that is the broker.

    Attributes:
        there: the tokens of those that are in the queue, or in hand.
    """

    there: frozenset[str] = frozenset()

    def _is_there(self, entry: Entry) -> bool:
        return Copy.loads(entry.text).token in self.there or entry.text in self.queues[entry.to]


class Asked(NamedTuple):
    """A request and its answer, or time that passed.

    Attributes:
        called: the number of the call that it is of: 2, 4 …; else one more than that of the last call.
    """

    verb: str
    rest: tuple[Any, ...]
    more: dict[str, Any]
    called: int
    answer: Any


class _Unsettled(NamedTuple):
    """What was asked for, and is kept, when a process is about to publish these messages."""

    asked: list[Asked]
    store: Frozen
    published: tuple[Copy, ...]


class Clients:
    """The clients of a world, and the store that they ask.

    Attributes:
        world: which one.
        store: in memory.
        asked: what a step has asked for, when it has just been told.
        looks_at_all: a sweep looks at each line, not at those whose time has come: stores differ in that.
    """

    looks_at_all = False

    def __init__(self, world: World, kind: type[MemoryStore] = MemoryStore) -> None:
        """Let them ask a store of this kind."""
        self.world = world
        self._clock = _Clock()
        self._called = 0
        self.asked: list[Asked] = []
        seeing = type(kind.__name__, (_Seeing, kind), {})
        self.store: _Seeing = seeing(clock=self._clock, wall=lambda: self._called / 1e6)
        of_several = type(f"{kind.__name__}OfSeveral", (_Seeing, JoinedMemory, kind), {})
        self._of_several = of_several(self.store)
        self._given: list[Promotion] = []
        self._published: list[Copy] = []
        self._unsettled: _Unsettled | None = None
        for store in (self.store, self._of_several):
            store.home = world.homes
            store.on_promoted = self._note_given
        limit = f',"limit":{world.limit}' if world.limit else ""
        rate = f',"rate":"{world.rate}"' if world.rate else ""
        self._said = f'"on_conflict":"{world.on_conflict}"{rate}{limit}'

    def begin(self) -> State:
        """Return the state in which nothing has happened."""
        world = self.world
        empty = freeze(MemoryStore(), 0.0)
        jobs = (Job(),) * world.messages
        return State(empty, jobs, (), (), (), world.losses, world.kills, world.ticks, world.acts)

    def steps(self, state: State) -> Iterator[Step]:
        """Yield what may happen next; no two of these may be asked for at the same time."""
        for step in self._possible(state):
            unsettled = self._unsettled
            asked = self.asked
            yield step
            if unsettled is not None and step.state.losses:
                yield from self._dies_with(step, unsettled)
                self.asked = asked

    def _dies_with(self, step: Step, unsettled: "_Unsettled") -> Iterator[Step]:
        """Yield that the process dies that was to publish what left the line."""
        self.asked = unsettled.asked
        after = step.state._replace(store=unsettled.store, losses=step.state.losses - 1)
        queue = [*after.queue]
        for copy in unsettled.published:
            queue.remove(copy)
        told = f"{step.told}; its process dies before it publishes that"
        yield Step(told, after._replace(queue=tuple(queue)), step.broken, is_fault=True)
        yield Step(f"{step.told}; its process dies when it has", after, step.broken, is_fault=True)

    def _possible(self, state: State) -> Iterator[Step]:
        for number, job in enumerate(state.jobs):
            if job.stage == "new":
                if not self._has_equal_before(state, number):
                    yield from self._publish(state, number)
            elif job.stage == "asked":
                yield from self._after_no_answer(state, number)
        for copy in dict.fromkeys(state.queue):
            yield from self._receive(state, copy)
        for run in state.runs:
            yield from self._keep(state, run)
            yield from getattr(self, f"_{run.stage}")(state, run)
            if state.kills:
                yield from self._kill(state, run)
        for request in dict.fromkeys(state.owed):
            yield self._late(state, request)
        if state.store.lines:
            yield self._sweep(state)
        if state.acts:
            yield from acts(self, state)
        yield from self._time(state)

    def _has_equal_before(self, state: State, number: int) -> bool:
        """Whether a call of the same locks is still to be made: which of two is made first tells nothing."""
        world = self.world
        equal = [world.names, world.weights or (1,) * world.messages]
        return any(
            state.jobs[each].stage == "new" and all(of[each] == of[number] for of in equal)
            for each in range(number)
        )

    def _keep(self, state: State, run: Run) -> Iterator[Step]:
        """Yield that a worker renews the claim that was handed to a message in its hands."""
        token = run.copy.token
        name = self._name(run.copy)
        held = dict(state.store.holders).get(name.partition(" ")[0], ())
        if run.copy.parked and state.ticks < self.world.ticks and token in [each for each, *_ in held]:
            self.load(state)
            self.ask("renew", [Term(name, token, HAND_OFF)])
            yield Step(f"its worker renews the claim of {token}", self.after(state))

    def _sweep(self, state: State) -> Step:
        self.load(state)
        if self.looks_at_all:
            self.store._due = dict.fromkeys(self.store._due, 0.0)
        self.ask("sweep")
        return Step("a worker sweeps", self.after(state))

    def _time(self, state: State) -> Iterator[Step]:
        """Yield that time passes until something ends."""
        if state.ticks:
            until = ends(state.store).union(run.trusted for run in state.runs if run.trusted > 0.0)
            if until:
                yield self.wait(state._replace(ticks=state.ticks - 1), min(until))

    def look(self, state: State) -> State:
        """Return the state after a worker has renewed what runs, and swept."""
        self.load(state)
        for run in state.runs:
            if run.trusted > 0.0:
                self._renew(self._name(run.copy), run.token)
        self.ask("sweep")
        runs = [run._replace(trusted=LEASE) if run.trusted > 0.0 else run for run in state.runs]
        return self.after(state, runs=_in_order(runs))

    def wait(self, state: State, seconds: float) -> Step:
        """Let time pass."""
        self.load(state)
        self._clock.now = seconds
        self.asked.append(Asked(TIME, (seconds,), {}, self._called, None))
        runs = [run._replace(trusted=max(0.0, round(run.trusted - seconds, 3))) for run in state.runs]
        closed = max(0.0, round(state.closed - seconds, 3))
        changes: Any = {"closed": closed, "closed_by": state.closed_by if closed else ""}
        return Step(f"{seconds:g} s pass", self.after(state, runs=_in_order(runs), **changes))

    # A request to the store.

    def load(self, state: State) -> None:
        """Let the store keep what it does in this state."""
        self.asked = []
        self._given = []
        self._published = []
        self._unsettled = None
        thaw(state.store, self.store)
        copies = [*state.queue, *(run.copy for run in state.runs)]
        # The message as it was first published is none that left the line.
        self.store.there = frozenset(copy.token for copy in copies if copy.parked)
        self._clock.now = 0.0
        self._called = 2 * sum(job.stage != "new" for job in state.jobs) + 1

    def ask(self, verb: str, *rest: Any, **more: Any) -> Any:
        """Send a request, of a lock or of several, and note it."""
        of_several = rest and " " in rest[0]
        if verb == OVERWRITE:
            answer = self._overwrite(*rest)
        else:
            answer = getattr(self._of_several if of_several else self.store, verb)(*rest, **more)
        self.asked.append(Asked(verb, rest, more, self._called, answer))
        return answer

    def _overwrite(self, name: str, ttl: float) -> None:
        self.store._holders[name].clear()
        self.store._keep(name, THEIRS.encode(), ttl)

    def after(
        self, state: State, *, but: Copy | None = None, puts: Sequence[Copy] = (), **changes: Any
    ) -> State:
        """Return the state after a request; what the store has pushed is in the queue."""
        self._publish_given()
        queue = [*state.queue, *puts]
        if but is not None:
            queue.remove(but)
        queue += [Copy.loads(text) for text in self.store.queues.get("q", ())] + self._published
        store = freeze(self.store, self._clock.now)
        return state._replace(store=store, queue=tuple(sorted(queue)), **changes)

    def _note_given(self, promoted: Sequence[Promotion]) -> None:
        self._given += promoted

    def _publish_given(self) -> None:
        """Publish what a request has promoted, unless it may be there, and settle it."""
        if not self._given:
            return
        asked = [*self.asked]
        before = freeze(self.store, self._clock.now)
        while self._given:
            given = self._given.pop(0)
            copy = Copy.loads(given.text.decode())
            is_there = given.sends > 0 and copy.token in self.store.there
            if not is_there:
                self._published.append(copy)
            self.ask("settle", given.name, given.id, HAND_OFF, sent=not is_there)
        if self._unsettled is None:
            self._unsettled = _Unsettled(asked, before, tuple(self._published))

    def _facts(self, job: int, state: str, more: str = "", message: str = "") -> str:
        told = f',"message":"{message}"' if message else ""
        weight = self.world.weights[job] if self.world.weights else 1
        places = f',"permits":{weight}' if weight > 1 else ""
        return f'{{"task":"t","state":"{state}",{self._said}{places}{more},"since":0{told}}}'

    def _name(self, copy: Copy) -> str:
        return self.world.names[copy.job]

    # A publisher.

    def _publish(self, state: State, number: int) -> Iterator[Step]:
        world = self.world
        token = f"{number}/c"
        told = f"call {number}"
        self.load(state)
        self._called += 1
        if not world.claims:
            copy = Copy(token, number=self._called if world.pause else -1)
            yield Step(f"{told} is published", self._after_call(state, number, "live", copy))
            return
        terms: Any = {"facts": self._facts(number, QUEUED), "period": world.period, "limit": world.limit}
        answer = self.ask("acquire", world.names[number], token, QUEUED_FOR, **terms)
        if isinstance(answer, Grant):
            broken = self._too_soon(state, token, is_accepted=True)
            more: Any = {"closed": world.period, "closed_by": token} if world.period else {}
            after = self._after_call(state, number, "live", Copy(token, claimed=True), **more)
            yield Step(f"{told} is claimed and published", after, broken)
            if state.losses:
                after = self._after_call(state, number, "asked", losses=state.losses - 1, **more)
                yield Step(f"{told}: the answer to its claim is lost", after, is_fault=True)
        elif world.on_conflict == "skip":
            yield Step(f"{told} is skipped", self._after_call(state, number, "skipped"))
        else:
            copy = Copy(token, number=-1 if answer.number is None else answer.number)
            after = self._after_call(state, number, "live", copy)
            yield Step(f"{told} is refused, and published to wait", after)
            if world.on_conflict == "wait" and world.period is None:
                self._park(copy)
                yield Step(f"{told} is refused, and parked", self._after_call(state, number, "live"))

    def _after_call(self, state: State, number: int, stage: str, *puts: Copy, **changes: Any) -> State:
        """Return the state after a request by which a call comes to this stage."""
        return self.after(state, puts=puts, jobs=_put(state.jobs, number, stage=stage), **changes)

    def _after_no_answer(self, state: State, number: int) -> Iterator[Step]:
        token = f"{number}/c"
        told = f"call {number}"
        self.load(state)
        after = self._after_call(state, number, "live", Copy(token))
        yield Step(f"{told} is published without a claim", after)
        if state.losses:
            after = self._after_call(state, number, "dead", losses=state.losses - 1)
            yield Step(f"{told}: its publisher dies", after, is_fault=True)
        self.ask("release", self.world.names[number], token, opened_by=token)
        more: Any = {"closed": 0.0, "closed_by": ""} if state.closed_by == token else {}
        after = self._after_call(state, number, "failed", **more)
        yield Step(f"{told} fails: its claim is released", after)

    # A worker that receives a message.

    def _receive(self, state: State, copy: Copy) -> Iterator[Step]:
        if self.world.on_conflict == "wait" and copy == Copy(copy.token) and " " not in self._name(copy):
            # Its key is known to be busy in this worker.
            self.load(state)
            answer = self._park(copy, how="ask")
            if answer.word not in {"runs", "full"}:
                yield Step(f"{copy.token} is received and parked", self.after(state, but=copy))
        if state.kills and any(place.is_sent and place.id == copy.token for place in state.store.places):
            # Received, and not noted yet by the broker's client. Others are lost to any task then.
            self.load(state)
            after = self.after(state, but=copy, kills=state.kills - 1)
            yield Step(f"{copy.token} is lost with its worker", after, is_fault=True)
        run = Run(copy, _unused(copy.job, state), "asked")
        if self.world.pause and self._merges(copy):
            self.load(state)
            runs = _in_order((*state.runs, run._replace(stage="refused")))
            after = self.after(state, but=copy, runs=runs)
            yield Step(f"{copy.token} is received, and waits for others", after)
            return
        yield from self._start(state._replace(queue=_without(state.queue, copy)), run)

    def _start(self, state: State, run: Run) -> Iterator[Step]:
        """Ask for the lock of a run that is in this state's runs no more, nor its message in the queue."""
        world = self.world
        copy = run.copy
        name = self._name(copy)
        told = f"{copy.token} (run {run.token})"
        self.load(state)
        waiting = self._first_waiting(name)
        claim = self.store._holders_of(name).get(copy.token)
        answer = self.ask(
            "acquire", name, run.token, LEASE,
            facts=self._facts(copy.job, RUNNING, message=copy.token), instead_of=copy.token,
            period=None if copy.claimed or copy.must_run else world.period,
            message=copy.token, starts_run=True, limit=world.limit,
        )  # fmt: skip
        job = state.jobs[copy.job]
        if isinstance(answer, Grant) and self._is_outdated(copy, answer):
            self.ask("release", name, run.token)
            jobs = _put(state.jobs, copy.job, stage="merged")
            yield Step(f"{told} gives way to a newer call", self.after(state, jobs=jobs))
        elif isinstance(answer, Grant):
            broken = ""
            more: Any = {}
            if copy.token in job.done and not answer.repeated:
                broken = "law 8: it starts, and its message is done"
            elif waiting not in {"", copy.token} and not (answer.taken_over or answer.repeated):
                broken = f"order: {waiting} waits before it"
            elif answer.fence is not None and answer.fence <= BEFORE and not answer.repeated:
                broken = "a fence is given twice"
            if not answer.repeated:
                is_accepted = not (copy.claimed or copy.must_run)
                broken = broken or self._too_soon(state, copy.token, is_accepted=is_accepted)
                # Its own claim, of which its publisher does not know, was accepted when that was made.
                was_handed = claim is not None and b'"line":1' in claim.value
                is_now = is_accepted and (was_handed or not answer.taken_over)
                # Its own period, which has not passed, goes on.
                is_now = is_now and state.closed_by != copy.token
                closed = SPAN if world.rate else world.period if is_now else None
                more = {"closed": closed, "closed_by": copy.token} if closed else {}
            runs = _in_order((*state.runs, run._replace(stage="body", trusted=LEASE)))
            yield Step(f"{told} starts", self.after(state, runs=runs, **more), broken)
            if state.losses:
                runs = _in_order((*state.runs, run))
                after = self.after(state, runs=runs, losses=state.losses - 1, **more)
                yield Step(f"{told}: the answer to its start is lost", after, is_fault=True)
        elif isinstance(answer, Marked) and answer.is_done:
            is_over = copy.token in job.done or job.stage in _ENDED
            broken = "" if is_over else "law 2: it is done, and has not run"
            yield Step(f"{told} is done already", self.after(state), broken)
        elif isinstance(answer, Marked):
            yield Step(f"{told} is put off: a copy is ending", self.after(state, puts=[copy]))
        elif self._must_wait(copy, answer):
            runs = _in_order((*state.runs, run._replace(stage="refused")))
            yield Step(f"{told} is refused", self.after(state, runs=runs))
        else:
            jobs = _put(state.jobs, copy.job, stage="skipped")
            yield Step(f"{told} is skipped", self.after(state, jobs=jobs))

    def _too_soon(self, state: State, token: str, *, is_accepted: bool) -> str:
        """Return what a start, or an acceptance, breaks that its rate, period or pause does not let yet."""
        world = self.world
        is_own = token == state.closed_by
        is_closed = world.rate.startswith("1/")
        if world.pause:
            is_closed = is_own
        elif world.period:
            is_closed = is_accepted and not is_own
        return f"too soon: {state.closed:g} s before it may" if state.closed > 0.0 and is_closed else ""

    def _must_wait(self, copy: Copy, answer: Refusal) -> bool:
        is_own = answer.hold.owner == str(copy.job)
        is_accepted = copy.claimed or copy.earlier or copy.must_run or copy.parked
        return is_own or is_accepted or self.world.on_conflict != "skip"

    def _is_outdated(self, copy: Copy, answer: Grant) -> bool:
        """Whether a newer call was accepted: asked by one that was refused at publish, or came before."""
        if not self._merges(copy) or answer.taken_over:
            return False
        number = None if copy.number < 0 else copy.number
        if number is None and not copy.earlier:
            return False
        return bool(self.ask("newest", self._name(copy), "t", copy.token, number))

    def _first_waiting(self, name: str) -> str:
        """Return who is to have a free lock before anybody who does not wait."""
        if " " in name or self.store._holders_of(name):
            return ""
        places = self.store._lines.get(name, ())
        return next((each.id for each in places if not each.is_sent and each.due <= 0.0), "")

    def _asked(self, state: State, run: Run) -> Iterator[Step]:
        yield from self._start(state._replace(runs=_without(state.runs, run)), run)

    def _refused(self, state: State, run: Run) -> Iterator[Step]:
        """Its main process parks its message, and acknowledges it."""
        copy = run.copy
        runs = _without(state.runs, run)
        jobs = state.jobs
        self.load(state)
        merges = self._merges(copy)
        answer = self._park(copy, merges=merges)
        while answer.word == "older":
            older = answer.held_by.token
            jobs = _put(jobs, int(older.partition("/")[0]), stage="merged")
            answer = self._park(copy, merges=merges, instead_of=older)
        if answer.word == "newer":
            jobs = _put(jobs, copy.job, stage="merged")
        # One that has waited its pause, and lost its lease since, waits for the lock alone.
        if self.world.pause and merges and answer.word in {"parked", "merged"} and not copy.earlier:
            state = state._replace(closed=self.world.pause, closed_by=copy.token)
        told = f"{copy.token} is {answer.word}"
        yield Step(told, self.after(state, runs=runs, jobs=jobs))
        if state.losses and answer.word != "newer":
            again = copy._replace(earlier=True)
            after = self.after(state, runs=runs, jobs=jobs, puts=[again], losses=state.losses - 1)
            yield Step(f"{told}; no answer: it is published as well", after, is_fault=True)

    def _merges(self, copy: Copy) -> bool:
        """Whether it takes the place of an older call where it is parked, or gives way to a newer one."""
        is_new = not (copy.claimed or copy.parked or copy.must_run)
        return self.world.on_conflict == "coalesce" and is_new and (copy.number >= 0 or not copy.earlier)

    def _park(self, copy: Copy, *, how: str = "refused", merges: bool = False, instead_of: str = "") -> Any:
        more = ',"published":true,"line":1' + ',"period":1' * (self.world.period is not None)
        text = copy._replace(parked=True).dumps()
        homes = self.world.homes.split("\n")
        kind, to = ("give", homes[-1]) if self.world.homes else ("push", "q")
        entry = Entry(kind, to, HAND_OFF, self._facts(copy.job, QUEUED, more), text)
        times: Any = {"pause": self.world.pause, "mark_ttl": inf}
        number = None if copy.number < 0 else copy.number
        merge = Merge(f"{copy.job}\0{copy.token}", number=number, instead_of=instead_of, **times)
        terms: Any = {"band": int(not (copy.parked or copy.claimed)), **({"merge": merge} if merges else {})}
        return self.ask("park", self._name(copy), copy.token, entry, nonce="", how=how, **terms)

    # A worker that runs a message.

    def _body(self, state: State, run: Run) -> Iterator[Step]:
        others = _without(state.runs, run)
        self.load(state)
        broken = self._send(("renew", self._name(run.copy), run.token, run.copy.token))
        is_held = all(run.token in self.store._holders_of(name) for name in self._name(run.copy).split())
        trusted = LEASE if is_held and run.trusted > 0.0 else 0.0
        runs = _in_order((*others, run._replace(trusted=trusted)))
        yield Step(f"run {run.token} renews its lease", self.after(state, runs=runs), broken)
        yield from self._end(state, run, "release", "ends")
        job = state.jobs[run.copy.job]
        # A second run of one message ends: the first one has published its retry.
        if job.retries < self.world.retries and job.retries == _retries_before(run.copy.token):
            retry = Copy(f"{run.copy.job}/d{job.retries}", claimed=True, must_run=True)
            jobs = _put(state.jobs, run.copy.job, retries=job.retries + 1)
            runs = _in_order((*others, run._replace(stage="retried")))
            self.load(state)
            after = self.after(state, puts=[retry], jobs=jobs, runs=runs)
            yield Step(f"run {run.token} publishes its retry {retry.token}", after)

    def _retried(self, state: State, run: Run) -> Iterator[Step]:
        yield from self._end(state, run, "hand_on", "hands its lock on")

    def _end(self, state: State, run: Run, verb: str, what: str) -> Iterator[Step]:
        """Release the lock of a run, or hand it on to its retry; the request may be late, or come twice."""
        request = (verb, self._name(run.copy), run.token, run.copy.token)
        ended = run._replace(stage="ended", trusted=0.0)
        runs = _in_order((*_without(state.runs, run), ended))
        told = f"run {run.token} {what}"
        owed = tuple(sorted((*state.owed, request)))
        faulty: Any = {"runs": runs, "owed": owed, "losses": state.losses - 1}
        if state.losses:
            self.load(state)
            yield Step(f"{told}: the request is late", self.after(state, **faulty), is_fault=True)
        self.load(state)
        broken = self._send(request)
        yield Step(told, self.after(state, runs=runs), broken)
        if state.losses:
            after = self.after(state, **faulty)
            yield Step(f"{told}: the request comes twice", after, broken, is_fault=True)

    def _send(self, request: Request) -> str:
        """Send a request of a run; return the law that it breaks."""
        verb, name, token, message = request
        before = self._held_beside(name, token)
        mark = Mark(message, LEASE)
        broken = ""
        if verb == "renew":
            self._renew(name, token)
        elif verb == "release":
            self.ask("release", name, token, mark=mark)
        else:
            to = f"{message.partition('/')[0]}/d{_retries_before(message)}"
            facts = self._facts(int(message.partition("/")[0]), QUEUED, ',"published":true')
            answer = self.ask("hand_on", name, token, to, QUEUED_FOR, facts=facts, mark=mark)
            if answer.released and (name.partition(" ")[0], to) not in self._held_beside(name, token):
                broken = f"law 7: {to} does not hold the lock that was handed on to it"
        after = self._held_beside(name, token)
        changed = [other for (each, other), until in before.items() if after.get((each, other)) != until]
        return f"law 3: it changes the hold of {changed[0]}" if changed else broken

    def _renew(self, name: str, token: str) -> None:
        self.ask("renew", [Term(name, token, LEASE)])

    def _held_beside(self, name: str, token: str) -> dict[tuple[str, str], float]:
        """Return until when others hold these locks."""
        return {
            (each, other): held.until
            for each in name.split()
            for other, held in self.store._holders_of(each).items()
            if other != token
        }

    def _ended(self, state: State, run: Run) -> Iterator[Step]:
        """Its result is stored, and what follows is published: its message is done."""
        copy = run.copy
        job = state.jobs[copy.job]
        self.load(state)
        self.ask("mark_done", self._name(copy), copy.token, inf)
        # A retry is another message of the same call.
        stage = "over" if job.retries == _retries_before(copy.token) else job.stage
        done = tuple(sorted({*job.done, copy.token}))
        changes: Any = {
            "runs": _without(state.runs, run),
            "jobs": _put(state.jobs, copy.job, stage=stage, done=done),
        }
        yield Step(f"{copy.token} is done, and acknowledged", self.after(state, **changes))
        if state.kills:
            again = copy._replace(earlier=True)
            after = self.after(state, puts=[again], kills=state.kills - 1, **changes)
            yield Step(f"{copy.token} is done, and its worker killed before it says so", after, is_fault=True)

    def _kill(self, state: State, run: Run) -> Iterator[Step]:
        again = run.copy._replace(earlier=True)
        changes: Any = {"runs": _without(state.runs, run), "kills": state.kills - 1, "puts": [again]}
        told = f"run {run.token} is killed, and {run.copy.token} delivered again"
        self.load(state)
        yield Step(told, self.after(state, **changes), is_fault=True)
        if run.stage == "body":
            late = ("renew", self._name(run.copy), run.token, run.copy.token)
            after = self.after(state, owed=tuple(sorted((*state.owed, late))), **changes)
            yield Step(f"{told}; its renewal is late", after, is_fault=True)

    def _late(self, state: State, request: Request) -> Step:
        self.load(state)
        broken = self._send(request)
        after = self.after(state, owed=_without(state.owed, request))
        return Step(f"the late {request[0]} of run {request[2]} arrives", after, broken)


def _put(jobs: tuple[Job, ...], number: int, **changes: Any) -> tuple[Job, ...]:
    return (*jobs[:number], jobs[number]._replace(**changes), *jobs[number + 1 :])


def _without(items: tuple[Any, ...], item: Any) -> tuple[Any, ...]:
    at = items.index(item)
    return (*items[:at], *items[at + 1 :])


def _in_order(runs: Sequence[Run]) -> tuple[Run, ...]:
    return tuple(sorted(runs))


def _retries_before(token: str) -> int:
    """Return which retry a message is; 0 for the first one: its own retry has this number."""
    return 0 if token.endswith("c") else int(token.rpartition("d")[2]) + 1


def _unused(job: int, state: State) -> str:
    """Return a token that nobody knows; one that is written nowhere any more is as good as a new one."""
    known = {run.token for run in state.runs} | {request[2] for request in state.owed}
    known.update(token for _, held in state.store.holders for token, *_ in held)
    known.update(token for _, starts in state.store.starts for _, token in starts)
    return next(token for n in range(1000) if (token := f"{job}/r{n}") not in known)
