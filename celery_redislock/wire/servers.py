"""Several servers that are asked as one: a request goes to all, and one deadline ends the wait for them.

What one server does not answer is no error here: the others decide without it. So an attempt is repeated
only where a connection broke, which shows at once. A server that is silent, or cannot be reached, is *away*:
the others are not kept waiting for it again. It is tried in the background once a second.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock, Thread
from typing import Any, NamedTuple, TypeAlias

from celery_redislock.exceptions import LockKeyError, LockOptionError, LockUnavailable
from celery_redislock.wire.clock import Clock, boottime
from celery_redislock.wire.connection import LONGEST_IDLE, Connections
from celery_redislock.wire.scripts import (
    OF_CONNECTION,
    OTHER_SHAPES,
    Scripts,
    Understand,
    failure,
    ready,
)
from celery_redislock.wire.wire import PIECE, Answers, ErrorReply, Nonsense, send, whole

#: Seconds between two attempts to reach a server that is away.
AWAY = 1.0

#: Seconds an answer is waited for that should be there by now: it may lie in the socket.
AT_ONCE = 0.001

#: Makes one answer of what each server said, or of the error in place of that; told how many are a majority.
Decide: TypeAlias = Callable[[Sequence[Any], int], Any]


class _Call(NamedTuple):
    """A script's call: what is sent, how an answer is understood, and what it is about, for errors."""

    request: bytes
    understand: Understand[Any]
    operation: str
    keys: Sequence[str]
    name: str


class _Attempt(NamedTuple):
    """What is sent to one server, and whether it may have got it before."""

    request: bytes
    is_repeated: bool = False


