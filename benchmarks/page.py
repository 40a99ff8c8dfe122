"""What a look at a full lock server costs that server, and for how long it keeps others waiting.

::

    python benchmarks/page.py [--quick] [--json PATH] [--server PROGRAM]

Starts its own server, with 90,000 locks and 10,000 lines on it: queued calls, runs, periods, locks of several
holders and calls in line, each as its verb writes it, and copied. A look *in short strokes* is a walk over
all locks and all lines; *one by one*, all names in one script, and then a script for each lock and each line.
*Waits*: a process of its own sends one PING after another, and notes the longest that it has waited.
*Served*: the command ``web`` on that server, to which ten browsers come, each once in five seconds; then a
worker drains its queue there, in turn while the page looks at the locks and while it is stopped.
"""

import argparse
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import heartbeat
from benchmarks.memory import Site
from benchmarks.pairs import Figure, report, rounds

#: So many of each kind of lock; of the last one, so many lines stand behind them.
MANY = {"calls": 50_000, "runs": 20_000, "accepted": 9_000, "shared": 1_000, "in line": 10_000}

#: Copies that one request makes.
COPIES = 500

#: Longest waits in microseconds until its standard input ends: one of each tenth of a second.
PINGS = """
import select, socket, sys, time
server = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
waits = []
until = longest = 0.0
print("begun", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    began = time.perf_counter()
    server.sendall(b"PING\\r\\n")
    server.recv(100)
    now = time.perf_counter()
    longest = max(longest, now - began)
    if now > until:
        waits.append(longest)
        until, longest = now + 0.1, 0.0
waits = sorted([*waits[1:], longest])
print(waits[len(waits) // 2] * 1e6, waits[-1] * 1e6)
"""


def times(number: int, act: Callable[[], object]) -> None:
    """Do it so many times."""
    for _ in range(number):
        act()


