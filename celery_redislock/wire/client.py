"""A lock server that is named by a client of redis-py's, and calls through such a client.

Where its pool makes redis-py's own connections, only its options are taken: :mod:`.connection` connects, and
its timeouts, retries and decoding count for nothing. Any other client is called itself, as a fake server, an
instrument or a proxy wants it, and :class:`ClientScripts` runs the scripts through it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, TypeAlias

import redis
from redis.client import NEVER_DECODE
from redis.connection import AbstractConnection
from redis.exceptions import NoScriptError
from redis.sentinel import SentinelManagedConnection, SentinelManagedSSLConnection

from celery_redislock.exceptions import LockOptionError, LockUnavailable
from celery_redislock.log import logger
from celery_redislock.wire.clock import Clock, boottime
from celery_redislock.wire.connection import Connections, is_cluster, place_of, pool_of
from celery_redislock.wire.nodes import Nodes, nodes_at, nodes_of
from celery_redislock.wire.scripts import OTHER_SHAPES, Scripts, T, Understand, failure, script
from celery_redislock.wire.thread import beside, has_greenlets, tell
from celery_redislock.wire.wire import Nonsense

#: What names a lock server: a URL, a client, or a callable that returns a new client.
Named: TypeAlias = "str | redis.Redis | redis.RedisCluster | Callable[[], redis.Redis]"

#: Seconds that one call through a client may take at most.
LONGEST_CALL = 5.0

#: A lease of so many of the longest calls outlives a renewal that got no answer.
CALLS_PER_TTL = 3

#: Retries that are counted one by one.
_MOST_RETRIES = 1000

#: redis-py's own connections, whose options say all of how to connect.
_OWN = {
    redis.Connection,
    redis.SSLConnection,
    redis.UnixDomainSocketConnection,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
}

#: How redis-py's own pools make them; one that does it in another way knows more than its options.
_MADE_BY = {redis.ConnectionPool.make_connection, redis.BlockingConnectionPool.make_connection}

#: Bytes are wanted whatever ``decode_responses`` says: what others wrote may be no text.
_RAW: Mapping[str, Any] = {NEVER_DECODE: []}


class Client:
    """Calls to one lock server through a client, which knows how to reach it. Thread-safe.

    Attributes:
        server: where the server is, as far as the client says, and the client's class.
        socket_timeout: seconds that one call may take, all its attempts together.
        longest_wait: seconds that a command may wait on the server without an error in the client.
        confirms: a script, and a command that waits for its effects elsewhere, can share a connection.
        is_open: the last call was answered.
    """

    is_open = False

    def __init__(
        self, client: Any, make: Callable[[], Any] | None, *, socket_timeout: float, where: str
    ) -> None:
        """Call this client; *make* returns another one, for a thread beside greenlets.

        ``socket_timeout``: of a server that is in this process, and so waits for nothing. *where* names what
        is refused.

        Raises:
            LockOptionError: a call may take longer than :data:`LONGEST_CALL`, or for ever; or gevent needs a
                client for each of two threads.
        """
        pool = client.connection_pool
        is_fake = pool.connection_class.__module__.partition(".")[0] == "fakeredis"
        self.server = f"{place_of(pool)} (through a {_kind_of(client)})"
        self.socket_timeout = socket_timeout if is_fake else longest_call(pool)
        self.confirms = hasattr(client, "pipeline") and not is_fake  # which does not know WAIT
        self._make = make
        self._clients: dict[Any, Any] = {None: client}
        name = type(client).__qualname__
        problem = ""
        if self.socket_timeout > LONGEST_CALL:
            takes = f"take {self.socket_timeout:.1f} s" if self.socket_timeout < inf else "wait for ever"
            problem = (
                f"one call of it may {takes} (its timeouts, for each of its tries, and the pauses), and a "
                f"lock needs an answer in {LONGEST_CALL:g} s; make it as {name}(…, socket_timeout=1.0, "
                "socket_connect_timeout=1.0, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0))"
            )
            if hasattr(pool, "sentinel_manager"):
                problem += ", and give its Sentinel the same as sentinel_kwargs"
        elif make is None and has_greenlets():
            problem = (
                "gevent has replaced the sockets, and the native thread that renews leases needs a client of "
                f"its own; give a callable that makes one: lambda: {name}(…)"
            )
        if problem:
            raise LockOptionError(where, [f"a {_kind_of(client)} cannot be used so: {problem}"])
        self.longest_wait = (_connection_of(pool).socket_timeout or socket_timeout) / 2

    @property
    def client(self) -> Any:
        """The client for this thread."""
        mark: Any = beside.get()
        known = self._clients.get(mark)
        if known is None and self._make is not None:
            known = self._clients[mark] = self._make()
        return known

    def leads_to(self, _address: Mapping[str, Any]) -> bool:
        """Return false: no option tells what a client of any class sees."""
        return False

    def drop_idle(self) -> None:
        """Close the connections of clients that were made for this; others are their owner's."""
        if self._make is not None:
            for client in self._clients.values():
                client.close()


