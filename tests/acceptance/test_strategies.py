"""What happens to a duplicate, on both sides, and how it is told."""

import pytest
from celery.exceptions import TaskRevokedError

from celery_redislock import DuplicateTask
from tests.acceptance.harness import PATIENCE, Shop, wait_until


def test_skip_at_publish_returns_the_result_of_the_holder(any_shop: Shop, key: str) -> None:
    """Client ``skip``: nothing is published."""
    with any_shop.kept_on(key):
        first = any_shop.sell.delay(key)
        second = any_shop.sell.delay(key)

    assert (first.is_duplicate, second.is_duplicate) == (False, True)
    assert second.get(timeout=PATIENCE) == f"{key} done"
    assert len(any_shop.bodies(key)) == 1


def test_raise_at_publish_names_the_holder(any_shop: Shop, key: str) -> None:
    """Client ``raise``: ``DuplicateTask`` with its facts."""
    with any_shop.kept_on(key):
        first = any_shop.sell_loudly.delay(key)
        with pytest.raises(DuplicateTask) as refused:
            any_shop.sell_loudly.delay(key)

    assert refused.value.task_id == first.id
    assert refused.value.expires_in > 0
    first.get(timeout=PATIENCE)


def test_retry_at_publish_runs_after_the_holder(any_shop: Shop, key: str) -> None:
    """Client ``retry``: published without a claim, and put off by the worker."""
    with any_shop.running(any_shop.sell_later, key) as first:
        second = any_shop.sell_later.delay(key)
        any_shop.wait_lines("comes back later", second.id)

    assert second.id != first.id
    assert second.get(timeout=PATIENCE) == f"{key} done"
    assert [body.task_id for body in any_shop.bodies(key)] == [first.id, second.id]
    assert any_shop.overlaps(key) == []


def test_skip_at_start_ends_as_a_revoked_duplicate(any_shop: Shop, key: str) -> None:
    """Server ``skip``: a ready state that says why, instead of a ``get()`` that hangs."""
    with any_shop.running(any_shop.serve, key) as first:
        second = any_shop.serve_or_skip.delay(key)
        with pytest.raises(TaskRevokedError, match=f"duplicate of {first.id}"):
            second.get(timeout=PATIENCE)

    assert second.state == "REVOKED"
    assert len(any_shop.bodies(key)) == 1
    (line,) = any_shop.lines("skipped shop.serve_or_skip", second.id)
    assert "INFO" in line
    assert first.id in line


def test_raise_at_start_fails_in_one_line(any_shop: Shop, key: str) -> None:
    """Server ``raise``: expected, so one INFO line and no traceback."""
    with any_shop.running(any_shop.serve, key) as first:
        second = any_shop.serve_or_fail.delay(key)
        with pytest.raises(DuplicateTask) as refused:
            second.get(timeout=PATIENCE)
    (line,) = any_shop.wait_lines("raised expected", second.id)
    following = any_shop.log.partition(line)[2].lstrip()

    assert refused.value.task_id == first.id
    assert "INFO" in line
    assert not following.startswith("Traceback")


@pytest.mark.parametrize(
    ("mood", "ending"), [("skip", "REVOKED"), ("raise", "FAILURE"), ("retry", "SUCCESS")]
)
def test_a_callable_decides_at_start(any_shop: Shop, key: str, mood: str, ending: str) -> None:
    """A callable gets the conflict and answers with a strategy's name."""
    with any_shop.running(any_shop.serve, key) as first:
        second = any_shop.serve_by_mood.delay(key, 0.0, None, mood)
        conflict = ["server", first.id, second.id, f"sale:{key}"]
        wait_until(lambda: conflict in any_shop.notes(f"conflicts {key}"), PATIENCE, "it is asked")
    second.get(timeout=PATIENCE, propagate=False)

    assert second.state == ending


def test_a_callable_decides_at_publish(any_shop: Shop, key: str) -> None:
    """The same callable, in the publishing process; it is called with the conflict and nothing else."""
    with any_shop.kept_on(key):
        first = any_shop.sell_by_mood.delay(key)
        with pytest.raises(DuplicateTask):
            any_shop.sell_by_mood.delay(key, 0.0, None, "raise")
        skipped = any_shop.sell_by_mood.delay(key, 0.0, None, "skip")
        later = any_shop.sell_by_mood.delay(key, 0.0, None, "retry")

    assert skipped.id == first.id
    assert later.get(timeout=PATIENCE) == f"{key} done"
    assert [note[:2] for note in any_shop.notes(f"conflicts {key}")][:3] == [["client", first.id]] * 3


def test_a_fixed_id_of_a_skipped_publish_is_ready(any_shop: Shop, key: str) -> None:
    """Whoever waits for the id they chose gets an answer."""
    with any_shop.kept_on(key):
        first = any_shop.sell.delay(key)
        any_shop.sell.apply_async((key,), task_id=f"{key}-fixed")
        fixed = any_shop.sell.AsyncResult(f"{key}-fixed")
        with pytest.raises(TaskRevokedError, match=f"duplicate of {first.id}"):
            fixed.get(timeout=PATIENCE)

    assert fixed.state == "REVOKED"
    first.get(timeout=PATIENCE)


def test_a_message_without_a_claim_is_a_duplicate_at_start(any_shop: Shop, key: str) -> None:
    """``send_task`` (and beat, and other languages) take no claim: the worker looks."""
    with any_shop.running(any_shop.sell, key) as first:
        second = any_shop.app.send_task("shop.sell", (key,))
        with pytest.raises(TaskRevokedError, match=f"duplicate of {first.id}"):
            second.get(timeout=PATIENCE)

    assert len(any_shop.bodies(key)) == 1


def test_a_message_without_a_claim_takes_the_lock_when_it_starts(any_shop: Shop, key: str) -> None:
    """And publishers meet it from then on."""
    with any_shop.kept_on(key):
        first = any_shop.app.send_task("shop.sell", (key,))
        any_shop.wait_started(key)
        second = any_shop.sell.delay(key)

    assert second.id == first.id
    assert first.get(timeout=PATIENCE) == f"{key} done"
    assert any_shop.holder(key) is None


def test_a_skipped_run_tells_its_hooks(any_shop: Shop, key: str) -> None:
    """``request.redislock_skipped`` for hooks and ``task_postrun`` receivers."""
    with any_shop.running(any_shop.serve, key):
        skipped = any_shop.serve_or_skip.delay(key)
        wait_until(lambda: any_shop.notes(f"skipped {key}"), PATIENCE, "task_postrun of the skipped run")

    assert any_shop.notes(f"skipped {key}") == [skipped.id]


def test_a_task_that_publishes_itself_is_told_why_nothing_happened(any_shop: Shop, key: str) -> None:
    """A WARNING names ``until_executing``, which allows it."""
    result = any_shop.sell.delay(key, 0.0, "publish_itself")

    assert result.get(timeout=PATIENCE) == [result.id, True]
    assert [line for line in any_shop.lines("published itself") if "WARNING" in line and result.id in line]


def test_a_task_until_executing_may_publish_itself(any_shop: Shop, key: str) -> None:
    """The way the warning names."""
    result = any_shop.queue.delay(key, 0.0, "publish_itself")
    next_id, is_duplicate = result.get(timeout=PATIENCE)

    assert not is_duplicate
    assert any_shop.app.AsyncResult(next_id).get(timeout=PATIENCE) == f"{key} done"
