"""Explore small worlds: ``python -m tools.explore [--large] [--broken] [--replay] [WORLD ...]``.

Every step is taken from every state; then stores that are broken on purpose are looked for. Exit status 0
only if no world breaks a law, and each of those stores is found.

With ``--replay``, the shortest way to each state is played on a server instead; then random long ways, in
worlds that are too large to be explored, and then with scripts that are broken on purpose. Exit status 0 only
if the server says and keeps what the store in memory does, and does not with any of those.
"""

import argparse
import resource
import sys
from collections.abc import Sequence

from celery_redislock.embedded import EmbeddedServer
from tools.explore.broken import BROKEN, BROKEN_SCRIPTS
from tools.explore.replay import Replayed, replay, wander
from tools.explore.search import Found, explore
from tools.explore.server import Server
from tools.explore.world import World
from tools.explore.worlds import LARGE, WIDE, WORLDS
from tools.record import Table, add_record, keep

#: Columns of the tables: of worlds, and of stores that are broken on purpose.
WORLD = ("world", "states", "steps", "depth", "all calls end within", "time")
STORE = ("broken on purpose", "found as", "steps", "states", "time")

#: What the names in a story are.
LEGEND = (
    "0/c is the message of call 0, 0/r0 its first run, 0/d0 its first retry. How fast all calls end is told "
    "in seconds of the model: the longest, of what it may take."
)

#: Steps of a random way, at the most.
STEPS = 80

#: Likewise of what was played on a server, and of scripts that are broken on purpose.
PLAYED = ("world", "ways", "requests", "differ", "time")
WALKED = ("world", "steps", "requests", "differ", "time")
SCRIPT = ("broken on purpose", "what differs", "requests", "time")


def main() -> int:
    """Explore what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument(
        "worlds", nargs="*", metavar="WORLD", choices=[[], *WORLDS, *LARGE], help="all without"
    )
    parser.add_argument("--large", action="store_true", help="with more faults, or more time: two minutes")
    parser.add_argument("--broken", action="store_true", help="only the stores that are broken on purpose")
    parser.add_argument("--replay", action="store_true", help="play them on a server: five minutes")
    parser.add_argument("--server", metavar="PROGRAM", help="the server's program; else the embedded one")
    parser.add_argument("--ways", type=int, default=20, help="random ones, in each world that is wide (20)")
    parser.add_argument("--seed", default="1", help="of the random ways (1)")
    add_record(parser)
    arguments = parser.parse_args()
    known = {**WORLDS, **LARGE}
    status = 0
    if arguments.replay:
        return play([known[name] for name in arguments.worlds] or [*WORLDS.values()], arguments)
    print(f"{LEGEND}\n")
    explored, caught = [], []
    if not arguments.broken:
        chosen = [known[name] for name in arguments.worlds] or (LARGE if arguments.large else WORLDS).values()
        print(f"| {' | '.join(WORLD)} |\n{'|---' * len(WORLD)}|")
        for world in chosen:
            found = explore(world)
            explored.append(cells_of(found))
            print(f"| {' | '.join(explored[-1])} |")
            status |= bool(found.broken)
            tell(found)
    if arguments.broken or not arguments.worlds:
        print(f"\n| {' | '.join(STORE)} |\n{'|---' * len(STORE)}|")
        for kind, name in BROKEN.items():
            found = explore(WORLDS[name], kind)
            status |= not found.broken
            caught.append(cells_of_broken(kind, found))
            print(f"| {' | '.join(caught[-1])} |")
            tell(found)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"\nmemory: {most} MB")
    if not arguments.broken and not arguments.worlds:
        tool = "explore --large" if arguments.large else "explore"
        keep(arguments.record, tool, [Table(WORLD, explored), Table(STORE, caught)], memory=f"{most} MB")
    return status


def play(worlds: Sequence[World], arguments: argparse.Namespace) -> int:
    """Play worlds on a server; return the exit status."""
    played, wide, caught = [], [], []
    status = 0
    with EmbeddedServer(binary=arguments.server) as started:
        server = Server(started.redis_url)
        print(f"{server.version}\n\n| {' | '.join(PLAYED)} |\n{'|---' * len(PLAYED)}|")
        for world in worlds:
            found = replay(explore(world), server)
            status |= bool(found.different)
            played.append(cells_of_played(world, found))
            print(f"| {' | '.join(played[-1])} |", flush=True)
            tell_difference(found)
        print(f"\nseed {arguments.seed}\n\n| {' | '.join(WALKED)} |\n{'|---' * len(WALKED)}|")
        for world in () if arguments.worlds else WIDE.values():
            found = wander(world, server, seed=arguments.seed, ways=arguments.ways, steps=STEPS)
            status |= bool(found.different)
            wide.append(cells_of_played(world, found))
            print(f"| {' | '.join(wide[-1])} |", flush=True)
            tell_difference(found)
        print(f"\n| {' | '.join(SCRIPT)} |\n{'|---' * len(SCRIPT)}|")
        for each in () if arguments.worlds else BROKEN_SCRIPTS:
            changed = Server(started.redis_url, each.text, each.instead)
            found = replay(explore(WORLDS[each.world]), changed, most=1)
            status |= not found.different
            verdict = found.different[0].what if found.different else "**nowhere**"
            caught.append([each.told, verdict, f"{found.requests:,}", f"{found.seconds:.1f} s"])
            print(f"| {' | '.join(caught[-1])} |", flush=True)
            tell_difference(found)
    if not arguments.worlds:
        keep(
            arguments.record,
            f"replay on {server.version.split()[0]}",
            [Table(PLAYED, played), Table(WALKED, wide), Table(SCRIPT, caught)],
            server=server.version,
            seed=arguments.seed,
            ways=arguments.ways,
        )
    return status


def cells_of_played(world: World, found: Replayed) -> list[str]:
    """Return a row of the table of what was played on a server."""
    different = str(len(found.different))
    return [world.name, f"{found.states:,}", f"{found.requests:,}", different, f"{found.seconds:.1f} s"]


def tell_difference(found: Replayed) -> None:
    """Print the shortest story at whose end a server differs."""
    for each in sorted(found.different, key=lambda one: len(one.story))[:1]:
        for told in each.story:
            print(f"    {told}")
        print(f"    {each.what}: {each.server} on the server, {each.memory} in memory")


def cells_of(found: Found) -> list[str]:
    """Return a row of the table of worlds."""
    return [
        found.world.name + (f" **{found.broken}**" if found.broken else ""),
        f"{found.states:,}",
        f"{found.steps:,}",
        str(found.depth),
        f"{found.longest:g} of {found.world.bound:g} s",
        f"{found.seconds:.1f} s",
    ]


def cells_of_broken(kind: type, found: Found) -> list[str]:
    """Return a row of the table of stores that are broken on purpose."""
    told = (kind.__doc__ or kind.__name__).rstrip(".")
    verdict = found.broken or "**nowhere**"
    return [told, verdict, str(len(found.story)), f"{found.states:,}", f"{found.seconds:.1f} s"]


def tell(found: Found) -> None:
    """Print the shortest history to what breaks a law."""
    for step in found.story:
        print(f"    {step}")


if __name__ == "__main__":
    sys.exit(main())
