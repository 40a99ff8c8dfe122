"""A server as an object: its options, its address, and what can be done to it."""

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from weakref import WeakMethod

from celery_redislock.embedded.binary import find_server
from celery_redislock.embedded.exceptions import EmbeddedServerError
from celery_redislock.embedded.launch import Launch, free_port, server_options, unused_directory

__all__ = ["EmbeddedServer"]

#: How often a port the system called free may have been taken by the time the server binds it.
_PORT_ATTEMPTS = 10


class EmbeddedServer:
    """A server process that ends with this one.

    Methods may be called from any thread. One object is one server at a time;
    after ``stop()`` it can be started again, at a new address.

    Args:
        port: ``None`` (default): a unix socket only. 0: also a free port of
            127.0.0.1, chosen by the system. Otherwise: exactly that port.
        binary: path or name of the server program; default: :func:`find_server`.
        extra_args: options for the server (``"--maxmemory", "10mb"``), after
            and thus stronger than the ones given here. A first item without
            leading dashes is its configuration file, as on its command line.
        data_dir: an existing directory for an append-only file, which keeps
            the data over ``kill()``, ``restart()`` and the next start; default
            ``None``: data lives in memory only. Not for two servers at once.

    Raises:
        EmbeddedServerError: no server program was found, the port is out of
            range, or the system is not POSIX.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        binary: str | None = None,
        extra_args: Sequence[str] = (),
        data_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if not hasattr(os, "register_at_fork"):
            raise EmbeddedServerError(
                "the embedded server needs Linux or macOS; give the URL of a server instead"
            )
        if port is not None and not 0 <= port <= 65535:
            message = f"port must be None or 0 to 65535, not {port}"
            raise EmbeddedServerError(message)
        self.binary = find_server(binary)
        self._wanted_port = port
        self._extra_args = tuple(extra_args)
        self._data_dir = None if data_dir is None else os.path.abspath(data_dir)  # noqa: PTH100  links stay
        self._launch: Launch | None = None
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=_unless_collected(WeakMethod(self._disown)))

    def __enter__(self) -> "EmbeddedServer":
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The URL for Celery's ``broker_url`` and ``result_backend``: the port's if there is one."""
        if self.port is None:
            return f"redis+socket://{self.socket_path}?virtual_host=0"
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def redis_url(self) -> str:
        """The URL for ``redis.Redis.from_url``: the unix socket's, also if there is a port."""
        return f"unix://{self.socket_path}?db=0"

    @property
    def socket_path(self) -> str:
        """The path of the unix socket; letters, digits and ``. _ / -`` only."""
        return self._launched.socket_path

    @property
    def port(self) -> int | None:
        """The port on 127.0.0.1, ``None`` if there is none."""
        return self._launched.port

    @property
    def pid(self) -> int:
        """The server's process id, of its last start."""
        return self._launched.pid

    @property
    def is_running(self) -> bool:
        """Whether the server's process exists (paused or not) and is this process's own."""
        with self._lock, suppress(EmbeddedServerError):
            return self._launched.ask("status").startswith("running")
        return False

    def start(self) -> "EmbeddedServer":
        """Start the server and return it when it answers; do nothing if it was started.

        Raises:
            EmbeddedServerError: it ended or did not answer, with its last
                output; for instance because the wanted port is in use.
        """
        with self._lock:
            attempts = _PORT_ATTEMPTS if self._wanted_port == 0 else 1
            while self._launch is None:
                attempts -= 1
                try:
                    self._start_once()
                except EmbeddedServerError as error:
                    if not attempts or "Address already in use" not in error.output:
                        raise
            return self

    def stop(self) -> None:
        """End the server and remove its directory; return when both are gone. Idempotent."""
        with self._lock:
            launch, self._launch = self._launch, None
            if launch is not None:
                atexit.unregister(self.stop)
                launch.end()

    def restart(self) -> None:
        """End the server, if it runs, and start it at the same address; only ``data_dir`` keeps its data.

        Raises:
            EmbeddedServerError: it ended or did not answer again.
        """
        with self._lock:
            self._launched.ask("stop")
            self._launched.start_server()

    def kill(self) -> None:
        """Kill the server as a crash would (SIGKILL); ``restart()`` brings it back."""
        with self._lock:
            self._launched.ask("kill")

    def pause(self) -> None:
        """Stop the server's process (SIGSTOP): connections stay open, nothing is answered."""
        with self._lock:
            self._launched.ask("pause")

    def resume(self) -> None:
        """Let a paused server go on."""
        with self._lock:
            self._launched.ask("resume")

    @property
    def _launched(self) -> "Launch":
        if self._launch is None:
            raise EmbeddedServerError(
                "the embedded server is not started: call start(), or use it in a with statement"
            )
        return self._launch

    def _start_once(self) -> None:
        port = free_port() if self._wanted_port == 0 else self._wanted_port
        directory = unused_directory()
        options = server_options(directory, port, data_dir=self._data_dir, extra_args=self._extra_args)
        self._launch = Launch([self.binary, *options], directory, port)
        atexit.register(self.stop)
        try:
            self._launch.start_server()
        except BaseException:
            self.stop()
            raise

    def _disown(self) -> None:
        """Let go of the parent's server in a forked child; its address stays readable.

        An open copy of the pipe would keep the server alive after the parent's death.
        """
        self._lock = threading.RLock()  # another thread of the parent may have held it
        if self._launch is not None:
            self._launch.disown()


def _unless_collected(method: "WeakMethod[Callable[[], None]]") -> Callable[[], None]:
    """Make a fork hook that does not keep its object alive: hooks cannot be taken back."""

    def call() -> None:
        bound = method()
        if bound is not None:
            bound()

    return call
