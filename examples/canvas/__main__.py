"""The story: see the README beside it."""

from celery import chain, chord, group
from celery.result import AsyncResult, GroupResult

from examples.canvas.shop import Unknown, app, find_price, total
from examples.stage import Stage, stage

__all__ = ["main"]

#: Seconds a workflow may take.
PATIENCE = 30.0


def main() -> None:
    """Play four workflows that contain the same call twice."""
    with stage(app) as here:
        here.worker(concurrency=4)
        chain_of_the_same_call(here)
        group_with_duplicates(here)
        chord_with_a_duplicate(here)
        group_that_fails(here)
        alone = all(took_turns(here, article) for article in ("tea", "milk", "gold"))
        here.expect("no article was ever looked up twice at the same time", alone)


def chain_of_the_same_call(here: Stage) -> None:
    here.say("1. A chain of two equal calls: the lock is free again before the second link is published.")
    seen = len(here.lines("looking up"))
    price = chain(find_price.si("tea"), find_price.si("tea")).delay().get(timeout=PATIENCE)
    bodies = len(here.lines("looking up")) - seen
    here.expect(
        f"bodies: {bodies}, and the price is {price}",
        (bodies, price) == (2, 3),
    )


def group_with_duplicates(here: Stage) -> None:
    here.say("2. A group of three equal calls: they run one after the other.")
    seen = len(here.lines("looking up"))
    results = group(find_price.s("tea") for _ in range(3)).delay()
    prices = results.get(timeout=PATIENCE)
    bodies = len(here.lines("looking up")) - seen
    here.expect(f"bodies: {bodies}, and the prices are {prices}", (bodies, prices) == (3, [3, 3, 3]))
    ids = {result.id for result in results}
    here.expect(f"each member has an id of its own: {len(ids)} ids", len(ids) == 3)
    here.expect("afterwards the lock is free", find_price.lock_for("tea").holder() is None)


def chord_with_a_duplicate(here: Stage) -> None:
    here.say(
        "3. A chord with tea twice in the basket: looked up twice, one after the other, and counted twice."
    )
    seen = len(here.lines("looking up"))
    basket = [find_price.s("tea"), find_price.s("milk"), find_price.s("tea")]
    paid = chord(basket, total.s()).delay().get(timeout=PATIENCE)
    bodies = len(here.lines("looking up")) - seen
    here.expect(f"bodies: {bodies}, and the total is {paid}: 3 + 4 + 3", (bodies, paid) == (3, 10))


def group_that_fails(here: Stage) -> None:
    here.say("4. A group of two equal calls that fail: each runs, and fails by itself.")
    seen = len(here.lines("looking up"))
    results = group(find_price.s("gold") for _ in range(2)).delay()
    errors = errors_of(results)
    bodies = len(here.lines("looking up")) - seen
    here.expect(
        f"bodies: {bodies}, and the errors are {errors}", bodies == 2 and errors == ["Unknown('gold')"] * 2
    )


def took_turns(here: Stage, article: str) -> bool:
    """Whether each look-up of an article ended before the next one began."""
    lines = here.lines("look", f"up {article}")
    return all(("looking" in line) is (place % 2 == 0) for place, line in enumerate(lines))


def errors_of(results: GroupResult) -> list[str]:
    """Wait for every member, and return what each one raised."""
    errors = []
    for result in results:
        assert isinstance(result, AsyncResult)
        try:
            result.get(timeout=PATIENCE)
        except Unknown as error:
            errors.append(repr(error))
    return errors


if __name__ == "__main__":
    main()
