"""Law 6: canvases of every shape complete, with a duplicate at every place, with and without results."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import _state, chain, chord, group

from tests.acceptance.duplicates import DEADLINE, held, wait_until_waiting
from tests.acceptance.harness import Shop

#: A canvas of four members; the first argument passes on what it is given.
Shape = Callable[..., Any]

SHAPES: dict[str, Shape] = {
    "chain": lambda to, a, b, c, d: chain(a, b, c, d, to),
    "group": lambda _, a, b, c, d: group(a, b, c, d),
    "chord": lambda to, a, b, c, d: chord([a, b, c, d], to),
    "chord with a body": lambda to, a, b, c, d: chain(chord([a, b, c], d), to),
    "chord in a chain": lambda to, a, b, c, d: chain(a, chord([b, c, d], to), to),
    "chain after a chord": lambda to, a, b, c, d: chain(chord([a, b], to), c, d),
    "group in a chain": lambda to, a, b, c, d: chain(a, group(b, c, d), to),
    "group in a chord": lambda to, a, b, c, d: chord([group(a, b), group(c, d)], to),
    "group as a chord's body": lambda _, a, b, c, d: chord([a, b], group(c, d)),
    "chain in a group": lambda to, a, b, c, d: group(chain(a, b, to), chain(c, d)),
    "chain in a chord": lambda to, a, b, c, d: chord([chain(a, b), chain(c, to), d], to),
    "chord of chords": lambda to, a, b, c, d: chord([chord([a, b], to), chord([c, d], to)], to),
}


@pytest.fixture(autouse=True)
def _the_shops_app_is_the_current_one(request: pytest.FixtureRequest) -> Iterator[None]:
    """As in a process with one app. Before 5.7 a chain asks that one for its backend (5.5.0, canvas.py)."""
    shop = request.getfixturevalue("any_shop" if "any_shop" in request.fixturenames else "prefork_shop")
    before = _state._tls.current_app
    shop.app.set_current()
    yield
    _state._tls.current_app = before


def plainly(shop: Shop, shape: Shape, *values: Any) -> Any:
    """Return what comes out of ordinary tasks with these values."""
    to = shop.collect
    return shape(to.s(), *(to.si(value) for value in values)).apply_async().get(timeout=DEADLINE)


def places(number: int, duplicate: Any, other: Callable[[int], Any]) -> list[Any]:
    """Return four members, of which one is the duplicate."""
    return [duplicate if place == number else other(place) for place in range(4)]


@pytest.mark.parametrize("name", SHAPES)
def test_a_duplicate_at_any_place_takes_its_holders_value(any_shop: Shop, key: str, name: str) -> None:
    """Law 6: the same work is done once, and every other member goes its way."""
    shop, build = any_shop, SHAPES[name]
    collect, duplicate = shop.collect, shop.sell.si(key)
    with held(shop, key) as holder:
        results = [
            build(collect.s(), *places(place, duplicate, collect.si)).apply_async() for place in range(4)
        ]
        wait_until_waiting(shop, holder, 4)

    for place, result in enumerate(results):
        expected = plainly(shop, build, *places(place, f"{key} done", lambda other: other))
        assert result.get(timeout=DEADLINE) == expected
    assert len(shop.bodies(key)) == 1


@pytest.mark.parametrize("name", SHAPES)
def test_a_canvas_of_nothing_but_one_call_completes(any_shop: Shop, key: str, name: str) -> None:
    """Law 6: four times the same, and nobody outside; each takes a value or does the work itself."""
    build = SHAPES[name]
    result = build(any_shop.collect.s(), *[any_shop.sell.si(key, 0.05)] * 4).apply_async()

    assert result.get(timeout=DEADLINE) == plainly(any_shop, build, *[f"{key} done"] * 4)
    assert 1 <= len(any_shop.bodies(key)) <= 4
    assert any_shop.overlaps(key) == []


#: Those that end with a task of their own, whose result tells that they are over.
AWAITABLE = [name for name in SHAPES if name not in {"group", "chain in a group", "group as a chord's body"}]


@pytest.mark.parametrize("task", ["sell_quietly", "sell_late_quietly"])
@pytest.mark.parametrize("name", AWAITABLE)
def test_a_canvas_whose_members_ignore_results_completes(
    prefork_shop: Shop, key: str, name: str, task: str
) -> None:
    """Law 6: without an outcome to take, each duplicate does the work in its turn."""
    shop, build = prefork_shop, SHAPES[name]
    quiet = getattr(shop, task)
    with held(shop, key, task) as holder:
        members = [quiet.si(key), *(quiet.si(f"{key}-{place}") for place in range(2)), quiet.si(key)]
        result = chain(build(shop.collect.s(), *members), shop.collect.s()).apply_async()
        wait_until_waiting(shop, holder, 1)
    expected = plainly(shop, build, f"{key} done", f"{key}-0 done", f"{key}-1 done", f"{key} done")

    assert result.get(timeout=DEADLINE) == expected
    assert len(shop.bodies(key)) == 3
    assert shop.overlaps(key) == []


@pytest.mark.parametrize("place", [0, 2])
def test_a_group_whose_members_ignore_results_runs_them_all(prefork_shop: Shop, key: str, place: int) -> None:
    """Law 6: nobody can wait for such a group, and nothing of it is lost."""
    shop = prefork_shop
    members = [shop.sell_quietly.si(f"{key}-{other}") for other in range(2)]
    members[place:place] = [shop.sell_quietly.si(key)] * 2
    with held(shop, key, "sell_quietly") as holder:
        group(members).apply_async()
        wait_until_waiting(shop, holder, 2)
    bodies = shop.wait_ended(key, 3, DEADLINE)

    assert len(bodies) == 3
    assert [len(shop.wait_ended(f"{key}-{other}")) for other in range(2)] == [1, 1]
    assert shop.overlaps(key) == []


@pytest.mark.parametrize(
    ("task", "bodies"),
    [("sell", 1), ("serve_or_skip", 1), ("serve", 3), ("queue", 3)],
)
def test_every_scope_finishes_a_chord_of_duplicates(any_shop: Shop, key: str, task: str, bodies: int) -> None:
    """Law 6: where nothing is ever skipped, each member runs; where duplicates are, they take the outcome."""
    shop, unique = any_shop, getattr(any_shop, task)
    with held(shop, key, task):
        result = chord([unique.si(key)] * 2, shop.collect.s()).apply_async()
        if bodies == 1:
            wait_until_waiting(shop, shop.bodies(key)[0].task_id, 2)

    assert result.get(timeout=DEADLINE) == [f"{key} done"] * 2
    assert len(shop.wait_ended(key, bodies)) == bodies
    if task != "queue":  # which holds nothing while it runs
        assert shop.overlaps(key) == []


def test_members_under_one_period_run_when_it_has_passed(prefork_shop: Shop, key: str) -> None:
    """Law 6: the one accepted at publish does not stand for the others."""
    offer = prefork_shop.offer.si(key).set(lock_period=1.5)
    result = chord([offer] * 3, prefork_shop.collect.s()).apply_async()

    assert result.get(timeout=DEADLINE) == [f"{key} done"] * 3
    assert len(prefork_shop.wait_ended(key, 3)) == 3


def test_a_chain_of_forty_times_the_same_call_completes(any_shop: Shop, key: str) -> None:
    """Laws 5 and 6: each link finds the lock of the one before it free, and runs."""
    result = chain(*[any_shop.sell.si(key)] * 40).apply_async()

    assert result.get(timeout=DEADLINE) == f"{key} done"
    assert len(any_shop.bodies(key)) == 40
    assert any_shop.overlaps(key) == []


def test_two_chains_of_twenty_times_the_same_call_complete(prefork_shop: Shop, key: str) -> None:
    """Law 6: each link may meet one of the other chain, which did the same work."""
    shop = prefork_shop
    results = [chain(*[shop.sell.si(key)] * 20, shop.collect.si(n)).apply_async() for n in range(2)]

    assert [result.get(timeout=DEADLINE) for result in results] == [0, 1]
    assert 20 <= len(shop.bodies(key)) <= 40
    assert shop.overlaps(key) == []


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sell", "sell_quietly"])
def test_a_thousand_members_of_ten_keys_all_come_to_an_end(prefork_shop: Shop, key: str, task: str) -> None:
    """Laws 1 and 6: never two bodies of one key at once, and a result, or a body, for every member."""
    shop, unique = prefork_shop, getattr(prefork_shop, task)
    keys = [f"{key}-{number}" for number in range(10)]
    result = group(unique.si(keys[number % 10], 0.01) for number in range(1000)).apply_async()

    if task == "sell":
        assert result.get(timeout=240) == [f"{keys[number % 10]} done" for number in range(1000)]
        assert all(len(shop.wait_ended(each)) >= 1 for each in keys)
    else:
        assert [len(shop.wait_ended(each, 100, 240.0)) for each in keys] == [100] * 10
    assert [shop.overlaps(each) for each in keys] == [[]] * 10
