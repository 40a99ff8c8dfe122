"""The process between a program and its embedded server, which cleans up when the program is gone.

Run as a script by :mod:`celery_redislock.embedded.launch`, which never imports it::

    python -I -S shim.py PARENT DIRECTORY SERVER [OPTION ...]

It makes DIRECTORY, starts the server as its child when told to, and answers
one command at a time: it reads words from standard input and writes one line
each to standard output, ``running PID``, ``ended EXITCODE`` or ``error TEXT``.

When standard input ends (the kernel closes a pipe however its writer died),
or PARENT is no longer its parent, it stops the server and removes DIRECTORY.
The second test is for copies of the pipe in children that were forked where
Python's fork hooks do not run: they keep the pipe open after the parent died.

The server is a child of this process, so that a signal meant for it can never
reach a stranger with the same pid: an ended child keeps its pid until waited for.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable

__all__ = ["Server", "main", "serve"]

#: Seconds between two looks at whether the parent still lives, beside the pipe.
PARENT_CHECK_INTERVAL = 0.5
#: Seconds a server has to end by itself before it is killed. SIGTERM takes
#: about 0.1; one with replicas would wait 10 for them (shutdown-timeout).
TERM_GRACE = 1.0

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class Server:
    """One server process at a time, started from the same command each time.

    Args:
        command: program and arguments.
        log: file that collects the output of every start.
    """

    def __init__(self, command: list[str], log: str) -> None:
        self._command = command
        self._log = log
        self._die_with_this_process = _death_signal_setter()
        self._pid = 0
        self._exit_code: int | None = 0

    def start(self) -> None:
        """Start the server unless it runs."""
        self.look()
        if self._exit_code is not None:
            shim = os.getpid()
            self._pid = os.fork()
            if self._pid == 0:
                self._become_server(shim)
            self._exit_code = None

    def look(self, flags: int = os.WNOHANG) -> None:
        """Take note of the server's end, or with other flags wait for it (``os.waitpid``)."""
        if self._exit_code is None:
            pid, status = os.waitpid(self._pid, flags)
            if pid and not os.WIFSTOPPED(status):
                self._exit_code = os.waitstatus_to_exitcode(status)

    def pause(self) -> None:
        """Stop the server's process (SIGSTOP); it has stopped when this returns."""
        self._signal(signal.SIGSTOP)
        self.look(os.WUNTRACED)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the server with SIGKILL; it has ended when this returns."""
        self._signal(signal.SIGKILL)
        self.look(0)

    def stop(self) -> None:
        """End the server with SIGTERM, with SIGKILL after ``TERM_GRACE``; also when paused."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        deadline = time.monotonic() + TERM_GRACE
        while self._exit_code is None and time.monotonic() < deadline:
            time.sleep(0.005)
            self.look()
        self.kill()

    def __str__(self) -> str:
        return f"running {self._pid}" if self._exit_code is None else f"ended {self._exit_code}"

    def _signal(self, number: int) -> None:
        self.look()
        if self._exit_code is None:
            os.kill(self._pid, number)

    def _become_server(self, shim: int) -> None:
        try:
            os.dup2(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
            os.dup2(1, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number in _IGNORED:
                signal.signal(number, signal.SIG_DFL)
            self._die_with_this_process()
            if os.getppid() == shim:  # else it died before the line above, which then has no effect
                os.execv(self._command[0], self._command)  # noqa: S606  no shell is the point
        except OSError as error:
            os.write(2, f"{self._command[0]}: {error}\n".encode())
        finally:
            os._exit(127)


def serve(server: Server, parent: int) -> None:
    """Carry out the commands on standard input until it ends, says ``end``, or the parent is gone."""
    commands: dict[str, Callable[[], None]] = {
        "start": server.start,
        "status": server.look,
        "pause": server.pause,
        "resume": server.resume,
        "kill": server.kill,
        "stop": server.stop,
    }
    poller = select.poll()
    poller.register(0, select.POLLIN)
    while os.getppid() == parent:
        if poller.poll(PARENT_CHECK_INTERVAL * 1000):
            # One read is one command: the parent waits for each answer before it sends the next.
            word = os.read(0, 64).decode()
            if word not in commands:
                break
            commands[word]()
            os.write(1, f"{server}\n".encode())


def main() -> None:
    """Serve the parent; then leave no process and no directory behind."""
    # Whoever signals a whole group or service also signals the parent and the
    # server; this process must outlive both to clean up.
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    parent, directory, *command = sys.argv[1:]
    try:
        os.mkdir(directory, 0o700)  # noqa: PTH102  pathlib would take a third of the start-up time
    except OSError as error:
        os.write(1, f"error {error}\n".encode())
        return
    server = Server(command, f"{directory}/log")
    try:
        serve(server, int(parent))
    finally:
        server.stop()
        _remove(directory)


_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _death_signal_setter() -> Callable[[], None]:
    """Return what ties a forked child's life to this process, even to its SIGKILL: Linux only.

    The kernel sends the signal when the *thread* that forked ends; this process has only one.
    """
    if sys.platform != "linux":
        return lambda: None
    try:
        from ctypes import CDLL  # noqa: PLC0415  some builds have no ctypes, and other systems no use for it

        prctl = CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return lambda: None

    def die_with_this_process() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)

    return die_with_this_process


def _remove(directory: str) -> None:
    from shutil import rmtree  # noqa: PLC0415  its import would be paid at every start

    rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
