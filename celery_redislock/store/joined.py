"""Locks of several names on a Redis or Valkey server: all or none, in one step."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from celery_redislock.exceptions import LockOptionError
from celery_redislock.store.joinedmemory import JoinedMemory
from celery_redislock.store.memory import MemoryStore
from celery_redislock.store.redisstore import SCRIPTS, RedisStore, granted, in_ms, left, parked, released
from celery_redislock.store.several import OfSeveral, parked_together, together, with_names
from celery_redislock.store.store import (
    Entry,
    Grant,
    LockStore,
    Mark,
    Marked,
    Parked,
    Refusal,
    Release,
)

T = TypeVar("T")

#: The scripts of a store that takes several locks at once, beside those of any.
OF_SEVERAL = ("acquire_all", "hand_on_all", "leave_all", "park_all", "release_all")

#: The keys and arguments of a script, for one lock.
_KeysAndArgs: TypeAlias = tuple[list[str], list[str]]


def joined(store: LockStore) -> LockStore:
    """Return the store of locks of several names, beside that of single ones.

    Raises:
        LockOptionError: this store cannot take several locks in one step.
    """
    if isinstance(store, MemoryStore):
        return JoinedMemory(store)
    return joined_on_server(store)


def joined_on_server(store: LockStore) -> "JoinedStore":
    """As :func:`joined`, for a store on a server."""
    if isinstance(store, JoinedStore):
        return store
    if type(store) is not RedisStore or store.min_replicas:
        problem = (
            f"several names cannot be locked together on {store.server}: that takes one step on one server; "
            "lock them one by one in sorted order, or give the URL of a single server, and no min_replicas"
        )
        raise LockOptionError("several names", [problem])
    known: JoinedStore | None = store.__dict__.get("joined")
    return known or store.__dict__.setdefault("joined", JoinedStore(store))


class JoinedStore(OfSeveral, RedisStore):
    """Keeps the locks of the names that stand, a space between two, in place of one.

    Each of them is an ordinary lock, which excludes whoever takes it alone; its holder's facts have all the
    ``names``. The verbs are those of a ``Lock`` and of a task that runs one at a time. Leases are renewed by
    the watchdog of the store it stands beside.
    """

    def __init__(self, store: RedisStore) -> None:
        """Stand beside this store; opens no connection of its own."""
        self._beside = store
        strict = bool(store._strict_ms)
        super().__init__(store.connections, prefix=store.prefix, strict_fence=strict, clock=store._clock)
        self._scripts = self._runner((*SCRIPTS, *OF_SEVERAL), [__package__])
        self.renewed_with = store

    @property
    def home(self) -> str:  # type: ignore[override]  # that of the other store, where it is set
        """The broker that this process publishes to."""
        return self._beside.home

    def acquire(self, name: str, token: str, ttl: float, *, facts: str = "", **terms: Any) -> Any:
        """As :meth:`LockStore.acquire`, of all these locks or of none. The fence is the largest."""
        value = f"{token}\0{with_names(facts, name)}"

        def ask(each: str) -> _KeysAndArgs:
            keys = [f"{self._base(each)}lock", self._index]
            args = [value, in_ms(ttl), each]
            self._add(keys, args, each, **terms)
            return keys, args

        def understand(_each: str, reply: Any, *when: Any) -> Grant | Refusal | Marked:
            # Whoever is refused waits for all, under the name of all.
            return granted(name, reply, *when)

        answers = self._ask("acquire", name, ask, understand)
        grants = [each for each in answers if isinstance(each, Grant)]
        if len(grants) < len(answers):
            return answers[-1]
        fence = max((each.fence for each in grants if each.fence is not None), default=None)
        return grants[0]._replace(fence=fence, repeated=any(each.repeated for each in grants))

    def release(
        self, name: str, token: str, *, opened_by: str | None = None, mark: Mark | None = None
    ) -> Release:
        """As :meth:`LockStore.release`, of all; ``released`` where all of them were held."""

        def ask(each: str) -> _KeysAndArgs:
            keys = [f"{self._base(each)}lock", self._index]
            args = [token + "\0", each, self.home]
            self._leave(mark, each, keys, args, opened_by)
            return keys, args

        return self._together(self._ask("release", name, ask, released))

    def hand_on(
        self, name: str, old: str, new: str, ttl: float, *, facts: str, mark: Mark | None = None
    ) -> Release:
        """As :meth:`LockStore.hand_on`, of all; ``released`` where all of them were held."""
        facts = with_names(facts, name)

        def ask(each: str) -> _KeysAndArgs:
            keys = [f"{self._base(each)}lock", self._index, self._mark_of(each, new)]
            args = [old, new, in_ms(ttl), facts, each, self.home]
            self._leave(mark, each, keys, args)
            return keys, args

        return self._together(self._ask("hand_on", name, ask, released))

    def park(
        self, name: str, id: str, entry: Entry, *, acknowledge: tuple[str, str, str] | None = None,  # noqa: A002
        within: float | None = None, **how: Any,
    ) -> Parked:  # fmt: skip
        """As :meth:`LockStore.park`, in the lines of all; the place is that in the longest of them."""
        entry = entry._replace(facts=with_names(entry.facts, name))
        *theirs, tag = acknowledge or ("",)
        first = name.split(maxsplit=1)[0]
        # A claim for the one before it, on those of its locks that are free, would be held while that waits.
        how.pop("ahead", None)

        def ask(each: str) -> _KeysAndArgs:
            # A message goes without its locks once, by the first line.
            until = within if each == first or entry.kind == "ring" else None
            keys, args = self._to_park(each, id, entry, self.home, within=until, **how)
            return [*keys, *theirs], [*args, tag]

        answers = self._ask("park", name, ask, parked)
        answer = parked_together(answers)
        self._beside._tell(answer.promoted)
        return answer

    def leave(self, name: str, id: str, *, unless_held: bool = False) -> tuple[str, bytes, Release]:  # noqa: A002
        """As :meth:`LockStore.leave`, of all lines; the word is about the first."""

        def ask(each: str) -> _KeysAndArgs:
            return self._to_leave(each, id, self.home, unless_held)

        answers = self._ask("leave", name, ask, left)
        word, entry, _ = answers[0]
        return word, entry, self._together([each[2] for each in answers])

    def _ask(
        self, verb: str, name: str, ask: Callable[[str], _KeysAndArgs], understand: Callable[..., T]
    ) -> list[T]:
        """Do with each of the locks, in one step, what a verb does with one; return the answers in order."""
        names = name.split()
        asked = [ask(each) for each in names]
        keys = [key for each, _ in asked for key in each]
        args = [str(len(names)), *(arg for _, each in asked for arg in each)]
        answered = partial(_answers, names, understand)
        return self._scripts.begin(f"{verb}_all", keys, args, answered, name=name)()

    def _together(self, answers: Sequence[Release]) -> Release:
        """Return one answer for all, and report the messages that they have promoted."""
        answer = together(answers)
        self._beside._tell(answer.promoted)
        return answer


def _answers(
    names: Sequence[str], understand: Callable[..., T], _name: str, reply: list[Any], *when: Any
) -> list[T]:
    """Read the answers about each lock, which stand one behind the other."""
    answers = []
    at = 1
    for name in names:
        if at == len(reply):
            break  # it was refused one of them
        end = at + 1 + reply[at]
        answers.append(understand(name, reply[at + 1 : end], *when))
        at = end
    return answers