class Servers(Scripts):
    """Runs scripts on several servers at once. Thread-safe; safe to use after a fork.

    A request takes two socket timeouts at most for all servers together, for new connections, too.
    """

    def __init__(
        self, servers: Sequence[Connections], decide: Mapping[str, Decide], *, package: str,
        clock: Clock = boottime,
    ) -> None:  # fmt: skip
        """Run those scripts on these servers for which there is a function that decides."""
        super().__init__(servers[0], names=[*decide], packages=[package], clock=clock)
        self._servers = [_Server(each, clock) for each in servers]
        self._decide = decide
        self._majority = len(servers) // 2 + 1

    def begin(
        self, operation: str, keys: Sequence[str], args: Sequence[str], understand: Understand[Any],
        *, name: str, within: float | None = None, **_: object,
    ) -> Callable[[], Any]:  # fmt: skip
        """Return a function that asks all servers at once, and returns what they decide.

        Raises:
            LockOptionError: a quorum does not do this.
        """
        if operation not in self._decide:
            raise no_quorum(operation)
        call = _Call(self._request(operation, keys, args), understand, operation, keys, name)
        return partial(self._decided, call, within)

    def send(self, operation: str, *_command: str, **_options: Any) -> Any:
        """Refuse a plain command, which is for one server: raises LockOptionError."""
        raise no_quorum(operation)

    def _decided(self, call: _Call, within: float | None) -> Any:
        return self._decide[call.operation](self.ask(call, within=within), self._majority)

    def ask(self, call: _Call, *, within: float | None = None) -> list[Any]:
        """Ask all servers at once; return an answer, or the error that stands for it, for each in order.

        All answers are said to be to requests that were sent when the first one was.
        """
        clock = self._clock
        timeout = self._socket_timeout
        patience = timeout if within is None else min(timeout, max(within, 0.002) / 2)
        sent_at = now = clock()
        give_up = now + 2 * patience
        found: list[Any] = [None] * len(self._servers)
        left = dict.fromkeys(range(len(found)), _Attempt(call.request))
        is_long = len(call.request) > PIECE  # then sending it has set other timeouts
        # Again where a connection broke, and then in full where the server is new and knows no script.
        for _ in range(3):
            lent: dict[int, Any] = {}
            again: dict[int, _Attempt] = {}
            try:
                unsent = self._send_all(call, left, lent, found, now + patience, give_up)
                by = min(clock() + patience, give_up)
                for at in [*lent]:
                    connection = lent[at]
                    attempt = left[at]
                    data = b""
                    try:
                        if at in unsent:
                            raise unsent[at]
                        sock = connection._sock
                        if is_late := is_long or by - now < 0.99 * timeout:
                            sock.settimeout(max(AT_ONCE, by - now))
                        data = sock.recv(PIECE)
                        now = clock()
                        found[at] = call.understand(call.name, whole(data), sent_at, now, attempt.is_repeated)
                        if is_late:
                            sock.settimeout(timeout)  # at rest again
                    except (OSError, *OTHER_SHAPES) as error:
                        what = call, self._servers[at], connection, attempt
                        found[at], more = self._hear(*what, data, error, sent_at, by)
                        now = clock()
                        if more is not None:
                            again[at] = more
                    del lent[at]
                    if connection._sock is not None:
                        connection.redislock_idle.append(connection)
            finally:
                # A signal's SystemExit between request and answer: these streams are out of step.
                for connection in lent.values():
                    connection.disconnect()
            if not again:
                break
            left = again
            now = clock()
        return found

    def _hear(
        self, call: _Call, server: "_Server", connection: Any, attempt: _Attempt,
        data: bytes, error: Exception, sent_at: float, by: float,
    ) -> tuple[Any, _Attempt | None]:  # fmt: skip
        """Return an answer that is not of the usual kinds, or an error; and how to ask again, if at all.

        *data* is what came of it, *error* why that was no answer.
        """
        clock = self._clock
        try:
            if isinstance(error, OSError):
                raise error
            answers = Answers(connection._sock, data, max(by, clock() + AT_ONCE), clock)
            reply = answers.read(1, of_script=True)[0]
            connection._sock.settimeout(self._socket_timeout)  # at rest again
            if reply.__class__ is not ErrorReply:
                try:
                    return call.understand(call.name, reply, sent_at, clock(), attempt.is_repeated), None
                except OTHER_SHAPES:
                    raise Nonsense(answers.data) from None
        except OSError as lost:
            connection.disconnect()
            server.connections.drop_idle()
            more = None
            if isinstance(lost, TimeoutError):
                server.is_away(lost)
            elif not attempt.is_repeated:
                more = attempt._replace(is_repeated=True)
            return self._failed(call, server, lost), more
        more = None
        if str(reply).startswith("NOSCRIPT"):
            more = attempt._replace(request=self._in_full(call.operation, call.request))
        if any(code in str(reply) for code in OF_CONNECTION):
            connection.disconnect()
        return self._failed(call, server, reply, was_refused=True), more

    def _send_all(
        self, call: _Call, attempts: Mapping[int, _Attempt], lent: dict[int, Any], found: list[Any],
        by: float, give_up: float,
    ) -> Mapping[int, OSError]:  # fmt: skip
        """Send the requests, and return why some could not be sent; *lent* gets the connections.

        Those that are missing are opened until ``by``. *found* gets an error for each server without one.
        """
        missing: dict[int, Any] = {}
        for at in attempts:
            connection = self._servers[at].connections.take()
            if (now := self._clock()) < connection.redislock_until:
                connection.redislock_until = now + LONGEST_IDLE
                lent[at] = connection
            else:
                missing[at] = connection
        unsent = _send_each(lent, attempts, give_up, self._clock)
        if missing:
            opened = self._opened(call, missing, found, len(lent), by)
            lent |= opened
            unsent |= _send_each(opened, attempts, give_up, self._clock)
        return unsent

    def _opened(
        self, call: _Call, missing: Mapping[int, Any], found: list[Any], at_rest: int, by: float
    ) -> dict[int, Any]:
        """Open connections, all at once, each in a thread: several silent servers take no longer than one.

        Those to servers that are away are not waited for, unless there is no majority without them.
        """
        opened: dict[int, Any] = {}
        openings: dict[int, _Opening] = {}
        for at, connection in missing.items():
            server = self._servers[at]
            if server.may_be_tried():
                openings[at] = _Opening(server, connection, self._socket_timeout, self._clock)
                openings[at].start()
            else:
                found[at] = self._failed(call, server, server.trouble, was_sent=False)
        hopeful = [at for at, opening in openings.items() if not opening.was_in_trouble]
        is_hopeless = at_rest + len(hopeful) < self._majority
        for at, opening in openings.items():
            if is_hopeless or at in hopeful:
                opening.join(max(0.0, by - self._clock()))
            error = opening.leave()
            if error is None:
                opened[at] = opening.connection
            else:
                found[at] = self._failed(call, self._servers[at], error, was_sent=False)
        return opened

    def _failed(
        self, call: _Call, server: "_Server", lost: Any, *, was_refused: bool = False, was_sent: bool = True
    ) -> LockUnavailable | LockKeyError:
        where = server.connections.server
        return failure(where, call.operation, call.name, call.keys, lost, was_refused, was_sent)


