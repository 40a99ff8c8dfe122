"""Holders that stay for as long as a test wants, and the duplicates in workflows that wait for them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.acceptance.harness import PATIENCE, Shop, wait_until

__all__ = ["DEADLINE", "held", "wait_until_waiting"]

#: Seconds within which a workflow must be over, however slow the machine is.
DEADLINE = 2 * PATIENCE


@contextmanager
def held(shop: Shop, key: str, task: str = "sell", *arguments: Any) -> Iterator[str]:
    """Let a run of a task hold the key until the block ends; yields its task id."""
    with shop.running(getattr(shop, task), key, *arguments) as holder:
        yield holder.id


def wait_until_waiting(shop: Shop, holder: str, number: int) -> None:
    """Return when this many duplicates, and not one of them so many times, have been put off for a holder."""

    def waiting() -> bool:
        found = (re.search(r"\[(\S+)\] is part of a workflow", line) for line in shop.lines(f"for {holder}"))
        return len({match[1] for match in found if match}) >= number

    wait_until(waiting, DEADLINE, f"{number} duplicates wait for {holder}")