class ClientScripts(Scripts):
    """Runs scripts through a client. Thread-safe; after a fork as safe as the client is.

    Every request is bounded by two of the client's longest calls: one that names a script, and one that
    carries it. What the client repeats by itself nobody sees, so every answer counts as a repetition's.
    """

    def __init__(
        self, client: Client, *, names: Sequence[str], packages: Sequence[str], clock: Clock = boottime
    ) -> None:
        """Run the scripts of these names through this client; arguments as for :class:`Scripts`."""
        self._client = client
        self._clock = clock
        self._scripts = {name: script(name, *packages) for name in names}

    def begin(
        self, operation: str, keys: Sequence[str], args: Sequence[str], understand: Understand[T],
        *, name: str, confirm: Sequence[str] = (), **_times: object,
    ) -> Callable[[], T]:  # fmt: skip
        """Return a function that sends a script's request, and reads the answer; its own timeouts count."""
        text, sha = self._scripts[operation]
        words = (len(keys), *map(str.encode, keys), *map(str.encode, args))
        call = partial(_confirmed, confirm, self._client.longest_wait) if confirm else _called

        def ask(client: Any) -> Any:
            try:
                return call(client, "EVALSHA", sha, *words)
            except NoScriptError:
                return call(client, "EVAL", text, *words)

        return partial(self._ask, ask, operation, keys, understand, name)

    def send(
        self, operation: str, *command: str, understand: Understand[Any] | None = None, **_times: object
    ) -> Any:
        """Send a plain command, and wait for its answer; a refusal that nobody is to understand is logged."""
        words = [*map(str.encode, command)]

        def ask(client: Any) -> Any:
            reply = client.execute_command(command[0], *words[1:], **_RAW)
            if isinstance(reply, dict):  # INFO, which redis-py has read
                return "\n".join(f"{field}:{value}" for field, value in reply.items()).encode()
            return reply

        try:
            return self._ask(ask, operation, command[1:2], understand or (lambda *_: None), operation)
        except LockUnavailable as error:
            if understand or not error.was_refused:
                raise
            tell(logger.debug, "a request whose answer was not awaited failed: %s", error)

    def _ask(
        self, ask: Callable[[Any], Any], operation: str, keys: Sequence[str], understand: Understand[T],
        name: str,
    ) -> T:  # fmt: skip
        server = self._client.server
        sent_at = self._clock()
        try:
            reply = ask(self._client.client)
        except Exception as error:  # a client of any class raises errors of any class
            self._client.is_open = False
            # Refused may be the repetition of a script that was carried out.
            was_refused = operation not in self._scripts and isinstance(error, redis.ResponseError)
            raise failure(server, operation, name, keys, error, was_refused) from error
        answered_at = self._clock()
        self._client.is_open = True
        try:
            return understand(name, reply, sent_at, answered_at, True)
        except OTHER_SHAPES:
            lost = Nonsense(repr(reply).encode())
        raise failure(server, operation, name, keys, lost, was_refused=False) from lost


