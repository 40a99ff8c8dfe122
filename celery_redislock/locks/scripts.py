"""Sending the scripts: one round trip each, bounded, and repeated once where the answer was lost.

Scripts are sent by digest (EVALSHA) and in full (EVAL) when the server does
not know them: two trips, and no third one can fail. They carry no ``#!lua``
line, because such a script is refused under OOM even when it only releases.
"""

import functools
import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import redis

from celery_redislock.exceptions import LockKeyError, LockUnavailable
from celery_redislock.locks.connection import Connections
from celery_redislock.locks.lease import Clock, boottime
from celery_redislock.locks.wire import (
    PIECE,
    ErrorReply,
    Nonsense,
    answers,
    is_number,
    left_of,
    rest,
    send,
    whole,
)

logger = logging.getLogger("celery_redislock")

#: The scripts of this package, one file each under ``lua/``; some include others.
SCRIPTS = (
    "acquire", "claim_and_push", "force_release", "hand_on", "inspect", "names", "release",
    "release_and_store", "renew",
)  # fmt: skip

#: Codes of refusals that a new connection may not meet: it leads to another server, or has logged in anew.
#: Redis 6.2 tells those of a command in a script in the middle of its text.
_OF_CONNECTION = ("READONLY", "MASTERDOWN", "NOREPLICAS", "NOAUTH", "LOADING")

#: A word of a request; how one begins that names its script by digest, and one that carries it.
_WORD = b"$%d\r\n%b\r\n"
_EVALSHA, _EVAL = b"$7\r\nEVALSHA\r\n$40\r\n%b\r\n", b"$4\r\nEVAL\r\n$%d\r\n%b\r\n"

_flat = chain.from_iterable

#: Templates are kept for requests of so many words: all but renewals.
_KEPT_WORDS = 16


@functools.cache
def script(name: str) -> tuple[str, str]:
    """Return one of :data:`SCRIPTS`, read once per process: its text, and the digest a server knows it by."""
    text = (files(__package__) / "lua" / f"{name}.lua").read_text("utf-8")
    text = re.sub(r"include\('(\w+)'\)\n", lambda found: script(found[1])[0], text)
    # The server names scripts by SHA-1; nothing is trusted because of it.
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Call(NamedTuple):
    """One answered call: its times and ``repeated`` are those of a grant.

    ``replicas`` is how many confirmed it, where that was asked for.
    """

    reply: Any
    replicas: int
    sent_at: float
    answered_at: float
    repeated: bool


#: What a call is of, in its order.
Facts: TypeAlias = tuple[Any, int, float, float, bool]


class _Asked(NamedTuple):
    """What is asked of a server: the operation, its bytes, and what else :meth:`Scripts.ask` is given."""

    operation: str
    request: bytes
    keys: Sequence[str]
    name: str
    replicas: int = 0
    within: float | None = None

    def failed(self, reason: Exception, server: str, *, was_refused: bool) -> LockUnavailable | LockKeyError:
        """Return the error to be raised."""
        words = str(reason) or type(reason).__name__
        if "WRONGTYPE" not in words:
            unavailable = LockUnavailable(server, self.operation, words)
            unavailable.was_refused = was_refused
            return unavailable
        problem = (
            f"WRONGTYPE on {server}: one of the keys {', '.join(self.keys)} is another program's, and no "
            "lock; delete or rename it, or choose another name (lock_key) or redislock_prefix"
        )
        return LockKeyError(self.name, problem)


