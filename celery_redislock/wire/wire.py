"""One request and its answer on a connected socket: bytes, and a reader for our scripts' answers.

redis-py connects (TLS, passwords, Sentinels), and from then on calls nothing but ``sendall``, ``recv`` and
``settimeout`` of its socket (redis 5.2.1 to 8.1.0, ``connection.py``, ``_parsers/socket.py``), plain, TLS or
gevent's. So this module does the same with all of them.

A socket at rest has the socket timeout for each step; rare requests set others, and put it to rest again.
Python keeps the deadline of a step also where signals are handled meanwhile. The kernel, which would save a
poll before each step (``SO_RCVTIMEO``), starts its time anew then.
"""

import re
from dataclasses import dataclass
from typing import Any

from celery_redislock.wire.clock import Clock
from celery_redislock.wire.connection import mask_password

#: No longer text is read: the longest a server keeps (``proto-max-bulk-len``).
LONGEST = 512 * 1024 * 1024

#: Bytes of a request sent at once: TLS sends records of this size, and counts its timeout anew for each.
PIECE = 16384

_CRLF = b"\r\n"

#: The kinds of most answers: a line of words and numbers; a refusal by one holder; a list of numbers.
_LINE = re.compile(rb"\+([A-Za-z_]+(?: [a-z_]+| -?\d{1,18})*)\r\n").fullmatch
_HOLDER = re.compile(
    rb"\*5\r\n\$7\r\nrefused\r\n\$[46]\r\n(held|period)\r\n:1\r\n\$(\d{1,9})\r\n(.*)\r\n:(-?\d{1,18})\r\n",
    re.DOTALL,
).fullmatch
_NUMBERS = re.compile(rb"\*(\d{1,9})\r\n((?::-?\d{1,18}\r\n)+)").fullmatch
_text_at = re.compile(rb"\$([1-9]\d{0,8})\r\n").match
_pair_at = re.compile(rb"\*2\r\n\$([1-9]\d{0,8})\r\n").match
_score_at = re.compile(rb"\r\n,([^\r\n]{1,40})\r\n").match
_is_integer = re.compile(rb"-?\d{1,18}").fullmatch

#: How an answer begins: a command's (``=``: INFO's; ``_``: nothing), a script's; an item's of their lists.
_KINDS = b":$*+-=_"
_OF_SCRIPT = b":$*+-"
_INNER = b":$"

#: An item of a command's list: ``_`` where nothing is; in protocol 3 a list, of a member and its score.
_INNER_OF_COMMAND = b"$_*"
_PAIR = b"$,"

#: Of a command that waits for something: a list, or nothing.
_OF_WAIT = b"*_-"

#: Nothing, as protocol 3 writes it, and 2 in place of a list, and of a text.
_NOTHING = frozenset((b"_", b"*-1", b"$-1"))


class ErrorReply(Exception):  # noqa: N818  a value, before it is an error
    """An error that a server answers instead of a value; its text begins with a code."""


class Nonsense(OSError):  # noqa: N818  as KeyboardInterrupt does
    """The bytes that came are no answer to the request; the connection is of no use any more."""

    def __init__(self, data: bytes) -> None:
        super().__init__(f"it answered {told(data, 100)!r}, which is no answer to this")


def told(data: bytes, most: int) -> str:
    """Return the beginning of an answer as text, without passwords."""
    # A secret that begins in the part that is kept may end later.
    text = data[:1000].decode("utf-8", "backslashreplace")
    return (mask_password(text) if "://" in text else text)[:most]


def send(sock: Any, request: bytes, give_up: float, clock: Clock) -> None:
    """Send a request in the socket's time; a long one until ``give_up``, a reading of the clock."""
    if len(request) <= PIECE:
        sock.sendall(request)
        return
    for start in range(0, len(request), PIECE):
        sock.settimeout(left_of(give_up, clock))
        sock.sendall(request[start : start + PIECE])


