"""Keys that stand still: nobody holds one, somebody waits, a worker is idle. Pure: facts in, verdict out."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tools.attack.draw import APART, FUSED, HAND_OFF, RABBITMQ, TERM

#: What a key stood still for: a message that the broker kept for a dead worker; anything else.
RESTORED, LOST = "restored", "lost"
#: Seconds a key may stand still, by where broker and lock server are, and by what it stood still for.
BOUNDS: Mapping[str, Mapping[str, float]] = {
    # Lost: its line is looked at after 2 s and, in doubt, 1 s later. Restored: the dead worker's name lapses,
    # and who looks for that pauses for up to 2 s. One second more is for a machine that is busy.
    FUSED: {LOST: 4.0, RESTORED: TERM + 3.0},
    # No script sees message and lock at once: the time to start ends, which is longer than a restore takes.
    APART: dict.fromkeys((LOST, RESTORED), HAND_OFF + 2.0),
    # Delivered again at once. Who is killed while it publishes the next one keeps others from it for 10 s.
    RABBITMQ: dict.fromkeys((LOST, RESTORED), 10.0 + 2.0),
}
#: Seconds from which on it is told.
LEAST = 0.5
#: Seconds within which a claim whose message is gone has begun what follows from it.
_AT_ONCE = 1.0


class Call(NamedTuple):
    """A call: the locks it needs, from when until when it waited."""

    names: tuple[str, ...]
    since: float
    until: float


class Run(NamedTuple):
    """A body: the locks its call needs, when it began and ended, and its task id."""

    names: tuple[str, ...]
    start: float
    end: float
    task_id: str


class Standstill(NamedTuple):
    """A key that stood still.

    Attributes:
        name: of its lock.
        began: when.
        seconds: in which a worker was idle, and nothing else stood still.
        ended: when.
        ended_by: the task id of the body that ended it; empty where none did.
        linked: its name, and those of keys whose lines can wait for this one's, as calls lock both.
    """

    name: str
    began: float
    seconds: float
    ended: float
    ended_by: str
    linked: frozenset[str]


def history(
    facts: Mapping[str, Mapping[str, Any]],
    hits: Sequence[tuple[float, int]],
    lost: Collection[str],
    waited: Collection[str],
    now: float,
) -> tuple[list[Call], list[Run], list[Call]]:
    """Return what the journal tells: calls, bodies, and calls whose messages are gone as plain ones would be.

    Args:
        facts: the journal's, by subject.
        hits: when which process was killed or stopped.
        lost: task ids of calls that should have begun, or begun again, and have not.
        waited: task ids of calls that were in a line.
        now: when the history ends.
    """
    calls = {call["number"]: call for calls in facts["attempts"].values() for call in calls}
    runs: list[Run] = []
    began: dict[str, float] = {}
    over: set[str] = set()
    for name, body in sorted(facts["starts"].items(), key=lambda one: one[1]["start"]):
        if body["number"] in calls:
            killed = [time for time, pid in hits if pid == body["pid"] and time >= body["start"]]
            last = facts["beats"].get(name, [body["start"]])
            end, ended_by, *_ = facts["ends"].get(name, [min(killed, default=last[0]), "killed"])
            runs.append(Run(tuple(calls[body["number"]]["names"]), body["start"], end, body["id"]))
            # What comes after a body that came to its end is a copy, for which no key stands still.
            if body["id"] not in over:
                began[body["id"]] = body["start"]
            if not ended_by:
                over.add(body["id"])
    accepted, gone = [], []
    for number, call in calls.items():
        outcome = facts["outcomes"].get(str(number), [""])
        until = now if call["id"] in lost else began.get(call["id"], 0.0)
        if outcome[0] == "accepted" and outcome[2] < until:
            accepted.append(Call(tuple(call["names"]), outcome[2], until))
        if not until and call["id"] not in waited:
            gone.append(Call(tuple(call["names"]), call["at"], now))
    return accepted, runs, gone


def standstills(
    calls: Sequence[Call],
    runs: Iterable[Run],
    shifts: Iterable[tuple[float, float, int]],
    disturbances: Iterable[tuple[float, float]],
) -> list[Standstill]:
    """Return where a key stood still for longer than ``LEAST``.

    It does while nobody runs who locks it, somebody waits for it whose other keys nobody uses either, and
    fewer bodies run than workers can run at once. Calls in a queue that no worker consumes are not meant.

    Args:
        calls: until each began for the last time, or to the end if it has not begun and should have.
        runs: all bodies.
        shifts: from when until when a worker was there, and how many bodies it runs at once.
        disturbances: from when until when something itself stood still: such time is not counted.
    """
    linked = _linked(calls)
    waiting: Counter[tuple[str, ...]] = Counter()
    running: Counter[str] = Counter()
    idle, disturbed, before = 0, 0, 0.0
    began: dict[str, float] = {}
    stood: dict[str, float] = {}
    found = []
    for time, kind, change, names, task_id in sorted(_events(calls, runs, shifts, disturbances)):
        if idle > 0 and not disturbed:
            free = [each for each, number in waiting.items() if number and not any(map(running.get, each))]
            for name in {name for each in free for name in each}:
                began.setdefault(name, before)
                stood[name] = stood.get(name, 0.0) + time - before
        before = time
        match kind:
            case "wait":
                waiting[names] += change
            case "shift":
                idle += change
            case "disturb":
                disturbed += change
            case "run":
                idle -= change
                running.update(dict.fromkeys(names, change))
                over = [name for name in names if change > 0 and name in began]
                for name in over:
                    seconds = stood.pop(name)
                    found.append(Standstill(name, began.pop(name), seconds, time, task_id, linked[name]))
    found += [Standstill(name, began[name], stood[name], before, "", linked[name]) for name in began]
    return [one for one in found if one.seconds > LEAST]


def _linked(calls: Iterable[Call]) -> dict[str, frozenset[str]]:
    linked: dict[str, frozenset[str]] = {}
    for names in {call.names for call in calls}:
        together = frozenset(names).union(*(linked.get(name, ()) for name in names))
        linked.update(dict.fromkeys(together, together))
    return linked


def _events(
    calls: Iterable[Call],
    runs: Iterable[Run],
    shifts: Iterable[tuple[float, float, int]],
    disturbances: Iterable[tuple[float, float]],
) -> Iterator[tuple[float, str, int, tuple[str, ...], str]]:
    spans = [
        *((call.since, call.until, "wait", 1, call.names, "") for call in calls),
        *((run.start, run.end, "run", 1, run.names, run.task_id) for run in runs),
        *((since, until, "shift", places, (), "") for since, until, places in shifts),
        *((since, until, "disturb", 1, (), "") for since, until in disturbances),
    ]
    for since, until, kind, change, names, task_id in spans:
        yield since, kind, change, names, task_id
        yield until, kind, -change, names, task_id


def cause(one: Standstill, found: Iterable[Standstill], in_hand: Collection[tuple[float, str]]) -> str:
    """Return what a key stood still for: itself, or a key whose line its own waited for.

    ``found``: all standstills; ``in_hand``: when which task id was found in the hands of a dead worker.
    """
    for each in _beside(one, found):
        times = [time for time, task_id in in_hand if task_id == each.ended_by]
        if any(each.began - _AT_ONCE < time < each.ended for time in times):
            return RESTORED
    return LOST


def _beside(one: Standstill, found: Iterable[Standstill]) -> list[Standstill]:
    """Return the standstill, and those of linked keys at that time."""
    return [
        each
        for each in found
        if each.name in one.linked and each.began <= one.ended and one.began <= each.ended
    ]


def longest(found: Sequence[Standstill], in_hand: Collection[tuple[float, str]]) -> dict[str, float]:
    """Return for how many seconds a key stood still at most, by cause; ``in_hand`` as above."""
    most = {LOST: 0.0, RESTORED: 0.0}
    for one in found:
        its_cause = cause(one, found, in_hand)
        most[its_cause] = max(one.seconds, most[its_cause])
    return most


def too_long(
    found: Sequence[Standstill],
    where: str,
    in_hand: Collection[tuple[float, str]],
    gone: Sequence[Call],
    queue_ttl: float,
) -> list[str]:
    """Return in words which keys stood still for longer than they may.

    Args:
        found: where one stood still.
        where: broker and lock server are, a key of ``BOUNDS``.
        in_hand: as above.
        gone: calls whose message died before it was in line, or was never published: nobody can tell their
            claims from others, which hold the key until ``queue_ttl`` is over (a stated limit).
        queue_ttl: seconds.
    """
    problems = []
    for one in sorted(found, key=lambda one: one.began):
        its_cause, beside = cause(one, found, in_hand), _beside(one, found)
        claimed = [
            call
            for call in gone
            for each in beside
            if each.name in call.names and abs(call.since - each.began) < _AT_ONCE
        ]
        bound = BOUNDS[where][its_cause]
        if one.seconds > bound + (queue_ttl if claimed else 0.0):
            until = f"until {one.ended_by} began" if one.ended_by else "to the end"
            problems.append(
                f"{one.name} stood still for {one.seconds:.1f} s from {one.began:.1f} on, {until}"
                f" ({its_cause}: at most {bound:g} s)"
            )
    return problems
