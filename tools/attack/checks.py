"""What must hold at the end of a round. Pure: facts in, and in words what contradicts them."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from celery_redislock.store.store import owner_name, owner_of
from tests.history import Interval, violations
from tools.attack.draw import HAND_OFF, RATE
from tools.attack.record import ACKNOWLEDGED, IN_HAND, PUSHED

#: What a task may end with because its process was killed, as with plain Celery.
OF_THE_DEAD = frozenset({"WorkerLostError", "Terminated", "ChordError"})
#: What a publish may raise, and a worker's log may show: somebody's decision, a server that was away, or a
#: body that cannot be read, which Celery reads behind this package's strategy.
EXPECTED = frozenset({
    "DuplicateTask", "LockLost", "LockUnavailable", "OnPurpose", "OperationalError", "ConnectionError",
    "TimeoutError", "ContentDisallowed", "DecodeError", *OF_THE_DEAD,
})  # fmt: skip

#: What begins the fate of a call for which nothing more will come.
LAST = ("lost: FAILURE", "lost: REVOKED")

#: The two moments in which a message dies with its worker, as with plain Celery, and its claim stays.
GAP = "gap: "
TAKEN, NOT_BEGUN = f"{GAP}taken from its queue, and not yet stored", f"{GAP}acknowledged, and not begun"
#: What had no claim, because the run that asked for it was killed: it waits for the visibility timeout.
WAITS = f"{GAP}a retry whose claim was not left, still kept for its worker"

#: Seconds in which what a body leaves when it has ended is sent.
_LEAVING = 0.5

_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+(\S.*)"
    r"(?:\n\n(?:The above exception|During handling).*\n\n"
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)+(\S.*))*"
)


@dataclass
class Facts:
    """What is known about a round when it is over.

    Attributes:
        calls: what was accepted, workflows together.
        finished: by the number of a call, the highest number of retries with which its body came to its end.
        begun: the same of bodies that began.
        asked: by the number of a call, the retries that it has asked for, which were published.
        states: by task id: its state, and the name of its error.
        revoked: task ids.
        received_by_dead: task ids of what workers had received which were killed later.
        in_flight: how many messages Redis may have sent to a worker that was killed before it read them.
        messages: by task id, what Redis was last told of its messages; ``None`` on RabbitMQ.
        bodies: of each body that began, by task id and retries: "killed" where it did not end.
        killed: the number of a call and its retries, of each body that did not end.
        waited: owners of calls whose messages were in a line, which keeps them until they have started, and
            have not started.
        taken_for_done: task ids of runs whose child was killed and whose message Celery acknowledged, as it
            found a success stored under the id.
    """

    calls: Sequence[Sequence[Mapping[str, Any]]] = ()
    finished: Mapping[int, int] = field(default_factory=dict)
    begun: Mapping[int, int] = field(default_factory=dict)
    asked: Mapping[int, int] = field(default_factory=dict)
    states: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    revoked: frozenset[str] = frozenset()
    received_by_dead: frozenset[str] = frozenset()
    in_flight: int = 0
    messages: Mapping[str, frozenset[str]] | None = None
    bodies: Mapping[tuple[str, int], str] = field(default_factory=dict)
    killed: frozenset[tuple[int, int]] = frozenset()
    waited: frozenset[str] = frozenset()
    taken_for_done: frozenset[str] = frozenset()


class Entry(NamedTuple):
    """A message that Redis keeps for the worker that has it in hand; the worker's name is empty in some."""

    task_id: str
    retries: int
    in_hand_of: str
    is_late: bool


def fate(call: Mapping[str, Any], facts: Facts) -> str:  # noqa: PLR0911  a table, one row a line
    """Return what became of an accepted call; ``lost: ...`` for what plain Celery would not lose."""
    number, task_id = call["number"], call["id"]
    state, error = facts.states.get(task_id, ("PENDING", ""))
    is_ready = state in {"SUCCESS", "FAILURE", "REVOKED"}
    if task_id in facts.revoked:
        return "revoked"
    if facts.finished.get(number, -1) >= facts.asked.get(number, 0):
        died = call["early"] and task_id in facts.received_by_dead
        return (
            "finished"
            if is_ready
            else "died with its worker"
            if died
            else f"lost: the result, which is {state}"
        )
    if call.get("newest") and is_ready and "begun" in map(facts.bodies.get, _bodies_of(task_id, facts)):
        return "finished"  # with its own arguments, or with those of a newer call
    # Of an id that is used again the state may be another call's.
    if call["droppable"] and (state == "REVOKED" or error == "DuplicateTask" or (call["fixed"] and is_ready)):
        return "dropped as a duplicate"
    if error in OF_THE_DEAD and facts.begun.get(number, 0) >= facts.asked.get(number, 0):
        return "died with its child"
    if task_id in facts.taken_for_done and (number, facts.asked.get(number, 0)) in facts.killed:
        # The success is another's (celery 5.7.0, on_failure): of the body that asked for this retry, and went
        # on, or of an earlier call of this id.
        return "died with its child"
    if call["early"] and task_id in facts.received_by_dead:
        return _of_dead(call, facts)
    if call["early"] and error in {"LockUnavailable", "OperationalError"}:
        return "failed visibly, both servers away"
    return f"lost: {state} {error}"


