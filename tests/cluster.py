"""A real Cluster on 127.0.0.1 whose slots a test can move and whose primaries it can kill."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import redis

from celery_redislock.embedded import EmbeddedServerError
from tests.acceptance.processes import free_port
from tests.facts import wait_until
from tests.servers import EmbeddedServer

#: Seconds until all nodes agree, on the busiest machine.
_PATIENCE = 60.0
_PRIMARIES = 3
_SLOTS = 16384
#: Milliseconds after which a silent node has failed: with replicas one is elected then, without them nobody
#: could be, and a machine that stands still must not close the Cluster.
_ELECTION, _NO_ELECTION = 1000, 15000


@dataclass(eq=False)
class Node:
    """One node: its process, and a client that asks it and follows no redirection."""

    server: EmbeddedServer

    @cached_property
    def client(self) -> Any:
        return redis.Redis.from_url(self.server.redis_url, decode_responses=True)

    @cached_property
    def id(self) -> str:
        return str(self.ask("MYID"))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def ask(self, *words: Any) -> Any:
        """The answer to a CLUSTER command."""
        return self.client.execute_command("CLUSTER", *words)

    def owners(self) -> dict[tuple[int, int], str]:
        """The address of the primary of each range of slots, as this node knows it."""
        told = self.ask("SLOTS")
        return {(first, last): f"{host}:{port}" for first, last, (host, port, *_), *_ in told}

    def owner(self, slot: int) -> str | None:
        """The address of a slot's primary, as this node knows it."""
        found = [address for (first, last), address in self.owners().items() if first <= slot <= last]
        return found[0] if found else None

    def knows(self, nodes: int) -> bool:
        """Whether it serves all slots, among so many nodes, and is in step with its replica or primary."""
        told = self.client.cluster("info")
        replication = self.client.info("replication")
        is_in_step = replication.get("master_link_status", "up") == "up"
        return (told["cluster_state"], told["cluster_known_nodes"]) == ("ok", str(nodes)) and is_in_step


@dataclass(eq=False)
class Cluster:
    """Its nodes, the three first ones having been its primaries when it began."""

    nodes: list[Node]

    @property
    def url(self) -> str:
        """As the store wants it: the three that were primaries first, whatever has become of them."""
        return "redis+cluster://" + ",".join(node.address for node in self.nodes[:_PRIMARIES])

    @cached_property
    def client(self) -> Any:
        """A client of all of it, for all threads."""
        return redis.RedisCluster(host="127.0.0.1", port=self.living[0].server.port or 0)

    @property
    def living(self) -> list[Node]:
        return [node for node in self.nodes if node.server.is_running]

    @property
    def primaries(self) -> list[Node]:
        """Those that have slots now."""
        owning = set(self.living[0].owners().values())
        return [node for node in self.nodes if node.address in owning]

    def slot_of(self, name: str) -> int:
        """The slot of all keys of a lock."""
        return int(self.living[0].ask("KEYSLOT", f"{{{name}}}"))

    def node_of(self, name: str) -> Node:
        """The primary that keeps a lock."""
        return self._owner(self.slot_of(name))

    def other_than(self, node: Node) -> Node:
        """Another primary."""
        return next(each for each in self.primaries if each is not node)

    def move_slot(self, slot: int, to: Node, halfway: Callable[[], object] = lambda: None) -> None:
        """Move a slot as ``redis-cli --cluster reshard`` does, key by key.

        *halfway* is called when every second key that was there has moved.
        """
        source = self._owner(slot)
        to.ask("SETSLOT", slot, "IMPORTING", source.id)
        source.ask("SETSLOT", slot, "MIGRATING", to.id)
        _migrate(source, to, sorted(source.ask("GETKEYSINSLOT", slot, _SLOTS))[::2])
        try:
            halfway()
        finally:  # or no later test could use the slot
            while keys := source.ask("GETKEYSINSLOT", slot, 100):
                _migrate(source, to, keys)
            for node in [to, source, *self.primaries]:
                node.ask("SETSLOT", slot, "NODE", to.id)
            self._wait_for_move(slot, to)

    def move_slot_atomically(self, slot: int, to: Node) -> None:
        """Move a slot as Valkey 9 does by itself, in one step."""
        self._owner(slot).ask("MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", to.id)
        self._wait_for_move(slot, to)

    def kill_primary(self, node: Node) -> None:
        """Kill a node as a crash would; :meth:`wait_failover` waits for the next one."""
        node.server.kill()

    def wait_failover(self) -> None:
        """Return when all that live serve all slots, none of them at a node that is dead."""
        living = {node.address for node in self.living}
        assert wait_until(
            lambda: all(
                node.knows(len(self.nodes)) and set(node.owners().values()) <= living for node in self.living
            ),
            _PATIENCE,
        )

    def close(self) -> None:
        """Close all clients."""
        closing: list[Any] = [self, *self.nodes]
        for each in closing:
            if "client" in each.__dict__:
                each.client.close()

    def _owner(self, slot: int) -> Node:
        address = self.living[0].owner(slot)
        return next(node for node in self.nodes if node.address == address)

    def _wait_for_move(self, slot: int, to: Node) -> None:
        assert wait_until(lambda: all(node.owner(slot) == to.address for node in self.living), _PATIENCE)


