"""What is locked: from a task's name and bound arguments to the lock's name.

Pure: no Celery, no Redis, no clock. Three steps, each in a file of its own::

    Binder("run")  .bound(*args, **kw)   ->  {"account_id": 42, "full": False}     binding
    parse_key(lock_key, …)               ->  a KeyRule, or every problem at once   rules, template
    rule(arguments)                      ->  "shop.sync:v1:8f3c…" or "account:42"  rules, digest

Publisher and worker compute the same name because every value is taken as the worker sees it: after a round
trip through kombu's JSON. A change to a name that exists in the wild must change the version in it
(``v1``): two versions of a deploy run side by side, and a key computed differently excludes nobody. A golden
file in the tests holds the names still.
"""

from celery_redislock.declaring.keys.binding import Binder
from celery_redislock.declaring.keys.digest import as_worker_sees, digest
from celery_redislock.declaring.keys.resources import Resources
from celery_redislock.declaring.keys.rules import KeyRule, parse_key
from celery_redislock.declaring.keys.telling import OF_ALL, problems_of_text, teller
from celery_redislock.locks.naming import escape

__all__ = [
    "OF_ALL", "Binder", "KeyRule", "Resources", "as_worker_sees", "digest", "escape", "parse_key",
    "problems_of_text", "teller",
]  # fmt: skip
