"""The command line.

Errors are one line on standard error, and exit status 2.
"""

import io
import sys
from typing import Any

from celery import Celery

from celery_redislock.testing import hold
from tests.tour.guide import Guide
from tests.tour.stop import stop
from tests.unit.shop import Shop

__all__: list[str] = []

NOBODY = "redis://bob:secret@127.0.0.1:1/3"


def sync_account(account_id: int, deep: bool = False) -> int:
    """Be unique per account."""
    return account_id


def _shop(guide: Guide) -> Any:
    """An app with a task that is unique, one that is not, and one whose lock is switched off."""
    shop = guide.shop()
    shop.unique(sync_account, name="shop.sync_account", lock_key="account:{account_id}")
    shop.unique(sync_account, name="shop.free", lock=None)
    shop.unique(sync_account, name="shop.plain", base=None)
    return shop


def _task(shop: Shop) -> Any:
    return shop.app.tasks["shop.sync_account"]


@stop("No app and no server")
def nothing_named(guide: Guide) -> None:
    """`celery redislock` looks where an app's locks are, `celery-redislock` at a server's URL."""
    guide.patch.delenv("REDIS_URL", raising=False)
    default = Celery("default", set_as_current=False, broker="amqp://")
    guide.later.callback(default.close)
    guide.celery(default, "list", named=False)
    guide.standalone("list")


@stop("An app without a name")
def app_not_named(guide: Guide) -> None:
    """Said on standard error beside the answer, as the default app may not be the one that was meant."""
    shop = _shop(guide)
    with hold(_task(shop), 7):
        guide.celery(shop.app, "list", named=False)


@stop("The app's settings are wrong")
def wrong_settings(guide: Guide) -> None:
    """The app's own words, as in its log."""
    shop = guide.configured(redislock_url="redis+cluster://h/0")
    guide.celery(shop.app, "list")


@stop("The lock server does not answer")
def server_away(guide: Guide) -> None:
    """Passwords are masked."""
    guide.standalone("--url", NOBODY, "list")


@stop("A URL that cannot be read")
def unreadable_url(guide: Guide) -> None:
    """A URL typed by hand."""
    guide.standalone("--url", "http://bob:secret@h", "list")


@stop("A task module that cannot be imported")
def module_missing(guide: Guide) -> None:
    """All modules of the app are imported, so that its tasks are known."""
    shop = _shop(guide)
    shop.app.conf.include = ["proj_missing"]
    guide.celery(shop.app, "show", "shop.sync_account", "7")


@stop("A task that does not exist")
def unknown_task(guide: Guide) -> None:
    """What may have been meant are the app's tasks, and the keys that are held."""
    shop = _shop(guide)
    guide.celery(shop.app, "show", "shop.snyc_account", "7")
    guide.celery(shop.app, "show", "sync_account", "7")
    guide.celery(shop.app, "show", "7", "shop.sync_account")
    guide.celery(shop.app, "show", "nonsense", "7")


@stop("Locks of a task that does not exist")
def list_of_unknown_task(guide: Guide) -> None:
    """The answer, `no lock for shop.snyc_account is held`, is on standard output."""
    guide.celery(_shop(guide).app, "list", "--task", "shop.snyc_account")


@stop("A key that nobody holds")
def nobody_holds(guide: Guide) -> None:
    """The answer, `nobody holds acount:7`, is on standard output; exit status 1 is no error."""
    shop = _shop(guide)
    with hold(_task(shop), 7):
        guide.celery(shop.app, "show", "acount:7")


@stop("Arguments of a key")
def key_with_arguments(guide: Guide) -> None:
    """Without an app there are no tasks."""
    guide.standalone("--url", guide.url, "show", "shop.sync_account", "7")


@stop("A task that takes no lock")
def task_without_lock(guide: Guide) -> None:
    """There is nothing to show, and nothing to release."""
    shop = _shop(guide)
    guide.celery(shop.app, "show", "shop.plain", "7")
    guide.celery(shop.app, "show", "shop.free", "7")


@stop("Arguments that do not fit the task")
def arguments_do_not_fit(guide: Guide) -> None:
    """They are bound as by `delay`; each is JSON, and a word that is none is a text."""
    shop = _shop(guide)
    guide.celery(shop.app, "show", "shop.sync_account", "account_id=7", "account_id=8")
    guide.celery(shop.app, "show", "shop.sync_account", "acount_id=7")
    guide.celery(shop.app, "show", "shop.sync_account", "null")
    guide.celery(shop.app, "show", "shop.sync_account", "NaN", "1", "2")


@stop("More locks than are shown")
def more_than_shown(guide: Guide) -> None:
    """On standard error, so that a pipe gets the table only."""
    shop = _shop(guide)
    with hold(_task(shop), 7), hold(_task(shop), 8):
        guide.celery(shop.app, "list", "--limit", "1")


@stop("Nobody can be asked")
def nobody_to_ask(guide: Guide) -> None:
    """In a script or a pipe."""
    shop = _shop(guide)
    with hold(_task(shop), 7):
        guide.celery(shop.app, "release", "shop.sync_account", "7", "--reason", "its host died")


@stop("Asked, and answered no")
def answered_no(guide: Guide) -> None:
    """On standard output, `nothing was released`."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shop = _shop(guide)
    guide.patch.setattr(sys, "stdin", Terminal("n\n"))
    with hold(_task(shop), 7):
        guide.celery(shop.app, "release", "shop.sync_account", "7", "--reason", "its host died")


@stop("A lock is released")
def released(guide: Guide) -> None:
    """Who it was taken from is on standard output; the reason on standard error, or where the app logs."""
    shop = _shop(guide)
    with hold(_task(shop), 7):
        guide.celery(shop.app, "release", "shop.sync_account", "7", "--reason", "its host died", "--yes")


@stop("The demo has no server")
def demo_without_server(guide: Guide) -> None:
    """`demo` takes the server it is given, or starts one of its own."""
    guide.standalone("demo", "--url", "http://bob:secret@h")
    guide.standalone("demo", "--url", NOBODY)