def reach(
    named: Named, *, socket_timeout: float, through: bool = False, where: str = "lock server"
) -> Connections | Client | Nodes:
    """Return how to reach the server that a URL, a client or a callable names; connects to nothing.

    Arguments: see :func:`celery_redislock.locks.connect`. *where* names the setting for errors.

    Raises:
        LockOptionError: it cannot be read; or is no client that can be called, or whose options can be taken.
    """
    if isinstance(named, str):
        if through:
            raise LockOptionError(where, ["through=True is about a client, and this is a URL; leave it out"])
        if is_cluster(named):
            return nodes_at(named, socket_timeout=socket_timeout, where=where)
        return Connections(pool_of(named, where), socket_timeout=socket_timeout, bounds_sentinels=True)
    is_one = hasattr(named, "execute_command") and not isinstance(named, type)
    make = None if is_one or not callable(named) else named
    client: Any = named if make is None else made_by(make, where)
    pool: Any = getattr(client, "connection_pool", None)
    connects = getattr(pool, "connection_class", None)
    problem = ""
    if any(cls.__module__.startswith("redis.asyncio") for cls in type(client).__mro__):
        problem = "its calls must be awaited, and locks are used by threads"
    elif isinstance(client, redis.RedisCluster) and through:
        problem = "a Cluster's nodes are asked over our own connections, so leave through=True out"
    elif isinstance(client, redis.RedisCluster):
        return nodes_of(client, socket_timeout=socket_timeout)
    elif not isinstance(connects, type) or not issubclass(connects, AbstractConnection):
        problem = "it is no client of redis-py, or has no connection_pool that tells its options"
    elif not getattr(pool, "is_master", True):
        problem = "it leads to replicas, and locks are written; make it with master_for, not slave_for"
    if problem:
        remedy = "give a redis.Redis, a callable that returns one, or a URL"
        raise LockOptionError(where, [f"a {_kind_of(client)} cannot be used: {problem}; {remedy}"])
    is_own = connects in _OWN and getattr(type(pool), "make_connection", None) in _MADE_BY
    if is_own and not through:
        note = f" (options of a {_kind_of(client)})"
        return Connections(pool, socket_timeout=socket_timeout, bounds_sentinels=True, note=note)
    return Client(client, make, socket_timeout=socket_timeout, where=where)


def made_by(make: Callable[[], Any], where: str) -> Any:
    """Return what a callable makes; it is the caller's: what it raises becomes a :class:`LockOptionError`."""
    try:
        return make()
    except Exception as error:
        problem = f"{make!r} was called without arguments, to make a client, and raised {error!r}"
        raise LockOptionError(where, [problem]) from error


def _kind_of(client: Any) -> str:
    return f"{type(client).__module__}.{type(client).__qualname__}"


def _connection_of(pool: Any) -> Any:
    """Return a connection as the pool makes them, that is not connected."""
    return pool.connection_class(**pool.connection_kwargs)


def longest_call(pool: Any) -> float:
    """Return the seconds that one call through a redis-py pool may take; ``inf`` where nothing bounds it.

    An attempt connects, which is itself tried as often as the call is, and waits for an answer. (A server
    that greets a new connection slowly, and no slower than it may, is not counted.)
    """
    connection = _connection_of(pool)
    retries: int = connection.retry._retries
    if not 0 <= retries <= _MOST_RETRIES:
        return inf
    pauses = sum(_longest_pause(connection.retry._backoff, failures) for failures in range(1, retries + 1))
    answers = _or_ever(connection.socket_timeout)
    connects = _or_ever(connection.socket_connect_timeout)
    if connection.health_check_interval:
        connects += answers
    if hasattr(pool, "sentinel_manager"):
        connects += sum(longest_call(each.connection_pool) for each in pool.sentinel_manager.sentinels)
    waits = _or_ever(pool.timeout) if isinstance(pool, redis.BlockingConnectionPool) else 0
    return waits + (retries + 1) * ((retries + 1) * connects + pauses + answers) + pauses


def _or_ever(seconds: float | None) -> float:
    return inf if seconds is None else seconds


def _longest_pause(backoff: Any, failures: int) -> float:
    """Return the longest pause after so many failures; redis-py's grow by three at most, up to a cap."""
    if hasattr(backoff, "_cap"):
        return float(min(backoff._cap, backoff._base * 3**failures))
    return float(backoff.compute(failures))


def _called(client: Any, *words: Any) -> Any:
    """Call a script; return its answer as :class:`~.wire.Answers` reads it."""
    return _as_read(client.execute_command(*words, **_RAW))


def _confirmed(confirm: Sequence[str], seconds: float, client: Any, *words: Any) -> list[Any]:
    """Call a script, and the command that confirms it, on one connection; that waits for so long at most."""
    pipeline = client.pipeline(transaction=False)
    pipeline.execute_command(*words, **_RAW)
    pipeline.execute_command(*confirm, str(max(1, round(seconds * 1000))))
    replies = pipeline.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return [_as_read(replies[0]), replies[1]]


def _as_read(reply: Any) -> Any:
    if isinstance(reply, list | tuple):
        return [*map(_encoded, reply)]
    reply = _encoded(reply)
    return reply.split() if isinstance(reply, bytes) else reply


def _encoded(value: Any) -> Any:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
