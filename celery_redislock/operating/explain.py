"""Why a task does not run: its key, who holds it, where its message is, who else was refused."""

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from celery_redislock.declaring.declaration import declaration_of, is_unique
from celery_redislock.declaring.kinds import Rates, hint
from celery_redislock.declaring.options import LockOptions
from celery_redislock.declaring.scopes import WAITING
from celery_redislock.declaring.server import settings_of
from celery_redislock.exceptions import RedisLockError
from celery_redislock.locks.force import told_of_force
from celery_redislock.locks.hold import LOOKED_AT
from celery_redislock.locks.lease import new_token
from celery_redislock.operating import telling
from celery_redislock.operating.schedule import SHARED, Schedule, told_of_state
from celery_redislock.operating.server import LockServer, Place, Trouble
from celery_redislock.operating.subject import arguments, handle_of, nobody, unknown_task
from celery_redislock.publishing.handle import Holder, LockHandle
from celery_redislock.publishing.message import Message
from celery_redislock.store.store import HELD, OPERATOR, QUEUED, RATED, Limit, Refused

#: Holders and skipped calls that are shown; locks that have refused calls and are looked at, a request each.
SHOWN = 5
SEARCHED = 1000

#: What becomes of a call that is refused, by strategy.
_BECOMES = {
    "skip": "be skipped",
    "raise": "fail with DuplicateTask",
    "wait": "wait in line",
    "coalesce": "take the place of the one of its task that waits, or wait in line",
    "callable": "be decided about by the task's on_conflict callable",
}

#: States of a message that was found nowhere.
_LOST = ("unknown", "unseen")

_Row = tuple[str, str]


class Subject(NamedTuple):
    """What the words of the command name.

    Attributes:
        name: as it was given.
        holders: who holds its locks; ``places``: where its task id waits.
        keys: of its locks, as far as they are known.
        task_id: whose message is looked for.
        handle: of the task's call, where its arguments are known: ``call``.
        is_former: it is no task of the app, and locks are held for a task of that name.
        is_its: whether a call that was refused is one of those that are meant.
        header: of its message, where that was seen.
    """

    name: str
    holders: list[Holder]
    places: list[Place]
    keys: tuple[str, ...] = ()
    task_id: str | None = None
    handle: LockHandle | None = None
    call: tuple[list[Any], dict[str, Any]] = ([], {})
    is_former: bool = False
    is_its: Callable[[Refused], bool] = lambda _: True
    header: Message | None = None

    @property
    def shown_keys(self) -> list[str]:
        """Those that are not looked at only because a call may be queued beside a run."""
        return [key for key in self.keys if not key.startswith("queued:") or key == self.name]


class Explanation(NamedTuple):
    """Why it does not run: the document for programs, and rows for people, each a label and a text.

    ``holders``: of its locks. ``is_known``: something is known of it; quickly: somebody holds it, or waits.
    """

    document: Mapping[str, Any]
    rows: Sequence[_Row]
    holders: Sequence[Holder]
    is_known: bool


