"""Prices that take a while to look up: no article is looked up twice at the same time."""

import os
import time

from celery import Celery

from celery_redislock import SingletonTask

__all__ = ["Unknown", "app", "find_price", "total"]

LOCAL = "redis://localhost:6379/0"
PRICES = {"tea": 3, "milk": 4}

app = Celery(
    __name__,
    broker=os.environ.get("BROKER_URL", LOCAL),
    backend=os.environ.get("RESULT_URL", LOCAL),
)


class Unknown(Exception):  # noqa: N818  it is what the shop says
    """The shop has no such article."""


@app.task(base=SingletonTask, throws=(Unknown,))
def find_price(article: str) -> int:
    """Look up one price, slowly; at most one look-up per article runs at a time."""
    print(f"looking up {article}", flush=True)
    time.sleep(1.0)
    print(f"looked up {article}", flush=True)
    if article not in PRICES:
        raise Unknown(article)
    return PRICES[article]


@app.task
def total(prices: list[int]) -> int:
    """Add up a basket; an ordinary task."""
    return sum(prices)
