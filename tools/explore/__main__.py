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


def main() -> int:
    """Explore what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument(
        "worlds", nargs="*", metavar="WORLD", choices=[[], *WORLDS, *LARGE], help="all without"
    )
    parser.add_argument("--large", action="store_true", help="with more faults, or more time: two minutes")
    parser.add_argument("--broken", action="store_true", help="only the stores that are broken on purpose")
    arguments = parser.parse_args()
    known = {**WORLDS, **LARGE}
    status = 0
    if not arguments.broken:
        chosen = [known[name] for name in arguments.worlds] or (LARGE if arguments.large else WORLDS).values()
        print("| world | states | steps | depth | all calls end within | time |\n|---|---|---|---|---|---|")
        for world in chosen:
            found = explore(world)
            print(row_of(found))
            status |= bool(found.broken)
            tell(found)
    if arguments.broken or not arguments.worlds:
        print("\n| broken on purpose | found as | steps | states | time |\n|---|---|---|---|---|")
        for kind, name in BROKEN.items():
            found = explore(WORLDS[name], kind)
            status |= not found.broken
            print(row_of_broken(kind, found))
            tell(found)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"\nmemory: {most} MB")
    return status


def row_of(found: Found) -> str:
    """Return a row of the table of worlds."""
    verdict = "" if not found.broken else f" **{found.broken}**"
    within = f"{found.longest:g} of {found.world.bound:g} s"
    seconds = f"{found.seconds:.1f} s"
    cells = (
        found.world.name + verdict,
        f"{found.states:,}",
        f"{found.steps:,}",
        found.depth,
        within,
        seconds,
    )
    return f"| {' | '.join(map(str, cells))} |"


def row_of_broken(kind: type, found: Found) -> str:
    """Return a row of the table of stores that are broken on purpose."""
    told = (kind.__doc__ or kind.__name__).rstrip(".")
    verdict = found.broken or "**nowhere**"
    cells = (told, verdict, len(found.story), f"{found.states:,}", f"{found.seconds:.1f} s")
    return f"| {' | '.join(map(str, cells))} |"


def tell(found: Found) -> None:
    """Print the shortest history to what breaks a law."""
    for step in found.story:
        print(f"    {step}")


if __name__ == "__main__":
    sys.exit(main())
