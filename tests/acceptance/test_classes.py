"""A task with another base class beside ``SingletonTask``, before it or behind it: both keep promises.

What each may override: ``tests/unit/test_task_classes.py``.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.acceptance.conftest import opening
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.terms import PATIENCE
from tests.acceptance.worker import Worker

pytest.importorskip("django")

from django.db import transaction

from tests.acceptance.classes import ORDERS, declare, tenant

pytestmark = pytest.mark.xdist_group("classes")


@pytest.fixture(scope="module")
def classes(open_on: Callable[..., Project]) -> Iterator[Project]:
    """The project with these tasks."""
    with opening(open_on, []) as make:
        project = make()
        declare(project.app)
        project.workers.append(Worker(project.plan, "prefork", 2, (), app="tests.acceptance.classes"))
        project.workers[-1].wait_ready()
        yield project


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_published_at_commit_is_unique_and_what_another_base_makes_it(
    classes: Project, key: str, order: str
) -> None:
    """A rollback leaves nothing; what commits runs, once for as long as it is queued or runs, then again.

    The other base has its say in the caller, in the worker's main process, and around the one body there is.
    """
    task: Any = getattr(classes, order)
    with suppress(ZeroDivisionError), transaction.atomic():
        task.delay_on_commit(key)
        raise ZeroDivisionError
    assert task.lock_for(key).holder() is None
    reset = tenant.set("acme")
    try:
        with classes.kept_on(key):
            with transaction.atomic():
                for _ in range(2):
                    task.delay_on_commit(key)
                assert task.lock_for(key).holder() is None
            first = classes.wait_started(key).task_id
            again = task.delay(key)
        assert (again.is_duplicate, again.id) == (True, first)
        assert (again.get(timeout=PATIENCE), task.lock_for(key).holder()) == (f"{key} done", None)
        assert task.delay(key).get(timeout=PATIENCE) == f"{key} done"
    finally:
        tenant.reset(reset)
    wait_until(lambda: classes.undelivered() == 0, PATIENCE, "nothing is queued")

    assert [body.token is not None for body in classes.bodies(key)] == [True, True]
    assert classes.notes(f"body {key}") == [["acme", True]] * 2
    assert classes.notes(f"received {first}") == ["acme"]
    assert task.apply((key,)).get() == f"{key} done"
