"""The lock server as operators see it: who holds what there, and who waits."""

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, NamedTuple

from celery_redislock.declaring.server import settings_of, store_of
from celery_redislock.exceptions import LockOptionError, RedisLockError
from celery_redislock.locks.lease import new_token
from celery_redislock.log import command
from celery_redislock.operating import telling
from celery_redislock.publishing.handle import Holder
from celery_redislock.publishing.held import ALL, fits
from celery_redislock.store.home import is_served
from celery_redislock.store.store import RATED, LockStore, Waiter, owner_name


class Trouble(Exception):  # noqa: N818  a sentence for an operator
    """What keeps a question of an operator from being answered, wherever it is noticed; one line.

    Attributes:
        message: the line.
    """

    def __init__(self, message: str) -> None:
        """Say so."""
        super().__init__(message)
        self.message = message


class Place(NamedTuple):
    """A place in the line of a lock, the first one is 1, of so many; and who waits there.

    ``home``: of whose workers one has to publish it; '' where anybody may hand the lock to it. ``sends``: how
    often its message was sent. One that was handed the lock, and has not started, has the place 0.
    ``facts``: of the claim that it will be handed. ``names``: of the locks, where it waits for several.
    """

    rank: int
    length: int
    waiter: Holder
    home: str
    sends: int
    facts: Mapping[str, Any]
    names: Sequence[str] = ()

    @classmethod
    def of(cls, waiter: Waiter, rank: int, length: int) -> "Place":
        """Read what one that waits at this place wrote about itself."""
        home = waiter.to if waiter.kind == "give" else ""
        holder = Holder.in_line(waiter, rank, length)
        return cls(rank, length, holder, home, waiter.sends, waiter.hold.facts, _names_in(waiter.hold.text))

    def document(self) -> dict[str, Any]:
        """Return its object of ``--json``."""
        more = {"place": self.rank, "in_line": self.length, "sent": self.sends}
        return {**telling.as_json(self.waiter), **more}


def _names_in(text: bytes) -> Sequence[str]:
    """Return the locks that one with these facts waits for, where they are several."""
    with suppress(ValueError, LookupError, TypeError, RecursionError):  # anybody may have written them
        return [*map(str, json.loads(text)["names"])] if b'"names":[' in text else ()
    return ()


def is_pattern(key: str) -> bool:
    """Whether a key may stand for others, as a shell's pattern does for files."""
    return bool({*"*?["} & {*key})


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
    def of_app(cls, app: Any) -> "LockServer":
        """Return the server of an app's tasks; connects to nothing yet.

        Raises:
            LockOptionError: the app names no lock server, or its settings are wrong.
        """
        return cls(store_of(app, settings_of(app)), command("redislock"), app)

    @classmethod
    def at(cls, url: str, prefix: str) -> "LockServer":
        """Return the server at a URL, without an app; connects to nothing yet."""
        from celery_redislock.locks import connect  # noqa: PLC0415  imports redis
        from celery_redislock.wire.connection import mask_password  # noqa: PLC0415  imports redis

        shown = shlex.join(["celery-redislock", "--url", mask_password(url), "--prefix", prefix])
        return cls(connect(url, prefix=prefix), shown)

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
        """Look at the locks that are held, soonest to expire first; of those who fit: :func:`fits`."""
        everyone = map(Holder.of, chain.from_iterable(self.store.walk_holds(limit=ALL)))
        return (holder for holder in everyone if fits(holder, **patterns))

    def places(self, *names: str, last: int = -1) -> Iterator[Place]:
        """Look at the lines of these locks, or of all, up to the ``last`` rank; one request each.

        Those come first that were handed these locks and have not started; of all locks, where nobody else is
        in the line. One request more. The first of all lines are found by a walk, in fewer requests.
        """
        if not names and last == 0:
            for line in chain.from_iterable(self.store.walk_lines(limit=ALL)):
                yield Place.of(line.first, 0 if line.is_handed_on else 1, line.length)
            return
        for name in names or self.store.lines(limit=ALL):
            length, waiters = self.store.waiting(name, last=last)
            handed_on = self.store.waiting(name, handed_on=True)[1] if names or not waiters else []
            for rank, waiter in enumerate([*handed_on, *waiters], start=1 - len(handed_on)):
                yield Place.of(waiter, max(0, rank), length)

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

    def told_of_next(self, key: str, when: str) -> str:
        """Say when the first in the line of a lock gets it; asks which workers answer, for a second."""
        from celery_redislock.receiving.whereabouts import told_of_workers  # noqa: PLC0415  a worker's parts

        who = "See that one runs" if self.app is None else told_of_workers(self.app)
        return f"the first in line gets {key} when {when} and a worker looks, each second. {who}"

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
            return (
                f"{self.command} waiting {key} --drop {shlex.quote(owner_name(holder.owner))} --reason TEXT"
            )
        return self.release_command(holder.key)

    def release_command(self, key: str) -> str:
        """Return the command that takes a lock away from whoever holds it."""
        return f"{self.command} release --reason TEXT -- {shlex.quote(key)}"
