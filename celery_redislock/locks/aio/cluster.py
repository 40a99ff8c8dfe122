"""One loop's access to a Cluster: each request goes to the node that serves the slot of its lock.

The twin of :mod:`celery_redislock.store.cluster`, whose verbs these are. The nodes are found by redis-py in a
thread, and each has connections of its own. All bells of a slot are read by one request.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from operator import methodcaller
from typing import Any

import redis
from redis.crc import key_slot

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks.aio.lock import LOOKS
from celery_redislock.locks.aio.store import Bells, Recorder, Request, Store, Verbs
from celery_redislock.store import cluster
from celery_redislock.wire.clock import boottime
from celery_redislock.wire.loop import Wires
from celery_redislock.wire.nodes import Nodes
from celery_redislock.wire.scripts import Understand

#: Slots whose bells are read at once. Who waits in another one looks from time to time.
READERS = 6


class ClusterRecorder(Recorder):
    """Gives a verb the answers that have come; its requests are those of a Cluster."""

    def __init__(self, nodes: Nodes, *, prefix: str, **options: Any) -> None:
        connections: Any = nodes  # none is opened
        super().__init__(connections, **options)
        self._prefix = prefix
        self._scripts = cluster.declaring(self._scripts)

    def begin(
        self, operation: str, keys: Sequence[str], args: Sequence[str], understand: Understand[Any],
        **more: Any,
    ) -> Any:  # fmt: skip
        """As :meth:`Recorder.begin`, of the slot of the first key."""
        slot = key_slot(keys[0].encode())
        return super().begin(operation, *cluster.in_slot(self._prefix, slot, keys, args), understand, **more)


class ClusterVerbs(Verbs, cluster.ClusterStore):
    """The verbs of a store on a Cluster, to be called by :meth:`Store.ask` only."""

    _scripts: Any

    def _runner(self, names: Sequence[str], packages: Sequence[str]) -> Any:
        names = (*names, *cluster.OF_SLOTS)
        return ClusterRecorder(self._nodes, prefix=self.prefix, names=names, packages=packages)

    def _register(self, name: str, *, is_line: bool = False) -> None:
        """Nothing: :meth:`ClusterLoopStore.answer` does."""

    def _renew_at_once(self, *_: object) -> dict[int, Any]:
        """Nothing: a loop renews one lock at a time; the watchdog's thread renews the others."""
        return {}


class ClusterLoopStore(Store):
    """Locks on a Cluster, for one event loop. From :func:`celery_redislock.locks.aio.connect`."""

    def __init__(self, beside: cluster.ClusterStore, verbs: ClusterVerbs, nodes: Nodes) -> None:
        """Made by :func:`store_at`."""
        super().__init__(beside, verbs)
        self._nodes = nodes
        self._of_node: dict[int, Wires] = {}
        self._of_slot: dict[int, Bells] = {}
        self._noted: dict[int, float] = {}
        self._unread = 0  # tasks that wait for a bell that is not read
        self._finding: asyncio.Future[tuple[BaseException | None]] | None = None

    def waiting(self) -> int:
        """Return how many tasks of this loop wait for a lock."""
        return self._unread + sum(map(len, self._of_slot.values()))

    async def aclose(self) -> None:
        """As :meth:`Store.aclose`."""
        for bells in self._of_slot.values():
            await bells.stop()
        await super().aclose()

    async def answer(self, request: Request) -> Any:
        """As :meth:`Store.answer`, by the node of the slot that the request is about."""
        if request.operation == "await_bell":
            _, bell, seconds = request.args
            return await self._await_bell(bell, float(seconds))
        slot = key_slot(request.keys[0].encode()) if request.keys else 0
        if request.operation in {"acquire", "park"}:
            await self._note(slot, is_line=request.operation == "park")
        return await self._until_answered(slot, request)

    async def listen(self, bells: Sequence[str]) -> str | None:
        """As :meth:`Store.listen`; the bells are of one slot."""
        rung: str | None = await self._until_answered(key_slot(bells[0].encode()), self.to_listen(bells))
        return rung

    async def _await_bell(self, bell: str, seconds: float) -> bool:
        slot = key_slot(bell.encode())
        for each, bells in [*self._of_slot.items()]:
            if bells.is_idle and each != slot:
                del self._of_slot[each]
        if slot not in self._of_slot and len(self._of_slot) >= READERS:
            self._unread += 1
            try:
                # Where many wait, ever more seldom, as who waits for its bell looks.
                pause = max(self.beside.patience / 4, self.waiting() / LOOKS)
                # A hand-off lives for that patience: half of it is left to be met.
                await asyncio.sleep(min(seconds, pause, self.beside.patience / 2))
            finally:
                self._unread -= 1
            return False
        bells = self._of_slot.setdefault(slot, Bells(self, cluster.tag_of(slot)))
        return await bells.await_ring(bell, seconds)

    async def _note(self, slot: int, *, is_line: bool) -> None:
        """Note that a slot is in use, before anything is kept in it."""
        if is_line or self._noted.get(slot, 0.0) < boottime():
            ms = cluster.LOOK_IN_MS if is_line else ""
            step: Any = methodcaller("note", slot, ms)
            await self.ask(step)
            self._noted[slot] = boottime() + cluster.REMEMBERED

    async def _until_answered(self, slot: int, request: Request) -> Any:
        """Ask the node of a slot, whichever that is by then, until it answers or the time is up."""
        give_up = boottime() + 2 * (self._nodes.socket_timeout + request.waits)
        asking = cluster.Asking(self.server, boottime, give_up)
        while True:
            try:
                wires = await self._wires_to(slot)
                understand = cluster.repeated(request.understand, asking.was_sent)
                return await self.send(wires, request._replace(understand=understand))
            except (LockUnavailable, redis.RedisError) as error:
                if asking.needs_nodes(error):
                    with suppress(redis.RedisError):
                        await self._look_again()
            await asyncio.sleep(cluster.PAUSE)

    async def _look_again(self) -> None:
        """Look for the nodes in a thread, once for all who ask meanwhile; raises ``redis.RedisError``."""
        if self._finding is None or self._finding.done():
            # Its error is an answer: all who wanted it may have been cancelled.
            self._finding = asyncio.gather(asyncio.to_thread(self._nodes.look_again), return_exceptions=True)
        (error,) = await asyncio.shield(self._finding)
        if error is not None:
            raise error

    async def _wires_to(self, slot: int) -> Wires:
        """Return the connections to the node of a slot; the nodes are looked for the first time."""
        if self._nodes.name_of(slot) is None:
            await self._look_again()
        connections = self._nodes.of_slot(slot)
        wires = self._of_node.get(id(connections))
        if wires is None:
            wires = self._of_node[id(connections)] = Wires(connections)
            self._wires.append(wires)
        return wires


def store_at(nodes: Nodes, **options: Any) -> Store:
    """Return a loop's store on these nodes; *options* are those of :class:`RedisStore`."""
    return ClusterLoopStore(cluster.ClusterStore(nodes, **options), ClusterVerbs(nodes, **options), nodes)
