"""One loop's access to a lock server: the verbs of a store, carried out without holding up the loop.

The file is long because the bells stand here, too: they ask by a store, and its verbs wait for them.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import redis

from celery_redislock.exceptions import LockLoopError, RedisLockError
from celery_redislock.locks.attempt import Steps
from celery_redislock.locks.watchdog import Watchdog, watchdog_of
from celery_redislock.store.joined import JoinedStore, joined_on_server
from celery_redislock.store.redisstore import RedisStore
from celery_redislock.wire.clock import boottime
from celery_redislock.wire.loop import Command, Wires
from celery_redislock.wire.scripts import OF_CONNECTION, OTHER_SHAPES, Scripts, Understand, failure
from celery_redislock.wire.wire import ErrorReply, Nonsense, expect, left_of, whole

T = TypeVar("T")

#: Seconds of one request that reads the bells; a server that has gone is noticed after them.
LISTENS = 1.0


class Request(NamedTuple):
    """What a verb asks for: the arguments of :meth:`Scripts.begin`, or a plain command's (``args``)."""

    operation: str
    keys: Sequence[str]
    args: Sequence[str]
    understand: Understand[Any]
    name: str
    confirm: Sequence[str] = ()
    waits: float = 0.0


class Asked(BaseException):
    """A verb asks for this :class:`Request`."""


class Recorder(Scripts):
    """In place of scripts that run: gives a verb the answers that have come, and leaves it at the next one.

    Attributes:
        answers: makes or raises each, in the order of the verb's requests.
    """

    answers: Iterator[Callable[[], Any]] = iter(())

    def begin(
        self, operation: str, keys: Sequence[str], args: Sequence[str], understand: Understand[T],
        *, name: str, confirm: Sequence[str] = (), waits: float = 0.0, within: float | None = None,  # noqa: ARG002
    ) -> Callable[[], T]:  # fmt: skip
        """Return the next answer; raise :class:`Asked` where there is none yet."""
        for answer in self.answers:
            return answer
        raise Asked(Request(operation, keys, args, understand, name, confirm, waits))

    def send(
        self, operation: str, *command: str, understand: Understand[Any] | None = None, waits: float = 0.0
    ) -> Any:
        """Likewise, for a plain command."""
        assert understand is not None  # noqa: S101  each answer is awaited
        return Recorder.begin(self, operation, (), command, understand, name=operation, waits=waits)()

    def command(self, request: Request, patience: float, *, in_full: bool = False) -> Command:
        """Return the request as it is sent: with the digest of its script, or in full with its text."""
        operation, keys, args, _, _, confirm, waits = request
        data = self._request(operation, keys, args)
        if operation not in self._scripts:
            return Command(data, of_script=False, of_wait=waits > 0)
        if in_full:
            data = self._in_full(operation, data)
        if confirm:
            data += self._request(confirm[0], (), (*confirm, str(max(1, round(patience * 500)))))
        return Command(data, 2 if confirm else 1)


class Verbs(RedisStore):
    """The verbs of a store, to be called by :meth:`Store.ask` only."""

    _scripts: Recorder

    def _runner(self, names: Sequence[str], packages: Sequence[str]) -> Recorder:
        connections: Any = self.connections  # none is opened
        return Recorder(connections, names=names, packages=packages)

    def ring(self, bell: str) -> bool:
        """Ring a bell."""
        return self._scripts.begin("ring", [bell], [self._note_ms], _is_rung, name=bell)()

    def pause(self, seconds: float) -> None:
        """As :meth:`LockStore.pause`; the loop runs meanwhile."""
        self._scripts.send("pause", understand=_is_rung, waits=seconds)

    def _give_back(self, name: str, token: str) -> None:
        """Nothing: the attempt that fails by it releases the hold."""


class JoinedVerbs(JoinedStore, Verbs):
    """Likewise, of locks of several names."""


