"""The command that tries a lock server out, with faults: ``drill``."""

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Any

import click

from celery_redislock.cli import output
from celery_redislock.cli.answer import Answer, answers
from celery_redislock.drill.drill import Drill
from celery_redislock.drill.drill import drill as played
from celery_redislock.operating.server import LockServer

_PREFIX = "What its keys begin with, none of which may be there; by default something random."


class _Seconds(click.FloatRange):
    """A range, of which ``nan`` is no part."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if isnan(seconds):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return seconds


@click.command()
@click.option(
    "--seconds", type=_Seconds(3, 3600), default=20.0, show_default=True, help="How long faults go on."
)
@click.option("--prefix", metavar="TEXT", help=_PREFIX)
@answers
def drill(server: LockServer, seconds: float, prefix: str | None) -> Answer:
    """Try the lock server: holders are killed, paused and cut off.

    Four processes take one lock there. Each waits, holds it for up to a second, and renews it. This plays on
    the server as it is, under a prefix of its own, and touches no other key. Then it tells what the histories
    show: whether two trusted their lock at once, for how long nobody held it, how fast it was handed on; and
    what is lost when this server restarts or fails over. The processes and the keys are gone then, also if it
    is interrupted. It plays on no Cluster.

    Exit status: 0 no two held the lock at once; 1 two did; 2 it could not be played, or was interrupted.
    """
    output.warn(f"a drill on {server.store.server} for {seconds:g} s, by four processes")
    found = played(server, seconds, prefix)
    return answer_of(found, seconds, output.width_of())


def answer_of(found: Drill, seconds: float, width: int) -> Answer:
    """Return the document, the table and the exit status of a drill."""
    verdict = found.verdict
    document = {
        "seconds": seconds,
        "prefix": found.prefix,
        "ttl": found.ttl,
        **found.faults,
        "holds": verdict.holds,
        "overlaps": verdict.overlaps,
        "fences_out_of_order": verdict.disorder,
        "losses_told": verdict.lost,
        "longest_without_holder": verdict.idle,
        "hand_off": _quantiles(verdict.handed),
        "round_trip": _quantiles(found.trips),
        "findings": [{"level": level, "text": text} for level, text in found.losses],
    }
    rows = [*_rows(found, seconds), *found.losses]
    lines = [line for label, text in rows for line in output.folded(text, width, f"{label:<26}")]
    return Answer(document, lines, 1 if verdict.overlaps else 0)


def _rows(found: Drill, seconds: float) -> Iterator[tuple[str, str]]:
    verdict = found.verdict
    counts = ", ".join(map(str, found.faults.values()))
    yield ", ".join(found.faults), f"{counts} in {seconds:g} s, with a ttl of {found.ttl:.1f} s"
    yield "holds", str(verdict.holds)
    yield "overlaps", str(len(verdict.overlaps))
    yield "fences out of order", str(len(verdict.disorder))
    yield "losses told", str(verdict.lost)
    yield "longest without a holder", f"{verdict.idle:.2f} s"
    for label, times in (("hand-off", verdict.handed), ("round trip", found.trips)):
        told = [f"{1000 * each:.1f} ms" for each in _quantiles(times).values() if each is not None]
        yield f"{label} p50, p99", ", ".join(told) or "none"
    for text in [*verdict.overlaps, *verdict.disorder]:
        yield "error", text


def _quantiles(times: Sequence[float]) -> Mapping[str, float | None]:
    """Return the times that half of these, and 99 of a hundred, do not exceed; they are in order."""
    last = len(times) - 1
    return {f"p{part}": times[round(last * part / 100)] if times else None for part in (50, 99)}


COMMANDS: Mapping[str, click.Command] = {"drill": drill}
