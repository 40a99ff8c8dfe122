"""Sending the scripts: one round trip each, bounded, and repeated once where the answer was lost.

Scripts are sent by digest (EVALSHA), and in full (EVAL) when the server does
not know them. They carry no ``#!lua`` line, because such a script is refused
under OOM even when it only releases.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.resources import files
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import redis

from celery_redislock.exceptions import LockKeyError, LockUnavailable
from celery_redislock.log import logger
from celery_redislock.wire.clock import Clock, boottime
from celery_redislock.wire.connection import LONGEST_IDLE, Connections
from celery_redislock.wire.thread import tell
from celery_redislock.wire.wire import PIECE, Answers, ErrorReply, Nonsense, left_of, send, told, whole

#: Codes of refusals that a new connection may not meet: it leads to another server, or has logged in anew.
#: Redis 6.2 tells those of a command in a script in the middle of its text.
OF_CONNECTION = ("READONLY", "MASTERDOWN", "NOREPLICAS", "NOAUTH", "LOADING", "UNBLOCKED")

#: The words of a server without Lua, or that forbids it.
_NO_SCRIPTS = re.compile(
    r"(unknown command|permissions to run the) .?eval(sha)?\b|scripting engine", re.IGNORECASE
).search

#: Parts of a lock's keys that a script touches beside those it is given.
_BESIDE = ("line", "parked", "sent", "until", "permits", "holders", "limit")

#: What a server's words mean that sends its users elsewhere.
_REMEDIES = {
    "CROSSSLOT": "it is a node of a Cluster; give redis+cluster://host:port",
    "READONLY": "it is a replica, which takes no locks; give its primary, or the Sentinels (sentinel://...)",
    "No master found": "no Sentinel that answers knows such a primary; check master_name, and the Sentinels' "
    "addresses and password",
    "CERTIFICATE_VERIFY_FAILED": "name what has signed its certificate (?ssl_ca_certs=FILE), or trust any "
    "(?ssl_cert_reqs=none), as kombu does for a broker's",
}

#: A word of a request; how one begins that names its script by digest, and one that carries it.
_WORD = b"$%d\r\n%b\r\n"
_EVALSHA = b"$7\r\nEVALSHA\r\n$40\r\n%b\r\n"
_EVAL = b"$4\r\nEVAL\r\n$%d\r\n%b\r\n"

_flat = chain.from_iterable
_encode = str.encode

T = TypeVar("T")

#: Makes a value of a lock's name and the server's answer; told when that was sent and answered, and whether
#: it was the second attempt. Raises one of these where a well-formed answer is of another shape.
Understand: TypeAlias = Callable[[str, Any, float, float, bool], T]
OTHER_SHAPES = (TypeError, ValueError, LookupError, AttributeError)

#: A request's bytes; its script and keys, for errors; what confirms it, time, and how many seconds the server
#: may wait before it answers (``None``: its answer is not awaited).
_Call: TypeAlias = tuple[bytes, str, Sequence[str], Sequence[str], float | None, float | None]

#: Templates are kept for requests of so many words: all but renewals.
_KEPT_WORDS = 16


@cache
def script(name: str, *packages: str) -> tuple[str, str]:
    """Return a script, read once per process: its text, and the digest a server knows it by.

    It is a file under ``lua/`` of the first of these packages that has it; so are those that it includes.
    """
    paths = [files(package) / "lua" / f"{name}.lua" for package in packages]
    text = next((path for path in paths if path.is_file()), paths[-1]).read_text("utf-8")
    text = re.sub(r"include\('(\w+)'\)\n", lambda found: script(found[1], *packages)[0], text)
    return digested(text)


def digested(text: str) -> tuple[str, str]:
    """Return a script's text, and the digest a server knows it by."""
    # The server names scripts by SHA-1; nothing is trusted because of it.
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Scripts:
    """Runs scripts on one server. Thread-safe; safe to use after a fork.

    Every request is bounded by two socket timeouts for its two attempts. Where
    the connection is new, and its server answers slowly, each of the two to five
    answers to redis-py's greeting may take one more.
    """

    def __init__(
        self, connections: Connections, *, names: Sequence[str], packages: Sequence[str],
        clock: Clock = boottime,
    ) -> None:  # fmt: skip
        """Run the scripts of these names over these connections, by the socket timeout they were given.

        *packages*: as for :func:`script`.
        """
        self._connections = connections
        self._clock = clock
        self._socket_timeout = connections.socket_timeout
        # All at once: a deploy may replace the files while this process runs.
        self._scripts = {name: script(name, *packages) for name in names}
        self._templates: dict[tuple[str, int, int], bytes] = {}

    def begin(
        self,
        operation: str,
        keys: Sequence[str],
        args: Sequence[str],
        understand: Understand[T],
        *,
        name: str,
        confirm: Sequence[str] = (),
        within: float | None = None,
    ) -> Callable[[], T]:
        """Send a script's request, and return a function that reads the answer.

        It is called once; the time until then does not count. If it is dropped instead, its connection is
        closed with it. A request whose answer was lost is sent once more, on a new connection; where none is
        open, it is sent when the answer is read.

        *operation* is the script's name, *name* the lock's. ``confirm``: a command that waits until what the
        script wrote is elsewhere as well (``WAIT``), without its timeout; the answer is a list then, whose
        last item is its own. ``within``: seconds for both attempts together, if less than two socket
        timeouts.

        Raises:
            LockUnavailable: no answer in time, or the server refused the command, or *understand* could not
                make anything of what it said; of the returned function.
            LockKeyError: a key is of a type no lock has; likewise.
        """
        request = self._request(operation, keys, args)
        connection = self._connections.take()
        call = request, operation, keys, confirm, within, 0.0
        sent_at = self._clock()
        # A connection at rest, and an answer in one piece: nearly always. All else goes another way.
        if sent_at < connection.redislock_until and not (
            connection.redislock_unread or confirm or within or len(request) > PIECE
        ):
            try:
                connection._sock.sendall(request)
            except OSError as error:
                return partial(self._converse, connection, sent_at, error, understand, name, call)
            except BaseException:
                connection.disconnect()
                raise
            else:
                connection.redislock_until = sent_at + LONGEST_IDLE
                return partial(self._read, connection, sent_at, understand, name, call)
        return partial(self._converse, connection, sent_at, None, understand, name, call)

    def _read(self, connection: Any, sent_at: float, understand: Understand[T], name: str, call: _Call) -> T:
        """Read the answer to a request that was sent on a connection at rest."""
        try:
            begun = connection._sock.recv(PIECE)
        except OSError as error:
            begun = error
        except BaseException:
            connection.disconnect()
            raise
        else:
            if (reply := whole(begun)) is not None:
                try:
                    answer = understand(name, reply, sent_at, self._clock(), False)
                except OTHER_SHAPES:
                    pass  # read, and told, there
                else:
                    connection.redislock_idle.append(connection)
                    return answer
        return self._converse(connection, sent_at, begun, understand, name, call)

    def at_once(
        self, operation: str, calls: Sequence[tuple[Sequence[str], Sequence[str]]], within: float | None
    ) -> tuple[list[Any], float, float]:
        """Run a script once for each of these keys and arguments, by one request and in one attempt.

        Returns their answers, each of which may be an error, and when they were asked and had answered.
        Raises ``redis.RedisError`` and ``OSError``, after which any of them may have been carried out.
        """
        clock = self._clock
        connection = self._connections.take()
        give_up = clock() + min(within or self._socket_timeout, self._socket_timeout)
        try:
            sock = ready(connection, within, self._socket_timeout, give_up, clock)
            sent_at = clock()
            request = b"".join(self._request(operation, *call) for call in calls)
            send(sock, request, give_up, clock)
            replies = Answers(sock, sock.recv(PIECE), give_up, clock).read(len(calls), of_script=True)
            sock.settimeout(self._socket_timeout)
        except BaseException:
            connection.disconnect()
            raise
        connection.redislock_idle.append(connection)
        return replies, sent_at, clock()

    def send(
        self, operation: str, *command: str, understand: Understand[Any] | None = None, waits: float = 0.0
    ) -> Any:
        """Send a plain command; without *understand* its answer is left to the next user of the connection.

        ``waits``: seconds that the command waits on the server at most; an attempt has so much more time.

        Raises as :meth:`begin`.
        """
        awaited = None if understand is None else waits
        call = self._request(operation, (), command), operation, command[1:2], (), None, awaited
        understand = understand or (lambda *_: None)
        return self._converse(self._connections.take(), 0.0, None, understand, operation, call)

    def pipeline(
        self, operation: str, commands: Sequence[Sequence[str]], understand: Callable[[list[Any]], T]
    ) -> T:
        """Send several plain commands that only read, by one request; return what *understand* makes of it.

        Raises as :meth:`begin`, also where one of the answers is an error.
        """
        request = b"".join(self._request(operation, (), command) for command in commands)
        call = request, operation, (), (), None, 0.0
        read = partial(_understood, understand)
        return self._converse(self._connections.take(), 0.0, None, read, operation, call, len(commands))

    def _converse(  # noqa: PLR0912, PLR0915  one attempt, and its repetition
        self, connection: Any, sent_at: float, begun: Any, understand: Understand[T], name: str, call: _Call,
        count: int | None = None,
    ) -> T:  # fmt: skip
        """Make one attempt, and a second one on a new connection if the first got no answer.

        ``begun``: what the first one, sent at ``sent_at``, has received so far, or why it got nothing;
        ``None``: nothing has been sent. ``count``: of answers, where there are several.
        """
        request, operation, keys, confirm, within, awaited = call
        count = 2 if confirm else count
        waits = awaited or 0.0
        clock = self._clock
        patience = self._socket_timeout + waits
        now = clock()
        # The first one was waited for no longer than its socket waits.
        give_up = (now if begun is None else max(sent_at, now - patience)) + 2 * patience
        if confirm:
            # Half the time, so that it answers before the socket gives up.
            request += self._request(confirm[0], (), (*confirm, str(max(1, round(patience * 500)))))
        if within is not None:
            patience = min(patience, max(within, 0.002) / 2)
            give_up = now + 2 * patience
        is_script = operation in self._scripts
        was_sent = begun is not None
        was_refused = True
        replies: list[Any] = [None]
        for repeated in (False, True):
            try:
                if isinstance(begun, OSError):
                    raise begun  # noqa: TRY301  one place for what a lost answer costs
                if begun is None:
                    sock = ready(connection, within or waits or None, patience, give_up, clock)
                    sent_at = clock()
                    was_sent = True
                    send(sock, request, give_up, clock)
                sock = connection._sock
                if awaited is not None:
                    answers = Answers(sock, begun or sock.recv(PIECE), give_up, clock)
                    replies = answers.read(count or 1, of_script=is_script, of_wait=waits > 0)
                if replies[0].__class__ is ErrorReply and str(replies[0]).startswith("NOSCRIPT"):
                    sock.settimeout(left_of(give_up, clock, patience))
                    send(sock, self._in_full(operation, request), give_up, clock)
                    answers = Answers(sock, sock.recv(PIECE), give_up, clock)
                    replies = answers.read(count or 1, of_script=is_script)
                sock.settimeout(self._socket_timeout)  # at rest again
                connection.redislock_unread += awaited is None
                lost: Any = next((reply for reply in replies if reply.__class__ is ErrorReply), None)
                was_refused = was_refused and lost is replies[0]  # else only its confirmation was refused
                if lost is None:
                    try:
                        reply = replies[0] if count is None else replies
                        answer = understand(name, reply, sent_at, clock(), repeated)
                    except OTHER_SHAPES:
                        raise Nonsense(answers.data) from None
            except (redis.RedisError, OSError) as error:
                lost = error
                was_refused = False
            except BaseException:
                # SystemExit from a signal in the middle of a reply: the stream is out of step.
                connection.disconnect()
                raise
            else:
                if lost is None:
                    connection.redislock_idle.append(connection)
                    return answer
                if not any(code in str(lost) for code in OF_CONNECTION):
                    connection.redislock_idle.append(connection)
                    break
            connection.disconnect()
            if not repeated:
                connection = self._connections.take_new()
                begun = None
        server = self._connections.server
        raise failure(server, operation, name, keys, lost, was_refused, was_sent) from lost

    def _in_full(self, operation: str, request: bytes) -> bytes:
        """Return a script's request with its text, for a server that does not know it by its digest."""
        text, sha = map(str.encode, self._scripts[operation])
        return request.replace(_EVALSHA % sha, _EVAL % (len(text), text), 1)

    def _request(self, operation: str, keys: Sequence[str], args: Sequence[str]) -> bytes:
        """Return the bytes that run a script, or, where the operation is none, those of a plain command."""
        words = [*map(_encode, keys), *map(_encode, args)]
        template = self._templates.get((operation, len(keys), len(words)))
        if template is None:
            template = b"*%d\r\n" % len(words) + _WORD * len(words)
            if operation in self._scripts:
                sha = self._scripts[operation][1].encode()
                count = b"%d" % len(keys)
                head = b"*%d\r\n" % (len(words) + 3) + _EVALSHA % sha + _WORD % (len(count), count)
                template = head + _WORD * len(words)
            if len(words) <= _KEPT_WORDS:
                self._templates[operation, len(keys), len(words)] = template
        return template % (*_flat(zip(map(len, words), words)),)  # noqa: B905  of one length


