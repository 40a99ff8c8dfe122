"""The crash ladder: every ending in every pool, as its row says; one test per group of rows."""

import importlib.util
from collections.abc import Callable, Iterator

import celery
import pytest

from tests.acceptance.ladder.broker import BROKER
from tests.acceptance.ladder.ending import Case, Ending, Group, Stage
from tests.acceptance.ladder.in_body import AGAIN, BODY
from tests.acceptance.ladder.kills import KILLS
from tests.acceptance.ladder.limits import LIMITS
from tests.acceptance.ladder.messages import MESSAGES
from tests.acceptance.ladder.revokes import EXPIRED, REVOKED
from tests.acceptance.ladder.rows import GROUPS
from tests.acceptance.ladder.scene import Scene, play
from tests.acceptance.ladder.shutdowns import SHUTDOWNS
from tests.acceptance.ladder.without import WITHOUT

Open = Callable[[str, Stage], Scene]


def _rows(group: Group) -> Iterator[object]:
    for ending in group.endings:
        for case in ending.cases:
            for pool in case.pools:
                marks = [pytest.mark.slow] if _is_slow(ending, case, pool) else []
                if ending.since > celery.VERSION[:2]:
                    marks.append(pytest.mark.skip(reason=f"needs Celery {ending.since}"))
                if pool in {"gevent", "eventlet"} and importlib.util.find_spec(pool) is None:
                    marks.append(pytest.mark.skip(reason=f"{pool} is not installed"))
                yield pytest.param(
                    ending, case, pool, marks=marks, id=f"{ending.name}-{pool}".replace("`", "")
                )


def _is_slow(ending: Ending, case: Case, pool: str) -> bool:
    """What is not slow: prefork, but for rows that are marked, and threads where a worker can be shared."""
    stage = case.stage or ending.stage
    has_own_worker = not stage.name and stage.workers > 0
    return case.slow or pool in {"gevent", "eventlet", "solo"} or (has_own_worker and pool != "prefork")


def _of(group: Group) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("ending", "case", "pool"), list(_rows(group)))


def _prove(open_scene: Open, ending: Ending, case: Case, pool: str) -> None:
    scene = open_scene(pool, case.stage or ending.stage)
    play(ending, case, scene)


def test_every_ending_is_played() -> None:
    """No group of rows is forgotten here."""
    played = (BODY, AGAIN, LIMITS, KILLS, REVOKED, EXPIRED, MESSAGES, SHUTDOWNS, BROKER, WITHOUT)

    assert played == GROUPS


@_of(BODY)
def test_the_lock_is_free_before_the_end_of_a_body_is_seen(
    open_scene: Open, ending: Ending, case: Case, pool: str
) -> None:
    """Laws 4 and 5: whatever ends a body, its run gives the lock back before anybody sees the result."""
    _prove(open_scene, ending, case, pool)


@_of(AGAIN)
def test_a_task_that_goes_on_keeps_its_lock(open_scene: Open, ending: Ending, case: Case, pool: str) -> None:
    """Law 7: from its first body to its last the key is never free, and no two bodies overlap."""
    _prove(open_scene, ending, case, pool)


@_of(LIMITS)
def test_a_time_limit_frees_the_lock_when_the_body_is_over(
    open_scene: Open, ending: Ending, case: Case, pool: str
) -> None:
    """Law 4: a hard limit is announced before the child is dead, and frees after."""
    _prove(open_scene, ending, case, pool)


@_of(KILLS)
def test_a_killed_process_frees_its_lock(open_scene: Open, ending: Ending, case: Case, pool: str) -> None:
    """Law 4: child, main process, expiry; and what is delivered again finds its lock."""
    _prove(open_scene, ending, case, pool)


@_of(REVOKED)
def test_a_revoked_task_frees_its_lock(open_scene: Open, ending: Ending, case: Case, pool: str) -> None:
    """Law 4: in its turn where it has not begun, else once its body is dead."""
    _prove(open_scene, ending, case, pool)


@_of(EXPIRED)
def test_an_expired_task_frees_its_lock(open_scene: Open, ending: Ending, case: Case, pool: str) -> None:
    """Law 4: what is expired never runs."""
    _prove(open_scene, ending, case, pool)


@_of(MESSAGES)
def test_a_message_that_never_runs_holds_no_lock_for_long(
    open_scene: Open, ending: Ending, case: Case, pool: str
) -> None:
    """Law 2: a claim whose message is gone ends."""
    _prove(open_scene, ending, case, pool)


@_of(SHUTDOWNS)
def test_a_worker_that_ends_leaves_no_lock_behind(
    open_scene: Open, ending: Ending, case: Case, pool: str
) -> None:
    """Laws 4 and 7: what goes back to its queue keeps its lock, everything else frees it."""
    _prove(open_scene, ending, case, pool)


@_of(BROKER)
def test_a_message_delivered_twice_runs_once(open_scene: Open, ending: Ending, case: Case, pool: str) -> None:
    """Law 8: redelivery is not a duplicate."""
    _prove(open_scene, ending, case, pool)


@_of(WITHOUT)
def test_what_has_no_message_takes_no_lock(open_scene: Open, ending: Ending, case: Case, pool: str) -> None:
    """Not locked, which is said in the docs."""
    _prove(open_scene, ending, case, pool)
