"""How beat is plugged in: its scheduler is wrapped before the first tick, if the schedule is to be shared.

Two modules call :func:`connect`: ``receiving/hooks.py``, when a program declares a unique task; and
``cli/__init__.py``, which every ``celery`` command loads by the entry point ``celery.commands``. So
``celery beat`` shares what ``redislock_beat`` names with no unique task imported, and this module imports
nothing but what Celery's own command line has imported before.
"""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery.signals import beat_init

from celery_redislock.log import command, logger

if TYPE_CHECKING:
    from celery_redislock.scheduling.beat import Beat


def connect() -> None:
    """Let the beats of this process share their schedule; repeating it changes nothing."""
    beat_init.connect(prepare_beat, weak=False, dispatch_uid="celery_redislock.beat")


def prepare_beat(sender: Any = None, **_: Any) -> None:
    """``beat_init``, in beat's process, which survives what a receiver raises but for ``SystemExit``."""
    if "celery_redislock.task" not in sys.modules and not sender.app.conf.get("redislock_beat"):
        return  # no task is unique, and no entry is named
    command("")  # what its threads print
    try:
        join(sender)
    except Exception as error:  # or it would send each tick beside the others
        raise SystemExit(f"redislock: beat does not start: {error}") from error


def join(service: Any) -> "Beat | None":
    """Make a beat share its schedule, as ``redislock_beat`` says; ``None`` where it is left alone.

    Called by :func:`prepare_beat`, before the first tick.

    Raises:
        LockOptionError: a setting is wrong, or none names a lock server and something needs one.
        TypeError: the scheduler is none that can be wrapped.
    """
    from celery.beat import Scheduler

    from celery_redislock.declaring.server import NoLockServerError, settings_of, store_of
    from celery_redislock.exceptions import LockOptionError
    from celery_redislock.scheduling.beat import WRAPPED, Beat
    from celery_redislock.scheduling.entries import problems_of
    from celery_redislock.scheduling.startup import count_unique, tell, tell_of_beat
    from celery_redislock.scheduling.state import States

    app = service.app
    scheduler = service.scheduler
    settings = settings_of(app)
    kind = type(scheduler)
    if not settings.enabled or settings.beat is None:
        with suppress(LockOptionError):  # each publish reports it, and other entries are still sent
            tell(app, settings, "; each beat sends each tick")
        return None
    if kind.__module__.partition(".")[0] == "redbeat":
        if not getattr(scheduler, "lock_key", None):
            logger.warning(
                "redislock: RedBeat's lock is off: each beat sends each tick; set redbeat_lock_key"
            )
        return None
    if kind.tick is not Scheduler.tick or not all(hasattr(scheduler, each) for each in WRAPPED):
        raise TypeError(
            f"the scheduler {kind.__module__}.{kind.__qualname__} has a tick() of its own, so its ticks "
            "cannot be shared between beats; use celery.beat:PersistentScheduler or "
            "django_celery_beat.schedulers:DatabaseScheduler, or set redislock_beat = False and run one beat"
        )
    try:
        store = store_of(app, settings)
    except NoLockServerError:
        if settings.beat or count_unique(app):
            raise
        return None  # of this schedule nothing is to be shared
    if not store.is_shared:
        return None  # a test's, in memory: nobody shares it
    entries = [*scheduler.schedule.values()]
    tell_of_beat(app, settings, entries)
    if settings.check != "ignore":
        for problem in problems_of(app, entries, settings.beat):
            logger.warning("redislock: %s", problem)
    return Beat(scheduler, States(store, app.main), settings)
