"""A Celery app in this process: broker, results and locks in memory, and one worker's steps, by hand.

Nothing runs by itself: a test publishes, receives, and runs, each when it says so.
"""

import os
import pickle
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.app.task import Context
from celery.app.trace import trace_task_ret
from celery.worker import state as worker_state
from celery.worker.request import create_request_cls

from celery_redislock import SingletonTask
from celery_redislock.declaring.declaration import is_unique
from celery_redislock.declaring.server import use_store
from celery_redislock.exceptions import LockKeyError, LockUnavailable
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.publishing.message import HEADER, Message
from celery_redislock.receiving.renewal import UNRENEWED, Unrenewed
from celery_redislock.receiving.request import LockRequest
from celery_redislock.store.memory import MemoryStore
from celery_redislock.store.store import ACCEPTED, RUNNING, Hold, Term
from celery_redislock.wire.clock import boottime

NAME = "shop.sync"

#: The key of the tests that need one.
KEY = "account:7"

#: A process id nobody has.
ANOTHER_PROCESS = 2**22 + 1

#: Every scope, with the options that declare it.
SCOPES: Mapping[str, dict[str, Any]] = {
    "until_executed": {"lock": "until_executed"},
    "while_executing": {"lock": "while_executing"},
    "until_executing": {"lock": "until_executing"},
    "until_expired": {"lock": "until_expired", "lock_period": 50},
}


def body(account_id: int = 7, amount: int = 0) -> int:
    """What most tasks of these tests do."""
    return account_id + amount


def forget_unique(app: Any) -> None:
    """Take out the unique tasks that other tests of this process have shared with each app."""
    for name in [name for name, task in app.tasks.items() if is_unique(task)]:
        del app.tasks[name]


