"""Both changes of daylight saving time, passed by real beats on a clock that runs sixty times as fast.

The clock of the lock server is the same one (``faketime.py``). Two beats share a schedule, a third one has it to
itself, as Celery alone: what it sends is what is to be sent.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from celery_redislock.embedded import EmbeddedServer
from tests.acceptance.faketime import FastClock
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.programs import started
from tests.acceptance.terms import PATIENCE
from tests.acceptance.test_beats import PLAIN, UNIQUE, ProjectMaker
from tests.faults import wait_listening

SPEED, ZONE = 60, "Europe/Berlin"
#: Seconds by which both may send a tick apart, on that clock: 5 s of ours.
APART = 300.0

CRONTABS = {
    "each hour": {"minute": 0},
    "each half hour": {"minute": "*/30"},
    "daily, at two": {"minute": 0, "hour": 2},
    "daily, in the hour that is missing or comes twice": {"minute": 30, "hour": 2},
    "daily, at three": {"minute": 0, "hour": 3},
}


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)
