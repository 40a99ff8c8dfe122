"""What a round is drawn from: workers, broker, lock server, keys, and what its tasks declare."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

#: Seconds of a lease. A machine that stands still for longer loses it, as it should; each loss costs a retry.
TTL = 3.0
#: Seconds a claim outlives its last sign of life: one that nobody releases is there at a round's end.
QUEUE_TTL = 60.0
#: Bodies at once in a worker, by its pool: two cores are there for all of it.
POOLS: Mapping[str, int] = {"prefork": 2, "threads": 3, "gevent": 3, "solo": 1}
#: Its visibility timeout is an hour: what the dead have in hand must return sooner.
RESTORING = "restoring redis"
BROKERS = ("redis", RESTORING, "classic", "quorum")
#: Seconds of a worker's name, the least there may be.
TERM = 6.0
#: Seconds a call that was handed its lock may take until it starts, or a worker renews its claim.
HAND_OFF = TERM * 16 / 15 + 3.0
#: ``secured``: TLS, and the documented ACL user; ``shared``: the broker's.
LOCK_SERVERS = ("plain", "plain", "secured")
#: Rounds of hot keys: where locks are as seen from the broker. Its Redis, another Redis, or beside RabbitMQ.
FUSED, APART, RABBITMQ = "fused", "apart", "rabbitmq"
HOT = {FUSED: (RESTORING, "shared"), APART: (RESTORING, "plain"), RABBITMQ: ("classic", "plain")}
#: Seconds of a lease and of a claim there: too long for an end by themselves to pass for a short wait.
HOT_TTL = 30.0
#: The key of the task that has a limit.
LIMITED = "limited"
SCOPES = ("until_executed", "while_executing", "until_and_while_executing") * 2 + (
    "until_executing",
    "until_expired",
)
#: Those in which everybody can wait.
WAITING_SCOPES = ("until_executed", "while_executing", "until_and_while_executing", "until_executing")
STRATEGIES = ("skip", "raise", "retry")
#: Starts of one key, and the milliseconds of any span in which they may be; and where a rate may be.
RATE, OF_RATE = (3, 2000), ("until_executed", "while_executing")
#: Those in which the newest of many calls may wait.
OF_NEWEST = ("until_executed", "until_executing")
#: How a call ends; most of them just end.
ENDINGS = ("", "", "", "", "", "", "fail", "retry", "retry_quietly", "retry_slowly")
KEYS, TASKS = 12, 8
#: Options of one call; ``None`` stands for ``send_task``, as by who has not imported the task.
OPTIONS: tuple[Mapping[str, Any] | None, ...] = (
    *({},) * 8, *(None,) * 3, {"countdown": 1}, {"countdown": 2}, {"on_conflict": "retry"}, {"lock": None},
    {"lock_ttl": 2 * TTL}, {"lock_key": "attack:k0"}, {"lock_period": 0.3},
)  # fmt: skip
#: Where a message that no worker can name would wait for an hour.
NAMED = tuple(options for options in OPTIONS if options is not None and options.get("lock", "") is not None)


class Round(NamedTuple):
    """One round, as its seed and number say."""

    seed: str
    pools: tuple[str, ...]
    broker: str
    locks: str
    tasks: Mapping[str, Mapping[str, Any]]
    #: Of a round of hot keys: where its locks are, and for each task the names that its calls lock together.
    where: str = ""
    keys: Mapping[str, list[list[str]]] = {}
    ttl: float = TTL
    queue_ttl: float = QUEUE_TTL

    @property
    def summary(self) -> str:
        """What it is played on."""
        hot = "hot keys, " if self.where else ""
        return f"{hot}{' and '.join(self.pools)} on {self.broker}, {self.locks} lock server"


def draw_round(
    seed: int,
    number: int,
    brokers: Sequence[str],
    lock_servers: Sequence[str],
    *,
    hot: str | None,
    kills: bool,
) -> Round:
    """Draw a round of the kind that is asked for; else every second one is of hot keys."""
    if hot:
        return (draw_line if kills else draw_hot)(seed, number, hot)
    if kills:
        return draw_killed(seed, number)
    places = [where for where, (broker, _) in HOT.items() if broker in brokers]
    if number % 2:
        return draw(seed, number, brokers, lock_servers)
    return draw_hot(seed, number, places[(seed + number // 2) % len(places)])


def draw(seed: int, number: int, brokers: Sequence[str], lock_servers: Sequence[str]) -> Round:
    """Draw a round; the same one for the same arguments."""
    name = f"{seed}:{number}"
    chance = random.Random(name)  # noqa: S311  not for secrets
    # In turn: a minute is to meet more than one.
    broker = brokers[(seed + number // 2) % len(brokers)]
    pools = [chance.choice(list(POOLS)) for _ in range(2)]
    if broker.endswith("redis") and pools == ["gevent", "gevent"]:
        # On Redis such workers restore no other worker's messages, with plain tasks neither (kombu 5.7.0).
        pools[1] = "prefork"
    return Round(
        seed=name,
        pools=tuple(pools),
        broker=broker,
        locks=chance.choice(lock_servers),
        tasks={f"attack.{place}": _options(chance) for place in range(TASKS)},
    )


def draw_call(
    chance: random.Random, declared: Mapping[str, Any], *, restoring: bool
) -> Mapping[str, Any] | None:
    """Draw the options of one call of a task that declares these."""
    options = chance.choice(NAMED if restoring else OPTIONS)
    if options and "on_conflict" in options and declared["lock"] == "until_expired":
        return {}  # nobody waits at publish for what nobody releases
    if options and "lock_period" in options and declared.keys() & {"lock_limit", "lock_rate"}:
        return {}  # these are refused together
    if options and declared["on_conflict"] == "coalesce" and options.keys() & {"on_conflict", "lock_period"}:
        return {}  # likewise
    return options


def draw_killed(seed: int, number: int) -> Round:
    """Return a round in which workers are killed under load; by turns with its locks on the broker."""
    scopes = [("until_executed", False), ("until_executed", True), ("until_executing", False)]
    tasks = {
        f"attack.{place}": {"lock": scope, "lock_key": ["key"], "on_conflict": "skip", "acks_late": late}
        for place, (scope, late) in enumerate(scopes)
    }
    locks = ("plain", "shared")[number % 2]
    return Round(f"{seed}:{number}", ("prefork", "prefork"), RESTORING, locks, tasks)


def draw_hot(seed: int, number: int, where: str) -> Round:
    """Return a round in which few keys are wanted by many calls, which are short and keep coming."""
    name = f"{seed}:{number}"
    chance = random.Random(name)  # noqa: S311  not for secrets
    pools = "prefork", chance.choice(["prefork", "prefork", "threads"])
    singles, pairs = [["k0"], ["k1"], ["k2"]], [["k0", "k1"], ["k1", "k2"], ["k2", "k0"]]
    tasks = hot_tasks(chance)
    keys = dict(zip(tasks, [singles, singles, singles, pairs, [[LIMITED]]], strict=True))
    return Round(name, pools, *HOT[where], tasks, where, keys, HOT_TTL, HOT_TTL)


def hot_tasks(chance: random.Random) -> dict[str, dict[str, Any]]:
    """Draw what the tasks of hot keys declare: a deploy draws it again."""
    tasks: dict[str, dict[str, Any]] = {}
    for place, late in enumerate((True, False, True, True, True)):
        scope = "while_executing" if place == 3 else chance.choice(WAITING_SCOPES)
        tasks[f"attack.{place}"] = {
            "lock": scope,
            "lock_key": ["{key[0]}", "{key[1]}"] if place == 3 else "{key[0]}",
            "on_conflict": "wait",
            "acks_late": late,
            "reject_on_worker_lost": late,
            **({"lock_limit": chance.choice([2, 3])} if place == 4 else {}),
        }
    return tasks


def draw_line(seed: int, number: int, where: str) -> Round:
    """Return a round of one key: its calls wait at publish or, beside the lock server, in their worker."""
    options = {
        "lock_key": "{key[0]}",
        "on_conflict": "wait",
        "acks_late": True,
        "reject_on_worker_lost": True,
    }
    return Round(
        f"{seed}:{number}", ("prefork", "prefork"), *HOT[where], {"attack.0": options}, where,
        {"attack.0": [["k0"]]}, HOT_TTL, HOT_TTL,
    )  # fmt: skip


def _options(chance: random.Random) -> dict[str, Any]:
    scope, late = chance.choice(SCOPES), chance.random() < 0.6
    client, server = chance.choice(STRATEGIES), chance.choice(STRATEGIES)
    if scope == "until_expired" and client == "retry":
        client = "skip"  # nobody waits at publish for what nobody releases
    # Periods of many waiting messages follow one another: short, or the round never ends.
    period = chance.uniform(0.2, 0.8) if scope == "until_expired" or chance.random() < 0.2 else None
    asked = server if scope == "while_executing" else {"client": client, "server": server}
    is_newest = scope in OF_NEWEST and period is None and chance.random() < 0.4
    is_put_off = is_newest and chance.random() < 0.3
    is_rated = scope in OF_RATE and period is None and chance.random() < 0.3
    return {
        "lock": scope,
        "lock_key": chance.choice(["attack:{key}", "attack:{key}", ["key"]]),
        "on_conflict": "coalesce" if is_newest else asked,
        **({"lock_debounce": 1.0, "lock_debounce_max": 2.0} if is_put_off else {}),
        **({"lock_rate": f"{RATE[0]}/{RATE[1] // 1000}s"} if is_rated else {}),
        "acks_late": late,
        "reject_on_worker_lost": late and chance.random() < 0.7,
        **({"lock_period": period} if period else {}),
        **({"lock_limit": chance.choice([2, 3])} if period is None and chance.random() < 0.3 else {}),
        **({"on_lock_lost": "terminate"} if scope.endswith("executed") and chance.random() < 0.3 else {}),
    }
