"""Sending the scripts: one round trip each, bounded, and repeated once where the answer was lost.

Scripts are sent by digest (EVALSHA) and in full (EVAL) when the server does
not know them: two trips, and no third one can fail. They carry no ``#!lua``
line, because such a script is refused under OOM even when it only releases.
"""

import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias, TypeVar

import redis

from celery_redislock.exceptions import LockKeyError, LockUnavailable
from celery_redislock.locks.connection import Connections, ready
from celery_redislock.locks.lease import Clock, boottime

T = TypeVar("T")

#: Tells the seconds the next step may take. (What annotates a nested function is evaluated at each call.)
Left: TypeAlias = Callable[[], float]

#: The scripts of this package, one file each under ``lua/``.
SCRIPTS = ("acquire", "force_release", "hand_on", "inspect", "names", "release", "release_and_store", "renew")


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
        text, sha = self._scripts[operation]
        rest = (len(keys), *keys, *args)

        def attempt(connection: Any, left: Left, repeated: bool) -> Call:
            sent_at = self._clock()
            ready(connection, left)
            # Half the time, so that WAIT answers before the socket gives up.
            after = _packed("WAIT", replicas, max(1, round(left() * 500))) if replicas else b""
            command = _packed("EVALSHA", sha, *rest)
            connection.send_packed_command([command + after], check_health=False)
            try:
                reply = connection.read_response()
            except redis.exceptions.NoScriptError:
                if replicas:
                    connection.read_response()
                ready(connection, left)
                command = _packed("EVAL", text, *rest)
                connection.send_packed_command([command + after], check_health=False)
                reply = connection.read_response()
            confirmed = connection.read_response() if replicas else 0
            return Call(reply, confirmed, sent_at, self._clock(), repeated)

        try:
            return self._twice(operation, attempt, within=within, expects_more=bool(replicas))
        except LockUnavailable as error:
            if "WRONGTYPE" not in error.reason:
                raise
            problem = (
                f"WRONGTYPE on {self._connections.server}: one of the keys {', '.join(keys)} is another "
                "program's, and no lock; delete or rename it, or choose another name (lock_key) or "
                "redislock_prefix"
            )
            raise LockKeyError(name, problem) from error.__cause__

    def send(self, operation: str, *command: object, awaited: bool = True) -> Any:
        """Send a plain command; return its answer, or leave it to the next user. Raises as :meth:`call`."""

        def attempt(connection: Any, left: Left, _repeated: bool) -> Any:
            ready(connection, left)
            connection.send_packed_command([_packed(*command)], check_health=False)
            if awaited:
                return connection.read_response()
            connection.redislock_unread += 1
            return None

        return self._twice(operation, attempt)

    def _twice(
        self,
        operation: str,
        attempt: Callable[[Any, Left, bool], T],
        *,
        within: float | None = None,
        expects_more: bool = False,
    ) -> T:
        """Make one attempt, and a second one on a new connection if the first got no answer.

        *attempt* is called with a connection, the time its next step may take, and whether it is the second.
        With *expects_more* another answer follows an error, so the connection is closed.
        """
        patience = self._socket_timeout
        if within is not None:
            patience = min(patience, max(within, 0.002) / 2)
        give_up = self._clock() + 2 * patience

        def left() -> float:
            seconds = min(patience, give_up - self._clock())
            if seconds <= 0:
                raise redis.TimeoutError("no answer in time")
            return seconds

        connection = self._connections.take()
        for repeated in (False, True):
            try:
                answer = attempt(connection, left, repeated)
            except (redis.RedisError, OSError) as error:
                lost: Exception = error
                is_refusal = isinstance(error, redis.ResponseError) and not _has_moved(error)
                if is_refusal and not expects_more:
                    self._connections.give_back(connection)
                else:
                    connection.disconnect()
                if is_refusal:
                    break
            except BaseException:
                # SystemExit from a signal in the middle of a reply: the stream is out of step.
                connection.disconnect()
                raise
            else:
                self._connections.give_back(connection)
                return answer
            if not repeated:
                connection = self._connections.take_new()
        raise LockUnavailable(self._connections.server, operation, str(lost) or type(lost).__name__) from lost


def _has_moved(error: redis.ResponseError) -> bool:
    """Whether the primary may have moved since the connection was opened.

    It leads to a replica then, or to a primary that its replicas have left. By the kind of the error, from
    whose text redis-py takes the code away (5.2.1 to 8.1.0, ``_parsers/base.py``); and by the text, because
    Redis 6.2 reports a refusal inside a script as a plain error, and redis-py has no kind for the last one.
    """
    kinds = (redis.exceptions.ReadOnlyError, redis.exceptions.MasterDownError)
    codes = ("READONLY", "MASTERDOWN", "NOREPLICAS")
    return isinstance(error, kinds) or any(code in str(error) for code in codes)


def _packed(*words: object) -> bytes:
    """Return a command as the protocol wants it.

    redis-py's own packers take 1.3 (with hiredis) to 5 times as long, which was
    a tenth to a quarter of the client's time in a lock's life.
    """
    parts = [f"*{len(words)}\r\n"]
    for word in words:
        text = str(word)
        size = len(text) if text.isascii() else len(text.encode())
        parts.append(f"${size}\r\n{text}\r\n")
    return "".join(parts).encode()
