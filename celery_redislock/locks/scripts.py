"""Sending the scripts: one round trip each, bounded, and repeated once where the answer got lost.

Scripts are sent by digest (EVALSHA) and in full (EVAL) when the server does
not know them: two trips, and no third one can fail. They carry no ``#!lua``
line, because such a script is refused under OOM even when it only releases.
"""

import functools
import hashlib
import logging
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import redis

from celery_redislock.exceptions import LockKeyError, LockUnavailable
from celery_redislock.locks.clock import Clock, boottime
from celery_redislock.locks.connection import Connections, connect_by
from celery_redislock.locks.wording import words_of, wrong_kind

__all__ = ["SCRIPTS", "Call", "Script", "Scripts"]

logger = logging.getLogger("celery_redislock")

#: The scripts of this package, one file each under ``lua/``.
SCRIPTS = ("acquire", "force_release", "hand_on", "inspect", "names", "release", "renew")


class Script(NamedTuple):
    """One script: its text, and the digest a server knows it by."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> "Script":
        """Return the script with this text."""
        # The server names scripts by SHA-1; nothing is trusted because of it.
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    @classmethod
    def load(cls, name: str) -> "Script":
        """Read one of :data:`SCRIPTS` from the package, once per process."""
        return _load(name)


class Call(NamedTuple):
    """One answered call. Not frozen only because that would cost more than the rest of its making.

    Attributes:
        reply: the script's.
        replicas: how many confirmed it, where that was asked for.
        sent_at: this process's clock just before the answered request was sent.
        answered_at: the same clock when the answer came.
        repeated: an earlier request got no answer; it may have had its effect.
    """

    reply: Any
    replicas: int
    sent_at: float
    answered_at: float
    repeated: bool


class Scripts:
    """Runs scripts on one server. Thread-safe; safe to use after a fork."""

    def __init__(
        self, connections: Connections, *, socket_timeout: float = 1.0, clock: Clock = boottime
    ) -> None:
        """Run scripts over these connections.

        Args:
            connections: to one server.
            socket_timeout: seconds one attempt may take to be answered; two are made.
            clock: of this process, running through suspends; injected by tests.
        """
        self._connections = connections
        self._socket_timeout = socket_timeout
        self._clock = clock
        self._scripts = {name: Script.load(name) for name in SCRIPTS}

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
        """Run one script; a request whose answer got lost is sent once more, on a new connection.

        Args:
            operation: the script's name.
            keys: its KEYS.
            args: its ARGV.
            name: of the lock, for errors.
            replicas: how many are asked to confirm (``WAIT``).
            within: seconds for both attempts together, if less than two socket timeouts.

        Raises:
            LockUnavailable: no answer in time, or the server refused the command.
            LockKeyError: a key is of a type no lock has.
        """
        patience = self._socket_timeout
        if within is not None:
            patience = min(patience, max(within, 0.002) / 2)
        request = _Request(operation, keys, args, name, replicas, self._clock() + 2 * patience)
        try:
            return self._attempt(request, self._connections.take(), patience, repeated=False)
        except _NoAnswer as first:
            lost, patience = first, min(patience, request.give_up - self._clock())
        if patience > 0:
            try:
                connection = self._connections.take_new(within=patience)
                return self._attempt(request, connection, patience, repeated=True)
            except _NoAnswer as second:
                lost = second
        raise LockUnavailable(self._connections.server, operation, str(lost)) from lost.__cause__

    def send(self, operation: str, *command: object) -> None:
        """Send a command without waiting for its answer; whoever uses the connection next reads it.

        Args:
            operation: its name in errors.
            *command: the command and its arguments.

        Raises:
            LockUnavailable: it could not be sent.
        """
        give_up = self._clock() + 2 * self._socket_timeout
        connection = self._connections.take()
        try:
            self._send(connection, command, give_up)
        except (redis.RedisError, OSError):
            connection.disconnect()
            connection = self._connections.take_new(within=self._socket_timeout)
            try:
                self._send(connection, command, give_up)
            except (redis.RedisError, OSError) as error:
                connection.disconnect()
                raise LockUnavailable(self._connections.server, operation, words_of(error)) from error
        self._connections.give_back(connection)

    def _send(self, connection: Any, command: Sequence[object], give_up: float) -> None:
        try:
            self._prepare(connection, give_up, self._socket_timeout)
            connection.send_packed_command([_packed(*command)], check_health=False)
        except BaseException:
            # Also a signal's SystemExit in the middle of it: the stream may be out of step.
            connection.disconnect()
            raise
        connection.redislock_unread += 1

    def _prepare(self, connection: Any, give_up: float, patience: float) -> None:
        """Connect, or read the answers to what was sent without waiting for them."""
        connect_by(connection, give_up, patience=patience, clock=self._clock)
        while connection.redislock_unread:
            left = min(patience, give_up - self._clock())
            if left <= 0 or not connection.can_read(left):
                raise redis.TimeoutError("no answer in time to an earlier request")
            try:
                connection.read_response()
            except redis.ResponseError as error:
                logger.debug("%s refused a mark: %s", self._connections.server, error)
            connection.redislock_unread -= 1

    def info(self, section: str) -> bytes:
        """Return a section of the server's INFO; one attempt.

        Raises:
            LockUnavailable: no answer in time, or the server refused.
        """
        connection = self._connections.take()
        try:
            give_up = self._clock() + 2 * self._socket_timeout
            self._prepare(connection, give_up, self._socket_timeout)
            connection.send_command("INFO", section)
            text: bytes = connection.read_response()
        except (redis.RedisError, OSError) as error:
            connection.disconnect()
            raise LockUnavailable(self._connections.server, "info", words_of(error)) from error
        self._connections.give_back(connection)
        return text

    def _attempt(self, request: "_Request", connection: Any, patience: float, *, repeated: bool) -> Call:
        sent_at = self._clock()
        try:
            reply, replicas = self._evaluate(connection, request, patience)
        except redis.ResponseError as error:
            raise self._refusal(error, request, connection) from error
        except (redis.RedisError, OSError) as error:
            connection.disconnect()
            raise _NoAnswer(words_of(error)) from error
        except BaseException:
            # SystemExit from a signal in the middle of a reply: the stream is out of step.
            connection.disconnect()
            raise
        self._connections.give_back(connection)
        return Call(reply, replicas, sent_at, self._clock(), repeated)

    def _evaluate(self, connection: Any, request: "_Request", patience: float) -> tuple[Any, int]:
        script, replicas = self._scripts[request.operation], request.replicas
        # Half the time, so that WAIT answers before the socket gives up.
        after = _packed("WAIT", replicas, max(1, round(patience * 500))) if replicas else b""
        rest = (len(request.keys), *request.keys, *request.args)
        # Otherwise the socket's own timeout will do, and asking how much time is left can be saved.
        in_hurry = connection._sock is None or patience < connection.socket_timeout
        self._prepare(connection, request.give_up, patience)
        try:
            connection.send_packed_command(
                [_packed("EVALSHA", script.sha, *rest) + after], check_health=False
            )
            reply = self._read(connection, request, patience) if in_hurry else connection.read_response()
        except redis.exceptions.NoScriptError:
            if replicas:
                self._read(connection, request, patience)
            connection.send_packed_command([_packed("EVAL", script.text, *rest) + after], check_health=False)
            reply = self._read(connection, request, patience)
        return reply, self._read(connection, request, patience) if replicas else 0

    def _read(self, connection: Any, request: "_Request", patience: float) -> Any:
        left = min(patience, request.give_up - self._clock())
        if left <= 0 or not connection.can_read(left):
            raise redis.TimeoutError("no answer in time")
        return connection.read_response()

    def _refusal(self, error: redis.ResponseError, request: "_Request", connection: Any) -> Exception:
        """Return what the server's refusal means to the caller."""
        words = words_of(error)
        moved = _is_no_primary(error, words)
        # With WAIT the stream is out of step.
        if moved or request.replicas:
            connection.disconnect()
        else:
            self._connections.give_back(connection)
        if moved:
            return _NoAnswer(words)
        if "WRONGTYPE" in words:
            return LockKeyError(request.name, self._wrong_kind(request))
        return LockUnavailable(self._connections.server, request.operation, words)

    def _wrong_kind(self, request: "_Request") -> str:
        """Say which key is in the way; asks the server once more."""
        connection, kinds = self._connections.take(), {}
        patience = min(self._socket_timeout, request.give_up - self._clock())
        try:
            connect_by(connection, request.give_up, patience=patience, clock=self._clock)
            for key in request.keys:
                connection.send_packed_command([_packed("TYPE", key)], check_health=False)
                answer = self._read(connection, request, patience)
                kinds[key] = answer.decode() if isinstance(answer, bytes) else str(answer)
        except (redis.RedisError, OSError):
            kinds = {}  # it may not be asked, or does not answer
        connection.disconnect()  # an answer may still be on its way
        wrong = wrong_kind(request.keys, kinds)
        return (
            f"on {self._connections.server} {wrong}, and so no lock of this package; "
            "delete or rename that, or choose another name (lock_key) or redislock_prefix"
        )


def _is_no_primary(error: redis.ResponseError, words: str) -> bool:
    """Whether the primary may have moved since the connection was opened.

    It leads to a replica then, or to a primary that its replicas have left. By the kind of the error, from
    whose text redis-py takes the code away (5.2.1 to 8.1.0, ``_parsers/base.py``); and by the text, because
    Redis 6.2 reports a refusal inside a script as a plain error, and redis-py has no kind for the last one.
    """
    kinds = (redis.exceptions.ReadOnlyError, redis.exceptions.MasterDownError)
    return isinstance(error, kinds) or any(code in words for code in ("READONLY", "MASTERDOWN", "NOREPLICAS"))


class _Request(NamedTuple):
    operation: str
    keys: Sequence[str]
    args: Sequence[object]
    name: str
    replicas: int
    give_up: float


class _NoAnswer(Exception):  # noqa: N818  not an error of the interface: an attempt that may be repeated
    """The outcome of an attempt is unknown, or another server must be asked."""


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


@functools.cache
def _load(name: str) -> Script:
    return Script.of((files(__package__) / "lua" / f"{name}.lua").read_text("utf-8"))
