"""Random attacks on random set-ups, for minutes: ``python -m tests.attack [--seconds 600] [--seed N]``.

Real servers, real workers, real kills. Exit status 0 only if nothing was lost,
nothing overlapped, and nothing was left behind.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.acceptance.rabbitmq import RabbitMQ, rabbitmq_node
from tests.attack import checks
from tests.attack.attacks import ATTACKS, ONLY_IF
from tests.attack.draw import BROKERS, TTL, Round, draw
from tests.attack.stage import Stage

#: Seconds of attacks in a round.
ROUND = 18.0
#: Seconds what was accepted may take to end after the last attack: redeliveries, retries, waiting.
DRAIN = 90.0
#: Seconds after the last end until nothing may be held: leases of killed workers, what is released late.
SETTLE = 3 * TTL + 5.0
#: Problems of one round that are printed.
MOST = 12


def main() -> int:
    """Play rounds until the time is over; print what was done and found; return the exit status."""
    arguments = _arguments()
    seed = arguments.seed if arguments.seed is not None else int.from_bytes(os.urandom(3), "big")
    print(f"seed {seed}, {arguments.seconds:g} s", flush=True)
    brokers = BROKERS if shutil.which("rabbitmq-server") or os.environ.get("CI") else BROKERS[:1]
    # SIGTERM unwinds as Ctrl-C does: nothing that was started here is left.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    until, number, done, problems = time.monotonic() + arguments.seconds, arguments.round or 1, Counter(), 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attack-")))
        nodes: list[RabbitMQ] = []
        while time.monotonic() < until:
            drawn = draw(seed, number, brokers)
            print(f"round {number}: {drawn.summary}", flush=True)
            if drawn.broker != "redis" and not nodes:
                nodes.append(stack.enter_context(rabbitmq_node(folder)))
            left = until - time.monotonic()
            found, seen = _play(drawn, folder, nodes, min(ROUND, left), arguments)
            done, problems, number = done + seen, problems + len(found), number + 1
            for problem in found[:MOST]:
                print("!", problem, flush=True)
            if len(found) > MOST:
                print(f"! and {len(found) - MOST} more", flush=True)
            if arguments.round:
                break
    for name, count in sorted(done.items()):
        print(f"  {name:40} {count:6}")
    print(f"{problems} problems; again: --seed {seed}" + (" --round N" if problems else ""))
    return 1 if problems else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.attack", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="how long rounds are begun (600)")
    parser.add_argument("--seed", type=int, help="of the rounds, to try the same ones again")
    parser.add_argument("--round", type=int, help="play this one only")
    parser.add_argument("--only", type=_names, default=list(ATTACKS), help="attacks, separated by commas")
    parser.add_argument("--without", type=_names, default=[], help="attacks, separated by commas")
    parser.add_argument("--logs", type=Path, help="a folder for the workers' logs and the journal")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(ATTACKS):
        message = f"unknown: {unknown}; there are: {', '.join(ATTACKS)}"
        raise argparse.ArgumentTypeError(message)
    return names


def _play(
    drawn: Round, folder: Path, nodes: list[RabbitMQ], seconds: float, arguments: argparse.Namespace
) -> tuple[list[str], Counter[str]]:
    """Play one round; return what was found wrong, and what was done."""
    chance = random.Random(f"attacks {drawn.seed}")  # noqa: S311  not for secrets
    place = folder / drawn.seed.replace(":", "-")
    place.mkdir()
    node = nodes[0] if drawn.broker != "redis" else None
    with Stage(drawn, place, node) as stage:
        names = [name for name in arguments.only if name not in arguments.without]
        names = [name for name in names if ONLY_IF.get(name, lambda _: True)(stage)]
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, chance.uniform(0.2, 2.0)))
            name = chance.choice(names)
            print(f"{seconds - until + time.monotonic():7.1f} s  {name}", flush=True)
            ATTACKS[name](stage, chance)
            stage.done[name] += 1
        stage.stop_publishing()
        stage.heal()
        found = _problems(stage)
        if arguments.logs is not None:
            (arguments.logs / f"{place.name}.log").write_text(stage.log())
            facts = {name: stage.journal.facts(name) for name in ("attempts", "outcomes", "starts", "ends")}
            (arguments.logs / f"{place.name}.json").write_text(json.dumps(facts, indent=1))
        return found, _counted(stage)


def _problems(stage: Stage) -> list[str]:
    deadline = time.monotonic() + DRAIN
    lost = _lost(stage)
    while not all(fate.startswith(checks.LAST) for fate in lost.values()) and time.monotonic() < deadline:
        time.sleep(0.5)
        lost = _lost(stage)
    outcomes = stage.journal.facts("outcomes")
    failed = [outcome[1:] for outcome in outcomes.values() if outcome[0] == "failed"]
    deadline = time.monotonic() + SETTLE
    # A publisher is killed at the end of each round, too.
    while (
        left := checks.left_behind(stage.lock_keys(), may_be_unpublished=True)
    ) and time.monotonic() < deadline:
        time.sleep(0.2)
    settled, announced = stage.journal.facts("settled"), stage.journal.facts("announced")
    journal = (stage.journal.facts(name) for name in ("starts", "beats", "ends"))
    attempts = [call["id"] for calls in stage.journal.facts("attempts").values() for call in calls]
    refused_for = [outcome[1] for outcome in outcomes.values() if outcome[0] == "refused"]
    excess = stage.lock_connections() - stage.most_lock_connections()
    return [
        # Causes first.
        *stage.ended(),
        *stage.problems,
        *(f"{name} is {fate}" for name, fate in lost.items()),
        *checks.overlaps(*journal),
        *left,
        *checks.tracebacks(stage.log()),
        *(f"a publish raised {name}: {text}" for name, text in failed if name not in checks.EXPECTED),
        *(
            f"calls were refused for {holder}, whom nobody knows"
            for holder in checks.unexplained(refused_for, [*attempts, *stage.forged])
        ),
        *(
            f"a lost lease was announced {announced.get(token, 0)} times"
            for token, lost in settled.items()
            if lost != announced.get(token, 0)
        ),
        *([f"{excess} connections to the lock server too many"] if excess > 0 else []),
    ]


def _lost(stage: Stage) -> dict[str, str]:
    fates = checks.fates(stage.facts())
    return {name: fate for name, fate in fates.items() if fate.startswith("lost")}


def _counted(stage: Stage) -> Counter[str]:
    kinds = Counter(outcome[0] for outcome in stage.journal.facts("outcomes").values())
    fates = Counter(checks.fates(stage.facts()).values())
    return Counter({
        **{f"attack: {name}": count for name, count in stage.done.items()},
        **{f"publishes {kind}": count for kind, count in kinds.items()},
        **{f"accepted and {fate}": count for fate, count in fates.items()},
        "bodies": len(stage.journal.facts("starts")),
    })  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
