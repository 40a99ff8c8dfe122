"""A server for the page, for one machine and a few browsers: so many connections, each for so long.

One request a connection, as HTTP/1.0 has it. A request's line, and each of its headers, is bounded by 65,536
bytes, the number of headers by 100 (``http.server`` and ``http.client``).
"""

import socket
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from http import HTTPStatus
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.handlers import SimpleHandler
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from celery_redislock.log import logger
from celery_redislock.web.guard import HEADERS, PLAIN


class PageServer(ThreadingMixIn, WSGIServer):
    """Listens from its construction on; ``set_app`` says what it serves, ``serve_forever`` serves it.

    A thread for each connection. One over :attr:`most` is answered at once with 503. One that has lasted for
    :attr:`patience` is cut off, however slowly its client writes or reads.

    Args:
        bind: the address to listen at, IPv4 or IPv6, or a name that has one.
        port: 0 for any free one.

    Attributes:
        most: connections at a time.
        patience: seconds from a connection's begin to its end at the latest.
        server_name: its address, as a browser writes it.

    Raises:
        OSError: it cannot listen there.
        UnicodeError: the name is none.
    """

    most = 32
    patience = 10.0
    daemon_threads = True  # the end of the program waits for no client
    request_queue_size = most

    def __init__(self, bind: str, port: int) -> None:
        self._ends: dict[socket.socket, float] = {}
        self.address_family, _, _, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM)[0]
        super().__init__(address, _Request)  # type: ignore[arg-type]  # of a Python without IPv6 it is another

    def hosts(self, names: Collection[str] = ()) -> set[str]:
        """Return what ``Host`` may be, for ``at_home``: where it listens, loopback, and these names.

        Loopback's with the server's port, and a name with it or as it is given.
        """
        given = [name.lower() for name in names]
        ours = (self.server_name, "127.0.0.1", "localhost", "[::1]", *given)
        return {*given, *(f"{name}:{self.server_port}" for name in ours)}

    def server_bind(self) -> None:
        """Bind; ``HTTPServer`` would ask the DNS for this machine's name, which can take seconds."""
        TCPServer.server_bind(self)
        address, self.server_port = self.socket.getsockname()[:2]
        self.server_name = f"[{address}]" if ":" in address else address  # as RFC 3875 has it
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002  socketserver's
        """Refuse what is too much."""
        if len(self._ends) < self.most:
            self._ends[request] = time.monotonic() + self.patience
            return True
        with suppress(OSError):  # it has gone; so few bytes never wait
            request.send(_sentence(503, "too many connections are open; try again in some seconds"))
        return False

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection, and close it."""
        self._ends.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off what has lasted too long, twice a second: its thread finds the connection ended."""
        # A copy, in one step: the threads take theirs out meanwhile.
        for request, end in self._ends.copy().items():
            if time.monotonic() >= end:
                with suppress(OSError):  # it has ended by itself
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  socketserver's
        """Log what failed; that a client went away, or was cut off, is no failure."""
        if not isinstance(sys.exc_info()[1], OSError):
            logger.exception("a request to the page failed")


class _Request(WSGIRequestHandler):
    # The headers are several small writes: each would wait for the client's word about the one before.
    disable_nagle_algorithm = True

    def handle(self) -> None:
        self.raw_requestline = self.rfile.readline(65_537)
        if len(self.raw_requestline) > 65_536:
            self.send_error(414)
        elif self.parse_request():
            answer = _Answer(self.rfile, self.wfile, self.get_stderr(), self.get_environ())  # type: ignore[arg-type]
            answer.run(self.server.get_app())  # type: ignore[attr-defined]  # typeshed knows any server here

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        # http.server answers with a page of its own, which quotes the request and has none of our headers.
        self.wfile.write(_sentence(code, "this is no request that a browser sends"))


class _Answer(SimpleHandler):
    # wsgiref takes a ServerHandler. That names its Python in each answer, and writes a line to standard error
    # about it: a page that refreshes would fill the terminal. In both, the variables of the process stand in
    # for headers: HTTP_HOST for a request without Host.
    os_environ: dict[str, str] = {}  # noqa: RUF012  it is only copied


def _sentence(code: int, text: str) -> bytes:
    headers = "".join(f"{name}: {value}\r\n" for name, value in (PLAIN, *HEADERS))
    return f"HTTP/1.0 {code} {HTTPStatus(code).phrase}\r\n{headers}\r\n{text}\n".encode()
