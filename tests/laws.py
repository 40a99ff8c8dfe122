"""A pytest plugin that tells of the collected tests which law each proves, on which broker and in which pool.

``pytest --collect-only -qq -p tests.laws`` prints one line of JSON: lists of law, broker and pool.
"""

import json
import re
from typing import Any

import pytest

__all__ = ["BROKERS", "LAWS", "POOLS", "laws_of"]

LAWS = range(1, 11)
BROKERS = ("redis", "classic", "quorum")
POOLS = ("prefork", "threads", "gevent", "eventlet", "solo")

#: Fixtures whose workers are of the prefork pool, where no parameter names another.
_PREFORK = {"prefork_shop", "faulty_shop", "site_on", "new_site"}

_NAMED = re.compile(r"Laws? (\d+(?:(?:, | and )\d+)*)")


def laws_of(docstring: str | None) -> list[int]:
    """Return the laws a test names at the beginning of its docstring."""
    named = _NAMED.match(docstring or "")
    return [int(number) for number in re.findall(r"\d+", named[1])] if named else []


def pytest_collection_finish(session: pytest.Session) -> None:
    """Print what there is."""
    rows = {(law, *_place_of(item)) for item in session.items for law in laws_of(_docstring(item))}
    print(json.dumps(sorted(rows)))  # noqa: T201  read by who asks for the list


def _docstring(item: pytest.Item) -> str | None:
    return getattr(item, "function").__doc__  # noqa: B009  an Item of a function, as all are here


def _place_of(item: Any) -> tuple[str, str]:
    values = list(getattr(getattr(item, "callspec", None), "params", {}).values())
    broker = next((value for value in values if value in BROKERS), "redis")
    pool = next((value for value in values if value in POOLS), "")
    if not pool and _PREFORK.intersection(item.fixturenames):
        pool = "prefork"
    return broker, pool
