"""Task classes of the users' own: whatever they override, and however, the lock is not stepped around."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
from celery import Task
from celery.contrib.abortable import AbortableAsyncResult, AbortableTask
from celery.result import AsyncResult

from celery_redislock import LockOptionError, LockResult, SingletonTask
from celery_redislock.publishing.results import LockEagerResult
from tests.unit.shop import KEY, Shop, body


class Seen(SingletonTask):
    """Writes down the calls of its methods, and what the lock's state is then."""

    seen: ClassVar[list[Any]] = []


class Mixin:
    def __call__(self, account_id: int) -> int:
        Seen.seen.append("mixin")
        return body(account_id)


class CallOfAMixin(Mixin, Seen):
    """Its call never reaches ours."""


class Counting(Seen):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append("call")
        return super().__call__(*args, **kwargs)


class CountingTwice(Counting):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append("outer")
        return super().__call__(*args, **kwargs)


@pytest.mark.parametrize(
    ("base", "calls", "way"),
    [
        *((CountingTwice, ["outer", "call"], way) for way in ("direct", "direct, eager", "worker")),
        (CallOfAMixin, ["mixin"], "worker"),
    ],
)
def test_a_call_of_a_classs_own_runs_once(shop: Shop, base: type[Seen], calls: list[str], way: str) -> None:
    """Called directly with ``redislock_eager``, the tracer calls it: it must not have been called already."""
    Seen.seen.clear()
    shop.app.conf.redislock_eager = way == "direct, eager"
    task = shop.unique(body, base=base, lock_key=KEY)

    if way == "worker":
        task.delay(7)
        assert shop.run() == 7
    else:
        assert task(7) == 7

    assert Seen.seen == calls
    assert shop.held() == {}
    asked = ["acquire"] * (way == "worker") + ["acquire", "release"] * (way != "direct")
    assert shop.store.calls == asked


# --- beside another base class ---------------------------------------------------------------


class Options(SingletonTask):
    """A project's own base, which only sets options."""

    abstract = True
    lock_ttl = 20


#: A class of tasks with another base of theirs, by where they stand.
ORDERS: dict[str, Callable[[Any], Any]] = {
    "before": lambda theirs: type("Before", (theirs, SingletonTask), {"abstract": True}),
    "after": lambda theirs: type("After", (SingletonTask, theirs), {"abstract": True}),
    "after one derived": lambda theirs: type("Derived", (Options, theirs), {"abstract": True}),
    "after, and derived": lambda theirs: type("Sub", (ORDERS["after"](theirs),), {"abstract": True}),
    "between others": lambda theirs: type(
        "Both", (ORDERS["after"](Plain), theirs, Plain), {"abstract": True}
    ),
}
in_any_order = pytest.mark.parametrize("order", ORDERS)


class Plain(Task):
    """Another class of tasks, which overrides nothing."""


class Session(Task):
    """Opens something around each body: an app's context, a transaction, a guard."""

    open_now: ClassVar[list[str]] = []

    @contextmanager
    def opened(self) -> Iterator[None]:
        self.open_now.append("session")
        yield
        self.open_now.pop()


class SessionThenRun(Session):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.opened():
            return self.run(*args, **kwargs)


class SessionThenSuper(Session):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.opened():
            return super().__call__(*args, **kwargs)


@in_any_order
@pytest.mark.parametrize("theirs", [SessionThenRun, SessionThenSuper])
@pytest.mark.parametrize("way", ["worker", "applied", "called"])
def test_the_call_of_another_base_is_around_each_body(shop: Shop, theirs: Any, order: str, way: str) -> None:
    """Once, and in a worker inside the lock: a transaction in it ends before the lock is released."""
    seen = []

    def note(account_id: int) -> int:
        seen.append([*Session.open_now, *(state for _, state in shop.states())])
        return account_id

    task = shop.unique(note, base=ORDERS[order](theirs), lock_key=KEY)

    if way == "worker":
        task.delay(7)
        assert shop.run() == 7
    else:
        assert (task.apply((7,)).get() if way == "applied" else task(7)) == 7

    assert seen == [["session", "running"] if way == "worker" else ["session"]]
    assert shop.held() == {}


