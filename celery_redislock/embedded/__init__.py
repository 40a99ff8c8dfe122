"""A Valkey or Redis server of one's own, for demos, tests and development; not for production.

::

    with EmbeddedServer() as server:
        app = Celery(broker=server.url, backend=server.url)

It needs no root, no Docker and no port, and keeps nothing on disk. Any number of servers can run side by
side. A server ends with the process that started it, also by SIGKILL: within about a
second it, its socket and its directory are gone, because a small process between the two
(:mod:`celery_redislock.embedded.shim`) notices. It runs in a session of its own, so Ctrl-C in a terminal
reaches the user's program and not the server. A forked child may use its address, and does not own it.

Limits: on macOS the server outlives a SIGKILL of the small process itself; on every system its directory
then stays until ``stop()``.
"""

from celery_redislock.embedded.server import EmbeddedServer, EmbeddedServerError

__all__ = ["EmbeddedServer", "EmbeddedServerError"]
