"""The worlds that are explored on each change; larger ones by hand (``python -m tools.explore --large``)."""

from tools.explore.world import PERIOD, World

WORLDS = {
    world.name: world
    for world in (
        World("claim", on_conflict="skip", ticks=1),
        World("redelivery", on_conflict="skip", messages=1, kills=2, ticks=2),
        World("line", ticks=1),
        World("line, one kill", losses=0, ticks=2),
        World("run", claims=False, ticks=1),
        World("retry", on_conflict="skip", messages=1, retries=1, ticks=1),
        World("retry of two", retries=1, losses=0, kills=0, ticks=0),
        World("limit of two", limit=2, ticks=1),
        World("limit of two, three calls", limit=2, messages=3, losses=0, kills=0, ticks=1),
        World("order of three calls", claims=False, messages=3, losses=0, kills=0, ticks=1),
        World("period", on_conflict="skip", period=PERIOD, ticks=1),
        World("period, and calls that wait", period=PERIOD, ticks=1),
        World("two names, one loss", names=("a b", "b"), kills=0, ticks=1),
        World("two names, one kill", names=("a b", "a"), losses=0, ticks=1),
        World("threads, two names", blocks=True, messages=3, names=("a", "b", "a b"), ticks=2),
        World("beside another broker, one loss", homes="new\nold", kills=0, ticks=1),
        World("beside another broker, one kill", homes="new\nold", losses=0, ticks=2),
        World("others take the lock", losses=0, kills=0, ticks=1, acts=1),
        World("coalesce", on_conflict="coalesce", ticks=1),
        World("debounce", on_conflict="coalesce", claims=False, pause=2.0, losses=0, ticks=2),
        World("rate", rate="1/4000", ticks=1),
    )
}

#: Explored by hand: more time, or a loss and a kill that take too long together for every run.
LARGE = {
    world.name: world
    for world in (
        World("claim, longer", on_conflict="skip", ticks=2),
        World("line, longer", ticks=2),
        World("run, longer", claims=False, ticks=2),
        World("retry, longer", on_conflict="skip", messages=1, retries=1, ticks=2),
        World("two names, a loss and a kill", names=("a b", "b"), ticks=1),
        World("beside another broker, a loss and a kill", homes="new\nold", ticks=1),
        World("others take the lock, with a kill", losses=0, ticks=1, acts=1),
        World("debounce, a loss and a kill", on_conflict="coalesce", claims=False, pause=2.0, ticks=2),
        World("rate, longer", rate="1/4000", ticks=2),
    )
}

#: Too large to be explored: random ways are played on a server (``--replay``).
WIDE = {
    world.name: world._replace(
        messages=4,
        names=world.names if len(world.names) > 3 else ("k",) * 4,
        losses=4,
        kills=4,
        ticks=25,
        acts=3,
    )
    for world in (
        World("wide: claim", on_conflict="skip"),
        World("wide: line"),
        World("wide: run", claims=False),
        World("wide: two retries", on_conflict="skip", retries=2),
        World("wide: two retries in line", retries=2),
        World("wide: limit", limit=2, retries=1),
        World("wide: calls that take two places", limit=3, weights=(1, 2, 1, 2)),
        World("wide: period", on_conflict="skip", period=PERIOD),
        World("wide: period, and calls that wait", period=PERIOD),
        World("wide: two names", names=("a b", "a", "b a", "b"), retries=1),
        World("wide: threads", blocks=True, names=("a", "b", "a b", "b")),
        World("wide: beside another broker", homes="new\nold"),
        World("wide: beside another broker, two names", names=("a b", "a", "b a", "b"), homes="new\nold"),
        World("wide: coalesce", on_conflict="coalesce"),
        World("wide: debounce", on_conflict="coalesce", claims=False, pause=2.0),
        World("wide: rate", rate="1/4000"),
        World("wide: rate and limit", rate="2/4000", limit=2),
    )
}
