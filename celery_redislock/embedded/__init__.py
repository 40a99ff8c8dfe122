"""A Valkey or Redis server of one's own, for demos, tests and development.

::

    with EmbeddedServer() as server:
        app = Celery(broker=server.url, backend=server.url)

No root, no Docker, no port, nothing kept on disk; any number of servers side
by side, from any number of processes. Not for production: the server lives and
dies with the process that started it. That process may end in any way, also by
SIGKILL: server, socket and directory are gone within about a second, because a
small process between the two (:mod:`celery_redislock.embedded.shim`) notices.
The server runs in a session of its own, so Ctrl-C in a terminal reaches the
user's program and not the server under it.

Forks: a forked child may use the server's address, but does not own the
server; in the child ``stop()`` does nothing. Limits: on macOS the server outlives a
SIGKILL of the small process itself; on every system its directory then
stays until ``stop()``.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from celery_redislock.embedded.binary import find_server
from celery_redislock.embedded.exceptions import EmbeddedServerError
from celery_redislock.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer", "EmbeddedServerError", "find_server", "running_server"]


@contextmanager
def running_server(url: str | None = None) -> Iterator[str]:
    """Yield the URL of a server, in Celery's form, and start one for the block if none is given.

    Args:
        url: a server that runs already; default: the environment variable
            ``REDIS_URL``, and without that a new :class:`EmbeddedServer`.

    Raises:
        EmbeddedServerError: none was given and none could be started.
    """
    given = url or os.environ.get("REDIS_URL")
    if given:
        yield given
    else:
        with EmbeddedServer() as server:
            yield server.url
