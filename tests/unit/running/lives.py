"""One message's life: published, received, run, ended in one of many ways, and what it leaves.

All of it is seen from outside: the task, the request, Celery's tracer, the store, the results, the queue.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
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
from celery_redislock.locks.store import Hold
from celery_redislock.locks.watchdog import watchdog_of
from celery_redislock.publishing.message import HEADER
from celery_redislock.receiving.consumer import Unreceived
from celery_redislock.receiving.request import LockRequest
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
    revoke,
)
from tests.unit.shop import SCOPES as ONE_LOCK

#: Celery treats a child that exits like one that was killed, and knows ``retry_on_worker_lost``.
EXIT_IS_LOSS = hasattr(celery_request.Request, "_worker_lost_info")

#: A tick of beat's, and the task id that all beats give it.
TICK = "shop/nightly@2026-06-01T12:00:00+00:00"
TICK_ID = "46a237d7-508c-5035-9c46-0eca41a0ca38"

#: What a claim lives for, and until when a retry waits.
QUEUE_TTL, COUNTDOWN = 200, 50

#: The scope of two locks, once it is declared.
TWO_LOCKS = "until_and_while_executing"
SCOPES: Mapping[str, dict[str, Any]] = {
    **ONE_LOCK,
    **({TWO_LOCKS: {"lock": TWO_LOCKS}} if TWO_LOCKS in DECLARED else {}),
}

LOST = WorkerLostError("killed")


class Kind(NamedTuple):
    """How a message comes to a worker.

    Attributes:
        call: options of its publish.
        by_name: nobody who publishes it knows the task.
        comes_again: law 8: the broker may deliver it once more, also where it is acknowledged early.
        header: what its header says otherwise.
        kept: seconds for which the worker kept it before it started.
    """

    call: Mapping[str, Any]
    by_name: bool = False
    comes_again: bool = False
    is_redelivered: bool = False
    is_retry: bool = False
    header: Mapping[str, Any] = MappingProxyType({})
    kept: float = 0.0


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
    "not kept so long": Kind({"task_id": "t1"}, kept=1799),
    "unaware of its claim": Kind({"task_id": "t1"}, header={"claimed": False}),
    "with an eta": Kind({"task_id": "t1", "countdown": COUNTDOWN}, comes_again=True),
}


class GreenletExit(BaseException):
    """By its name: what ends a greenlet that is revoked."""


class Checked(SingletonTask):
    """A task whose ``before_start`` may do something."""

    abstract = True
    at_start: Callable[[Any], object] = staticmethod(bool)

    def before_start(self, *_: Any) -> None:
        self.at_start(self)


class Life:
    """One message of one task, and what becomes of both.

    Attributes:
        request: its delivery to a worker.
        ran: how many bodies have begun.
        when_stored: what was held whenever an outcome was stored, and whether a period stood.
    """

    request: LockRequest

    def __init__(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch, scope: str, kind: str = "published", **options: Any
    ) -> None:
        self.shop, self.kind = shop, KINDS[kind]
        self.ran = 0
        self.patch = monkeypatch
        self._owed = debts(shop, monkeypatch)
        self.when_stored: set[tuple[str, bool]] = set()
        self.queue: list[Any] = []
        self.id = str(self.kind.call["task_id"])
        self.identity = ""
        self._before: set[str] = set()
        self._bodies: list[Callable[[Any], Any]] = []
        self._at_store: Callable[[], object] = bool
        given = {"lock_key": KEY, "lock_queue_ttl": QUEUE_TTL, **SCOPES[scope], **options}
        self.task = shop.unique(self._declare(), bind=True, base=Checked, **given)
        self._watch_results(monkeypatch)
        publish = self.task.apply_async
        if self.kind.by_name:
            publish = lambda *args, **call: shop.app.send_task(self.task.name, *args, **call)  # noqa: E731
        publish((7,), **self.kind.call)
        self.message = shop.message()
        if self.kind.is_retry:
            self.body(lambda task: task.retry(countdown=0))
            shop.run(shop.receive(self.message))
            self._before = {self._identity()}
            self._take()
            self.message = self.queue.pop()
            self.ran = 0
        self.identity = self._identity()
        if self.kind.header:
            self.message.headers[HEADER] = carried(self.message)._replace(**self.kind.header).dumps()
        self.when_stored.clear()
        self.request = shop.receive(self.message, redelivered=self.kind.is_redelivered)
        shop.acks.clear()
        if self.kind.kept:
            clock = time.time
            monkeypatch.setattr(time, "time", lambda: clock() + self.kind.kept)

    # --- what happens to it ------------------------------------------------------------------

    def body(self, act: Callable[[Any], Any]) -> None:
        """Let the next body do this, with its task; later ones return."""
        self._bodies.append(act)

    def start_by(self, act: Callable[[Any], object]) -> None:
        """Let ``before_start`` do this."""
        self.task.at_start = act

    def run(self, act: Callable[[Any], Any] = lambda _task: 7) -> None:
        """Let a child run it; the main process is told, and need not ask the lock server anything."""
        self.body(act)
        self.request.on_accepted(ANOTHER_PROCESS, time.monotonic())
        answer = self.shop.child(self.request)
        self.shop.store.calls.clear()
        self.request.on_success(answer)
        assert self.shop.store.calls == []

    def be_killed(self, where: str, error: BaseException | None = LOST) -> None:
        """Kill its child at some point, and tell the main process, if that lives."""
        die = lambda *_: self.shop.die_here()  # noqa: E731
        if where == "before_start":
            self.start_by(die)
        elif where == "body":
            self.body(die)
        else:
            self.at_store(die)
        self.shop.begin(self.request)
        self.start_by(bool)
        self.when_stored.clear()  # what it stored has not arrived
        if error is not None:
            self.tell(error)

    def tell(self, error: BaseException) -> None:
        """Tell the main process how the child has ended; what it has settled it settles once."""
        self.request.on_failure(einfo(error), return_ok=isinstance(error, TimeLimitExceeded))
        self.shop.store.calls.clear()
        if not getattr(self.task, "retry_on_worker_lost", False):  # or it would be retried once more
            self.request.on_failure(einfo(error), return_ok=True)
        assert self.shop.store.calls == []

    def pay(self) -> None:
        """Let lock server and broker answer again, and do what is owed."""
        self.shop.store.failures = 0
        self.shop.app.__dict__.pop("send_task", None)
        self.at_store(bool)
        for action in self._owed:
            action()

    def at_store(self, act: Callable[[], object]) -> None:
        """Do this as an outcome is stored."""
        self._at_store = act

    def deliver_again(self) -> str:
        """Deliver a copy of the message: it ``runs``, it ``waits``, or it does ``nothing``."""
        self._take()
        published, ran = len(self.queue), self.ran
        self.shop.run(self.shop.receive(self.message, redelivered=True))
        self._take()
        if self.ran > ran:
            return "runs"
        return "waits" if len(self.queue) > published else "nothing"

    def run_queue(self) -> int:
        """Run everything that is in the queue; return how many bodies that were."""
        self._take()
        before, messages = self.ran, self.queue
        self.queue = []
        for message in messages:
            self.shop.run(self.shop.receive(message))
        return self.ran - before

    # --- what it leaves ----------------------------------------------------------------------

    def held(self) -> str:
        """Say in words what is held now."""
        self._take()
        return ", ".join(
            sorted(self._word(hold) for hold in self.shop.held().values() if hold.state != "period")
        )

    @property
    def has_period(self) -> bool:
        """Whether its period has not passed."""
        return KEY in self.shop.store.periods()

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
        of_copies = f"message:{self.identity}"
        match hold.name, hold.state, hold.token:
            case (name, "queued", self.identity) if name == KEY:
                word, ttl = "claim", [QUEUE_TTL, QUEUE_TTL + COUNTDOWN]
            case (name, "queued", self.identity) if name == f"queued:{KEY}":
                word, ttl = "place", [QUEUE_TTL, QUEUE_TTL + COUNTDOWN]
            case (name, "queued", token) if name == KEY and token in self._tokens():
                word, ttl = "retry", [QUEUE_TTL, QUEUE_TTL + COUNTDOWN]
            case (name, "queued", _) if name == KEY and self.kind.by_name:  # it brings no token
                word, ttl = "claim", [QUEUE_TTL, QUEUE_TTL + COUNTDOWN]
            case (name, "running", token) if name == KEY and token not in self._tokens():
                word, ttl = "lease", [5, 30]
            case (name, "running", token) if name == of_copies and token not in self._tokens():
                word, ttl = "copies", [5, 30]
            case _:
                return repr(hold)
        lives = next((seconds for seconds in ttl if abs(seconds - hold.expires_in) < 2), None)
        if lives is None or hold.owner != self.id:
            return repr(hold)
        return f"dying {word}" if lives == 5 else word

    def _tokens(self) -> set[str]:
        """Tokens of the messages that are on their way, and of this one."""
        return {self.identity} | {
            carried(message).token for message in self.queue if HEADER in message.headers
        }

    def _identity(self) -> str:
        if self.kind.call.get("headers"):
            return f"{TICK_ID}/{TICK_ID[-12:]}"
        if self.kind.by_name and not self.kind.is_retry:
            return f"t1/{self.message.properties['delivery_tag']}"
        return carried(self.message).token

    def _take(self) -> None:
        self.queue += self.shop.messages()

    def _declare(self) -> Callable[..., Any]:
        def sync(task: Any, account_id: int) -> Any:
            self.ran += 1
            return self._bodies.pop(0)(task) if self._bodies else account_id

        return sync

    def _watch_results(self, monkeypatch: pytest.MonkeyPatch) -> None:
        storing = CacheBackend.store_result

        def store(*args: Any, **kwargs: Any) -> Any:
            self.when_stored.add((self.held(), self.has_period))
            self._at_store()
            return storing(*args, **kwargs)

        monkeypatch.setattr(CacheBackend, "store_result", store)


# --- what ends it --------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[[Any], Any]:
    """Return what a body does that raises this."""

    def act(*_: Any, **__: Any) -> None:
        raise error

    return act


def ends_in_body(error: BaseException) -> Callable[[Life], None]:
    """Let the body raise what no ``except Exception`` catches; what becomes of its process is not told."""

    def happen(life: Life) -> None:
        life.body(raising(error))
        life.request.on_accepted(ANOTHER_PROCESS, time.monotonic())
        with suppress(type(error)):
            life.shop.child(life.request)

    return happen


def exits(life: Life) -> None:
    """Exit in the body; the main process learns of it."""
    ends_in_body(SystemExit(1))(life)
    life.tell(SystemExit(1))


def fails_after_retry(task: Any) -> None:
    """Ask for a retry, go on, and fail."""
    task.retry(countdown=COUNTDOWN, throw=False)
    raise ValueError


def replaced_by_another(task: Any) -> None:
    """Be replaced by a task that takes no lock."""
    other = task.app.task(body, name="shop.other", shared=False)
    task.replace(other.si(7))


def before_start(act: Callable[[Any], object]) -> Callable[[Life], None]:
    """Let ``before_start`` do this."""

    def happen(life: Life) -> None:
        life.start_by(act)
        life.request.on_accepted(ANOTHER_PROCESS, time.monotonic())
        life.request.on_success(life.shop.child(life.request))
        life.start_by(bool)

    return happen


def killed(where: str, error: BaseException | None = LOST) -> Callable[[Life], None]:
    """Kill the child there, for this reason; ``None``: with its worker."""
    return lambda life: life.be_killed(where, error)


def killed_when_over(life: Life) -> None:
    """Kill the child when it has done everything, and told nobody."""
    life.request.on_accepted(ANOTHER_PROCESS, time.monotonic())
    life.shop.child(life.request)
    life.tell(LOST)


def terminated(where: str) -> Callable[[Life], None]:
    """Revoke the running task with ``terminate``: its body may go on until its child is dead."""

    def happen(life: Life) -> None:
        life.be_killed(where, None)
        held = life.held()
        life.request.terminate(SimpleNamespace(terminate_job=lambda *_: None), "TERM")
        assert life.held() == held
        life.when_stored.clear()  # as that is announced at once
        life.tell(Terminated(15))

    return happen


def cancelled(life: Life) -> None:
    """Cancel the run as a worker does that has lost its connection."""
    life.be_killed("body", None)
    life.request.cancel(SimpleNamespace(terminate_job=lambda *_: None), "TERM")
    life.when_stored.clear()  # as above
    life.tell(Terminated(15))


def timed_out(where: str) -> Callable[[Life], None]:
    """Meet the hard limit: which of the hooks comes differs between Celery 5.5 and 5.7."""

    def happen(life: Life) -> None:
        life.be_killed(where, None)
        held = life.held()
        life.request.on_timeout(True, 50)  # the soft one
        assert life.held() == held
        life.request.on_timeout(False, 100)
        life.tell(TimeLimitExceeded(100))

    return happen


def expired(life: Life) -> None:
    """Wait in the worker until the message has expired."""
    life.message.headers["expires"] = "2026-01-01T00:00:00+00:00"
    life.request = life.shop.receive(life.message, redelivered=life.kind.is_redelivered)
    assert life.request.revoked()


def rejected(life: Life) -> None:
    """Have an ETA that is no time: Celery's strategy rejects the message before any other hook."""
    life.message.headers["eta"] = "9999-12-31T23:59:59-12:00"
    app = life.shop.app
    consumer = MagicMock(app=app, hostname="here", event_dispatcher=None, disable_rate_limits=True)
    receive = default(life.task, app, consumer)
    receive(life.message, None, lambda *_: None, lambda *_: life.shop.acks.append("reject"), [])