def explanation(server: LockServer, words: Sequence[str], *, quick: bool = False) -> Explanation:
    """Explain what these words name: a TASK and its arguments, a task id, a key.

    It asks the app's workers, which takes a second or two, looks into its queues on Redis, and reads its
    schedule; ``quick``: the lock server only. It changes nothing.

    Raises:
        Trouble: the words name nothing that can be looked for, or the app's tasks cannot be imported.
        LockUnavailable: the lock server does not answer.
    """
    subject = _subject(server, words)
    subject, message = _with_message(server, subject, quick=quick)
    looked_at = subject.keys or ([] if quick else server.store.refused(limit=SEARCHED))
    histories = {key: server.store.happened(key) for key in looked_at}
    refused = [each for history in histories.values() for each in history.refused if subject.is_its(each)]
    forced = {key: histories[key].forced for key in subject.keys if histories[key].forced}
    limits = {key: limit for key in subject.keys if (limit := server.store.limit(key)) is not None}
    firsts = [place for key in subject.keys for place in server.places(key, last=0)]
    lengths = {place.waiter.key: place.length for place in firsts if place.length}
    rates = server.full_rates({**_declared(subject), **{each.waiter.key: each.facts for each in firsts}})
    unserved = server.unserved(firsts)
    is_known = any([subject.holders, subject.places, lengths])
    missing: list[_Row] = []
    now = ""
    entries = []
    if not quick:
        is_served = any(one.state == QUEUED or (one.ttl and not one.is_late) for one in subject.holders)
        if not is_served:
            missing = _next(server, [first for first in firsts if first.waiter.key not in unserved], rates)
        missing += _elsewhere(server, subject)
        is_on_hold = any(place.waiter.state == HELD for place in firsts)
        now = "" if subject.handle is None else _now(server, subject, sum(lengths.values()), is_on_hold)
        entries = _entries(server, subject)
        is_known = is_known or any([refused, forced, limits, entries, subject.handle, missing])
    is_lost = message.get("state") in _LOST
    has_hold = any(holder.owner == subject.task_id for holder in subject.holders)
    if (is_lost or quick) and not is_known:
        maybe = f"; or it is {message['told']}" if message.get("state") == "unseen" else ""
        message = {**message, "told": nobody(server, _called(subject), words) + maybe}
    elif is_lost and subject.name == subject.task_id and not has_hold:
        message = message if refused else {}
        if "skipped" in map(_label, refused):
            message = {"state": "skipped", "told": "skipped, and so not published"}
    document = {
        "subject": subject.name,
        "keys": subject.shown_keys,
        "locks": subject.holders,
        "release_command": server.freeing_command(subject.holders[0]) if subject.holders else None,
        "limits": {key: telling.limit_as_json(limit) for key, limit in limits.items()},
        "waits": [place.document() for place in subject.places],
        "rates": rates,
        "in_line": lengths,
        "handed_on": [place.document() for place in firsts if not place.rank],
        "next": dict(missing).get("next"),
        "elsewhere": dict(missing).get("elsewhere"),
        "unserved": unserved,
        "message": message or None,
        "now": now or None,
        "refused": [*map(_document, refused)],
        "forced": forced,
        "schedule": entries,
    }
    rows = [
        *(
            ("call", f"{place.waiter.task or '-'}[{place.waiter.owner}] waits{_facts_of(place.waiter)}")
            for place in subject.places[:1]
            if place.rank
        ),
        *_rows_of_locks(server, subject, firsts, limits),
        *(("rate", f"{key}: {telling.told_of_rate(rate)}") for key, full in rates.items() for rate in full),
        *missing,
        *(("handed on", _told_of_sends(place)) for place in firsts[:SHOWN] if not place.rank),
        *(("broker", server.told_of_unserved(*each)) for each in unserved.items()),
        *([("message", message["told"])] if message else []),
        *([("now", now)] if now else []),
        *((_label(each), _told(each)) for each in refused[:SHOWN]),
        *(("force", f"{key} was {told_of_force(facts)}") for key, facts in forced.items()),
        *(("schedule", _told_of_entry(entry)) for entry in entries),
        *_remedies(server, subject),
    ]
    is_known = is_known or message.get("state", "unknown") not in _LOST
    return Explanation(document, rows, subject.holders, is_known)


def _next(server: LockServer, firsts: Iterable[Place], rates: Mapping[str, object]) -> list[_Row]:
    """Tell when the first of a line gets its lock, and from whom; what else keeps it out is told as well."""
    for place in firsts:
        waiter = place.waiter
        if place.rank and waiter.state != HELD:
            waits = [("its rate has a place", waiter.key in rates), ("it is due", _is_early(waiter))]
            when = [told for told, is_so in waits if is_so] or ["it is free"]
            return [("next", server.told_of_next(waiter.key, " and ".join(when)))]
    return []


def _is_early(waiter: Holder) -> bool:
    return waiter.due is not None and waiter.due > time.time()


def _called(subject: Subject) -> str:
    """Return the key of a call whose arguments are known, or else what the words say."""
    return subject.handle.key if subject.handle is not None else subject.name


