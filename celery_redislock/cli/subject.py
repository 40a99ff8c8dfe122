"""What every command needs: the lock server, and the holders that its words name."""

import json
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import click

from celery_redislock.cli import output
from celery_redislock.declaring.declaration import is_unique
from celery_redislock.declaring.kinds import hint
from celery_redislock.exceptions import LockOptionError, RedisLockError
from celery_redislock.locks.lease import new_token
from celery_redislock.locks.limits import A_YEAR
from celery_redislock.log import command
from celery_redislock.publishing.handle import Holder, LockHandle
from celery_redislock.publishing.held import ALL, holders_of
from celery_redislock.store.home import is_served
from celery_redislock.store.store import RATED, LockStore

_KEYWORD = re.compile(r"([^\W\d]\w*)=(.*)", re.DOTALL)


F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def _seconds(_ctx: object, _param: object, value: str | None) -> float | None:
    if value is None:
        return None
    found = re.fullmatch("([0-9]{1,12})([smhd]?)", value)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= A_YEAR:
        raise click.BadParameter(f"{value!r} is no time of up to a year; write 90, 90s, 15m, 1h or 2d")
    return seconds


def time_option(*names: str, help: str) -> Callable[[F], F]:  # noqa: A002  click's name
    """Return an option that takes a time of up to a year."""
    return click.option(*names, callback=_seconds, metavar="TIME", help=help)


for_option = time_option("--for", "seconds", help="90, 90s, 15m, 1h or 2d.")
as_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")


class Trouble(click.ClickException):
    """What keeps a command from answering, wherever it is noticed; one line, exit status 2."""

    exit_code = 2

    def format_message(self) -> str:
        """Escape what a terminal would obey."""
        return output.printable(self.message)


class Place(NamedTuple):
    """A place in the line of a lock, the first one is 1, of so many; and who waits there.

    ``home``: of whose workers one has to publish it; '' where anybody may hand the lock to it. ``sends``: how
    often its message was sent. One that was handed the lock, and has not started, has the place 0.
    ``facts``: of the claim that it will be handed.
    """

    rank: int
    length: int
    waiter: Holder
    home: str
    sends: int
    facts: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """Return its object of ``--json``."""
        more = {"place": self.rank, "in_line": self.length, "sent": self.sends}
        return {**output.as_json(self.waiter), **more}


def table_of(places: Sequence[Place]) -> list[str]:
    """Show these places for people."""
    rows: list[list[object]] = [["KEY", "PLACE", "TASK", "OWNER", "PARKED BY", "SINCE", "ABOUT"]]
    for rank, length, one, _, sends, _ in places:
        since = output.duration(output.age(one))
        # Of several locks that is known under the first.
        sent = f", sent {sends}x" if sends else ""
        place = f"{rank} of {length}{output.told_of(one)}" if rank else f"handed on{sent}"
        rows.append([one.key, place, one.task, one.owner, output.process(one), since, one.about])
    if not any(row[-1] for row in rows[1:]):
        rows = [row[:-1] for row in rows]
    return output.table(rows)


def ask(question: str, about: Sequence[str] = (), otherwise: str = "nothing was changed") -> None:
    """Ask before something is changed, unless ``--yes`` or ``--json`` says not to.

    Where the answer is no, the command ends with status 1.
    """
    given = click.get_current_context().params
    if given.get("yes") or given.get("as_json"):
        return
    if not sys.stdin.isatty():
        raise Trouble(
            "standard input is no terminal, so nobody can be asked: add --yes to act without asking"
        )
    for line in about:
        output.say(line)
    if not click.confirm(output.printable(question)):
        click.echo(otherwise)
        raise click.exceptions.Exit(1)