def lapsed(life: Life) -> None:
    """Lose the lease as it expires, and then the child."""
    life.be_killed("body", None)
    life.shop.store.let_pass(31)
    life.tell(LOST)


def unreadable(life: Life) -> None:
    """Be dropped by the consumer, as its body cannot be read."""
    node = SimpleNamespace(handlers={"revoke": None, "terminate": None})
    control = SimpleNamespace(box=SimpleNamespace(node=node))
    consumer: Any = SimpleNamespace(
        app=life.shop.app, blueprint={Control.name: control}, on_decode_error=lambda *_: None
    )
    Unreceived(consumer).include(consumer)
    consumer.on_decode_error(life.message, ValueError("no JSON"))


def undeclared(then: Callable[[Life], None] = Life.run, **attributes: Any) -> Callable[[Life], None]:
    """Reach a worker on which the task is declared in another way; there it runs."""

    def happen(life: Life) -> None:
        for name, value in attributes.items():
            setattr(life.task, name, value)
        then(life)

    return happen


# --- trouble, and what is paid when it is over ---------------------------------------------------


def server_away(*, broker: bool) -> Callable[[Life], None]:
    """Start while the lock server does not answer, with a broker that takes messages or without."""

    def happen(life: Life) -> None:
        no_patience(life.patch)
        if not broker:
            life.shop.app.send_task = no_broker
        life.shop.store.failures = float("inf")
        life.run()
        life.pay()

    return happen


