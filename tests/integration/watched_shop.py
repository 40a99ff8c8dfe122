"""A shop in this process with its locks on a real server, its history, and the next customer at its door."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import redis
from celery.exceptions import Ignore, Retry

from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.declaring.server import store_of
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks import connect
from celery_redislock.locks.lease import Lease, new_token
from celery_redislock.locks.watchdog import Watchdog, watchdog_of
from celery_redislock.store.store import Grant
from celery_redislock.wire.clock import boottime
from tests.facts import wait_until
from tests.history import Interval
from tests.unit.shop import Shop

#: Seconds one attempt may take to be answered; short, because many tests wait it out.
SOCKET_TIMEOUT = 0.2
#: Seconds after which a lock that was owed back must be free, on a busy machine.
PATIENCE = 20.0


class WatchedShop(Shop):
    """Broker and results in memory, locks on a real server; it writes down its bodies.

    Attributes:
        history: of its bodies, those with a lease.
        ran: keys of the bodies that came to their end, in order.
        door: who waits for the key at work.
        over_at: when the last body ended.
        unanswered: how many operations the lock server did not answer, after all attempts.
        locked_on: its lock store.
    """

    def __init__(self, url: str, direct_url: str, prefix: str, **settings: Any) -> None:
        """Open it.

        Args:
            url: of the lock server, as the shop sees it.
            direct_url: of the same, round the network.
            prefix: begins every key.
            settings: over those of every such shop.
        """
        defaults = {
            "redislock_url": url,
            "redislock_prefix": prefix,
            "redislock_socket_timeout": SOCKET_TIMEOUT,
            "redislock_start_timeout": 0.5,
            "redislock_retry_delay": 0.05,
        }
        super().__init__(in_memory=False, **{**defaults, **settings})
        # Celery's own prefix of the result backend stands before ours.
        self.prefix = f"{self.queue}{prefix}"
        self.direct = connect(direct_url, prefix=self.prefix, socket_timeout=5.0)
        self.client: redis.Redis = redis.Redis.from_url(direct_url)
        self.history: list[Interval] = []
        self.ran: list[str] = []
        self.door: NextCustomer | None = None
        self.over_at = float("-inf")
        self.unanswered = 0

    def unique(self, body: Callable[..., Any], **options: Any) -> Any:
        """Declare a unique task, and count from now on what the lock server did not answer."""
        task = super().unique(body, **options)
        if not hasattr(self, "locked_on"):
            self.locked_on = store_of(self.app, declaration_of(task).settings)
            self._count_unanswered(self.locked_on)
        return task

    @property
    def watchdog(self) -> Watchdog:
        """The one that renews this shop's leases and owes its holds."""
        return watchdog_of(self.locked_on)

    @contextmanager
    def at_work(self, task: Any, key: str) -> Iterator[None]:
        """Note a body of this task; from its beginning somebody waits for its key."""
        lease, start = task.lease, boottime()
        if self.door is not None:
            self.door.come()
        try:
            yield
        finally:
            self.over_at = end = boottime()
            if isinstance(lease, Lease):
                lost_at = lease.deadline if lease.lost else None
                self.history.append(Interval(lease.key, lease.token, lease.fence, start, end, lost_at))
        self.ran.append(key)

    def serve(self) -> None:
        """Run every message there is, those that are put off too, until none is left."""
        deadline = time.monotonic() + PATIENCE
        while self.serve_once():
            assert time.monotonic() < deadline, "messages go round and round"
            time.sleep(0.005)

    def serve_once(self) -> int:
        """Run the messages that are in the queue now, and return how many."""
        messages = self.messages()
        for message in messages:
            ended = self.run(self.receive(message))
            assert not isinstance(ended, Exception) or isinstance(ended, Ignore | Retry), ended
        return len(messages)

    def locks(self) -> list[str]:
        """Return the raw keys of locks that are held now."""
        return [key.decode() for key in self.client.scan_iter(f"{self.prefix}:*:lock", count=1000)]

    def is_free(self) -> bool:
        """Whether no lock is held, and nothing is owed."""
        return not self.locks() and not self.watchdog._debts

    def _count_unanswered(self, store: Any) -> None:
        def counting(ask: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*args: Any, **kwargs: Any) -> Any:
                try:
                    answer = ask(*args, **kwargs)
                except LockUnavailable:
                    self.unanswered += 1
                    raise
                return counting(answer) if callable(answer) else answer

            return counted

        store._scripts.begin = counting(store._scripts.begin)

    def close(self) -> None:
        """Close it, and remove its keys."""
        assert wait_until(lambda: not self.watchdog._debts, PATIENCE)
        names = list(self.client.scan_iter(f"{self.prefix}:*", count=1000))
        if names:
            self.client.delete(*names)
        self.client.close()
        self.direct.close()
        self.app.close()


class NextCustomer:
    """Somebody else who wants the key: asks for it every few milliseconds, and has a direct line."""

    def __init__(self, shop: WatchedShop, name: str) -> None:
        """Name the lock; asks for nothing yet."""
        self._shop = shop
        self._name = name
        self._thread: threading.Thread | None = None
        self.came_at = self.got_at = float("nan")

    def come(self) -> None:
        """Begin to ask for it, and hold it for a moment once; only the first call does anything."""
        if self._thread is None:
            self.came_at = boottime()
            self._thread = threading.Thread(target=self._wait, daemon=True)
            self._thread.start()

    def is_served(self) -> bool:
        """Return whether it got the key in time, when it has been there."""
        assert self._thread is not None
        self._thread.join(2 * PATIENCE)
        return not math.isnan(self.got_at)

    def _wait(self) -> None:
        token = new_token("next customer")
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with suppress(LockUnavailable):
                answer = self._shop.direct.acquire(self._name, token, 60.0, facts='{"state": "running"}')
                if isinstance(answer, Grant):
                    self._hold(token, answer.fence)
                    return
            time.sleep(0.003)

    def _hold(self, token: str, fence: int) -> None:
        self.got_at = boottime()
        time.sleep(0.01)
        self._shop.history.append(Interval(self._name, token, fence, self.got_at, boottime()))
        wait_until(lambda: self._gave_back(token), PATIENCE)

    def _gave_back(self, token: str) -> bool:
        with suppress(LockUnavailable):
            self._shop.direct.release(self._name, token)
            return True
        return False
