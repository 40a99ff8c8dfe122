"""A page of the locks: what runs, what waits, and what needs somebody. It reads, and changes nothing.

``celery -A proj redislock web`` serves it on this machine. In a site of one's own it is mounted, behind the
login that is there::

    from celery_redislock.web import application
    from proj.celery import app

    locks = application(app)
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery_redislock.operating.server import LockServer
from celery_redislock.web.page import page_of

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

__all__ = ["application"]


def application(app: Any) -> "WSGIApplication":
    """Return the page of an app's locks as a WSGI application, to be mounted anywhere in a site.

    It has no login and asks for none: whoever reaches it sees keys, names of tasks and hosts, and what
    ``lock_describe`` tells; no arguments, no tokens. It answers GET and HEAD.

    Each process of the site looks at the lock server in one thread, which begins with the first page and ends
    when nobody has asked for one for an hour: at most every five seconds, and so seldom that the lock server
    spends two hundredths of its time on it. Pages are made from the last look, and tell its age. Thread-safe,
    and safe to be made before a fork.

    Args:
        app: the Celery app. The commands that are shown to be copied name it as it names itself (``main``).

    Raises:
        LockOptionError: the app names no lock server, or its settings are wrong.
    """
    server = LockServer.of_app(app)
    named = server.command.replace("YOUR_APP", app.main or "YOUR_APP")
    return page_of(replace(server, command=named))