def _understood(understand: Callable[[list[Any]], T], _name: str, replies: list[Any], *_: object) -> T:
    return understand(replies)


def failure(
    server: str, operation: str, name: str, keys: Sequence[str], lost: Exception, was_refused: bool,
    was_sent: bool = True,
) -> LockUnavailable | LockKeyError:  # fmt: skip
    """Return the error for a request of this operation, about this lock, that was *lost*, or refused."""
    is_late = isinstance(lost, TimeoutError | redis.TimeoutError)
    words = "no answer in time" if is_late else told(str(lost).encode(), 300) or type(lost).__name__
    words = words.partition(" : <")[0] if words.startswith("No master found") else words
    if "WRONGTYPE" in words:
        beside = [f"{key.partition('}:')[0]}}}:{part}" for key in keys if "}:" in key for part in _BESIDE]
        known = dict.fromkeys([*keys, *beside])
        problem = (
            f"WRONGTYPE on {server}: one of the keys {', '.join(known)} is another program's, and no lock; "
            "delete or rename it, or choose another name (lock_key) or redislock_prefix"
        )
        return LockKeyError(name, problem)
    words += "".join(f": {remedy}" for code, remedy in _REMEDIES.items() if code in words)
    if keys and " access " in words and " key" in words:
        words += f": allow its user ~{' ~'.join(keys)}"
    if _NO_SCRIPTS(words):
        words = (
            f"it runs no Lua scripts, of which locks are made ({words.partition(',')[0]}); load its Lua "
            "module, allow EVAL and EVALSHA, or use another server"
        )
    unavailable = LockUnavailable(server, operation, words)
    unavailable.was_refused = was_refused
    unavailable.was_sent = was_sent
    return unavailable