def whole(data: bytes) -> Any:
    """Return an answer that has come in one piece, if it is of the usual kinds; ``None`` for all others."""
    if found := _LINE(data):
        return found[1].split()
    if found := _HOLDER(data):
        what, length, value, pttl = found.groups()
        return [b"refused", what, 1, value, int(pttl)] if int(length) == len(value) else None
    if found := _NUMBERS(data):
        numbers = [*map(int, found[2].replace(b":", b"").split())]
        return numbers if len(numbers) == int(found[1]) else None
    return None


def expect(is_so: bool) -> None:
    """Raise ``ValueError`` where an answer is not as it must be."""
    if not is_so:
        raise ValueError


def left_of(give_up: float, clock: Clock, patience: float = float("inf")) -> float:
    """Return the seconds until ``give_up``, or so many if they are fewer.

    Raises:
        TimeoutError: no time is left.
    """
    left = min(patience, give_up - clock())
    if left <= 0:
        raise TimeoutError("no answer in time")
    return left


@dataclass(eq=False)
class Answers:
    """Reads answers: the bytes that have come, and the rest until ``give_up``.

    Each is an integer, bytes, a list of these, or an :class:`ErrorReply`; ``None`` after a wait in vain, and
    of a command. A line, of words and numbers, is the list of its words. No list has a list in it, but for
    one of members and their scores, as protocol 3 has it: scripts answer with a flat one, a word, and, where
    several follow, a word for them, how many they are, and so many fields for each.
    """

    _sock: Any
    data: bytes
    _give_up: float
    _clock: Clock
    _at: int = 0

    def read(self, count: int, *, of_script: bool = False, of_wait: bool = False) -> list[Any]:
        """Read so many, and no more, of a script, a wait or commands; raises :class:`Nonsense`, OSError."""
        kinds = _OF_WAIT if of_wait else _OF_SCRIPT if of_script else _KINDS
        try:
            values = [self._value(kinds) for _ in range(count)]
            expect(self._at == len(self.data))
        except ValueError:
            raise Nonsense(self.data) from None
        return values

    def _value(self, kinds: bytes) -> Any:  # noqa: PLR0911  a kind each
        kind = self.data[self._at : self._at + 1] or self._more()[:1]
        expect(kind in kinds)
        while (end := self.data.find(_CRLF, self._at)) < 0:
            self._more()
        text = self.data[self._at + 1 : end]
        self._at = end + 2
        if kind == b"-":
            return ErrorReply(told(text, 300))
        if kind == b"+":
            expect(_LINE(b"+%b\r\n" % text) is not None)
            return text.split()
        if kind == b",":
            return text
        if b"_" in kinds and kind + text in _NOTHING:
            return None
        expect(_is_integer(text) is not None)
        number = int(text)
        if kind == b":":
            return number
        expect(0 <= number <= LONGEST)
        if kind == b"*":
            if kinds == _KINDS:
                return [self._text() or self._pair() or self._value(_INNER_OF_COMMAND) for _ in range(number)]
            inner = _PAIR if kinds == _INNER_OF_COMMAND else _INNER
            return [self._text() or self._value(inner) for _ in range(number)]
        start = self._at
        self._at = start + number + 2
        while len(self.data) < self._at:
            self._more()
        expect(self.data[self._at - 2 : self._at] == _CRLF)
        return self.data[start + (4 if kind == b"=" else 0) : self._at - 2]

    def _text(self) -> bytes | None:
        """Read a text that has come as a whole, as most of a long list have; else ``None``, and nothing."""
        found = _text_at(self.data, self._at)
        if found is None:
            return None
        start = found.end()
        end = start + int(found[1])
        if self.data[end : end + 2] != _CRLF:
            return None
        self._at = end + 2
        return self.data[start:end]

    def _pair(self) -> list[bytes] | None:
        """Likewise a list of a member and its score."""
        found = _pair_at(self.data, self._at)
        end = found.end() + int(found[1]) if found else 0
        score = _score_at(self.data, end) if found else None
        if found is None or score is None:
            return None
        self._at = score.end()
        return [self.data[found.end() : end], score[1]]

    def _more(self) -> bytes:
        self._sock.settimeout(left_of(self._give_up, self._clock))
        data: bytes = self._sock.recv(1 << 20)
        self.data += data
        if not data:
            raise ConnectionError("the server closed the connection")
        return data
