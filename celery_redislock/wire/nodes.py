"""The nodes of a Cluster: where they are, and which of them serves a slot."""

import threading
from collections.abc import Mapping, Sequence
from os import getpid
from typing import Any

import redis
import redis.asyncio
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisClusterException

from celery_redislock.exceptions import LockOptionError
from celery_redislock.wire.connection import Connections, impatient, mask_password, pool_of
from celery_redislock.wire.thread import beside

#: Options of redis-py that count for all nodes, of an asyncio client; and that are not of all, or of none.
_OF_ALL = {"username", "password", "credential_provider", "client_name"}
_OF_ONE = {"host", "port", "db", "path", "connection_class", "redis_connect_func", "himport_registry"}


class Nodes:
    """The nodes of a Cluster, and which of them serves a slot; as redis-py finds them. Thread-safe.

    Attributes:
        socket_timeout: seconds for each step of a request.
    """

    def __init__(
        self,
        places: Sequence[tuple[str, int]],
        options: Mapping[str, Any],
        server: str,
        *,
        socket_timeout: float,
    ) -> None:
        """Ask one of those at these places, when the first is wanted; *options* are redis-py's for all."""
        self.server = server
        self.socket_timeout = socket_timeout
        self._places = places
        own = {name: value for name, value in options.items() if name not in _OF_ONE}
        self._options = {**own, **impatient(socket_timeout)}
        self._found: Any = None
        self._first_look = threading.Lock()
        self._pid = getpid()
        self._connections: dict[tuple[str, int], Connections] = {}

    @property
    def is_open(self) -> bool:
        """Whether a connection to some node is idle."""
        return any(each.is_open for each in self._connections.values())

    def of_slot(self, slot: int) -> Connections:
        """Return the connections to the node that serves it.

        Raises:
            redis.RedisError: no node of the Cluster answers, or none serves the slot.
        """
        if self._pid != getpid():
            # Another thread of the parent may have been looking, with a lock that nobody opens here.
            self._found = None
            self._first_look = threading.Lock()
            self._pid = getpid()
        if self._found is None:
            self.look_again()
        nodes = self._found.slots_cache.get(slot)
        if not nodes:
            message = f"no node serves slot {slot}"
            raise redis.RedisError(message)
        return self._to(nodes[0])

    def look_again(self) -> None:
        """Ask the nodes which of them serve which slots; raises as :meth:`of_slot`."""
        # 40 ms of computing: threads that begin together would each do it, and all of them run out of time.
        # A thread beside greenlets waits for no lock of theirs. Later looks are made one by redis-py.
        is_first = self._found is None and beside.get() is None
        if is_first:
            is_first = self._first_look.acquire(timeout=self.socket_timeout)
        try:
            if self._found is not None:
                if not is_first:
                    self._found.initialize()
                return
            nodes = [ClusterNode(*place) for place in self._places]  # type: ignore[no-untyped-call]
            self._found = RedisCluster(startup_nodes=nodes, **self._options).nodes_manager
        except RedisClusterException as error:  # which is no RedisError
            raise redis.ConnectionError(str(error)) from error
        finally:
            if is_first:
                self._first_look.release()

    def name_of(self, slot: int) -> object:
        """Return which node serves a slot as far as is known; asks nobody."""
        nodes = self._found and self._found.slots_cache.get(slot)
        return nodes[0].name if nodes else None

    def _to(self, node: ClusterNode) -> Connections:
        place = (node.host, node.port)
        known = self._connections.get(place)
        if known is None:
            options = {**self._options, "host": node.host, "port": node.port}
            is_tls = options.pop("ssl", False)
            kind = redis.SSLConnection if is_tls else redis.Connection
            pool = redis.ConnectionPool(connection_class=kind, **options)
            known = Connections(pool, socket_timeout=self.socket_timeout)
            known = self._connections.setdefault(place, known)
        return known

    def leads_to(self, _address: Any) -> bool:
        """No: a broker or a result backend is no Cluster."""
        return False

    def drop_idle(self) -> None:
        """Close the connections nobody is using."""
        for each in list(self._connections.values()):
            each.drop_idle()


def nodes_at(url: str, *, socket_timeout: float, where: str) -> Nodes:
    """Return the nodes of the Cluster at this URL; connects to nothing yet.

    ``redis+cluster://user:password@host:port,host:port/0?option=value``, or ``rediss+cluster://``; *where*
    the URL was found, for errors.

    Raises:
        LockOptionError: it cannot be read, or names another database than 0.
    """
    scheme, _, rest = url.partition("://")
    place, _, options = rest.partition("?")
    user, found, hosts = place.rpartition("@")
    hosts, _, database = hosts.partition("/")
    scheme = "rediss" if scheme.lower().startswith(("rediss", "valkeys")) else "redis"
    pools = [pool_of(f"{scheme}://{user}{found}{host}?{options}", where) for host in hosts.split(",")]
    if database.strip("/") not in {"", "0"}:
        problem = f"{mask_password(url)!r}: a Cluster has one database, 0; leave it out"
        raise LockOptionError(where, [problem])
    kwargs = dict(pools[0].connection_kwargs)
    places = [
        (pool.connection_kwargs.get("host", "localhost"), pool.connection_kwargs.get("port", 6379))
        for pool in pools
    ]
    if issubclass(pools[0].connection_class, redis.SSLConnection):
        kwargs["ssl"] = True
    return Nodes(places, kwargs, f"{scheme}+cluster://{hosts}", socket_timeout=socket_timeout)


def nodes_of(client: "RedisCluster | redis.asyncio.RedisCluster", *, socket_timeout: float) -> Nodes:
    """Return the nodes of the Cluster that this client knows; only its options are taken."""
    manager = client.nodes_manager
    kwargs = manager.connection_kwargs
    if not isinstance(client, RedisCluster):  # asyncio's
        is_tls = issubclass(kwargs.get("connection_class", object), redis.asyncio.SSLConnection)
        kwargs = {name: value for name, value in kwargs.items() if name in _OF_ALL or name.startswith("ssl_")}
        kwargs = {**kwargs, "ssl": is_tls}
    known: Any = manager.startup_nodes.values()
    places = [(node.host, node.port) for node in known]
    server = "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in places)
    note = f"{server} (options of a {type(client).__module__}.{type(client).__qualname__})"
    return Nodes(places, kwargs, note, socket_timeout=socket_timeout)