def raising(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    """Return what raises this, whatever it is called with; of a class a new one each time."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


#: Stands in for ``app.send_task`` while the broker is away.
no_broker = raising(OSError("no broker"))


class Down(BaseException):
    """What no ``except Exception`` catches."""


class FlakyStore(MemoryStore):
    """A store whose server is away for the next ``failures`` verbs; it writes down what it was asked.

    Its clock moves when it is told to: no hold expires because the machine stood still.
    """

    def __init__(self) -> None:
        self._now = boottime()
        super().__init__(clock=lambda: self._now)
        self.failures: float = 0
        self._is_busy = False
        self.calls: list[str] = []
        self.renewed: list[Term] = []
        self.error: Callable[[str], Exception] = lambda verb: LockUnavailable("memory", verb, "it is away")

    def _asked(self, verb: str) -> None:
        if self._is_busy:
            return  # a part of another verb
        if threading.current_thread().name == "redislock-watchdog":
            # What is owed stays owed, so that a test can count it.
            raise LockUnavailable("memory", verb, "it is away for the watchdog")
        self.calls.append(verb)
        if self.failures > 0:
            self.failures -= 1
            raise self.error(verb)

    def renew(self, terms: Sequence[Term], **kwargs: Any) -> Any:
        self._asked("renew")
        self.renewed += terms
        return super().renew(terms, **kwargs)

    def release(self, *args: Any, **kwargs: Any) -> Any:
        self._asked("release")
        with self._lock:
            self._is_busy = True
            try:
                return super().release(*args, **kwargs)
            finally:
                self._is_busy = False

    def let_pass(self, seconds: float) -> None:
        """Let holds and marks expire as if that time had passed."""
        self._now += seconds

    def marks(self) -> dict[tuple[str, str], str]:
        """Return what the marks say, by lock and message."""
        live = {which: self._live(self._marks, which) for which in list(self._marks)}
        return {which: entry[0].decode() for which, entry in live.items() if entry is not None}

    def periods(self) -> list[str]:
        """Return the locks whose period has not passed, held or not."""
        begun = [name for name in list(self._periods) if self._live(self._periods, name) is not None]
        claims = (MemoryStore.inspect(self, name) for name in self.names())
        return begun + [
            hold.name for hold in claims if hold and not hold.is_period and hold.state == ACCEPTED
        ]

    def has_wrong_type(self, name: str) -> None:
        """Answer everything from now on as a server does where the key is a list."""
        self.failures = float("inf")
        self.error = lambda _verb: LockKeyError(name, "its key holds a list, not a lock; rename one of them")


def _asked_for(verb: str) -> Callable[..., Any]:
    def ask(store: FlakyStore, *args: Any, **kwargs: Any) -> Any:
        store._asked(verb)
        return getattr(MemoryStore, verb)(store, *args, **kwargs)

    return ask


for _verb in ("acquire", "hand_on", "inspect", "mark_done"):
    setattr(FlakyStore, _verb, _asked_for(_verb))


class Shop:
    """An app, its one queue, and its locks.

    Tests of the lock store's way give it a server: ``in_memory=False`` leaves the locks to its settings.
    """

    def __init__(
        self, *, name: str = "", kind: type[Celery] = Celery, in_memory: bool = True, **settings: Any
    ) -> None:
        self.queue = name or f"shop-{secrets.token_hex(6)}"
        self.app = kind(self.queue, set_as_current=False)
        self.app.conf.update(
            {
                "broker_url": "memory://localhost",  # kombu warns of a URL without a host
                "result_backend": "cache+memory://",
                "task_default_queue": self.queue,
                # The memory of Celery's cache backend is one for all apps.
                "result_backend_transport_options": {"global_keyprefix": self.queue},
                "task_publish_retry": False,
                **settings,
            }
        )
        self.store = FlakyStore()
        use_store(self.app, self.store if in_memory else None)
        self.acks: list[str] = []
        self._reader = self.app.connection_for_read()
        self._children: list[threading.Thread] = []
        self._in_child = threading.local()
        self._is_closed = threading.Event()

    def close(self) -> None:
        """End every child that was killed, and forget the store."""
        self._is_closed.set()
        for child in self._children:
            child.join(60)
        use_store(self.app, None)
        self._reader.release()
        self.app.close()

    def unique(self, body: Callable[..., Any], *, name: str = NAME, **options: Any) -> Any:
        """Declare a unique task."""
        options = {"base": SingletonTask, "lazy": False, **options}
        # Shared, it would be declared for every app of every test.
        return self.app.task(name=name, shared=False, **options)(body)

    def noting(self, seen: list[Any], fact: Callable[[Any], Any], **options: Any) -> Any:
        """Declare a task whose body notes a fact of it, and returns its argument."""

        def note(task: Any, account_id: int = 7) -> int:
            seen.append(fact(task))
            return account_id

        return self.unique(note, bind=True, **options)

    def messages(self) -> list[Any]:
        """Take every message from the queue, oldest first."""
        found = []
        while (message := self._reader.default_channel.basic_get(self.queue, no_ack=True)) is not None:
            found.append(message)
        return found

    def message(self) -> Any:
        """Take the one message there is."""
        (message,) = self.messages()
        return message

    def receive(
        self, message: Any = None, *, redelivered: bool = False, on_ack: Callable[[], object] = bool
    ) -> LockRequest:
        """Do what the worker's main process does on receipt."""
        message = message or self.message()
        message.delivery_info["redelivered"] = redelivered

        def acknowledge(*_: Any) -> None:
            self.acks.append("ack")
            on_ack()

        # As the worker's strategy, by the class that Celery derives for the task.
        task = self.app.tasks[message.headers["task"]]
        pool = SimpleNamespace(apply_async=None)
        kind = create_request_cls(LockRequest, task, pool, "here", None, app=self.app)
        received: LockRequest = kind(
            message,
            app=self.app,
            task=task,
            on_ack=acknowledge,
            on_reject=lambda _logger, _errors, requeue: self.acks.append("requeue" if requeue else "reject"),
            hostname="here",
        )
        return received

    def run(self, request: LockRequest | None = None, *, redelivered: bool = False) -> Any:
        """Do what a pool child does with a request, and tell the main process; return what the task returned.

        An error the task ended with is returned, not raised.
        """
        request = request or self.receive(redelivered=redelivered)
        request.on_accepted(os.getpid(), time.monotonic())
        failed, value, runtime = self.child(request)
        request.on_success((failed, value, runtime))
        if not failed:
            return self.meta(request.id).get("result")
        return getattr(value.exception, "exc", None) or value.exception

    def child(self, request: LockRequest) -> Any:
        """Do what a pool child does with a request; return what it tells the main process."""
        return self._sent(request)()

    def _sent(self, request: LockRequest) -> Callable[[], Any]:
        """Return what a child does with a request, of which it has a copy."""
        return partial(
            trace_task_ret,
            request.type,
            request.id,
            pickle.loads(pickle.dumps(request.request_dict)),  # noqa: S301  as billiard does
            request.body,
            request.content_type,
            request.content_encoding,
            app=self.app,
        )

    def begin(self, request: LockRequest, *, pid: int = ANOTHER_PROCESS) -> None:
        """Let a child of another process run a request until it is killed, where ``die_here`` is called.

        It is a thread, as a fork has a store of its own. It does nothing more before the shop closes.
        """
        has_died: SimpleQueue[bool] = SimpleQueue()
        trace = self._sent(request)

        def run() -> None:
            self._in_child.has_died = has_died
            with suppress(BaseException):
                trace()
            has_died.put(False)

        child = threading.Thread(target=run, daemon=True)
        self._children.append(child)
        child.start()
        assert has_died.get(timeout=60), "the child has ended by itself"
        for token, state in self.states():
            if state == RUNNING:
                watchdog_of(self.store).forget(token)  # its own process renewed it, and has died
        request.on_accepted(pid, time.monotonic())

    def die_here(self) -> None:
        """Be killed, in a child of :meth:`begin`; elsewhere nothing happens."""
        if (has_died := getattr(self._in_child, "has_died", None)) is not None:
            has_died.put(True)
            self._is_closed.wait(60)
            raise Down

    def renewed(self) -> dict[str, Lease]:
        """Return what this process renews, by token, when all that it has in hand has lasted."""
        UNRENEWED.look()  # the next look takes out what is there now
        UNRENEWED.look()
        return self.renewed_already()

    def renewed_already(self) -> dict[str, Lease]:
        """Return what this process renews now, by token."""
        watched = watchdog_of(self.store)._watched
        return {token: lease for token, lease in watched.items() if lease.held}

    def meta(self, task_id: str) -> Mapping[str, Any]:
        """What the result backend knows."""
        meta: Mapping[str, Any] = self.app.backend.get_task_meta(task_id, cache=False)
        return meta

    def state(self, task_id: str) -> str:
        """The state in the result backend."""
        return str(self.meta(task_id)["status"])

    def holder(self, key: str) -> Hold | None:
        """Who holds a lock, without being counted as a call."""
        return MemoryStore.inspect(self.store, key)

    def held(self) -> dict[str, Hold]:
        """Every lock held now."""
        holds = [hold for name in self.store.names() if (hold := self.holder(name)) is not None]
        return {hold.name: hold for hold in holds if not hold.is_period}

    def states(self) -> list[tuple[str, str | None]]:
        """Token and state of every hold."""
        return [(hold.token, hold.facts.get("state")) for hold in self.held().values()]

    @contextmanager
    def running(
        self,
        task: Any,
        *,
        task_id: str = "t1",
        header: Message | None = None,
        args: Sequence[Any] = (7,),
        kwargs: Mapping[str, Any] | None = None,
        **request: Any,
    ) -> Iterator[Context]:
        """Push a request by hand, as the tracer does around a body."""
        from celery._state import _task_stack

        headers = {HEADER: header.dumps()} if header is not None else {}
        given = {
            "id": task_id,
            "called_directly": False,
            "args": list(args),
            "kwargs": dict(kwargs or {}),
            "headers": headers,
            "delivery_info": {"redelivered": False, "routing_key": self.queue, "exchange": ""},
            "properties": {},
            **request,
        }
        _task_stack.push(task)
        task.push_request(**given)
        try:
            yield task.request_stack.top
        finally:
            task.pop_request()
            _task_stack.pop()


def carried(message: Any) -> Message:
    """Return what a message carries about its lock."""
    header = Message.loads(message.headers.get(HEADER))
    assert header is not None
    return header


def einfo(error: BaseException) -> ExceptionInfo:
    """What billiard hands the main process when a run failed."""
    try:
        # Without what it went through before: an error that many tests share would grow with each.
        raise error.with_traceback(None)  # noqa: TRY301  a traceback is all it is for
    except BaseException:  # noqa: BLE001  whatever it is
        return ExceptionInfo()


def revoke(request: LockRequest) -> None:
    """Revoke a task whose message waits in the worker."""
    worker_state.revoked.add(request.id)
    try:
        assert request.revoked()
    finally:
        worker_state.revoked.discard(request.id)


def debts(shop: Shop, monkeypatch: Any) -> list[Callable[[], object]]:
    """Return what is owed, to be paid by the test."""
    found: list[Callable[[], object]] = []
    monkeypatch.setattr(watchdog_of(shop.store), "owe", lambda action, **_: found.append(action))
    return found


def replace(monkeypatch: Any, name: str, value: Any) -> None:
    """Replace a function in every module of the package that has it under this name."""
    for path, module in list(sys.modules.items()):
        if path.startswith("celery_redislock.") and callable(module.__dict__.get(name)):
            monkeypatch.setattr(module, name, value)


def turned_clock(shop: Shop, monkeypatch: Any) -> Callable[[int], list[tuple[int, Term]]]:
    """Return what lets seconds pass, and tells which terms were renewed in which of them."""
    watchdog = watchdog_of(shop.store)
    now = begun = boottime()
    monkeypatch.setattr(watchdog, "_has_thread", True)  # no other one looks
    monkeypatch.setattr(watchdog, "_clock", lambda: now)
    monkeypatch.setattr(shop.store, "_clock", lambda: now)
    replace(monkeypatch, "boottime", lambda: now)

    def let_pass(seconds: int) -> list[tuple[int, Term]]:
        nonlocal now
        found = []
        for second in range(seconds):
            now = begun + second
            shop.store.renewed.clear()
            watchdog._do_what_is_due()
            found += [(second, term) for term in shop.store.renewed]
        return found

    return let_pass


def no_patience(monkeypatch: Any, *, pauses: list[float] | None = None) -> None:
    """Let the worker ask again without waiting: time passes as soon as it sleeps."""
    from celery_redislock.wire.retrying import keep_trying

    now = [0.0]
    slept = pauses if pauses is not None else []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    def impatient(attempt: Callable[[], Any], *, for_seconds: float) -> Any:
        return keep_trying(attempt, for_seconds=for_seconds, clock=lambda: now[0], sleep=sleep)

    replace(monkeypatch, "keep_trying", impatient)


def let_nobody_look() -> None:
    """Begin no renewal of what a main process has received until ``Shop.renewed`` is asked."""
    Unrenewed.__init__(UNRENEWED)
    UNRENEWED._has_thread = True


@contextmanager
def open_shop() -> Iterator[Shop]:
    """A shop for as long as the context lasts."""
    shop = Shop()
    yield shop
    shop.close()