class Store:
    """Locks on one server, for one event loop: that of the first request. From :func:`aio.connect`.

    ::

        async with aio.connect("redis://localhost:6379/0") as store:
            async with Lock(store, "nightly-import"):
                ...

    Attributes:
        beside: the store of the watchdog's thread, which renews the leases and pays what is owed.
        verbs: for :meth:`ask`.
    """

    def __init__(self, beside: RedisStore, verbs: Verbs, *wires: Wires) -> None:
        """Made by :func:`celery_redislock.locks.aio.connect`."""
        self.beside = beside
        self.verbs = verbs
        self._wires = [*wires]
        self._loops: list[asyncio.AbstractEventLoop] = []  # one, when it is known
        self._bells = Bells(self)

    async def __aenter__(self) -> "Store":
        self.check_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @cached_property
    def joined(self) -> "Store":
        """The store of locks of several names, beside that of single ones.

        Raises:
            LockOptionError: this store cannot take several locks in one step.
        """
        store = copy(self)
        store.beside = joined_on_server(self.beside)
        store.verbs = JoinedVerbs(self.verbs)
        return store

    @property
    def server(self) -> str:
        """Where the locks are kept, without credentials; for messages."""
        return self.beside.server

    @property
    def watchdog(self) -> Watchdog:
        """Renews the leases of this loop."""
        return watchdog_of(self.beside)

    def waiting(self) -> int:
        """Return how many tasks of this loop wait for a lock."""
        return len(self._bells)

    async def aclose(self) -> None:
        """Close the idle connections; the store stays usable. A hold that is left is still renewed."""
        await self._bells.stop()
        for wires in self._wires:
            wires.drop_idle()
        self.beside.close()
        await asyncio.sleep(0)  # the transports close in the next turn of the loop

    def check_loop(self) -> None:
        """Raise :class:`LockLoopError` in another loop than that of the first request."""
        loop = asyncio.get_running_loop()
        if not self._loops:
            self._loops.append(loop)
        elif self._loops[0] is not loop:
            raise LockLoopError(self.server)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the first request."""
        return self._loops[0]

    def tell(self, report: Callable[[], object]) -> None:
        """Call something in the loop, from any thread; not in a loop that is closed."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(report)

    async def ask(self, step: Callable[[Verbs], T]) -> T:
        """Carry out some verbs.

        *step* is called again for each answer, with those that have come before, until it needs no more: so
        it changes nothing but by its requests. Raises as the verbs do, and :class:`LockLoopError`.
        """
        self.check_loop()
        return await self._ask(step)

    async def _ask(self, step: Callable[[Verbs], T]) -> T:
        answers: list[Callable[[], Any]] = []
        verbs = self.verbs
        while True:
            verbs._scripts.answers = iter(answers)
            try:
                return step(verbs)
            except Asked as asked:
                (request,) = asked.args
            try:
                pauses = request.operation == "pause"
                answer = await (asyncio.sleep(request.waits) if pauses else self.answer(request))
                answers.append(partial(_same, answer))
            except RedisLockError as error:
                answers.append(partial(_raise, error))

    async def drive(self, steps: "Steps[T]") -> T:
        """Carry out steps, as :func:`celery_redislock.locks.attempt.drive` does in a thread."""
        self.check_loop()
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._ask(step)
                except BaseException as error:  # noqa: BLE001  they decide, also if the task is cancelled
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as last:
            value: T = last.value
            return value

    def answer(self, request: Request) -> Coroutine[Any, Any, Any]:
        """Return what a request is answered, as :meth:`Scripts.begin` does, and raises."""
        if request.operation == "await_bell":
            _, bell, seconds = request.args
            return self._bells.await_ring(bell, float(seconds))
        return self.send(self._wires[0], request)

    async def send(self, wires: Wires, request: Request) -> Any:
        """Send a request over one of these connections when it is its turn; as :meth:`answer`."""
        operation, keys, args, understand, name, confirm, waits = request
        data = self.verbs._scripts._request(operation, keys, args)
        if wires.free:
            wires.free -= 1
        else:
            try:
                await wires.turn()
            except OSError as error:  # the server does not answer
                raise self._failed(request, error, was_refused=False, was_sent=False) from error
        try:
            # A connection at rest, and an answer in one piece: nearly always. All else goes another way.
            wire = None if confirm or waits else wires.take()
            sent_at = boottime()
            if wire is not None:
                try:
                    await wire.send(data, wires.socket_timeout)
                    if (reply := whole(wire.data)) is not None:
                        answer = understand(name, reply, sent_at, boottime(), False)
                        wires.keep(wire)
                        return answer
                except OTHER_SHAPES:
                    pass  # it is told below
                except BaseException:
                    wire.close()
                    raise
            return await self._converse(wires, request, wire, sent_at)
        finally:
            wires.end_turn()

    async def _converse(  # noqa: PLR0912, PLR0915  one attempt, and its repetition
        self, wires: Wires, request: Request, begun: Any = None, sent_at: float = 0.0
    ) -> Any:
        """Make one attempt, and a second one on a new connection if the first got no answer.

        ``begun``: the connection on which the first one has been sent, at ``sent_at``; ``None``: none has.
        """
        recorder = self.verbs._scripts
        clock = boottime
        patience = wires.socket_timeout + request.waits
        give_up = (clock() if begun is None else sent_at) + 2 * patience
        command = recorder.command(request, patience)
        was_sent = begun is not None
        was_refused = True
        lost: Any = None
        for repeated in (False, True):
            wire: Any = None
            try:
                if begun is not None and not repeated:
                    wire = begun
                    replies = await wire.read(command)
                else:
                    wire = await wires.open(left_of(give_up, clock, patience))
                    sent_at = clock()
                    was_sent = True
                    replies = await wire.exchange(command, left_of(give_up, clock, patience))
                if replies[0].__class__ is ErrorReply and str(replies[0]).startswith("NOSCRIPT"):
                    in_full = recorder.command(request, patience, in_full=True)
                    replies = await wire.exchange(in_full, left_of(give_up, clock, patience))
                lost = next((reply for reply in replies if reply.__class__ is ErrorReply), None)
                was_refused = was_refused and lost is replies[0]
                if lost is None:
                    reply = replies if request.confirm else replies[0]
                    when = sent_at, clock(), repeated
                    try:
                        answer = request.understand(request.name, reply, *when)
                    except OTHER_SHAPES:
                        raise Nonsense(repr(reply).encode()) from None
            except (redis.RedisError, OSError) as error:
                lost = error
                was_refused = False
            except BaseException:
                # The task is cancelled, or the answer refused: nobody may read what comes later.
                if wire is not None:
                    wire.close()
                raise
            else:
                if lost is None:
                    wires.keep(wire)
                    return answer
                if not any(code in str(lost) for code in OF_CONNECTION):
                    wires.keep(wire)
                    break
            if wire is not None:
                wire.close()
            wires.drop_idle()
        if not was_refused:
            wires.fail(str(lost))
        raise self._failed(request, lost, was_refused=was_refused, was_sent=was_sent) from lost

    def _failed(self, request: Request, lost: Any, **facts: bool) -> RedisLockError:
        return failure(self.verbs.server, request.operation, request.name, request.keys, lost, **facts)

    async def listen(self, bells: Sequence[str]) -> str | None:
        """Wait for one of these bells for some time, and take its ring; return which has rung."""
        rung: str | None = await self._converse(self._wires[0], self.to_listen(bells))
        return rung

    def to_listen(self, bells: Sequence[str]) -> Request:
        """Return the request that waits for one of these bells."""
        command = ("BLPOP", *bells, f"{LISTENS:.3f}")
        return Request("await_bell", (), command, _which, "await_bell", (), LISTENS)


