"""Law 8 on every broker: a message delivered again while its run lives, and after its worker was killed."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.harness import PATIENCE, Shop, wait_until
from tests.acceptance.sites import REDIS_FIRST, Site, wait_copy, wait_late_copy
from tests.facts import lives
from tests.tiers import slow

SiteMaker = Callable[..., Site]

#: When the worker is killed, and how many bodies return. Only a death between a body's return and the
#: record of its outcome is like one that came before.
RETURNS = {"started": 1, "awaited": 1, "returned": 2, "released": 2, "stored": 1}


def killed_at(site: Site, task: str, key: str, moment: str) -> Any:
    """Publish a job, kill its worker at that moment, and return the job's result."""
    shop = site.man()
    gate = key if moment in {"started", "awaited"} else f"{key}@{moment}"
    with shop.kept_on(gate):
        result = getattr(shop, task).delay(key)
        body = shop.wait_started(key)
        if moment == "awaited":
            site.deliver_again(body)
            wait_copy(shop, result.id)
            # Put off, it is in a worker's hands again. kombu's Redis transport takes a message out of its
            # queue before it notes it as unacknowledged: one killed in between loses it (5.7.0, _brpop_read).
            shop.wait_lines("received", result.id, number=3)
        elif gate != key:
            wait_until(lambda: shop.notes(gate), PATIENCE, f"the run is at {moment!r}")
        site.kill(body)
    return result


@pytest.mark.parametrize("moment", RETURNS)
@pytest.mark.parametrize("broker", REDIS_FIRST)
def test_a_job_whose_worker_is_killed_succeeds(
    site_on: SiteMaker, key: str, broker: str, moment: str
) -> None:
    """Law 8: its copy runs, unless its outcome was stored; never two bodies at once."""
    site = site_on(broker)
    result = killed_at(site, "sell_late", key, moment)

    assert result.get(timeout=PATIENCE) == f"{key} done"
    if moment == "stored":
        wait_late_copy(site.shop, result.id)
    site.shop.wait_free(key, PATIENCE)
    assert result.state == "SUCCESS"
    assert_ran(site.shop, key, moment, returns=RETURNS[moment])


def assert_ran(shop: Shop, key: str, moment: str, *, returns: int) -> None:
    killed = int(moment in {"started", "awaited"})
    bodies = shop.bodies(key)

    assert [body.ended_by for body in bodies] == [None] * killed + [""] * returns
    assert shop.overlaps(key, killed=killed) == []
    assert len({body.token for body in bodies}) == len(bodies)


#: The same where no result tells: a done mark is written with the release, or (``rpc``) after the result.
RETURNS_BY_MARK = {
    ("ignored", "returned"): 2,
    ("ignored", "released"): 1,
    ("ignored", "stored"): 1,
    ("rpc", "started"): 1,
    ("rpc", "returned"): 2,
    ("rpc", "released"): 2,
    ("rpc", "stored"): 2,
    ("rpc", "settled"): 1,
}


@pytest.mark.parametrize(
    ("outcome", "moment"),
    [each if each[1] in {"started", "returned"} else slow(*each) for each in RETURNS_BY_MARK],
)
@pytest.mark.parametrize("broker", REDIS_FIRST)
def test_a_job_whose_outcome_nobody_can_read_survives_its_worker(
    site_on: SiteMaker, key: str, broker: str, outcome: str, moment: str
) -> None:
    """Law 8: a done mark stands for what the result backend does not tell."""
    site = site_on(broker, "rpc://" if outcome == "rpc" else None)
    shop = site.man()
    result = killed_at(site, "sell_late" if outcome == "rpc" else "sell_late_quietly", key, moment)
    returns = RETURNS_BY_MARK[outcome, moment]

    if outcome == "rpc":
        assert result.get(timeout=PATIENCE) == f"{key} done"
    if returns == 1 and moment != "started":
        wait_late_copy(shop, result.id)
    shop.wait_ended(key, returns)
    shop.wait_free(key, PATIENCE)
    assert_ran(shop, key, moment, returns=returns)


@pytest.mark.parametrize("moment", ["started", "returned", "released", "stored"])
@pytest.mark.parametrize("broker", REDIS_FIRST)
def test_a_job_whose_child_is_killed_succeeds(site_on: SiteMaker, key: str, broker: str, moment: str) -> None:
    """Law 8 with ``task_reject_on_worker_lost``: the main process gives the message back."""
    site = site_on(broker)
    shop = site.man()
    gate = key if moment == "started" else f"{key}@{moment}"
    with shop.kept_on(gate):
        result = shop.sell_late_again.delay(key)
        body = shop.wait_started(key)
        if gate != key:
            wait_until(lambda: shop.notes(gate), PATIENCE, f"the run is at {moment!r}")
        os.kill(body.pid, signal.SIGKILL)
        wait_until(lambda: not lives(body.pid), PATIENCE, "the child is dead")

    assert result.get(timeout=PATIENCE) == f"{key} done"
    shop.wait_ended(key, RETURNS[moment])
    shop.wait_free(key, PATIENCE)
    assert_ran(shop, key, moment, returns=RETURNS[moment])
