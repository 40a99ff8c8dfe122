"""The app of ``broken_system.py``: a shop some of whose tasks never end, and what its callers publish.

Its processes read these from the environment: ``SHOP_URL``, the server of all, and ``SHOP_REDIS``, which
redis-py reads; ``SHOP_BROKER``, another broker; ``SHOP_HOST``, the machine on which they say they are;
``SHOP_ENTRIES``, the entries of the schedule that this beat knows, all of them without.
"""

import os
import select
import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import redis

_HOST = os.environ.get("SHOP_HOST")
if _HOST:
    # Before the package asks: a lease says on which machine it was taken, and only that one can tell that
    # its process is dead.
    _uname = os.uname()
    os.uname = lambda: os.uname_result((_uname.sysname, _HOST, *_uname[2:]))
    socket.gethostname = lambda: _HOST
if "LD_PRELOAD" in os.environ:
    # The library (0.9.10) moves the time until which Python sleeps, by a clock that is not moved.
    time.sleep = lambda seconds: select.select((), (), (), seconds)[0]  # type: ignore[assignment]

from celery import Celery  # noqa: E402
from celery.schedules import crontab  # noqa: E402
from celery.worker import state  # noqa: E402
from click.testing import CliRunner  # noqa: E402

from celery_redislock import SingletonTask  # noqa: E402
from celery_redislock.cli import redislock  # noqa: E402
from celery_redislock.declaring.server import store_of  # noqa: E402
from celery_redislock.scheduling.state import States  # noqa: E402
from tests.acceptance.broken_names import (  # noqa: E402
    FOREIGN_VALUE,
    HOSTILE,
    HOSTILE_TASK,
    IN_A_ROW,
)
from tests.facts import wait_until  # noqa: E402

#: Seconds of a lease that is far from its end, and late, after ``AGO`` seconds without a renewal.
LONG = 3600.0
#: Seconds that a fact may take.
PATIENCE = 30.0

app = Celery("shop", broker=os.environ.get("SHOP_BROKER", os.environ["SHOP_URL"]))
app.conf.update(
    result_backend=os.environ["SHOP_URL"],
    redislock_url=os.environ["SHOP_URL"],
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    task_default_queue="orders",
)

_SCHEDULE: dict[str, dict[str, Any]] = {
    "invoices": {"task": "shop.invoices", "schedule": 5.0},
    "newsletter": {"task": "shop.newsletter", "schedule": crontab(minute="0", hour="6")},
    "sync-stock": {"task": "shop.sync_stock", "schedule": 2.0},
    "vacuum": {"task": "shop.vacuum", "schedule": 60.0},
}
_known = os.environ.get("SHOP_ENTRIES")
app.conf.beat_schedule = {name: _SCHEDULE[name] for name in (_known.split() if _known else _SCHEDULE)}


def _go_on() -> None:
    """Keep a body on until its worker is killed; or told to end, as one is whose starter was killed."""
    while state.should_stop is None:
        time.sleep(0.5)


WAITS: dict[str, Any] = {"base": SingletonTask, "on_conflict": "wait"}


@app.task(name="shop.charge", lock_key="account:{account}", lock_describe="{amount} EUR", **WAITS)
def charge(account: int, amount: int) -> None:
    """Hold an account."""
    _go_on()


@app.task(name="shop.pack", lock_key="warehouse:{city}", lock_describe="order {order}", **WAITS)
def pack(city: str, order: int) -> None:
    """Hold a warehouse."""
    _go_on()


@app.task(
    name="shop.export",
    lock_key="tenant:{tenant}",
    lock_describe="{tenant}, page {page}",
    lock_limit=3,
    **WAITS,
)
def export(tenant: str, page: int) -> None:
    """Hold one of a tenant's three permits."""
    _go_on()


@app.task(name="shop.resize", lock_key="images", lock_describe="{image}", lock_max_waiting=2, **WAITS)
def resize(image: str) -> None:
    """Hold the images, for which two may wait."""
    _go_on()


@app.task(name="shop.backup", lock_key="backup", **WAITS)
def backup() -> None:
    """Hold what another program holds."""
    _go_on()


@app.task(name="shop.mail", lock_key="mail:{provider}", lock_describe="to {to}", lock_rate="3/h", **WAITS)
def mail(provider: str, to: str) -> None:
    """Start three times an hour."""


@app.task(name="shop.reindex", base=SingletonTask, lock_key="index:{shelf}", lock_debounce=LONG)
def reindex(shelf: str, change: int) -> None:
    """Start when no change has come for an hour."""


