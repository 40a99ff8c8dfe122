"""One message's life: published, received, run, ended in one of many ways, and what it leaves.

All of it is seen from outside: the task, the request, Celery's tracer, the store, the results, the queue.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.backends.cache import CacheBackend
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.worker import request as celery_request
from celery.worker.consumer.control import Control
from celery.worker.strategy import default

from celery_redislock import DuplicateTask, SingletonTask, lock_acquired
from celery_redislock.declaring.scopes import SCOPES as DECLARED
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.publishing.message import HEADER
from celery_redislock.receiving.consumer import Unreceived
from celery_redislock.receiving.request import LockRequest
from celery_redislock.running.delivery import IN_HAND_OF
from celery_redislock.store.store import Hold
from tests.unit.shop import (
    ANOTHER_PROCESS,
    KEY,
    Down,
    Shop,
    body,
    carried,
    debts,
    einfo,
    no_broker,
    no_patience,
    raising,
    revoke,
)
from tests.unit.shop import SCOPES as ONE_LOCK

#: Celery treats a child that exits like one that was killed, and knows ``retry_on_worker_lost``.
EXIT_IS_LOSS = hasattr(celery_request.Request, "_worker_lost_info")

#: A tick of beat's, and the task id that all beats give it.
TICK = "shop/nightly@2026-06-01T12:00:00+00:00"
TICK_ID = "46a237d7-508c-5035-9c46-0eca41a0ca38"

#: What a claim lives for, and until when a retry waits.
QUEUE_TTL = 200
COUNTDOWN = 50

#: The scope of two locks, once it is declared.
TWO_LOCKS = "until_and_while_executing"
SCOPES: Mapping[str, dict[str, Any]] = {
    **ONE_LOCK,
    **({TWO_LOCKS: {"lock": TWO_LOCKS}} if TWO_LOCKS in DECLARED else {}),
}

LOST = WorkerLostError("killed")

#: What is done in a body, in ``before_start``, or as a result is stored; with the task.
Act = Callable[[Any], object]


class Kind(NamedTuple):
    """How a message comes to a worker."""

    call: Mapping[str, Any]
    by_name: bool = False  # nobody who publishes it knows the task
    comes_again: bool = False  # law 8: the broker may deliver it once more, also if acknowledged early
    is_redelivered: bool = False
    is_retry: bool = False
    header: Mapping[str, Any] = MappingProxyType({})  # what its header says otherwise
    kept: float = 0.0  # seconds for which the worker kept it before it started
    is_named: bool = False  # its worker has written its name into it: restored half a minute after its death


KINDS = {
    "published": Kind({"task_id": "t1"}),
    "sent by name": Kind({"task_id": "t1"}, by_name=True),
    "a tick": Kind({"task_id": TICK_ID, "headers": {"redislock_tick": TICK}}, comes_again=True),
    "a tick by name": Kind(
        {"task_id": TICK_ID, "headers": {"redislock_tick": TICK}}, by_name=True, comes_again=True
    ),
    "delivered again": Kind({"task_id": "t1"}, comes_again=True, is_redelivered=True),
    "a retry": Kind({"task_id": "t1"}, is_retry=True),
    "waited before": Kind({"task_id": "t1"}, comes_again=True, header={"was_delivered": True}),
    "kept long": Kind({"task_id": "t1"}, comes_again=True, kept=1801),
    "not kept so long": Kind({"task_id": "t1"}, kept=1700),
    "kept long, named": Kind({"task_id": "t1"}, comes_again=True, kept=16, is_named=True),
    "not so long, named": Kind({"task_id": "t1"}, kept=14, is_named=True),
    "unaware of its claim": Kind({"task_id": "t1"}, header={"claimed": False}),
    "with an eta": Kind({"task_id": "t1", "countdown": COUNTDOWN}, comes_again=True),
}


class GreenletExit(BaseException):
    """By its name: what ends a greenlet that is revoked."""


#: What ends a process, or a greenlet: nobody is told here.
EXITS = (SystemExit, KeyboardInterrupt, GreenletExit, Down)


class Checked(SingletonTask):
    """A task whose ``before_start`` may do something."""

    abstract = True
    at_start: Callable[[Any], object] = staticmethod(bool)

    def before_start(self, *_: Any) -> None:
        self.at_start(self)


class Life:
    """One message of one task, and what becomes of both. What happens to it returns it."""

    request: LockRequest

    def __init__(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch, scope: str, kind: str = "published", **options: Any
    ) -> None:
        self.shop = shop
        self.kind = KINDS[kind]
        self.ran = 0
        #: What was held whenever an outcome was stored, and whether a period stood.
        self.when_stored: set[tuple[str, bool]] = set()
        self.queue: list[Any] = []
        self.id = str(self.kind.call["task_id"])
        self.identity = ""
        self._before: set[str] = set()
        self._bodies: list[Act] = []
        self._at_store: Act = bool
        self._patch = monkeypatch
        self._owed = debts(shop, monkeypatch)
        given = {"lock_key": KEY, "lock_queue_ttl": QUEUE_TTL, **SCOPES[scope], **options}
        self.task = shop.unique(self._declare(), bind=True, base=Checked, **given)
        self._watch_results()
        self._publish()
        self.when_stored.clear()
        if self.kind.is_named:
            self.message.properties[IN_HAND_OF] = "a worker"
        self.request = shop.receive(self.message, redelivered=self.kind.is_redelivered)
        shop.acks.clear()
        if self.kind.kept:
            clock = time.time
            monkeypatch.setattr(time, "time", lambda: clock() + self.kind.kept)

    def run(self, act: Act = bool, *, start_by: Act = bool) -> "Life":
        """Let a child do this in its body; the main process is told, and need not ask the lock server.

        ``start_by``: in ``before_start``. Later bodies return. What is owed in the end is done.
        """
        self._bodies.append(act)
        self.task.at_start = start_by
        self.request.on_accepted(ANOTHER_PROCESS, time.monotonic())
        with suppress(*EXITS):
            answer = self.shop.child(self.request)
            self.shop.store.calls.clear()
            self.request.on_success(answer)
            assert self.shop.store.calls == []
        self.task.at_start = bool
        return self._pay()

    def be_killed(self, where: str) -> "Life":
        """Kill its child at some point; nobody is told."""
        die: Act = lambda _task: self.shop.die_here()  # noqa: E731
        if where == "before_start":
            self.task.at_start = die
        elif where == "body":
            self._bodies.append(die)
        else:
            self._at_store = die
        self.shop.begin(self.request)
        self.task.at_start = bool
        self.when_stored.clear()  # what it stored has not arrived
        return self

    def finish_and_be_killed(self) -> "Life":
        """Kill its child when its result is stored, before the main process is told."""
        self.request.on_accepted(ANOTHER_PROCESS, time.monotonic())
        self.shop.child(self.request)
        return self

    def tell(self, error: BaseException = LOST) -> "Life":
        """Tell the main process how the child has ended; what it has settled it settles once."""
        self.request.on_failure(einfo(error), return_ok=isinstance(error, TimeLimitExceeded))
        self.shop.store.calls.clear()
        if not getattr(self.task, "retry_on_worker_lost", False):  # or it would be retried once more
            self.request.on_failure(einfo(error), return_ok=True)
        assert self.shop.store.calls == []
        return self._pay()

    def be_stopped(self, where: str, how: str = "terminate") -> "Life":
        """Revoke it with ``terminate``, or cancel it: its body may go on until its child is dead."""
        held = self.be_killed(where).held()
        getattr(self.request, how)(SimpleNamespace(terminate_job=lambda *_: None), "TERM")
        assert self.held() == held
        self.when_stored.clear()  # as that is announced at once
        return self.tell(Terminated(15))

    def time_out(self, where: str) -> "Life":
        """Meet both limits: which of the hooks comes at the hard one differs between Celery 5.5 and 5.7."""
        held = self.be_killed(where).held()
        self.request.on_timeout(True, 50)
        assert self.held() == held
        self.request.on_timeout(False, 100)
        return self.tell(TimeLimitExceeded(100))

    def let_pass(self, seconds: float) -> "Life":
        """Let holds and marks expire."""
        self.shop.store.let_pass(seconds)
        return self

    def redeclare(self, **attributes: Any) -> "Life":
        """Reach a worker on which the task is declared in another way."""
        for name, value in attributes.items():
            setattr(self.task, name, value)
        return self

    def cut_off(
        self, requests: float = inf, error: BaseException | None = None, *, broker: bool = True
    ) -> "Life":
        """Let the lock server answer no more, or so many requests not, and ``broker=False`` take no message.

        ``error``: what is raised instead.
        """
        no_patience(self._patch)
        if not broker:
            self.shop.app.send_task = no_broker
        if error is not None:
            self._patch.setattr(self.shop.store, "error", lambda _verb: error)
        self.shop.store.failures = requests
        return self

    def at_store(self, act: Act) -> "Life":
        """Do this as an outcome is stored."""
        self._at_store = act
        return self

    def interrupt(self, where: str) -> "Life":
        """Let a signal come, once, before the body, or as the lease is about to be released."""
        watchdog = watchdog_of(self.shop.store)
        forget = watchdog.forget

        def interrupted(*_: Any, **__: Any) -> None:
            lock_acquired.disconnect(interrupted, sender=self.task)
            self._patch.setattr(watchdog, "forget", forget)
            raise Down

        if where == "before the body":
            lock_acquired.connect(interrupted, sender=self.task, weak=False)
        else:
            self._patch.setattr(watchdog, "forget", interrupted)
        return self

    def expire(self) -> "Life":
        """Wait in the worker until the message has expired."""
        self.message.headers["expires"] = "2026-01-01T00:00:00+00:00"
        self.request = self.shop.receive(self.message, redelivered=self.kind.is_redelivered)
        assert self.request.revoked()
        return self

    def be_rejected(self) -> "Life":
        """Have an ETA that is no time: Celery's strategy rejects the message before any other hook."""
        self.message.headers["eta"] = "9999-12-31T23:59:59-12:00"
        app = self.shop.app
        consumer = MagicMock(app=app, hostname="here", event_dispatcher=None, disable_rate_limits=True)
        receive = default(self.task, app, consumer)
        receive(self.message, None, lambda *_: None, lambda *_: self.shop.acks.append("reject"), [])
        return self

    def be_unreadable(self) -> "Life":
        """Be dropped by the consumer, as its body cannot be read."""
        box = SimpleNamespace(node=SimpleNamespace(handlers={"revoke": None, "terminate": None}))
        consumer: Any = SimpleNamespace(
            app=self.shop.app,
            blueprint={Control.name: SimpleNamespace(box=box)},
            on_decode_error=lambda *_: None,
        )
        Unreceived(consumer).include(consumer)
        consumer.on_decode_error(self.message, ValueError("no JSON"))
        return self

    def deliver_again(self) -> str:
        """Deliver a copy of the message: it ``runs``, it ``waits``, or it does ``nothing``."""
        self._take()
        published = len(self.queue)
        ran = self.ran
        self.shop.run(self.shop.receive(self.message, redelivered=True))
        self._take()
        if self.ran > ran:
            return "runs"
        return "waits" if len(self.queue) > published else "nothing"

    def run_queue(self) -> int:
        """Run everything that is in the queue; return how many bodies that were."""
        self._take()
        before = self.ran
        messages = self.queue
        self.queue = []
        for message in messages:
            self.shop.run(self.shop.receive(message))
        return self.ran - before

    def held(self) -> str:
        """Say in words what is held now."""
        self._take()
        locks = [hold for hold in self.shop.held().values() if hold.state != "period"]
        return ", ".join(sorted(map(self._word, locks)))

    @property
    def has_period(self) -> bool:
        """Whether its period has not passed."""
        return not {KEY, f"queued:{KEY}"}.isdisjoint(self.shop.store.periods())

    @property
    def mark(self) -> str:
        """What copies of the message are told."""
        marks = self.shop.store.marks()
        assert {message for _, message in marks} <= self._tokens() | self._before
        return next((said for (_, message), said in marks.items() if message == self.identity), "-")

    @property
    def broker(self) -> str:
        """What the broker was told, and ``again`` if the id was published once more."""
        self._take()
        again = [message for message in self.queue if message.headers["id"] == self.id]
        return " ".join(self.shop.acks + ["again"] * len(again)) or "-"

    def _word(self, hold: Hold) -> str:
        is_own = hold.token == self.identity
        is_known = hold.token in self._tokens()
        if hold.state == "running":
            names = {KEY: "lease", f"message:{self.identity}": "copies"}
            word = "" if is_known else names.get(hold.name, "")
            lasts = {5: f"dying {word}", 30: word}
        else:
            names = {KEY: "claim", f"queued:{KEY}": "place"}
            # Without a header a message brings no token, and takes over what is its id's.
            is_its = is_own or (self.kind.by_name and not is_known)
            word = names.get(hold.name, "") if is_its else "retry" if is_known and hold.name == KEY else ""
            lasts = {QUEUE_TTL: word, QUEUE_TTL + COUNTDOWN: word}
        for seconds, said in lasts.items():
            # What is told apart differs by a fifth; a machine may stand still for some seconds.
            if word and hold.owner == self.id and abs(seconds - hold.expires_in) < max(2, seconds / 10):
                return said
        return repr(hold)

    def _tokens(self) -> set[str]:
        """Tokens of the messages that are on their way, and of this one."""
        with_header = [message for message in self.queue if HEADER in message.headers]
        return {self.identity, *(carried(message).token for message in with_header)}

    def _identity(self) -> str:
        if self.kind.call.get("headers"):
            return f"{TICK_ID}/{TICK_ID[-12:]}"
        if self.kind.by_name:
            return f"t1/{self.message.properties['delivery_tag']}"
        return carried(self.message).token

    def _take(self) -> None:
        self.queue += self.shop.messages()

    def _pay(self) -> "Life":
        """Let lock server and broker answer again, and do what is owed."""
        self.shop.store.failures = 0
        self.shop.app.__dict__.pop("send_task", None)
        self._at_store = bool
        for action in self._owed:
            action()
        return self

    def _declare(self) -> Callable[..., Any]:
        def sync(task: Any, account_id: int) -> Any:
            self.ran += 1
            return self._bodies.pop(0)(task) if self._bodies else account_id

        return sync

    def _publish(self) -> None:
        if self.kind.by_name:
            self.shop.app.send_task(self.task.name, (7,), **self.kind.call)
        else:
            self.task.apply_async((7,), **self.kind.call)
        self.message = self.shop.message()
        if self.kind.is_retry:
            self._bodies.append(lambda task: task.retry(countdown=0))
            self.shop.run(self.shop.receive(self.message))
            self._before = {self._identity()}
            self._take()
            self.message = self.queue.pop()
            self.ran = 0
        self.identity = self._identity()
        if self.kind.header:
            self.message.headers[HEADER] = carried(self.message)._replace(**self.kind.header).dumps()

    def _watch_results(self) -> None:
        storing = CacheBackend.store_result

        def store(*args: Any, **kwargs: Any) -> Any:
            self.when_stored.add((self.held(), self.has_period))
            self._at_store(self.task)
            return storing(*args, **kwargs)

        self._patch.setattr(CacheBackend, "store_result", store)


