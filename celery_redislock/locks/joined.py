"""Locks of several names on a Redis or Valkey server: all or none, in one step."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks.redisstore import RedisStore, granted, in_ms, left, parked, released
from celery_redislock.locks.scripts import OF_SEVERAL, SCRIPTS
from celery_redislock.locks.store import Entry, Grant, Hold, LockStore, Marked, Parked, Refusal, Release
from celery_redislock.locks.watchdog import watchdog_of

__all__ = ["JoinedStore", "joined"]

T = TypeVar("T")


def joined(store: LockStore, names: Sequence[str]) -> "JoinedStore":
    """Return the store of locks of several names, beside that of single ones.

    Raises:
        LockOptionError: this store cannot take several locks in one step.
    """
    if type(store) is not RedisStore or store.confirmation is not None:
        problem = (
            f"{', '.join(map(repr, names))} cannot be locked together on {store.server}: that takes one step "
            "on one server; lock them one by one in sorted order, or give the URL of a single server, and no "
            "min_replicas or sync"
        )
        raise LockOptionError("several names", [problem])
    known: JoinedStore | None = store.__dict__.get("joined")
    return known or store.__dict__.setdefault("joined", JoinedStore(store))


class JoinedStore(RedisStore):
    """Keeps the locks of the names that stand, a space between two, in place of one.

    Each of them is an ordinary lock, which excludes whoever takes it alone. The verbs are those of a
    ``Lock``. Leases are renewed by the watchdog of the store it stands beside.
    """

    def __init__(self, store: RedisStore) -> None:
        """Stand beside this store; opens no connection of its own."""
        strict = bool(store._strict_ms)
        super().__init__(store.connections, prefix=store.prefix, strict_fence=strict, clock=store._clock)
        self._scripts = self._runner((*SCRIPTS, *OF_SEVERAL), __package__)
        self._beside = store
        self.watchdog = watchdog_of(store)

    def acquire(
        self, name: str, token: str, ttl: float, *, facts: str = "", starts_run: bool = False, **_: Any
    ) -> Grant | Refusal | Marked:
        """As :meth:`LockStore.acquire`, of all these locks or of none. The fence is the largest."""

        def ask(each: str) -> tuple[list[str], list[str]]:
            keys = [f"{self._base(each)}lock", self._index]
            args = [f"{token}\0{facts}", in_ms(ttl), each]
            if starts_run or self._strict_ms:
                self._add(keys, args, each, starts_run=starts_run)
            return keys, args

        answers = self._ask("acquire", name, ask, granted)
        grants = [each for each in answers if isinstance(each, Grant)]
        if len(grants) < len(answers):
            return answers[-1]
        fence = max((each.fence for each in grants if each.fence is not None), default=None)
        return grants[0]._replace(fence=fence, repeated=any(each.repeated for each in grants))

    def release(self, name: str, token: str, **_: Any) -> Release:
        """As :meth:`LockStore.release`, of all; ``released`` where all of them were held."""
        home = self._beside.home

        def ask(each: str) -> tuple[list[str], list[str]]:
            return [f"{self._base(each)}lock", self._index], [token + "\0", each, home]

        return self._together(self._ask("release", name, ask, released))

    def park(self, name: str, id: str, entry: Entry, **how: Any) -> Parked:  # noqa: A002
        """As :meth:`LockStore.park`, in the lines of all; the place is that in the longest of them."""

        def ask(each: str) -> tuple[list[str], list[str]]:
            return self._to_park(each, id, entry, self._beside.home, **how)

        answers = self._ask("park", name, ask, parked)
        words = [each.word for each in answers]
        word = next((word for word in ("full", "woken") if word in words), words[0])
        together = self._together(answers)
        return Parked(word, max(each.place for each in answers), together.held_by, together.promoted)

    def leave(self, name: str, id: str, *, unless_held: bool = False) -> tuple[str, bytes, Release]:  # noqa: A002
        """As :meth:`LockStore.leave`, of all lines; the word is about the first."""

        def ask(each: str) -> tuple[list[str], list[str]]:
            return self._to_leave(each, id, self._beside.home, unless_held)

        answers = self._ask("leave", name, ask, left)
        word, entry, _ = answers[0]
        return word, entry, self._together([each[2] for each in answers])

    def holders(self, name: str, *, to_decide: bool = False) -> tuple[Hold, ...]:
        """As :meth:`LockStore.holders`, of each in turn; a request for each."""
        one = super().holders
        return tuple(hold for each in name.split() for hold in one(each, to_decide=to_decide))

    def _ask(
        self,
        verb: str,
        name: str,
        ask: Callable[[str], tuple[list[str], list[str]]],
        understand: Callable[..., T],
    ) -> list[T]:
        """Do with each of the locks, in one step, what a verb does with one; return the answers in order."""
        names = name.split()
        asked = [ask(each) for each in names]
        keys = [key for each, _ in asked for key in each]
        args = [str(len(names)), *(arg for _, each in asked for arg in each)]
        answered = partial(_answers, names, understand)
        return self._scripts.begin(f"{verb}_all", keys, args, answered, name=name)()

    def _together(self, answers: Sequence[Release | Parked]) -> Release:
        """Return one answer for all, and report the messages that they have promoted."""
        held_by = next((each.held_by for each in answers if each.held_by is not None), None)
        promoted = tuple(one for each in answers for one in each.promoted)
        self._beside._tell(promoted)
        is_released = all(isinstance(each, Release) and each.released for each in answers)
        is_repeated = any(isinstance(each, Release) and each.repeated for each in answers)
        return Release(is_released, held_by, is_repeated, promoted)


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
