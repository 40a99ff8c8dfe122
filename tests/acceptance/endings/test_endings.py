"""Every ending in every pool it exists in, as its row says. ``docs/killed.md`` names them."""

import importlib.util
from collections.abc import Callable, Iterator

import celery
import pytest

from tests.acceptance.endings.broker import BROKER
from tests.acceptance.endings.ending import Case, Ending, Stage
from tests.acceptance.endings.in_body import BODY, GOES_ON
from tests.acceptance.endings.kills import KILLS
from tests.acceptance.endings.limits import LIMITS
from tests.acceptance.endings.messages import MESSAGES
from tests.acceptance.endings.revokes import EXPIRED, REVOKED
from tests.acceptance.endings.scene import Scene, play
from tests.acceptance.endings.shutdowns import SHUTDOWNS

ROWS = (*BODY, *GOES_ON, *LIMITS, *KILLS, *REVOKED, *EXPIRED, *MESSAGES, *SHUTDOWNS, *BROKER)


def _played() -> Iterator[object]:
    for ending in ROWS:
        for case in ending.cases:
            for pool in case.pools:
                marks = [pytest.mark.slow] if _is_slow(ending, case, pool) else []
                if ending.since > celery.VERSION[:2]:
                    marks.append(pytest.mark.skip(reason=f"needs Celery {ending.since}"))
                if pool == "gevent" and importlib.util.find_spec(pool) is None:
                    marks.append(pytest.mark.skip(reason="gevent is not installed"))
                yield pytest.param(ending, case, pool, marks=marks, id=f"{ending.name}-{pool}")


def _is_slow(ending: Ending, case: Case, pool: str) -> bool:
    """What is not slow: prefork, but for rows that are marked, and threads where a worker can be shared."""
    stage = case.stage or ending.stage
    has_own_worker = not stage.name and stage.workers > 0
    return case.slow or pool in {"gevent", "solo"} or (has_own_worker and pool != "prefork")


@pytest.mark.timing
@pytest.mark.law(2, 4, 5, 7, 8)
@pytest.mark.parametrize(("ending", "case", "pool"), list(_played()))
def test_the_lock_is_free_in_time_and_the_key_can_be_used_again(
    open_scene: Callable[[str, Stage], Scene], ending: Ending, case: Case, pool: str
) -> None:
    """However a task ends: its lock is released in time, kept for what goes on, and bodies never overlap."""
    play(ending, case, open_scene(pool, case.stage or ending.stage))
