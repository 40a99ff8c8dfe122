"""Random attacks on random set-ups, for minutes: ``python -m tools.attack [--seconds 600] [--seed N]``.

Real servers, real workers, real kills. Exit status 0 only if nothing was lost,
nothing overlapped, and nothing was left behind.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from celery_redislock.wire.clock import boottime
from tests.acceptance.rabbitmq import RabbitMQ, rabbitmq_node
from tests.facts import wait_until
from tools.attack import checks, standstill
from tools.attack.attacks import ATTACKS, COST_MARKS, DISTURBING, HOT_ATTACKS, ONLY_IF
from tools.attack.draw import BROKERS, HAND_OFF, HOT, LOCK_SERVERS, TERM, Round, draw_round
from tools.attack.forgeries import VALUES
from tools.attack.stage import Stage

#: Seconds of attacks in a round.
ROUND = 18.0
#: Seconds what was accepted may take to end after the last attack: it may wait for what a publisher claimed
#: that was killed; then redeliveries, retries, waiting.
DRAIN = 60.0
#: Seconds after the last attack until nothing may be in the hands of dead workers: of their names, of leases.
RESTORED = TERM + 5.0
#: Seconds after the last end until nothing may be held: leases of killed workers, what is released late.
SETTLE = 5.0
#: Seconds after what disturbed a part of the system until it is as before.
RECOVERY = 2.0
#: Problems of one round that are printed.
MOST = 12
#: Our own line, of ``receiving/restore.py``.
RESTORED_BY = re.compile(r"(\d+) messages that it had in hand are back in their queues")
#: Of rounds that count kills: every third hits the main process only.
KILLS = ("kill worker", "kill worker", "kill main process")
#: Of rounds of one line, and seconds of such a round.
KILLS_OF_A_LINE, LONG = ("kill worker",), 6 * ROUND


def main() -> int:
    """Play rounds until the time is over; print what was done and found; return the exit status."""
    arguments = _arguments()
    seed = arguments.seed if arguments.seed is not None else int.from_bytes(os.urandom(3), "big")
    print(f"seed {seed}, {arguments.seconds:g} s", flush=True)
    has_all = bool(os.environ.get("CI")) or all(
        map(shutil.which, ("rabbitmq-server", "redis-server", "openssl"))
    )
    kinds = (BROKERS, LOCK_SERVERS) if has_all else (BROKERS[:2], LOCK_SERVERS[:1])
    # SIGTERM unwinds as Ctrl-C does: nothing that was started here is left.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    until, number, done, problems = time.monotonic() + arguments.seconds, arguments.round or 1, Counter(), 0
    stood: dict[tuple[str, str], float] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attack-")))
        nodes: list[RabbitMQ] = []
        while (kills := arguments.kills - _kills(done)) > 0 or (
            not arguments.kills and time.monotonic() < until
        ):
            drawn = draw_round(seed, number, *kinds, hot=arguments.hot, kills=bool(arguments.kills))
            print(f"round {number}: {drawn.summary}", flush=True)
            is_on_redis = drawn.broker.endswith("redis")
            if not is_on_redis and not nodes:
                nodes.append(stack.enter_context(rabbitmq_node(folder)))
            node = None if is_on_redis else nodes[0]
            found, seen, longest = _play(drawn, folder / str(number), node, arguments, kills)
            done, problems, number = done + seen, problems + len(found), number + 1
            for cause, seconds in longest.items():
                stood[drawn.where, cause] = max(seconds, stood.get((drawn.where, cause), 0.0))
            more = [f"and {len(found) - MOST} more"] if len(found) > MOST else []
            print("".join(f"! {problem}\n" for problem in [*found[:MOST], *more]), end="", flush=True)
            if arguments.round:
                break
    for name, count in sorted(done.items()):
        print(f"  {name:40} {count:6}")
    for (where, cause), seconds in sorted(stood.items()):
        print(f"  a key stood still, {where}, {cause}: at most {seconds:.1f} s")
    print(f"{problems} problems; again: --seed {seed}" + (" --round N" if problems else ""))
    return 1 if problems else 0


def _kills(done: Counter[str]) -> int:
    return sum(done[f"attack: {name}"] for name in set(KILLS))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.attack", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="how long rounds are begun (600)")
    parser.add_argument("--seed", type=int, help="of the rounds, to try the same ones again")
    parser.add_argument("--round", type=int, help="play this one only")
    parser.add_argument("--kills", type=int, default=0, help="until so many workers are killed, and no more")
    parser.add_argument("--hot", choices=HOT, help="rounds of hot keys only; with --kills: of one line")
    parser.add_argument("--only", type=_names, default=list(ATTACKS), help="attacks, separated by commas")
    parser.add_argument("--without", type=_names, default=[], help="attacks, separated by commas")
    parser.add_argument(
        "--logs", type=Path, help="a folder for the workers' logs, the journal, the servers' records"
    )
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(ATTACKS):
        message = f"unknown: {unknown}; there are: {', '.join(ATTACKS)}"
        raise argparse.ArgumentTypeError(message)
    return names


def _play(
    drawn: Round, folder: Path, node: RabbitMQ | None, arguments: argparse.Namespace, kills: int
) -> tuple[list[str], Counter[str], dict[str, float]]:
    """Play one round; return what was found wrong, what was done, and how long a key stood still."""
    folder.mkdir()
    with Stage(drawn, folder, node) as stage:
        done = _kill(stage, kills) if kills > 0 else _attack(stage, arguments)
        stage.stop_publishing()
        stage.heal()
        kept = _wait_over(stage)
        lines = stage.lines()
        too_long, longest = _stood_still(stage) if drawn.where else ([], {})
        found = [*too_long, *lines.out_of_turn, *_problems(stage, kept)]
        facts = stage.journal.facts
        done.update({f"line: {what}": number for what, number in lines.seen.items()})
        done.update(f"publishes {outcome[0]}" for outcome in facts("outcomes").values())
        done.update(f"accepted and {fate}" for fate in checks.fates(stage.facts()).values())
        done["bodies"] = len(facts("starts"))
        done["messages whose bodies ended twice"] = checks.ended_twice(facts("starts"), facts("ends"))
        done["messages restored"] = sum(map(int, RESTORED_BY.findall(stage.log())))
        if arguments.logs is not None:
            _keep(stage, folder, arguments.logs)
    return found, done, longest


def _attack(stage: Stage, arguments: argparse.Namespace) -> Counter[str]:
    """Attack for a round's time; return how often what was done."""
    chance, bag, done = random.Random(f"attacks {stage.round.seed}"), [], Counter()  # noqa: S311  not for secrets
    names = [name for name in arguments.only if name not in arguments.without]
    names = [name for name in names if ONLY_IF.get(name, lambda _: True)(stage)]
    names = [name for name in names if not stage.round.where or name in HOT_ATTACKS]
    # A deploy alone takes ten seconds.
    began, seconds = time.monotonic(), min(2 * ROUND if stage.round.where else ROUND, arguments.seconds)
    while (left := began + seconds - time.monotonic()) > 0:
        time.sleep(min(left, chance.uniform(0.2, 2.0)))
        # Each of them before one comes again.
        bag = bag or chance.sample(names, len(names))
        done[_hit(stage, bag.pop(), chance, began)] += 1
    return done


