"""The command that answers "task X does not run": ``explain``."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import click

from celery_redislock.cli import output
from celery_redislock.cli.schedule import Schedule, told_of_pause, told_of_skip
from celery_redislock.cli.subject import LockServer, Place, Trouble, as_json_option, find, handle_of
from celery_redislock.declaring.declaration import declaration_of, is_unique
from celery_redislock.declaring.kinds import hint
from celery_redislock.declaring.server import settings_of
from celery_redislock.locks.force import told_of_force
from celery_redislock.locks.lease import new_token
from celery_redislock.locks.store import Refused
from celery_redislock.publishing.handle import Holder, LockHandle

#: Holders and skipped calls that are shown; locks that have refused calls and are looked at, a request each.
SHOWN = 5
SEARCHED = 1000

#: What becomes of a call that is refused, by strategy.
_BECOMES = {
    "skip": "be skipped",
    "raise": "fail with DuplicateTask",
    "wait": "wait in line",
    "callable": "be decided about by the task's on_conflict callable",
}

_Row = tuple[str, str]


class Subject(NamedTuple):
    """What the words of the command name.

    Attributes:
        name: as it was given.
        holders: who holds its locks; ``places``: where its task id waits.
        keys: of its locks, as far as they are known.
        task_id: whose message is looked for.
        handle: of the task's call, where its arguments are known.
        is_former: it is no task of the app, and locks are held for a task of that name.
        is_its: whether a call that was refused is one of those that are meant.
    """

    name: str
    holders: list[Holder]
    places: list[Place]
    keys: tuple[str, ...] = ()
    task_id: str | None = None
    handle: LockHandle | None = None
    is_former: bool = False
    is_its: Callable[[Refused], bool] = lambda _: True


@click.command()
@click.argument("words", metavar="TASK [ARGUMENT]... | TASK_ID | KEY", nargs=-1, required=True)
@as_json_option
@click.pass_context
def explain(ctx: click.Context, words: tuple[str, ...], as_json: bool) -> None:
    """Tell why a task does not run: its key, who holds that, where the message is, who else was refused.

    A TASK's arguments are given as for show; without them, all its calls are meant. A TASK_ID may be queued,
    in a worker's hands, waiting in line, running, over, or skipped within the last hour. The app's workers
    are asked, which takes a second or two, its queues on Redis are looked into, and its schedule is read.
    Nothing is changed.

    Exit status: 0 something is known, 1 nothing is, 2 trouble.
    """
    server = LockServer.of(ctx)
    subject = _subject(server, words)
    subject, message = _with_message(server, subject)
    refused = [*_refused(server, subject)]
    happened = {key: server.store.happened(key).forced for key in subject.keys}
    forced = {key: facts for key, facts in happened.items() if facts}
    lengths = {key: server.store.waiting(key, last=0)[0] for key in subject.keys}
    now = "" if subject.handle is None else _now(server, subject.handle, sum(lengths.values()))
    entries = _entries(ctx, server, subject)
    is_known = subject.holders or subject.places or refused or forced or entries or subject.handle
    if as_json:
        document = {
            "server": server.store.server,
            "subject": subject.name,
            "keys": subject.keys,
            "locks": subject.holders,
            "waits": [place.document() for place in subject.places],
            "in_line": lengths,
            "message": message or None,
            "now": now or None,
            "refused": [*map(_document, refused)],
            "forced": forced,
            "schedule": entries,
        }
        output.write_json(document)
    else:
        rows = [
            *_rows_of_locks(server, subject, lengths),
            *([("message", message["told"])] if message else []),
            *([("now", now)] if now else []),
            *((_label(each), _told(each)) for each in refused[:SHOWN]),
            *(("force", f"{key} was {told_of_force(facts)}") for key, facts in forced.items()),
            *(("schedule", _told_of_entry(entry)) for entry in entries),
            *_remedies(server, subject),
        ]
        for label, text in rows:
            output.say(f"{label:<13}{text}")
    ctx.exit(0 if is_known or message.get("state", "unknown") != "unknown" else 1)


def _subject(server: LockServer, words: tuple[str, ...]) -> Subject:
    """Find what the words name: a task's call, all its calls, a key, a task id, or a task renamed since."""
    name, *given = words
    task = server.tasks().get(name)
    if task is not None and not is_unique(task):
        raise Trouble(f"{name} takes no lock: its base is not SingletonTask, so none keeps it from running")
    if task is not None:
        return _of_task(server, name, task, given)
    if given:
        find(server, words)  # says why not
    holders = [*map(Holder.of, server.store.holders(name))]
    history = server.store.happened(name)
    if holders or history.refused or history.forced or server.store.waiting(name)[0]:
        return Subject(name, holders, [], (name,), _only(holders))
    # One look at all locks, of which there may be many.
    by_name = [holder for holder in server.holders() if name in {holder.owner, holder.task}]
    holders = [holder for holder in by_name if holder.owner == name]
    places = [place for place in server.places() if place.waiter.owner == name]
    found = [holder.key for holder in holders] + [place.waiter.key for place in places]
    is_its: Callable[[Refused], bool] = lambda each: each.hold.owner == name  # noqa: E731
    found = found or [each.hold.name for each in _refused(server, Subject(name, [], [], is_its=is_its))]
    if by_name and not found:
        return Subject(name, by_name, [], task_id=_only(by_name), is_former=True)
    keys = (*dict.fromkeys(found),)
    holders = holders or [Holder.of(hold) for key in keys for hold in server.store.holders(key)]
    return Subject(name, holders, places, keys, name, is_its=is_its)


