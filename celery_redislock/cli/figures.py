"""The commands about figures: ``stats``, and ``exporter`` for Prometheus.

They read what the scripts count, so one of each serves a whole fleet.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import click

from celery_redislock.cli import output
from celery_redislock.cli.answer import as_json_option, server_of
from celery_redislock.exceptions import RedisLockError
from celery_redislock.operating import telling
from celery_redislock.operating.figures import BOUNDS, EVENTS, Figures, census, document_of
from celery_redislock.operating.schedule import Schedule
from celery_redislock.operating.server import LockServer, Trouble

#: What is counted, in the order in which it is shown.
_HEAD = ["TASK", *map(str.upper, EVENTS), "QUEUED", "RUNNING", "LATE", "IN LINE"]


#: How the table is cut: to names that can still be told apart. What does not fit then goes below.
_CUTS = {"TASK": 20}.items()


@click.command()
@click.option("--task", metavar="NAME", help="Only this task; a full name, or a pattern.")
@click.option(
    "--watch", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Repeat every so many seconds."
)
@output.wide_option
@as_json_option
@click.pass_context
def stats(ctx: click.Context, task: str | None, watch: float | None, wide: bool, as_json: bool) -> None:
    """Show figures of each task: what was counted, is held, and waits.

    \b
    ACCEPTED  claims taken at publish, or by a worker   MERGED    calls of which only the newest runs
    STARTED   runs that took their lock                 LOST      runs that lost their lock
    SKIPPED   calls and runs that were refused          FORCED    locks that were released by force
    ASKED     the same, if on_conflict is a callable    RESTORED  messages of killed workers
    WAITED    messages that were put into a line
    LATE      runs that hold a lock whose renewal is overdue: most likely dead

    Counting starts again after 30 days. With redislock_metrics the mean time that calls waited and runs held
    their lock is shown, too. It looks at no more than 10,000 locks. On a terminal that is too narrow, columns
    without figures are left out, and names are cut.

    Exit status: 0 (even if nothing was counted); 2 on error.
    """  # noqa: D301  click wants the character itself, as the mark of a text not to be wrapped
    server = server_of(ctx)
    with suppress(KeyboardInterrupt):
        _show(server, task, watch, wide=wide, as_json=as_json)


def _show(server: LockServer, task: str | None, watch: float | None, *, wide: bool, as_json: bool) -> None:
    while True:
        since, figures = census(server, task=task)
        if as_json:
            output.write_json({"server": server.store.server, "since": since, "tasks": document_of(figures)})
        else:
            if watch is not None:
                click.clear()
            begun = "" if since is None else f", counted since {telling.moment(since)}"
            width = output.width_of(wide=wide)
            table = _table(figures, width) if figures else ["nothing was counted, and nothing is held"]
            for line in (*output.folded(f"{server.store.server}{begun}", width), *table):
                output.say(line)
        if watch is None:
            return
        time.sleep(watch)


def _table(figures: Mapping[str, Figures], width: int) -> list[str]:
    is_timed = any(one.times for one in figures.values())
    rows: list[list[object]] = [[*_HEAD, *(["WAIT", "HOLD"] if is_timed else [])]]
    for name, one in sorted(figures.items()):
        now = [one.held.get("queued", 0), one.held.get("running", 0), one.late, one.in_line]
        times = [telling.duration(one.mean(what)) for what in ("wait", "hold")] if is_timed else []
        rows.append([name, *(one.events[event] for event in EVENTS), *now, *times])
    return output.table(rows, width, _CUTS)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=9808, show_default=True)
@click.pass_context
def exporter(ctx: click.Context, host: str, port: int) -> None:
    """Serve figures about locks to Prometheus, until it is stopped.

    It serves them as text over HTTP. One exporter is enough for all workers of a lock server, because the
    scripts on that server count. Each scrape asks as stats does. With redislock_metrics it also serves how
    long calls wait and runs hold their lock. Everybody who reaches the port can read names of tasks; by
    default only this machine reaches it.

    Exit status: 2 on error, such as a port that is taken.
    """
    server = server_of(ctx)
    try:
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415  an extra
    except ImportError as error:
        raise Trouble("prometheus_client is missing: pip install 'celery_redislock[prometheus]'") from error
    registry = CollectorRegistry()
    registry.register(Collector(server))
    try:
        httpd, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise Trouble(f"cannot listen at {host}:{port}: {error}") from error
    output.say(f"serving {server.store.server} at http://{host}:{httpd.server_port}/metrics")
    threading.Event().wait()


class Collector:
    """Collects the figures of a lock server, at each scrape."""

    def __init__(self, server: LockServer) -> None:
        """Of this server, and of the schedule of its app; asks nothing yet."""
        from prometheus_client import core  # noqa: PLC0415  an extra

        self._core = core
        self._server = server

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
            for row in Schedule(self._server).rows():
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


COMMANDS: Mapping[str, click.Command] = {"exporter": exporter, "stats": stats}