@pytest.mark.parametrize("base", [SingletonTask, *(ORDERS[order](SessionThenRun) for order in ORDERS)])
def test_an_annotation_around_the_call_takes_no_lock_away(shop: Shop, base: Any) -> None:
    """Celery takes off what wraps a method before it puts an annotation around it."""
    seen: list[Any] = []

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def annotated(*args: Any, **kwargs: Any) -> Any:
            seen.append("annotated")
            return call(*args, **kwargs)

        return annotated

    shop.app.conf.task_annotations = {"*": {"@__call__": around}}

    def note(account_id: int) -> int:
        seen.extend(state for _, state in shop.states())
        return account_id

    shop.unique(note, base=base, lock_key=KEY).delay(7)

    assert shop.run() == 7
    assert seen == ["annotated", "running"]
    assert shop.held() == {}


@in_any_order
def test_results_of_another_base_are_this_packages_too(shop: Shop, order: str) -> None:
    """An accepted call's, a duplicate's, and one made of an id; pickled, too. ``is_aborted`` asks for it."""
    seen: list[bool] = []
    task = shop.noting(seen, lambda task: task.is_aborted(), base=ORDERS[order](AbortableTask))
    results = [task.delay(7), task.delay(7), task.AsyncResult("x")]

    for result in [*results, *pickle.loads(pickle.dumps(results))]:  # noqa: S301  our own bytes
        assert isinstance(result, AbortableAsyncResult)
        assert isinstance(result, LockResult)

    assert [result.is_duplicate for result in results] == [False, True, False]
    assert results[1].id == results[0].id
    assert repr(results[1]) == f"<AbortableAsyncResult: {results[0].id} (duplicate)>"
    again = pickle.loads(pickle.dumps(results[1]))  # noqa: S301  our own bytes
    assert (again.id, again.is_duplicate, type(again)) == (results[0].id, True, type(results[1]))
    results[0].abort()
    shop.run()
    task.delay(7)
    shop.run()
    assert seen == [True, False]


class PlainResults(Task):
    def AsyncResult(self, task_id: str, **_: Any) -> Any:  # noqa: N802  Celery's name
        return AsyncResult(task_id, backend=self.backend, app=self.app)


class NoResults(Task):
    def AsyncResult(self, task_id: str, **_: Any) -> Any:  # noqa: N802  Celery's name
        return task_id


@in_any_order
@pytest.mark.parametrize("theirs", [PlainResults, NoResults])
def test_what_another_base_makes_of_a_result_tells_duplicates(shop: Shop, theirs: Any, order: str) -> None:
    """Its message has left: the call must not fail any more, even if that is no result."""
    task = shop.unique(body, base=ORDERS[order](theirs))
    results = [task.delay(7), task.delay(7)]
    assert [(type(each), each.is_duplicate) for each in results] == [(LockResult, False), (LockResult, True)]
    assert results[0].id == results[1].id
    assert shop.run() == 7


class AtCommit(Task):
    """Publishes when a transaction commits, as many projects' bases do."""

    waiting: ClassVar[list[Callable[[], Any]]] = []

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        self.waiting.append(partial(super().apply_async, *args, **kwargs))


@pytest.fixture
def commit() -> Iterator[Callable[[], list[Any]]]:
    """Publishes what waits for the transaction's end; returns the results."""

    def commit() -> list[Any]:
        results = [publish() for publish in AtCommit.waiting]
        AtCommit.waiting.clear()
        return results

    yield commit
    AtCommit.waiting.clear()


@in_any_order
def test_what_commits_is_claimed_then(shop: Shop, commit: Callable[[], list[Any]], order: str) -> None:
    """So a transaction that is rolled back leaves nothing; of two calls that commit, one is a duplicate."""
    task = shop.unique(body, base=ORDERS[order](AtCommit))
    for _ in range(2):
        task.delay(7)
    assert (shop.held(), shop.messages()) == ({}, [])
    results = commit()
    assert [result.is_duplicate for result in results] == [False, True]
    assert [state for _, state in shop.states()] == ["queued"]
    assert shop.run() == 7
    assert shop.held() == {}


