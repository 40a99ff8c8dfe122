"""What the scripts of lines cost their server: one part of benchmarks/waiting.py."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import count
from typing import Any

import redis

from benchmarks.pairs import Figure, rounds
from celery_redislock.store.store import Entry
from celery_redislock.wire.scripts import script

__all__ = ["URL", "client_here", "looks", "scripts", "still"]

#: Environment variable: where the server is.
URL = "CELERY_REDISLOCK_BENCH_URL"
#: What a claim says of its holder, as long as those of real tasks.
FACTS = '{"task":"shop.sync","host":"worker-17","pid":20940,"state":"queued","since":1795385516.122,"line":1}'
TEXT = "x" * 900
_numbers = count(1)


@cache
def client_here() -> Any:
    url = os.environ[URL].replace("valkey:", "redis:", 1)
    return redis.Redis.from_url(url, socket_timeout=None)  # a body waits at its gate


def scripts(*, quick: bool) -> list[Figure]:
    times, number, lengths = (1, 100, (100, 1000)) if quick else (9, 2000, (100, 100_000))
    client = client_here()
    text = script("release", "celery_redislock.store")[0]
    looked = "local has_line = call('EXISTS', stem .. 'line', stem .. 'sent') > 0"
    assert text.count(looked) == 1

    def released(text: str, in_a_loop: bool) -> Callable[[], Mapping[str, float]]:
        sha = client.script_load(text)

        def measure() -> Mapping[str, float]:
            name = f"free-{next(_numbers)}"
            locks = [f"redislock:{{{name}-{n}}}:lock" for n in range(number)]
            _pipelined([("SET", lock, f"me\0{FACTS}", "PX", 60_000) for lock in locks])
            return _timed(
                [("EVALSHA", sha, 2, lock, "redislock:index", "me\0", "n", "") for lock in locks],
                in_a_loop=in_a_loop,
            )

        return measure

    figures = []
    for when, in_a_loop in (("in a loop", True), ("one by one", False)):
        without = released(text.replace(looked, "local has_line = false"), in_a_loop)
        found = rounds(times, {"ours": released(text, in_a_loop), "without": without})
        pairs = zip(found["ours"]["mean"], found["without"]["mean"], strict=True)
        more = [ours - less for ours, less in pairs]
        figures += [
            Figure(f"release without a line, {when}: its look at it, on the server", more, 1, unit="us"),
            Figure("  the release", found["ours"]["mean"], unit="us"),
        ]
    done: dict[int, dict[str, dict[str, list[float]]]] = {}
    for length in lengths:
        before = client.info("memory")["used_memory"]
        _pipelined([_park(f"at-{length}", f"{n:048}", "last") for n in range(length)])
        time.sleep(2.0)  # the notes of these requests expire
        taken = (client.info("memory")["used_memory"] - before) / length - len(TEXT)
        if length == lengths[-1]:  # the first ones also make room for what else is on the server
            figures.append(Figure(f"a waiter of {length}: memory beside its text", [taken], unit="bytes"))
        done[length] = rounds(times, _at(f"at-{length}", min(50, length // 20)))
    few, many = (done[length] for length in lengths)
    for kind in few:
        for length in lengths:
            values = done[length][kind]
            figures.append(
                Figure(f"{kind} at {length}: mean, on the server", values["mean"], 1000, unit="us")
            )
            figures.append(Figure("  p99", values["p99"], 1000, unit="us"))
        trend = [b / a for a, b in zip(few[kind]["mean"], many[kind]["mean"], strict=True)]
        figures.append(Figure(f"  {lengths[1]} / {lengths[0]}", trend))
    return figures


def looks(*, quick: bool) -> list[Figure]:
    times, number = (1, 500) if quick else (5, 10_000)
    client, sha = client_here(), client_here().script_load(script("sweep", "celery_redislock.store")[0])
    look = ("EVALSHA", sha, 2, "redislock:lines", "redislock:index", "redislock:{", "", 100)
    names = [f"look-{n}" for n in range(number)]

    def due(is_held: bool) -> Callable[[], Mapping[str, float]]:
        def measure() -> Mapping[str, float]:
            client.flushall()
            client.script_load(script("park", "celery_redislock.store")[0])
            client.script_load(script("sweep", "celery_redislock.store")[0])
            _pipelined(
                [("SET", f"redislock:{{{name}}}:lock", f"me\0{FACTS}", "PX", 60_000) for name in names]
            )
            _pipelined([_park(name, f"{name:>048}", "last") for name in names])
            if not is_held:
                _pipelined([("DEL", f"redislock:{{{name}}}:lock") for name in names])
            _pipelined([("ZADD", "redislock:lines", 1, name) for name in names])
            found = _timed([look] * (number // 100))
            assert is_held or client.llen("q") == number
            return found

        return measure

    def not_due() -> Mapping[str, float]:
        client.zadd("redislock:lines", dict.fromkeys(names, 1e15))
        return _timed([look] * 200)

    found = rounds(times, {"held": due(True), "free": due(False), "none": not_due})
    named = {"none": "none due", "held": "100 due, locks held", "free": "100 due, locks free"}
    return [
        figure
        for kind, name in named.items()
        for figure in (
            Figure(f"a look at {number} lines, {name}: mean, on the server", found[kind]["mean"], unit="us"),
            Figure("  p99", found[kind]["p99"], unit="us"),
        )
    ]


def still(number: int, *, is_held: bool) -> None:
    """Make so many lines of one each: the lock is held for three minutes, or was handed on, and is queued."""
    client = client_here()
    since = time.time() - 180
    about = FACTS.replace("1795385516.122", f"{since:.3f}").replace(',"line":1', "")
    names = [f"still-{n}" for n in range(number)]
    locks = [f"redislock:{{{name}}}:lock" for name in names]
    _pipelined([("SET", lock, f"me\0{about}", "PX", 3_600_000) for lock in locks])
    tagged = '{{"properties": {{"delivery_tag": "{}"}}}}' + TEXT
    _pipelined([_park(name, f"{name:>048}", "last", tagged.format(name)) for name in names])
    if not is_held:
        sha = client.script_load(script("release", "celery_redislock.store")[0])
        released = [
            ("EVALSHA", sha, 2, lock, "redislock:index", "me\0", name, "")
            for lock, name in zip(locks, names, strict=True)
        ]
        _pipelined(released)
        assert client.zcard(f"redislock:{{{names[0]}}}:sent") == 1


def _at(name: str, number: int) -> Mapping[str, Callable[[], Mapping[str, float]]]:
    """What is done with a line, which is as long afterwards."""
    client = client_here()
    lock, line, parked = (f"redislock:{{{name}}}:{part}" for part in ("lock", "line", "parked"))
    release = client.script_load(script("release", "celery_redislock.store")[0])

    def park(place: str) -> Callable[[], Mapping[str, float]]:
        def measure() -> Mapping[str, float]:
            found = [f"{next(_numbers):048x}" for _ in range(number)]
            timed = _timed([_park(name, each, place) for each in found])
            client.zrem(line, *found)
            client.hdel(parked, *found)
            return timed

        return measure

    def promote() -> Mapping[str, float]:
        ids = [each.decode() for each in client.zrange(line, 0, number - 1)]
        holders = ["me", *ids[:-1]]
        client.set(lock, f"me\0{FACTS}", px=60_000)
        found = _timed(
            [("EVALSHA", release, 2, lock, "redislock:index", f"{token}\0", name, "") for token in holders]
        )
        assert client.get(lock).startswith(ids[-1].encode())
        client.set(lock, f"me\0{FACTS}", px=600_000)
        _pipelined([_park(name, each, "last") for each in ids])
        return found

    client.set(lock, f"me\0{FACTS}", px=600_000)
    in_the_middle = client.zrange(line, client.zcard(line) // 2, -1)[0].decode()
    return {
        "park": park("last"),
        "park first": park("first"),
        "park before one": park(in_the_middle),
        "promote": promote,
    }


def _park(name: str, each: str, place: str, text: str = TEXT) -> Sequence[Any]:
    base = f"redislock:{{{name}}}:"
    entry = Entry("push", "q", 60.0, FACTS, text).dumps()
    sha = script("park", "celery_redislock.store")[1]
    return (
        "EVALSHA", sha, 3, f"{base}lock", "redislock:index", f"{base}note:{next(_numbers)}",
        each, name, entry, "behind", "", 0, place, 1_000_000, 1, "", "", "",
    )  # fmt: skip


def _pipelined(commands: Sequence[Sequence[Any]]) -> None:
    client = client_here()
    client.script_load(script("park", "celery_redislock.store")[0])
    for first in range(0, len(commands), 1000):
        pipeline = client.pipeline(transaction=False)
        for command in commands[first : first + 1000]:
            pipeline.execute_command(*command)
        pipeline.execute()


def _timed(commands: Sequence[Sequence[Any]], *, in_a_loop: bool = False) -> Mapping[str, float]:
    """Return the server's microseconds for one of these scripts, sent one by one or at once."""
    client = client_here()
    _pipelined(commands[:0])
    client.config_resetstat()
    if in_a_loop:
        _pipelined(commands)
    else:
        for command in commands:
            client.execute_command(*command)
    spent = client.info("commandstats")["cmdstat_evalsha"]
    assert spent["calls"] == len(commands)
    assert not spent["failed_calls"]
    latencies = client.info("latencystats")["latency_percentiles_usec_evalsha"]
    return {"mean": spent["usec_per_call"], "p99": latencies["p99"]}
