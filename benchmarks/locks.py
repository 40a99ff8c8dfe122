"""What a lock costs without Celery, against redis-py's Lock, python-redis-lock and a bare SET NX.

::

    python benchmarks/locks.py [--quick] [--only NAME] [--json PATH]

Starts its own servers. ``--quick`` only shows that it runs.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.cores import Place, pin, places
from benchmarks.pairs import Figure, ratios, report, rounds, say
from benchmarks.peers import run_beside_peers
from benchmarks.redlock import redlock

LEASES = 1000

#: Lives of a task's lock in one round.
LIVES = 1000

#: What a claim says of its holder.
_ABOUT = '{"task":"shop.sync","host":"worker-17","pid":20940,"state":"queued","since":1795385516.122}'

#: What acquiring and releasing may cost, of redis-py's Lock: in time, and in CPU of the client.
TARGETS = {"one core": (0.5, 0.25), "two cores": (0.8, 0.45)}
_numbers = count(1)
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


def main() -> None:
    sections: Mapping[str, Callable[..., list[Figure]]] = {
        "acquiring": _acquiring, "on-the-server": _on_the_server, "renewing": _renewing, "client": client,
        "aio": aio, "one-task": one_task, "redlock": redlock,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few short rounds: shows only that it runs")
    parser.add_argument("--only", metavar="NAME", choices=sections, help=f"one of {', '.join(sections)}")
    parser.add_argument("--json", metavar="PATH", help="write the figures as JSON too; - for stdout")
    parser.add_argument("--renew", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    run_beside_peers()
    if arguments.renew:
        _renew(*arguments.renew)
        return
    everywhere, figures = places(), []
    for name, section in sections.items():
        if arguments.only in {None, name}:
            say(name)
            figures += section(everywhere, quick=arguments.quick)
    report("locks without Celery", figures, json_path=arguments.json)


def _acquiring(everywhere: Sequence[Place], *, quick: bool) -> list[Figure]:
    from celery_redislock.embedded import EmbeddedServer

    figures = []
    with EmbeddedServer(port=0) as server:
        for place in everywhere:
            pin(place.client, os.getpid())
            pin(place.server, server.pid)
            figures += _acquiring_at(server.url, place.name, quick=quick)
    return figures


def _acquiring_at(url: str, where: str, *, quick: bool) -> list[Figure]:
    times, pairs = (2, 50) if quick else (61, 100)
    say(f"acquiring and releasing, {where}")
    found = rounds(times, {name: _cost(once, pairs) for name, once in _contenders(url).items()})
    theirs = found["redis-py Lock"]

    def against(name: str, what: str) -> list[float]:
        return [a / b for a, b in zip(found[name][what], theirs[what], strict=True)]

    figures = []
    for name in found:
        wall, cpu = TARGETS.get(where, (None, None)) if name == "ours, Lock" else (None, None)
        if name != "redis-py Lock":
            figures += [
                Figure(f"{where}: {name}: wall / redis-py Lock", against(name, "wall"), wall),
                Figure(f"{where}: {name}: CPU / redis-py Lock", against(name, "cpu"), cpu),
            ]
    for name in ("ours, Semaphore", "ours, ReadWriteLock.read", "ours, ReadWriteLock.write"):
        of_lock = zip(found[name]["wall"], found["ours, Lock"]["wall"], strict=True)
        figures.append(Figure(f"{where}: {name}: wall / our Lock", [a / b for a, b in of_lock], 2.0))
    figures += [
        Figure(f"{where}:   {name}", [value * 1e6 for value in found[name]["wall"]], unit="us")
        for name in found
    ]
    return figures


def _contenders(url: str) -> dict[str, Callable[[str], None]]:
    """Each acquires and releases a lock of the given name."""
    import redis
    import redis_lock

    from celery_redislock.locks import Lock, ReadWriteLock, Semaphore, connect

    client = redis.Redis.from_url(url)
    store = connect(url)
    release = client.register_script(_RELEASE)
    about = '{"host":"somewhere","pid":1,"since":0.0,"state":"running"}'

    def by_store(name: str) -> None:
        token = f"job/{name}"
        store.acquire(name, token, 30.0, facts=about)
        assert store.release(name, token).released

    def by_lock(name: str) -> None:
        lock = Lock(store, name)
        assert lock.acquire(0)
        assert lock.release()

    def by_hand(name: str) -> None:
        assert client.set(name, "token", nx=True, px=30_000)
        assert release([name], ["token"])

    def by_redis_py(name: str) -> None:
        lock = client.lock(name, timeout=30)
        assert lock.acquire(blocking=False)
        lock.release()

    def by_python_redis_lock(name: str) -> None:
        lock = redis_lock.Lock(client, name, expire=30)
        assert lock.acquire(blocking=False)
        lock.release()

    def by_semaphore(name: str) -> None:
        permit = Semaphore(store, name, 3).acquire(timeout=0)
        assert permit is not None
        assert permit.release()

    def by_reading(name: str) -> None:
        lock = ReadWriteLock(store, name).read
        assert lock.acquire(0)
        assert lock.release()

    def by_writing(name: str) -> None:
        lock = ReadWriteLock(store, name).write
        assert lock.acquire(0)
        assert lock.release()

    return {
        "ours, store": by_store,
        "ours, Lock": by_lock,
        "ours, Semaphore": by_semaphore,
        "ours, ReadWriteLock.read": by_reading,
        "ours, ReadWriteLock.write": by_writing,
        "SET NX PX and a script": by_hand,
        "redis-py Lock": by_redis_py,
        "python-redis-lock": by_python_redis_lock,
    }


def client(_everywhere: Sequence[Place], *, quick: bool) -> list[Figure]:
    """What a lock costs whose store was made from a client, against redis-py's Lock of the same client.

    The process and its server share one core, where one can be chosen.
    """
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from celery_redislock.embedded import EmbeddedServer
    from celery_redislock.locks import Lock, connect

    say("locks of a client's")
    times, pairs = (2, 50) if quick else (61, 100)
    place = places()[0]
    before = os.sched_getaffinity(0) if place.client else ()
    with EmbeddedServer(port=0) as server:
        pin(place.client, os.getpid())
        pin(place.server, server.pid)
        theirs = redis.Redis(
            port=server.port, socket_timeout=1.0, socket_connect_timeout=1.0, retry=Retry(NoBackoff(), 0)
        )

        def by(lock_of: Callable[[str], object]) -> Callable[[str], None]:
            def once(name: str) -> None:
                lock = lock_of(name)
                assert lock.acquire(blocking=False) if isinstance(lock, redis.lock.Lock) else lock.acquire(0)
                lock.release()

            return once

        stores = {
            "its options": connect(theirs, prefix="options"),
        }
        contenders = {"redis-py Lock": by(lambda name: theirs.lock(name, timeout=30))}
        for name, store in stores.items():
            contenders[name] = by(lambda name, store=store: Lock(store, name))
        found = rounds(times, {name: _cost(once, pairs) for name, once in contenders.items()})
    pin(before, os.getpid())
    figures = []
    for name in contenders:
        if name in stores:
            wall, cpu = (ratios(found, what, name, "redis-py Lock") for what in ("wall", "cpu"))
            figures += [
                Figure(f"a client, {name}: Lock: wall / redis-py Lock", wall),
                Figure(f"a client, {name}: Lock: CPU / redis-py Lock", cpu),
            ]
        microseconds = [wall * 1e6 for wall in found[name]["wall"]]
        figures.append(Figure(f"a client:   {name}", microseconds, unit="us"))
    return figures


def _on_the_server(_everywhere: Sequence[Place], *, quick: bool) -> list[Figure]:
    """What a task's lock costs there: the time of its three scripts, and the memory of its claim."""
    from celery_redislock.embedded import EmbeddedServer

    with EmbeddedServer(port=0) as server:
        return _on_server(server.url, 1 if quick else 9)