def _kill(stage: Stage, kills: int) -> Counter[str]:
    """Kill workers, no more than so many, for a round's time; return how often."""
    chance, bag, done = random.Random(f"attacks {stage.round.seed}"), [], Counter()  # noqa: S311  not for secrets
    names, seconds = (KILLS_OF_A_LINE, LONG) if stage.round.where else (KILLS, 2 * ROUND)
    began = time.monotonic()
    while (left := began + seconds - time.monotonic()) > 0 and done.total() < kills:
        # Names lapse and are taken between kills.
        time.sleep(min(left, chance.uniform(0.2, TERM)))
        if stage.round.where:
            # Time for what the last kill did; where a key stands still, another kill shows nothing.
            time.sleep(TERM)
            stage.wait_body(stage.round.queue_ttl)
            time.sleep(chance.uniform(0.0, 0.2))  # anywhere between two bodies
        bag = bag or chance.sample(names, len(names))
        done[_hit(stage, bag.pop(), chance, began)] += 1
    return done


def _hit(stage: Stage, name: str, chance: random.Random, since: float) -> str:
    """Carry out one attack; return under which name it is counted."""
    print(f"{time.monotonic() - since:7.1f} s  {name}", flush=True)
    stage.keeps_marks = stage.keeps_marks and name not in COST_MARKS
    began = boottime()
    ATTACKS[name](stage, chance)
    if name in DISTURBING:
        stage.disturbances.append((began, boottime() + RECOVERY))
    return f"attack: {name}"


def _keep(stage: Stage, folder: Path, logs: Path) -> None:
    """Keep what workers have logged, the journal, and the records of the broker and the lock server."""
    (logs / f"{folder.name}.log").write_text(stage.log())
    for path in folder.glob("broker/appendonlydir/*.incr.aof"):
        shutil.copy(path, logs / f"{folder.name}.aof")
    for path in folder.glob("appendonlydir/*.incr.aof"):
        shutil.copy(path, logs / f"{folder.name}.locks.aof")
    subjects = ("attempts", "outcomes", "starts", "ends")
    facts = {name: stage.journal.facts(name) for name in subjects}
    (logs / f"{folder.name}.json").write_text(json.dumps(facts, indent=1))