@dataclass(frozen=True, slots=True)
class LockServer:
    """One lock server, and the app whose tasks lock there.

    Attributes:
        store: of the locks.
        command: what to type before ``list``, ``explain`` or ``release`` to look here again.
        app: Celery's; ``None`` where only a URL was given.
    """

    store: LockStore
    command: str
    app: Any = None

    @classmethod
    def of(cls, ctx: click.Context) -> "LockServer":
        """Return the server that the command's options name; connects to nothing yet."""
        root = ctx.find_root()
        if "url" in root.params:
            return cls._at(root.params["url"], root.params["prefix"])
        from celery_redislock.declaring.server import settings_of, store_of  # noqa: PLC0415  only here

        app = ctx.obj.app
        name = root.params.get("app")
        try:
            store = store_of(app, settings_of(app))
        except LockOptionError as error:
            if name:
                raise
            raise Trouble(
                "no Celery app was given, and Celery's default one names no Redis server; name your app: "
                "celery -A proj redislock …, or a server: celery-redislock --url redis://host:port/db …"
            ) from error
        return cls(store, command("redislock"), app)

    @classmethod
    def _at(cls, url: str | None, prefix: str) -> "LockServer":
        from celery_redislock.locks import connect  # noqa: PLC0415  imports redis
        from celery_redislock.wire.connection import mask_password  # noqa: PLC0415  imports redis

        if url is None:
            raise Trouble("no lock server: give --url redis://host:port/db, or set REDIS_URL")
        command = shlex.join(["celery-redislock", "--url", mask_password(url), "--prefix", prefix])
        return cls(connect(url, prefix=prefix), command)

    def tasks(self) -> dict[str, Any]:
        """Return the app's tasks by name, those of included and discovered modules among them."""
        if self.app is None:
            return {}
        try:
            self.app.loader.import_default_modules()
            self.app.finalize(auto=True)
        except LockOptionError:
            raise
        except Exception as error:
            raise Trouble(
                f"the app's task modules cannot be imported: {type(error).__name__}: {error}; "
                "run this command where its workers run"
            ) from error
        return dict(self.app.tasks)

    def holders(self, **patterns: str | None) -> Iterator[Holder]:
        """Look at the locks that are held, soonest to expire first: as :func:`holders_of`."""
        return holders_of(self.store, self.store.names(limit=ALL), **patterns)

    def places(self, *names: str, last: int = -1) -> Iterator[Place]:
        """Look at the lines of these locks, or of all, up to the ``last`` rank; one request each.

        Those come first that were handed these locks and have not started; of all locks, where nobody else is
        in the line. One request more.
        """
        for name in names or self.store.lines(limit=ALL):
            length, waiters = self.store.waiting(name, last=last)
            handed_on = self.store.waiting(name, handed_on=True)[1] if names or not waiters else []
            for rank, waiter in enumerate([*handed_on, *waiters], start=1 - len(handed_on)):
                home = waiter.to if waiter.kind == "give" else ""
                facts = waiter.hold.facts
                yield Place(max(0, rank), length, Holder.in_line(waiter), home, waiter.sends, facts)

    def full_rates(self, said: Mapping[str, Mapping[str, Any]]) -> dict[str, list[dict[str, float]]]:
        """Return which rates of these locks have had their starts, by key; a request for each.

        None of a lock whose holders leave no room, as that is what keeps others out.

        Args:
            said: by key, the facts of a call that asks for it.
        """
        found: dict[str, list[dict[str, float]]] = defaultdict(list)
        for key, facts in said.items():
            for number, span in re.findall("([0-9]+)/([0-9]+)", str(facts.get("rate"))):
                refusal = None
                with suppress(RedisLockError):  # a user who may only read
                    terms = f'{{"rate":"{number}/{span}"}}'
                    refusal = self.store.look(key, new_token("rate"), limit=facts.get("limit"), facts=terms)
                if refusal is not None and refusal.hold.state == RATED:
                    left = round(refusal.hold.expires_in, 3)
                    rate = {"starts": int(number), "span_seconds": int(span) / 1000, "opens_in_seconds": left}
                    found[key].append(rate)
        return found

    def unserved(self, places: Iterable[Place]) -> dict[str, str]:
        """Return the locks whose first in line is at one of these places, and unserved; and its home."""
        firsts = {place.waiter.key: place.home for place in places if place.rank == 1 and place.home}
        proofs = self.store.homes() if firsts else {}
        return {key: home for key, home in firsts.items() if not is_served(home, proofs)}

    def told_of_unserved(self, key: str, home: str) -> str:
        """Say that nobody serves a line, and what to do."""
        return (
            f"nobody can publish the first message in the line of {key}: it belongs to the broker {home}, "
            "and no worker of that has been seen for a minute; start one, or send it to this app's broker: "
            f"{self.command} waiting --drain --home {shlex.quote(key)}"
        )

    def told_of_next(self, key: str) -> str:
        """Say when the first in the line of a lock gets it; asks which workers answer, for a second."""
        from celery_redislock.receiving.whereabouts import told_of_workers  # noqa: PLC0415  a worker's parts

        who = "See that one runs" if self.app is None else told_of_workers(self.app)
        return f"the first in line gets {key} when it is free and a worker looks, each second. {who}"

    def lines_like(self, pattern: str) -> list[str]:
        """Return the locks that somebody waits for and whose keys match, a queued call's beside its own."""
        names = self.store.lines(limit=ALL) if is_pattern(pattern) else []
        keys = {name: name.removeprefix("queued:") for name in names}
        found = [name for name in keys if fnmatchcase(name, pattern) or fnmatchcase(keys[name], pattern)]
        return sorted(found, key=lambda name: (keys[name], name))

    def freeing_command(self, holder: Holder) -> str:
        """Return the command that frees this lock, as one would type it in a shell; it asks the lock server.

        Released, one that was handed the lock in its line is handed it again, so it is dropped.
        """
        key = shlex.quote(holder.key)
        if any(each.id == holder.token for each in self.store.waiting(holder.key, handed_on=True)[1]):
            return f"{self.command} waiting {key} --drop {shlex.quote(holder.owner)} --reason TEXT"
        return f"{self.command} release --reason TEXT -- {key}"