def _bodies_of(task_id: str, facts: Facts) -> list[tuple[str, int]]:
    return [each for each in facts.bodies if each[0] == task_id]


def outdated(
    attempts: Mapping[str, Sequence[Mapping[str, Any]]], outcomes: Mapping[str, Sequence[Any]], facts: Facts
) -> list[str]:
    """Return of which calls that coalesce the newest has not run, although nothing excuses that.

    Excused are those that were revoked, were in the hands of the dead or whose body was killed, those that a
    call without a number may have followed, and those whose id is used again.
    """
    last: dict[str, tuple[int, str]] = {}
    excused: set[str] = set()
    for name, (call, *_) in attempts.items():
        about, outcome = call.get("newest"), outcomes.get(name, ("", ""))
        if about is None:
            continue
        if not about["takes_part"]:
            continue
        task_id = outcome[1] if outcome[0] == "refused" else call["id"]
        if not about["is_numbered"] or outcome[0] not in {"accepted", "refused"}:
            excused.add(about["of"])
        last[about["of"]] = max(last.get(about["of"], (0, "")), (call["number"], task_id))
    found = []
    for of, (number, task_id) in last.items():
        bodies = _bodies_of(task_id, facts)
        is_hurt = task_id in facts.received_by_dead | facts.revoked or "killed" in map(
            facts.bodies.get, bodies
        )
        if (
            of not in excused
            and not is_hurt
            and not task_id.startswith("fixed")
            and number not in facts.begun
        ):
            found.append(f"the newest call of {of}, {number} [{task_id}], has not run")
    return found


def too_often(commands: Iterable[Sequence[bytes]]) -> list[str]:
    """Return which keys have started more runs in a span than their rate says, by the lock server's clock."""
    starts: defaultdict[bytes, list[int]] = defaultdict(list)
    for verb, *arguments in commands:
        if verb.upper() == b"LPUSH" and arguments[0].endswith(b"}:starts:%d" % RATE[1]):
            starts[arguments[0]].append(int(arguments[1].partition(b" ")[0]))
    return [
        f"{key.decode(errors='replace')}: {RATE[0] + 1} starts in {later - at} ms"
        for key, all_of in starts.items()
        for at, later in zip(all_of, all_of[RATE[0] :], strict=False)
        if later - at < RATE[1]
    ]


def _of_dead(call: Mapping[str, Any], facts: Facts) -> str:
    """Return the fate of what is acknowledged before it runs, and was in the hands of the dead."""
    if facts.begun.get(call["number"], -1) >= facts.asked.get(call["number"], 0):
        return "died with its worker"
    last = {ACKNOWLEDGED} if facts.messages is None else facts.messages.get(call["id"], frozenset())
    if IN_HAND in last and _may_wait(call["id"], facts.asked.get(call["number"], 0), facts):
        return WAITS
    return NOT_BEGUN if last == {ACKNOWLEDGED} else f"lost: {', '.join(sorted(last))}, and not begun"


def _may_wait(task_id: str, retries: int, facts: Facts) -> bool:
    """Whether Redis may keep what is acknowledged early: it began, or who retried left it no claim."""
    return (task_id, retries) in facts.bodies or facts.bodies.get((task_id, retries - 1)) == "killed"


def fates(facts: Facts) -> dict[str, str]:
    """Return what became of each accepted call, by ``task number [id]``; a workflow breaks as a whole."""
    return {f"{call['task']} {call['number']} [{call['id']}]": fate for call, fate in each(facts)}