def _wait_over(stage: Stage) -> list[str]:
    """Return when all that was accepted is over; what was in dead workers' hands for too long."""
    kept: list[str] = []
    ttl = stage.round.ttl
    stage.read_lines()
    if stage.is_restoring:
        wait_until(
            lambda: not checks.left_in_hand(stage.entries(of_dead=True), stage.facts()), RESTORED + ttl
        )
        kept = checks.left_in_hand(stage.entries(of_dead=True), stage.facts())
    # What seems dead may be in a message that nobody has received again yet.
    wait_until(
        lambda: (
            all(fate.startswith(checks.LAST) for fate in _lost(stage).values()) and not stage.has_messages()
        ),
        DRAIN + stage.round.queue_ttl,
    )
    over = checks.over(stage.facts())
    # A copy that was handed its lock in line, and died with its worker, ends with its time to start.
    settled = SETTLE + max(3 * ttl, HAND_OFF)
    wait_until(lambda: not checks.left_behind(stage.lock_keys(), over), settled)
    stage.read_lines()
    return kept


def _stood_still(stage: Stage) -> tuple[list[str], dict[str, float]]:
    """Return which hot keys stood still for too long, and for how many seconds one did at most, by cause."""
    subjects = ("attempts", "outcomes", "starts", "beats", "ends")
    facts = {name: stage.journal.facts(name) for name in subjects}
    fates = checks.each(stage.facts())
    # What is gone keeps no key.
    lost = {call["id"] for call, fate in fates if fate.startswith("lost") and checks.GAP not in fate}
    for place in range(len(stage.workers)):
        stage.leave(place)
    calls, runs, gone = standstill.history(facts, stage.hits, lost, stage.waited, boottime())
    found = standstill.standstills(calls, runs, stage.shifts, stage.disturbances)
    drawn, in_hand = stage.round, stage.in_hand_of_dead
    too_long = standstill.too_long(found, drawn.where, in_hand, gone, drawn.queue_ttl)
    return too_long, standstill.longest(found, in_hand)


def _problems(stage: Stage, kept: list[str]) -> list[str]:
    facts, over = stage.journal.facts, checks.over(stage.facts())
    outcomes, announced, excess = facts("outcomes").values(), facts("announced"), stage.excess_connections()
    known = [call["id"] for calls in facts("attempts").values() for call in calls] + stage.forged
    known += [value.partition(b"\0")[0].decode(errors="replace") for value in VALUES.values()]
    strangers = checks.unexplained([of for kind, of, *_ in outcomes if kind == "refused"], known)
    failed = [outcome[1:] for outcome in outcomes if outcome[0] == "failed"]
    # Elsewhere an early acknowledgement may be lost with a connection; a solo pool sends it after the body.
    is_early_once = stage.is_restoring and "solo" not in stage.round.pools
    judged = {True: is_early_once, False: stage.keeps_marks}
    starts = {name: body for name, body in facts("starts").items() if judged[body["early"]]}
    repeated = checks.repeated(starts, facts("ends"), stage.hits)
    for name, fate in checks.fates(stage.facts()).items():
        print(f"  {name}: {fate}\n" if fate.startswith(checks.GAP) else "", end="", flush=True)
    if stage.is_restoring:
        kept += checks.left_in_hand(stage.entries(), stage.facts())
    is_idle = "finished" not in checks.fates(stage.facts()).values()
    losses = {token: lost - announced.get(token, 0) for token, lost in facts("settled").items()}
    return [
        # Causes first.
        *stage.ended(),
        *stage.problems,
        *(f"{name} is {fate}" for name, fate in _lost(stage).items()),
        *checks.too_often(stage.record()),
        *checks.outdated(facts("attempts"), facts("outcomes"), stage.facts()),
        *checks.overlaps(facts("starts"), facts("beats"), facts("ends")),
        *repeated,
        *dict.fromkeys(kept),
        *checks.left_behind(stage.lock_keys(), over),
        *checks.tracebacks(stage.log()),
        *(f"a publish raised {name}: {text}" for name, text in failed if name not in checks.EXPECTED),
        *(f"calls were refused for {holder}, whom nobody knows" for holder in strangers),
        *(f"the loss of {token} was not announced once" for token, missing in losses.items() if missing),
        *([f"{excess} connections to the lock server too many"] if excess > 0 else []),
        *(["no accepted task finished"] if is_idle else []),
    ]


def _lost(stage: Stage) -> dict[str, str]:
    fates = checks.fates(stage.facts())
    return {name: fate for name, fate in fates.items() if fate.startswith("lost")}


if __name__ == "__main__":
    sys.exit(main())
