"""A Valkey or Redis server of one's own, for demos, tests and development.

::

    with EmbeddedServer() as server:
        app = Celery(broker=server.url, backend=server.url)

It needs no root, no Docker and no port, and keeps nothing on disk. Any number
of servers can run side by side, started by any number of processes. It is not
for production: the server ends with the process that started it. That process
may end in any way, also by SIGKILL: the server, its socket and its directory
are gone within about a second, because a small process between the two
(:mod:`celery_redislock.embedded.shim`) notices. The server runs in a session of
its own, so Ctrl-C in a terminal reaches the user's program and not the server.

Forks: a forked child may use the server's address, but does not own the
server; in the child ``stop()`` does nothing. Limits: on macOS the server
outlives a SIGKILL of the small process itself; on every system its directory
then stays until ``stop()``.
"""

from celery_redislock.embedded.server import EmbeddedServer, EmbeddedServerError

__all__ = ["EmbeddedServer", "EmbeddedServerError"]
