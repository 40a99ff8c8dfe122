"""The paths a law is tried on: what a task does in one step depends on what shares a server."""

from collections.abc import Mapping, Sequence

import pytest

FUSED, ELSEWHERE, RABBITMQ = "fused", "elsewhere", "rabbitmq"

#: What is where on each path. The laws' files are played on all of them, everything else on the first.
PATHS: Mapping[str, str] = {
    FUSED: "one Redis for all: claim and message are one step, release and result another",
    ELSEWHERE: "the locks are on a server of their own: every step is taken by itself",
    RABBITMQ: "messages are on RabbitMQ (classic queues), locks and results on one Redis",
}


def paths_of(item: pytest.Item) -> Sequence[str]:
    """Return the paths a test is played on: one of a law on all, or on those its marker ``paths`` gives."""
    if not item.path.stem.startswith("test_law_"):
        return ()
    marker = item.get_closest_marker("paths")
    if marker is None:
        return tuple(PATHS)
    if not marker.kwargs.get("why") or not set(marker.args) <= set(PATHS):
        message = f"{item.nodeid}: the marker takes some of {', '.join(PATHS)}, and says why"
        raise pytest.UsageError(message)
    return marker.args
