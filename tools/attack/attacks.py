"""What goes wrong in a round: one attack at a time, each over within some seconds."""

import random
import signal
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING
from uuid import uuid4

from celery_redislock.wire.clock import boottime
from tests.facts import descendants, lives, wait_until
from tools.attack import forgeries
from tools.attack.draw import KEYS, LIMITED, TASKS, TERM, TTL, hot_tasks

if TYPE_CHECKING:
    from tools.attack.stage import Stage


def _kill_main_process(stage: "Stage", chance: random.Random) -> None:
    """Kill a worker and let its children be orphans for a while."""
    place = chance.randrange(2)
    main = stage.workers[place].process.pid
    children = descendants(main)
    stage.leave(place)
    began = boottime()
    stage.send([main], signal.SIGKILL)
    time.sleep(chance.uniform(0.0, TTL))
    stage.send(children, signal.SIGKILL)
    # Until then they may hold what they were about to run.
    stage.disturbances.append((began, boottime()))
    stage.replace_worker(place, signal.SIGKILL)


def _stop_worker(stage: "Stage", chance: random.Random) -> None:
    main = chance.choice(stage.workers).process.pid
    _stop(stage, [main, *descendants(main)], _long(stage, chance))


def _long(stage: "Stage", chance: random.Random) -> float:
    """Return seconds in which leases may lapse, or names as well."""
    return chance.uniform(1.1, 1.6) * TERM if stage.is_restoring else chance.uniform(0.1, 2.0) * TTL


def _kill_publisher(stage: "Stage", chance: random.Random) -> None:
    """Kill it just after it has begun to publish."""
    before = stage.journal.redis.hlen("attack:attempts")
    wait_until(lambda: stage.journal.redis.hlen("attack:attempts") > before, 5.0)
    time.sleep(chance.uniform(0.0, 0.006))
    stage.stop_publishing()
    stage.start_publisher()


def _deploy_spelling(stage: "Stage", chance: random.Random) -> None:
    """Spell the broker, and the lock server where it is the same, otherwise than before."""
    spellings = ["127.0.0.1", "localhost"]
    old, new = spellings if spellings[0] in stage.plan["broker"] else reversed(spellings)
    names = ("broker", "locks") if stage.round.locks == "shared" else ("broker",)
    stage.deploy(chance, **{name: stage.plan[name].replace(old, new) for name in names})


def _change_limit(stage: "Stage", chance: random.Random) -> None:
    """Lower a limit at run time, and let the task's own count again."""
    lock = stage.app.tasks["attack.4"].lock_for([LIMITED])
    lock.limit(chance.choice([1, 2]))
    time.sleep(chance.uniform(0.0, 2.0))
    lock.limit(reset=True)


def _revoke(stage: "Stage", chance: random.Random) -> None:
    attempts = stage.journal.facts("attempts").values()
    stage.revoke([call["id"] for calls in attempts for call in calls][-20:], chance)


def _revoke_running(stage: "Stage", chance: random.Random) -> None:
    bodies = stage.journal.on_now()
    stage.hits += [(boottime(), body["pid"]) for body in bodies]
    stage.revoke([body["id"] for body in bodies], chance, terminate=True, signal="SIGKILL")


def _crash_lock_server(stage: "Stage", chance: random.Random) -> None:
    stage.locks.kill()
    time.sleep(chance.uniform(0.0, 0.4) * TTL)
    stage.locks.restart()


def _forget_scripts(stage: "Stage", chance: random.Random) -> None:
    for _ in range(20):
        stage.admin.script_flush()
        time.sleep(0.01)


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
    """Cut one worker off Redis, or all off RabbitMQ: what they have in hand is delivered again."""
    if stage.rabbitmq is not None:
        stage.rabbitmq.close_connections(f"{stage.queue}/")
    elif waiting := [one for one in stage.broker.client_list(_type="normal") if one["cmd"] == "brpop"]:
        stage.broker.client_kill_filter(_id=chance.choice(waiting)["id"])


def _forge_message(stage: "Stage", chance: random.Random) -> None:
    """Publish a dozen forged headers, so that some are in hand at once."""
    for _ in range(12):
        holds = [hold for hold in stage.lock_keys().items() if hold[0].endswith(":lock")]
        key, (_, value) = chance.choice(holds or [("{attack:k0}", (0, b"x"))])
        name = key.partition("{")[2].rpartition("}")[0]
        token = value.partition(b"\0")[0].decode(errors="replace")
        call = f"attack.{chance.randrange(TASKS)}", [f"k{chance.randrange(KEYS)}", -1, 0.1, ""]
        header = chance.choice(list(forgeries.HEADERS))
        stage.forged += [forgeries.forge_message(stage.app, *call, header, name, token)]


def _forge_body(stage: "Stage", chance: random.Random) -> None:
    """Claim, and publish what no worker can read: the claim must be released."""
    keys = []
    for body in forgeries.BODIES:
        task_id = f"forged-{uuid4()}"
        keys.append(f"redislock:{{forged:{task_id}}}:lock")
        stage.admin.set(keys[-1], f'{task_id}/x\0{{"state":"queued"}}', px=60_000)
        forgeries.forge_body(stage.app, f"attack.{chance.randrange(TASKS)}", body, task_id)
    if not wait_until(lambda: not stage.admin.exists(*keys), 30.0):
        left = [key for key in keys if stage.admin.exists(key)]
        stage.problems.append(f"the claims of messages that cannot be read are left: {left}")


