"""One request and its answer on a connected socket: bytes as they are, and a reader for what our scripts say.

redis-py connects (TLS, passwords, Sentinels), and from then on calls nothing but ``sendall``, ``recv`` and
``settimeout`` of its socket (redis 5.2.1 to 8.1.0, ``connection.py``, ``_parsers/socket.py``), plain, TLS or
gevent's. So this module does the same with all of them, in a tenth of the steps.

A socket at rest has the timeout that :func:`rest` gives it; what is rare sets others, and the caller puts
it to rest again.
"""

import os
import re
import socket
import struct
from typing import Any

from celery_redislock.locks.connection import mask_password
from celery_redislock.locks.lease import Clock
from celery_redislock.locks.thread import original

#: No longer answer is read, nor a text in one: the longest a server keeps (``proto-max-bulk-len``).
LONGEST = 512 * 1024 * 1024

#: Bytes of a request sent at once: TLS sends records of this size, and counts its timeout anew for each.
PIECE = 16384

_CRLF = b"\r\n"

#: Tells whether all of this is one number, as most answers are; and the parts of a list of some.
is_number = re.compile(rb":-?\d{1,18}\r\n").fullmatch
_NUMBERS = re.compile(rb"\*(\d{1,9})\r\n((?::-?\d{1,18}\r\n)+)").fullmatch

#: How an answer begins in either version of the protocol (``=``: INFO's, in the third), and what a list has.
_KINDS = frozenset({b":", b"$", b"*", b"_", b"+", b"-", b"="})
_INNER = frozenset({b":", b"$", b"_"})


class ErrorReply(Exception):  # noqa: N818  a value, before it is an error
    """What a server answers instead of a value; its text begins with a code."""


class Nonsense(OSError):  # noqa: N818  as KeyboardInterrupt does
    """What was received is no answer to the request; the connection is of no use any more."""

    def __init__(self, data: bytes) -> None:
        # The end of a secret that begins in the first hundred characters may be further on.
        said = mask_password(data[:1000].decode("utf-8", "backslashreplace"))
        super().__init__(f"it answered {said[:100]!r}, which is no answer to this")


def rest(sock: Any, patience: float) -> None:
    """Set what a step of a socket at rest may take, in seconds.

    The kernel keeps the time of a plain one: Python would ask it by a poll before every step.
    """
    if type(sock) is not original("socket", "socket") or os.name != "posix":
        sock.settimeout(patience)
        return
    time = struct.pack("ll", *divmod(max(1, round(patience * 1e6)), 1_000_000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, time)
    sock.settimeout(None)


def send(sock: Any, request: bytes, give_up: float, clock: Clock) -> None:
    """Send a request in the socket's time; a long one until ``give_up``, a reading of the clock.

    Raises:
        OSError: it could not be sent, or not in time.
    """
    if len(request) <= PIECE:
        sock.sendall(request)
        return
    for start in range(0, len(request), PIECE):
        sock.settimeout(left_of(give_up, clock))
        sock.sendall(request[start : start + PIECE])


def whole(data: bytes) -> Any:
    """Return an answer that has come in one piece: a number, numbers, or a text; ``None`` for all else."""
    if data[:1] == b"$":
        end = data.find(_CRLF)
        size = data[1:end]
        if end < 12 and size.isdigit() and len(data) == end + int(size) + 4:
            return data[end + 2 : -2]
    elif (found := _NUMBERS(data)) is not None:
        numbers = [*map(int, found[2].replace(b":", b"").split())]
        if len(numbers) == int(found[1]):
            return numbers
    return None


def answers(sock: Any, data: bytes, count: int, give_up: float, clock: Clock) -> list[Any]:
    """Read so many answers, of which ``data`` has been received; the rest until ``give_up``.

    Returns:
        For each an integer, bytes, ``None``, a list of these, or an :class:`ErrorReply`.

    Raises:
        Nonsense: it is something else, or more than was asked for.
        OSError: it did not come, or not in time.
    """
    return _Answers(sock, data, give_up, clock).read(count)


def left_of(give_up: float, clock: Clock, patience: float = float("inf")) -> float:
    """Return the seconds until ``give_up``, or so many if they are fewer.

    Raises:
        TimeoutError: no time is left.
    """
    left = min(patience, give_up - clock())
    if left <= 0:
        message = "no answer in time"
        raise TimeoutError(message)
    return left


class _Answers:
    """What has been received so far, and how far it is read."""

    def __init__(self, sock: Any, data: bytes, give_up: float, clock: Clock) -> None:
        self._sock, self._give_up, self._clock = sock, give_up, clock
        self._data, self._at = b"", 0
        self._add(data)

    def read(self, count: int) -> list[Any]:
        values = [self._value(0) for _ in range(count)]
        if self._at != len(self._data):
            raise Nonsense(self._data)
        return values

    def _value(self, depth: int) -> Any:
        while self._at == len(self._data):
            self._more()
        kind = self._data[self._at : self._at + 1]
        if kind not in (_KINDS if depth == 0 else _INNER):
            raise Nonsense(self._data)
        text = self._line()[1:]
        if kind == b":":
            return self._number(text)
        if kind == b"-":
            return ErrorReply(text.decode("utf-8", "backslashreplace"))
        if kind == b"+":
            return text
        size = -1 if kind == b"_" else self._number(text)
        if size > LONGEST:
            raise Nonsense(self._data)
        if size < 0:
            return None
        if kind == b"*":
            return [self._value(depth + 1) for _ in range(size)]
        return self._text(size)[4 if kind == b"=" else 0 :]

    def _number(self, text: bytes) -> int:
        try:
            return int(text)
        except ValueError:
            raise Nonsense(self._data) from None

    def _line(self) -> bytes:
        while (end := self._data.find(_CRLF, self._at)) < 0:
            self._more()
        line, self._at = self._data[self._at : end], end + 2
        return line

    def _text(self, size: int) -> bytes:
        end = self._at + size
        while len(self._data) < end + 2:
            self._more()
        text, rest = self._data[self._at : end], self._data[end : end + 2]
        if rest != _CRLF:
            raise Nonsense(self._data)
        self._at = end + 2
        return text

    def _more(self) -> None:
        self._sock.settimeout(left_of(self._give_up, self._clock))
        self._add(self._sock.recv(1 << 20))

    def _add(self, data: bytes) -> None:
        if not data:
            message = "the server closed the connection"
            raise ConnectionError(message)
        self._data += data
        if len(self._data) > LONGEST:
            raise Nonsense(self._data)
