"""The command for Prometheus: ``exporter``. It reads what the scripts count, so one serves a whole fleet."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import click

from celery_redislock.cli import output
from celery_redislock.cli.census import BOUNDS, EVENTS, Figures, census
from celery_redislock.cli.schedule import Schedule
from celery_redislock.cli.subject import LockServer, Trouble
from celery_redislock.exceptions import RedisLockError


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=9808, show_default=True)
@click.pass_context
def exporter(ctx: click.Context, host: str, port: int) -> None:
    """Serve figures about locks to Prometheus, as text over HTTP, until it is stopped.

    One exporter is enough for all workers of a lock server, because the scripts on that server count. Each
    scrape asks as stats does. With redislock_metrics it also serves how long calls wait and runs hold their
    lock. Everybody who reaches the port can read names of tasks; by default only this machine reaches it.

    Exit status: 2 on error, such as a port that is taken.
    """
    server = LockServer.of(ctx)
    try:
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415  an extra
    except ImportError as error:
        raise Trouble("prometheus_client is missing: pip install 'celery_redislock[prometheus]'") from error
    registry = CollectorRegistry()
    registry.register(Collector(server, ctx))
    try:
        httpd, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise Trouble(f"cannot listen at {host}:{port}: {error}") from error
    output.say(f"serving {server.store.server} at http://{host}:{httpd.server_port}/metrics")
    threading.Event().wait()


class Collector:
    """Collects the figures of a lock server, at each scrape."""

    def __init__(self, server: LockServer, ctx: click.Context) -> None:
        """Of this server, and of the schedule of its app; asks nothing yet."""
        from prometheus_client import core  # noqa: PLC0415  an extra

        self._core = core
        self._server = server
        self._ctx = ctx

    def collect(self) -> Iterator[Any]:
        """Yield the families; ``redislock_up`` alone where the server does not answer."""
        begun = time.perf_counter()
        figures: Mapping[str, Figures] | None = None
        with suppress(RedisLockError):
            figures = census(self._server)[1]
        yield self._core.GaugeMetricFamily("redislock_up", "The lock server answers", figures is not None)
        if figures is not None:
            yield from self._of_tasks(figures)
            yield from self._of_schedule()
        took = time.perf_counter() - begun
        yield self._core.GaugeMetricFamily("redislock_scrape_seconds", "How long this took", took)

    def _of_tasks(self, figures: Mapping[str, Figures]) -> Iterator[Any]:
        gauge = self._core.GaugeMetricFamily
        about = "What happened to calls"
        events = self._core.CounterMetricFamily("redislock_events", about, labels=["task", "event"])
        held = gauge("redislock_held", "Locks that are held", labels=["task", "state"])
        oldest = gauge("redislock_oldest_seconds", "Age of the oldest lock", labels=["task", "state"])
        late = gauge("redislock_late", "Runs whose renewal is overdue", labels=["task"])
        in_line = gauge("redislock_in_line", "Messages that wait for a lock", labels=["task"])
        times = {
            what: self._core.HistogramMetricFamily(f"redislock_{what}_seconds", about, labels=["task"])
            for what, about in (("wait", "From publish to start"), ("hold", "From start to release"))
        }
        for task, one in figures.items():
            for event in EVENTS:
                events.add_metric([task, event], one.events[event])
            for state, number in one.held.items():
                held.add_metric([task, state], number)
                oldest.add_metric([task, state], one.oldest[state])
            late.add_metric([task], one.late)
            in_line.add_metric([task], one.in_line)
            for what, by_bound in one.times.items():
                times[what].add_metric([task], *_histogram(by_bound))
        yield from (events, held, oldest, late, in_line, *times.values())

    def _of_schedule(self) -> Iterator[Any]:
        gauge = self._core.GaugeMetricFamily
        sent = gauge("redislock_beat_last_sent_seconds", "When it was sent last", labels=["entry"])
        paused = gauge("redislock_beat_paused", "Whether it is paused", labels=["entry"])
        with suppress(Trouble, RedisLockError):
            for row in Schedule(self._ctx, None).rows():
                if row["shared"]:
                    sent.add_metric([row["name"]], row["last_sent"] or 0)
                    paused.add_metric([row["name"]], row["paused"])
            yield from (sent, paused)


def _histogram(by_bound: Mapping[str, int]) -> tuple[list[tuple[str, float]], float]:
    """Return the buckets as Prometheus has them, each with those before it, and the sum in seconds."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound in BOUNDS:
        total += by_bound.get(bound, 0)
        buckets.append(("+Inf" if bound == "inf" else bound, total))
    return buckets, by_bound.get("ms", 0) / 1000


COMMANDS: Mapping[str, click.Command] = {"exporter": exporter}
