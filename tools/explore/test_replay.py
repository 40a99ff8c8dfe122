"""What is explored in memory is what a server does; ``make replay`` plays all worlds."""

import os
from collections.abc import Iterator

import pytest

from celery_redislock.embedded import EmbeddedServer
from tools.explore.broken import BROKEN_SCRIPTS
from tools.explore.replay import replay, wander
from tools.explore.search import explore
from tools.explore.server import Server
from tools.explore.worlds import WIDE, WORLDS


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with EmbeddedServer(binary=os.environ.get("CELERY_REDISLOCK_TEST_BINARY")) as server:
        yield server.redis_url


def test_a_server_does_what_the_store_in_memory_does(url: str) -> None:
    """In each state of a world of threads that wait for two locks."""
    found = replay(explore(WORLDS["threads, two names"]), Server(url))
    assert found.requests > found.states / 2
    assert found.different == []


@pytest.mark.parametrize("name", WIDE)
def test_a_server_does_what_the_store_in_memory_does_on_random_ways(url: str, name: str) -> None:
    """Laws 1 and 2, with a limit and without, and order in line. The seed is fixed: always the same ways."""
    found = wander(WIDE[name], Server(url), seed="test", ways=5, steps=60)
    assert found.states > 100
    assert found.different == []


def test_a_script_that_is_broken_on_purpose_differs(url: str) -> None:
    """By a story of a few steps."""
    broken = BROKEN_SCRIPTS[0]
    found = replay(explore(WORLDS[broken.world]), Server(url, broken.text, broken.instead), most=1)
    assert [each.what for each in found.different] == ["release"]
