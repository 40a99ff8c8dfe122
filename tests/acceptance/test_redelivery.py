"""Law 8: a second copy of a message is no duplicate, and makes no second run."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.harness import PATIENCE, Shop, wait_until
from tests.acceptance.messages import captured, deliver
from tests.facts import lives
from tests.workers import SWEEPING


def published_aside(shop: Shop, task: Any, *args: Any, **options: Any) -> dict[str, Any]:
    """Publish a call where no worker looks, and return its message."""
    task.apply_async(args, queue="aside", **options)
    return captured(shop)


@pytest.mark.parametrize("task", ["sell", "sell_late", "sell_late_quietly"])
@pytest.mark.parametrize("flagged", [True, False])
def test_a_second_copy_waits_and_then_does_nothing(
    any_shop: Shop, key: str, task: str, flagged: bool
) -> None:
    """Law 8: told by the result, or by a done mark where results are ignored."""
    shop = any_shop
    message = published_aside(shop, getattr(shop, task), key)
    task_id = message["headers"]["id"]
    with shop.kept_on(key):
        deliver(shop, message)
        shop.wait_started(key)
        deliver(shop, message, again=flagged)
        shop.wait_lines("runs already", task_id)
    shop.wait_lines("was delivered again after", task_id)

    assert [body.ended_by for body in shop.bodies(key)] == [""]
    assert shop.holder(key) is None


@pytest.mark.parametrize("task", ["sell_late", "sell_late_quietly"])
def test_a_copy_that_comes_after_the_end_does_nothing(prefork_shop: Shop, key: str, task: str) -> None:
    """Law 8: the visibility timeout may pass long after."""
    shop = prefork_shop
    message = published_aside(shop, getattr(shop, task), key)
    task_id = message["headers"]["id"]
    deliver(shop, message)
    shop.wait_ended(key)
    shop.wait_free(key)
    if task == "sell_late":
        shop.app.AsyncResult(task_id).get(timeout=PATIENCE)
    deliver(shop, message, again=True)
    shop.wait_lines("was delivered again after", task_id)

    assert len(shop.bodies(key)) == 1


def test_a_copy_of_a_call_with_links_does_nothing(prefork_shop: Shop, key: str) -> None:
    """Law 8: where links follow, the done mark is written when they are published."""
    shop = prefork_shop
    link = shop.sell.si(f"{key}-link")
    message = published_aside(shop, shop.sell_late_quietly, key, link=link)
    deliver(shop, message)
    shop.wait_ended(f"{key}-link")
    # The link may have ended before the first child comes to write it.
    mark = f"{shop.plan['prefix']}:redislock:{{sale:{key}}}:done:*"
    wait_until(lambda: list(shop.redis.scan_iter(mark, count=1000)), PATIENCE, "the done mark")
    deliver(shop, message, again=True)
    shop.wait_lines("was delivered again after", message["headers"]["id"])

    assert len(shop.bodies(key)) == 1
    assert len(shop.bodies(f"{key}-link")) == 1


def test_a_copy_does_not_skip_the_result_of_the_first(prefork_shop: Shop, key: str) -> None:
    """Law 8: a waiting copy writes no state for an id that is running."""
    shop = prefork_shop
    message = published_aside(shop, shop.sell_late, key)
    result = shop.app.AsyncResult(message["headers"]["id"])
    with shop.kept_on(key):
        deliver(shop, message)
        shop.wait_started(key)
        deliver(shop, message, again=True)
        shop.wait_lines("Task shop.sell_late", result.id, "ignored")
        waiting = result.state

    assert waiting in {"PENDING", "STARTED"}
    assert result.get(timeout=PATIENCE) == f"{key} done"
    shop.wait_lines("was delivered again after", result.id)
    assert result.state == "SUCCESS"


def test_publishing_a_task_id_again_is_a_new_job(prefork_shop: Shop, key: str) -> None:
    """A message's identity is its claim, not its task id."""
    first = prefork_shop.sell.delay(key)
    first.get(timeout=PATIENCE)
    prefork_shop.sell.apply_async((key,), task_id=first.id)
    bodies = prefork_shop.wait_ended(key, 2)

    assert [body.task_id for body in bodies] == [first.id] * 2


@pytest.mark.slow
def test_the_copy_takes_over_when_the_first_run_dies(new_shop: Callable[..., Shop], key: str) -> None:
    """Law 8: the message of a run that was killed with its worker is delivered again, and runs once more."""
    options = {"visibility_timeout": 3, **SWEEPING}
    shop = new_shop(conf={"broker_transport_options": options, "redislock_ttl": 3.0})
    shop.start_workers(2, "prefork")
    with shop.running(shop.sell_late, key) as result:
        (body,) = shop.bodies(key)
        shop.wait_lines("runs already", result.id)
        next(worker for worker in shop.workers if worker.process.pid == body.worker).signal(signal.SIGKILL)
        # Its child notices, and could finish in between.
        wait_until(lambda: not lives(body.pid), PATIENCE, "the child has ended too")

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert [one.ended_by for one in shop.bodies(key)] == [None, ""]
    assert shop.overlaps(key, killed=1) == []
