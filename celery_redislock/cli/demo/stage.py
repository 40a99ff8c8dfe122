"""Server and worker for the scenes, and nothing of them left afterwards."""

import gc
import re
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from celery_redislock.cli.demo import app as demo
from celery_redislock.cli.demo.worker import READY, WorkerProcess
from celery_redislock.embedded import EmbeddedServer

__all__ = ["Interrupted", "NotReadyError", "celery_url", "interruptible", "server_at", "worker_for"]

#: Seconds a worker may take until it is ready: 1 to 2 are usual.
WORKER_START = 30.0

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Somebody wants the demo to end.

    Attributes:
        signum: the signal that said so.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class NotReadyError(Exception):
    """There is no server or worker to show anything with."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Let the first Ctrl-C, SIGTERM or SIGHUP raise :class:`Interrupted` here; later ones are ignored."""

    def interrupt(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001  the signal module's form
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(signum)

    before = {each: signal.signal(each, interrupt) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def server_at(url: str | None) -> Iterator[tuple[str, str]]:
    """Yield a server's URL as Celery writes it, and the prefix of the demo's keys there.

    Args:
        url: of a running server, whose other keys are not touched; ``None`` starts one.

    Raises:
        NotReadyError: it cannot be reached.
        EmbeddedServerError: none could be started.
    """
    prefix = f"redislock-demo-{secrets.token_hex(4)}:"
    if url is None:
        with EmbeddedServer() as server:
            demo.configure(server.url, prefix)
            try:
                yield server.url, prefix
            finally:
                _collect_results()
        return
    demo.configure(celery_url(url), prefix)
    _check_answer()
    try:
        yield celery_url(url), prefix
    finally:
        # It may be gone by now; then so are its keys, or they expire.
        with suppress(Exception):
            demo.notebook().erase()


@contextmanager
def worker_for(server: tuple[str, str], *, verbose: bool) -> Iterator[WorkerProcess]:
    """Yield a worker that takes tasks.

    Args:
        server: as yielded by :func:`server_at`.
        verbose: print its log.

    Raises:
        NotReadyError: it did not start.
    """
    worker = WorkerProcess(*server, tell=_print_log if verbose else _ignore)
    is_done = False
    try:
        _wait_for_worker(worker)
        yield worker
        is_done = True
    finally:
        worker.end(gently=is_done)


def celery_url(url: str) -> str:
    """Return a URL as redis-py writes it in Celery's form.

    Raises:
        NotReadyError: it is not the URL of a single Redis or Valkey server.
    """
    from celery_redislock.locks.connection import mask_password  # noqa: PLC0415  imports redis

    scheme, _, rest = url.partition("://")
    if scheme == "unix":
        return "redis+socket://" + re.sub(r"([?&])db=", r"\1virtual_host=", rest)
    if scheme in {"valkey", "valkeys"}:
        return f"redis{scheme.removeprefix('valkey')}://{rest}"
    if scheme not in {"redis", "rediss", "redis+socket"}:
        message = (
            f"{mask_password(url)!r} is not the URL of a Redis or Valkey server; use redis://host:port/db"
        )
        raise NotReadyError(message)
    return url


def _collect_results() -> None:
    """Let go of the scenes' results while they can still say so to the server.

    A finished ``AsyncResult`` refers to itself (by its ``on_ready``), so it lives until the garbage is
    collected, if need be when the process ends. It then unsubscribes: with the server gone, Celery tries
    that for 20 s, for every result in turn (celery before 5.7.0; there only for unfinished ones).
    """
    gc.collect()


def _check_answer() -> None:
    from celery_redislock.locks.connection import mask_password  # noqa: PLC0415  imports redis

    try:
        demo.thumbnail.lock_for(0).holder()
    except Exception as error:  # noqa: BLE001  whatever is wrong with the URL is the user's to read
        raise NotReadyError(mask_password(str(error))) from None


def _wait_for_worker(worker: WorkerProcess) -> None:
    deadline = time.monotonic() + WORKER_START
    while not demo.notebook().is_let_go(READY):
        if not worker.is_running or time.monotonic() > deadline:
            log = "\n".join(worker.last_lines)
            message = f"the worker did not start; the end of its log:\n{log}"
            raise NotReadyError(message)
        time.sleep(0.05)


def _print_log(line: str) -> None:
    print(f"         worker | {line}", flush=True)


def _ignore(line: str) -> None:
    del line
