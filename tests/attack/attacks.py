"""What goes wrong in a round: one attack at a time, at random, each over within some seconds."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tests.attack import forgeries
from tests.attack.draw import KEYS, TTL
from tests.facts import descendants, lives, wait_until

if TYPE_CHECKING:
    from tests.attack.stage import Stage


def _kill_child(stage: "Stage", chance: random.Random) -> None:
    for pid in _some_child(stage, chance):
        _send(pid, signal.SIGKILL)


def _kill_worker(stage: "Stage", chance: random.Random) -> None:
    stage.replace_worker(chance.randrange(2), signal.SIGKILL)


def _kill_main_process(stage: "Stage", chance: random.Random) -> None:
    """Kill a worker and let its children be orphans for a while."""
    place = chance.randrange(2)
    _send(stage.workers[place].process.pid, signal.SIGKILL)
    time.sleep(chance.uniform(0.0, TTL / 2))
    stage.replace_worker(place, signal.SIGKILL)


def _restart_worker(stage: "Stage", chance: random.Random) -> None:
    stage.replace_worker(chance.randrange(2), signal.SIGTERM)


def _restart_worker_coldly(stage: "Stage", chance: random.Random) -> None:
    place = chance.choice([place for place, pool in enumerate(stage.round.pools) if pool == "prefork"])
    stage.replace_worker(place, signal.SIGQUIT)


def _stop_child(stage: "Stage", chance: random.Random) -> None:
    with _stopped(_some_child(stage, chance)):
        time.sleep(chance.uniform(0.2, 1.5) * TTL)


def _stop_worker(stage: "Stage", chance: random.Random) -> None:
    """Stop a worker with all its children, for less or more than a lease."""
    main = chance.choice(stage.workers).process.pid
    with _stopped([main, *descendants(main)]):
        time.sleep(chance.uniform(0.2, 2.0) * TTL)


def _kill_publisher(stage: "Stage", chance: random.Random) -> None:
    """Kill it just after it has begun to publish."""
    before = stage.journal.redis.hlen("attack:attempts")
    wait_until(lambda: stage.journal.redis.hlen("attack:attempts") > before, 5.0)
    time.sleep(chance.uniform(0.0, 0.006))
    stage.replace_publisher()


def _revoke(stage: "Stage", chance: random.Random) -> None:
    attempts = [call for calls in stage.journal.facts("attempts").values() for call in calls]
    unique = [call["id"] for call in attempts[-20:] if "fixed" not in call["id"]]
    if unique:
        stage.revoke(chance.choice(unique))


def _revoke_running(stage: "Stage", chance: random.Random) -> None:
    bodies = [body["id"] for body in stage.journal.on_now() if "fixed" not in body["id"]]
    if bodies:
        stage.revoke(chance.choice(bodies), terminate=True, signal="SIGKILL")


def _stop_lock_server(stage: "Stage", chance: random.Random) -> None:
    with _stopped([stage.locks.pid]):
        time.sleep(chance.uniform(0.1, 1.2) * TTL)


def _crash_lock_server(stage: "Stage", chance: random.Random) -> None:
    stage.locks.kill()
    time.sleep(chance.uniform(0.0, 0.4) * TTL)
    stage.locks.restart()


def _forget_scripts(stage: "Stage", chance: random.Random) -> None:
    for _ in range(20):
        stage.admin.script_flush()
        time.sleep(0.01)


def _cut_lock_connections(stage: "Stage", chance: random.Random) -> None:
    stage.proxy.reset()


def _swallow_lock_requests(stage: "Stage", chance: random.Random) -> None:
    stage.proxy.black_hole()
    time.sleep(chance.uniform(0.1, 1.2) * TTL)
    stage.proxy.heal()
    stage.proxy.reset()


def _slow_lock_server(stage: "Stage", chance: random.Random) -> None:
    stage.proxy.drag = chance.uniform(0.02, 0.4)
    time.sleep(TTL)
    stage.proxy.drag = 0.0


def _fill_lock_server(stage: "Stage", chance: random.Random) -> None:
    stage.admin.config_set("maxmemory", 1)
    time.sleep(chance.uniform(0.2, 1.2) * TTL)
    stage.admin.config_set("maxmemory", 0)


def _cut_broker_connections(stage: "Stage", chance: random.Random) -> None:
    """Cut one worker off its broker, or all off RabbitMQ: what they have in hand is delivered again."""
    if stage.rabbitmq is not None:
        stage.rabbitmq.close_connections(f"{stage.queue}/")
        return
    waiting = [one for one in stage.broker.client_list(_type="normal") if one["cmd"] == "brpop"]
    if waiting:
        stage.broker.client_kill_filter(_id=chance.choice(waiting)["id"])


def _stop_broker(stage: "Stage", chance: random.Random) -> None:
    with _stopped([stage.broker_server.pid]):
        time.sleep(chance.uniform(0.1, 2.0))


def _forge_message(stage: "Stage", chance: random.Random) -> None:
    """Publish a dozen forged headers, so that some are in hand at once."""
    for _ in range(12):
        holds = [
            (key, value)
            for key, (_, value) in stage.lock_keys().items()
            if key.endswith(":lock") and b"\0" in value
        ]
        key, value = chance.choice(holds) if holds else ("{attack:k0}", b"x\0")
        args = [f"k{chance.randrange(KEYS)}", -1, 0.1, ""]
        name = key.partition("{")[2].rpartition("}")[0]
        header = chance.choice(list(forgeries.HEADERS))
        task_id = forgeries.forge_message(
            stage.app,
            stage.some_task(chance),
            args,
            header,
            name,
            value.partition(b"\0")[0].decode(errors="replace"),
        )
        stage.forged[task_id] = header


def _forge_body(stage: "Stage", chance: random.Random) -> None:
    for body in forgeries.BODIES:
        stage.forged[forgeries.forge_body(stage.app, stage.some_task(chance), body)] = body


def _foreign_lock(stage: "Stage", chance: random.Random) -> None:
    for value in forgeries.VALUES.values():
        stage.admin.set(
            f"redislock:{{attack:k{chance.randrange(KEYS)}}}:lock",
            value,
            nx=True,
            px=chance.randrange(200, 2000),
        )


def _foreign_index(stage: "Stage", chance: random.Random) -> None:
    """Let another program have the index's key, without an end; it must still be there afterwards."""
    stage.admin.delete("redislock:index")
    kept = stage.admin.set("redislock:index", "x", nx=True)
    time.sleep(TTL)
    if kept:
        stage.problems += (
            []
            if stage.admin.get("redislock:index") == b"x" and stage.admin.pttl("redislock:index") == -1
            else ["another program's key in the index's place was changed"]
        )
        stage.admin.delete("redislock:index")