def _on_server(url: str, times: int) -> list[Figure]:
    import redis

    from celery_redislock.locks import connect

    client, store = redis.Redis.from_url(url), connect(url)
    # As long as the names, tokens and facts of real tasks are.
    lives = [
        (f"shop.sync:v1:{n:032x}", f"{n:036x}/claimclaim12", f"{n:036x}/runrunrunrun") for n in range(LIVES)
    ]
    spent, kept = [], []
    for _ in range(times + 1):
        spent_before, kept_before = _calls(client, "usec"), client.info("memory")["used_memory"]
        for name, claim, _run in lives:
            store.acquire(name, claim, 3600.0, facts=_ABOUT)
        kept.append((client.info("memory")["used_memory"] - kept_before) / LIVES)
        for name, claim, run in lives:
            store.acquire(name, run, 30.0, facts=_ABOUT, instead_of=claim, starts_run=True)
        assert all(store.release(name, run).released for name, _claim, run in lives)
        spent.append((_calls(client, "usec") - spent_before) / LIVES)
    return [  # without the first round, in which the server makes room
        Figure("a task's lock: its three scripts, on the server", spent[1:], 20, unit="us"),
        Figure("a task's claim: memory of the server", kept[1:], 480, unit="bytes"),
    ]


def _cost(once: Callable[[str], None], pairs: int) -> Callable[[], Mapping[str, float]]:
    def each(names: Sequence[str]) -> None:
        for name in names:
            once(name)

    return _cost_of(each, pairs)