@app.task(
    name="shop.report", base=SingletonTask, lock_key="report:{month}", lock_describe="report of {month}"
)
def report(month: str) -> None:
    """Be queued, and skipped."""


@app.task(name="shop.rebuild", base=SingletonTask, lock_key="shelf:{shelf}", lock_describe="shelf {shelf}")
def rebuild(shelf: str) -> None:
    """Hold a shelf."""
    _go_on()


@app.task(
    name="shop.confirm",
    base=SingletonTask,
    lock="until_expired",
    lock_period=3 * 86400,
    lock_key="confirm:{order}",
)
def confirm(order: int) -> None:
    """Leave a period that is longer than its result is kept: ``doctor`` warns of that."""


@app.task(name="shop.sync_stock", base=SingletonTask, lock_key="stock")
def sync_stock() -> None:
    """Hold the stock for longer than its ticks are apart."""
    _go_on()


@app.task(name="shop.invoices", base=SingletonTask)
def invoices() -> None:
    """Be sent by a beat that is gone."""


@app.task(name="shop.newsletter", base=SingletonTask)
def newsletter() -> None:
    """Be paused."""


@app.task(name="shop.vacuum", base=SingletonTask)
def vacuum() -> None:
    """Be sent each minute."""


@app.task(name=HOSTILE_TASK, base=SingletonTask, lock_key="hostile:{text}", lock_describe="{text}")
def hostile(text: str) -> None:
    """Be queued."""


def long_ago() -> None:
    """Publish what a worker was killed with, and what nobody serves; by a clock that is behind."""
    _run(charge, 1, 20, lock_ttl=LONG)
    for amount in (30, 45, 60, 75):
        charge.delay(1, amount)
    for month in ("2026-09", "2026-10", "2026-12"):
        report.apply_async((month,), queue="reports")
    _wait(lambda: any(each.entry == "invoices" and each.ran for each in _states()), "a beat has sent")


def elsewhere() -> None:
    """Publish on another broker what nobody serves there any more."""
    _run(pack, "north", 1, lock_ttl=5.0)
    for order in (2, 3, 4):
        pack.delay("north", order)


def now() -> None:
    """Publish what is on, and what waits; by the machine's clock."""
    client = redis.Redis.from_url(os.environ["SHOP_REDIS"])
    client.set(f"{_store().prefix}:{{backup}}:lock", FOREIGN_VALUE, nx=True, ex=int(LONG))
    client.close()
    backup.delay()
    for shelf in ("tools", "toys"):
        rebuild.delay(shelf)
    for page in range(1, 6):
        export.delay("acme", page)
    _run(resize, "cat.png")
    for image in ("dog.png", "owl.png", "fox.png", "hen.png"):
        resize.delay(image)
    for to in ("ann", "bob", "cat", "dan", "eve", "fay"):
        mail.delay("post", to)
    for change in (1, 2, 3):
        reindex.delay("toys", change)
    for order in (7, 8, 7):
        confirm.delay(order)
    for month in ("2026-10", "2026-11"):
        report.apply_async((month,), queue="reports")
    _act("schedule", "pause", "newsletter", "--reason", "the provider is down")
    _act("hold", "account:9", "--for", "2h", "--reason", "dispute, ticket 12")
    _act("release", "report:2026-12", "--yes", "--reason", "asked for by mistake")
    _wait(_skips_in_a_row, "ticks are skipped in a row")


def be_hostile() -> None:
    """Publish texts that are code elsewhere, from a machine whose name is one of them."""
    for text in HOSTILE:
        hostile.apply_async((text,), queue="reports")


def _run(task: Any, *args: Any, **terms: Any) -> None:
    """Publish a call, and return when it runs."""
    task.apply_async(args, **terms)

    def runs() -> bool:
        holder = task.lock_for(*args).holder()
        return holder is not None and holder.state == "running"

    _wait(runs, f"{task.name} runs")


def _act(*words: str) -> None:
    """Act as an operator: ``celery redislock`` with these words."""
    done = CliRunner().invoke(redislock, words, obj=SimpleNamespace(app=app))
    if done.exit_code:
        raise SystemExit(done.output)


def _store() -> Any:
    return store_of(app)


def _states() -> list[Any]:
    return list(States(_store(), app.main).listed())


def _skips_in_a_row() -> bool:
    return any(each.skip and each.skip.in_a_row >= IN_A_ROW for each in _states())


def _wait(fact: Callable[[], bool], what: str) -> None:
    if not wait_until(fact, PATIENCE):
        raise SystemExit(f"not within {PATIENCE} s: {what}")
