"""Law 8 on every broker: copies that come while the first run lives, and after it."""

import time
from collections.abc import Callable

import pytest

from tests.acceptance.harness import PATIENCE, Shop, wait_until
from tests.acceptance.sites import (
    BROKERS_IN_TURN,
    ON_REDIS,
    RABBITMQ_QUEUES,
    REDIS_FIRST,
    Site,
    copies_of,
    wait_copy,
    wait_late_copy,
)
from tests.workers import SWEEPING

SiteMaker = Callable[..., Site]


@pytest.mark.parametrize("task", ["sell_late", "sell_late_quietly", "serve_late"])
@pytest.mark.parametrize("broker", REDIS_FIRST)
def test_a_message_delivered_again_and_again_runs_once(
    site_on: SiteMaker, key: str, broker: str, task: str
) -> None:
    """Laws 1 and 8: whatever its scope, and whether or not it leaves a result."""
    site = site_on(broker)
    shop = site.man()
    with shop.kept_on(key):
        result = getattr(shop, task).delay(key)
        body = shop.wait_started(key)
        site.deliver_again(body)
        wait_copy(shop, result.id)
        seen = received(shop, result.id)
        site.deliver_all_again()
        wait_until(lambda: received(shop, result.id) > seen, PATIENCE, "it comes again")
    wait_late_copy(shop, result.id)

    assert [body.ended_by for body in shop.bodies(key)] == [""]
    assert shop.holder(key) is None
    if task != "sell_late_quietly":
        assert (result.state, result.get()) == ("SUCCESS", f"{key} done")


@pytest.mark.parametrize("broker", BROKERS_IN_TURN)
def test_a_copy_that_waits_is_in_nobodys_way(new_site: SiteMaker, key: str, broker: str) -> None:
    """Law 8: it holds no pool slot, nor the place of the one message that a worker takes at a time."""
    site = new_site(broker, children=1)
    shop = site.man()
    with shop.kept_on(key):
        result = shop.sell_late.apply_async((key,), lock_retry_delay=60.0)
        body = shop.wait_started(key)
        site.deliver_again(body)
        wait_copy(shop, result.id)
        others = [shop.gossip.delay(f"{key}-{number}") for number in range(6)]
        # The holder's worker, which has lost its connection, may have taken one for its child, which is busy.
        wait_until(lambda: sum(other.ready() for other in others) >= 5, PATIENCE, "the free worker works")
        assert not result.ready()


@pytest.mark.parametrize("broker", BROKERS_IN_TURN)
def test_a_copy_comes_as_its_run_ends_and_does_nothing(site_on: SiteMaker, key: str, broker: str) -> None:
    """Law 8: a run between its release and its record lives, however free its lock is."""
    site = site_on(broker)
    shop = site.man()
    released = f"{key}@released"
    with shop.kept_on(released):
        with shop.kept_on(key):
            result = shop.sell_late.delay(key)
            body = shop.wait_started(key)
            site.deliver_again(body)
            wait_copy(shop, result.id)
        wait_until(lambda: shop.notes(released), PATIENCE, "the lock is free")
        shop.wait_lines("looks again", result.id)
    wait_late_copy(shop, result.id)

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert len(shop.bodies(key)) == 1


@pytest.mark.parametrize("broker", BROKERS_IN_TURN)
def test_a_task_id_published_twice_is_two_jobs(site_on: SiteMaker, key: str, broker: str) -> None:
    """A message's identity is its token: the second waits for the first and then runs, too."""
    shop = site_on(broker).man()
    with shop.kept_on(key):
        first = shop.serve_late.delay(key)
        shop.wait_started(key)
        second = shop.serve_late.apply_async((key,), task_id=first.id)
        wait_copy(shop, first.id)
    bodies = shop.wait_ended(key, 2)

    assert [body.task_id for body in bodies] == [first.id] * 2
    assert shop.overlaps(key) == []
    assert second.get(timeout=PATIENCE) == f"{key} done"