@pytest.mark.parametrize("order", ["before", "after"])
def test_what_another_base_derives_from_one_that_is_there_is_called(shop: Shop, order: str) -> None:
    """A class that stands between a method and its wrapper is not stepped around."""
    seen = []

    class First(Task):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append("first")
            return super().__call__(*args, **kwargs)

    class Second(First):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append("second")
            return super().__call__(*args, **kwargs)

    base: Any = type("Diamond", (ORDERS[order](First), Second), {})
    shop.unique(body, base=base).delay(7)
    assert shop.run() == 7
    assert seen == ["second", "first"]


class Everything(Task):
    """Overrides what ``SingletonTask`` does, and goes on to it each time."""

    seen: ClassVar[list[str]] = []
    is_told = False

    @classmethod
    def on_bound(cls, app: Any) -> None:
        super().on_bound(app)
        cls.is_told = True


def noting(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        Everything.seen.append(name)
        return getattr(super(Everything, self), name)(*args, **kwargs)

    return method


for each in ("__call__", "apply_async", "apply", "AsyncResult", "start_strategy"):
    setattr(Everything, each, noting(each))


@in_any_order
def test_a_base_that_overrides_everything_is_called_each_time(shop: Shop, order: str) -> None:
    task = shop.unique(body, base=ORDERS[order](Everything))
    Everything.seen.clear()
    results = [task.delay(7), task.delay(7)]
    shop.run()
    eager = task.apply((7,))
    task.start_strategy(shop.app, MagicMock())
    assert [*map(type, [*results, eager])] == [LockResult, LockResult, LockEagerResult]
    assert [result.is_duplicate for result in [*results, eager]] == [False, True, False]
    published = ["apply_async", "AsyncResult"] * 2
    assert task.is_told
    assert Everything.seen == [*published, "__call__", "apply", "__call__", "start_strategy"]
    assert shop.held() == {}


class Batches(Task):
    """As those of celery-batches: what it receives goes to the pool by a way of its own."""

    def Strategy(self, *_: Any) -> Any:  # noqa: N802  Celery's name
        return lambda *_, **__: None


class TheirRequest(Task):
    Request = "celery.worker.request:Request"


@in_any_order
@pytest.mark.parametrize(
    ("theirs", "problem"),
    [
        (Batches, "the Strategy of Batches is not Celery's, .* leave SingletonTask out of the bases"),
        (TheirRequest, "its Request class 'celery.worker.request:Request' is not a subclass"),
    ],
)
def test_a_base_that_releases_no_lock_is_refused(shop: Shop, theirs: Any, problem: str, order: str) -> None:
    """Where the class is bound: its claims would stand for an hour."""
    with pytest.raises(LockOptionError, match=problem):
        shop.unique(body, base=ORDERS[order](theirs))


def test_the_first_of_two_bases_still_decides_their_options() -> None:
    """Only ``SingletonTask`` itself gives way: its own attributes are defaults."""
    theirs: Any = type("Theirs", (Task,), {"acks_late": True, "lock_ttl": 40})
    mine: Any = type("Mine", (SingletonTask,), {"acks_late": False, "lock_ttl": 20})
    for bases in (mine, theirs), (theirs, mine):
        made: Any = type("Made", bases, {})
        assert (made.acks_late, made.lock_ttl) == (bases[0].acks_late, bases[0].lock_ttl)


def test_a_class_of_results_set_in_a_task_class_makes_its_results(shop: Shop) -> None:
    """The result is that of the task id, and tells duplicates."""
    base = type("SetTask", (SingletonTask,), {"AsyncResult": AbortableAsyncResult})
    result = shop.unique(body, base=base).AsyncResult("x")
    assert isinstance(result, AbortableAsyncResult)
    assert (result.id, result.is_duplicate) == ("x", False)
