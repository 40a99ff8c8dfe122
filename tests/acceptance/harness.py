"""A shop with real workers: opening it, looking into it, and ending everything that was started."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import redis
from celery.utils import uuid

from celery_redislock.handle import Holder
from tests.acceptance.journal import Body, overlaps_of
from tests.acceptance.shop import open_shop

__all__ = ["PATIENCE", "POOLS", "Shop", "Worker", "throughout", "wait_until"]

POOLS = ("prefork", "threads", "solo")
#: Seconds after which a fact that has not come counts as one that never will: a busy machine needs some.
PATIENCE = 30.0
#: Seconds a worker may take until it is ready, and until it has ended once killed.
STARTING, ENDING = 60.0, 30.0

T = TypeVar("T")


def wait_until(fact: Callable[[], T], timeout: float, what: str) -> T:
    """Return the first true answer of ``fact()``; after ``timeout`` seconds fail, saying what was awaited."""
    deadline = time.monotonic() + timeout
    while not (answer := fact()):
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.01)
    return answer


def throughout(seconds: float, fact: Callable[[], T]) -> list[T]:
    """Return what ``fact()`` answered, again and again, until so many seconds had passed; one at least."""
    until = time.monotonic() + seconds
    answers = [fact()]
    while time.monotonic() < until:
        time.sleep(0.05)
        answers.append(fact())
    return answers


class Worker:
    """One ``celery worker`` process in a session of its own."""

    def __init__(
        self,
        plan: Mapping[str, Any],
        pool: str,
        concurrency: int,
        arguments: tuple[str, ...],
        *,
        app: str = "tests.acceptance.shop",
    ) -> None:
        """Start it; :meth:`wait_ready` tells when it works. ``app``: a module that reads the plan."""
        handle, path = tempfile.mkstemp(prefix="worker-", suffix=".log")
        self.log_path = Path(path)
        command = [sys.executable, "-m", "celery", "-A", app, "worker", "-P", pool]
        command += ["-c", str(concurrency), "-n", f"{self.log_path.stem}@localhost", "-l", "INFO"]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat", *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=handle,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Containers run tests as root, which Celery refuses where pickle is accepted.
            env={**os.environ, "SHOP_PLAN": json.dumps(plan), "C_FORCE_ROOT": "1"},
        )
        os.close(handle)
        self._read = ""
        self._size = 0

    @property
    def log(self) -> str:
        """Everything it has written so far."""
        # Tests look again and again at the log of a whole session: only what is new is read.
        with self.log_path.open("rb") as file:
            file.seek(self._size)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += whole.decode(errors="replace")
        self._size += len(whole)
        return self._read

    def wait_ready(self) -> None:
        """Return when it takes messages."""
        wait_until(lambda: " ready." in self.log or self._has_ended(), STARTING, "the worker is ready")
        assert self.process.poll() is None, f"the worker ended at once:\n{self.log}"

    def signal(self, number: int) -> None:
        """Send its main process a signal."""
        os.kill(self.process.pid, number)

    def end(self) -> None:
        """End it and its children by force: its own way to end is a matter of a test. Idempotent."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        # The children of a pool are in its session's process group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(ENDING)
        self.log_path.unlink(missing_ok=True)

    def _has_ended(self) -> bool:
        return self.process.poll() is not None


