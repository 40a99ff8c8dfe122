"""Every way to write a task, and every way to send one."""

import celery
import pytest
from celery import chord, group

from tests.acceptance.harness import PATIENCE, Shop
from tests.acceptance.messages import captured, deliver

KINDS = ["bare", "unbound", "Listed", "Supering", "Skirting", "shared", "modelled", "counting"]


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_of_every_kind_are_unique(any_shop: Shop, key: str, kind: str) -> None:
    """Plain, unbound, class-based, with an own ``__call__``, shared, typed: one run, freed in time."""
    task = getattr(any_shop, kind)
    with any_shop.kept_on(key):
        first = task.delay(key)
        any_shop.wait_started(key)
        second = task.delay(key)
    value = first.get(timeout=PATIENCE)

    assert second.id == first.id
    assert value == f"{key} by {kind}"
    assert task.lock_for(key).holder() is None
    assert len(any_shop.bodies(key)) == 1
    if kind != "unbound":
        assert any_shop.bodies(key)[0].token is not None


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_of_every_kind_are_locked_at_start(any_shop: Shop, key: str, kind: str) -> None:
    """Also where nothing was claimed: two messages by hand, one body at a time."""
    with any_shop.kept_on(key):
        first = any_shop.app.send_task(f"shop.{kind}", (key,))
        any_shop.wait_started(key)
        second = any_shop.app.send_task(f"shop.{kind}", (key,))
        second.get(timeout=PATIENCE, propagate=False)
    first.get(timeout=PATIENCE)

    assert second.state == "REVOKED"
    assert len(any_shop.bodies(key)) == 1


@pytest.mark.skipif(
    not hasattr(celery.Task, "_dump_pydantic_arguments"),
    reason="this Celery wants models dumped by the caller",
)
def test_a_model_and_its_dump_are_the_same_call(any_shop: Shop, key: str) -> None:
    """``pydantic=True``: the key is made of what the worker will see."""
    from tests.acceptance.kinds import Order

    with any_shop.kept_on(key):
        first = any_shop.ordered.delay(Order(key=key, number=2))
        same = any_shop.ordered.delay({"key": key, "number": 2})
        other = any_shop.ordered.delay(Order(key=key, number=3))

    assert same.id == first.id
    assert not other.is_duplicate
    assert first.get(timeout=PATIENCE) == {"key": key, "number": 2}


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml", "msgpack"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_messages_of_every_form_are_locked(
    any_shop: Shop, key: str, serializer: str, compression: str | None
) -> None:
    """Serialisers and compressions, also of a message that was published again to wait."""
    if serializer in {"yaml", "msgpack"}:
        pytest.importorskip(serializer)
    form = {"serializer": serializer, "compression": compression, "kwargs": {"more": "x" * 5000}}
    with any_shop.running(any_shop.serve, key, **form) as first:
        second = any_shop.serve.apply_async((key,), **form)
        any_shop.wait_lines("comes back later", second.id)

    assert {first.get(timeout=PATIENCE), second.get(timeout=PATIENCE)} == {f"{key} done"}
    assert len(any_shop.bodies(key)) == 2
    assert any_shop.overlaps(key) == []


@pytest.mark.parametrize("ending", ["recurse", "call_itself"])
def test_a_body_may_call_itself(any_shop: Shop, key: str, ending: str) -> None:
    """A direct call inside a run is part of that run, and takes no lock."""
    assert any_shop.sell.delay(key, 0.0, ending, 3).get(timeout=PATIENCE) == 3
    assert len(any_shop.bodies(key)) == 4
    assert any_shop.holder(key) is None


def test_maps_and_chunks_are_not_locked(any_shop: Shop, key: str) -> None:
    """``map``, ``starmap`` and ``chunks`` call bodies directly, which is said in the docs."""
    task = any_shop.sell
    with any_shop.running(task, key):
        assert task.map([key]).apply_async().get(timeout=PATIENCE) == [f"{key} done"]
        assert task.starmap([(key,), (key, 0.0)]).apply_async().get(timeout=PATIENCE) == [f"{key} done"] * 2
        assert task.chunks([(key,)] * 2, 1).apply_async().get(timeout=PATIENCE) == [[f"{key} done"]] * 2

    assert {body.token is None for body in any_shop.bodies(key)[1:]} == {True}


def test_a_direct_call_disturbs_no_queued_task(any_shop: Shop, key: str) -> None:
    """``task()`` and ``apply()`` run the body here and touch no lock."""
    result = any_shop.sell.apply_async((key,), queue="aside")
    message = captured(any_shop)

    assert any_shop.sell(key) == f"{key} done"
    assert any_shop.sell.apply((key,)).get() == f"{key} done"
    holder = any_shop.holder(key)
    assert holder is not None
    assert holder.owner == result.id
    deliver(any_shop, message)
    assert result.get(timeout=PATIENCE) == f"{key} done"


def test_many_tasks_in_a_large_group_keep_their_results(prefork_shop: Shop, key: str) -> None:
    """One hundred members over ten keys: every value is there, none ran beside another of its key."""
    members = group(prefork_shop.sell.si(f"{key}-{number % 10}") for number in range(100))
    values = chord(members)(prefork_shop.collect.s()).get(timeout=PATIENCE)

    assert values == [f"{key}-{number % 10} done" for number in range(100)]
    assert all(prefork_shop.overlaps(f"{key}-{number}") == [] for number in range(10))