def ready(connection: Any, within: float | None, patience: float, give_up: float, clock: Clock) -> Any:
    """Return the socket of a connection, ready for a request: connect, read the answers nobody waited for.

    One that was idle for too long is connected anew. Each step may take ``patience`` seconds, as long as it
    is not ``give_up`` when it begins. A Sentinel's connection looks for the primary in ``connect()``.
    """
    now = clock()
    if now >= connection.redislock_until:
        connection.disconnect()
        connection.redislock_unread = 0
    connection.redislock_until = now + LONGEST_IDLE
    if connection._sock and not connection.redislock_unread and within is None:
        return connection._sock
    if connection._sock is None:
        connection.socket_timeout = connection.socket_connect_timeout = left_of(give_up, clock, patience)
        try:
            connection.connect()
        except (redis.RedisError, OSError):
            raise
        except Exception as error:
            # redis-py takes the form of some answers for granted (8.1.0, ``on_connect_check_health``).
            # Its text, not its repr: that of a password which cannot be encoded has the password in it.
            raise Nonsense(f"a greeting that raised {type(error).__name__}: {error}".encode()) from error
        if connection.can_read(0):
            raise Nonsense(b"something after its greeting")
    sock = connection._sock
    if connection.redislock_unread:
        sock.settimeout(left_of(give_up, clock, patience))
        for reply in Answers(sock, sock.recv(PIECE), give_up, clock).read(connection.redislock_unread):
            if reply.__class__ is ErrorReply:
                tell(logger.debug, "a request whose answer was not awaited failed: %s", reply)
        connection.redislock_unread = 0
    sock.settimeout(left_of(give_up, clock, patience))
    return sock