def interrupted(error: BaseException) -> Callable[[Life], None]:
    """Be interrupted by a signal, or a soft limit, while the start asks the lock server."""

    def happen(life: Life) -> None:
        life.shop.store.failures = 1
        with life.patch.context() as patch:
            patch.setattr(life.shop.store, "error", lambda _verb: error)
            with suppress(SystemExit):
                life.run()
        life.pay()

    return happen


def interrupted_before_its_body(life: Life) -> None:
    """Be interrupted between lock and body."""
    interrupt = raising(Down())
    lock_acquired.connect(interrupt, sender=life.task)
    with suppress(Down):
        life.run()
    lock_acquired.disconnect(interrupt, sender=life.task)
    life.pay()


def interrupted_at_its_end(life: Life) -> None:
    """Be interrupted as the lease is about to be released."""
    with suppress(Down), life.patch.context() as patch:

        def forget(_token: str) -> None:
            patch.undo()
            raise Down

        patch.setattr(watchdog_of(life.shop.store), "forget", forget)
        life.run()


def unanswered(act: Callable[[Any], object] = bool) -> Callable[[Life], None]:
    """Do this in the body; from then on the lock server does not answer."""

    def happen(life: Life) -> None:
        def body(task: Any) -> None:
            act(task)
            life.shop.store.failures = float("inf")

        life.run(body)
        life.pay()

    return happen


