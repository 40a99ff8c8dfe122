"""Law 10, counted: what a publish, a run and an import cost. Nothing here is timed."""

import logging
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery, _state
from celery.contrib.testing.worker import start_worker

from celery_redislock import SingletonTask
from celery_redislock.embedded import EmbeddedServer
from tests.facts import wait_until
from tests.trips import Trips


@pytest.fixture(scope="module")
def lock_server() -> Iterator[EmbeddedServer]:
    """A server for nothing but locks, so that the broker's own commands do not count."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def client(lock_server: EmbeddedServer) -> Iterator[Any]:
    with redis.Redis.from_url(lock_server.redis_url) as client:
        yield client


@pytest.fixture
def app(lock_server: EmbeddedServer, celery_url: str, prefix: str) -> Iterator[Celery]:
    app = Celery(prefix, broker=celery_url, backend=celery_url, set_as_current=False)
    app.conf.update(
        redislock_url=lock_server.url,
        redislock_prefix=prefix,
        task_default_queue=prefix,
        worker_hijack_root_logger=False,
    )
    yield app
    app.close()


@pytest.fixture
def task(app: Celery) -> Any:
    """A unique task whose server knows the scripts and whose connection is open."""

    @app.task(base=SingletonTask, name="cheap.sync", shared=False)
    def sync(account_id: int) -> int:
        return account_id

    handle = sync.lock_for(-1)
    store = handle._store
    store.acquire("warm", "warm/1", 30.0, about={})
    store.release("warm", "warm/1")
    return sync


def test_a_publish_asks_the_lock_server_once(task: Any, client: Any) -> None:
    """Law 10: one round trip to claim."""
    trips = Trips(client)
    result = task.delay(1)

    assert not result.is_duplicate
    assert trips() == {"evalsha": 1}


def test_a_refused_publish_asks_the_lock_server_once(task: Any, client: Any) -> None:
    """Law 10: the holder's details cost no extra trip."""
    first = task.delay(2)
    trips = Trips(client)
    second = task.delay(2)

    assert second.is_duplicate
    assert second.id == first.id
    assert trips() == {"evalsha": 1}


def test_a_publish_with_locking_switched_off_asks_nothing(task: Any, client: Any) -> None:
    """Law 10: none that is not needed."""
    trips = Trips(client)
    task.apply_async((3,), lock=None)

    assert trips() == {}


@pytest.fixture
def process_as_it_was() -> Iterator[None]:
    """Celery's in-process worker takes over the root logger and the current app, and leaves them so."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    apps = _state.default_app, getattr(_state._tls, "current_app", None)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    _state.default_app, _state._tls.current_app = apps


@pytest.mark.usefixtures("process_as_it_was")
@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # Celery's own
def test_a_run_asks_the_lock_server_twice(app: Celery, task: Any, client: Any) -> None:
    """Law 10: one round trip to start, one to release; a short run is renewed never."""
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30.0):
        assert task.delay(4).get(timeout=20, disable_sync_subtasks=False) == 4
        trips = Trips(client)
        results = [task.delay(number) for number in range(10, 15)]
        for result in results:
            result.get(timeout=20, disable_sync_subtasks=False)
        claims, starts, releases = 5, 5, 5

        assert wait_until(lambda: trips().get("evalsha", 0) >= claims + starts + releases, timeout=5)
        # A connection more (HELLO) where publisher and worker ask at the same time.
        assert trips()["evalsha"] == claims + starts + releases
        assert "eval" not in trips()


def test_before_the_first_lock_nothing_is_imported_connected_or_started(celery_url: str) -> None:
    """Law 10: nothing runs and nothing is imported before it is needed."""
    code = """
        import sys, threading
        opened = []
        sys.addaudithook(lambda event, args: opened.append(event) if event == "socket.connect" else None)
        from celery import Celery
        from celery_redislock import SingletonTask
        from celery_redislock.declaring.declaration import declaration_of
        app = Celery("cheap", broker=sys.argv[1], backend=sys.argv[1])
        @app.task(base=SingletonTask, lock_key="account:{account_id}")
        def sync(account_id): pass
        declaration = declaration_of(sync._get_current_object())
        assert declaration.options.scope.name == "until_executed"
        assert declaration.rule({"account_id": 1}) == "account:1"
        print("redis" in sys.modules, threading.active_count(), opened)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), celery_url],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.split("\n")[0] == "False 1 []"
