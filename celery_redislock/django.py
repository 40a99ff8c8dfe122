"""Django's system checks for this package's settings.

With ``"celery_redislock.django.RedislockConfig"`` in ``INSTALLED_APPS``, or the name of this module,
``manage.py check`` reports misspelt ``CELERY_REDISLOCK_…`` settings (``W001``) and values that cannot be used
(``E001``), before a worker or a request meets them.
"""

from typing import Any

from celery import current_app
from django.apps import AppConfig
from django.conf import settings
from django.core import checks

from celery_redislock.declaring.options import LockSettings, read_options
from celery_redislock.declaring.server import settings_of, store_of
from celery_redislock.declaring.unknown import unknown_settings
from celery_redislock.exceptions import LockOptionError

__all__ = ["RedislockConfig", "check_settings"]


class RedislockConfig(AppConfig):
    """The app as Django lists it."""

    name = "celery_redislock"
    label = "celery_redislock"
    verbose_name = "celery_redislock"


def check_settings(app_configs: Any = None, **_: Any) -> list[checks.CheckMessage]:  # noqa: ARG001  Django's
    """Return what is wrong with this package's settings, those of Django and of the current Celery app."""
    found: list[checks.CheckMessage] = [
        checks.Warning(problem, id="celery_redislock.W001") for problem in unknown_settings(dir(settings))
    ]
    for read in (
        lambda: _reach(settings_of(current_app)),
        lambda: read_options("settings", {}, current_app.conf.get, parameters=None),
    ):
        try:
            read()
        except LockOptionError as error:
            found += [checks.Error(problem, id="celery_redislock.E001") for problem in error.problems]
    return found


def _reach(read: LockSettings) -> None:
    """Raise LockOptionError where the lock server that the settings name cannot be asked for."""
    if read.url is not None:
        store_of(current_app, read)


# Not in ready(): Django does not find the class above where only the module is named.
checks.register(check_settings)
