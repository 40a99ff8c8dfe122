"""What a round is drawn from: workers, broker, lock server, and what its tasks declare."""

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
#: ``secured``: TLS, and the documented ACL user; ``shared``: the broker's.
LOCK_SERVERS = ("plain", "plain", "secured")
SCOPES = ("until_executed", "while_executing", "until_and_while_executing") * 2 + (
    "until_executing",
    "until_expired",
)
STRATEGIES = ("skip", "raise", "retry")
#: How a call ends; most of them just end.
ENDINGS = ("", "", "", "", "", "", "fail", "retry", "retry_quietly", "retry_slowly")
KEYS, TASKS = 12, 8


class Round(NamedTuple):
    """One round, as its seed and number say."""

    seed: str
    pools: tuple[str, ...]
    broker: str
    locks: str
    tasks: Mapping[str, Mapping[str, Any]]

    @property
    def summary(self) -> str:
        """What it is played on."""
        return f"{' and '.join(self.pools)} on {self.broker}, {self.locks} lock server"


def draw(seed: int, number: int, brokers: Sequence[str], lock_servers: Sequence[str]) -> Round:
    """Draw a round; the same one for the same arguments."""
    name = f"{seed}:{number}"
    chance = random.Random(name)  # noqa: S311  not for secrets
    # In turn: a minute is to meet more than one.
    broker = brokers[(seed + number) % len(brokers)]
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


def draw_killed(seed: int, number: int) -> Round:
    """Return a round in which workers are killed under load; by turns with its locks on the broker."""
    scopes = [("until_executed", False), ("until_executed", True), ("until_executing", False)]
    tasks = {
        f"attack.{place}": {"lock": scope, "lock_key": ["key"], "on_conflict": "skip", "acks_late": late}
        for place, (scope, late) in enumerate(scopes)
    }
    locks = ("plain", "shared")[number % 2]
    return Round(f"{seed}:{number}", ("prefork", "prefork"), RESTORING, locks, tasks)


def _options(chance: random.Random) -> dict[str, Any]:
    scope, late = chance.choice(SCOPES), chance.random() < 0.6
    client, server = chance.choice(STRATEGIES), chance.choice(STRATEGIES)
    if scope == "until_expired" and client == "retry":
        client = "skip"  # nobody waits at publish for what nobody releases
    # Periods of many waiting messages follow one another: short, or the round never ends.
    period = chance.uniform(0.2, 0.8) if scope == "until_expired" or chance.random() < 0.2 else None
    return {
        "lock": scope,
        "lock_key": chance.choice(["attack:{key}", "attack:{key}", ["key"]]),
        "on_conflict": server if scope == "while_executing" else {"client": client, "server": server},
        "acks_late": late,
        "reject_on_worker_lost": late and chance.random() < 0.7,
        **({"lock_period": period} if period else {}),
        **(
            {"lock_limit": chance.choice([2, 3])}
            if scope != "until_expired" and chance.random() < 0.3
            else {}
        ),
        **({"on_lock_lost": "terminate"} if scope.endswith("executed") and chance.random() < 0.3 else {}),
    }
