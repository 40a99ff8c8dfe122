"""The servers, workers and publishers of a round, what was done to them, and what they left."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from celery_redislock.receiving.restore import LATE
from celery_redislock.running.delivery import IN_HAND_OF
from celery_redislock.wire.clock import boottime
from tests.acceptance.brokers import RABBITMQ_QUEUES
from tests.acceptance.rabbitmq import RabbitMQ
from tests.acceptance.worker import Worker
from tests.facts import descendants, wait_until
from tests.faults import faulty_proxy
from tests.servers import EmbeddedServer
from tests.tls import tls_arguments, tls_options
from tools.attack.checks import Entry, Facts, left_in_hand
from tools.attack.draw import POOLS, RESTORING, Round
from tools.attack.lines import Lines
from tools.attack.record import PUSHED, Record, written
from tools.attack.shop import Journal, open_shop

ROOT = Path(__file__).resolve().parents[2]
#: Seconds a worker may take for a restart that is asked for nicely.
_PATIENCE = 20.0
#: Celery's own lines (5.7.0, ``worker/strategy.py`` and ``worker/request.py``).
_RECEIVED = re.compile(r"Task \S+?\[(.+?)\] received")
_TAKEN_FOR_DONE = re.compile(r"Task \S+?\[(.+?)\] succeeded before the worker was lost")


class Stage:
    """Everything that runs in a round; to the lock server all but ``admin`` go through ``proxy``."""

    def __init__(self, drawn: Round, folder: Path, rabbitmq: RabbitMQ | None) -> None:
        """Open it; starts nothing yet."""
        self.round, self.rabbitmq = drawn, rabbitmq
        self.queue = f"attack-{drawn.seed.replace(':', '-')}"
        self.revoked: set[str] = set()
        self.forged: list[str] = []
        self.problems: list[str] = []
        self.hits: list[tuple[float, int]] = []
        self.shifts: list[tuple[float, float, int]] = []
        self.disturbances: list[tuple[float, float]] = []
        self.in_hand_of_dead: list[tuple[float, str]] = []
        self.waited: frozenset[str] = frozenset()
        self.started: frozenset[str] = frozenset()
        self.keeps_marks = True
        self.workers: list[Worker] = []
        self._since: dict[int, float] = {}
        self._logs: list[str] = []
        self._logs_of_dead: list[str] = []
        self._publishers = 0
        self._publisher: subprocess.Popen[bytes] | None = None
        self._folder = folder
        self._publishers_log = folder / "publishers.log"
        self._stack = ExitStack()

    def __enter__(self) -> "Stage":
        """Start the servers, the workers and a publisher."""
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End all that was started."""
        self._stack.close()

    def _start(self) -> None:
        enter, folder = self._stack.enter_context, self._folder
        facts = enter(EmbeddedServer(port=0))
        # What a crash must not take: without its data a lock server grants what is held.
        extra, port = _security(folder) if self.round.locks == "secured" else ((), None)
        binary = shutil.which("redis-server") if extra else None
        self.locks = enter(EmbeddedServer(port=0, data_dir=folder, extra_args=extra, binary=binary))
        self.proxy = enter(faulty_proxy(port or self.locks.port or 0))
        self.admin = self._client(self.locks)
        secured = f"rediss://locks:password@127.0.0.1:{self.proxy.port}/0{tls_options(folder)}"
        if self.rabbitmq is None:
            of_broker = folder / "broker"
            of_broker.mkdir()
            self.broker_server = enter(EmbeddedServer(port=0, data_dir=of_broker))
            self.broker = self._client(self.broker_server)
            self._record = Record(of_broker, self.queue)
        broker = self.rabbitmq.url if self.rabbitmq is not None else self.broker_server.url
        is_shared = self.round.locks == "shared"
        if is_shared:
            self.admin = self.broker
        self.plan = {
            "broker": broker,
            "backend": broker if is_shared else facts.url,
            "journal": facts.redis_url,
            "locks": broker if is_shared else secured if port else self.proxy.url,
            "kind": self.round.broker,
            "queue": self.queue,
            "conf": RABBITMQ_QUEUES.get(self.round.broker, {}),
            "tasks": self.round.tasks,
            "keys": self.round.keys,
            "ttl": self.round.ttl,
            "queue_ttl": self.round.queue_ttl,
        }
        self.app: Celery = open_shop(self.plan)
        self._stack.callback(self.app.close)
        self.journal: Journal = self.app.journal
        self._stack.callback(self._end_processes)
        self.workers = [self._new_worker(pool) for pool in self.round.pools]
        for place in range(len(self.workers)):
            self._wait_ready(place)
        self.start_publisher()

    def replace_worker(self, place: int, number: int) -> None:
        """End a worker by a signal, with its children, and start another in its place."""
        worker = self.workers[place]
        pid = worker.process.pid
        self.leave(place)
        asked = boottime()
        self.send([pid, *descendants(pid)] if number == signal.SIGKILL else [pid], number)
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(_PATIENCE)
        if number != signal.SIGKILL:
            # A worker that shuts down may keep what it has received until it is killed (celery 5.7.0).
            self.disturbances.append((asked, boottime()))
        if number == signal.SIGTERM and worker.process.returncode is None:
            # A child waits 30 s for its last result to be read, in vain (billiard 4.3, plain tasks as well).
            number = signal.SIGKILL
        logs = self._logs if number == signal.SIGTERM else self._logs_of_dead
        logs.append(worker.log)
        worker.end()
        if self.is_restoring:
            self.in_hand_of_dead += [(boottime(), entry.task_id) for entry in self.entries(of_dead=True)]
        self.workers[place] = self._new_worker(self.round.pools[place])
        self._wait_ready(place)

    def _wait_ready(self, place: int) -> None:
        self.workers[place].wait_ready()
        self._since[place] = boottime()

    def leave(self, place: int) -> None:
        """Note that a worker is not there any more. Idempotent."""
        if since := self._since.pop(place, None):
            self.shifts.append((since, boottime(), POOLS[self.round.pools[place]]))

    def send(self, pids: Collection[int], number: int) -> None:
        """Send processes a signal, and remember which of them it may have hit in what they did."""
        self.hits += [(boottime(), pid) for pid in pids]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def start_publisher(self) -> None:
        """Start another publisher."""
        self._publishers += 1
        command = [sys.executable, "-m", "tools.attack.publisher", f"{self.round.seed}:{self._publishers}"]
        with self._publishers_log.open("ab") as log:
            self._publisher = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                cwd=ROOT, env={**os.environ, "PROJECT_PLAN": json.dumps(self.plan)},
            )  # fmt: skip

    def stop_publishing(self) -> None:
        """Kill the publisher."""
        if self._publisher is not None:
            assert self._publisher.stdin is not None
            if self._publisher.returncode is None and self._publisher.poll() is not None:
                self.problems.append(f"a publisher ended by itself: {self.log()[-2000:]}")
            self._publisher.kill()
            self._publisher.wait(_PATIENCE)
            self._publisher.stdin.close()

    def deploy(self, chance: random.Random, **changes: Any) -> None:
        """Start workers and publisher anew, one by one, with another plan: old and new side by side."""
        self.plan.update(changes)
        for place in chance.sample((0, 1, 2), 3):
            if place == 2:
                self.stop_publishing()
                self.start_publisher()
            else:
                self.replace_worker(place, signal.SIGTERM)
            time.sleep(chance.uniform(0.0, 2.0))

    def revoke(self, task_ids: list[str], chance: random.Random, **options: Any) -> None:
        """Revoke one of these tasks; not one whose id is used again."""
        if unique := [task_id for task_id in task_ids if not task_id.startswith("fixed")]:
            task_id = chance.choice(unique)
            self.revoked.add(task_id)
            with self.app.connection_for_write() as connection:  # one that is kept may have been cut
                self.app.control.revoke(task_id, connection=connection, **options)

    def facts(self) -> Facts:
        """Return what is known now about what was accepted."""
        attempts, outcomes = self.journal.facts("attempts"), self.journal.facts("outcomes")
        accepted = [attempts[name] for name, outcome in outcomes.items() if outcome[0] == "accepted"]
        ends = self.journal.facts("ends")
        finished: Counter[int] = Counter()
        begun: Counter[int] = Counter()
        bodies: dict[tuple[str, int], str] = {}
        killed: set[tuple[int, int]] = set()
        for name, body in self.journal.facts("starts").items():
            number, retries = body["number"], body["retries"]
            begun[number] = max(retries, begun[number])
            bodies[body["id"], retries] = "begun" if name in ends else "killed"
            if name not in ends:
                killed.add((number, retries))
            if name in ends and ends[name][1] in {"", "OnPurpose"}:
                finished[number] = max(retries, finished.get(number, -1))
        return Facts(
            calls=accepted,
            finished=finished,
            begun=begun,
            asked={int(number): retries for number, retries in self.journal.facts("asked").items()},
            states=self._states([call["id"] for calls in accepted for call in calls]),
            revoked=frozenset(self.revoked),
            received_by_dead=frozenset(_RECEIVED.findall("\n".join(self._logs_of_dead))),
            in_flight=len(self._logs_of_dead) if self.rabbitmq is None else 0,
            messages=self._messages() if self.rabbitmq is None else None,
            bodies=bodies,
            killed=frozenset(killed),
            waited=self.waited - self.started,
            taken_for_done=frozenset(_TAKEN_FOR_DONE.findall(self.log())),
        )

    @property
    def is_restoring(self) -> bool:
        """Whether nothing but this package brings back what a dead worker had in hand."""
        return self.round.broker == RESTORING

    def _messages(self) -> dict[str, frozenset[str]]:
        """Return what is last known of each task id's messages; nothing of those that wait in the queue."""
        waiting = {json.loads(text)["headers"]["id"] for text in self.broker.lrange(self.queue, 0, -1)}
        known = self._record.messages()
        return {name: last - {PUSHED} if name in waiting else last for name, last in known.items()}

    def entries(self, *, of_dead: bool = False) -> list[Entry]:
        """Return what Redis keeps for workers; ``of_dead``: only for those that are not there any more."""
        bearers = self.broker.hgetall("redislock:workers:bearers")
        living = {worker.process.pid for worker in self.workers if worker.process.poll() is None}
        names = {name.decode() for name, bearer in bearers.items() if json.loads(bearer)["pid"] in living}
        found = []
        for text in self.broker.hvals("unacked"):
            payload = json.loads(text)[0]
            headers = payload["headers"]
            name = payload["properties"].get(IN_HAND_OF, "")
            if not (of_dead and name.removesuffix(LATE) in names):
                found.append(Entry(headers["id"], headers["retries"], name, name.endswith(LATE)))
        return found

    def has_messages(self) -> bool:
        """Whether the broker has messages that wait for a worker; on Redis also those that workers have."""
        if self.is_restoring:
            return bool(self.broker.llen(self.queue) or left_in_hand(self.entries(), self.facts()))
        if self.rabbitmq is None:
            return bool(self.broker.llen(self.queue) or self.broker.hlen("unacked"))
        with self.app.connection_for_read() as connection:
            return bool(connection.default_channel.queue_declare(self.queue, passive=True).message_count)

    def lock_keys(self) -> dict[str, tuple[int, bytes]]:
        """Return all on the lock server: milliseconds left, and the value if it is a string.

        Of a lock that several may hold, each holder as well.
        """
        found = {}
        for key in self.admin.scan_iter("redislock:*" if self.round.locks == "shared" else None, count=1000):
            value = b""
            with suppress(redis.ResponseError):
                value = self.admin.get(key) or b""
            if (left := self.admin.pttl(key)) != -2:
                name = key.decode(errors="replace")
                found[name] = (left, value)
                for token, facts in self._holders(key).items():
                    found[f"{name} of {token.decode()}:lock"] = (left, token + b"\0" + facts)
        return found

    def _holders(self, key: bytes) -> dict[bytes, bytes]:
        return self.admin.hgetall(key) if key.endswith(b":holders") else {}

    def record(self) -> Iterator[list[bytes]]:
        """Return all that was written to the lock server."""
        return written(self._folder / "broker" if self.round.locks == "shared" else self._folder)

    def lines(self) -> Lines:
        """Return all lines, as the lock server's record has them."""
        return Lines().read(self.record())

    def read_lines(self) -> None:
        """Note whose messages have waited, and whose have started."""
        lines = self.lines()
        self.waited = frozenset(lines.waited)
        self.started = frozenset(lines.started)

    def wait_body(self, seconds: float) -> None:
        """Return when another body begins, or after some seconds."""
        before = self.journal.redis.hlen("attack:starts")
        wait_until(lambda: self.journal.redis.hlen("attack:starts") > before, seconds)

    def excess_connections(self) -> int:
        """Return how many the lock server has beyond two for each body that may run and for each process."""
        if self.round.locks == "shared":
            return 0
        bodies = sum(POOLS[pool] for pool in self.round.pools)
        children = sum(POOLS[pool] for pool in self.round.pools if pool == "prefork")
        return len(self.admin.client_list(_type="normal")) - 1 - 2 * (bodies + children + len(self.workers))

    def log(self) -> str:
        """Return what all workers and publishers have written."""
        logs = [*self._logs, *self._logs_of_dead, *(worker.log for worker in self.workers)]
        return "\n".join([*logs, self._publishers_log.read_text(errors="replace")])

    def ended(self) -> list[str]:
        """Return what ended, although nobody ended it."""
        ended = [worker.log for worker in self.workers if worker.process.poll() is not None]
        return [f"a worker ended by itself: {log[-2000:]}" for log in ended]

    def heal(self) -> None:
        """Let everything work again."""
        self.proxy.heal()
        self.proxy.drag = 0.0
        self.admin.config_set("maxmemory", 0)

    def _states(self, task_ids: list[str]) -> dict[str, tuple[str, str]]:
        backend = self.app.backend
        texts = backend.mget([backend.get_key_for_task(each) for each in task_ids]) if task_ids else []
        found = {}
        for task_id, text in zip(task_ids, texts, strict=True):
            meta = backend.decode_result(text) if text else {"status": "PENDING"}
            is_failed = meta["status"] == "FAILURE"
            found[task_id] = str(meta["status"]), type(meta["result"]).__name__ if is_failed else ""
        return found

    def _client(self, server: EmbeddedServer) -> Any:
        return self._stack.enter_context(redis.Redis.from_url(server.redis_url))

    def _new_worker(self, pool: str) -> Worker:
        return Worker(self.plan, pool, POOLS[pool], (), app="tools.attack.shop")

    def _end_processes(self) -> None:
        self.stop_publishing()
        for worker in self.workers:
            worker.end()


def _security(folder: Path) -> tuple[list[str], int]:
    """Return a server's arguments for TLS and the ACL user that the documentation describes, and its port."""
    arguments, port = tls_arguments(folder)
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    user = next(line for line in page.splitlines() if line.startswith("ACL SETUSER ")).split()[2:]
    return [*arguments, "--user", *user], port
