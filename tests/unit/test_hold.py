"""A call that meets an operator's hold, without a server: it is published, and waits."""

from typing import Any

import pytest

from celery_redislock import DuplicateTask
from celery_redislock.locks.hold import hold_in_line
from celery_redislock.publishing import promote
from tests.unit.shop import KEY, Shop, body, raising
from tests.unit.test_cli_line import call

TASK = {"lock_key": "account:{account_id}"}


@pytest.fixture
def task(shop: Shop, request: pytest.FixtureRequest) -> Any:
    """A task whose key an operator holds."""
    task = shop.unique(body, **TASK, **getattr(request, "param", {}))
    task.lock_for(7).hold(reason="the bank is down", by="ann")
    return task


@pytest.mark.parametrize("task", [{"on_conflict": raising(AssertionError("asked"))}], indirect=True)
def test_no_callable_is_asked(shop: Shop, task: Any) -> None:
    """It could only drop the call, or let it wait."""
    result = task.delay(7)
    assert not result.is_duplicate
    shop.run()
    assert shop.message().headers["id"] == result.id  # again: this broker lets nobody park


@pytest.mark.parametrize(
    "on_conflict", ["skip", "raise", raising(AssertionError("asked"))], ids=["skip", "raise", "callable"]
)
def test_of_two_locks_the_runs_is_held_and_the_call_that_is_queued_runs_after_it(
    shop: Shop, on_conflict: Any
) -> None:
    """Whatever its task says. Further calls are duplicates of that one, and not of the hold."""
    promote.install(shop.app, shop.store)
    task = shop.unique(
        body, **TASK, lock="until_and_while_executing", on_conflict={"client": "raise", "server": on_conflict}
    )
    handle = task.lock_for(7)
    handle.hold(reason="the bank is down", by="ann")
    result = task.delay(7)
    shop.run()
    shop.app.send_task(task.name, (7,), task_id="sent")  # it has no claim, so that its task decides
    shop.run()
    assert [waiter.owner for waiter in handle.waiting()] == [result.id, "sent"]
    assert [each.owner for each in handle.holders()] == ["operator ann"]
    with pytest.raises(DuplicateTask) as caught:
        task.delay(7)
    assert caught.value.task_id == result.id
    handle.release(reason="it is up")
    assert [shop.run(), shop.run()] == [7, 7]
    assert shop.messages() == []


def test_a_short_line_is_read_once_for_a_hold(shop: Shop, task: Any, monkeypatch: Any) -> None:
    """Also where none waits there: a release of a run costs no more."""
    reads: list[Any] = []
    waiting = shop.store.waiting
    monkeypatch.setattr(shop.store, "waiting", lambda *a, **k: reads.append(k) or waiting(*a, **k))
    assert hold_in_line(shop.store, task.lock_for(7).key) is None
    assert reads == [{"last": 99}]


@pytest.mark.parametrize("task", [{}, {"lock": "while_executing", "on_conflict": "skip"}], indirect=True)
def test_in_eager_mode_it_raises_as_nothing_could_run_it_later(shop: Shop, task: Any) -> None:
    """It is not skipped: somebody learns of it."""
    shop.app.conf.update(task_always_eager=True, redislock_eager=True)
    with pytest.raises(DuplicateTask, match="operator ann"):
        task.delay(7).get(disable_sync_subtasks=False)


@pytest.mark.parametrize("task", [{"on_conflict": "raise"}, {"lock_limit": 3}], indirect=True)
def test_explain_says_that_a_call_would_wait(shop: Shop, task: Any) -> None:
    """Whatever the task asks for, and who would be to blame."""
    told = call(shop, "explain", task.name, "7").stdout
    assert "a call now would wait in line, because operator ann holds the key (hold)" in told
    assert "the bank is down" in told


@pytest.mark.usefixtures("task")
def test_a_hold_that_waits_is_ended_by_release_and_not_dropped(shop: Shop) -> None:
    """``--drop`` is for messages, and says what to do."""
    shop.store.force_release(KEY)
    shop.store.acquire(KEY, "a/1", 300.0, facts='{"state":"running","task":"shop.sync"}')
    shop.app.tasks["shop.sync"].lock_for(7).hold(reason="x", by="ann")
    done = call(shop, "waiting", KEY, "--drop", "operator ann", "--reason", "x", "--yes")
    assert done.exit_code == 2
    assert "end it with release" in done.output
    told = call(shop, "explain", "shop.sync", "7").stdout
    assert f"1 wait for {KEY}" in told


def test_words_that_name_no_task_take_no_arguments(shop: Shop) -> None:
    """As for the other commands."""
    done = call(shop, "hold", "nothing", "7", "--reason", "x")
    assert done.exit_code == 2
    assert "is not a task known here" in done.output


def test_a_time_of_more_than_a_day_is_refused_with_what_to_do(shop: Shop) -> None:
    """A hold is forgotten more easily than it is made again."""
    shop.unique(body, **TASK)
    done = call(shop, "hold", KEY, "--for", "2d", "--reason", "x")
    assert done.exit_code == 2
    assert "at most a day" in done.output
    assert shop.holder(KEY) is None
