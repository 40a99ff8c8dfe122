"""The process between a program and its embedded server, which cleans up when the program is gone.

Run as a script by :mod:`celery_redislock.embedded.server`, which never imports it::

    python -I -S shim.py PARENT DIRECTORY SERVER [OPTION ...]

It makes DIRECTORY and starts the server as its child. For each ``?`` on standard input it writes one line to
standard output, ``running PID`` or ``ended EXITCODE``; ``error TEXT`` where it could not make DIRECTORY.

When standard input ends (the kernel closes a pipe however its writer died) or brings anything else, or when
PARENT is no longer its parent, it stops the server and removes DIRECTORY. The look at PARENT is for copies of
the pipe in the parent's forked children: they keep the pipe open after the parent died.
"""

import os
import select
import signal
import sys
import time

#: Seconds between two looks at whether the parent still lives, beside the pipe.
PARENT_CHECK_INTERVAL = 0.5
#: Seconds a server has to end by itself. SIGTERM takes about 0.1; one with replicas would wait 10 for them.
TERM_GRACE = 1.0

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class Server:
    """The server process, a child of this one, with its output in the file *log*.

    No other process has its pid: an ended child keeps it until it is waited for, which :meth:`look` does.
    """

    def __init__(self, command: list[str], log: str) -> None:
        self._exit_code: int | None = None
        shim = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _become_server(command, log, shim)

    def look(self) -> None:
        """Take note of the server's end."""
        if self._exit_code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._exit_code = os.waitstatus_to_exitcode(status)

    def stop(self) -> None:
        """End the server with SIGTERM, with SIGKILL after ``TERM_GRACE``; also when it is paused."""
        deadline = time.monotonic() + TERM_GRACE
        self.look()
        if self._exit_code is None:
            os.kill(self._pid, signal.SIGTERM)
            os.kill(self._pid, signal.SIGCONT)
        while self._exit_code is None:
            time.sleep(0.005)
            self.look()
            if self._exit_code is None and time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)

    def __str__(self) -> str:
        return f"running {self._pid}" if self._exit_code is None else f"ended {self._exit_code}"


def serve(server: Server, parent: int) -> None:
    """Answer questions until standard input ends or brings anything else, or the parent is gone."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    while os.getppid() == parent:
        is_asked = poller.poll(PARENT_CHECK_INTERVAL * 1000)
        server.look()
        if is_asked:
            if os.read(0, 1) != b"?":
                break
            os.write(1, f"{server}\n".encode())


def main() -> None:
    """Start the server, serve the parent, then leave no process and no directory behind."""
    # A signal to the whole group reaches the parent and the server too; this process outlives both.
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    parent, directory, *command = sys.argv[1:]
    try:
        os.mkdir(directory, 0o700)  # noqa: PTH102  pathlib would take a third of the start-up time
    except OSError as error:
        os.write(1, f"error {error}\n".encode())
        return
    try:
        server = Server(command, f"{directory}/log")
        try:
            serve(server, int(parent))
        finally:
            server.stop()
    finally:
        from shutil import rmtree  # noqa: PLC0415  its import would be paid at every start

        rmtree(directory, ignore_errors=True)


def _become_server(command: list[str], log: str, shim: int) -> None:
    try:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
        os.dup2(1, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_DFL)
        _die_with_the_shim()
        if os.getppid() == shim:  # else it died before the line above, which then has no effect
            os.execv(command[0], command)  # noqa: S606  no shell is the point
    except OSError as error:
        os.write(2, f"{command[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def _die_with_the_shim() -> None:
    """Tie this process's life to its parent's, even to its SIGKILL: Linux only."""
    if sys.platform != "linux":
        return
    try:
        from ctypes import CDLL  # noqa: PLC0415  some builds have no ctypes

        CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return


if __name__ == "__main__":
    main()
