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

from tests.acceptance.rabbitmq import RabbitMQ, rabbitmq_node
from tests.facts import wait_until
from tools.attack import checks
from tools.attack.attacks import ATTACKS, COST_MARKS, ONLY_IF
from tools.attack.draw import BROKERS, LOCK_SERVERS, QUEUE_TTL, TERM, TTL, Round, draw, draw_killed
from tools.attack.forgeries import VALUES
from tools.attack.lines import Lines
from tools.attack.stage import Stage

#: Seconds of attacks in a round.
ROUND = 18.0
#: Seconds what was accepted may take to end after the last attack: it may wait for what a publisher claimed
#: that was killed; then redeliveries, retries, waiting.
DRAIN = QUEUE_TTL + 60.0
#: Seconds after the last attack until nothing may be in the hands of dead workers: of their names, of leases.
RESTORED = TERM + TTL + 5.0
#: Seconds after the last end until nothing may be held: leases of killed workers, what is released late.
SETTLE = 3 * TTL + 5.0
#: Problems of one round that are printed.
MOST = 12
#: Our own line, of ``receiving/restore.py``.
RESTORED_BY = re.compile(r"(\d+) messages that it had in hand are back in their queues")
#: Of rounds that count kills: every third hits the main process only.
KILLS = ("kill worker", "kill worker", "kill main process")


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
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attack-")))
        nodes: list[RabbitMQ] = []
        while sum(done[f"attack: {name}"] for name in set(KILLS)) < arguments.kills or (
            not arguments.kills and time.monotonic() < until
        ):
            drawn = draw_killed(seed, number) if arguments.kills else draw(seed, number, *kinds)
            print(f"round {number}: {drawn.summary}", flush=True)
            is_on_redis = drawn.broker.endswith("redis")
            if not is_on_redis and not nodes:
                nodes.append(stack.enter_context(rabbitmq_node(folder)))
            node = None if is_on_redis else nodes[0]
            seconds = 2 * ROUND if arguments.kills else min(ROUND, arguments.seconds)
            found, seen = _play(drawn, folder / str(number), node, seconds, arguments)
            done, problems, number = done + seen, problems + len(found), number + 1
            more = [f"and {len(found) - MOST} more"] if len(found) > MOST else []
            print("".join(f"! {problem}\n" for problem in [*found[:MOST], *more]), end="", flush=True)
            if arguments.round:
                break
    for name, count in sorted(done.items()):
        print(f"  {name:40} {count:6}")
    print(f"{problems} problems; again: --seed {seed}" + (" --round N" if problems else ""))
    return 1 if problems else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.attack", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="how long rounds are begun (600)")
    parser.add_argument("--seed", type=int, help="of the rounds, to try the same ones again")
    parser.add_argument("--round", type=int, help="play this one only")
    parser.add_argument("--kills", type=int, default=0, help="until so many workers are killed, and no more")
    parser.add_argument("--only", type=_names, default=list(ATTACKS), help="attacks, separated by commas")
    parser.add_argument("--without", type=_names, default=[], help="attacks, separated by commas")
    parser.add_argument(
        "--logs", type=Path, help="a folder for the workers' logs, the journal, the broker's record"
    )
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(ATTACKS):
        message = f"unknown: {unknown}; there are: {', '.join(ATTACKS)}"
        raise argparse.ArgumentTypeError(message)
    return names


def _play(
    drawn: Round, folder: Path, node: RabbitMQ | None, seconds: float, arguments: argparse.Namespace
) -> tuple[list[str], Counter[str]]:
    """Play one round; return what was found wrong, and what was done."""
    chance, bag, done = random.Random(f"attacks {drawn.seed}"), [], Counter()  # noqa: S311  not for secrets
    folder.mkdir()
    with Stage(drawn, folder, node) as stage:
        names = [name for name in arguments.only if name not in arguments.without]
        names = [name for name in names if ONLY_IF.get(name, lambda _: True)(stage)]
        names = list(KILLS) if arguments.kills else names
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            # Names lapse and are taken between kills.
            time.sleep(min(left, chance.uniform(0.2, TERM if arguments.kills else 2.0)))
            # Each of them before one comes again.
            bag = bag or chance.sample(names, len(names))
            print(f"{seconds - until + time.monotonic():7.1f} s  {bag[-1]}", flush=True)
            done[f"attack: {bag[-1]}"] += 1
            stage.keeps_marks = stage.keeps_marks and bag[-1] not in COST_MARKS
            ATTACKS[bag.pop()](stage, chance)
        stage.stop_publishing()
        stage.heal()
        found = _problems(stage)
        lines = Lines().read(stage.written())
        found = [*lines.out_of_turn, *found]
        done.update({f"line: {what}": number for what, number in lines.seen.items()})
        done.update(f"publishes {outcome[0]}" for outcome in stage.journal.facts("outcomes").values())
        done.update(f"accepted and {fate}" for fate in checks.fates(stage.facts()).values())
        done["bodies"] = len(stage.journal.facts("starts"))
        done["messages restored"] = sum(map(int, RESTORED_BY.findall(stage.log())))
        if arguments.logs is not None:
            (arguments.logs / f"{folder.name}.log").write_text(stage.log())
            for path in folder.glob("broker/appendonlydir/*.incr.aof"):
                shutil.copy(path, arguments.logs / f"{folder.name}.aof")
            facts = {name: stage.journal.facts(name) for name in ("attempts", "outcomes", "starts", "ends")}
            (arguments.logs / f"{folder.name}.json").write_text(json.dumps(facts, indent=1))
    return found, done


def _problems(stage: Stage) -> list[str]:
    facts = stage.journal.facts
    kept: list[str] = []
    if stage.is_restoring:
        wait_until(lambda: not checks.left_in_hand(stage.entries(of_dead=True), stage.facts()), RESTORED)
        kept = checks.left_in_hand(stage.entries(of_dead=True), stage.facts())
    # What seems dead may be in a message that nobody has received again yet.
    wait_until(
        lambda: (
            all(fate.startswith(checks.LAST) for fate in _lost(stage).values()) and not stage.has_messages()
        ),
        DRAIN,
    )
    over = checks.over(stage.facts())
    wait_until(lambda: not checks.left_behind(stage.lock_keys(), over), SETTLE)
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
