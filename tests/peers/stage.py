"""Where a case is played: an app with a queue of its own, and a worker in this process on demand."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from celery import Celery
from celery.contrib.testing.worker import start_worker

#: Longest time in seconds for anything that is waited for.
PATIENCE = 60


class Stage:
    """An app on one server, with tasks, whose worker runs what is queued; ``waiting`` is a body."""

    def __init__(self, url: str, settings: Mapping[str, Any], called: str = "") -> None:
        self.name = called or f"peers-{secrets.token_hex(6)}"
        self.app = Celery(self.name, broker=url, backend=url, set_as_current=False)
        # The libraries need keys of their own: nobody flushes the server.
        self.app.conf.update(task_default_queue=self.name, singleton_key_prefix=f"{self.name}-lock-")
        self.app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": {"url": url}}
        for name, value in settings.items():
            if name == "ONCE":
                self.app.conf.ONCE["settings"].update(value)
            else:
                self.app.conf[name] = value
        self.begun = threading.Event()
        self.may_end = threading.Event()

        def waiting(a: int, b: int = 0) -> int:
            self.begun.set()
            assert self.may_end.wait(PATIENCE)
            return a

        self.waiting = waiting

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *_: object) -> None:
        self.app.control.purge()
        self.app.close()

    def task(self, base: type[Any], body: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Declare the task; without a body one that returns its first argument."""
        return self.app.task(base=base, name=self.name, lazy=False, shared=False, **options)(body or first)

    def queued(self) -> int:
        """Return how many messages are queued."""
        with self.app.connection_for_read() as connection:
            return int(connection.default_channel.client.llen(self.name))

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Run a worker; it has ended, and so has all that follows a result, when the block has."""
        with start_worker(self.app, perform_ping_check=False, shutdown_timeout=PATIENCE):
            yield

    def run(self, *results: Any) -> list[str]:
        """Let a worker run what is queued until these calls have ended; return their states."""
        with self.worker():
            for result in results:
                result.get(timeout=PATIENCE, propagate=False)
        return [result.state for result in results]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let a worker run what is queued, until the block ends; the first body has begun, and waits."""
        with self.worker():
            assert self.begun.wait(PATIENCE)
            try:
                yield
            finally:
                self.may_end.set()


class Case(NamedTuple):
    """What one does with the library's module and a stage, and what comes of it, as JSON knows it.

    ``there``: with the library as it was released; ``here``: with its stand-in, ``...`` for the same.
    """

    name: str
    play: Callable[[ModuleType, Stage], object]
    there: object
    here: object = ...
    settings: Mapping[str, Any] = {}


def first(a: int, b: int = 0) -> int:
    """Do what most tasks here do."""
    return a


def fail(a: int) -> None:
    raise ValueError(a)


def retry_once(task: Any, a: int) -> int:
    if not task.request.retries:
        raise task.retry(countdown=0)
    return a


def outcome(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return ``published``, or the name of the error."""
    try:
        call(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  it is told
        return type(error).__name__
    return "published"


def until(fact: Callable[[], bool]) -> bool:
    """Wait for a fact; return whether it came."""
    deadline = time.monotonic() + PATIENCE
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def let_pass(seconds: float) -> None:
    """Let so many seconds pass."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(left)