def _foreign_lock(stage: "Stage", chance: random.Random) -> None:
    for value in forgeries.VALUES.values():
        key = f"redislock:{{attack:k{chance.randrange(KEYS)}}}:lock"
        stage.admin.set(key, value, nx=True, px=chance.randrange(200, 2000))


def _foreign_index(stage: "Stage", chance: random.Random) -> None:
    """Let another program have the index's key, without an end; it must still be there afterwards."""
    key = "redislock:index"
    stage.admin.delete(key)
    if stage.admin.set(key, "x", nx=True):
        time.sleep(TTL)
        if (stage.admin.get(key), stage.admin.pttl(key)) != (b"x", -1):
            stage.problems.append("another program's key in the index's place was changed")
        stage.admin.delete(key)


#: By the name in the report.
ATTACKS: Mapping[str, Callable[["Stage", random.Random], object]] = {
    "kill child": lambda stage, chance: stage.send(_some_child(stage, chance), signal.SIGKILL),
    "kill worker": lambda stage, chance: stage.replace_worker(chance.randrange(2), signal.SIGKILL),
    "kill main process": _kill_main_process,
    "kill publisher": _kill_publisher,
    "restart worker": lambda stage, chance: stage.replace_worker(chance.randrange(2), signal.SIGTERM),
    "restart worker coldly": lambda stage, chance: stage.replace_worker(chance.randrange(2), signal.SIGQUIT),
    "stop child": lambda stage, chance: _stop(stage, _some_child(stage, chance), chance.uniform(0.6, 4.5)),
    "stop worker": _stop_worker,
    "deploy other options": lambda stage, chance: stage.deploy(chance, tasks=hot_tasks(chance)),
    "deploy another spelling": _deploy_spelling,
    "change limit": _change_limit,
    "revoke": _revoke,
    "revoke running": _revoke_running,
    "stop lock server": lambda stage, chance: _stop(stage, [stage.locks.pid], chance.uniform(0.1, 1.2) * TTL),
    "crash lock server": _crash_lock_server,
    "forget scripts": _forget_scripts,
    "cut lock connections": lambda stage, _: stage.proxy.reset(),
    "swallow lock requests": _swallow_lock_requests,
    "slow lock server": _slow_lock_server,
    "fill lock server": _fill_lock_server,
    "cut broker connections": _cut_broker_connections,
    "stop broker": lambda stage, chance: _stop(stage, [stage.broker_server.pid], _long(stage, chance)),
    "forge message": _forge_message,
    "forge body": _forge_body,
    "foreign lock": _foreign_lock,
    "foreign index": _foreign_index,
}

#: What may cost the mark that a message is done, so that a copy of it runs (docs/long-tasks.md): the mark's
#: request is not awaited, a full server refuses it, and who is ended by others may not send it.
COST_MARKS = {
    *("crash lock server", "cut lock connections", "swallow lock requests", "fill lock server"),
    *("revoke running", "restart worker coldly"),
}

#: What is played where few keys are hot, and nowhere else.
DEPLOYS = {"deploy other options", "deploy another spelling", "change limit"}
#: What lets a part of the system itself stand still: that time is not counted.
DISTURBING = {"stop worker", "stop child", "cut lock connections", "cut broker connections"}
#: All that is played where few keys are hot. What forges holds, or takes a server away, is not.
HOT_ATTACKS = {
    *("kill child", "kill worker", "kill main process", "kill publisher"),
    *("restart worker", "restart worker coldly", "forget scripts", *DEPLOYS, *DISTURBING),
}

#: What else must be so for one to make sense.
ONLY_IF: Mapping[str, Callable[["Stage"], bool]] = {
    **dict.fromkeys(DEPLOYS, lambda stage: bool(stage.round.where)),
    # Nothing passes through the proxy.
    "cut lock connections": lambda stage: stage.round.locks != "shared",
    "kill child": lambda stage: "prefork" in stage.round.pools,
    "stop child": lambda stage: "prefork" in stage.round.pools,
    # The other pools cannot end a body, and say so inside one that is on (celery 5.7.0).
    "restart worker coldly": lambda stage: set(stage.round.pools) == {"prefork"},
    "revoke running": lambda stage: set(stage.round.pools) == {"prefork"},
    # What Redis keeps for a connection that is lost waits for the visibility timeout.
    "cut broker connections": lambda stage: not stage.is_restoring,
    "stop broker": lambda stage: stage.rabbitmq is None,
}


def _some_child(stage: "Stage", chance: random.Random) -> list[int]:
    """Return a pool's child that runs a body, if there is one."""
    mains = {worker.process.pid for worker in stage.workers}
    bodies = {body["pid"] for body in stage.journal.on_now()} - mains
    return [chance.choice(children)] if (children := [pid for pid in sorted(bodies) if lives(pid)]) else []


def _stop(stage: "Stage", pids: Collection[int], seconds: float) -> None:
    try:
        stage.send(pids, signal.SIGSTOP)
        time.sleep(seconds)
    finally:
        stage.send(pids, signal.SIGCONT)
