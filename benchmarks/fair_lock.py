"""How fast a lock, or a semaphore, goes from one who waits to the next, and how fairly.

::

    python benchmarks/fair_lock.py [--quick] [--json PATH]

Processes with threads acquire one lock, hold it for a millisecond, release it and acquire it again. Hand-offs
are given as a ratio to the most there can be: one in each hold and two trips, as measured in the same run;
those of a semaphore of three to those of the same loop over three bare scripts, also in it. A wake-up is
given as a ratio to a bare ``RPUSH``, ``BLPOP`` and ``EVALSHA`` between the same two processes, by redis-py.
Starts its own server. ``--quick`` only shows that it runs.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.pairs import Figure, report, say

#: Processes, and threads of each, that wait for a lock; and for a semaphore of so many places.
OF_LOCK = (5, 10)
OF_SEMAPHORE = (10, 5)
PLACES = 3
HOLD = 0.001

#: Of the most hand-offs there can be, and the most wins of a thread to the least.
TARGETS = (0.75, 1.3)
SEMAPHORE_TARGETS = (0.75, 1.5)

#: A release until the waiter has the lock, of a bare ring and one script.
WAKE_TARGET = 1.3
WAKES = 200

#: A fair semaphore of three bare scripts, with leases by the server's clock: a sorted set of holders, and a
#: list of bells. Who is handed a place makes its lease whole, as ours does.
BARE_ACQUIRE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('LLEN', KEYS[2]) == 0 and redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[1]) then
  redis.call('ZADD', KEYS[1], now + 30000, ARGV[2])
  return 1
end
redis.call('RPUSH', KEYS[2], ARGV[2])
return 0
"""
BARE_TAKE = """
local time = redis.call('TIME')
return redis.call('ZADD', KEYS[1], 'XX', time[1] * 1000 + math.floor(time[2] / 1000) + 30000, ARGV[1])
"""
BARE_RELEASE = """
redis.call('ZREM', KEYS[1], ARGV[1])
local bell = redis.call('LPOP', KEYS[2])
if bell then
  local time = redis.call('TIME')
  redis.call('ZADD', KEYS[1], time[1] * 1000 + math.floor(time[2] / 1000) + 2000, bell)
  redis.call('RPUSH', bell, '')
end
return 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short round: shows only that it runs")
    parser.add_argument("--json", metavar="PATH", help="write the figures as JSON too; - for stdout")
    parser.add_argument("--contend", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--wait", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contend:
        _contend(*arguments.contend)
        return
    if arguments.wait:
        _wait(*arguments.wait)
        return
    from celery_redislock.embedded import EmbeddedServer

    rounds, seconds = (1, 2.0) if arguments.quick else (5, 5.0)
    with EmbeddedServer(port=0) as server:
        figures = [
            *_locks(server.url, rounds, seconds),
            *_semaphores(server.url, rounds, seconds),
            *_wakes(server.url, rounds),
        ]
    report("Locks that many wait for", figures, json_path=arguments.json)


def _locks(url: str, rounds: int, seconds: float) -> list[Figure]:
    say(f"{OF_LOCK[0]} processes of {OF_LOCK[1]} threads, for {rounds} times {seconds:g} s")
    ratios = []
    spreads = []
    for _ in range(rounds):
        cycle = _cycle(url)
        wins = _wins(url, "lock", OF_LOCK, seconds)
        ratios.append(sum(wins) / seconds * cycle)
        spreads.append(max(wins) / max(1, min(wins)))
    return [
        Figure("50 waiters: hand-offs, of one in a hold and two trips", ratios, TARGETS[0], at_least=True),
        Figure("50 waiters: most wins to least", spreads, TARGETS[1]),
    ]


def _semaphores(url: str, rounds: int, seconds: float) -> list[Figure]:
    processes, threads = OF_SEMAPHORE
    say(f"{processes} processes of {threads} threads, {PLACES} at once, for {rounds} times {seconds:g} s")
    ratios = []
    spreads = []
    for _ in range(rounds):
        bare = _wins(url, "bare", OF_SEMAPHORE, seconds)
        wins = _wins(url, "semaphore", OF_SEMAPHORE, seconds)
        ratios.append(sum(wins) / sum(bare))
        spreads.append(max(wins) / max(1, min(wins)))
    return [
        Figure("50 waiters, 3 at once: of bare scripts", ratios, SEMAPHORE_TARGETS[0], at_least=True),
        Figure("50 waiters, 3 at once: most wins to least", spreads, SEMAPHORE_TARGETS[1]),
    ]


def _wakes(url: str, rounds: int) -> list[Figure]:
    say(f"a hand-off from this process to another, for {rounds} times {WAKES}")
    ratios = []
    for _ in range(rounds):
        bare = _wake(url, "bare")
        ratios.append(_wake(url, "lock") / bare)
    return [Figure("1 waiter: release to acquired, of RPUSH, BLPOP, EVALSHA", ratios, WAKE_TARGET)]


def _wake(url: str, kind: str) -> float:
    """Return the seconds from one process that lets go to the other that has it."""
    import redis

    from celery_redislock.locks import Lock, connect

    client = redis.Redis.from_url(url)
    lock = Lock(connect(url), "handed on")
    command = [sys.executable, __file__, "--wait", kind, url]
    times = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as waiter:
        assert waiter.stdin is not None
        assert waiter.stdout is not None
        for _ in range(WAKES):
            lock.acquire()
            print("wait", file=waiter.stdin, flush=True)
            while client.info("clients")["blocked_clients"] != 1:
                time.sleep(0.002)
            time.sleep(0.002)
            let_go = time.monotonic()
            if kind == "lock":
                lock.release()
            else:
                client.rpush("bare:bell", "")
            times.append(float(waiter.stdout.readline()) - let_go)
            if kind == "bare":
                lock.release()
        waiter.stdin.close()
    return median(times)


def _wait(kind: str, url: str) -> None:
    """Print when this process had it, each time it is told to wait."""
    import redis

    from celery_redislock.locks import Lock, connect

    client = redis.Redis.from_url(url)
    take = client.register_script(BARE_TAKE)
    lock = Lock(connect(url), "handed on")
    for _ in sys.stdin:
        if kind == "lock":
            lock.acquire()
        else:
            client.blpop(["bare:bell"], timeout=60)
            take(["bare:holders"], ["me"])
        has_it = time.monotonic()
        if kind == "lock":
            lock.release()
        print(has_it, flush=True)


def _wins(url: str, kind: str, shape: tuple[int, int], seconds: float) -> list[int]:
    """Return how often each thread of all processes had it."""
    processes, threads = shape
    # All begin at once, when the last of them has imported all there is.
    begin = time.time() + 2.0 + processes / 5
    command = [sys.executable, __file__, "--contend", kind, str(threads), url, str(begin), str(seconds)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    wins = [int(word) for each in running for word in each.communicate()[0].split()]
    assert len(wins) == processes * threads
    return wins


def _cycle(url: str) -> float:
    """Return the seconds of a hold and two trips, with nobody else there."""
    from celery_redislock.locks import Lock, connect

    lock = Lock(connect(url), "alone")
    times = []
    for _ in range(300):
        begin = time.perf_counter()
        with lock:
            time.sleep(HOLD)
        times.append(time.perf_counter() - begin)
    return median(times)


def _bare(url: str) -> Callable[[], AbstractContextManager[object]]:
    """Return what enters a semaphore of bare scripts."""
    import redis

    client = redis.Redis.from_url(url)
    acquire, take, release = map(client.register_script, (BARE_ACQUIRE, BARE_TAKE, BARE_RELEASE))
    keys = ["bare:holders", "bare:waiters"]

    @contextmanager
    def enter() -> Iterator[None]:
        bell = f"bare:bell:{os.urandom(6).hex()}"
        if not acquire(keys, [PLACES, bell]):
            client.blpop([bell], timeout=60)
            take(keys, [bell])
        yield
        release(keys, [bell])

    return enter


def _contend(kind: str, count: str, url: str, begin: str, seconds: str) -> None:
    """Print how often each thread of this process had the lock."""
    from celery_redislock.locks import Lock, Semaphore, connect

    store = connect(url)
    semaphore = Semaphore(store, "seats", PLACES, wait=None)
    enter: Callable[[], AbstractContextManager[object]] = {
        "lock": partial(Lock, store, "contended", wait=None),
        "semaphore": lambda: semaphore,
        "bare": _bare(url),
    }[kind]
    end = float(begin) + float(seconds)
    wins = [0] * int(count)

    def work(number: int) -> None:
        time.sleep(max(0.0, float(begin) - time.time()))
        while time.time() < end:
            with enter():
                time.sleep(HOLD)
                wins[number] += time.time() < end

    threads = [threading.Thread(target=work, args=(number,)) for number in range(int(count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(*wins)


if __name__ == "__main__":
    main()
