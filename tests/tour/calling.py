"""Calling it.

What `delay` and `apply_async` raise and log. Where they raise, nothing was published, and no lock is left.
"""

from typing import Any

from celery_redislock import conflict
from celery_redislock.testing import hold
from tests.tour.guide import Guide
from tests.tour.stop import stop

__all__: list[str] = []


def sync(account_id: int, amount: int = 0) -> int:
    """What every task here does."""
    return account_id + amount


@stop("A duplicate is skipped")
def skipped(guide: Guide) -> None:
    """The usual case, and no error: `delay` returns the holder's result, and one line at INFO says why."""
    shop = guide.shop()
    task = shop.unique(sync, lock_key="account:{account_id}")
    with hold(task, 7):
        task.delay(7)


@stop("A duplicate is skipped within its window")
def skipped_within_window(guide: Guide) -> None:
    """Nothing runs, but `lock_period` has not passed since the last one was accepted."""
    shop = guide.shop()
    task = shop.unique(sync, lock_key="account:{account_id}", lock_period=60)
    task.delay(7)
    shop.run()
    task.delay(7)


@stop("A duplicate is refused")
def refused(guide: Guide) -> None:
    """With `on_conflict="raise"`. The error has the holder's task id: `AsyncResult(error.task_id)`."""
    shop = guide.shop()
    task = shop.unique(sync, lock_key="account:{account_id}", on_conflict="raise")
    with hold(task, 7):
        task.delay(7)


@stop("A duplicate is refused within its window")
def refused_within_window(guide: Guide) -> None:
    """With `on_conflict="raise"`; also where the one that was accepted is over."""
    shop = guide.shop()
    task = shop.unique(sync, lock="until_expired", lock_period=60, on_conflict="raise")
    task.delay(7)
    shop.run()
    task.delay(7)


@stop("A task publishes itself")
def published_from_its_own_run(guide: Guide) -> None:
    """It is running, so what it publishes with the same key is a duplicate of itself."""
    shop = guide.shop()

    def again(self: Any, account_id: int) -> None:
        self.delay(account_id)

    shop.unique(again, bind=True, lock_key="account:{account_id}").delay(7)
    shop.run()


@stop("The key belongs to another program, for ever")
def foreign_lock(guide: Guide) -> None:
    """Any client's `SET NX` on the same key excludes tasks, too. Told once per key and process."""
    conflict._warn_of_endless.cache_clear()
    shop = guide.shop()
    task = shop.unique(sync, lock_key="account:{account_id}")
    shop.store._locks["account:7"] = (b"somebody", float("inf"))
    task.delay(7)


@stop("The key belongs to another program, and that is raised")
def refused_for_ever(guide: Guide) -> None:
    """With `on_conflict="raise"`."""
    conflict._warn_of_endless.cache_clear()
    shop = guide.shop()
    task = shop.unique(sync, lock_key="account:{account_id}", on_conflict="raise")
    shop.store._locks["account:8"] = (b"somebody", float("inf"))
    task.delay(8)


@stop("The caller's own task id gets no state")
def no_state_written(guide: Guide) -> None:
    """A call with a `task_id` of its own was skipped, and whoever waits for that id cannot be told.

    Wait for the result that `apply_async` returned: it is the holder's.
    """
    shop = guide.shop()
    task = shop.unique(sync, lock_key="account:{account_id}")
    guide.patch.setattr(task.backend, "get_task_meta", _away)
    with hold(task, 7):
        task.apply_async((7,), task_id="mine")


def _away(*_: object, **__: object) -> None:
    message = "no result backend"
    raise ConnectionError(message)


@stop("An option of a call that does not exist")
def unknown_call_option(guide: Guide) -> None:
    """A keyword of Celery's own is passed on; one that begins like an option of ours is not."""
    guide.shop().unique(sync).apply_async((7,), lock_tll=5)


@stop("Options of a call that cannot be honoured")
def wrong_call_options(guide: Guide) -> None:
    """A callable stays with the publisher, so it cannot decide anything on the worker."""
    guide.shop().unique(sync).apply_async(
        (7,), lock_ttl="long", on_lock_lost=print, on_conflict={"server": print}, lock_key="{accuont_id}"
    )


@stop("A callable strategy answers with no strategy")
def callable_answers_nonsense(guide: Guide) -> None:
    """A callable given as `on_conflict` returns the name of what is to be done."""
    task = guide.shop().unique(sync, lock_key="account:{account_id}", on_conflict=_undecided)
    with hold(task, 7):
        task.delay(7)


def _undecided(duplicate: Any) -> None:
    """Forget to return."""


@stop("A lock to be released from nobody knows whom")
def unknown_only(guide: Guide) -> None:
    """`task.lock_for(...).release(reason=..., only=...)`: nothing was released."""
    task = guide.shop().unique(sync)
    with hold(task, 7):
        task.lock_for(7).release(reason="purged", only="queud")


@stop("A misspelt setting, where only tasks are published")
def misspelt_setting(guide: Guide) -> None:
    """Told once, with the program's first lock, unless `redislock_check` is `"ignore"`."""
    shop = guide.configured(redislock_enabld=False, redislock_url=guide.url)
    shop.unique(sync).delay(7)


@stop("No lock server is named")
def no_lock_server(guide: Guide) -> None:
    """Without `redislock_url` locks are kept in the broker's Redis, or else in the result backend's."""
    guide.configured().unique(sync).delay(7)


@stop("A lock server with an unknown scheme")
def unknown_scheme(guide: Guide) -> None:
    """Forms are those of `broker_url`. Passwords are masked wherever a URL is shown."""
    guide.configured(redislock_url="rdis://:secret@h/0").unique(sync).delay(7)


@stop("A Redis Cluster")
def cluster(guide: Guide) -> None:
    """A single server, or Sentinels."""
    guide.configured(redislock_url="redis+cluster://h/0").unique(sync).delay(7)


@stop("A lock server whose URL cannot be read")
def unreadable_url(guide: Guide) -> None:
    """Quote special characters of a password: `urllib.parse.quote(password, safe="")`."""
    guide.configured(redislock_url="redis://bob:pass/word@h:6379/0").unique(sync).delay(7)


@stop("Sentinels that are not told which primary")
def sentinel_without_a_primary(guide: Guide) -> None:
    """As for Celery's own use of Sentinels."""
    guide.configured(redislock_url="sentinel://h:26379/0").unique(sync).delay(7)


@stop("`delay_on_commit` without Django")
def no_django(guide: Guide) -> None:
    """`delay_on_commit` and `apply_async_on_commit` are Celery's own, for Django."""

    class Missing:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name.partition(".")[0] == "django":
                message = "No module named 'django'"
                raise ModuleNotFoundError(message, name="django")

    import sys

    for name in list(sys.modules):
        if name.partition(".")[0] == "django" or name == "celery.contrib.django.task":
            guide.patch.delitem(sys.modules, name)
    guide.patch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
    guide.shop().unique(sync).delay_on_commit(7)


@stop("A skipped call in place")
def skipped_in_place(guide: Guide) -> None:
    """In eager mode with `redislock_eager`: there is no holder's result to wait for."""
    shop = guide.shop(task_always_eager=True, redislock_eager=True)
    task = shop.unique(sync, lock_key="account:{account_id}")
    with hold(task, 7):
        task.delay(7).get()
