"""The embedded server's life: it ends with ``stop()`` or with its parent, however that ends."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_redislock.embedded import EmbeddedServer
from tests.facts import lives, wait_until


def _facts(server: EmbeddedServer) -> dict[str, Any]:
    return {"pid": server.pid, "shim": server._launched._shim.pid, "socket": server.socket_path}


def _is_gone(facts: dict[str, Any]) -> bool:
    """Whether server, shim, socket and directory are gone."""
    return not (lives(facts["pid"]) or lives(facts["shim"]) or Path(facts["socket"]).parent.exists())


def _pings(socket_path: str) -> bool:
    with closing(redis.Redis(unix_socket_path=socket_path, socket_timeout=5)) as client:
        return bool(client.ping())


class _Program:
    """A Python program with a server of its own, in its own session; it prints facts as JSON lines."""

    prelude = """
        import json, os, signal, sys, time
        from celery_redislock.embedded import EmbeddedServer
        def tell(**facts): print(json.dumps(facts), flush=True)
        def facts(server):
            return dict(pid=server.pid, shim=server._launched._shim.pid, socket=server.socket_path)
    """

    def __init__(self, code: str) -> None:
        command = [sys.executable, "-c", textwrap.dedent(self.prelude) + textwrap.dedent(code)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout
        facts: dict[str, Any] = json.loads(self.process.stdout.readline())
        return facts

    def end(self) -> None:
        with self.process:
            self.process.kill()


@pytest.fixture
def program() -> Iterator[Callable[[str], _Program]]:
    started: list[_Program] = []

    def start(code: str) -> _Program:
        started.append(_Program(code))
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.mark.parametrize("is_paused", [False, True])
def test_stop_leaves_no_process_no_socket_and_no_directory(is_paused: bool) -> None:
    server = EmbeddedServer().start()
    facts = _facts(server)
    assert not _is_gone(facts)
    if is_paused:
        os.kill(server.pid, signal.SIGSTOP)
    server.stop()
    assert _is_gone(facts)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to its parent's SIGKILL")
def test_signals_to_the_process_that_looks_after_the_server_do_not_end_it_and_its_death_does() -> None:
    server = EmbeddedServer().start()
    facts = _facts(server)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(facts["shim"], number)
        assert _pings(server.socket_path)
    os.kill(facts["shim"], signal.SIGKILL)
    assert wait_until(lambda: not lives(facts["pid"]), 2)
    server.stop()
    assert _is_gone(facts)


START = "server = EmbeddedServer().start(); "

#: What a parent does with its server, and the signal that ends it, if it does not end by itself.
PARENTS: dict[str, tuple[str, signal.Signals | None]] = {
    "killed": (START + "tell(**facts(server)); time.sleep(60)", signal.SIGKILL),
    "terminated": (START + "tell(**facts(server)); time.sleep(60)", signal.SIGTERM),
    "killed, with the server paused": (
        START + "os.kill(server.pid, signal.SIGSTOP); tell(**facts(server)); time.sleep(60)",
        signal.SIGKILL,
    ),
    "forgets to stop it": (START + "tell(**facts(server))", None),
    # A child's copy of the pipe must not look like a living parent.
    "killed, but for a forked child": (
        START
        + "child = os.fork(); child and tell(child=child, **facts(server)); time.sleep(60); os._exit(0)",
        signal.SIGKILL,
    ),
}


@pytest.mark.parametrize("parent", PARENTS)
def test_a_parent_that_has_ended_leaves_nothing(program: Callable[[str], _Program], parent: str) -> None:
    code, number = PARENTS[parent]
    running = program(code)
    facts = running.hear()
    child = facts.get("child")
    try:
        if number is None:
            assert running.process.wait(10) == 0
        else:
            assert not _is_gone(facts)
            running.process.send_signal(number)

        assert wait_until(lambda: _is_gone(facts), 2 if number else 0)
        assert child is None or lives(child)
    finally:
        if child is not None:
            os.kill(child, signal.SIGKILL)


def test_an_interrupted_terminal_reaches_the_parent_alone(program: Callable[[str], _Program]) -> None:
    """Ctrl-C signals the foreground process group: a worker still needs its broker to shut down warm."""
    parent = program("""
        server = EmbeddedServer().start()
        try:
            tell(**facts(server))
            time.sleep(60)
        except KeyboardInterrupt:
            tell(interrupted=True)
            sys.stdin.read()
    """)
    facts = parent.hear()

    os.killpg(parent.process.pid, signal.SIGINT)

    assert parent.hear() == {"interrupted": True}
    assert not wait_until(lambda: not lives(facts["pid"]), 0.5)
    assert _pings(facts["socket"])
    assert parent.process.stdin
    parent.process.stdin.close()
    assert parent.process.wait(10) == 0
    assert _is_gone(facts)


def test_a_forked_child_does_not_stop_the_server(program: Callable[[str], _Program]) -> None:
    parent = program("""
        with EmbeddedServer() as server:
            child = os.fork()
            if child == 0:
                server.stop()
                tell(url=server.url)
                sys.exit()
            assert os.waitpid(child, 0)[1] == 0
            tell(url=server.url, **facts(server))
            sys.stdin.read()
    """)
    child, facts = parent.hear(), parent.hear()
    assert child == {"url": facts["url"]}
    assert _pings(facts["socket"])