class Shop:
    """One app with a queue, key names and journal of its own, and the workers that serve it."""

    def __init__(
        self,
        broker: str,
        journal: str,
        prefix: str,
        *,
        backend: str | None = None,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Open it; starts no worker.

        Args:
            broker: in Celery's form; the result backend too, unless ``backend`` says otherwise.
            journal: where bodies write down facts, in redis-py's form.
            prefix: begins every key name.
            backend: result backend.
            conf: settings over those of every shop.
        """
        self.plan = {
            "broker": broker,
            "backend": backend or broker,
            "journal": journal,
            "prefix": prefix,
            "conf": dict(conf or {}),
        }
        self.app = open_shop(json.loads(json.dumps(self.plan)))
        self.redis = redis.Redis.from_url(journal)
        self.workers: list[Worker] = []
        self.pool = ""

    def __getattr__(self, name: str) -> Any:
        """Return the task ``shop.<name>``."""
        return self.app.tasks[f"shop.{name}"]

    def start_worker(self, pool: str, *arguments: str, concurrency: int = 2) -> Worker:
        """Start a worker and return it when it is ready."""
        return self.start_workers(1, pool, *arguments, concurrency=concurrency)[0]

    def start_workers(self, number: int, pool: str, *arguments: str, concurrency: int = 1) -> list[Worker]:
        """Start several at once."""
        self.pool = pool
        started = [Worker(self.plan, pool, concurrency, arguments) for _ in range(number)]
        self.workers += started
        for worker in started:
            worker.wait_ready()
        return started

    def close(self) -> None:
        """End the workers, and remove what the shop left on the server."""
        for worker in self.workers:
            worker.end()
        names = list(self.redis.scan_iter(f"{self.plan['prefix']}*", count=1000))
        for first in range(0, len(names), 500):
            self.redis.delete(*names[first : first + 500])
        self.redis.close()
        self.app.journal.close()
        self.app.close()

    @property
    def log(self) -> str:
        """What all its workers have written."""
        return "".join(worker.log for worker in self.workers)

    def lines(self, *texts: str) -> list[str]:
        """Return the workers' log lines with all of these texts."""
        first, *others = texts
        log = self.log
        if first not in log:
            return []
        return [line for line in log.splitlines() if first in line and all(text in line for text in others)]

    def wait_lines(self, *texts: str, number: int = 1) -> list[str]:
        """Return the log lines with all of these texts once there are so many of them."""
        what = f"{number} log lines with {texts}"
        return wait_until(lambda: lines if len(lines := self.lines(*texts)) >= number else [], PATIENCE, what)

    def bodies(self, key: str) -> list[Body]:
        """Return the bodies that ran for this key so far."""
        return list(self.app.journal.bodies(key))

    def overlaps(self, key: str, *, killed: int = 0) -> list[tuple[Body, Body]]:
        """Return the pairs of bodies of this key that were on at the same time; all must have ended.

        Args:
            key: argument of the bodies.
            killed: how many of them had no chance to note their end: their last sign of life counts.
        """
        bodies = self.bodies(key)
        assert sum(body.ended_by is None for body in bodies) == killed, f"not over yet: {bodies}"
        return overlaps_of(bodies)

    @contextmanager
    def kept_on(self, *keys: str) -> Iterator[None]:
        """Keep the bodies of these keys, or task ids, on until the block ends, however slow the machine is."""
        with ExitStack() as stack:
            for key in keys:
                stack.enter_context(self.app.journal.kept_on(key))
            yield

    @contextmanager
    def running(self, task: Any, key: str, *args: Any, **options: Any) -> Iterator[Any]:
        """Publish a call and keep its body, and no other of its key, on from its start to the block's end.

        Args:
            task: of this shop.
            key: first argument of the call.
            args: the others.
            options: of ``apply_async``.

        Yields:
            The call's result.
        """
        task_id = uuid()
        with self.kept_on(task_id):
            result = task.apply_async((key, *args), task_id=task_id, **options)
            wait_until(
                lambda: [body for body in self.bodies(key) if body.task_id == task_id],
                PATIENCE,
                f"the body of {task.name} began",
            )
            yield result

    def notes(self, subject: str) -> list[Any]:
        """Return what bodies noted about a subject."""
        return list(self.app.journal.notes(subject))

    def wait_started(self, key: str, number: int = 1, timeout: float = PATIENCE) -> Body:
        """Return the ``number``-th body of this key once it has begun."""
        wait_until(
            lambda: len(self.bodies(key)) >= number,
            timeout,
            f"body {number} of {key!r} began: {self.bodies(key)}",
        )
        return self.bodies(key)[number - 1]

    def wait_ended(self, key: str, number: int = 1, timeout: float = PATIENCE) -> list[Body]:
        """Return the bodies of this key once ``number`` of them have ended."""

        def ended() -> bool:
            return sum(body.ended_by is not None for body in self.bodies(key)) >= number

        wait_until(ended, timeout, f"{number} bodies of {key!r} ended: {self.bodies(key)}")
        return self.bodies(key)

    def holder(self, key: str) -> Holder | None:
        """Return who holds the lock on a key's sale, which all tasks share but those that say otherwise."""
        holder: Holder | None = self.sell.lock_for(key).holder()
        return holder

    def wait_free(self, key: str, timeout: float = PATIENCE) -> float:
        """Return when the key was seen free."""
        wait_until(lambda: self.holder(key) is None, timeout, f"{key!r} is free")
        return time.monotonic()

    def wait_expired(self, key: str) -> float:
        """Return when the lock on a key's sale expired, by the server's own account, however late it is seen."""
        expires = [self._expires(key)]
        wait_until(lambda: expires.append(self._expires(key)) or expires[-1] is None, PATIENCE, "it expired")  # type: ignore[func-returns-value]  # nothing, so on to the fact
        return max(known for known in expires if known is not None)

    def _expires(self, key: str) -> float | None:
        """Return when the lock expires as matters stand, in the bodies' time."""
        pipe = self.redis.pipeline(transaction=True)
        pipe.time()
        pipe.pttl(f"{self.plan['prefix']}:redislock:{{sale:{key}}}:lock")
        (seconds, microseconds), left = pipe.execute()
        now = seconds + microseconds / 1e6 - (time.time() - time.monotonic())
        return None if left < 0 else now + left / 1000

    def queued(self) -> int:
        """Return how many messages are in the queue, received by nobody."""
        return int(self.redis.llen(f"{self.plan['prefix']}:celery"))
