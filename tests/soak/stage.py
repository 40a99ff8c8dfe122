"""The servers, the workers and the publishers of a soak."""

import random
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
from celery import Celery

from celery_redislock import LockUnavailable
from tests.acceptance.harness import Worker
from tests.servers import EmbeddedServer
from tests.soak.shop import Journal, open_shop


class Stage:
    """Everything that runs, and what was published on it."""

    def __init__(self, *, workers: int, keys: int, seed: int) -> None:
        """Open it; starts nothing yet.

        Args:
            workers: how many, of two processes each.
            keys: how many resources the tasks share.
            seed: of what is random here; threads and processes are not repeatable all the same.
        """
        self._number = workers
        self._keys = keys
        self._seed = seed
        self._directory = tempfile.TemporaryDirectory(prefix="soak-")
        self.broker = EmbeddedServer(port=0)
        # What a crash must not take: without its data a lock server grants what is held.
        self.locks = EmbeddedServer(port=0, data_dir=self._directory.name)
        self.workers: list[Worker] = []
        self.accepted: dict[str, str] = {}
        self.refused = self.unavailable = 0
        self.revoked: set[str] = set()
        self._publishing = threading.Event()
        self._publisher: threading.Thread | None = None
        self.app: Celery
        self.journal: Journal

    def __enter__(self) -> "Stage":
        """Start the servers, then the workers."""
        self.broker.start()
        self.locks.start()
        self._plan = {
            "broker": self.broker.url,
            "locks": self.locks.url,
            "journal": self.broker.redis_url,
        }
        self.app = open_shop(self._plan)
        self.journal = self.app.journal
        try:
            self.workers = [self._new_worker() for _ in range(self._number)]
            for worker in self.workers:
                worker.wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all that was started."""
        self.stop_publishing()
        for worker in self.workers:
            worker.end()
        self.app.close()
        self.locks.stop()
        self.broker.stop()
        self._directory.cleanup()

    def start_publishing(self) -> None:
        """Publish in the background, somewhat faster than the workers work."""
        self._publishing.set()
        self._publisher = threading.Thread(target=self._publish, name="soak-publisher", daemon=True)
        self._publisher.start()

    def stop_publishing(self) -> None:
        """Publish no more."""
        self._publishing.clear()
        if self._publisher is not None:
            self._publisher.join(30.0)

    def replace_worker(self, place: int) -> None:
        """Kill a worker as the kernel would, with its children; start another in its place."""
        self.workers[place].end()
        self.workers[place] = self._new_worker()
        self.workers[place].wait_ready()

    def processes_of(self, worker: Worker) -> list[int]:
        """Return the main process of a worker and its children."""
        main = worker.process.pid
        text = Path(f"/proc/{main}/task/{main}/children").read_text(encoding="ascii")
        return [main, *map(int, text.split())]

    def revoke(self, task_id: str) -> None:
        """Revoke a task and end its run."""
        self.revoked.add(task_id)
        self.app.control.revoke(task_id, terminate=True, signal="SIGKILL")

    def unfinished(self) -> list[str]:
        """Return the accepted ids without a final state."""
        with redis.Redis.from_url(self.broker.redis_url) as client:
            ids = list(self.accepted)
            found: list[Any] = client.mget([f"celery-task-meta-{one}" for one in ids]) if ids else []
        ready = {one for one, text in zip(ids, found, strict=True) if text and _is_ready(text)}
        return [one for one in ids if one not in ready]

    def lost(self) -> list[str]:
        """Return the accepted ids that were neither done nor revoked."""
        return [
            one
            for one in self.accepted
            if self.app.backend.get_state(one) != "SUCCESS" and one not in self.revoked
        ]

    def lock_keys(self) -> list[str]:
        """Return the keys of locks on the lock server."""
        with redis.Redis.from_url(self.locks.redis_url) as client:
            return sorted(key.decode() for key in client.scan_iter("redislock:*:lock", count=1000))

    def lock_connections(self) -> int:
        """Return how many connections the lock server has."""
        with redis.Redis.from_url(self.locks.redis_url) as client:
            return len(client.client_list(_type="normal")) - 1

    def memory(self) -> int:
        """Return the resident memory of the workers' main processes, in kibibytes."""
        total = 0
        for worker in self.workers:
            for line in Path(f"/proc/{worker.process.pid}/status").read_text(encoding="ascii").splitlines():
                if line.startswith("VmRSS:"):
                    total += int(line.split()[1])
        return total

    def _new_worker(self) -> Worker:
        return Worker(self._plan, "prefork", 2, (), app="tests.soak.shop")

    def _publish(self) -> None:
        chance = random.Random(self._seed)  # noqa: S311  not for secrets
        task, number = self.app.tasks["soak.work"], 0
        while self._publishing.is_set():
            key, number = f"k{chance.randrange(self._keys)}", number + 1
            try:
                result = task.delay(key, number, chance.choice([0.0, 0.1, 0.3, 1.0, 3.0]))
            except LockUnavailable:
                self.unavailable += 1
            else:
                if result.is_duplicate:
                    self.refused += 1
                else:
                    self.accepted[result.id] = key
            time.sleep(chance.uniform(0.0, 0.1))


def _is_ready(text: bytes) -> bool:
    return any(f'"status": "{state}"'.encode() in text for state in ("SUCCESS", "FAILURE", "REVOKED"))
