"""How fast a lock goes from one who waits to the next, and how fairly.

::

    python benchmarks/fair_lock.py [--quick] [--json PATH]

Processes with threads acquire one lock, hold it for a millisecond, release it and acquire it again. Hand-offs
are given as a ratio to the most there can be: one in each hold and two trips, as measured in the same run.
Starts its own server. ``--quick`` only shows that it runs.
"""

import argparse
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.pairs import Figure, report, say

PROCESSES = 5
THREADS = 10
HOLD = 0.001

#: Of the most hand-offs there can be, and the most wins of a thread to the least.
TARGETS = (0.75, 1.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short round: shows only that it runs")
    parser.add_argument("--json", metavar="PATH", help="write the figures as JSON too; - for stdout")
    parser.add_argument("--contend", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contend:
        _contend(*arguments.contend)
        return
    from celery_redislock.embedded import EmbeddedServer

    rounds, seconds = (1, 2.0) if arguments.quick else (5, 5.0)
    with EmbeddedServer(port=0) as server:
        figures = _locks(server.url, rounds, seconds)
    report("A lock that many wait for", figures, json_path=arguments.json)


def _locks(url: str, rounds: int, seconds: float) -> list[Figure]:
    say(f"{PROCESSES} processes of {THREADS} threads, for {rounds} times {seconds:g} s")
    ratios = []
    spreads = []
    for _ in range(rounds):
        cycle = _cycle(url)
        # All begin at once, when the last of them has imported all there is.
        begin = time.time() + 2.0
        command = [sys.executable, __file__, "--contend", url, str(begin), str(seconds)]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)]
        wins = [int(word) for each in running for word in each.communicate()[0].split()]
        assert len(wins) == PROCESSES * THREADS
        ratios.append(sum(wins) / seconds * cycle)
        spreads.append(max(wins) / max(1, min(wins)))
    return [
        Figure("50 waiters: hand-offs, of one in a hold and two trips", ratios, TARGETS[0], at_least=True),
        Figure("50 waiters: most wins to least", spreads, TARGETS[1]),
    ]


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


def _contend(url: str, begin: str, seconds: str) -> None:
    """Print how often each thread of this process had the lock."""
    from celery_redislock.locks import Lock, connect

    store = connect(url)
    lock = Lock(store, "contended", timeout=None)
    end = float(begin) + float(seconds)
    wins = [0] * THREADS

    def work(number: int) -> None:
        time.sleep(max(0.0, float(begin) - time.time()))
        while time.time() < end:
            with lock:
                time.sleep(HOLD)
                wins[number] += time.time() < end

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(*wins)


if __name__ == "__main__":
    main()
