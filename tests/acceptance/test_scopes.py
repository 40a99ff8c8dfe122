"""The scopes: how long a task is unique."""

import pytest

from tests.acceptance.harness import Project, wait_until
from tests.acceptance.messages import captured, deliver
from tests.acceptance.terms import PATIENCE

#: What runs; what is called twice meanwhile; and whose results the two calls get, by the order of the three.
SCOPES = [
    ("executed", "executed", (0, 0)),
    ("until_expired", "until_expired", (0, 0)),
    ("until_executing", "until_executing", (1, 1)),
    ("while_executing", "while_executing", (1, 2)),
    ("until_and_while", "until_and_while", (1, 1)),
    # A resource is one lock for both scopes that serialise.
    ("while_executing", "until_and_while", (1, 1)),
]


@pytest.mark.parametrize(("runs", "called", "whose"), SCOPES)
def test_a_call_beside_a_run_is_a_duplicate_waits_or_runs_as_its_scope_says(
    project: Project, key: str, runs: str, called: str, whose: tuple[int, int]
) -> None:
    """In each scope but ``until_executing``, which locks no run, bodies never overlap."""
    task = getattr(project, called)
    # A run that need not wait for the first one is kept aside, or its claim would be gone.
    is_alongside = called == "until_executing"
    options = {"queue": project.aside} if is_alongside else {}
    with project.running(getattr(project, runs), key) as first:
        results = [first, *(task.apply_async((key,), **options) for _ in range(2))]
        accepted = {result.id for result in results[1:] if not result.is_duplicate}
        if is_alongside:
            deliver(project, captured(project))
            project.wait_ended(key)
        else:
            wait_until(lambda: project.waited() >= accepted, PATIENCE, "each has found the key held")
        if called == "until_and_while":  # who waits keeps its queued place
            results.append(task.delay(key))

    assert [result.id for result in results[1:3]] == [results[place].id for place in whose]
    assert {result.get(timeout=PATIENCE) for result in results} == {f"{key} done"}
    assert {body.task_id for body in project.bodies(key)} == {first.id, *accepted}
    assert len(project.bodies(key)) == 1 + len(accepted)
    assert is_alongside or project.overlaps(key) == []