def _subject(server: LockServer, words: Sequence[str]) -> Subject:
    """Find what the words name: a task's call, all its calls, a key, a task id, or a task renamed since."""
    name, *given = words
    task = server.tasks().get(name)
    if task is not None and not is_unique(task):
        raise Trouble(f"{name} takes no lock: its base is not SingletonTask, so none keeps it from running")
    if task is not None:
        return _of_task(server, name, task, given)
    if not name.strip():
        raise Trouble(f"{shlex.join(words)!r} names no task of the app, no task id and no key")
    if given and (server.app is None or not any(server.holders(task=name))):
        raise unknown_task(server, name, given)
    # A lock may be called as several resources are.
    is_one = " " in name and bool(server.store.holders(name) or server.store.waiting(name, last=0)[0])
    keys = _with_queued([name] if is_one else name.split(" "))
    holders = _holders_of(server, keys)
    histories = [*map(server.store.happened, keys)]
    is_key = any(one.refused or one.forced for one in histories) or any(map(server.store.limit, keys))
    if holders or is_key or any(server.store.waiting(key, last=0)[0] for key in keys):
        return Subject(name, holders, [], keys, _only(holders))
    # One look at all locks, of which there may be many.
    by_name = [holder for holder in server.holders() if name in {holder.owner, holder.task}]
    holders = [holder for holder in by_name if holder.owner == name]
    places = [place for place in server.places() if place.waiter.owner == name]
    found = [holder.key for holder in holders] + [place.waiter.key for place in places]
    is_its: Callable[[Refused], bool] = lambda each: each.hold.owner == name  # noqa: E731
    found = found or [
        key
        for key in server.store.refused(limit=SEARCHED)
        if any(map(is_its, server.store.happened(key).refused))
    ]
    if by_name and not found:
        of_task: Callable[[Refused], bool] = lambda each: each.hold.facts.get("task") == name  # noqa: E731
        is_former = server.app is not None
        return Subject(name, by_name, [], task_id=_only(by_name), is_former=is_former, is_its=of_task)
    keys = (*dict.fromkeys(found),)
    return Subject(name, holders or _holders_of(server, keys), places, keys, name, is_its=is_its)


def _keys_of(name: str) -> tuple[str, ...]:
    """Return the locks of a call's key: each of several resources, and that of a queued call beside."""
    return _with_queued(name.split(" "))


def _with_queued(names: Iterable[str]) -> tuple[str, ...]:
    names = [*filter(None, names)]
    return (*names, *(f"queued:{each}" for each in names if not each.startswith("queued:")))


def _holders_of(server: LockServer, keys: Iterable[str]) -> list[Holder]:
    return [Holder.of(hold) for holds in server.store.holders_of_each(keys) for hold in holds]


def _of_task(server: LockServer, name: str, task: Any, given: list[str]) -> Subject:
    try:
        handle = handle_of(task, given)
    except Trouble:
        if given:
            raise
        holders = [*server.holders(task=name)]
        is_its: Callable[[Refused], bool] = lambda each: each.hold.facts.get("task") == name  # noqa: E731
        return Subject(name, holders, [], task_id=_only(holders), is_its=is_its)
    keys = _keys_of(handle.key)
    holders = _holders_of(server, keys)
    return Subject(name, holders, [], keys, _only(holders), handle, call=arguments(given))


def _only(holders: list[Holder]) -> str | None:
    """Return the task id of all holders, if it is one; a Lock's is none."""
    owners = {holder.owner for holder in holders if holder.task is not None}
    return owners.pop() if len(owners) == 1 else None


def _with_message(server: LockServer, subject: Subject, *, quick: bool) -> tuple[Subject, dict[str, Any]]:
    """Look for the message of the task id; learn from its header what the locks did not tell.

    ``quick``: only in the lines.
    """
    from celery_redislock.receiving.whereabouts import find_message  # noqa: PLC0415  imports a worker's parts

    task_id = subject.task_id
    of_its_keys = (each for key in subject.keys for each in server.places(key, last=LOOKED_AT))
    places = subject.places or [each for each in of_its_keys if each.waiter.owner == task_id]
    if places and places[0].rank:  # else it was handed its lock, and is on its way
        rank, length, waiter, *_ = places[0]
        told = f"in the line of {waiter.key}, number {rank} of {length}"
        return subject, {"state": "waits", "told": told if subject.places else f"of {task_id}: {told}"}
    if quick or server.app is None or task_id is None:
        return subject, {}
    runs = any(holder.owner == task_id and holder.state == "running" for holder in subject.holders)
    found = find_message(server.app, settings_of(server.app), task_id, runs=runs)
    subject = subject._replace(header=found.header)
    if found.header and found.header.key and not subject.keys:
        keys = _keys_of(found.header.key)
        subject = subject._replace(keys=keys, holders=_holders_of(server, keys), is_its=lambda _: True)
    told = found.told if subject.name == task_id else f"of {task_id}: {found.told}"
    return subject, {"task_id": task_id, "state": found.state, "told": told}