class Scripts:
    """Runs scripts on one server. Thread-safe; safe to use after a fork.

    Every request is bounded by two socket timeouts for its two attempts. Where
    the connection is new, and its server answers slowly, each of the two to five
    answers to redis-py's greeting may take one more.
    """

    def __init__(
        self, connections: Connections, *, socket_timeout: float = 1.0, clock: Clock = boottime
    ) -> None:
        """Run scripts over these connections; ``socket_timeout``: seconds one of two attempts may take."""
        self._connections = connections
        self._socket_timeout = socket_timeout
        self._clock = clock
        # All at once: a deploy may replace the files while this process runs.
        self._scripts = {name: script(name) for name in SCRIPTS}
        self._templates = _Templates(self._scripts)

    def call(
        self,
        operation: str,
        keys: Sequence[str],
        args: Sequence[object],
        *,
        name: str,
        replicas: int = 0,
        within: float | None = None,
    ) -> Call:
        """Run one script; a request whose answer was lost is sent once more, on a new connection.

        *operation* is the script's name, *name* the lock's, for errors. ``replicas`` are asked to confirm
        (``WAIT``). ``within``: seconds for both attempts together, if less than two socket timeouts.

        Raises:
            LockUnavailable: no answer in time, or the server refused the command.
            LockKeyError: a key is of a type no lock has.
        """
        words = [*keys, *map(str, args)]
        return Call._make(self.ask(operation, len(keys), words, name, replicas, within))

    def ask(
        self,
        operation: str,
        keys: int,
        words: Sequence[str],
        name: str,
        replicas: int = 0,
        within: float | None = None,
    ) -> Facts:
        """Run a script as :meth:`call` does, given its keys and arguments in one; return a call's facts."""
        return self.begin(operation, keys, words, name, replicas, within)()

    def begin(
        self,
        operation: str,
        keys: int,
        words: Sequence[str],
        name: str,
        replicas: int = 0,
        within: float | None = None,
    ) -> Callable[..., Facts]:
        """Send a script's request; the returned function reads its answer, and raises, as :meth:`ask` does.

        It is called once, and given the clock's reading if time has passed, which does not count then. If it
        is dropped instead, its connection is closed with it. Where none is open, the request is sent then.
        """
        encoded = [*map(str.encode, words)]
        request = self._templates[operation, keys, len(encoded)] % (
            *_flat(zip(map(len, encoded), encoded)),  # noqa: B905  of one length
        )
        connection = self._connections.take()
        sock, clock, lost = connection._sock, self._clock, None
        # A connection at rest, and an answer in one piece: nearly always. Whatever else goes another way.
        is_sent = sock and not (connection.redislock_unread or replicas or within) and len(request) <= PIECE
        sent_at = clock()
        if is_sent:
            try:
                sock.sendall(request)
            except OSError as error:
                lost = error
            except BaseException:
                connection.disconnect()
                raise

        def read(now: float | None = None) -> Facts:
            begun: bytes | OSError | None = lost
            if is_sent and lost is None:
                try:
                    begun = data = sock.recv(PIECE)
                    reply = int(data[1:-2]) if is_number(data) else whole(data)
                except BlockingIOError:
                    begun = TimeoutError("no answer in time")
                except OSError as error:
                    begun = error
                except BaseException:
                    connection.disconnect()
                    raise
                else:
                    if reply is not None:
                        connection.redislock_idle.append(connection)
                        return reply, 0, sent_at, clock(), False
            asked = _Asked(operation, request, words[:keys], name, replicas, within)
            return self._converse(asked, connection, sent_at, sent_at if now is None else now, begun)

        return read

    def send(self, operation: str, *command: object, awaited: bool = True) -> Any:
        """Send a plain command; return its answer, or leave it to the next user. Raises as :meth:`call`."""
        words = [str(word) for word in command]
        asked = _Asked(operation, _packed(*words), (), operation)
        now = self._clock()
        return self._converse(asked, self._connections.take(), now, now, awaits=awaited)[0]

    def _converse(  # noqa: PLR0912  one attempt, and its repetition
        self,
        asked: "_Asked",
        connection: Any,
        sent_at: float,
        began_at: float,
        begun: bytes | OSError | None = None,
        *,
        awaits: bool = True,
    ) -> Facts:
        """Make one attempt, and a second one on a new connection if the first got no answer.

        ``begun``: what the first one has received so far, or why it got nothing; it was sent at ``sent_at``,
        and is waited for since ``began_at``. Whatever ends it before an answer is read closes the connection.
        """
        clock, patience, request = self._clock, self._socket_timeout, asked.request
        if asked.replicas:
            # Half the time, so that it answers before the socket gives up.
            request += _packed("WAIT", asked.replicas, max(1, round(patience * 500)))
        if asked.within is not None:
            patience = min(patience, max(asked.within, 0.002) / 2)
        give_up, count = began_at + 2 * patience, 2 if asked.replicas else 1
        was_refused = True
        for repeated in (False, True):
            try:
                if isinstance(begun, OSError):
                    raise begun  # noqa: TRY301  one place for what a lost answer costs
                if begun is None:
                    send(_ready(connection, patience, give_up, clock), request, give_up, clock)
                sock = connection._sock
                replies: list[Any] = [None]
                if awaits:
                    sock.settimeout(left_of(give_up, clock, patience))
                    replies = answers(sock, begun or sock.recv(PIECE), count, give_up, clock)
                if replies[0].__class__ is ErrorReply and str(replies[0]).startswith("NOSCRIPT"):
                    sock.settimeout(left_of(give_up, clock, patience))
                    send(sock, self._in_full(asked.operation, request), give_up, clock)
                    replies = answers(sock, sock.recv(PIECE), count, give_up, clock)
                rest(sock, self._socket_timeout)
                connection.redislock_unread += not awaits
            except (redis.RedisError, OSError) as error:
                lost: Exception = error
                was_refused = False
            except BaseException:
                # SystemExit from a signal in the middle of a reply: the stream is out of step.
                connection.disconnect()
                raise
            else:
                reply = replies[0]
                if reply.__class__ is not ErrorReply:
                    self._connections.give_back(connection)
                    return reply, replies[1] if asked.replicas else 0, sent_at, clock(), repeated
                lost = reply
                if not any(code in str(reply) for code in _OF_CONNECTION):
                    self._connections.give_back(connection)
                    break
            connection.disconnect()
            if not repeated:
                connection, sent_at, begun = self._connections.take_new(), clock(), None
        raise asked.failed(lost, self._connections.server, was_refused=was_refused) from lost

    def _in_full(self, operation: str, request: bytes) -> bytes:
        """Return a request with its script's text in place of the digest."""
        text, sha = self._scripts[operation]
        by_digest, body = _EVALSHA % sha.encode(), text.encode()
        return request.replace(by_digest, _EVAL % (len(body), body), 1)


