"""Tasks of one key, one after the other, and what became of each."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from celery_redislock import LockUnavailable
from tests.facts import wait_until
from tests.integration.watched_shop import PATIENCE, NextCustomer, WatchedShop

#: How each operation comes to be asked for.
DECLARED: dict[str, dict[str, Any]] = {
    "renew": {"lock_ttl": 0.9},
    "inspect": {"lock": "until_executing"},
    "mark_done": {"acks_late": True, "ignore_result": True},
}


class Visit(NamedTuple):
    """What became of one customer's visit.

    Attributes:
        took: seconds the publish took.
        was_published: the publisher was not told otherwise.
        was_exclusive: the next customer was not served before this one's task was over.
        was_answered: every operation was, if not at the first attempt.
    """

    took: float
    was_published: bool
    was_exclusive: bool
    was_answered: bool


class Visits:
    """Customers who come one after the other for one thing, each followed by somebody who waits for it."""

    def __init__(self, shop: WatchedShop, operation: str, policy: str) -> None:
        """Declare the task whose life asks for this operation."""
        # One that stays on asks for three renewals by itself.
        self.names = [f"visit {number}" for number in range(1 if operation == "renew" else 3)]
        self._shop = shop
        self._operation = operation
        declared = {"lock_key": "sale:{thing}", "on_lock_error": policy, **DECLARED.get(operation, {})}
        ending = {"hand_on": _come_again, "renew": _stay}.get(operation, _leave)

        def body(task: Any, thing: str, visit: str) -> None:
            with shop.at_work(task, visit):
                if visit in self.names:
                    ending(task)

        def follow() -> None:
            """Come after."""

        self._task = shop.unique(body, bind=True, **declared)
        self._follow_up = shop.unique(follow, name="shop.follow", lock=None)

    def pay(self, visit: str, *, afterwards: Callable[[], object] = lambda: None) -> Visit:
        """Publish and run; ``afterwards`` is done after the first attempt at both."""
        shop = self._shop
        shop.door = door = NextCustomer(shop, "sale:thing")
        unanswered_before = shop.unanswered
        began = time.monotonic()
        was_published = self._publish(visit)
        took = time.monotonic() - began
        shop.serve_once()
        afterwards()
        shop.serve()
        door.come()
        assert door.is_served(), "its lock never gets free again"
        assert wait_until(lambda: not shop.watchdog._debts, PATIENCE)
        was_exclusive = door.got_at >= shop.over_at or self._operation == "inspect"
        return Visit(took, was_published, was_exclusive, shop.unanswered == unanswered_before)

    def _publish(self, visit: str) -> bool:
        if self._operation == "inspect":
            # Without the publisher's side: only what has no claim of its own looks at the lock.
            self._shop.app.send_task(self._task.name, ("thing", visit))
            return True
        links = {"link": self._follow_up.si()} if self._operation == "mark_done" else {}
        try:
            result = self._task.apply_async(("thing", visit), **links)
        except LockUnavailable:
            return False
        assert not result.is_duplicate
        return True


def _leave(task: Any) -> None:
    """End at once."""


def _come_again(task: Any) -> None:
    """Publish itself again, once."""
    if not task.request.retries:
        raise task.retry(countdown=0)


def _stay(task: Any) -> None:
    """Stay on for three renewals; less for one that could not be had."""
    lease, deadline = task.lease, time.monotonic() + PATIENCE
    seen, count = lease.deadline, 0
    while count < 3 and not lease.lost and time.monotonic() < deadline:
        count, seen = count + (lease.deadline > seen), lease.deadline
        time.sleep(0.005)