@ON_REDIS
@pytest.mark.parametrize("task", ["sell", "sell_quietly", "sell_late", "sell_late_quietly"])
def test_an_eta_beyond_the_visibility_timeout_makes_one_run(site_on: SiteMaker, key: str, task: str) -> None:
    """Law 8 on Redis: every worker is given the message in turn, and holds it until its ETA."""
    shop = site_on("redis").man()
    result = getattr(shop, task).apply_async((key,), countdown=4.0)
    wait_until(lambda: received(shop, result.id) > 1, PATIENCE, "a second worker has it")
    shop.wait_ended(key)
    wait_until(lambda: not unacknowledged(shop), PATIENCE, "every copy has ended")
    shop.wait_free(key, PATIENCE)  # with early acknowledgement its message had ended before the body

    assert len(shop.bodies(key)) == 1


@pytest.mark.slow
def test_an_eta_message_lost_with_its_connection_runs_once_and_in_time(site_on: SiteMaker, key: str) -> None:
    """Laws 2 and 8 on classic queues: the worker that waits for the ETA loses its connection meanwhile."""
    site = site_on("classic")
    shop = site.man()
    published, countdown = time.monotonic(), 12.0  # time enough to be received and cut on a busy machine
    result = shop.sell_late.apply_async((key,), countdown=countdown)
    wait_until(lambda: received(shop, result.id), PATIENCE, "a worker has it")
    site.deliver_all_again()
    wait_until(lambda: received(shop, result.id) > 1, PATIENCE, "a worker has it again")

    assert result.get(timeout=countdown + PATIENCE) == f"{key} done"
    (body,) = shop.bodies(key)
    assert body.start - published >= countdown - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("broker", BROKERS_IN_TURN)
def test_twenty_seconds_and_a_timeout_of_five(new_site: Callable[..., Site], key: str, broker: str) -> None:
    """Law 8: the length and the timeout people report; on RabbitMQ every connection is cut as often."""
    options = {"broker_transport_options": {"visibility_timeout": 5, **SWEEPING}} if broker == "redis" else {}
    site = new_site(broker, conf={"redislock_ttl": 3.0, "redislock_retry_delay": 2.0, **options})
    shop = site.man()
    with shop.kept_on(key):  # until the last has come
        result = shop.sell_late.delay(key, 20.0)
        shop.wait_started(key)
        for _ in range(3):
            time.sleep(5.0)
            seen = received(shop, result.id)
            site.deliver_all_again()
            wait_until(lambda seen=seen: received(shop, result.id) > seen, PATIENCE, "it comes again")
    wait_late_copy(shop, result.id)

    (body,) = shop.bodies(key)
    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert body.end - body.start >= 20.0
    # Once for each of three new deliveries, and every 2 s and a fifth less, or more on a busy machine.
    assert 3 <= copies_of(shop, result.id) <= (body.end - body.start) / 1.6 + 3 + 2


@pytest.mark.slow
@pytest.mark.parametrize("broker", RABBITMQ_QUEUES)
def test_a_run_that_is_cancelled_with_its_connection_overlaps_no_copy(
    new_site: Callable[..., Site], key: str, broker: str
) -> None:
    """Laws 1 and 8: the copy may be delivered before the first body has really ended."""
    site = new_site(broker, conf={"worker_cancel_long_running_tasks_on_connection_loss": True})
    shop = site.man()
    with shop.kept_on(key):
        result = shop.sell_late.delay(key)
        body = shop.wait_started(key)
        site.deliver_again(body)
        wait_until(lambda: shop.bodies(key)[0].ended_by is not None, PATIENCE, "the first body has ended")
    bodies = shop.wait_ended(key, 2, timeout=PATIENCE)

    assert result.get(timeout=PATIENCE) == f"{key} done"
    assert [body.ended_by for body in bodies] == ["SystemExit", ""]
    assert shop.overlaps(key) == []


def received(shop: Shop, task_id: str) -> int:
    """Return how often workers have received this message."""
    return len(shop.lines("received", task_id))


def unacknowledged(shop: Shop) -> int:
    """Return how many messages are on Redis: in the queue, or with a worker."""
    return shop.queued() + int(shop.redis.hlen(f"{shop.plan['prefix']}:unacked"))
