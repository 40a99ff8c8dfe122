"""When which lease is due for renewal: the watchdog's memory, without its thread."""

import heapq
import itertools
from dataclasses import dataclass

from celery_redislock.locks.lease import Lease

__all__ = ["Schedule", "Watch"]

#: The schedule is swept when it has grown to this many, or to twice what the last sweep left.
SLACK = 100


@dataclass(slots=True)
class Watch:
    """One lease under watch.

    Attributes:
        due: the clock's reading at which it is to be renewed.
        number: breaks ties in order of arrival.
        lease: what is renewed.
        since: when the watch began.
        max_hold: seconds after ``since`` at which it is renewed no more.
        warned: half of ``max_hold`` has been reported.
        unanswered: why the last renewal got no answer; empty if it got one.
        is_over: the lease was found given back or lost.
    """

    due: float
    number: int
    lease: Lease
    since: float
    max_hold: float | None
    warned: bool = False
    unanswered: str = ""
    is_over: bool = False

    def fall_due(self, at: float) -> None:
        """Be due at that time, or when the lease has been held for long enough, whichever comes first."""
        self.due = at if self.max_hold is None else min(at, self.since + self.max_hold)


class Schedule:
    """The leases under watch, soonest due first. Not thread-safe: its user holds a lock."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._watched: dict[str, Watch] = {}
        # Tuples, compared in one go: a signal handler may take a lock in the middle of a push.
        self._heap: list[tuple[float, int, Watch]] = []
        self._sweep_at = SLACK

    def __len__(self) -> int:
        return len(self._watched)

    def __contains__(self, token: str) -> bool:
        return token in self._watched

    def add(self, lease: Lease, *, now: float, max_hold: float | None) -> Watch:
        """Watch a lease; a watch it had before is replaced."""
        # A third of the ttl; sooner where the grant took long and little of its term is left.
        due = now + min(lease.term.ttl / 3, max(0.0, lease.deadline - now) / 2)
        watch = Watch(due, next(self._numbers), lease, now, max_hold)
        watch.fall_due(due)
        if len(self._heap) >= self._sweep_at:
            self._sweep()
        self._watched[lease.token] = watch
        self._push(watch)
        return watch

    def remove(self, lease: Lease) -> None:
        """Watch a lease no more; harmless if it is not watched."""
        self.drop(lease.token)

    def drop(self, token: str) -> None:
        """Watch the lease of this token no more; harmless if there is none."""
        self._watched.pop(token, None)

    def next_due(self) -> float:
        """When to look again; infinity if nothing is watched.

        That may be for a lease removed meanwhile: looking in vain every few
        seconds costs less than waking the watchdog for every short lock.
        """
        return self._heap[0][0] if self._heap else float("inf")

    def take_due(self, now: float) -> list[Watch]:
        """Take out what is due now, and what would be within a tenth of its ttl: one call for all."""
        taken: list[Watch] = []
        while self._heap and self._heap[0][0] <= now + self._heap[0][2].lease.term.ttl / 10:
            *_, watch = heapq.heappop(self._heap)
            if self._is_current(watch):
                taken.append(watch)
        return taken

    def put_back(self, watch: Watch) -> None:
        """Put a taken watch back, unless it was removed or replaced meanwhile, or is over."""
        if not self._is_current(watch):
            return
        if watch.is_over:
            self.remove(watch.lease)
        else:
            self._push(watch)

    def _push(self, watch: Watch) -> None:
        heapq.heappush(self._heap, (watch.due, watch.number, watch))

    def _sweep(self) -> None:
        """Drop what is over: most leases end long before they are due, and would pile up until then."""
        # What a signal handler adds meanwhile finds the new heap, and stays.
        swept, self._heap = self._heap, []
        live = []
        for entry in swept:
            *_, watch = entry
            if not self._is_current(watch):
                continue
            if watch.lease.held:
                live.append(entry)
            else:
                self.remove(watch.lease)
        self._heap += live
        heapq.heapify(self._heap)
        self._sweep_at = max(SLACK, 2 * len(live))

    def _is_current(self, watch: Watch) -> bool:
        return self._watched.get(watch.lease.token) is watch
