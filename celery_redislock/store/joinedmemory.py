"""Locks of several names in this process's memory: for tests, as ``MemoryStore`` is."""

from collections.abc import Mapping
from typing import Any

from celery_redislock.store.memory import MemoryStore, _Place
from celery_redislock.store.several import OfSeveral, parked_together, together, with_names
from celery_redislock.store.store import Entry, Grant, Mark, Parked, Refusal, Release


class JoinedMemory(OfSeveral, MemoryStore):
    """Keeps the locks of the names that stand, a space between two, in place of one.

    The twin of :class:`~celery_redislock.store.joined.JoinedStore`, on the state of the store it stands
    beside.
    """

    def __init__(self, beside: MemoryStore) -> None:
        """Stand beside this store."""
        self.__dict__ = beside.__dict__

    def acquire(self, name: str, token: str, ttl: float, *, facts: str, **terms: Any) -> Any:
        """As :meth:`LockStore.acquire`, of all these locks or of none. The fence is the largest."""
        grants: list[Grant] = []
        message = terms.get("instead_of") or ""
        with self._lock:
            lines = {each: [*self._lines.get(each, ())] for each in name.split()}
            sends = self._sends.get(message)
            due = {**self._due}
            for each in name.split():
                answer = super().acquire(each, token, ttl, facts=with_names(facts, name), **terms)
                if not isinstance(answer, Grant):
                    if isinstance(answer, Refusal):
                        self._put_back(lines, message, sends, due)
                    for taken in name.split()[: len(grants)]:
                        self._holders_of(taken).pop(token, None)
                        # What only the caller could publish is served by a sweep.
                        self._wake(taken, home="")
                    for hold in answer.holds if isinstance(answer, Refusal) else ():
                        hold.name = name  # whoever is refused waits for all
                    return answer
                grants.append(answer)
        fence = max((each.fence for each in grants if each.fence is not None), default=None)
        return grants[0]._replace(fence=fence, repeated=any(each.repeated for each in grants))

    def _put_back(
        self,
        lines: Mapping[str, list[_Place]],
        message: str,
        sends: tuple[int, int] | None,
        due: Mapping[str, float],
    ) -> None:
        """Let a message that is refused all its locks keep its places in these lines, as they were."""
        for name, places in lines.items():
            ids = [place.id for place in places]
            if message not in ids or self._entry(name, message) is not None:
                continue
            at = ids.index(message)
            now = self._lines.setdefault(name, [])
            behind = [each for each, place in enumerate(now) if place.id in ids[at:]]
            now.insert(behind[0] if behind else len(now), places[at]._replace(is_sent=False))
            self._look_by(name, due.get(name, self._clock()))
            if sends is not None:
                self._sends[message] = sends

    def release(
        self, name: str, token: str, *, opened_by: str | None = None, mark: Mark | None = None
    ) -> Release:
        """As :meth:`LockStore.release`, of all; ``released`` where all of them were held."""
        with self._lock:
            one = super().release
            return together([one(each, token, opened_by=opened_by, mark=mark) for each in name.split()])

    def hand_on(
        self, name: str, old: str, new: str, ttl: float, *, facts: str, mark: Mark | None = None
    ) -> Release:
        """As :meth:`LockStore.hand_on`, of all; ``released`` where all of them were held."""
        facts = with_names(facts, name)
        with self._lock:
            one = super().hand_on
            return together([one(each, old, new, ttl, facts=facts, mark=mark) for each in name.split()])

    def park(self, name: str, id: str, entry: Entry, **how: Any) -> Parked:  # noqa: A002
        """As :meth:`LockStore.park`, in the lines of all; the place is that in the longest of them."""
        entry = entry._replace(facts=with_names(entry.facts, name))
        how.pop("ahead", None)
        names = name.split()
        with self._lock:
            holders = [(self._holders_of(each), self._lines.get(each)) for each in names]
            is_free = all(id in held or not (held or line) for held, line in holders)
            if not is_free and how.get("how") == "ask":
                how["how"] = "refused"
            nonce = how.pop("nonce")
            answers = []
            for each in names:
                answers.append(super().park(each, id, entry, nonce=f"{nonce} {each}", **how))
                if answers[-1].word == "full":
                    self._take_out(names[0], id)
                    break
            return parked_together(answers)

    def leave(self, name: str, id: str, *, unless_held: bool = False) -> tuple[str, bytes, Release]:  # noqa: A002
        """As :meth:`LockStore.leave`, of all lines; the word is about the first."""
        with self._lock:
            one = super().leave
            answers = [one(each, id, unless_held=unless_held) for each in name.split()]
        word, entry, _ = answers[0]
        return word, entry, together([each[2] for each in answers])
