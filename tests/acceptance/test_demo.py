"""The demo, run as a user runs it: it keeps its promises, tells when one is broken, and leaves nothing."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
import redis

from tests.acceptance.harness import PATIENCE
from tests.facts import descendants, lives, wait_until

ROOT = Path(__file__).resolve().parents[2]
linux = pytest.mark.skipif(sys.platform != "linux", reason="finds descendants and sockets in /proc")


@contextmanager
def _demo(*args: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    env = {k: v for k, v in os.environ.items() if k not in {"REDIS_URL", "REDISLOCK_ENABLED"}}
    with subprocess.Popen(
        [sys.executable, "-m", "celery_redislock.cli", "demo", *args],
        cwd=ROOT,
        env={**env, "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _embedded_directory(pids: list[int]) -> Path:
    """Where the demo's server has its socket, from the shim's command line."""
    lines = []
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
    (shim,) = [line for line in lines if any(part.endswith(b"shim.py") for part in line)]
    return next(Path(part.decode()) for part in shim if re.search(rb"/redislock-[0-9a-f]+$", part))


def _until_scene_3(demo: subprocess.Popen[str]) -> tuple[list[int], Path]:
    """Read on until the long task is at work; return the demo's processes and its server's directory."""
    assert demo.stdout is not None
    for line in demo.stdout:
        if "another call after 0.5 s" in line:
            break
    pids = descendants(demo.pid)
    # Shim, server, the worker's main process and its pool.
    assert len(pids) >= 7
    return pids, _embedded_directory(pids)


def _all_gone(pids: list[int], temporary: Path) -> bool:
    return not any(lives(pid) for pid in pids) and not [*temporary.iterdir()]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where the demo has its temporary files; a short name, for a socket's path."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


class TestDemo:
    @linux
    @pytest.mark.slow
    def test_every_promise_is_kept_and_nothing_is_left_behind(self, temporary: Path) -> None:
        with _demo(TMPDIR=str(temporary)) as demo:
            pids, directory = _until_scene_3(demo)
            assert directory.parent == temporary
            out, err = demo.communicate(timeout=90)

            assert demo.returncode == 0, out + err
            assert len(re.findall(r"^kept    \d\.", out, re.MULTILINE)) == 6
            assert "6 of 6 promises kept" in out
            assert err == ""
            assert wait_until(lambda: _all_gone(pids, temporary), PATIENCE)

    @pytest.mark.slow
    def test_without_locks_it_reports_broken_promises_and_exits_1(self) -> None:
        """What is shown as seen was seen: with locking switched off, the same demo says so."""
        with _demo(REDISLOCK_ENABLED="0") as demo:
            out, _ = demo.communicate(timeout=110)

        assert demo.returncode == 1
        for number in range(1, 6):
            assert re.search(rf"^BROKEN  {number}\.", out, re.MULTILINE), out
        assert "seen      runs: 50; duplicates: 0; different task ids: 50" in out

    @linux
    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_ends_it_and_leaves_nothing(self, temporary: Path, signum: signal.Signals) -> None:
        with _demo(TMPDIR=str(temporary)) as demo:
            pids, directory = _until_scene_3(demo)
            assert directory.parent == temporary
            demo.send_signal(signum)
            _, err = demo.communicate(timeout=PATIENCE)

            assert demo.returncode == 128 + signum
            assert err.strip() == "interrupted"
            assert wait_until(lambda: _all_gone(pids, temporary), PATIENCE)

    @linux
    def test_kill_9_of_the_demo_ends_its_worker_and_its_server(self, temporary: Path) -> None:
        """The kernel closes both pipes: the server's shim and the worker see their end."""
        with _demo(TMPDIR=str(temporary)) as demo:
            pids, directory = _until_scene_3(demo)
            assert directory.parent == temporary
            demo.kill()
            demo.wait()

            assert wait_until(lambda: _all_gone(pids, temporary), PATIENCE)


class TestOnAServerOfTheUsers:
    @pytest.mark.slow
    def test_other_keys_stay_and_its_own_are_deleted(self, redis_url: str, prefix: str) -> None:
        with closing(redis.Redis.from_url(redis_url)) as client:
            client.set(f"{prefix}-mine", "1", ex=300)
            before = set(client.keys("redislock-demo-*"))

            with _demo("--url", redis_url) as demo:
                out, err = demo.communicate(timeout=90)

            assert demo.returncode == 0, out + err
            assert client.get(f"{prefix}-mine") == b"1"
            assert set(client.keys("redislock-demo-*")) <= before
            client.delete(f"{prefix}-mine")

    def test_a_server_that_does_not_answer_is_one_line_and_exit_status_2(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            with _demo(REDIS_URL=f"redis://:hush@127.0.0.1:{port}/0") as demo:
                out, err = demo.communicate(timeout=PATIENCE)

        assert demo.returncode == 2
        assert out == ""
        assert err.startswith("celery-redislock demo: ")
        assert err.count("\n") == 1
        assert "hush" not in err
