"""For the tests of your own project: locks in memory, or none at all.

Needs no server and no worker: with ``redislock_eager``, eager mode takes locks, too. pytest has the fixtures
``redislock_memory`` and ``redislock_off`` wherever this package is installed; without it::

    app.conf.update(task_always_eager=True, redislock_eager=True)
    with memory_locks(app), hold(sync_account, 42):
        assert sync_account.delay(42).is_duplicate

Every pytest run of the environment loads this module, so it imports nothing before it is needed. A
``conftest.py`` may name it as a plugin, and import from it. (PYTEST_DONT_REWRITE: pytest warns of a plugin
that it comes too late to rewrite, 8.0 to 9.2, _pytest/assertion/rewrite.py; there is no ``assert`` here.)
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery import Celery

    from celery_redislock.store.memory import MemoryStore
    from celery_redislock.task import SingletonTask

try:
    import pytest
except ImportError:  # the rest of this module does without
    pytest = None  # type: ignore[assignment]  # that is what is checked below

__all__ = ["hold", "locks_off", "memory_locks"]


@contextmanager
def memory_locks(app: "Celery", store: "MemoryStore | None" = None) -> Iterator["MemoryStore"]:
    """Keep this app's locks in memory while the block runs; this process only.

    Yields the store (the one given, or a fresh one) to look into: ``store.names()``, ``store.inspect(name)``,
    and for who waits ``store.lines()``, ``store.waiting(name)``. Its ``end_pauses()`` lets calls be
    due that ``lock_debounce`` puts off.
    """
    from celery_redislock.declaring.server import use_store
    from celery_redislock.store.memory import MemoryStore

    store = store or MemoryStore()
    before = use_store(app, store)
    try:
        yield store
    finally:
        use_store(app, before)


@contextmanager
def locks_off() -> Iterator[None]:
    """Switch locking off for every app while the block runs, by ``REDISLOCK_ENABLED`` in the environment."""
    from celery_redislock.declaring.options import ENABLED_VARIABLE

    before = os.environ.get(ENABLED_VARIABLE)
    os.environ[ENABLED_VARIABLE] = "0"
    try:
        yield
    finally:
        os.environ.pop(ENABLED_VARIABLE, None)
        if before is not None:
            os.environ[ENABLED_VARIABLE] = before


@contextmanager
def hold(
    task: "SingletonTask", *args: Any, task_id: str = "somebody-else", running: bool = True, **kwargs: Any
) -> Iterator[str]:
    """Hold the lock that this call of a task would take, as another run or queued message would.

    Of a lock that several may hold (``lock_limit``), one place. Renewed while the block runs, by the watchdog
    of this process. Yields the lock's name.

    Args:
        task: a unique task.
        *args: of the call.
        task_id: who holds.
        running: as a run; otherwise as a message on its way.
        **kwargs: of the call.

    Raises:
        AssertionError: somebody holds it already.
        LockUnavailable: the app keeps its locks on a server, and that cannot be reached.
        TypeError: the task takes no lock, or the arguments do not fit it.
    """
    from celery_redislock.declaring.declaration import declaration_of
    from celery_redislock.exceptions import LockUnavailable
    from celery_redislock.locks.lease import Lease, new_token
    from celery_redislock.locks.watchdog import watchdog_of
    from celery_redislock.publishing.publish import NEEDS_NO_SERVER
    from celery_redislock.store.store import QUEUED, RUNNING, Grant, Refusal, Term
    from celery_redislock.task import SingletonTask

    given: object = task
    if not isinstance(given, SingletonTask):
        raise TypeError(
            f"hold() takes a unique task (base=SingletonTask) and its arguments, not {given!r}; "
            "a Lock of a body is held by another Lock, inside memory_locks()"
        )
    declaration = declaration_of(task)
    scope = declaration.options.scope
    if scope is None:
        raise TypeError(f"{task.name} takes no lock (lock=None), so nobody would notice that it is held")
    options = declaration.with_limit(declaration.options, args, kwargs)
    lock = declaration.task_lock(args, kwargs, task_id, options=options)
    if scope.claims_beside and not running:
        lock = lock.of_queue()
    token = new_token(task_id)
    try:
        answer = lock.store.acquire(
            lock.key, token, lock.ttl, facts=lock.facts(RUNNING if running else QUEUED), limit=lock.limit
        )
    except LockUnavailable as error:
        raise error.with_remark(NEEDS_NO_SERVER) from error
    if not isinstance(answer, Grant):
        holder = answer.hold.owner if isinstance(answer, Refusal) else "nobody"
        raise AssertionError(f"{lock.key!r} is held already, by {holder}; let that end first")  # noqa: TRY004  a test's own arrangement failed
    lease = Lease(lock.store, Term(lock.key, token, lock.ttl), answer)
    watchdog_of(lock.store).watch(lease)
    try:
        yield lock.key
    finally:
        lock.finish(lease)


if pytest is not None:

    @pytest.fixture
    def redislock_memory(request: pytest.FixtureRequest) -> Iterator["MemoryStore"]:
        """Keep the locks of every Celery app in memory for one test.

        Of those that exist when the test begins; ``celery_app`` of Celery's plugin too, if the test uses it.
        It is the store, to look into.
        """
        from celery._state import _get_active_apps

        from celery_redislock.store.memory import MemoryStore

        if "celery_app" in request.fixturenames:
            request.getfixturevalue("celery_app")  # it may have been asked for after this one

        store = MemoryStore()
        with ExitStack() as apps:
            for app in list(_get_active_apps()):
                apps.enter_context(memory_locks(app, store))
            yield store

    @pytest.fixture
    def redislock_off() -> Iterator[None]:
        """Switch locking off for one test."""
        with locks_off():
            yield
