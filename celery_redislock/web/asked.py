"""Explanations for the page: at once what the lock server knows, and at the next load what workers say."""

import math
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from celery_redislock.exceptions import RedisLockError
from celery_redislock.operating.explain import Explanation, explanation
from celery_redislock.operating.server import LockServer, Place, Trouble
from celery_redislock.publishing.handle import Holder
from celery_redislock.publishing.held import fits
from celery_redislock.receiving.whereabouts import within
from celery_redislock.web.sampler import Cost, Sampler

#: Seconds for which an answer of workers and queues counts, and which they have for it; answers kept.
COUNTS_FOR = 15.0
#: Seconds for which it is shown while they are asked again: else each of its rows would come and go.
SHOWN_FOR = 30.0
DEADLINE = 30.0
MOST = 100

#: Seconds at most for which nobody else asks, after an answer that cost the lock server much.
LONGEST_REST = 30.0

ASKING = "Workers, queues and the schedule are being asked."

#: Explanations that ask workers at the same time; seconds that one waits for its turn at the lock server.
AT_ONCE = 2
PATIENCE = 2.0

#: The longest lines, in which a task id is looked for behind the first one; and calls of each.
MOST_LINES = 100
MOST_OF_LINE = 1000


@dataclass(frozen=True)
class _Sampled(LockServer):
    """A lock server that answers what is asked of all locks from the last look at it.

    ``looks_behind``: a look knows the first of each line; what waits behind it is asked for.
    """

    sampler: Any = None
    looks_behind: bool = False

    def holders(self, **patterns: str | None) -> Iterator[Holder]:
        """Look at all locks, as they were."""
        everyone = self.sampler.last.holders if self.sampler.last else ()
        return (one for one in everyone if fits(one, **patterns))

    def places(self, *names: str, last: int = -1) -> Iterator[Place]:
        """Look at these lines; at the heads of all, as they were."""
        if names:
            return LockServer.places(self, *names, last=last)
        heads = self.sampler.last.lines if self.sampler.last else ()
        longer = [head.waiter.key for head in heads if head.length > 1] if self.looks_behind else []
        if not (asked := longer[:MOST_LINES]):
            return iter(heads)
        others = (head for head in heads if head.waiter.key not in asked)
        return chain(others, LockServer.places(self, *asked, last=MOST_OF_LINE))


class Asked(NamedTuple):
    """What is known of a question: the explanation, how old it is, and what is still to come, in words."""

    explanation: Explanation
    age: float = 0.0
    to_come: str = ""


class Busy(Trouble):
    """Too many ask at the same time."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("others are asking as well: load this page again")


class Explainer:
    """Explains, without asking more of the lock server than looks do. Thread-safe."""

    def __init__(self, sampler: Sampler) -> None:
        """Explain what this sampler sees."""
        server = sampler.server
        self._server = _Sampled(server.store, server.command, server.app, sampler)
        self._turn = threading.Lock()
        self._starting = threading.Lock()
        self._free_at = 0.0
        self._slots = threading.Semaphore(AT_ONCE)
        self._answers: dict[tuple[str, ...], tuple[float, Explanation | str]] = {}

    def explain(self, question: str) -> Asked:
        """Explain what these words name, as one types them behind ``celery redislock explain``.

        Raises:
            Trouble: they name nothing; or ``Busy``: too many ask at the same time.
            LockUnavailable: the lock server does not answer.
        """
        try:
            words = tuple(shlex.split(question))
        except ValueError as error:
            raise Trouble(f"these words cannot be read: {error}") from error
        if not words:
            raise Trouble("name a task and its arguments, a task id or a key")
        age, known = self._known(words, COUNTS_FOR)
        if isinstance(known, Explanation):
            return Asked(known, age)
        age, former = self._known(words, SHOWN_FOR)
        now = Asked(former, age) if isinstance(former, Explanation) else Asked(self._quick(words))
        with self._starting:
            age, known = self._known(words, COUNTS_FOR)  # another one may have asked the same meanwhile
            if isinstance(known, Explanation):
                return Asked(known, age)
            if known:
                return now._replace(to_come=known)
            if not self._slots.acquire(blocking=False):
                return now._replace(to_come="Other questions are put to workers and queues already.")
            self._keep(words, ASKING, math.inf)
        threading.Thread(target=self._ask, args=(words,), name="redislock-page-explain", daemon=True).start()
        return now._replace(to_come=ASKING)

    def _known(self, words: tuple[str, ...], seconds: float) -> tuple[float, Explanation | str]:
        """Return an answer that is not older than that, and its age; '' for none."""
        at, known = self._answers.get(words, (0.0, ""))
        age = time.monotonic() - at
        return (age, known) if age < seconds else (0.0, "")

    def _quick(self, words: Sequence[str]) -> Explanation:
        if not self._turn.acquire(timeout=PATIENCE):
            raise Busy
        cost = Cost(self._server.store)
        try:
            if (wait := self._free_at - time.monotonic()) > PATIENCE:
                raise Busy
            time.sleep(max(0.0, wait))
            with cost:
                return explanation(self._server, words, quick=True)
        finally:
            self._free_at = max(self._free_at, time.monotonic() + cost.rest)
            self._turn.release()

    def _ask(self, words: tuple[str, ...]) -> None:
        answer: Explanation | str
        with Cost(self._server.store) as cost:
            try:
                server = replace(self._server, looks_behind=True)
                answer = within(DEADLINE, lambda: explanation(server, words))
            except (RedisLockError, Trouble) as error:
                answer = str(error)
            except Exception as error:  # noqa: BLE001  of any transport
                answer = f"workers and queues could not be asked: {type(error).__name__}: {error}"
        self._keep(words, answer, time.monotonic())
        time.sleep(min(LONGEST_REST, cost.rest))
        self._slots.release()

    def _keep(self, words: tuple[str, ...], answer: Explanation | str, at: float) -> None:
        while len(self._answers) >= MOST:
            self._answers.pop(next(iter(self._answers)), None)
        self._answers[words] = at, answer
