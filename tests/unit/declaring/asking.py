"""Options and settings read as a task, an app and a call ask for them."""

import pytest

from celery_redislock.declaring.call_options import override
from celery_redislock.declaring.options import LockOptions, read_options, read_settings
from celery_redislock.exceptions import LockOptionError

PARAMETERS = ("account_id", "amount")


def decide(conflict):
    """A strategy of the user's own."""
    return "skip"


def read(attributes=None, settings=None):
    """What a task with these attributes asks for, in an app with these settings."""
    return read_options("shop.sync", attributes or {}, (settings or {}).get, parameters=PARAMETERS)


def settings_of(settings=None, environ=None):
    """What an app with these settings says."""
    return read_settings("app", (settings or {}).get, environ or {})


def called(base=None, **options):
    """What a call with these keywords asks for."""
    return override(base or LockOptions(), "shop.sync", options, parameters=PARAMETERS)


def refused(**attributes):
    """The problems of a task that declares this; none where it is not refused."""
    try:
        read(attributes)
    except LockOptionError as error:
        return error.problems
    return []


def problems(action, *args, **kwargs):
    """Each problem that the action is refused with."""
    with pytest.raises(LockOptionError) as refusal:
        action(*args, **kwargs)
    return refusal.value.problems
