"""Every option and setting: what it may be, what it is by default, what it means.

One table (``table``) says everything once; reading, checking, suggestions and
the reference page are derived from it. Pure: no Celery, no Redis.

::

    attribute of the task  >  setting redislock_*  >  default        read_options
    keyword of apply_async  >  all of these                          split_call_options, override
    on the worker: the message's header  >  the worker's own         to_header, from_header

``None`` means "not said here", as everywhere in Celery, and the next source
decides. The one exception is ``lock``: there ``None`` and ``False`` switch
locking off, and "not said here" is spelled :data:`INHERIT`.
"""

from celery_redislock.options.call import from_header, override, split_call_options, to_header
from celery_redislock.options.reading import LockOptions, read_options
from celery_redislock.options.risks import risks
from celery_redislock.options.settings import LockSettings, read_settings
from celery_redislock.options.strategies import Asked, Scope, Strategy
from celery_redislock.options.table import INHERIT, Inherit
from celery_redislock.options.unknown import unknown_attributes, unknown_settings

__all__ = [
    "INHERIT",
    "Asked",
    "Inherit",
    "LockOptions",
    "LockSettings",
    "Scope",
    "Strategy",
    "from_header",
    "override",
    "read_options",
    "read_settings",
    "risks",
    "split_call_options",
    "to_header",
    "unknown_attributes",
    "unknown_settings",
]
