"""What the name of a worker in its messages costs: a drain counted, and the heartbeat timed.

::

    python benchmarks/heartbeat.py [--quick] [--json PATH]

A worker drains its queue with ``redislock_restore`` and without, in turn, and the server counts the
commands. The heartbeat is timed in this process, with one name on the server and with a thousand. Starts its
own servers and its own workers, which load this file as their app.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from celery import Celery

from benchmarks.pairs import Figure, ratios, report, rounds, say
from benchmarks.peers import ROOT, surroundings
from celery_redislock import SingletonTask

#: Environment variables of a worker: where its server is, and its ``redislock_restore``.
URL = "CELERY_REDISLOCK_BENCH_URL"
RESTORE = "CELERY_REDISLOCK_BENCH_RESTORE"
QUEUE = "celery"
#: A list that no worker reads.
PARKED = "parked"
#: The default. Two thirds of it after its start, a worker may take the names that have lapsed.
TERM = 30.0
#: Seconds of a drain after its last acknowledgement, in which its last bodies end.
ENDING = 1.0
#: Seconds between two timed heartbeats: in a loop every cache is warm, and a worker's are not.
PAUSES = {"in a loop": 0.0, "after a pause": 0.05}
#: What this program itself asks a server meanwhile; the tasks, kombu and the heartbeat use neither.
ASKED = {"info", "type"}


def empty(number: int) -> int:
    return number


app = Celery("heartbeat", broker=os.environ.get(URL), backend=os.environ.get(URL), set_as_current=False)
app.conf.redislock_restore = float(os.environ.get(RESTORE, TERM)) or False
task = app.task(name="empty", base=SingletonTask)(empty)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few messages: shows only that it runs")
    parser.add_argument("--json", metavar="PATH", help="write the figures as JSON too; - for stdout")
    arguments = parser.parse_args()
    import redis

    from celery_redislock.embedded import EmbeddedServer

    with EmbeddedServer(port=0) as server:
        app.conf.update(broker_url=server.url, result_backend=server.url)
        client = redis.Redis.from_url(server.redis_url)
        heartbeats, each = timed(client, quick=arguments.quick)
    with EmbeddedServer(port=0) as server:
        app.conf.update(broker_url=server.url, result_backend=server.url)
        client = redis.Redis.from_url(server.redis_url)
        drains = counted(client, server.url, each, quick=arguments.quick)
    report("the name of a worker in its messages", [*drains, *heartbeats], json_path=arguments.json)


def counted(client: Any, url: str, each: Mapping[str, float], *, quick: bool) -> list[Figure]:
    """Count the commands of a drain, with the names and without.

    Args:
        client: of the server.
        url: of the server, for the workers.
        each: commands that the script of one heartbeat runs, in the first seconds of a worker.
        quick: few messages.
    """
    times, messages = (1, 100) if quick else (3, 3000)
    seen: dict[str, list[Counter[str]]] = {"on": [], "off": []}

    def drain(restore: str) -> Callable[[], Mapping[str, float]]:
        def measure() -> Mapping[str, float]:
            commands = _drained(client, url, restore, messages)
            beats = commands.pop("eval", 0)  # scripts of tasks are EVALSHA
            for command, number in each.items():
                commands[command] -= round(number * beats)
            seen[restore].append(commands)
            return {"commands": commands.total(), "heartbeats": beats}

        return measure

    say(f"drains of {messages} messages, a worker of two processes")
    found = rounds(times, {"on": drain("on"), "off": drain("off")})
    for restore, drains in seen.items():
        for commands in drains[1:]:
            told = (f"{number} {command}" for command, number in commands.most_common() if number)
            say(f"  {restore:3} {', '.join(told)}")
    differences = [
        (on["commands"] - off["commands"]) / messages
        for on, off in zip(*(_by_round(found[restore]) for restore in ("on", "off")), strict=True)
    ]
    return [
        Figure(f"drain of {messages}: commands, on / off", ratios(found, "commands", "on", "off"), 1.01),
        Figure("  commands of a task, on - off", differences, 0.01, unit=""),
        Figure("  commands of a task, off", [n / messages for n in found["off"]["commands"]], unit=""),
        Figure("  heartbeats meanwhile, on", found["on"]["heartbeats"], unit=""),
        Figure("  heartbeats meanwhile, off", found["off"]["heartbeats"], 0, unit=""),
    ]


def timed(client: Any, *, quick: bool) -> tuple[list[Figure], Mapping[str, float]]:
    """Time a heartbeat, in this process; return also what commands one of a new worker runs."""
    times, count = (1, 20) if quick else (9, 30)  # a name that is not renewed for ten seconds takes none
    workers = {number: _Named(client, number) for number in (1, 1000)}
    for worker in workers.values():
        worker.renew()
    workers[1].measured(20, 0.0)()
    young = workers[1].commands
    say(f"a heartbeat: {_told(young)}; later")
    deadline = time.monotonic() + TERM
    while time.monotonic() < deadline:
        for worker in workers.values():
            worker.renew()
        time.sleep(1.0)
    figures = []
    for when, pause in PAUSES.items():
        say(f"heartbeats, {when}")
        contenders = {f"{number}": worker.measured(count, pause) for number, worker in workers.items()}
        found = rounds(times, {**contenders, "PING": workers[1].pinged(count, pause)})
        figures += _figures(found, when)
    say(f"  {_told(workers[1].commands)}")
    assert workers[1].commands.keys() > young.keys(), "it took no names"
    return figures, young


def _figures(found: Mapping[str, Mapping[str, list[float]]], when: str) -> list[Figure]:
    figures = []
    for contender, name in (("1", "one name"), ("1000", "a thousand names")):
        cpu = [1e6 * value for value in found[contender]["cpu"]]
        figures.append(Figure(f"heartbeat {when}, {name}: CPU of the worker", cpu, 200, unit="us"))
        figures.append(Figure(f"  {name}: the server's time", found[contender]["server"], unit="us"))
    for what, name in (("cpu", "CPU of the worker"), ("server", "the server's time")):
        many = ratios(found, what, "1000", "1")
        figures.append(Figure(f"  {name}: a thousand names / one", many, 1.2))
    ping = [1e6 * value for value in found["PING"]["cpu"]]
    return [*figures, Figure(f"  a bare PING {when}: CPU of the worker", ping, unit="us")]


class _Named:
    """A worker's name beside others that live, under a prefix of its own; no worker has it."""

    def __init__(self, client: Any, names: int) -> None:
        from celery_redislock.declaring.server import settings_of
        from celery_redislock.receiving.in_hand import WorkerName

        prefix = f"among-{names}"
        one = Celery(prefix, broker=app.conf.broker_url, set_as_current=False)
        one.conf.update(redislock_prefix=prefix, redislock_restore=TERM, redislock_url=app.conf.broker_url)
        self._client = client
        self._name = WorkerName(one, settings_of(one), node="bench@localhost")
        self._name.source = one.connection()
        self._channel = self._name.connect().channel()
        in_an_hour = 1000 * (time.time() + 3600)
        for number in range(names - 1):
            client.zadd(f"{prefix}:workers", {f"{number:012}": in_an_hour})
            client.hset(f"{prefix}:workers:bearers", f"{number:012}", "{}")
        self.commands: dict[str, float] = {}

    def renew(self) -> None:
        """Do what a worker's thread does each two seconds."""
        self._name.look(self._channel)

    def measured(self, count: int, pause: float) -> Callable[[], Mapping[str, float]]:
        """Return what times some heartbeats: the median of their CPU, the mean of the server's time."""

        def measure() -> Mapping[str, float]:
            before = _commands(self._client)
            usec = _usec(self._client)
            cpu = _median_cpu(self.renew, count, pause)
            ran = _commands(self._client) - before
            assert ran.pop("eval") == count, "a heartbeat is not one script"
            self.commands = {name: number / count for name, number in ran.items() if name != "ping"}
            return {"cpu": cpu, "server": (_usec(self._client) - usec) / count}

        return measure

    def pinged(self, count: int, pause: float) -> Callable[[], Mapping[str, float]]:
        """Return what times an empty trip on the same connection."""
        return lambda: {"cpu": _median_cpu(self._channel.client.ping, count, pause)}