def fill(site: Site, share: int) -> None:
    """Put the locks and the lines on the server, one in so many."""
    client, store = site.client, site.store
    kinds: Mapping[str, Callable[[], object]] = {
        "calls": site.queued,
        "runs": partial(site.running, site.waits),
        "accepted": site.accepted,
        "shared": partial(times, 3, partial(site.running, site.permits)),
        "in line": partial(times, 2, partial(site.waits.delay, 8)),
    }
    for kind, make in kinds.items():
        known = {*store.names(limit=200_000)}
        make()
        (name,) = {*store.names(limit=200_000)} - known
        start = f"redislock:{{{name}}}:"
        parts = {
            key.decode().removeprefix(start): (client.pttl(key), client.dump(key))
            for key in client.scan_iter(start + "*")
        }
        listed = {
            index: [(each, score) for each, score in client.zrange(index, 0, -1, withscores=True)
                    if each.partition(b"\0")[0] == name.encode()]
            for index in ("redislock:index", "redislock:lines")
        }  # fmt: skip
        for at in range(0, MANY[kind] // share, COPIES):
            pipe = client.pipeline(transaction=False)
            for number in range(at, min(at + COPIES, MANY[kind] // share)):
                for part, (pttl, value) in parts.items():
                    key = f"redislock:{{{name}:{number:08}}}:{part}"
                    pipe.restore(key, max(0, pttl), value)
                for index, members in listed.items():
                    for member, score in members:
                        named, *rest = member.split(b"\0")
                        copied = b"\0".join([b"%b:%08d" % (named, number), *rest])
                        pipe.zadd(index, {copied: score - number % 1000})
            pipe.execute()


def in_short_strokes(store: Any) -> tuple[int, int]:
    """Walk over all locks and lines; return how many holders and lines there are."""
    return sum(map(len, store.walk_holds())), sum(map(len, store.walk_lines()))


def nothing(_store: Any) -> tuple[int, int]:
    """Let two seconds pass."""
    time.sleep(2.0)
    return 0, 0


def one_by_one(store: Any) -> tuple[int, int]:
    """Look at all names in one script, and at each lock and line in one of its own."""
    from celery_redislock.store.redisstore import listed

    def names(index: str, *least: str) -> list[str]:
        index = f"{store.prefix}:{index}"
        found: list[str] = store._scripts.begin("names", [index], ["200000", *least], listed, name=index)()
        return found

    held = names("index")
    store.holders(held[0])  # the server knows the script then
    holders = 0
    for at in range(0, len(held), 100):
        bases = [store._base(name) for name in held[at : at + 100]]
        calls = [([base + "lock", base + "period"], ["0"]) for base in bases]
        holders += sum(reply[2] for reply in store._scripts.at_once("inspect", calls, None)[0])
    return holders, sum(bool(store.waiting(name, last=0)) for name in names("lines", "-inf"))


def measured(
    client: Any, store: Any, port: int, look: Callable[[Any], tuple[int, int]]
) -> Mapping[str, float]:
    """Return what one look costs, and how long others wait meanwhile: in a second one, as they cost too."""
    figures: dict[str, float] = {}
    for is_watched in (False, True):
        watch = [sys.executable, "-c", PINGS, str(port)]
        with subprocess.Popen(watch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as pings:
            assert pings.stdout is not None
            pings.stdout.readline()
            if not is_watched:
                pings.communicate()
            client.slowlog_reset()
            before = _cpu(client)
            began = time.perf_counter()
            spent = time.process_time()
            holders, lines = look(store)
            if not is_watched:
                slowest = max((each["duration"] for each in client.slowlog_get(1000)), default=0)
                figures |= {
                    "server": _cpu(client) - before,
                    "wall": time.perf_counter() - began,
                    "client": time.process_time() - spent,
                    "slowest": slowest / 1000,
                    "told": holders + lines,
                }
            else:
                usual, longest = map(float, pings.communicate()[0].split())
                figures |= {"usual": usual / 1000, "longest": longest / 1000}
    return figures


#: The views that browsers load.
VIEWS = ("", "held", "lines", "held?search=0000012", "index.json")

#: Browsers, seconds between two pages of each, and for which they come.
BROWSERS, PAUSE, FOR = 10, 5.0, 150.0


def loaded(port: int, path: str) -> tuple[float, int]:
    """Return how many seconds the first byte of a view took, and how many bytes there are."""
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as browser:
        browser.sendall(f"GET /{path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        size = len(browser.recv(1))
        took = time.perf_counter() - began
        while data := browser.recv(1 << 16):
            size += len(data)
    return took, size


def browse(port: int, number: int, until: float, found: Mapping[str, list[tuple[float, int]]]) -> None:
    """Load one view after another, as one of the browsers."""
    time.sleep(PAUSE * number / BROWSERS)
    while time.monotonic() < until:
        view = VIEWS[number % len(VIEWS)]
        found[view].append(loaded(port, view))
        number += 1
        time.sleep(PAUSE)


def drained(client: Any, url: str, page: subprocess.Popen[str], times: int, messages: int) -> Figure:
    """Drain the queue of a worker, in turn beside the page and while that stands still."""
    heartbeat.app.conf.update(broker_url=url, result_backend=url)
    took: dict[str, list[float]] = {"with": [], "without": []}
    with heartbeat._worker(client, url, "30"):
        for _ in range(times):
            for which, number in (("with", signal.SIGCONT), ("without", signal.SIGSTOP)):
                for each in range(messages):
                    heartbeat.task.apply_async((each,), queue=heartbeat.PARKED)
                page.send_signal(number)
                began = time.perf_counter()
                client.rename(heartbeat.PARKED, heartbeat.QUEUE)
                heartbeat._wait_drained(client)
                took[which].append(time.perf_counter() - began)
            page.send_signal(signal.SIGCONT)
    speeds = [without / beside for beside, without in zip(took["with"], took["without"], strict=True)]
    return Figure("  a worker's drain beside it / without", speeds, 0.99, at_least=True)


def served(client: Any, url: str, *, quick: bool) -> list[Figure]:
    """Load pages from the command, and see what that costs the server."""
    run = "import sys; from celery_redislock.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", run, "--url", url, "web", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2].strip().strip("/"))
        found: Mapping[str, list[tuple[float, int]]] = {view: [] for view in VIEWS}
        used = _cpu(client)
        began = time.monotonic()
        until = began + (6.0 if quick else FOR)
        browsers = [
            threading.Thread(target=browse, args=(port, number, until, found)) for number in range(BROWSERS)
        ]
        for browser in browsers:
            browser.start()
        for browser in browsers:
            browser.join()
        share = (_cpu(client) - used) / (time.monotonic() - began)
        drains = drained(client, url, process, *((2, 100) if quick else (10, 3000)))
        process.terminate()
    figures = [Figure("served: the server's share of a core", [100 * share], 2.0, unit="%"), drains]
    for view, loads in found.items():
        # Those before the first look have little to show.
        times, sizes = zip(*loads[-(len(loads) * 3 // 4 or 1) :], strict=True)
        figures += [
            Figure(f"  /{view}: first byte, median", [1000 * statistics.median(times)], 100.0, unit="ms"),
            Figure("    at most", [1000 * max(times)], unit="ms"),
            Figure("    size", [max(sizes) / 1000], 150.0, unit="kB"),
        ]
    return figures


def _cpu(client: Any) -> float:
    cpu = client.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few locks: shows only that it runs")
    parser.add_argument("--json", metavar="PATH", help="write the figures as JSON too; - for stdout")
    parser.add_argument("--server", metavar="PROGRAM", help="the server to measure; the embedded one without")
    arguments = parser.parse_args()
    from celery_redislock.embedded import EmbeddedServer
    from celery_redislock.locks import connect

    figures: list[Figure] = []
    with EmbeddedServer(port=0, binary=arguments.server) as server:
        assert server.port is not None
        site = Site(server.url, 1)
        fill(site, 100 if arguments.quick else 1)
        site.client.config_set("slowlog-log-slower-than", 100)
        site.client.config_set("slowlog-max-len", 1000)
        looks = {"in short strokes": in_short_strokes, "one by one": one_by_one}
        # All names at once may take a client longer than a lock is waited for.
        store = connect(server.redis_url, socket_timeout=30)
        contenders = {
            name: partial(measured, site.client, store, server.port, look)
            for name, look in {"nothing": nothing, **looks}.items()
        }
        found = rounds(1 if arguments.quick else 3, contenders)
        pages = served(site.client, server.url, quick=arguments.quick)
    for name in looks:
        told = found[name]
        what = f"{name}: {told['told'][0]:.0f} holders and lines, CPU of the server"
        figures += [
            Figure(what, told["server"], unit="s"),
            Figure("  its slowest command", told["slowest"], 3.0, unit="ms"),
            Figure("  a PING waits at most", told["longest"], unit="ms"),
            Figure("  at most, in the usual tenth of a second", told["usual"], unit="ms"),
            Figure("  CPU of the client", told["client"], unit="s"),
            Figure("  in all", told["wall"], unit="s"),
        ]
    idle = found["nothing"]
    figures += [
        Figure("nothing is looked at: a PING waits at most", idle["longest"], unit="ms"),
        Figure("  at most, in the usual tenth of a second", idle["usual"], unit="ms"),
    ]
    report("a look at a full lock server", [*figures, *pages], json_path=arguments.json)


if __name__ == "__main__":
    main()
