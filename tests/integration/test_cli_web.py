"""The command ``web`` as a process, which is told to end."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from celery_redislock.cli import main
from tests.integration.commands import ROOT
from tests.integration.test_cli import APP, Shell

#: Either command, with a page that says of which app it is.
PROGRAM = """
import sys
from types import ModuleType
from celery_redislock.cli import main, redislock
from celery_redislock.web.guard import guarded

def page_of(server):
    def page(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [f"{server.app.main if server.app else 'no app'} at {server.store.server}".encode()]
    return guarded(page)

module = ModuleType("celery_redislock.web.page")
module.page_of = page_of
sys.modules[module.__name__] = module
if sys.argv[1] == "-A":
    from celery.bin.celery import celery
    celery.add_command(redislock, "redislock")
    celery(auto_envvar_prefix="CELERY")
else:
    main()
"""


@pytest.fixture
def shell(redis_url: str, celery_url: str, prefix: str) -> Iterator[Shell]:
    with Shell.on(redis_url, celery_url, prefix) as shell:
        yield shell


@contextmanager
def serving(shell: Shell, *words: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Run it; the process, and the line that it says when it serves."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words, "web", "--port", "0"],
        cwd=ROOT, env=shell.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_the_page_of_an_app_until_it_is_told_to_end(shell: Shell, end: signal.Signals) -> None:
    """With exit status 0 and nothing on standard error, and it does not wait for a client that is slow."""
    with serving(shell, "-A", APP, "redislock") as (process, line):
        address = line.split()[-1]
        with urlopen(address, timeout=30) as answer:  # noqa: S310  our own
            text = answer.read().decode()
        port = int(address.rpartition(":")[2].strip("/"))
        with socket.create_connection(("127.0.0.1", port), timeout=30) as slow:
            slow.sendall(b"GET / HT")
            process.send_signal(end)
            _, errors = process.communicate(timeout=30)
    assert line == f"serving {shell.store.server} at http://127.0.0.1:{port}/\n"
    assert text == f"cli_app at {shell.store.server}"
    assert (process.returncode, errors) == (0, "")


def test_it_serves_a_lock_server_without_an_app(shell: Shell) -> None:
    """The page knows of no tasks then, and shows the locks."""
    with serving(shell, *shell.where) as (process, line), urlopen(line.split()[-1], timeout=30) as answer:  # noqa: S310  our own
        assert answer.read().decode() == f"no app at {shell.store.server}"
        assert process.poll() is None


def test_a_port_that_is_taken_is_a_sentence(shell: Shell) -> None:
    """And exit status 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-c", PROGRAM, *shell.where, "web", "--port", str(port)]
        done = subprocess.run(
            command, cwd=ROOT, env=shell.environment, capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: cannot listen at 127.0.0.1:{port}: ")
    assert done.stderr.count("\n") == 1


def test_a_lock_server_that_does_not_answer_is_a_sentence() -> None:
    """Nobody listens at that port; no page is needed to say so."""
    result = CliRunner().invoke(main, ["--url", "redis://127.0.0.1:1/0", "web", "--port", "0"])
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert "127.0.0.1:1" in result.output