def _median_cpu(trip: Callable[[], Any], count: int, pause: float) -> float:
    """Return the seconds of CPU that this thread takes for one."""
    spent = []
    for _ in range(count):
        time.sleep(pause)
        began = time.thread_time()
        trip()
        spent.append(time.thread_time() - began)
    return statistics.median(spent)


def _drained(client: Any, url: str, restore: str, messages: int) -> Counter[str]:
    """Publish into a list nobody reads, then give it the name of the worker's queue; count the commands."""
    client.flushall()
    with _worker(client, url, "30" if restore == "on" else "0"):
        for number in range(messages):
            task.apply_async((number,), queue=PARKED)
        before = _commands(client)
        client.rename(PARKED, QUEUE)
        _wait_drained(client)
        time.sleep(ENDING)
        ran = _commands(client) - before
        results = sum(1 for _ in client.scan_iter("celery-task-meta-*", count=1000))
        assert results == messages + 1, f"{results} of {messages + 1} have run"
    return ran


@contextmanager
def _worker(client: Any, url: str, restore: str) -> Iterator[None]:
    """Run a worker that has run a task."""
    quiet = ["--loglevel=error", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "benchmarks.heartbeat", "worker", "--concurrency=2", *quiet],
        cwd=ROOT,
        env=surroundings({URL: url, RESTORE: restore}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        task.delay(-1).get(timeout=60)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_drained(client: Any) -> None:
    give_up = time.monotonic() + 120
    while any(client.type(key) != b"none" for key in (QUEUE, "unacked")):
        assert time.monotonic() < give_up, "the worker did not drain its queue"
        time.sleep(0.05)


def _commands(client: Any) -> Counter[str]:
    """Return how often each command was called so far, but for those of this program."""
    found = client.info("commandstats")
    counts = {name.removeprefix("cmdstat_"): about["calls"] for name, about in found.items()}
    return Counter({name: calls for name, calls in counts.items() if name not in ASKED})


def _usec(client: Any) -> int:
    """Return the microseconds that scripts sent in full have taken so far."""
    return int(client.info("commandstats").get("cmdstat_eval", {"usec": 0})["usec"])


def _told(commands: Mapping[str, float]) -> str:
    return ", ".join(f"{number:g} {command.upper()}" for command, number in sorted(commands.items()))


def _by_round(values: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    return [dict(zip(values, each, strict=True)) for each in zip(*values.values(), strict=True)]


if __name__ == "__main__":
    main()
