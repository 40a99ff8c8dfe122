"""Programs of their own: they fork, patch, or are interrupted, which a test's process must not be."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

#: What every program has: a store, given as ``argv``, and a deadline for waiting.
PROLOGUE = """
import os, signal, sys, threading, time
from celery_redislock.locks import Lock, Semaphore, connect
from celery_redislock.locks.watchdog import watchdog_of

url, prefix, *rest = sys.argv[1:]
store = connect(url, prefix=prefix)


def until(fact):
    deadline = time.monotonic() + 30
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def connection_id():
    connection = store.connections.take()
    connection.send_command("CLIENT", "ID")
    try:
        return connection.read_response()
    finally:
        connection.redislock_idle.append(connection)


def watchdogs():
    return [each for each in threading.enumerate() if each.name == "redislock-watchdog"]
"""


#: What a program does first to run in greenlets, after the test that needs it has looked for gevent.
PATCHED = """
    from gevent import monkey
    monkey.patch_all()
    import gevent
    from gevent import Timeout
    from gevent.pool import Pool


    def together(number, work):
        pool = Pool(number)
        done = [pool.spawn(work, each) for each in range(number)]
        gevent.joinall(done, timeout=100, raise_error=True)
        assert all(each.successful() for each in done)
"""


def run_program(program: str, *argv: str, first: str = "", timeout: float = 60.0, returns: int = 0) -> str:
    """Run a program, after the prologue, to its end, which must be a good one; return what it printed.

    ``first`` is what it does before anything is imported; it ``returns`` a status, or less a signal's number.
    """
    text = textwrap.dedent(first) + PROLOGUE + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", text, *argv],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == returns, f"exit status {done.returncode}: {done.stderr[-6000:]}"
    return done.stdout


@contextmanager
def waiting_programs(case: Any, program: str, number: int) -> Iterator["list[subprocess.Popen[bytes]]"]:
    """Run so many programs that wait for something; they end with the block at the latest."""
    prologue = PROLOGUE.replace("prefix=prefix", "prefix=prefix, socket_timeout=0.5", 1)
    command = [sys.executable, "-c", prologue + textwrap.dedent(program), case.url, case.prefix]
    started = [subprocess.Popen(command, cwd=Path(__file__).parents[2]) for _ in range(number)]
    try:
        yield started
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait(30)