def _elsewhere(server: LockServer, subject: Subject) -> list[_Row]:
    """Tell of a lock that is held under another prefix, or maybe on another server."""
    header = subject.header
    token = ""
    if header and header.claimed and all(holder.owner != subject.task_id for holder in subject.holders):
        token = header.token
    elif subject.holders:
        return []
    with suppress(RedisLockError):  # a user who may not look
        names = subject.keys or [subject.name]
        for prefix in (each for name in names for each in server.store.other_prefixes(name, token)):
            where = f"under the prefix {prefix!r}, and looked for under {server.store.prefix!r}"
            remedy = "if that is this app, give all its processes one redislock_prefix"
            return [("elsewhere", f"it is held {where}: {remedy}")]
    gone = "its claim expired, was released, or is maybe on another lock server (redislock_url)"
    return [("elsewhere", gone)] if token else []


def _rows_of_locks(
    server: LockServer, subject: Subject, firsts: Sequence[Place], limits: Mapping[str, Limit]
) -> Iterator[_Row]:
    lengths = {place.waiter.key: place.length for place in firsts if place.length}
    if subject.is_former:
        remedy = hint(subject.name, server.tasks(), "no worker of this app runs its messages")
        yield "task", f"{subject.name} is no task of this app: renamed, or removed; {remedy}"
    elif not subject.keys:
        is_task = subject.name in server.tasks()
        yield "key", f"none for {subject.name}{' without its arguments' if is_task else ' is known here'}"
    for key in subject.shown_keys:
        yield "key", key
    if subject.keys and not subject.holders:
        yield "held by", "nobody"
    for holder in subject.holders[:SHOWN]:
        beside = "" if holder.key in subject.shown_keys else f", as {holder.key}"
        yield "held by", f"{telling.in_brief(holder)}{_facts_of(holder)}{beside}"
        yield "", telling.life(holder)
    if len(subject.holders) > SHOWN:
        yield "held by", f"… {len(subject.holders) - SHOWN} others; {server.command} list shows them all"
    for key in subject.keys:
        if key in lengths:
            first = next(place for place in firsts if place.waiter.key == key)
            told = telling.told_of(first.waiter)
            if first.waiter.state == HELD:
                begins = "begins when what holds it has ended; nothing starts before"
                yield "on hold", f"by {first.waiter.owner}{_facts_of(first.waiter)}: {begins}"
            command = f"{server.command} waiting {shlex.quote(key)}"
            yield "in line", f"{lengths[key]} wait for {key}{told}; {command}"
        if key in limits:
            yield "limit", telling.of_limit(limits[key])


def _facts_of(holder: Holder) -> str:
    about = "" if holder.about is None else f", {holder.about}"
    return about if holder.since is None else f"{about}, since {telling.moment(holder.since)}"


def _told_of_sends(place: Place) -> str:
    """Tell of a message that was handed its lock."""
    times = f", sent {place.sends} times," if place.sends > 1 else ""
    return f"{place.waiter.owner}{times} has not started"


def _if_free(options: LockOptions, becomes: str, in_line: int) -> str:
    """Tell what a call would do whose key nobody holds."""
    if options.lock_debounce is not None:
        return f"start when no other one has come for {options.lock_debounce:g} s"
    if in_line:
        return f"{becomes}: {in_line} wait before it"
    return "be published, and start as soon as a worker has it"


def _declared(subject: Subject) -> dict[str, dict[str, Any]]:
    """Return what a call would say of its rate, by its key."""
    if subject.handle is None:
        return {}
    declaration = declaration_of(subject.handle._task)
    options = declaration.with_limit(declaration.options, *subject.call)
    limit = options.lock_limit if declaration.options.lock_limit != 1 else None
    return {subject.handle.key: {"rate": Rates.for_scripts(options.lock_rate or ()), "limit": limit}}