def retries(task: Any) -> str:
    """Ask for a retry, and go on."""
    return str(task.retry(countdown=COUNTDOWN, throw=False))


def retries_and_fails(task: Any) -> None:
    """Ask for a retry, go on, and fail."""
    retries(task)
    raise ValueError


def becomes_another(task: Any) -> None:
    """Be replaced by a task that takes no lock."""
    task.replace(task.app.task(body, name="shop.other", shared=False).si(7))


ENDS: Mapping[str, Callable[[Life], object]] = {
    "returns": lambda life: life.run(),
    "raises": lambda life: life.run(raising(ValueError("x"))),
    "returns what cannot be stored": lambda life: life.run(lambda _task: object()),
    "Ignore": lambda life: life.run(raising(Ignore())),
    "Reject": lambda life: life.run(raising(Reject("x", requeue=False))),
    "Reject, requeued": lambda life: life.run(raising(Reject("x", requeue=True))),
    "DuplicateTask": lambda life: life.run(raising(DuplicateTask("k", "t", 1.0))),
    "retry": lambda life: life.run(lambda task: task.retry(countdown=COUNTDOWN)),
    "retry, returns": lambda life: life.run(retries),
    "retry, raises": lambda life: life.run(retries_and_fails),
    "raises Retry": lambda life: life.run(raising(Retry())),
    "replaced by itself": lambda life: life.run(lambda task: task.replace(task.si(7))),
    "replaced by another": lambda life: life.run(becomes_another),
    "SystemExit": lambda life: life.run(raising(SystemExit(1))),
    "KeyboardInterrupt": lambda life: life.run(raising(KeyboardInterrupt())),
    "a BaseException": lambda life: life.run(raising(Down())),
    "GreenletExit": lambda life: life.run(raising(GreenletExit())),
    "SystemExit, told": lambda life: life.run(raising(SystemExit(1))).tell(SystemExit(1)),
    "before_start raises": lambda life: life.run(start_by=raising(ValueError("x"))),
    "before_start Ignore": lambda life: life.run(start_by=raising(Ignore())),
    "before_start Reject": lambda life: life.run(start_by=raising(Reject("x", requeue=False))),
    "before_start requeues": lambda life: life.run(start_by=raising(Reject("x", requeue=True))),
    "before_start retries": lambda life: life.run(start_by=lambda task: task.retry(countdown=COUNTDOWN)),
    "wrong options": lambda life: life.redeclare(lock_ttl="long").run(),
    "locked no more": lambda life: life.redeclare(lock=None).run(),
    "killed in before_start": lambda life: life.be_killed("before_start").tell(),
    "killed in its body": lambda life: life.be_killed("body").tell(),
    "lease lapsed, then killed": lambda life: life.be_killed("body").let_pass(31).tell(),
    "killed storing its result": lambda life: life.be_killed("result").tell(),
    "killed when it is over": lambda life: life.finish_and_be_killed().tell(),
    "exits in before_start": lambda life: life.be_killed("before_start").tell(SystemExit(1)),
    "terminated in before_start": lambda life: life.be_stopped("before_start"),
    "terminated in its body": lambda life: life.be_stopped("body"),
    "cancelled": lambda life: life.be_stopped("body", "cancel"),
    "timed out in before_start": lambda life: life.time_out("before_start"),
    "timed out in its body": lambda life: life.time_out("body"),
    "server away": lambda life: life.cut_off().run(),
    "server and broker away": lambda life: life.cut_off(broker=False).run(),
    "start interrupted": lambda life: life.cut_off(1, SystemExit(1)).run(),
    "start cut short": lambda life: life.cut_off(1, SoftTimeLimitExceeded()).run(),
    "interrupted before its body": lambda life: life.interrupt("before the body").run(),
    "interrupted at its end": lambda life: life.interrupt("at its end").run(),
    "interrupted storing": lambda life: life.at_store(raising(Down())).run(),
    "unanswered release": lambda life: life.run(lambda _task: life.cut_off().id),
    "unanswered hand-over": lambda life: life.run(lambda task: (retries(task), life.cut_off().id)),
    "unanswered mark": lambda life: life.at_store(lambda _task: life.cut_off()).run(),
    "unanswered death": lambda life: life.be_killed("body").cut_off().tell(),
    "unpublished retry": lambda life: life.run(lambda task: (life.cut_off(0, broker=False), retries(task))),
    "run without its lock": lambda life: life.redeclare(on_lock_error="run").cut_off(1).run(),
    "run without its lock, retry": lambda life: life.redeclare(on_lock_error="run").cut_off(1).run(retries),
    "revoked": lambda life: revoke(life.request),
    "revoked, wrong options": lambda life: revoke(life.redeclare(lock_ttl="long").request),
    "revoked, locked no more": lambda life: revoke(life.redeclare(lock=None).request),
    "expired": lambda life: life.expire(),
    "rejected by the worker": lambda life: life.be_rejected(),
    "unreadable": lambda life: life.be_unreadable(),
    "given back": lambda life: life.request.reject(requeue=True),
    "worker killed before_start": lambda life: life.be_killed("before_start"),
    "worker killed in its body": lambda life: life.be_killed("body"),
}