class Answer(NamedTuple):
    """What a command has found or done: the document for ``--json``, lines for people, the exit status."""

    document: Mapping[str, object]
    lines: Iterable[str]
    status: int = 0


def answers(command: Callable[..., Answer]) -> Callable[..., None]:
    """Give a command its lock server and ``--json``; print what it answers, and end with its exit status."""

    @as_json_option
    @click.pass_context
    @wraps(command)
    def run(ctx: click.Context, /, *, as_json: bool, yes: bool = False, **words: Any) -> None:  # noqa: ARG001  ask() reads it
        if ctx.invoked_subcommand is not None:
            return
        server = LockServer.of(ctx)
        answer = command(server, **words)
        if as_json:
            output.write_json({"server": server.store.server, **answer.document})
        else:
            for line in answer.lines:
                output.say(line)
        ctx.exit(answer.status)

    return run


def find(server: LockServer, words: Sequence[str], *, queued: bool = False) -> tuple[str, list[Holder]]:
    """Find the holders that ``KEY``, ``TASK [ARGUMENT …]`` or, if no such key is held, ``TASK_ID`` names.

    A key is that key alone. A task's call is looked up as by its handle; *queued*: its queued calls first. A
    task id may hold several locks; they are looked for among all that are held. Returns the key as well, the
    first one's if there are several.
    """
    name, *given = words
    task = server.tasks().get(name)
    if not given:
        holds = server.store.holders(name)  # a held lock may be called as its task is
        if holds:
            return name, [*map(Holder.of, holds)]
        if task is None:
            found = [holder for holder in server.holders() if holder.owner == name]
            return found[0].key if found else name, found
    if task is None:
        raise unknown_task(server, name, given)
    handle = handle_of(task, given)
    found = handle.holders(only="queued" if queued else None)
    if len(found) > 1 or (queued and found):
        return handle.key, found
    holder = handle.holder()
    return handle.key, [] if holder is None else [holder]


def unknown_task(server: LockServer, name: str, given: Sequence[str]) -> Trouble:
    """Say that no task of this name is known, for which arguments were given."""
    remedy = "name a task of the app: celery -A proj redislock …"
    if server.app is not None:
        remedy = hint(name, server.tasks(), "give its full name, with its module")
    return Trouble(
        f"{name!r} is not a task known here, and a key takes no arguments (given: {shlex.join(given)}); "
        f"{remedy}"
    )


def is_pattern(key: str) -> bool:
    """Whether a key may stand for others, as a shell's pattern does for files."""
    return bool({*"*?["} & {*key})


def handle_of(task: Any, words: Sequence[str]) -> LockHandle:
    """Return the handle of a task's call, whose arguments were given as words."""
    if not is_unique(task):
        raise Trouble(f"{task.name} takes no lock: its base is not SingletonTask")
    args, kwargs = arguments(words)
    try:
        handle: LockHandle = task.lock_for(*args, **kwargs)
    except TypeError as error:
        raise Trouble(
            f"no lock can be named for {error}; give the arguments as to delay(), or the key itself "
            f"(list --task {shlex.quote(task.name)} shows those that are held, release --task takes them all)"
        ) from error
    return handle


def arguments(words: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Read the arguments of a call that were given as words."""
    named = [(word, _KEYWORD.fullmatch(word)) for word in words]
    args = [_value(word) for word, keyword in named if keyword is None]
    return args, {keyword[1]: _value(keyword[2]) for _, keyword in named if keyword is not None}


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word


def nobody(server: LockServer, key: str, words: Sequence[str]) -> str:
    """Say that these words name no held lock; *key* is what :func:`find` took them for."""
    text = f"nobody holds the key {key}"
    if key in server.tasks():
        text = f"no lock is held for {key}"
    elif [*words] == [key]:
        remedy = hint(key, server.tasks(), "list shows what is held")
        text += f", and no task of that id holds a lock; {remedy}"
    return text
