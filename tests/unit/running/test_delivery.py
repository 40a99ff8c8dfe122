"""What the child knows of a delivery, and whether another one may come."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redislock.running.delivery import Delivery, can_come_again, mark_ttl, visibility_timeout


def task_of(*, acks_late: bool = False, **transport_options: Any) -> Any:
    conf = SimpleNamespace(broker_transport_options=transport_options)
    return SimpleNamespace(acks_late=acks_late, app=SimpleNamespace(conf=conf))


@pytest.mark.parametrize("properties", [None, {}, {"priority": 4}])
def test_a_request_that_no_main_process_saw_brings_nothing(properties: Any) -> None:
    """Requests made by hand, as test helpers do, and eager ones."""
    assert Delivery.of(SimpleNamespace(properties=properties)) == Delivery(None, None, None)


@pytest.mark.parametrize(
    ("acks_late", "eta", "waited", "expected"),
    [
        (False, None, None, False),
        (False, None, 49, False),
        (False, None, 51, True),
        (True, None, None, True),
        (False, "2030-01-01T00:00:00+00:00", 0, True),
    ],
)
def test_a_message_may_come_again_if_it_is_acknowledged_late_or_was_kept_for_long(
    acks_late: bool,
    eta: str | None,
    waited: float | None,
    expected: bool,
) -> None:
    """Law 8: also for its ETA; "long" is half of the visibility timeout."""
    task = task_of(acks_late=acks_late, visibility_timeout=100)
    received_at = None if waited is None else time.time() - waited

    assert can_come_again(task, eta, received_at) is expected


@pytest.mark.parametrize(("options", "expected"), [({}, 3600.0), ({"visibility_timeout": 500}, 500.0)])
def test_a_done_mark_outlives_the_visibility_timeout_by_an_hour(
    options: dict[str, Any], expected: float
) -> None:
    """Law 8: for as long as a copy may come."""
    app = task_of(**options).app

    assert (visibility_timeout(app), mark_ttl(app)) == (expected, expected + 3600)
