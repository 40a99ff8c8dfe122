"""What Celery's worker calls in another way than a test does, and every way to send a task."""

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.terms import PATIENCE


@pytest.mark.parametrize("kind", ["supering", "skirting"])
def test_a_worker_runs_a_task_with_a_call_of_its_own_once(project: Project, key: str, kind: str) -> None:
    """Whether it goes on to Celery's or not: one run, freed in time."""
    task = getattr(project, kind)
    with project.kept_on(key):
        first = task.delay(key)
        project.wait_started(key)
        second = task.delay(key)
    value = first.get(timeout=PATIENCE)
    assert second.id == first.id
    assert value == f"{key} done"
    assert task.lock_for(key).holder() is None
    assert len(project.bodies(key)) == 1
    assert project.bodies(key)[0].token is not None


@pytest.mark.parametrize(
    ("serializer", "compression"), [("json", "zlib"), ("pickle", None), ("yaml", None), ("msgpack", "zlib")]
)
def test_messages_of_every_form_are_locked(
    project: Project, key: str, serializer: str, compression: str | None
) -> None:
    """Serialisers and compressions, also of a message that was published again to wait."""
    if serializer in {"yaml", "msgpack"}:
        pytest.importorskip(serializer)
    form = {"serializer": serializer, "compression": compression, "kwargs": {"more": "x" * 5000}}
    with project.running(project.while_executing, key, **form) as first:
        second = project.while_executing.apply_async((key,), **form)
        project.wait_waiting(second.id)
    assert {first.get(timeout=PATIENCE), second.get(timeout=PATIENCE)} == {f"{key} done"}
    assert len(project.bodies(key)) == 2
    assert project.overlaps(key) == []


def test_maps_and_chunks_are_not_locked(project: Project, key: str) -> None:
    """``map``, ``starmap`` and ``chunks`` call bodies directly, which is said in the docs."""
    task = project.executed
    with project.running(task, key):
        assert task.map([key]).apply_async().get(timeout=PATIENCE) == [f"{key} done"]
        assert task.starmap([(key,), (key, 0.0)]).apply_async().get(timeout=PATIENCE) == [f"{key} done"] * 2
        assert task.chunks([(key,)] * 2, 1).apply_async().get(timeout=PATIENCE) == [[f"{key} done"]] * 2
    assert {body.token is None for body in project.bodies(key)[1:]} == {True}
