"""Sending the scripts: one round trip each, bounded, and repeated once where the answer was lost.

Scripts are sent by digest (EVALSHA) and in full (EVAL) when the server does
not know them: two trips, and no third one can fail. They carry no ``#!lua``
line, because such a script is refused under OOM even when it only releases.
"""

import functools
import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from itertools import chain
from typing import Any, NamedTuple

import redis

from celery_redislock.exceptions import LockKeyError, LockUnavailable
from celery_redislock.locks.connection import Connections
from celery_redislock.locks.lease import Clock, boottime
from celery_redislock.locks.wire import ErrorReply, Nonsense, answers, left_of, send

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
        (call,) = self._conversation(operation, keys, args, name, replicas, within)
        return call  # type: ignore[no-any-return]  # yields None first where it posts

    def begin(
        self, operation: str, keys: Sequence[str], args: Sequence[object], *, name: str, replicas: int = 0
    ) -> Callable[[], Call]:
        """Send a script's request now; the returned function reads its answer, and raises, as :meth:`call`.

        It is called once. If it is dropped instead, its connection is closed with it.
        """
        conversation = self._conversation(operation, keys, args, name, replicas, posts=True)
        next(conversation)
        return partial(next, conversation)

    def send(self, operation: str, *command: object, awaited: bool = True) -> Any:
        """Send a plain command; return its answer, or leave it to the next user. Raises as :meth:`call`."""
        (call,) = self._conversation(operation, (), command, operation, awaits=awaited)
        return call.reply

    def _conversation(  # noqa: PLR0912, PLR0915  one attempt and its repetition
        self,
        operation: str,
        keys: Sequence[str],
        args: Sequence[object],
        name: str,
        replicas: int = 0,
        within: float | None = None,
        *,
        posts: bool = False,
        awaits: bool = True,
    ) -> Iterator[Any]:
        """Make one attempt, and a second one on a new connection if the first got no answer; yield the call.

        With *posts* it yields once before, as soon as the request is sent; the time until it is asked again
        does not count. Whatever ends it before its answer is read closes the connection.
        """
        words = [*map(str.encode, map(str, (*keys, *args)))]
        template = self._templates[operation, len(keys), len(words)]
        request = template % (*chain.from_iterable(zip(map(len, words), words)),)  # noqa: B905  of one length
        clock, patience = self._clock, self._socket_timeout
        if replicas:
            # Half the time, so that it answers before the socket gives up.
            request += _packed("WAIT", replicas, max(1, round(patience * 500)))
        if within is not None:
            patience = min(patience, max(within, 0.002) / 2)
        sent_at = clock()
        give_up = sent_at + 2 * patience
        connection, was_refused = self._connections.take(), True
        for repeated in (False, True):
            try:
                sock = connection._sock
                is_hurried = sock is None or connection.redislock_unread or within is not None
                if is_hurried:
                    sock = _ready(connection, patience, give_up, clock)
                send(sock, request, give_up, clock)
                if posts:
                    posts, paused_at = False, clock()
                    yield None
                    give_up += clock() - paused_at
                replies = answers(sock, 2 if replicas else 1, give_up, clock) if awaits else [0]
                if replies[0].__class__ is ErrorReply and str(replies[0]).startswith("NOSCRIPT"):
                    is_hurried = True
                    sock.settimeout(left_of(patience, give_up, clock))
                    send(sock, self._in_full(operation, request), give_up, clock)
                    replies = answers(sock, 2 if replicas else 1, give_up, clock)
                if is_hurried:
                    sock.settimeout(self._socket_timeout)
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
                    answered_at = clock()
                    self._connections.give_back(connection)
                    yield Call(reply, replies[-1], sent_at, answered_at, repeated)
                    return
                lost = reply
                if not any(code in str(reply) for code in _OF_CONNECTION):
                    self._connections.give_back(connection)
                    break
            connection.disconnect()
            if not repeated:
                connection = self._connections.take_new()
                sent_at = clock()
        reason, server = str(lost) or type(lost).__name__, self._connections.server
        if "WRONGTYPE" not in reason:
            unavailable = LockUnavailable(server, operation, reason)
            unavailable.was_refused = was_refused
            raise unavailable from lost
        problem = (
            f"WRONGTYPE on {server}: one of the keys {', '.join(keys)} is another program's, and no lock; "
            "delete or rename it, or choose another name (lock_key) or redislock_prefix"
        )
        raise LockKeyError(name, problem) from lost

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
        connection.socket_timeout = connection.socket_connect_timeout = left_of(patience, give_up, clock)
        connection.connect()
        if connection.can_read(0):
            raise Nonsense(b"something after its greeting")
    sock = connection._sock
    if connection.redislock_unread:
        sock.settimeout(left_of(patience, give_up, clock))
        for reply in answers(sock, connection.redislock_unread, give_up, clock):
            if reply.__class__ is ErrorReply:
                logger.debug("a request whose answer was not awaited failed: %s", reply)
        connection.redislock_unread = 0
    sock.settimeout(left_of(patience, give_up, clock))
    return sock


def _packed(*words: object) -> bytes:
    """Return a command as the protocol wants it."""
    encoded = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(_WORD % (len(word), word) for word in encoded)
