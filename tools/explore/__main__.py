"""Explore small worlds: ``python -m tools.explore [--large] [--broken] [WORLD ...]``.

Every step is taken from every state; then stores that are broken on purpose are looked for. Exit status 0
only if no world breaks a law, and each of those stores is found.
"""

import argparse
import resource
import sys

from tools.explore.broken import BROKEN
from tools.explore.search import Found, explore
from tools.explore.worlds import LARGE, WORLDS
from tools.record import Table, add_record, keep

#: Columns of the tables: of worlds, and of stores that are broken on purpose.
WORLD = ("world", "states", "steps", "depth", "all calls end within", "time")
STORE = ("broken on purpose", "found as", "steps", "states", "time")


def main() -> int:
    """Explore what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument(
        "worlds", nargs="*", metavar="WORLD", choices=[[], *WORLDS, *LARGE], help="all without"
    )
    parser.add_argument("--large", action="store_true", help="with more faults, or more time: two minutes")
    parser.add_argument("--broken", action="store_true", help="only the stores that are broken on purpose")
    add_record(parser)
    arguments = parser.parse_args()
    known = {**WORLDS, **LARGE}
    status = 0
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
