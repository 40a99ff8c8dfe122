"""The commands about lines: ``waiting``, who waits; ``limit``, how many may hold a lock; ``hold``, nobody."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import click

from celery_redislock.cli import output
from celery_redislock.cli.answer import Answer, answers, ask, for_option, table_of
from celery_redislock.declaring.declaration import declaration_of, is_unique
from celery_redislock.declaring.kinds import hint
from celery_redislock.declaring.options import LockOptions
from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks.acts import note_act
from celery_redislock.locks.hold import AN_HOUR
from celery_redislock.locks.limits import A_YEAR
from celery_redislock.log import logger
from celery_redislock.operating import telling
from celery_redislock.operating.lines import document_of, places_of
from celery_redislock.operating.server import LockServer, Place, Trouble
from celery_redislock.operating.subject import find, handle_of, unknown_task
from celery_redislock.publishing import promote
from celery_redislock.publishing.handle import Holder, LockHandle
from celery_redislock.receiving.drop import drop as drop_message
from celery_redislock.store.home import is_served
from celery_redislock.store.store import HELD, MOST_HOLDERS, MOST_TOLD, Promotion, owner_name

#: Entries that one request sends to their queues.
AT_ONCE = 100

#: Said where a number was set, and the task of the key is not known.
_DOUBT = (
    "nothing shows that a task with this key has a lock_limit above 1, or a callable; without one the number "
    "has no effect"
)

#: What is said after an act, and where it puts the one that waits.
_ACTS = {
    "first": ("moved", "to the front of"),
    "last": ("moved", "to the end of"),
    "drop": ("dropped", "from"),
}


@click.command()
@click.argument("subject", metavar="[KEY | TASK [ARGUMENT]... | PATTERN]", nargs=-1)
@click.option("--first", metavar="ID", help="Move a task id to the front of the line.")
@click.option("--last", metavar="ID", help="Move a task id to the end of the line.")
@click.option("--drop", metavar="ID", help="Remove a task id from the line. It ends as REVOKED.")
@click.option("--reason", help="Why; it is logged. Required with --drop.")
@click.option("--drain", is_flag=True, help="Send waiting messages to their queues, in order, unlocked.")
@click.option("--task", metavar="NAME", help="With --drain: the messages of a task, in all lines.")
@click.option("--all", "of_all", is_flag=True, help="With --drain: the lines of all locks.")
@click.option("--home", "is_home", is_flag=True, help="With --drain: also those of a broker without workers.")
@click.option("--dry-run", is_flag=True, help="With --drain: show what it would send.")
@click.option("--yes", is_flag=True, help="Do not ask before; for scripts. With --json nobody is asked.")
@output.wide_option
@answers
def waiting(
    server: LockServer, /, subject: tuple[str, ...], reason: str | None, drain: bool, task: str | None,
    of_all: bool, is_home: bool, dry_run: bool, wide: bool, **acts: str | None,
) -> Answer:  # fmt: skip
    """Show who waits in line for a lock, or the lines of all locks.

    Those who wait are shown in order; without a lock, the lengths and heads of all lines. Name the lock as
    for explain. A PATTERN (* ? [abc]) stands for the keys that it matches, if nobody waits for a key of that
    name. An ID is a task id; if that id waits twice, the TOKEN that --json shows.

    --first and --last move it to the very front or end of the line, past those of another priority.
    A dropped message does not run: its result, its errbacks and its chord are told.

    --drain empties a line: the messages go to the ends of their queues. Messages that find their lock held
    then wait again. Use it before you remove this package. If redislock_enabled is off, every worker
    does it by itself. Messages that belong to another broker than this app's stay, unless --home is given and
    no worker of that broker has been seen for a minute: then they go to the queues of this app's broker.

    Exit status: 0 something waits, or was moved, dropped or sent; 1 nothing; 2 on error.
    """
    wanted = [(act, word) for act, word in acts.items() if word is not None]
    if drain and (wanted or bool(subject) + of_all + (task is not None) != 1):
        raise Trouble("--drain takes one of a lock, --task NAME and --all, and nothing else")
    if not drain and (of_all or task is not None or dry_run or is_home):
        raise Trouble("--task, --all, --home and --dry-run go with --drain")
    if wanted and (len(wanted) > 1 or not subject):
        raise Trouble("give a lock and one of --first ID, --last ID and --drop ID")
    if acts["drop"] is not None and not reason:
        raise Trouble("--drop takes --reason TEXT as well; it is logged")
    if reason is not None and not (wanted or drain):
        raise Trouble("--reason goes with --first, --last, --drop and --drain")
    reason = reason or "no reason given"
    key = find(server, subject)[0] if subject else ""
    # Of all lines the heads are shown, which tell how many wait.
    last = -1 if key or drain else 0
    seen = places_of(server, key, last=last)
    like = server.lines_like(key) if len(subject) == 1 and not seen else []
    seen += server.places(*like) if like else []
    # What was handed its lock is on its way to its queue.
    seen = [place for place in seen if place.rank or not drain]
    places = [place for place in seen if task in {None, place.waiter.task}]
    if task is not None and not places and task not in server.tasks():
        known = {*server.tasks(), *(place.waiter.task or "" for place in seen)}
        remedy = hint(task, known, "give its full name, with its module")
        output.warn(f"no message of {task!r} waits, and no such task is known here; {remedy}")
    if wanted:
        act, word = wanted[0]
        found = [
            each
            for each in places
            if word in {each.waiter.token, each.waiter.owner, owner_name(each.waiter.owner)}
        ]
        return _change(server, key, act, word, found, reason)
    if drain and not dry_run:
        what = f"the line of {key}" if key else "all lines" if task is None else f"all lines, of {task}"
        what = f"the lines like {key}" if like else what
        return _drain(server, what, places, reason, is_home=is_home)
    document = document_of(server, key, places)
    if drain:
        own, unserved = _homes(server, places)
        goes = {"", *own, *(unserved if is_home else ())}
        places = [place for place in places if place.home in goes]
        document["waiting"] = [place.document() for place in places]
    for name, home in document["unserved"].items():
        output.warn(server.told_of_unserved(name, home))
    nobody = f"nobody waits{key and f' for {key}'} on {server.store.server}"
    nobody = "no message would be sent" if drain else nobody
    width = output.width_of(wide=wide)
    lines = table_of(places, width) if places else output.folded(nobody, width)
    for name, full in document["rates"].items():
        for rate in full:
            lines += output.folded(f"{name}: {telling.told_of_rate(rate)}", width)
    return Answer(document, lines, 0 if places else 1)


def _change(server: LockServer, key: str, act: str, word: str, found: list[Place], reason: str) -> Answer:
    """Move or drop the one that was found, or say why not."""
    if len(found) > 1:
        tokens = ", ".join(each.waiter.token for each in found)
        raise Trouble(f"{word} waits {len(found)} times for {key}; give one of the tokens {tokens}")
    store = server.store
    done, where = _ACTS[act]
    changed = None
    told = f"{word} does not wait for {key} on {store.server}"
    for place in found:
        waiter = place.waiter
        task = _task_to_drop(server, place) if act == "drop" else None
        what = f"{waiter.owner} ({waiter.task or '-'}) {where} the line of {waiter.key}"
        ask(f"{'Drop' if task else 'Move'} {what}?")
        told = f"{word} has left the line of {key} meanwhile: its turn has come, or it was dropped"
        if drop_message(task, store, waiter, reason) if task else store.move(waiter.key, waiter.token, act):
            logger.warning("%s %s by hand: %r", done, what, reason)
            note_act(store, act, waiter.key, f"{done} {what}", reason)
            changed = waiter
            told = f"{done} {what}"
    return Answer({"key": key, done: changed}, [told], 0 if changed else 1)


def _task_to_drop(server: LockServer, place: Place) -> Any:
    """Return the task of a message that is to be dropped, or say why it cannot be."""
    waiter = place.waiter
    name = waiter.task
    if waiter.state == HELD:
        raise Trouble(f"{waiter.owner} holds {waiter.key} soon, and is no message: end it with release")
    if name is None:
        raise Trouble(f"{waiter.owner} is a Lock that waits, and no message: it can be moved, not dropped")
    if name not in server.tasks():
        raise Trouble(f"its task {name}, which stores its result, is not known here: give its app, with -A")
    if place.rank and any(hold.owner == waiter.owner for hold in server.store.holders(waiter.key)):
        raise Trouble(f"{waiter.owner} holds the lock already: it runs, or is about to; revoke it instead")
    return server.tasks()[name]


def _homes(server: LockServer, places: list[Place]) -> tuple[list[str], list[str]]:
    """Return the homes of this app; and others that these messages belong to, and that have no worker."""
    from celery_redislock.receiving.proof import learn  # noqa: PLC0415  imports a worker's parts

    store = server.store
    if server.app is not None:
        learn(server.app, store)
    own = store.home.split("\n")
    proofs = store.homes()
    others = {place.home for place in places} - {"", *own}
    return own, sorted(home for home in others if not is_served(home, proofs))


def _drain(server: LockServer, what: str, places: list[Place], reason: str, *, is_home: bool) -> Answer:
    """Send to its queues what waits at these places.

    ``is_home``: what belongs to a broker without workers goes to the queues of the app's.
    """
    store = server.store
    own, unserved = _homes(server, places)
    others = {place.home for place in places} - {"", *own}
    given: list[Promotion] = []
    if server.app is not None:
        store.on_promoted = given.extend  # published below, and counted
    if is_home and unserved:
        what += f", and those of {', '.join(unserved)} to the queues of {own[0] or store.server}"
        store.home = "\n".join([*own, *unserved])
    if places:
        ask(f"Send {len(places)} waiting messages in {what} to their queues?")
    moved = 0
    for name, line in groupby(places, key=lambda place: place.waiter.key):
        ids = [place.waiter.token for place in line]
        before = moved
        for start in range(0, len(ids), AT_ONCE):
            moved += store.drain(name, ids=ids[start : start + AT_ONCE])[0]
            while given:
                moved += promote.publish_promoted(server.app, store, given.pop(0))
        note_act(store, "drain", name, f"{moved - before} of {len(ids)} are back in their queues", reason)
    done = "drained %s by hand: %d waiting messages are back in their queues: %r"
    logger.warning(done, what, moved, reason)
    if moved < len(places) and server.app is None:
        output.warn(
            "without an app nobody can publish what belongs to another broker than the lock server: "
            "celery -A proj redislock waiting --drain …"
        )
    lines = [f"{moved} waiting messages are back in their queues"]
    if moved < len(places):
        lines.append(f"{len(places) - moved} are not: they wait still, or had left before")
        for home in sorted(others):
            remedy = "add --home to send them to this one"
            if home not in unserved:
                remedy = "a worker of that was seen within the last minute; if it is gone, wait a minute"
            lines.append(f"some belong to the broker {home}: {remedy}")
    return Answer({"drained": moved, "left": len(places) - moved}, lines, 0 if moved else 1)


@click.command()
@click.argument("words", metavar="KEY | TASK [ARGUMENT]... [N]", nargs=-1, required=True)
@for_option
@click.option("--reset", is_flag=True, help="Remove what was set: the task's own limit applies again.")
@answers
def limit(server: LockServer, words: tuple[str, ...], seconds: float | None, reset: bool) -> Answer:
    """Let N hold a lock at once, instead of what its task says.

    The limit applies immediately, in all processes, for the TIME given, else for a year. A higher limit lets
    waiting messages start. A lower limit ends no run: no other one starts until fewer hold the lock. A task
    with lock_limit=1, or without it, asks for no limit, and its locks have none.

    Name the lock as for explain. A KEY without N shows what is set.

    Exit status: 0 set, removed or shown; 1 nothing is set, or was set; 2 on error.
    """
    is_look = not reset and len(words) == 1
    if server.app is not None and not is_look:
        from celery_redislock.receiving.proof import learn  # noqa: PLC0415  imports a worker's parts

        learn(server.app, server.store)
    *subject, number = words if not (reset or is_look) else (*words, "")
    if not (reset or is_look or re.fullmatch("[0-9]{1,9}", number)):
        raise Trouble(f"{number!r} is no whole number from 1 to {MOST_HOLDERS}: give N last, or --reset")
    if seconds is not None and (reset or is_look):
        raise Trouble("--for is how long an N counts: give N, without --reset")
    try:
        handle, beginnings = _handle(server, subject)
    except Trouble as error:
        if reset and words[-1].isdecimal():
            raise Trouble(f"{error.message}; --reset takes no N") from None
        raise
    value = int(number) if number else None
    is_sure = not value or handle.key.startswith(beginnings)
    # One that holds this key says so.
    is_sure = is_sure or any("limit" in hold.facts for hold in server.store.holders(handle.key))
    warning = None if is_sure else _DOUBT
    was = handle.limit() if reset else None
    found = handle.limit(value, for_=seconds or A_YEAR, reset=reset)
    if warning:
        output.warn(warning)
    told = f"the limit of {handle.key} is the one that its task says"
    if found is not None:
        told = f"the limit of {handle.key} is {telling.of_limit(found)}"
    elif reset and was is None:
        told = f"nothing was set for {handle.key}: its limit is the one that its task says"
    document = {"key": handle.key, "set": telling.limit_as_json(found), "warning": warning}
    return Answer(document, [told], 1 if found is None and was is None else 0)


def _handle(server: LockServer, subject: list[str]) -> tuple[LockHandle, tuple[str, ...]]:
    """Return the handle, and how the keys begin of those tasks that have a limit."""
    name, *given = subject
    task = server.tasks().get(name)
    if task is not None:
        return handle_of(task, given), ("",)
    if given:
        raise Trouble(f"{name!r} is not a task known here, and a key takes no arguments")
    # Whose key it is cannot be told: a key of a task by its name, or of one that has a limit.
    unique = {each.name: each for each in server.tasks().values() if is_unique(each)}
    owner = unique.get(name.partition(":v1:")[0])
    options = [*_options([owner] if owner else unique.values())]
    has_limit = server.app is None or bool(options)
    # Where no task says so, a scope may have two locks.
    has_two = server.app is None or any(each.scope and each.scope.claims_beside for each in options)
    queued = f"queued:{name}" if has_two else None
    beginnings = [key.partition("{")[0] for each in options if isinstance(key := each.lock_key, str)]
    task = owner or SimpleNamespace(name="every unique task of this app")
    return LockHandle(task, server.store, name, queued, has_limit), ("",) if owner else tuple(beginnings)


def _options(tasks: Iterable[object]) -> Iterator[LockOptions]:
    """Yield the options of those tasks that have a limit."""
    for task in tasks:
        with suppress(LockOptionError):
            options = declaration_of(task).options
            if options.lock_limit != 1:
                yield options


@click.command()
@click.argument("words", metavar="KEY | TASK [ARGUMENT]...", nargs=-1, required=True)
@click.option("--reason", required=True, help="Why; it is logged, and shown to whoever asks.")
@for_option
@answers
def hold(server: LockServer, words: tuple[str, ...], reason: str, seconds: float | None) -> Answer:
    """Let nothing start for a lock, for the TIME given or an hour.

    The lock may have any limit, and the TIME is up to 1d. What runs, or was handed the lock before, ends as
    it would. The hold waits for that in front of the line, at most for the same TIME, and begins then;
    nothing starts behind it. Calls that meet it wait in line, whatever their on_conflict says: nothing is
    dropped. "release" ends it, and the first in line starts.

    Name the lock as for explain. A second hold of a lock replaces the first one, its TIME and reason.

    Exit status: 0 it is held, or waits for what runs; 2 on error.
    """
    name, *given = words
    task = server.tasks().get(name)
    if task is None and given:
        raise unknown_task(server, name, given)
    handle = LockHandle(None, server.store, name) if task is None else handle_of(task, given)
    seconds = seconds or AN_HOUR
    held = handle._hold(reason, seconds)
    still = [*map(Holder.of, held.before)]
    told = f"{handle.key} is on hold for {telling.duration(seconds)}"
    if still:
        count = f"{len(still)} or more" if len(still) == MOST_TOLD else len(still)
        told += f" as soon as these have ended ({count}); nothing starts behind them:"
    lines = [told, *(f"  {telling.in_brief(each)}" for each in still)]
    before = None if held.instead_of is None else Holder.of(held.instead_of)
    if before is not None:
        lines.append(f"it replaces the hold by {before.owner}: {before.about}")
    end = f"to end it: {server.command} release --reason TEXT -- {shlex.quote(handle.key)}"
    document = {"key": handle.key, "seconds": seconds, "still": still, "replaced": before}
    return Answer(document, [*lines, end])


COMMANDS: Mapping[str, click.Command] = {"hold": hold, "limit": limit, "waiting": waiting}
