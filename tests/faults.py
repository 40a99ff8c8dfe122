"""A TCP proxy on 127.0.0.1 that loses, delays or cuts what passes through it, on command.

It counts script calls only (EVALSHA and EVAL), and knows which of the lock
store's operations each one is, so that the handshake of a new connection
disturbs no count.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto

from tests.operations import IN_ONE_STEP, TOLD, operation_of

#: Seconds after which a silent connection is closed, whatever became of the test.
LIFE = 120.0


class Fault(Enum):
    """What can become of one script call."""

    #: The server never sees it; the connection is closed.
    REQUEST_LOST = auto()
    #: The server carries it out; the connection is closed instead of an answer.
    REPLY_LOST = auto()
    #: The server never sees it, and nobody answers; the connection stays open.
    BLACK_HOLE = auto()
    #: The server carries it out, and nobody answers; the connection stays open.
    SILENCE = auto()
    #: The server carries it out, and answers later (:attr:`FaultyProxy.delay`).
    SLOW = auto()
    #: The server gets half of it; the connection is reset.
    RESET_IN_REQUEST = auto()
    #: The server carries it out; the connection is reset in the middle of its answer.
    RESET_IN_REPLY = auto()


class FaultyProxy:
    """Forwards connections to a server until told otherwise. Every fault applies to new data only.

    Attributes:
        requests: how many script calls there were, but for the look that each worker takes once a second, and
            what each process writes once a second of its runs.
        fired: how many of them met a fault.
        delay: seconds a :attr:`Fault.SLOW` answer is held up.
        drag: seconds every answer is held up, those of a handshake too.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.requests = 0
        self.fired = 0
        self.delay = 0.0
        self.drag = 0.0
        self._plans: list[_Plan] = []
        self._black_hole = False
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._start(self._accept)

    @property
    def url(self) -> str:
        """Where clients find the proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    def fail(self, fault: Fault, *, of: str | None = None, at: Container[int] = (1,)) -> None:
        """Let calls meet a fault.

        Args:
            fault: what becomes of them.
            of: the operation they must be, any where it is ``None``.
            at: their numbers, counted from now on.

        Raises:
            ValueError: there is no such operation; the fault would never show, and the test pass.
        """
        if of is not None and of not in TOLD:
            message = f"{of!r} is no operation; there are {', '.join(sorted(TOLD))}"
            raise ValueError(message)
        with self._lock:
            self._plans.append(_Plan(fault, of, at))

    def heal(self) -> None:
        """Fail no more calls, and forward everything."""
        with self._lock:
            self._plans = []
        self._black_hole = False

    def lead_to(self, port: int | None) -> None:
        """Forward new connections to another server; those that are open stay where they are."""
        assert port is not None
        self._target = (self._target[0], port)

    def black_hole(self, *, on: bool = True) -> None:
        """Accept and keep connections open, and forward nothing in either direction."""
        self._black_hole = on

    def forget(self) -> None:
        """Forward nothing more on the connections there are, which stay open on both sides; new ones work."""
        with self._lock:
            for link in self._links:
                link.is_forgotten = True

    def reset(self) -> None:
        """Cut every connection there is."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.close()

    def close(self) -> None:
        """Stop listening and cut everything."""
        with suppress(OSError):
            # Closing alone does not wake a thread that accepts.
            self._listener.shutdown(socket.SHUT_RDWR)
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
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()  # the server is down
                continue
            link = _Link(client, server)
            with self._lock:
                self._links.append(link)
            self._start(self._requests, link)
            self._start(self._replies, link)

    def _requests(self, link: "_Link") -> None:
        for data in _received(link.client):
            if self._black_hole or link.is_forgotten:
                continue
            link.fault = fault = self._fault_of(data)
            match fault:
                case Fault.REQUEST_LOST:
                    break
                case Fault.BLACK_HOLE:
                    continue
                case Fault.RESET_IN_REQUEST:
                    _send(link.server, data[: len(data) // 2])
                    link.close(reset=True)
                    return
                case _:
                    _send(link.server, data)
        link.close()

    def _replies(self, link: "_Link") -> None:
        for data in _received(link.server):
            match link.fault:
                case Fault.REPLY_LOST:
                    break
                case Fault.SILENCE:
                    continue
                case Fault.RESET_IN_REPLY:
                    _send(link.client, data[: len(data) // 2])
                    link.close(reset=True)
                    return
                case Fault.SLOW:
                    time.sleep(self.delay)
            time.sleep(self.drag)
            if not (self._black_hole or link.is_forgotten):
                _send(link.client, data)
        link.close()

    def _fault_of(self, data: bytes) -> Fault | None:
        operation = operation_of(data)
        if operation is None:
            return None
        with self._lock:
            self.requests += operation not in {"sweep", "happened"}
            hits = [plan.fault for plan in self._plans if plan.hits(operation)]
            self.fired += bool(hits)
        return hits[0] if hits else None


class _Plan:
    """Which calls meet which fault."""

    def __init__(self, fault: Fault, of: str | None, at: Container[int]) -> None:
        self.fault = fault
        self._of = of
        self._at = at
        self._seen = 0

    def hits(self, operation: str) -> bool:
        if self._of not in {None, operation, IN_ONE_STEP.get(operation)}:
            return False
        self._seen += 1
        return self._seen in self._at


class _Link:
    """One client's connection, and the proxy's own to the server for it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.fault: Fault | None = None
        self.is_forgotten = False
        self._is_reset = False

    def close(self, *, reset: bool = False) -> None:
        """Close both sides, by RST where ``reset`` is asked for; idempotent."""
        self._is_reset = self._is_reset or reset
        for each in (self.client, self.server):
            with suppress(OSError):
                if self._is_reset:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # Wakes the other thread, which keeps the socket open as long as it reads from it.
                each.shutdown(socket.SHUT_RD if self._is_reset else socket.SHUT_RDWR)
            each.close()


def _received(source: socket.socket) -> Iterator[bytes]:
    with suppress(OSError):
        source.settimeout(LIFE)
        while data := source.recv(65536):
            yield data


def _send(target: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        target.sendall(data)


@contextmanager
def faulty_proxy(port: int) -> Iterator[FaultyProxy]:
    """A proxy before a server on 127.0.0.1, for the block."""
    proxy = FaultyProxy("127.0.0.1", port)
    try:
        yield proxy
    finally:
        proxy.close()