def unanswered_mark(life: Life) -> None:
    """Have the result stored; then the lock server does not answer."""
    life.at_store(lambda: setattr(life.shop.store, "failures", float("inf")))
    life.run()
    life.pay()


def unanswered_death(life: Life) -> None:
    """Be killed while the lock server does not answer the main process."""
    life.be_killed("body", None)
    life.shop.store.failures = float("inf")
    life.request.on_failure(einfo(LOST))
    life.pay()


def without_its_lock(act: Callable[[Any], object] = bool) -> Callable[[Life], None]:
    """Run although the lock server does not answer (``on_lock_error="run"``)."""

    def happen(life: Life) -> None:
        life.task.on_lock_error = "run"
        life.shop.store.failures = 1
        life.run(act)
        life.pay()

    return happen


def unpublished_retry(life: Life) -> None:
    """Ask for a retry that the broker does not take."""

    def body(task: Any) -> None:
        life.shop.app.send_task = no_broker
        task.retry(countdown=COUNTDOWN, throw=False)

    life.run(body)
    life.pay()


def unstored(life: Life) -> None:
    """Be interrupted as the result is stored."""
    life.at_store(lambda: raising(Down())(None))
    with suppress(Down):
        life.run()
    life.pay()


def retries(task: Any) -> None:
    """Ask for a retry, and return."""
    task.retry(countdown=COUNTDOWN, throw=False)


