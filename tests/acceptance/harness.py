"""A project with real workers: opening it, looking into it, and ending everything that was started."""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import amqp
import redis
from celery.utils import uuid

from celery_redislock.publishing.handle import Holder
from tests.acceptance.beats import Beat
from tests.acceptance.journal import Body, overlaps_of
from tests.acceptance.project import open_project
from tests.acceptance.terms import PATIENCE
from tests.acceptance.ticks import Tick, ticks_in
from tests.acceptance.worker import Worker
from tests.history import violations

#: Where every law is tried; gevent and solo have the endings, and a row for each law in ``test_everywhere``.
POOLS = ("prefork", "threads")

T = TypeVar("T")

#: Celery's own line (5.7.0, ``worker/strategy.py``).
_RECEIVED = re.compile(r"Task \S+\[(\S+)\] received")
#: This package's, of a message that waits.
_WAITS = re.compile(r"\S+\[(\S+)\] waits: ")


def wait_until(fact: Callable[[], T | None], timeout: float, what: str) -> T:
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


class Project:
    """One app with a queue, key names and journal of its own, and the workers and beats that serve it.

    Attributes:
        plan: what they read.
        schedule: what beats send, read when they start (``scheduled.py``).
        workers: all that were started.
        beats: all that were started.
    """

    def __init__(
        self,
        broker: str,
        journal: str,
        prefix: str,
        *,
        backend: str | None = None,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Open it; starts no worker. ``journal``: where bodies write down facts, in redis-py's form."""
        self.plan = {
            "broker": broker,
            "backend": backend or broker,
            "journal": journal,
            "prefix": prefix,
            "conf": dict(conf or {}),
        }
        self.app = open_project(json.loads(json.dumps(self.plan)))
        self.redis = redis.Redis.from_url(journal)
        self.schedule: dict[str, Mapping[str, Any]] = {}
        self.workers: list[Worker] = []
        self.beats: list[Beat] = []
        self.pool = ""

    def __getattr__(self, name: str) -> Any:
        """Return the task ``project.<name>``."""
        return self.app.tasks[f"project.{name}"]

    def start_worker(self, pool: str, *arguments: str, concurrency: int = 2) -> Worker:
        """Start a worker and return it when it is ready."""
        return self.start_workers(1, pool, *arguments, concurrency=concurrency)[0]

    def start_workers(
        self, number: int, pool: str, *arguments: str, concurrency: int = 1, **plan: Any
    ) -> list[Worker]:
        """Start several at once; ``plan`` is added to the project's own."""
        self.pool = pool
        how: Any = {"pool": pool, "concurrency": concurrency, **plan}
        started = [self.launch_worker(*arguments, **how) for _ in range(number)]
        for worker in started:
            worker.wait_ready()
        return started

    def launch_worker(
        self, *arguments: str, pool: str = "prefork", concurrency: int = 1, **plan: Any
    ) -> Worker:
        """Start one that is waited for otherwise, or ends at once; ``plan`` is added to the project's own."""
        self.workers.append(Worker({**self.plan, **plan}, pool, concurrency, arguments))
        return self.workers[-1]

    def launch_beat(self, *arguments: str, plan: Mapping[str, Any] | None = None, **options: Any) -> Beat:
        """Start a beat with the project's schedule; ``plan`` is added to the project's own."""
        plan = {**self.plan, "schedule": self.schedule, **(plan or {})}
        self.beats.append(Beat(plan, *arguments, **options))
        return self.beats[-1]

    def start_beat(self, *arguments: str, **options: Any) -> Beat:
        """Start a beat as :meth:`launch_beat` does, and return it when it works."""
        beat = self.launch_beat(*arguments, **options)
        beat.wait_ready()
        return beat

    def start_beats_apart(
        self, *plans: Mapping[str, Any], arguments: Sequence[str] = (), seconds: float = 1.0
    ) -> list[Beat]:
        """Start a beat for each plan, whose intervals end so many seconds apart: they would send in turn."""
        names = [f"beat {len(self.beats) + place}" for place in range(len(plans))]
        with ExitStack() as stack:
            gates = [stack.enter_context(ExitStack()) for _ in names]
            for gate, name in zip(gates, names, strict=True):
                gate.enter_context(self.kept_on(f"{name}@starting"))
            beats = [
                self.launch_beat(*arguments, plan={"name": name, **plan})
                for name, plan in zip(names, plans, strict=True)
            ]
            wait_until(lambda: all(self.notes(f"{name}@starting") for name in names), PATIENCE, "all are up")
            for gate, beat in zip(gates, beats, strict=True):
                gate.close()
                beat.wait_ready()
                time.sleep(seconds if beat is not beats[-1] else 0.0)
        return beats

    def beat_of(self, tick: Tick) -> Beat:
        """Return the beat that sent a tick."""
        return next(beat for beat in self.beats if beat.pid == tick.pid)

    def ticks(self, key: str) -> list[Tick]:
        """Return what beats sent for this key, and no worker took."""
        found = ticks_in(self.redis, f"{self.plan['prefix']}:celery")
        return [tick for tick in found if tick.key == key]

    def leaving(self, key: str) -> list[Tick]:
        """Return what beats were about to send for this key, whether it has left or not."""
        return [Tick(**about) for about in self.notes(f"{key} leaves")]

    def wait_ticks(self, key: str, number: int) -> list[Tick]:
        """Return them once there are so many."""
        wait_until(lambda: len(self.ticks(key)) >= number, PATIENCE, f"{number} ticks of {key!r} are sent")
        return self.ticks(key)

    def close(self) -> None:
        """End workers and beats, and remove what the project left on the server."""
        for process in (*self.beats, *self.workers):
            process.end()
        if self.is_on_rabbitmq:
            with self.app.connection_for_write() as connection:
                for name in (self.plan["prefix"], self.aside):
                    connection.default_channel.queue_delete(name)
                    connection.default_channel.exchange_delete(name)
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

    def received(self) -> Counter[str]:
        """Return how often workers have received the message of each task id."""
        return Counter(_RECEIVED.findall(self.log))

    def wait_received(self, task_id: str, number: int = 1) -> None:
        """Return when workers have received this message so often."""
        what = f"{task_id} is received {number} times"
        wait_until(lambda: self.received()[task_id] >= number, PATIENCE, what)

    def wait_waiting(self, task_id: str, number: int = 1) -> None:
        """Return when this message has been refused its lock so often, and waits for it."""
        self.wait_lines(f"[{task_id}] waits: ", number=number)

    def waited(self) -> set[str]:
        """Return the task ids whose messages have found their key held so far."""
        return set(_WAITS.findall(self.log))

    def bodies(self, key: str) -> list[Body]:
        """Return the bodies that ran for this key so far."""
        return list(self.app.journal.bodies(key))

    def overlaps(self, key: str, *, killed: int = 0) -> list[tuple[Body, Body]]:
        """Return the pairs of bodies of this key that were on at once; all but so many killed have ended."""
        bodies = self.bodies(key)
        assert sum(body.ended_by is None for body in bodies) == killed, f"not over yet: {bodies}"
        return overlaps_of(bodies)

    def violations(self, key: str) -> list[str]:
        """Return what in the history of this key's bodies that held a lease contradicts law 1."""
        return violations(body.interval for body in self.bodies(key) if body.token is not None)

    @contextmanager
    def kept_on(self, *keys: str) -> Iterator[None]:
        """Keep the bodies of these keys, or task ids, on until the block ends, on the slowest machine."""
        with ExitStack() as stack:
            for key in keys:
                stack.enter_context(self.app.journal.kept_on(key))
            yield

    @contextmanager
    def running(self, task: Any, key: str, *args: Any, **options: Any) -> Iterator[Any]:
        """Publish a call; keep its body, and no other of its key, on from its start to the block's end."""
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
        """Return who holds the lock on a key's work, which all tasks share but those that say otherwise."""
        holder: Holder | None = self.executed.lock_for(key).holder()
        return holder

    def parked(self, key: str) -> list[str]:
        """Return the task ids that are in line for a key's lock, in order."""
        return [waiter.owner for waiter in self.executed.lock_for(key).waiting()]

    def wait_parked(self, key: str, number: int) -> list[str]:
        """Return them once there are so many."""
        wait_until(lambda: len(self.parked(key)) >= number, PATIENCE, f"{number} wait for {key!r}")
        return self.parked(key)

    def wait_free(self, key: str, timeout: float = PATIENCE) -> float:
        """Return when the key was seen free."""
        wait_until(lambda: self.holder(key) is None, timeout, f"{key!r} is free")
        return time.monotonic()

    def queued(self) -> int:
        """Return how many messages are in the queue, received by nobody."""
        if not self.is_on_rabbitmq:
            return int(self.redis.llen(f"{self.plan['prefix']}:celery"))
        with self.app.connection_for_read() as connection:
            try:
                return int(connection.default_channel.queue_declare(self.plan["prefix"], passive=True)[1])
            except amqp.NotFound:  # nobody has published yet
                return 0

    def undelivered(self) -> int:
        """Return how many messages the broker, which is Redis, would still deliver."""
        return self.queued() + int(self.redis.hlen(f"{self.plan['prefix']}:unacked"))

    @property
    def aside(self) -> str:
        """A queue that no worker looks into."""
        return f"{self.plan['prefix']}-aside"

    @property
    def is_on_rabbitmq(self) -> bool:
        """Whether messages are on RabbitMQ."""
        return str(self.plan["broker"]).startswith("amqp://")