class Bells:
    """All bells that the tasks of a loop wait for, read by one request at a time.

    It is answered when one of them rings. A bell that is new is not among those it reads, so a bell of the
    loop's own is rung then, which is always among them.
    """

    def __init__(self, store: Store, name: str = "asyncio") -> None:
        """Read those of a store; *name*: of a lock in their slot, for the bell of its own."""
        self._store = store
        self._own = store.beside.bell(name, uuid4().hex)
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self._read: frozenset[str] = frozenset()
        self._rung: set[str] = set()
        self._reader: asyncio.Task[None] | None = None
        self._ringing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Nobody waits, or may ask for what has rung, and nothing is read."""
        is_read = self._reader is not None and not self._reader.done()
        return not (self._waiting or self._rung or is_read)

    async def stop(self) -> None:
        """Stop reading, if nobody waits."""
        if self._reader is not None and not self._waiting:
            self._reader.cancel()
            await asyncio.wait([self._reader])

    async def await_ring(self, bell: str, seconds: float) -> bool:
        """Wait for a bell, and take its ring; as :meth:`LockStore.await_bell`."""
        if bell in self._rung:
            self._rung.discard(bell)
            return True
        loop = asyncio.get_running_loop()
        ring = self._waiting[bell] = loop.create_future()
        timer = loop.call_later(seconds, _settle, ring, False)
        if self._reader is None or self._reader.done():
            self._reader = loop.create_task(self._listen())
        elif bell not in self._read and (self._ringing is None or self._ringing.done()):
            self._ringing = loop.create_task(self._ring_own())
        try:
            is_rung: bool = await ring
            return is_rung
        finally:
            timer.cancel()
            del self._waiting[bell]

    async def _listen(self) -> None:
        """Read the bells for as long as somebody waits for one."""
        while self._waiting:
            bells = [self._own, *self._waiting]
            self._read = frozenset(bells)
            try:
                rung = await self._store.listen(bells)
            except RedisLockError as error:
                for ring in self._waiting.values():
                    if not ring.done():
                        ring.set_exception(_copy(error))
                return
            if rung in self._waiting:
                _settle(self._waiting[rung], True)
            elif rung is not None and rung != self._own:
                # Its task looks, or asks anew, at this moment.
                self._rung.add(rung)
                loop = asyncio.get_running_loop()
                loop.call_later(self._store.beside.patience, self._rung.discard, rung)
            await asyncio.sleep(0)  # a task that was told waits for nothing any more

    async def _ring_own(self) -> None:
        # It ends soon by itself where this fails.
        with suppress(RedisLockError):
            await self._store.ask(lambda verbs: verbs.ring(self._own))


def _settle(ring: "asyncio.Future[bool]", is_rung: bool) -> None:
    if not ring.done():
        ring.set_result(is_rung)


def _is_rung(_name: str, reply: Any, *_: object) -> bool:
    (word,) = reply
    expect(word == b"rung")
    return True


def _which(_name: str, reply: Any, *_: object) -> str | None:
    if reply is None:
        return None
    bell, _text = reply
    return str(bell.decode())


def _copy(error: RedisLockError) -> RedisLockError:
    """Return an error for one more task, whose traceback is its own."""
    return type(error)(*error.args)


def _same(answer: T) -> T:
    return answer


def _raise(error: RedisLockError) -> Any:
    raise error