class _Templates(dict[tuple[str, int, int], bytes]):
    """What requests are made of, by operation, number of keys, and of words in all: one ``%`` fills it."""

    def __init__(self, scripts: Mapping[str, tuple[str, str]]) -> None:
        super().__init__()
        self._scripts = scripts

    def __missing__(self, shape: tuple[str, int, int]) -> bytes:
        operation, keys, words = shape
        head = b"*%d\r\n" % words
        if operation in self._scripts:
            sha = self._scripts[operation][1].encode()
            head = b"*%d\r\n" % (words + 3) + _EVALSHA % sha + _WORD % (len(str(keys)), b"%d" % keys)
        template = head + _WORD * words
        if words <= _KEPT_WORDS:
            self[shape] = template
        return template


def _ready(connection: Any, patience: float, give_up: float, clock: Clock) -> Any:
    """Return the socket of a connection, ready for a request: connect, read the answers nobody waited for.

    Connects by ``connect()``, which a Sentinel's connection overrides to ask for
    the primary. Connecting, each answer to a greeting (two to five), the unread
    answers, and then the request and its answer may take ``patience`` seconds
    each, as long as it is not ``give_up`` when they begin.

    Raises:
        OSError: a step failed, or took too long.
        redis.RedisError: redis-py could not connect.
    """
    if connection._sock is None:
        connection.socket_timeout = connection.socket_connect_timeout = left_of(give_up, clock, patience)
        connection.connect()
        if connection.can_read(0):
            raise Nonsense(b"something after its greeting")
    sock = connection._sock
    if connection.redislock_unread:
        sock.settimeout(left_of(give_up, clock, patience))
        for reply in answers(sock, sock.recv(PIECE), connection.redislock_unread, give_up, clock):
            if reply.__class__ is ErrorReply:
                logger.debug("a request whose answer was not awaited failed: %s", reply)
        connection.redislock_unread = 0
    sock.settimeout(left_of(give_up, clock, patience))
    return sock


def _packed(*words: object) -> bytes:
    """Return a command as the protocol wants it."""
    encoded = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(_WORD % (len(word), word) for word in encoded)