_ALL = (
    _kill_child, _kill_worker, _kill_main_process, _restart_worker, _restart_worker_coldly, _stop_child,
    _stop_worker, _kill_publisher, _revoke, _revoke_running, _stop_lock_server, _crash_lock_server,
    _forget_scripts, _cut_lock_connections, _swallow_lock_requests, _slow_lock_server, _fill_lock_server,
    _cut_broker_connections, _stop_broker, _forge_message, _forge_body, _foreign_lock, _foreign_index,
)  # fmt: skip

#: By the name in the report.
ATTACKS: Mapping[str, Callable[["Stage", random.Random], None]] = {
    function.__name__.removeprefix("_").replace("_", " "): function for function in _ALL
}

#: What else must be so for one to make sense.
ONLY_IF: Mapping[str, Callable[["Stage"], bool]] = {
    "kill child": lambda stage: "prefork" in stage.round.pools,
    # The other pools raise NotImplementedError in a body that is on (celery 5.7.0).
    "restart worker coldly": lambda stage: "prefork" in stage.round.pools,
    "stop child": lambda stage: "prefork" in stage.round.pools,
    # The other pools cannot terminate a body, and log so.
    "revoke running": lambda stage: set(stage.round.pools) == {"prefork"},
    "stop broker": lambda stage: stage.rabbitmq is None,
}


def _some_child(stage: "Stage", chance: random.Random) -> list[int]:
    """Return a pool's child that runs a body, if there is one."""
    mains = {worker.process.pid for worker in stage.workers}
    children = [body["pid"] for body in stage.journal.on_now() if lives(body["pid"])]
    children = [pid for pid in children if pid not in mains]
    return [chance.choice(children)] if children else []


@contextmanager
def _stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        _send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            _send(pid, signal.SIGCONT)


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