@contextmanager
def running_cluster(
    replicas: bool = True, binary: str | None = None, arguments: Callable[[], list[str]] = list
) -> Iterator[Cluster]:
    """Run three primaries, and a replica of each; all that was started ends with the block.

    Without replicas a node that is silent for a moment is not taken for dead. *arguments*: more of a node.
    """
    number = _PRIMARIES * (2 if replicas else 1)
    timeout = _ELECTION if replicas else _NO_ELECTION
    with ExitStack() as stack:
        nodes = [Node(stack.enter_context(_started(binary, timeout, arguments()))) for _ in range(number)]
        cluster = Cluster(nodes)
        stack.callback(cluster.close)
        for place, node in enumerate(nodes):
            node.ask("SET-CONFIG-EPOCH", place + 1)
            for other in nodes[:place]:
                bus = other.client.config_get("cluster-port")["cluster-port"]
                node.ask("MEET", "127.0.0.1", other.server.port, bus)
        for place, node in enumerate(nodes[:_PRIMARIES]):
            first, end = (_SLOTS * each // _PRIMARIES for each in (place, place + 1))
            node.ask("ADDSLOTSRANGE", first, end - 1)
        assert wait_until(lambda: all(node.knows(number) for node in nodes), _PATIENCE)
        for primary, replica in zip(nodes, nodes[_PRIMARIES:], strict=False):
            replica.ask("REPLICATE", primary.id)
        wanted = number // _PRIMARIES - 1
        assert wait_until(lambda: all(_online(node) == wanted for node in cluster.primaries), _PATIENCE)
        cluster.wait_failover()
        yield cluster


def _started(binary: str | None, timeout: int, more: list[str], tries: int = 5) -> EmbeddedServer:
    """A node on free ports, both of which another process may take first."""
    options = {
        "cluster-enabled": "yes",
        "cluster-port": free_port(),
        "cluster-announce-ip": "127.0.0.1",
        "cluster-node-timeout": timeout,
        "cluster-replica-validity-factor": 0,  # a machine that stands still makes no replica too old
        "repl-diskless-sync-delay": 0,
        "shutdown-timeout": 0,
    }
    args = [*more, *(str(word) for name, value in options.items() for word in (f"--{name}", value))]
    server = EmbeddedServer(port=0, binary=binary, extra_args=args)
    try:
        return server.start()
    except EmbeddedServerError:
        if tries == 1:
            raise
    return _started(binary, timeout, more, tries - 1)


def _online(node: Node) -> int:
    """How many replicas follow a node."""
    told = node.client.info("replication")
    return sum(told[f"slave{place}"]["state"] == "online" for place in range(told["connected_slaves"]))


def _migrate(source: Node, to: Node, keys: list[str]) -> None:
    if keys:
        source.client.migrate("127.0.0.1", to.server.port, keys, 0, 5000)
