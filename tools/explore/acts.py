"""What others do to the locks of a small world: an operator, and a program without this package."""

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, Any

from tools.explore.world import LEASE, PERIOD, State, Step

if TYPE_CHECKING:
    from tools.explore.clients import Clients

#: Begins the steps after which a line has another order.
MOVES = "an operator moves"

#: As a verb: another program sets the key of a lock.
OVERWRITE = "overwrite"

#: What it sets.
THEIRS = "theirs"


def acts(clients: "Clients", state: State) -> Iterator[Step]:
    """Yield what others may do in a state. A run from which they take its lock is counted as none then."""
    state = state._replace(acts=state.acts - 1)
    for name, held in state.store.holders:
        for token, *_ in held:
            yield _force(clients, state, name, token)
        if clients.world.limit:
            yield from _set_limit(clients, state, name)
        else:
            yield _overwrite(clients, state, name)
    for name, places in state.store.lines:
        for place in places:
            yield from _move(clients, state, name, place.id)
            yield _drop(clients, state, name, place.id)


def _force(clients: "Clients", state: State, name: str, token: str) -> Step:
    clients.load(state)
    clients.ask("force_release", name, expected=token)
    closed: Any = {"closed": 0.0, "closed_by": ""} if clients.world.period else {}
    after = clients.after(state, runs=_without_trust(state, name, token), **closed)
    return Step(f"an operator releases {name} from {token}", after, is_fault=True)


def _overwrite(clients: "Clients", state: State, name: str) -> Step:
    clients.load(state)
    clients.ask(OVERWRITE, name, LEASE)
    told = f"another program sets the key of {name}"
    return Step(told, clients.after(state, runs=_without_trust(state, name)), is_fault=True)


def _set_limit(clients: "Clients", state: State, name: str) -> Iterator[Step]:
    for limit in (1, None):
        clients.load(state)
        clients.ask("limit", name, limit, ttl=PERIOD)
        told = "an operator resets the limit" if limit is None else f"an operator sets a limit of {limit}"
        yield Step(f"{told} of {name}", clients.after(state), is_fault=True)


def _without_trust(state: State, name: str, token: str = "") -> Any:
    """Return the runs, of which this one, or each, takes this lock for held no more."""
    holders = {each for each, *_ in dict(state.store.holders)[name] if token in {"", each}}
    runs = (run._replace(trusted=0.0) if run.token in holders else run for run in state.runs)
    return tuple(sorted(runs))


def _move(clients: "Clients", state: State, name: str, id_: str) -> Iterator[Step]:
    for place in ("first", "last"):
        clients.load(state)
        clients.ask("move", name, id_, place)
        told = f"{MOVES} {id_} in the line of {name}: {place}"
        yield Step(told, clients.after(state), is_fault=True)


def _drop(clients: "Clients", state: State, name: str, id_: str) -> Step:
    """As ``receiving/drop.py``: its result is stored, and a copy of it does nothing."""
    clients.load(state)
    word, *_ = clients.ask("leave", name, id_, unless_held=True)
    jobs = [*state.jobs]
    if word == "left":
        clients.ask("mark_done", name, id_, inf)
        number = int(id_.partition("/")[0])
        jobs[number] = jobs[number]._replace(stage="dropped")
    told = f"an operator drops {id_} from the line of {name}: {word}"
    return Step(told, clients.after(state, jobs=tuple(jobs)), is_fault=True)