def _cost_of(each: Callable[[Sequence[str]], None], pairs: int) -> Callable[[], Mapping[str, float]]:
    def measure() -> Mapping[str, float]:
        names = [f"lock-{next(_numbers)}" for _ in range(pairs)]
        cpu, wall = time.process_time(), time.perf_counter()
        each(names)
        return {
            "wall": (time.perf_counter() - wall) / pairs,
            "cpu": (time.process_time() - cpu) / pairs,
        }

    return measure


def _renewing(_everywhere: Sequence[Place], *, quick: bool) -> list[Figure]:
    from celery_redislock.embedded import EmbeddedServer

    times = ((3.0, 4.0),) if quick else ((3.0, 10.0), (30.0, 32.0))
    with EmbeddedServer(port=0) as server:
        return [figure for ttl, wait in times for figure in _renewing_for(server.url, ttl, wait)]


def _renewing_for(url: str, ttl: float, wait: float) -> list[Figure]:
    say(f"renewing {LEASES} leases of {ttl:g} s for {wait:g} s")
    command = [sys.executable, __file__, "--renew", url, str(ttl), str(wait)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    cpu, renewals, calls, connections, threads = map(float, text.split())
    name = f"{LEASES} leases of {ttl:g} s"
    assert renewals >= LEASES, "no renewal was due while it was measured"
    return [
        Figure(f"{name}: CPU of one core", [cpu * 100], 0.7, unit="%"),
        Figure(f"{name}: connections", [connections], 1, unit=""),
        Figure(f"{name}: threads", [threads], 1, unit=""),
        Figure(f"{name}: renewals", [renewals], unit=""),
        Figure(f"{name}: calls", [calls], unit=""),
    ]


def _renew(url: str, ttl: str, wait: str) -> None:
    """Hold leases and do nothing else: the child of :func:`_renewing`."""
    import threading

    import redis

    from celery_redislock.locks import Lock, connect
    from celery_redislock.locks.watchdog import watchdog_of

    store = connect(url)
    locks = [Lock(store, f"lease-{ttl}-{number}", ttl=float(ttl)) for number in range(LEASES)]
    client = redis.Redis.from_url(url)
    strangers = len(client.client_list())
    assert all(lock.acquire(0) for lock in locks)
    watchdog, before = watchdog_of(store), _calls(client)
    renewed, cpu, wall = watchdog.renewals, time.process_time(), time.perf_counter()
    time.sleep(float(wait))
    share = (time.process_time() - cpu) / (time.perf_counter() - wall)
    assert all(lock.held for lock in locks)
    threads = sum(thread.name == "redislock-watchdog" for thread in threading.enumerate())
    connections = len(client.client_list()) - strangers
    print(share, watchdog.renewals - renewed, _calls(client) - before, connections, threads)


def aio(_everywhere: Sequence[Place], *, quick: bool) -> list[Figure]:
    """What a lock costs in a loop of asyncio, of 100 tasks at once; with a server of its own."""
    import asyncio

    import redis.asyncio

    from celery_redislock.embedded import EmbeddedServer
    from celery_redislock.locks import aio

    times, tasks, pairs = (2, 10, 5) if quick else (31, 100, 20)
    say(f"acquiring and releasing in a loop, {tasks} tasks")
    loop = asyncio.new_event_loop()

    def cost(once: Callable[[str], Awaitable[object]]) -> Callable[[], Mapping[str, float]]:
        async def work() -> None:
            for number in range(pairs):
                await once(f"aio-{next(_numbers)}-{number}")

        async def at_once() -> None:
            await asyncio.gather(*(work() for _ in range(tasks)))

        def measure() -> Mapping[str, float]:
            cpu, wall = time.process_time(), time.perf_counter()
            loop.run_until_complete(at_once())
            took = time.perf_counter() - wall, time.process_time() - cpu
            return {"rate": tasks * pairs / took[0], "cpu": took[1] / tasks / pairs * 1e6}

        return measure

    async def close(*ends: Callable[[], Awaitable[None]]) -> None:
        for end in ends:
            await end()

    with EmbeddedServer(port=0) as server:
        client = redis.asyncio.Redis.from_url(server.url, max_connections=100)
        release = client.register_script(_RELEASE)
        store = aio.connect(server.url)

        async def by_hand(name: str) -> None:
            assert await client.set(name, "token", nx=True, px=30_000)
            assert await release([name], ["token"])

        def by_lock(store: aio.Store) -> Callable[[str], Awaitable[object]]:
            async def once(name: str) -> None:
                lock = aio.Lock(store, name)
                assert await lock.acquire(0)
                assert await lock.release()

            return once

        contenders = {"ours": by_lock(store), "by hand": by_hand}
        found = rounds(times, {name: cost(once) for name, once in contenders.items()})
        loop.run_until_complete(close(store.aclose, client.aclose))
        loop.close()
    bare = "redis.asyncio's SET NX PX and a script"
    return [
        Figure(
            f"{tasks} tasks: rate of aio.Lock / {bare}", ratios(found, "rate", "ours", "by hand"), 0.8, True
        ),
        *(Figure(f"  {name}", found[name]["rate"], unit="/s") for name in found),
        *(Figure(f"  {name}: CPU of the client", found[name]["cpu"], unit="us") for name in found),
    ]


def one_task(_everywhere: Sequence[Place], *, quick: bool) -> list[Figure]:
    """What a lock costs one task of asyncio, against a thread, and against the bare round trips of a loop.

    The process and its server share one core, where one can be chosen.
    """
    import asyncio

    from celery_redislock.embedded import EmbeddedServer
    from celery_redislock.locks import Lock, aio, connect

    times, pairs = (2, 50) if quick else (61, 100)
    say("acquiring and releasing, one task")
    loop = asyncio.new_event_loop()
    place = places()[0]
    before = os.sched_getaffinity(0) if place.client else ()

    class Trips(asyncio.Protocol):
        answer: "asyncio.Future[bytes]"

        def data_received(self, data: bytes) -> None:
            self.answer.set_result(data)

    with EmbeddedServer() as server:
        pin(place.client, os.getpid())
        pin(place.server, server.pid)
        store, of_loop = connect(server.redis_url), aio.connect(server.redis_url)
        made = loop.create_unix_connection(Trips, server.socket_path)
        transport, trips = loop.run_until_complete(made)

        def by_thread(name: str) -> None:
            lock = Lock(store, name)
            assert lock.acquire(0)
            assert lock.release()

        async def by_task(name: str) -> None:
            lock = aio.Lock(of_loop, name)
            assert await lock.acquire(0)
            assert await lock.release()

        async def ask(operation: str, keys: Sequence[str], args: Sequence[str]) -> None:
            trips.answer = loop.create_future()
            transport.write(store._scripts._request(operation, keys, args))
            await trips.answer

        async def by_hand(name: str) -> None:
            keys = [f"redislock:{{{name}}}:lock", "redislock:index"]
            await ask("acquire", keys, [f"job/{name}\0{_ABOUT}", "30000", name])
            await ask("release", keys, [f"job/{name}\0", name, ""])

        def in_loop(once: Callable[[str], Awaitable[None]]) -> Callable[[], Mapping[str, float]]:
            async def work(names: Sequence[str]) -> None:
                for name in names:
                    await once(name)

            return _cost_of(lambda names: loop.run_until_complete(work(names)), pairs)

        contenders = {"Lock": _cost(by_thread, pairs), "aio.Lock": in_loop(by_task), "bare": in_loop(by_hand)}
        found = rounds(times, contenders)
        transport.close()
        loop.run_until_complete(of_loop.aclose())
        loop.close()
    pin(before, os.getpid())
    return [
        Figure("one task: CPU of aio.Lock / Lock", ratios(found, "cpu", "aio.Lock", "Lock"), 1.8),
        Figure("one task: wall of aio.Lock / Lock", ratios(found, "wall", "aio.Lock", "Lock")),
        *(Figure(f"  {name}: CPU", [cpu * 1e6 for cpu in found[name]["cpu"]], unit="us") for name in found),
    ]


def _calls(client, what: str = "calls") -> int:
    return int(client.info("commandstats").get("cmdstat_evalsha", {what: 0})[what])


if __name__ == "__main__":
    main()
