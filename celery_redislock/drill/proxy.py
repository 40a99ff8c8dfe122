"""What stands between the clients of a drill and the lock server: it falls silent, and cuts connections.

Each connection to the server is made here, as the lock store makes its own: TLS, Sentinel, user and database
are done with before a client's first byte. So the clients are given no password.
"""

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from select import select
from typing import Any

from celery_redislock.wire.connection import Connections

#: Seconds within which a side takes, or has the rest of, what has begun.
_PATIENCE = 0.1


class Proxy:
    """A unix socket in a folder of this user's, behind which every connection is one to the lock server.

    On a port of the loopback address any user of this machine could use the connections.

    Attributes:
        is_silent: forward nothing on the connections there are, nor on new ones. What is swallowed is gone:
            :meth:`reset` before it speaks again.
    """

    def __init__(self, path: Path, connections: Connections) -> None:
        """Listen at this path."""
        self.is_silent = False
        self._connections = connections
        self._links: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        """Cut every connection."""
        while self._links:
            with suppress(OSError):  # it has ended
                self._links.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Listen no more, and cut everything."""
        with suppress(OSError):
            # Closing alone does not wake a thread that accepts.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._links.append(client)
                threading.Thread(target=self._connect, args=[client], daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        connection = self._connections.open()
        # Whatever ends a connection, its client makes another one.
        with client, suppress(Exception):
            client.settimeout(_PATIENCE)
            connection.connect()
            server = connection._sock
            server.settimeout(_PATIENCE)
            self._forward(client, server)
        connection.disconnect()

    def _forward(self, client: socket.socket, server: Any) -> None:
        while True:
            has_more = isinstance(server, ssl.SSLSocket) and server.pending()
            for source in [server] if has_more else select([client, server], [], [])[0]:
                try:
                    data = source.recv(65536)
                except TimeoutError:  # TLS has messages of its own, without data
                    continue
                if not data:
                    return
                if not self.is_silent:
                    (client if source is server else server).sendall(data)
