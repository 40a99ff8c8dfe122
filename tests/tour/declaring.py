"""Declaring a task.

Options are checked when Celery binds the task to its app, which is when the app is first used; again whenever
the task is published, and when a worker starts. Whatever is wrong with a task is told at once.
"""

import threading
from typing import Any

from celery.worker.request import Request

from tests.tour.guide import Guide
from tests.tour.stop import stop
from tests.unit.shop import Shop

__all__: list[str] = []


def sync(account_id: int, amount: int = 0) -> int:
    """What every task here does."""
    return account_id + amount


async def later(arguments: Any) -> str:
    """No lock_key can wait for this."""
    return str(arguments)


def _declare(guide: Guide, shop: Shop, number: int, **options: Any) -> None:
    try:
        shop.unique(sync, name=f"shop.sync{number or ''}", **options)
    except ValueError as error:
        guide.say(error)


class OwnRequest(Request):  # type: ignore[misc]  # Celery ships no types
    """Somebody's own, without the lock's."""


@stop("An option that does not exist")
def unknown_option(guide: Guide) -> None:
    """What begins like an option is taken for one, and what is a slip away; other attributes are yours."""
    guide.shop().unique(sync, lock_tll=5, onconflict="skip", lock_timeout=3)


@stop("A setting on a task")
def setting_on_a_task(guide: Guide) -> None:
    """Settings belong on the app, or have another name on a task."""
    guide.shop().unique(
        sync, redislock_ttl=60, redislock_prefix="mine", lock_url="redis://h/0", redislock_tlt=1
    )


@stop("Values out of range, or of the wrong kind")
def values_out_of_range(guide: Guide) -> None:
    """Times are seconds, or a `timedelta`."""
    guide.shop().unique(
        sync, lock_ttl=-1, lock_queue_ttl="60", lock_period=3e9, on_lock_error="ignore", on_lock_lost="stop"
    )


@stop("A scope that does not exist")
def unknown_scope(guide: Guide) -> None:
    """The scopes are those of [scopes-and-strategies.md](scopes-and-strategies.md)."""
    guide.shop().unique(sync, lock="until_executd")


@stop("An attribute `lock` that is no scope")
def lock_of_ones_own(guide: Guide) -> None:
    """An attribute `lock` of your own, perhaps a `threading.Lock`, is in the way: give it another name."""
    guide.shop().unique(sync, lock=threading.Lock())


@stop("A strategy that does not exist")
def unknown_strategy(guide: Guide) -> None:
    """The nearest name is offered, or all of them."""
    shop = guide.shop()
    for number, strategy in enumerate(("skipp", "drop")):
        _declare(guide, shop, number, on_conflict=strategy)


@stop("A strategy of the wrong kind")
def strategy_of_a_wrong_kind(guide: Guide) -> None:
    """One strategy is a text or a callable; a mapping names one for each side."""
    shop = guide.shop()
    for number, strategy in enumerate((1, {"publisher": "skip"})):
        _declare(guide, shop, number, on_conflict=strategy)


@stop("A strategy for a side that the scope does not have")
def strategy_for_no_side(guide: Guide) -> None:
    """`while_executing` takes no lock when the task is published, so nothing can be refused there."""
    guide.shop().unique(sync, lock="while_executing", on_conflict={"client": "skip"})


@stop("Options for a run's lock in a scope that takes none")
def options_without_effect(guide: Guide) -> None:
    """`until_executing` and `until_expired` hold nothing while the task runs, so nothing is lost there."""
    guide.shop().unique(sync, lock="until_executing", on_lock_lost="terminate", lock_max_hold=600)


@stop("A window without its length")
def window_without_length(guide: Guide) -> None:
    """For a scheduled task choose 0.8 of its interval."""
    guide.shop().unique(sync, lock="until_expired")


@stop("A longest hold that is no longer than the lease")
def hold_shorter_than_lease(guide: Guide) -> None:
    """What bounds a run is `lock_max_hold`; `lock_ttl` is how long a lock outlives a dead holder."""
    guide.shop().unique(sync, lock_ttl=30, lock_max_hold=20)


@stop("Scopes and strategies that are not there yet")
def planned(guide: Guide) -> None:
    """These names are kept for later versions."""
    shop = guide.shop()
    declared: list[dict[str, Any]] = [{"lock": "until_and_while_executing"}]
    declared += [{"on_conflict": name} for name in ("wait", "replace", "cancel", "coalesce")]
    for number, options in enumerate(declared):
        _declare(guide, shop, number, **options)


@stop("Options that are not there yet")
def planned_options(guide: Guide) -> None:
    """Nor are these."""
    guide.shop().unique(
        sync,
        lock_limit=3,
        lock_order="publish",
        lock_max_waiting=100,
        lock_wait_queue="urgent",
        lock_debounce=5,
        lock_debounce_max=60,
    )


@stop("A `Request` class without the lock's")
def foreign_request(guide: Guide) -> None:
    """The worker's main process acts for a killed pool child through this class."""
    guide.shop().unique(sync, Request=f"{__name__}:OwnRequest")


@stop("A `lock_key` that names no parameter")
def key_without_a_parameter(guide: Guide) -> None:
    """In a tuple and in a template stand the names of the task's parameters."""
    shop = guide.shop()
    for number, key in enumerate(("account:{acount_id}", ("customer",))):
        _declare(guide, shop, number, lock_key=key)


@stop("A parameter's name as a text")
def parameters_name_as_a_text(guide: Guide) -> None:
    """By a missing pair of braces there would be one lock for all accounts."""
    guide.shop().unique(sync, lock_key="account_id")


@stop("A template that cannot be read")
def unreadable_template(guide: Guide) -> None:
    """Fields are those of `str.format`, without conversions and formats: a key says what a value is."""
    shop = guide.shop()
    keys = ("{account_id}{amount}", "{account_id:>8}", "account:{account-id}")
    for number, key in enumerate(keys):
        _declare(guide, shop, number, lock_key=key)


@stop("A `lock_key` of another kind")
def key_of_another_kind(guide: Guide) -> None:
    """The forms are those of [keys.md](keys.md)."""
    shop = guide.shop()
    for number, key in enumerate((42, "", (), (7,), later)):
        _declare(guide, shop, number, lock_key=key)


@stop("Wrong settings")
def wrong_settings(guide: Guide) -> None:
    """Told with each task that is bound, as none of them can be used."""
    settings = {
        "redislock_prefix": "{mine}",
        "redislock_url": ["redis://one/0", "redis://two/0"],
        "redislock_enabled": "yes",
        "redislock_min_replicas": -1,
        "redislock_ttl": 0,
    }
    guide.shop(**settings).unique(sync)


@stop("A lock server that is no URL")
def no_url(guide: Guide) -> None:
    """Its value is never shown: it may hold a password."""
    for value in ("localhost:6379", "", 6379):
        try:
            guide.shop(redislock_url=value).unique(sync)
        except ValueError as error:
            guide.say(error)


@stop("An unreadable switch")
def unreadable_switch(guide: Guide) -> None:
    """The environment variable `REDISLOCK_ENABLED` switches locking off, or on against the setting."""
    guide.patch.setenv("REDISLOCK_ENABLED", "perhaps")
    guide.shop().unique(sync)