ENDS: Mapping[str, Callable[[Life], None]] = {
    "returns": lambda life: life.run(),
    "raises": lambda life: life.run(raising(ValueError("x"))),
    "returns what cannot be stored": lambda life: life.run(lambda _task: object()),
    "Ignore": lambda life: life.run(raising(Ignore())),
    "Reject": lambda life: life.run(raising(Reject("x", requeue=False))),
    "Reject, requeued": lambda life: life.run(raising(Reject("x", requeue=True))),
    "DuplicateTask": lambda life: life.run(raising(DuplicateTask("k", "t", 1.0))),
    "retry": lambda life: life.run(lambda task: task.retry(countdown=COUNTDOWN)),
    "retry, returns": lambda life: life.run(retries),
    "retry, raises": lambda life: life.run(fails_after_retry),
    "replaced by itself": lambda life: life.run(lambda task: task.replace(task.si(7))),
    "replaced by another": lambda life: life.run(replaced_by_another),
    "raises Retry": lambda life: life.run(raising(Retry())),
    "SystemExit": ends_in_body(SystemExit(1)),
    "KeyboardInterrupt": ends_in_body(KeyboardInterrupt()),
    "a BaseException": ends_in_body(Down()),
    "GreenletExit": ends_in_body(GreenletExit()),
    "SystemExit, told": exits,
    "before_start raises": before_start(raising(ValueError("x"))),
    "before_start Ignore": before_start(raising(Ignore())),
    "before_start Reject": before_start(raising(Reject("x", requeue=False))),
    "before_start requeues": before_start(raising(Reject("x", requeue=True))),
    "before_start retries": before_start(lambda task: task.retry(countdown=COUNTDOWN)),
    "wrong options": undeclared(lock_ttl="long"),
    "locked no more": undeclared(lock=None),
    "killed in before_start": killed("before_start"),
    "killed in its body": killed("body"),
    "lease lapsed, then killed": lapsed,
    "killed storing its result": killed("result"),
    "killed when it is over": killed_when_over,
    "exits in before_start": killed("before_start", SystemExit(1)),
    "terminated in before_start": terminated("before_start"),
    "terminated in its body": terminated("body"),
    "cancelled": cancelled,
    "timed out in before_start": timed_out("before_start"),
    "timed out in its body": timed_out("body"),
    "server away": server_away(broker=True),
    "server and broker away": server_away(broker=False),
    "start interrupted": interrupted(SystemExit(1)),
    "start cut short": interrupted(SoftTimeLimitExceeded()),
    "interrupted before its body": interrupted_before_its_body,
    "interrupted at its end": interrupted_at_its_end,
    "interrupted storing": unstored,
    "unanswered release": unanswered(),
    "unanswered hand-over": unanswered(retries),
    "unanswered mark": unanswered_mark,
    "unanswered death": unanswered_death,
    "unpublished retry": unpublished_retry,
    "run without its lock": without_its_lock(),
    "run without its lock, retry": without_its_lock(retries),
    "revoked": lambda life: revoke(life.request),
    "revoked, wrong options": undeclared(lambda life: revoke(life.request), lock_ttl="long"),
    "revoked, locked no more": undeclared(lambda life: revoke(life.request), lock=None),
    "expired": expired,
    "rejected by the worker": rejected,
    "unreadable": unreadable,
    "given back": lambda life: life.request.reject(requeue=True),
    "worker killed before_start": killed("before_start", None),
    "worker killed in its body": killed("body", None),
}