def each(facts: Facts) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Return each accepted call, and what became of it."""
    in_flight = facts.in_flight
    for calls in facts.calls:
        of_workflow = [fate(call, facts) for call in calls]
        for place, call in enumerate(calls):
            is_taken = PUSHED in (facts.messages or {}).get(call["id"], ())
            if in_flight and is_taken and of_workflow[place].startswith("lost: "):
                of_workflow[place], in_flight = TAKEN, in_flight - 1
            if of_workflow[place] in {TAKEN, NOT_BEGUN} and owner_name(call["id"]) in facts.waited:
                of_workflow[place] = f"lost: it had waited in line; {of_workflow[place]}"
        is_broken = any(one != "finished" and not one.startswith("lost") for one in of_workflow)
        for call, one in zip(calls, of_workflow, strict=True):
            yield call, "its workflow broke" if is_broken and one.startswith("lost") else one


def overlaps(starts: Mapping[str, Any], beats: Mapping[str, Any], ends: Mapping[str, Any]) -> list[str]:
    """Return where two bodies were on at once under one key, or two of one message."""
    history = []
    for name, body in starts.items():
        seen, deadline = beats.get(name, (body["start"], body["deadline"]))
        if name in ends:
            seen, _, deadline = ends[name]
        who = f"{body['task']} {body['number']} [{body['id']}], retries {body['retries']}, pid {body['pid']}"
        names = (body["key"] or "").split()
        for key in names:  # several are locked together; their fence is of the first
            fence = body["fence"] if len(names) == 1 else None
            history.append(Interval(key, who, fence, body["start"], seen, deadline, body["limit"]))
        if body["message"] is not None:
            history.append(Interval(f"message {body['message']}", who, None, body["start"], seen, deadline))
    return violations(history)


def repeated(
    starts: Mapping[str, Any], ends: Mapping[str, Any], hits: Collection[tuple[float, int]]
) -> list[str]:
    """Return the bodies that began again: acknowledged before, or ended, and no kill or loss excuses it.

    ``hits``: when which process was killed or stopped.
    """
    found, seen = [], {}
    for name, body in sorted(starts.items(), key=lambda one: one[1]["start"]):
        # What is acknowledged late and was killed may have asked for a retry, and asks again.
        message = body["number"], body["retries"], body["id"] if body["early"] else body["message"]
        if body["number"] < 1 or message[2] is None:
            continue  # forged, or without a lock
        before, last = seen.get(message, (None, body))
        seen[message] = name, body
        ended, ended_by, deadline = ends.get(before, (0.0, "never", None))
        kept = ended_by in {"", "OnPurpose"} and (deadline is None or ended < deadline)
        is_hit = any(pid == last["pid"] and -0.1 < hit - ended < _LEAVING for hit, pid in hits)
        if before and (last["early"] or (kept and not is_hit)):
            how = "acknowledged before" if last["early"] else "ended"
            found.append(f"{body['task']} {message}, {how} in {last['pid']}, began again in {body['pid']}")
    return found


def ended_twice(starts: Mapping[str, Any], ends: Mapping[str, Any]) -> int:
    """Return how many messages have more than one body that came to its end."""
    ended = [starts[name] for name, (_, ended_by, *_) in ends.items() if not ended_by]
    counts = Counter((body["id"], body["retries"]) for body in ended)
    return sum(count > 1 for count in counts.values())


def left_in_hand(entries: Iterable[Entry], facts: Facts) -> list[str]:
    """Return what Redis keeps for workers when all is done, and should not."""
    return [
        f"the broker keeps {entry.task_id}, retries {entry.retries}, for {entry.in_hand_of or 'somebody'}"
        for entry in entries
        if (entry.is_late or not _may_wait(entry.task_id, entry.retries, facts))
        and not entry.task_id.startswith("forged-")
    ]


def left_behind(keys: Mapping[str, tuple[int, bytes]], over: Collection[str]) -> list[str]:
    """Return what is left on the lock server and should not be: of each key the milliseconds and the value.

    A claim may be: a killed publisher's, or that of a message that died with its worker, stays for
    ``lock_queue_ttl``; but not the claim of a task id that is ``over``. What a copy was handed in line, and
    died with its worker, ends with its hand-off.
    """
    found = []
    for key, (left, value) in keys.items():
        is_claim = b'"state":"queued"' in value.replace(b" ", b"")
        owner = owner_of(value.partition(b"\0")[0].decode(errors="replace"))
        if left < 0:
            found.append(f"{key} lives for ever: {value!r}")
        elif value.startswith(b"permits/"):
            continue  # its holders are named beside it
        elif b'"line":1' in value and left <= HAND_OFF * 1000:
            continue
        elif key.endswith(":lock") and (not is_claim or owner in over):
            found.append(f"{key} is left for {left} ms: {value!r}")
    return found


def over(facts: Facts) -> list[str]:
    """Return the task ids that need no lock any more: done, and in no dead worker's hands."""
    ids = [call["id"] for calls in facts.calls for call in calls if fate(call, facts) == "finished"]
    waits = facts.received_by_dead if facts.messages is None else ()
    return [one for one in ids if not one.startswith("fixed") and one not in waits]


def tracebacks(log: str) -> list[str]:
    """Return the tracebacks that pass through this package and end in nothing that was to be expected."""
    found = []
    for match in _TRACEBACK.finditer(log):
        text, last = match.group(), match.group().rpartition("\n")[2]
        name = re.split(r"[:(]", last, maxsplit=1)[0].rpartition(".")[2].strip()
        if "/celery_redislock/" in text and name not in EXPECTED:
            found.append("\n".join(text.splitlines()[-6:]))
    return sorted(set(found))


def unexplained(refused_for: Iterable[str], known: Collection[str]) -> list[str]:
    """Return the holders for whose sake calls were refused, and of whom nobody has ever heard."""
    return sorted(set(refused_for) - set(known))