def _of_task(server: LockServer, name: str, task: Any, given: list[str]) -> Subject:
    try:
        handle = handle_of(task, given)
    except Trouble:
        if given:
            raise
        holders = [*server.holders(task=name)]
        is_its: Callable[[Refused], bool] = lambda each: each.hold.facts.get("task") == name  # noqa: E731
        return Subject(name, holders, [], task_id=_only(holders), is_its=is_its)
    _, holders = find(server, (name, *given))
    return Subject(name, holders, [], (handle.key,), _only(holders), handle)


def _only(holders: list[Holder]) -> str | None:
    """Return the task id of the only holder; a Lock's is none."""
    return holders[0].owner if len(holders) == 1 and holders[0].task is not None else None


def _refused(server: LockServer, subject: Subject) -> Iterator[Refused]:
    """Return the calls that were refused in the last hour, of its keys, or of all if it has none."""
    keys = subject.keys or reversed(server.store.refused(limit=100 * SEARCHED)[-SEARCHED:])
    for key in keys:
        yield from filter(subject.is_its, server.store.happened(key).refused)


def _with_message(server: LockServer, subject: Subject) -> tuple[Subject, dict[str, Any]]:
    """Look for the message of the task id; learn from it what the locks did not tell."""
    from celery_redislock.receiving.whereabouts import find_message  # noqa: PLC0415  imports a worker's parts

    task_id = subject.task_id
    if subject.places:
        rank, length, waiter = subject.places[0]
        return subject, {"state": "waits", "told": f"in the line of {waiter.key}, number {rank} of {length}"}
    if server.app is None or task_id is None:
        return subject, {}
    runs = any(holder.owner == task_id and holder.state == "running" for holder in subject.holders)
    found = find_message(server.app, settings_of(server.app), task_id, runs=runs)
    if found.key is not None and not subject.keys:
        holders = [*map(Holder.of, server.store.holders(found.key))]
        subject = subject._replace(keys=(found.key,), holders=holders, is_its=lambda _: True)
    told = found.told if subject.name == task_id else f"of {task_id}: {found.told}"
    return subject, {"task_id": task_id, "state": found.state, "told": told}


