"""What ``delay()`` takes, accepted and refused."""

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count

from benchmarks.pairs import Figure, ratios, rounds, say

__all__ = ["numbers", "publishing", "publishing_through"]

#: Arguments never used before.
numbers = count(1)
#: Seconds after which a claim counts as old.
OLD = 2.0


def publishing(client, other_url: str, place: str, *, quick: bool) -> list[Figure]:
    """Measure it where everything is on this machine; ``place`` is a name for the table."""
    from benchmarks import shop

    # Many short rounds: a noisy neighbour spoils some of them, not the median.
    times, calls = (1, 10) if quick else (60, 25)
    broker = shop.app.conf.broker_url
    here, unique = shop.tasks(shop.app, *shop.KINDS), [kind for kind in shop.KINDS if kind != "plain"]
    say(f"publishing, {place}: accepted, with results")
    found = rounds(
        times,
        {
            **{kind: _accepted(task, client, calls) for kind, task in here.items()},
            "plain and a PING": _accepted(here["plain"], client, calls, before=shop.ping),
        },
    )
    say(f"publishing, {place}: results ignored; locks elsewhere; nested arguments")
    ignored = shop.tasks(shop.app, "plain", "ours", ignored=True)
    elsewhere = shop.tasks(shop.open_shop(broker, locks=other_url), "plain", "ours")
    found_ignored = rounds(times, {kind: _accepted(task, client, calls) for kind, task in ignored.items()})
    found_elsewhere = rounds(
        times, {kind: _accepted(task, client, calls) for kind, task in elsewhere.items()}
    )
    nested = {kind: _accepted(here[kind], client, calls // 2, rows=_rows(100_000)) for kind in ignored}
    found_nested = rounds(times // 3 or 1, nested)
    say(f"publishing, {place}: refused")
    refused = rounds(
        times,
        {
            **{kind: _refused(here[kind], client, calls) for kind in unique},
            "PING": _alone(shop.ping, calls),
        },
    )
    times = times // 2 or 1
    held = {kind: [next(numbers) for _ in range((times + 1) * calls)] for kind in unique}
    for kind in unique:
        for number in held[kind]:
            here[kind].delay(number, full=True)
    time.sleep(0.0 if quick else OLD + 0.1)
    old = rounds(times, {kind: _refused_once(here[kind], client, held[kind], calls) for kind in unique})
    client.delete("celery")
    least = 1.1 if place == "two cores" else 1.5
    return [
        Figure(f"{place}: delay() p50: ours / plain", ratios(found, "p50", "ours", "plain"), 1.0),
        Figure("  results ignored: ours / plain", ratios(found_ignored, "p50", "ours", "plain"), 1.0),
        Figure(
            "  locks on another server: ours / plain", ratios(found_elsewhere, "p50", "ours", "plain"), 1.25
        ),
        Figure("  nested arguments, 100 kB: ours / plain", ratios(found_nested, "p50", "ours", "plain"), 1.3),
        Figure("  plain after a bare PING / plain", ratios(found, "p50", "plain and a PING", "plain")),
        *(
            Figure(f"  {kind} / plain", ratios(found, "p50", kind, "plain"))
            for kind in unique
            if kind != "ours"
        ),
        *(Figure(f"  {kind}", _in_us(found[kind]["p50"]), unit="us") for kind in here),
        *_best_against_ours(f"{place}: refused delay() p50", refused, unique, least),
        *(Figure(f"  {kind}", _in_us(values["p50"]), unit="us") for kind, values in refused.items()),
        *_best_against_ours(f"{place}: refused by an old claim", old, unique, least),
        *(Figure(f"  {kind}", _in_us(values["p50"]), unit="us") for kind, values in old.items()),
    ]


def publishing_through(port: int, client, *, quick: bool) -> list[Figure]:
    """Measure it through a proxy at this port."""
    import redis

    from benchmarks import shop

    times, calls = (1, 10) if quick else (30, 25)
    far = shop.open_shop(f"redis://127.0.0.1:{port}/0")
    connection = redis.Redis(port=port).connection_pool.get_connection()
    kept, ignored = (shop.tasks(far, "plain", "ours", ignored=each) for each in (False, True))
    say("publishing through a network")
    found = rounds(
        times,
        {
            **{kind: _accepted(task, client, calls) for kind, task in kept.items()},
            **{f"{kind}, ignored": _accepted(task, client, calls) for kind, task in ignored.items()},
            "refused": _refused(kept["ours"], client, calls),
            "PING": _alone(lambda: shop.ping(connection), calls),
        },
    )
    connection.disconnect()
    return [
        Figure("through a network: delay() p50: ours / plain", ratios(found, "p50", "ours", "plain"), 1.0),
        Figure(
            "  results ignored: ours / plain", ratios(found, "p50", "ours, ignored", "plain, ignored"), 1.0
        ),
        Figure("  refused: ours / a bare PING", ratios(found, "p50", "refused", "PING")),
        Figure("  a bare PING", _in_us(found["PING"]["p50"]), unit="us"),
    ]


def _best_against_ours(
    name: str, found: Mapping[str, Mapping[str, list[float]]], unique: Iterable[str], least: float
) -> list[Figure]:
    best = min(
        (kind for kind in unique if kind != "ours"), key=lambda kind: statistics.median(found[kind]["p50"])
    )
    return [Figure(f"{name}: {best} (best) / ours", ratios(found, "p50", best, "ours"), least, at_least=True)]


def _accepted(
    task, client, calls: int, *, before: Callable[[], object] = lambda: None, **more: object
) -> Callable[[], Mapping[str, float]]:
    def publish() -> None:
        before()
        task.delay(next(numbers), full=True, **more)

    def measure() -> Mapping[str, float]:
        taken = [_timed(publish) for _ in range(calls)]
        client.delete("celery")
        return {"p50": statistics.median(taken)}

    return measure


def _alone(call: Callable[[], object], calls: int) -> Callable[[], Mapping[str, float]]:
    return lambda: {"p50": statistics.median([_timed(call) for _ in range(calls)])}


def _refused(task, client, calls: int) -> Callable[[], Mapping[str, float]]:
    def measure() -> Mapping[str, float]:
        number = next(numbers)
        task.delay(number, full=True)
        taken = [_timed(lambda: task.delay(number, full=True)) for _ in range(calls)]
        assert client.llen("celery") == 1, "a duplicate was published"
        client.delete("celery")
        return {"p50": statistics.median(taken)}

    return measure


def _refused_once(task, client, held: list[int], calls: int) -> Callable[[], Mapping[str, float]]:
    """Refuse each of the held numbers only once: the next one of that key may cost less."""
    left = iter(held)

    def measure() -> Mapping[str, float]:
        before = client.llen("celery")
        taken = [_timed(lambda: task.delay(next(left), full=True)) for _ in range(calls)]
        assert client.llen("celery") == before, "a duplicate was published"
        return {"p50": statistics.median(taken)}

    return measure


def _rows(size: int) -> list[dict[str, object]]:
    """Nested arguments of about so many bytes as JSON."""

    def row(number: int) -> dict[str, object]:
        address = {"street": f"{number} Main Street", "city": "Springfield", "zip": "12345"}
        return {"id": number, "amount": number / 7, "tags": ["new", "paying"], "address": address}

    return [row(number) for number in range(1000, 1000 + size // len(json.dumps(row(1500))))]


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _in_us(seconds: list[float]) -> list[float]:
    return [value * 1e6 for value in seconds]