def _now(server: LockServer, subject: Subject, in_line: int, is_on_hold: bool) -> str:
    """Tell what a call would meet now; ``is_on_hold``: an operator's hold is the first in line."""
    assert subject.handle is not None  # noqa: S101  else nobody asks
    declaration = declaration_of(subject.handle._task)
    options = declaration.with_limit(declaration.options, *subject.call)
    scope = options.scope
    if scope is None or not declaration.is_on:
        return "a call now would run without a lock: locking is switched off"
    [said] = _declared(subject).values()
    # Without a task nothing is noted of a refusal.
    facts = f'{{"rate":"{said["rate"]}"}}' if said["rate"] else ""
    terms: Any = {"period": options.lock_period, "limit": said["limit"], "facts": facts}
    names = [f"queued:{subject.handle.key}"] if scope.claims_beside else subject.handle.key.split(" ")
    refusals = (server.store.look(name, new_token("explain"), **terms) for name in names)
    refusal = next((one for one in refusals if one is not None), None)
    choice = options.server if scope.claim is None else options.client
    if choice != "coalesce" and (is_on_hold or (refusal is not None and refusal.hold.is_operators)):
        choice = "wait"
    becomes = _BECOMES[choice if isinstance(choice, str) else "callable"]
    is_full = choice == "wait" and in_line >= options.lock_max_waiting
    if is_full:
        becomes = f"be retried later: {in_line} wait, as many as lock_max_waiting lets"
    if scope.claim is None:
        holds_nothing = "a call that is queued holds nothing: ask with its task id"
        if refusal is None and not in_line:
            return f"a call now would be published, and start as soon as a worker has it ({holds_nothing})"
        behind = f" behind {in_line} others" if in_line and not is_full else ""
        return f"a call now would be published; its run would {becomes}{behind} ({holds_nothing})"
    if refusal is None:
        return f"a call now would {_if_free(options, becomes, in_line)}"
    holder = Holder.of(refusal.hold)
    if holder.state == RATED:
        opens = telling.duration(holder.remaining)
        return f"a call now would {becomes}: its rate has had its starts, and a place opens in {opens}"
    why = "its period has not passed" if holder.state == "period" else holder.state
    unless = "; made on that machine it is accepted, if the processes are dead" if holder.is_late else ""
    return f"a call now would {becomes}, because {holder.owner} holds the key ({why}){unless}"


def _label(each: Refused) -> str:
    waits = each.hold.facts.get("on_conflict") in WAITING or each.holder.startswith(OPERATOR)
    return "had to wait" if waits else "skipped"


def _told(each: Refused) -> str:
    facts = each.hold.facts
    side = "at start" if facts.get("state") == "running" else "at publish"
    who = f"{facts.get('task')}[{each.hold.owner}] {side} on {facts.get('host')}:{facts.get('pid')}"
    who += f", {facts['about']}" if facts.get("about") else ""
    times = "" if each.times == 1 else f"; {each.times} times since {telling.moment(each.first)}"
    held = f"{each.hold.name} was held by {each.holder}, on_conflict={facts.get('on_conflict')}"
    return f"{telling.moment(each.last)}: {who}: {held}{times}"


def _document(each: Refused) -> dict[str, Any]:
    names = ("task", "host", "pid", "state", "on_conflict")
    return {
        "key": each.hold.name,
        "times": each.times,
        "first": each.first,
        "last": each.last,
        "task_id": each.hold.owner,
        "held_by": each.holder,
        **{name: each.hold.facts.get(name) for name in names},
    }


def _entries(server: LockServer, subject: Subject) -> list[dict[str, Any]]:
    """Return the entries of the schedule for this task, where one can be read."""
    if server.app is None:
        return []
    names = {subject.name, *(holder.task for holder in subject.holders)}
    with suppress(Trouble):
        return [row for row in Schedule(server).rows() if not names.isdisjoint({row["task"], row["name"]})]
    return []


def _told_of_entry(entry: Mapping[str, Any]) -> str:
    sent = entry["last_sent"]
    state = told_of_state(entry)
    said = [
        "never sent" if sent is None else f"last sent {telling.moment(sent)}",
        entry["next_due"] and f"due {telling.moment(entry['next_due'])}",
        None if state == SHARED else state,
    ]
    return f"{entry['name']} ({entry['schedule']}): {'; '.join(filter(None, said))}"


def _remedies(server: LockServer, subject: Subject) -> Iterator[_Row]:
    if subject.is_former:
        yield from (("if freed", each) for each in telling.told_of_release(subject.holders))
        yield "free them", f"{server.command} release --reason TEXT --task {shlex.quote(subject.name)}"
        return
    holders = subject.holders[:SHOWN]
    commands = {holder.key: server.freeing_command(holder) for holder in holders}
    dropped = [key for key, command in commands.items() if command != server.release_command(key)]
    told = telling.told_of_release(holder for holder in holders if holder.key not in dropped)
    told += ["A dropped message does not run: it ends as REVOKED."] if dropped else []
    yield from (("if freed", each) for each in told)
    yield from (("free it", command) for command in commands.values())
