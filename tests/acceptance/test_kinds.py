"""Every way to write a task, and every way to send one."""

import celery
import pytest

from tests.acceptance.harness import Project
from tests.acceptance.messages import captured, deliver
from tests.acceptance.terms import PATIENCE

KINDS = ["bare", "unbound", "Listed", "Supering", "Skirting", "shared", "modelled", "counting"]


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_of_every_kind_are_unique(project: Project, key: str, kind: str) -> None:
    """Plain, unbound, class-based, with an own ``__call__``, shared, typed: one run, freed in time."""
    task = getattr(project, kind)
    with project.kept_on(key):
        first = task.delay(key)
        project.wait_started(key)
        second = task.delay(key)
    value = first.get(timeout=PATIENCE)

    assert second.id == first.id
    assert value == f"{key} by {kind}"
    assert task.lock_for(key).holder() is None
    assert len(project.bodies(key)) == 1
    if kind != "unbound":
        assert project.bodies(key)[0].token is not None


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_of_every_kind_are_locked_at_start(project: Project, key: str, kind: str) -> None:
    """Also where nothing was claimed: two messages by hand, one body at a time."""
    with project.kept_on(key):
        first = project.app.send_task(f"project.{kind}", (key,))
        project.wait_started(key)
        second = project.app.send_task(f"project.{kind}", (key,))
        second.get(timeout=PATIENCE, propagate=False)
    first.get(timeout=PATIENCE)

    assert second.state == "REVOKED"
    assert len(project.bodies(key)) == 1


@pytest.mark.skipif(
    not hasattr(celery.Task, "_dump_pydantic_arguments"),
    reason="this Celery wants models dumped by the caller",
)
def test_a_model_and_its_dump_are_the_same_call(project: Project, key: str) -> None:
    """``pydantic=True``: the key is made of what the worker will see."""
    from tests.acceptance.kinds import Order

    with project.kept_on(key):
        first = project.ordered.delay(Order(key=key, number=2))
        same = project.ordered.delay({"key": key, "number": 2})
        other = project.ordered.delay(Order(key=key, number=3))

    assert same.id == first.id
    assert not other.is_duplicate
    assert first.get(timeout=PATIENCE) == {"key": key, "number": 2}


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml", "msgpack"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_messages_of_every_form_are_locked(
    project: Project, key: str, serializer: str, compression: str | None
) -> None:
    """Serialisers and compressions, also of a message that was published again to wait."""
    if serializer in {"yaml", "msgpack"}:
        pytest.importorskip(serializer)
    form = {"serializer": serializer, "compression": compression, "kwargs": {"more": "x" * 5000}}
    with project.running(project.while_executing, key, **form) as first:
        second = project.while_executing.apply_async((key,), **form)
        project.wait_received(second.id, 2)

    assert {first.get(timeout=PATIENCE), second.get(timeout=PATIENCE)} == {f"{key} done"}
    assert len(project.bodies(key)) == 2
    assert project.overlaps(key) == []


@pytest.mark.parametrize("ending", ["recurse", "call_itself"])
def test_a_body_may_call_itself(project: Project, key: str, ending: str) -> None:
    """A direct call inside a run is part of that run, and takes no lock."""
    assert project.executed.delay(key, 0.0, ending, 3).get(timeout=PATIENCE) == 3
    assert len(project.bodies(key)) == 4
    assert project.holder(key) is None


def test_maps_and_chunks_are_not_locked(project: Project, key: str) -> None:
    """``map``, ``starmap`` and ``chunks`` call bodies directly, which is said in the docs."""
    task = project.executed
    with project.running(task, key):
        assert task.map([key]).apply_async().get(timeout=PATIENCE) == [f"{key} done"]
        assert task.starmap([(key,), (key, 0.0)]).apply_async().get(timeout=PATIENCE) == [f"{key} done"] * 2
        assert task.chunks([(key,)] * 2, 1).apply_async().get(timeout=PATIENCE) == [[f"{key} done"]] * 2

    assert {body.token is None for body in project.bodies(key)[1:]} == {True}


def test_a_direct_call_disturbs_no_queued_task(project: Project, key: str) -> None:
    """``task()`` and ``apply()`` run the body here and touch no lock."""
    result = project.executed.apply_async((key,), queue=project.aside)
    message = captured(project)

    assert project.executed(key) == f"{key} done"
    assert project.executed.apply((key,)).get() == f"{key} done"
    holder = project.holder(key)
    assert holder is not None
    assert holder.owner == result.id
    deliver(project, message)
    assert result.get(timeout=PATIENCE) == f"{key} done"