class _Server:
    """One of the servers, and whether it answers.

    Attributes:
        connections: to it.
        trouble: why it is away; ``None`` while it answers.
    """

    def __init__(self, connections: Connections, clock: Clock) -> None:
        self.connections = connections
        self.trouble: BaseException | None = None
        self._clock = clock
        self._again_at = -math.inf

    def is_away(self, trouble: BaseException) -> None:
        """Note that it does not answer, and why."""
        self.trouble = trouble
        self._again_at = self._clock() + AWAY

    def may_be_tried(self) -> bool:
        """Whether to connect to it now; one that is away is tried once in a while."""
        if self.trouble is not None:
            now = self._clock()
            if now < self._again_at:
                return False
            self._again_at = now + AWAY
        return True


class _Opening(Thread):
    """A connection that is being opened, in a thread of its own.

    Who has left it is not waiting any more: the connection joins those at rest.
    """

    def __init__(self, server: _Server, connection: Any, timeout: float, clock: Clock) -> None:
        super().__init__(name="redislock-connecting", daemon=True)
        self.connection = connection
        self.was_in_trouble = server.trouble is not None
        self._server = server
        self._timeout = timeout
        self._clock = clock
        self._error: BaseException | None = TimeoutError("no connection in time")
        self._is_left = False
        self._lock = Lock()

    def run(self) -> None:
        timeout = self._timeout
        try:
            ready(self.connection, None, timeout, self._clock() + 2 * timeout, self._clock)
        except Exception as error:  # noqa: BLE001  whatever it is, this server is not there
            self._server.is_away(error)
            self._error = error
            return
        self._server.trouble = None
        with self._lock:
            self._error = None
            if self._is_left:
                self.connection.redislock_idle.append(self.connection)

    def leave(self) -> BaseException | None:
        """Wait no longer; return ``None`` where the connection is open, and the caller's."""
        with self._lock:
            error = self._error
            self._is_left = True
        if error is not None and not self.was_in_trouble and self.is_alive():
            self._server.is_away(error)
        return error


def no_quorum(what: str) -> LockOptionError:
    """Return the error of one who asks a quorum for more than exclusive locks."""
    problem = (
        f"{what!r} is nothing a quorum of servers does: it keeps exclusive locks (Lock) and nothing else; "
        "for tasks, limits and other kinds of locks connect to one server"
    )
    return LockOptionError("a quorum", [problem])


def _send_each(
    lent: Mapping[int, Any], attempts: Mapping[int, _Attempt], give_up: float, clock: Clock
) -> dict[int, OSError]:
    unsent: dict[int, OSError] = {}
    for at, connection in lent.items():
        try:
            send(connection._sock, attempts[at].request, give_up, clock)
        except OSError as error:
            unsent[at] = error
    return unsent
