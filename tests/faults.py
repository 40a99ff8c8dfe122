"""A TCP proxy on 127.0.0.1 that loses what passes through it, on command.

It counts *requests* and *replies* of EVALSHA and EVAL only, so that the
handshake of a new connection disturbs no count.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["FaultyProxy", "faulty_proxy"]


class FaultyProxy:
    """Forwards connections to a server until told otherwise. Every fault applies to new data only."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.requests = 0
        self._drop_requests: set[int] = set()
        self._drop_replies: set[int] = set()
        self._black_hole = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._start(self._accept)

    @property
    def url(self) -> str:
        """Where clients find the proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    def drop_request(self, after: int = 0) -> None:
        """Close the connection instead of forwarding the next script call, or the n-th after it."""
        with self._lock:
            self._drop_requests.add(self.requests + after + 1)

    def drop_reply(self, after: int = 0) -> None:
        """Let the server carry out the next script call, or the n-th after it; close instead of answering."""
        with self._lock:
            self._drop_replies.add(self.requests + after + 1)

    def black_hole(self, *, on: bool = True) -> None:
        """Accept and keep connections open, and forward nothing in either direction."""
        self._black_hole = on

    def reset(self) -> None:
        """Cut every connection there is."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        """Stop listening and cut everything."""
        self._listener.close()
        self.reset()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        threading.Thread(target=target, args=args, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            link = _Link(client, server)
            with self._lock:
                self._sockets += [client, server]
            self._start(self._requests, link)
            self._start(self._replies, link)

    def _requests(self, link: "_Link") -> None:
        for data in _received(link.client):
            if self._black_hole:
                continue
            if b"EVAL" in data:
                with self._lock:
                    self.requests += 1
                    link.drops_reply = self.requests in self._drop_replies
                    drop = self.requests in self._drop_requests
                if drop:
                    break
            with suppress(OSError):
                link.server.sendall(data)
        link.close()

    def _replies(self, link: "_Link") -> None:
        for data in _received(link.server):
            if link.drops_reply:
                break
            if not self._black_hole:
                with suppress(OSError):
                    link.client.sendall(data)
        link.close()


class _Link:
    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.drops_reply = False

    def close(self) -> None:
        for each in (self.client, self.server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _received(source: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            data = source.recv(65536)
        except OSError:
            return
        if not data:
            return
        yield data


@contextmanager
def faulty_proxy(port: int) -> Iterator[FaultyProxy]:
    """A proxy before a server on 127.0.0.1, for the block."""
    proxy = FaultyProxy("127.0.0.1", port)
    try:
        yield proxy
    finally:
        proxy.close()