def _rows_of_locks(server: LockServer, subject: Subject, lengths: Mapping[str, int]) -> Iterator[_Row]:
    if subject.is_former:
        remedy = hint(subject.name, server.tasks(), "no worker of this app runs its messages")
        yield "task", f"{subject.name} is no task of this app: renamed, or removed; {remedy}"
    elif not subject.keys:
        is_task = subject.name in server.tasks()
        yield "key", f"none for {subject.name}{' without its arguments' if is_task else ' is known here'}"
    for key in subject.keys:
        yield "key", key
        if not any(holder.key in {key, f"queued:{key}"} for holder in subject.holders):
            yield "held by", "nobody"
    for holder in subject.holders[:SHOWN]:
        about = "" if holder.about is None else f", {holder.about}"
        since = "" if holder.since is None else f", since {output.moment(holder.since)}"
        beside = "" if holder.key in subject.keys else f", as {holder.key}"
        yield "held by", f"{output.in_brief(holder)}{about}{since}{beside}"
        yield "", output.life(holder)
    if len(subject.holders) > SHOWN:
        yield "held by", f"… {len(subject.holders) - SHOWN} others; {server.command} list shows them all"
    for key, length in lengths.items():
        if length:
            yield "in line", f"{length} wait for {key}; {server.command} waiting {key}"
        if (limit := server.store.limit(key)) is not None:
            yield "limit", output.of_limit(limit)


def _now(server: LockServer, handle: LockHandle, in_line: int) -> str:
    """Tell what a call would meet now."""
    declaration = declaration_of(handle._task)
    options = declaration.options
    scope = options.scope
    if scope is None or not declaration.is_on:
        return "a call now would run without a lock: locking is switched off"
    limit = options.lock_limit if isinstance(options.lock_limit, int) and options.lock_limit > 1 else None
    key = f"queued:{handle.key}" if scope.claims_beside else handle.key
    refusal = server.store.look(key, new_token("explain"), period=options.lock_period, limit=limit)
    choice = options.server if scope.claim is None else options.client
    becomes = _BECOMES[choice if isinstance(choice, str) else "callable"]
    if scope.claim is None and (refusal is not None or in_line):
        behind = f" behind {in_line} others" if in_line else ""
        return f"a call now would be published; its run would {becomes}{behind}"
    if refusal is None:
        return "a call now would be published, and start as soon as a worker has it"
    holder = Holder.of(refusal.hold)
    why = "its period has not passed" if holder.state == "period" else holder.state
    return f"a call now would {becomes}, because {holder.owner} holds the key ({why})"


def _label(each: Refused) -> str:
    return "had to wait" if each.hold.facts.get("on_conflict") == "wait" else "skipped"


def _told(each: Refused) -> str:
    facts = each.hold.facts
    side = "at start" if facts.get("state") == "running" else "at publish"
    who = f"{facts.get('task')}[{each.hold.owner}] {side} on {facts.get('host')}:{facts.get('pid')}"
    times = "" if each.times == 1 else f"; {each.times} times since {output.moment(each.first)}"
    held = f"{each.hold.name} was held by {each.holder}, on_conflict={facts.get('on_conflict')}"
    return f"{output.moment(each.last)}: {who}: {held}{times}"


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


def _entries(ctx: click.Context, server: LockServer, subject: Subject) -> list[dict[str, Any]]:
    """Return the entries of the schedule for this task, where one can be read."""
    if server.app is None or subject.task_id == subject.name:
        return []
    tasks = {subject.name, *(holder.task for holder in subject.holders)}
    with suppress(Trouble):
        return [row for row in Schedule(ctx, None).rows() if row["task"] in tasks]
    return []


def _told_of_entry(entry: Mapping[str, Any]) -> str:
    sent = entry["last_sent"]
    said = [
        "never sent" if sent is None else f"last sent {output.moment(sent)}",
        entry["next_due"] and f"due {output.moment(entry['next_due'])}",
        entry["paused"] and told_of_pause(entry),
        entry["last_skip"] and told_of_skip(entry["last_skip"]),
    ]
    return f"{entry['name']} ({entry['schedule']}): {'; '.join(filter(None, said))}"


def _remedies(server: LockServer, subject: Subject) -> Iterator[_Row]:
    if subject.is_former:
        yield "free them", f"{server.command} release --reason TEXT --task {subject.name}"
        return
    for key in dict.fromkeys(holder.key for holder in subject.holders[:SHOWN]):
        yield "free it", server.release_command(key)


COMMANDS: Mapping[str, click.Command] = {"explain": explain}
