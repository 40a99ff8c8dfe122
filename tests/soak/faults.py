"""What goes wrong in a soak: one fault at a time, at random, each over within some seconds."""

import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import redis

from tests.soak.shop import TTL

if TYPE_CHECKING:
    from tests.soak.stage import Stage


def _kill_child(stage: "Stage", chance: random.Random) -> None:
    if bodies := stage.journal.on_now():
        _send(chance.choice(bodies)[1], signal.SIGKILL)


def _kill_worker(stage: "Stage", chance: random.Random) -> None:
    stage.replace_worker(chance.randrange(len(stage.workers)))


def _stop_child(stage: "Stage", chance: random.Random) -> None:
    if bodies := stage.journal.on_now():
        pid = chance.choice(bodies)[1]
        _pause([pid], chance.uniform(0.2, 1.5) * TTL)


def _stop_worker(stage: "Stage", chance: random.Random) -> None:
    """Stop a worker with all its children, for less or more than a lease."""
    _pause(stage.processes_of(chance.choice(stage.workers)), chance.uniform(0.2, 2.0) * TTL)


def _pause_lock_server(stage: "Stage", chance: random.Random) -> None:
    stage.locks.pause()
    time.sleep(chance.uniform(0.1, 1.5) * TTL)
    stage.locks.resume()


def _crash_lock_server(stage: "Stage", chance: random.Random) -> None:
    stage.locks.kill()
    time.sleep(chance.uniform(0.0, 0.5) * TTL)
    stage.locks.restart()


def _forget_scripts(stage: "Stage", chance: random.Random) -> None:
    with redis.Redis.from_url(stage.locks.redis_url) as client:
        for _ in range(20):
            client.script_flush()
            time.sleep(0.01)


def _cut_lock_connections(stage: "Stage", chance: random.Random) -> None:
    with redis.Redis.from_url(stage.locks.redis_url) as client:
        client.client_kill_filter(_type="normal", skipme=True)


def _cut_broker_connections(stage: "Stage", chance: random.Random) -> None:
    """Cut one worker off its broker: what it has in hand is delivered again, to another."""
    with redis.Redis.from_url(stage.broker.redis_url) as client:
        clients = [one for one in client.client_list(_type="normal") if one["cmd"] == "brpop"]
        if clients:
            client.client_kill_filter(_id=chance.choice(clients)["id"])


def _revoke(stage: "Stage", chance: random.Random) -> None:
    if bodies := stage.journal.on_now():
        stage.revoke(chance.choice(bodies)[0])


#: By the name in the report.
FAULTS: Mapping[str, Callable[["Stage", random.Random], None]] = {
    function.__name__.removeprefix("_").replace("_", " "): function
    for function in (
        _kill_child,
        _kill_worker,
        _stop_child,
        _stop_worker,
        _pause_lock_server,
        _crash_lock_server,
        _forget_scripts,
        _cut_lock_connections,
        _cut_broker_connections,
        _revoke,
    )
}


def _pause(pids: list[int], seconds: float) -> None:
    for pid in pids:
        _send(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        for pid in pids:
            _send(pid, signal.SIGCONT)


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
