"""What is promised in every state, and between two of them."""

from math import inf

from celery_redislock.store.memory import _Place
from tools.explore.world import State, World


def broken_by(world: World, state: State) -> str:
    """Return the law that a state breaks; '' for none."""
    for name in {part for names in world.names for part in names.split()}:
        runs = [run for run in state.runs if run.trusted > 0.0 and name in world.names[run.copy.job].split()]
        places = sum(world.weights[run.copy.job] if world.weights else 1 for run in runs)
        if places > (world.limit or 1):
            return f"law 1: {', '.join(run.token for run in runs)} run at once"
    store = state.store
    last = [end for _, held in store.holders for _, _, end, _ in held] + [end for *_, end in store.periods]
    if inf in last:
        return "law 4: a hold without an end"
    if {name for name, _ in store.lines} != {name for name, at in store.due if at < inf}:
        return "law 2: a line that nobody looks at"
    there = {copy.job for copy in state.queue}.union(run.copy.job for run in state.runs)
    there.update(int(_job(place.id)) for place in store.places)
    lost = [number for number, job in enumerate(state.jobs) if job.stage == "live" and number not in there]
    return f"law 2: call {lost[0]} is nowhere" if lost else ""


def passed_over(before: State, after: State) -> str:
    """Return who was handed a lock, or stands in its line, before one that waited longer; '' for nobody."""
    later = dict(after.store.lines)
    for name, line in before.store.lines:
        now = later.get(name, ())
        holders = dict(before.store.holders).get(name, ())
        held = {_job(token) for token, *_ in holders}
        # Another delivery of what holds the lock is not its next holder.
        order = [p.id for p in line if not p.is_sent and p.due <= 0.0 and _job(p.id) not in held]
        sent = {place.id: place.is_sent for place in now}
        still = [id_ for id_ in order if sent.get(id_) is False]
        handed = [id_ for id_ in order if sent.get(id_)]
        if still and handed and order.index(still[0]) < order.index(handed[-1]):
            return f"order: {handed[-1]} is handed the lock before {still[0]}"
        if why := _stands_before(line, now):
            return why
    return ""


def _stands_before(before: tuple[_Place, ...], now: tuple[_Place, ...]) -> str:
    """Return who has come to a line, and stands before one of its band that was there."""
    known = {place.id for place in before}
    if not known <= {place.id for place in now}:
        return ""  # somebody has left, whose place another one may have
    for at, place in enumerate(now):
        behind = [each.id for each in now[at:] if each.band == place.band and not each.is_sent]
        if place.id not in known and known.intersection(behind):
            return f"order: {place.id} stands before {min(known.intersection(behind))}"
    return ""


def _job(token: str) -> str:
    return token.partition("/")[0]
