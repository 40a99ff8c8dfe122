"""Threads that wait for a lock, one behind the other."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.facts import wait_until
from tests.stores import StoreCase

#: Seconds after which nothing comes any more.
PATIENCE = 20.0


@contextmanager
def in_line(case: StoreCase, *asks: Callable[[], Any]) -> Iterator[list[Any]]:
    """Let threads ask, each when the one before it is in line; yields their futures."""
    with ThreadPoolExecutor(max(1, len(asks))) as pool:
        done = []
        for place, ask in enumerate(asks, start=1):
            done.append(pool.submit(ask))
            assert wait_until(lambda: case.store.waiting("n")[0] == place, PATIENCE)  # noqa: B023  called at once
        yield done
