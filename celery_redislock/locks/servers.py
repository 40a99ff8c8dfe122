"""Several servers that are asked as one: a request goes to all, and one deadline ends the wait for them.

What one server does not answer is no error here: the others decide without it. So an attempt is repeated
only where a connection broke, which shows at once. A server that is silent, or cannot be reached, is *away*:
the others are not kept waiting for it again. It is tried in the background once a second.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Lock, Thread
from typing import Any, NamedTuple, TypeAlias

from celery_redislock.exceptions import LockKeyError, LockOptionError, LockUnavailable
from celery_redislock.locks.clock import Clock, boottime
from celery_redislock.locks.connection import Connections
from celery_redislock.locks.scripts import _OF_CONNECTION, OTHER_SHAPES, Scripts, Understand, _ready
from celery_redislock.locks.wire import PIECE, Answers, ErrorReply, Nonsense, send, whole

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
        self, servers: Sequence[Connections], decide: Mapping[str, Decide], *, clock: Clock = boottime
    ) -> None:
        """Run those scripts on these servers for which there is a function that decides."""
        super().__init__(servers[0], clock=clock)
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
        patience = self._socket_timeout
        if within is not None:
            patience = min(patience, max(within, 0.002) / 2)
        give_up = clock() + 2 * patience
        found: list[Any] = [None] * len(self._servers)
        left = dict.fromkeys(range(len(found)), _Attempt(call.request))
        first_sent_at = math.inf
        # Again where a connection broke, and then in full where the server is new and knows no script.
        for _ in range(3):
            lent = self._lend(call, left, found, min(clock() + patience, give_up))
            sent_at = clock()
            first_sent_at = min(first_sent_at, sent_at)
            by = min(sent_at + patience, give_up)
            again: dict[int, _Attempt] = {}
            try:
                unsent = _send_all(lent, left, give_up, clock)
                for at in [*lent]:
                    connection = lent[at]
                    answer, more = self._hear(call, at, connection, left[at], unsent, first_sent_at, by)
                    found[at] = answer
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
        return found

    def _hear(
        self, call: _Call, at: int, connection: Any, attempt: _Attempt,
        unsent: Mapping[int, OSError], sent_at: float, by: float,
    ) -> tuple[Any, _Attempt | None]:  # fmt: skip
        """Return one server's answer, or an error, and how it is to be asked again, if at all.

        An answer is waited for until ``by``, a reading of the clock; after that it must be there.
        """
        server = self._servers[at]
        timeout = self._socket_timeout
        clock = self._clock
        try:
            if at in unsent:
                raise unsent[at]
            sock = connection._sock
            left = by - clock()
            if is_late := left < 0.99 * timeout:
                sock.settimeout(max(AT_ONCE, left))
            data = sock.recv(PIECE)
            reply = whole(data)
            if reply is None:
                is_late = True
                reply = Answers(sock, data, max(by, clock() + AT_ONCE), clock).read(1, of_script=True)[0]
            if is_late:
                sock.settimeout(timeout)  # at rest again
            if reply.__class__ is not ErrorReply:
                answer = call.understand(call.name, reply, sent_at, clock(), attempt.is_repeated)
                server.trouble = None
                return answer, None
        except (OSError, *OTHER_SHAPES) as error:
            connection.disconnect()
            server.connections.drop_idle()
            lost = error if isinstance(error, OSError) else Nonsense(data)
            if isinstance(lost, TimeoutError):
                server.is_away(lost)
            is_to_repeat = not (attempt.is_repeated or isinstance(lost, TimeoutError))
            more = _Attempt(attempt.request, is_repeated=True) if is_to_repeat else None
            return self._failed(call, server, lost), more
        more = None
        if str(reply).startswith("NOSCRIPT"):
            more = attempt._replace(request=self._in_full(call.operation, call.request))
        if any(code in str(reply) for code in _OF_CONNECTION):
            connection.disconnect()
        return self._failed(call, server, reply, was_refused=True), more

    def _lend(self, call: _Call, asked: Iterable[int], found: list[Any], by: float) -> dict[int, Any]:
        """Return connections to the servers that are asked, new ones where none is at rest.

        All that are missing are opened at once, each by a thread, so that several that do not answer take no
        longer than one. *found* gets an error for each server there is no connection to.
        """
        lent: dict[int, Any] = {}
        openings: dict[int, _Opening] = {}
        for at in asked:
            server = self._servers[at]
            connection = server.connections.take()
            if connection._sock is not None:
                lent[at] = connection
            elif server.may_be_tried():
                openings[at] = _Opening(server, connection, self._socket_timeout, self._clock)
                openings[at].start()
            else:
                found[at] = self._failed(call, server, server.trouble, was_sent=False)
        if not openings:
            return lent
        hopeful = [at for at, opening in openings.items() if not opening.was_in_trouble]
        is_hopeless = len(lent) + len(hopeful) < self._majority
        for at, opening in openings.items():
            if is_hopeless or at in hopeful:
                opening.join(max(0.0, by - self._clock()))
            error = opening.leave()
            if error is None:
                lent[at] = opening.connection
            else:
                found[at] = self._failed(call, self._servers[at], error, was_sent=False)
        return lent

    def _failed(
        self, call: _Call, server: "_Server", lost: Any, **how: bool
    ) -> LockUnavailable | LockKeyError:
        return self._failure(call.operation, call.keys, call.name, server.connections, lost, **how)


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
            _ready(self.connection, None, timeout, self._clock() + 2 * timeout, self._clock)
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


def _send_all(
    lent: Mapping[int, Any], attempts: Mapping[int, _Attempt], give_up: float, clock: Clock
) -> Mapping[int, OSError]:
    """Send a request on each connection; return why it could not be sent on some."""
    unsent: dict[int, OSError] = {}
    for at, connection in lent.items():
        request = attempts[at].request
        try:
            if len(request) <= PIECE:
                connection._sock.sendall(request)
            else:
                send(connection._sock, request, give_up, clock)
                connection._sock.settimeout(connection.socket_timeout)
        except OSError as error:
            unsent[at] = error
    return unsent
