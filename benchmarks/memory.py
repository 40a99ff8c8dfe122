"""How much memory of the lock server each thing takes that is kept there, by kind of key.

::

    python benchmarks/memory.py [--quick] [--json PATH] [--server PROGRAM]

Starts its own server. Each row is what one thing adds: to ``used_memory``, which has all of it, and, key by
key, ``MEMORY USAGE``, which leaves out when a key expires and its place in the server's tables. Names of
locks have 12 to 55 bytes; a mark's, 45.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.pairs import Figure, report

#: So many of a thing, and a little less than a power of two: the server's tables are as full as they get.
MANY, FEW = 4000, 50

#: Seconds after which what a request notes for its repetition is gone.
NOTED = 3.5


class Site:
    """An app whose broker and lock server are one, and what may be kept there of its task."""

    def __init__(self, url: str, number: int) -> None:
        import redis
        from celery import Celery

        from celery_redislock import SingletonTask
        from celery_redislock.declaring.server import store_of

        self.number = number
        self.client: Any = redis.Redis.from_url(url)
        self.app = app = Celery("bench", broker=url, set_as_current=False)
        app.conf.update(redislock_fence="strict")
        self.store = store_of(app)
        how: dict[str, Any] = {
            "base": SingletonTask,
            "ignore_result": True,
            "lazy": False,
            "lock_ttl": 7200.0,
        }

        def declare(name: str, **options: Any) -> Any:
            return app.task(name=name, **{**how, **options})(nothing)

        self.calls = declare("shop.sync_account")
        self.periods = declare("shop.send_invoice", lock_period=7200.0)
        self.waits = declare("shop.charge_card", lock_key="account:{account}", on_conflict="wait")
        self.permits = declare("shop.fetch_page", lock_key="fetch_pages", lock_limit=10_000)

    def ids(self) -> Iterator[tuple[int, str]]:
        """Numbers, and a task id for each."""
        return ((number, str(uuid4())) for number in range(self.number))

    def queued(self) -> None:
        """Calls whose messages are in their queue."""
        for number, _ in self.ids():
            self.calls.delay(number)

    def running(self, task: Any = None) -> None:
        """Runs, as a worker starts them."""
        from celery_redislock.declaring.declaration import declaration_of
        from celery_redislock.locks.lease import new_token

        for number, id_ in self.ids():
            lock = declaration_of(task or self.calls).task_lock((number,), {}, id_)
            facts = lock.facts("running", new_token(id_))
            terms: Any = {"facts": facts, "limit": lock.limit, "starts_run": True}
            self.store.acquire(lock.key, new_token(id_), 7200.0, **terms)

    def done(self) -> None:
        """Marks of messages that are done."""
        from celery_redislock.locks.lease import new_token

        for number, id_ in self.ids():
            self.store.mark_done(f"shop.sync_account:v1:{number:024}", new_token(id_), 7200.0)

    def accepted(self) -> None:
        """Queued calls whose period has begun."""
        for number, _ in self.ids():
            self.periods.delay(number)

    def in_line(self) -> None:
        """Calls that wait behind one that is queued, with their messages."""
        for _ in self.ids():
            self.waits.delay(7)

    def handed_on(self) -> None:
        """Calls that were handed a lock, each another one, for which they have waited; not started."""
        for number, _ in self.ids():
            self.waits.delay(number)
            self.waits.delay(number)
        for number, _ in self.ids():
            key = f"account:{number}"
            holder = self.store.inspect(key)
            assert holder is not None
            self.store.release(key, holder.token)

    def refused(self) -> None:
        """Keys that have refused a call; beside the claim that refuses it."""
        self.queued()
        for number, _ in self.ids():
            self.calls.delay(number)


def nothing(account: int) -> None:
    """What the tasks run."""


def kind_of(key: str) -> str:
    """Name the kind of a key as docs/server.md does."""
    if not key.startswith("redislock:"):
        return "queue" if key == "celery" else "kombu's own"
    name, found, part = key.removeprefix("redislock:").partition("}:")
    return "{N}:" + part.partition(":")[0] if found else name


def measured(site: Site, what: str, act: Callable[[], None], *, beside: str = "") -> list[Figure]:
    """Return what one of these adds: in all, and in each kind of key. The server is empty before."""
    client = site.client
    act()  # connections and scripts are there
    client.execute_command("FLUSHALL", "SYNC")
    before = client.info("memory")["used_memory"]
    act()
    time.sleep(NOTED)
    for key in client.scan_iter("*note:*"):  # expired
        client.exists(key)
    taken = client.info("memory")["used_memory"] - before
    of_kind: Counter[str] = Counter()
    for key in client.scan_iter(count=1000):
        of_kind[kind_of(key.decode())] += client.memory_usage(key, samples=0) or 0
    figures = [Figure(f"{what}: in all{beside}", [taken / site.number], unit="B")]
    for kind, size in sorted(of_kind.items()):
        if size / site.number >= 1:
            figures.append(Figure(f"  {kind}", [size / site.number], unit="B"))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few of each: shows only that it runs")
    parser.add_argument("--json", metavar="PATH", help="write the figures as JSON too; - for stdout")
    parser.add_argument("--server", metavar="PROGRAM", help="the server to measure; the embedded one without")
    arguments = parser.parse_args()
    from celery_redislock.embedded import EmbeddedServer

    figures: list[Figure] = []
    with EmbeddedServer(port=0, binary=arguments.server) as server:
        site = Site(server.url, FEW if arguments.quick else MANY)
        version = site.client.info("server")
        which = (
            f"{version.get('server_name', 'redis')} {version.get('valkey_version', version['redis_version'])}"
        )
        figures += measured(site, "a queued call", site.queued)
        figures += measured(site, "a run", site.running)
        figures += measured(site, "a run, one of a lock_limit", partial(site.running, site.permits))
        figures += measured(site, "a done mark", site.done)
        figures += measured(site, "a queued call with a lock_period", site.accepted)
        figures += measured(site, "a call in line", site.in_line)
        figures += measured(site, "a call that was handed its lock", site.handed_on)
        figures += measured(site, "a key that refused a call", site.refused, beside=" (with that call's)")
    report(f"memory of the lock server ({which})", figures, json_path=arguments.json)


if __name__ == "__main__":
    main()
