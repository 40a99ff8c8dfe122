"""The lock of one call of a task: accept, start, finish. Knows no Celery.

The life of one message: what its key is held by (``m``: its identity, ``r``: its run's token), who asks, and
the script that decides::

    published            free -> m                Claim.push, ask       claim_and_push, acquire
    refused, and waits   it is in line            Claim.push; parking   claim_or_park; park
    the holder ends      line -> m, kept as sent  (whoever ends it)     line.lua, wake
    nobody ended it      likewise                 sweep                 sweep
    the run starts       m -> r, renewed          start                 acquire
    the run ends         r -> free                finish (_with_result) release, release_and_store
    its body publishes   r -> m2                  hand_on               hand_on
    its id again
    its child is dead    r -> m: it comes again   receiving/death       hand_on
                         r -> free, m -> free     leavings              release
    its worker is dead   m, or r until its ttl    restore: delivered again

A request at the end that the server does not answer is owed to the watchdog.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, NamedTuple, TypeVar

from celery_redislock.exceptions import RedisLockError
from celery_redislock.locks.force import told_of_force
from celery_redislock.locks.keylock import KeyLock
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.notes import NOTES
from celery_redislock.locks.process import hostname, whereabouts_of
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.store.store import (
    ACCEPTED,
    QUEUED,
    RUNNING,
    Answer,
    Grant,
    Hold,
    LockStore,
    Mark,
    Marked,
    Refusal,
    Release,
    Term,
)

T = TypeVar("T")


class Says(NamedTuple):
    """What all holders of a task say about it.

    Attributes:
        client: the strategy of a duplicate at publish; ``server``: on a worker. ``callable`` for one.
        ttl: seconds a lease outlives its last renewal.
        is_timed: how long calls wait and run is counted (``redislock_metrics``).
        is_confirmed: what an acquire writes has to be confirmed, so that one that is refused writes nothing.
        rate: starts and span, as the scripts read them: ``10/60000``, or two with a blank between them.
    """

    client: str = "skip"
    server: str = "skip"
    ttl: float = 0.0
    is_timed: bool = False
    is_confirmed: bool = False
    rate: str = ""


class _Terms(NamedTuple):
    """The fields of a :class:`TaskLock`.

    Attributes:
        store: where the lock is kept.
        task: the task's name; ``owner`` its id, and ``key`` the lock's name.
        ttl: seconds a lease outlives its last renewal.
        queue_ttl: seconds a claim outlives the last sign of life of its message, without its countdown.
        period: least seconds between two acceptances, ``None`` for no period.
        limit: how many may hold it at once; ``None`` for one, on all its processes.
        says: what its holder says about the task.
        is_ignored: the result of this call is not stored.
        main_process: of the worker, as leases name it; ``None`` for this process.
        told: what its holder says about the arguments, the end of a JSON object.
    """

    store: LockStore
    task: str
    ttl: float
    queue_ttl: float
    period: float | None
    limit: int | None
    says: Says
    key: str
    owner: str
    is_ignored: bool = False
    main_process: str | None = None
    told: str = ""


class TaskLock(_Terms, KeyLock):
    """The terms of one call of a task on a key: whose, for how long, beside how many, and what is said of it.

    :meth:`accept` and :meth:`start` take two more round trips where a dead run holds the lock. Used by one
    thread at a time.
    """

    __slots__ = ()

    @property
    def longest(self) -> float:
        """Seconds after which a hold of it has expired that nobody renews."""
        return max(self.ttl, self.queue_ttl)

    def of_message(self, message: str) -> "TaskLock":
        """As of any lock; a message has no period, and is alone."""
        return super().of_message(message)._replace(period=None, limit=None)

    def __str__(self) -> str:
        """As Celery's own log lines name a task."""
        return f"{self.task}[{self.owner}]"

    def that_waits(self) -> "TaskLock":
        """Return it for a call that waits where it is refused, whatever its task asks for."""
        return self._replace(says=self.says._replace(client="wait", server="wait"))

    @property
    def args(self) -> str:
        """What :attr:`told` says by which the arguments of two calls can be compared; '' for nothing."""
        return self.told.removeprefix(',"args":"').partition('"')[0]

    def tells_otherwise(self, hold: Hold) -> bool:
        """Whether a holder of this lock was called with other arguments, as far as both tell the same."""
        args = str(hold.facts.get("args") or "")
        return len(args) == len(self.args) and args != self.args

    def accept(
        self, token: str, ttl: float, state: str = QUEUED, *, message: str | None, claim: str | None = None
    ) -> Answer:
        """Acquire a claim under this token, as a worker does for a message without one when its run starts.

        ``state``: ``ACCEPTED`` for a claim that is the period, released by no run. ``message`` is the
        message's identity. ``claim``: token of the one it was handed when it had waited in line; that is
        no acceptance, and is taken over. Raises as :meth:`LockStore.acquire` does.
        """
        period = None if state is ACCEPTED else self.period
        facts = self.facts(state, message)
        terms: Any = {"facts": facts, "period": period, "starts_run": True, "limit": self.limit}
        acquire = partial(self.store.acquire, self.key, token, ttl, instead_of=claim, **terms)
        return self.past_the_dead(acquire)

    def past_the_dead(self, acquire: Callable[[], T]) -> T:
        """Send a request for a hold, and once more where a dead run's hold refuses it."""
        answer = acquire()
        if isinstance(answer, Refusal) and any(map(self.release_if_dead, answer.holds)):
            return acquire()
        return answer

    def start(
        self,
        token: str,
        *,
        claim: str | None,
        message: str | None,
        may_be_done: bool,
        accepted: bool,
        max_hold: float | None,
        on_lost: Callable[[Lease], None],
        waits: bool = False,
    ) -> Lease | Refusal | Marked:
        """Turn the message's claim into a lease, or acquire where there is none; renewed from now on.

        Raises as :meth:`LockStore.acquire` does.

        Args:
            token: of the lease: this run's term.
            claim: token of the claim the lease may take over, ``None`` for none.
            message: the message's identity, ``None`` where it has none.
            may_be_done: a copy of the message may have run: a mark of it refuses this run.
            accepted: the message was accepted before, so that no period can refuse it or begin.
            max_hold: as for :meth:`Watchdog.watch`.
            on_lost: as for :class:`Lease`.
            waits: refused, it waits, whatever its task asks for.
        """
        acquire = partial(
            self.store.acquire,
            self.key,
            token,
            self.ttl,
            facts=self.facts(RUNNING, message, waits=waits),
            instead_of=claim,
            period=None if accepted else self.period,
            message=message if may_be_done else None,
            starts_run=True,
            limit=self.limit,
        )
        answer = self.past_the_dead(acquire)
        if not isinstance(answer, Grant):
            return answer
        NOTES.start(self)
        lease = Lease(self.store, Term(self.key, token, self.ttl), answer, on_lost=on_lost)
        watchdog_of(self.store).watch(lease, max_hold=max_hold)
        return lease

    def finish(self, lease: Lease, *, opened_by: str | None = None, mark: Mark | None = None) -> bool:
        """Stop renewing a lease and release it; tell whether it was still ours, where unknown counts as yes.

        ``opened_by`` and ``mark`` are as for :meth:`release`.
        """
        watchdog_of(self.store).forget(lease.token)
        lease.end()
        ask = partial(self.store.release, self.key, lease.token, opened_by=opened_by, mark=mark)
        answer = self._now_or_later(ask, mark.ttl if mark is not None else 0.0)
        # Not lease.trusted, which costs more: that it expired unseen before a repeated release is rare.
        return answer is None or answer.released or answer.gave_back(trusted=not lease.lost)

    def finish_with_result(
        self, lease: Lease, key: str, result: str, seconds: int, *, opened_by: str | None, mark: Mark | None
    ) -> tuple[bool, bool]:
        """As :meth:`finish`, and store a result in the same step; tell also whether that is stored.

        ``key``, ``result`` and ``seconds`` are as for :meth:`LockStore.release_and_store`. Where the server
        does not answer, the release alone is owed.
        """
        watchdog_of(self.store).forget(lease.token)
        lease.end()
        of = self.key, lease.token
        how: Any = {"opened_by": opened_by, "mark": mark}
        store = partial(self.store.release_and_store, *of, key, result, seconds, **how)
        owed = partial(self.store.release, *of, **how)
        answer = self._now_or_later(store, mark.ttl if mark is not None else 0.0, owed)
        release, is_stored = answer or (None, False)
        was_ours = release is None or release.released or release.gave_back(trusted=not lease.lost)
        return was_ours, is_stored

    def hand_on(self, lease: Lease, to: str, *, ttl: float, mark: Mark | None = None) -> bool:
        """Stop renewing a lease, and turn it into the claim of another message; answers as :meth:`finish`.

        Nothing is acquired: a lease that is gone, and a message that is done already, get no claim. *to* is
        the message's token, whose claim lives for ``ttl`` seconds.
        """
        watchdog_of(self.store).forget(lease.token)
        lease.end()
        answer = self.convert(lease.token, to, ttl=ttl, mark=mark)
        return answer is None or answer.gave_back(trusted=not lease.lost)

    def convert(self, token: str, to: str, *, ttl: float, mark: Mark | None = None) -> Release | None:
        """Turn the hold of one token into the claim of another, if it is still held; as :meth:`release`."""
        # Its message has been published: a duplicate that this claim refuses need not wait for that.
        facts = self.facts(QUEUED, published=True)
        request = partial(self.store.hand_on, self.key, token, to, ttl, facts=facts, mark=mark)
        return self._now_or_later(request, ttl)

    def count_loss(self) -> str:
        """Count that a run has lost this lock; tell whether somebody released it by force."""
        if watchdog_of(self.store).is_server_away:
            return ""
        task = self.task
        with suppress(RedisLockError):
            for name in self.key.split(" "):  # several resources
                forced = self.store.happened(name, task=task, what="lost").forced
                if forced.get("owner") == self.owner:
                    return told_of_force(forced)
                task = ""  # counted
        return ""

    def facts(
        self, state: str, message: str | None = None, published: bool = False, waits: bool = False
    ) -> str:
        """Describe the holder, as JSON; ``message`` is given where the token is not its identity."""
        usual = _usual(
            self.task, state, self.is_ignored, published, self.main_process, os.getpid(), self.limit,
            self.says, waits,
        )  # fmt: skip
        more = "" if message is None else f',"message":{quoted(message)}'
        return f'{usual},"since":{time.time():.3f}{more}{self.told}}}'


@lru_cache(maxsize=1024)
def _usual(
    task: str, state: str, is_ignored: bool, published: bool, main: str | None, pid: int, limit: int | None,
    says: Says, waits: bool,
) -> str:  # fmt: skip
    """Return the beginning of the facts that a holder writes: the same for every such call of a task here."""
    text = f'{{"task":{quoted(task)},"host":{quoted(hostname())},"pid":{pid},"state":"{state}"'
    if state == RUNNING and (whereabouts := whereabouts_of(main, pid)) is not None:
        text += f',"at":{quoted(whereabouts)}'
    strategy = says.client
    if state == RUNNING:
        strategy = says.server
        text += f',"ttl":{says.ttl:g}'
    text += f',"on_conflict":"{"wait" if waits else strategy}"'
    if says.is_timed:
        text += ',"timed":1'
    if says.is_confirmed:
        text += ',"confirmed":1'
    if is_ignored:
        text += ',"ignored":true'
    if published:
        text += ',"published":true'
    if says.rate:
        text += f',"rate":"{says.rate}"'
    if limit is not None:
        text += f',"limit":{limit}'  # the scripts look for it
    return text
