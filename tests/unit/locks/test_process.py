"""Which process holds a lease, and when it is known to be dead."""

import base64
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from celery_redislock.locks import process
from celery_redislock.locks.process import is_dead, name_of, whereabouts_of
from tests.forks import fork, gets_through

pytestmark = [
    pytest.mark.law(4),
    pytest.mark.skipif(sys.platform != "linux", reason="only /proc tells of other processes"),
]


@contextmanager
def child(life: Callable[[], object]) -> Iterator[tuple[int, str]]:
    """Fork; yield the child's pid and its place when it has told it, and is about to live its life."""
    mine, its = os.pipe()
    pid = fork()
    if not pid:
        os.write(its, (whereabouts_of(None, os.getpid()) or "").encode())
        life()
        os._exit(0)
    try:
        yield pid, os.read(mine, 99).decode()
    finally:
        os.close(mine)
        os.close(its)
        with suppress(ProcessLookupError):  # a test has reaped it
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def wait_zombie(pid: int) -> None:
    """Return when its main thread has ended; nobody reaps it."""
    deadline = time.monotonic() + 10
    while b") Z " not in Path(f"/proc/{pid}/stat").read_bytes():
        assert time.monotonic() < deadline
        os.sched_yield()


def of(machine: str, *processes: bytes) -> str:
    return machine[:8] + base64.urlsafe_b64encode(b"".join(processes)).decode()


def here() -> str:
    return name_of(os.getpid()) or pytest.fail("/proc does not tell")


def test_whereabouts_are_24_characters_and_begin_with_the_workers_main_process() -> None:
    """A lease must stay small; threads, gevent and solo have one process for both."""
    mine = whereabouts_of(None, os.getpid())
    assert mine == whereabouts_of(here(), os.getpid()) == here() + here()[8:]
    assert len(mine) == 24
    with child(lambda: None) as (_, its):
        assert its[:8] == mine[:8]
        assert its[8:] != mine[8:]
        assert whereabouts_of(its[:16], os.getpid()) == its[:16] + here()[8:]
    assert whereabouts_of("elsewher" + here()[8:], os.getpid()) is None  # a namespace of its own


def test_a_run_is_dead_when_its_process_and_its_main_process_are_gone() -> None:
    """Neither alone is enough: the main process acts for a dead child, and a child may outlive it."""

    def live() -> None:
        Path("/proc/self/comm").write_text(") Z 1 (")
        signal.pause()

    with child(live) as (pid, its):
        assert not is_dead(its)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert is_dead(its)
        assert not is_dead(here() + its[16:])
        assert not is_dead(its[:16] + here()[8:])


def live_on() -> None:
    threading.Thread(target=signal.pause, daemon=True).start()
    ctypes.CDLL(None).pthread_exit(None)


@pytest.mark.parametrize(
    ("life", "dead"), [(lambda: None, True), (live_on, False)], ids=["ended", "lives on"]
)
def test_a_zombie_is_gone_unless_a_thread_of_it_lives(life: Callable[[], object], *, dead: bool) -> None:
    """Without an init a killed worker stays one; and its body may go on in another thread."""
    with child(life) as (pid, its):
        wait_zombie(pid)
        assert is_dead(its) is dead


def test_another_process_with_its_pid_is_another_process(tmp_path: Path, monkeypatch: Any) -> None:
    """A pid comes again, after a restart of a container at once; its start does not."""
    pid = os.getpid().to_bytes(3, "big")
    recycled = of(here(), *[pid + b"\0\0\1"] * 2)
    assert is_dead(recycled)
    assert not is_dead(of("elsewher", *[pid + b"\0\0\1"] * 2))
    monkeypatch.setattr(process, "_PROC", tmp_path)  # as mounted with ``hidepid``: whose it is is not told
    assert not is_dead(recycled)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_users_process_lives_though_it_may_not_be_signalled() -> None:
    mine = whereabouts_of(None, os.getpid())

    def look_as_nobody() -> None:
        assert name_of(os.getpid())
        os.setuid(65534)
        with pytest.raises(PermissionError):
            os.kill(os.getppid(), 0)
        assert not is_dead(mine)

    assert gets_through(look_as_nobody)


@pytest.mark.parametrize(
    "garbage",
    [
        None, 7, 1e400, True, [], {}, "", "short", "*" * 16, "=" * 16, "A" * 15, "A" * 17,
        "AAAA" * 3 + "AA==", "é" * 16, "\ud800" * 16, "\0" * 16, "AAAAAAAA" * 2, ["A"] * 16,
    ],
)  # fmt: skip
def test_whatever_else_stands_there_names_nobody_who_is_dead(garbage: Any) -> None:
    """Anybody may write values; on any doubt a holder lives."""
    assert not is_dead(garbage)
    if isinstance(garbage, str):
        assert not is_dead(here()[:8] + garbage)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: Any) -> Callable[[], str | None]:
    """What this process is called by the files of a ``/proc`` in ``tmp_path``."""
    for name in ("sys/kernel/random/boot_id", "self/status", f"{os.getpid()}/stat"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes((Path("/proc") / name).read_bytes())
    (tmp_path / "self/ns").mkdir()
    for kind in ("pid", "time"):
        (tmp_path / "self/ns" / kind).symlink_to(f"{kind}:[1]")
    monkeypatch.setattr(process, "_PROC", tmp_path)
    return lambda: process.name_of.__wrapped__(os.getpid())


@pytest.mark.parametrize("name", ["sys/kernel/random/boot_id", "self/ns/pid", "self/ns/time"])
def test_another_boot_is_another_machine(tmp_path: Path, proc: Callable[[], str | None], name: str) -> None:
    """A reboot, or a container, gives the pid to somebody else."""
    before = proc()
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(tmp_path / "self/status")  # other text, and another link
    after = proc()
    assert before[:8] != after[:8]
    assert before[8:] == after[8:] == here()[8:]


@pytest.mark.parametrize(
    ("name", "text"),
    [("self/status", None), ("sys/kernel/random/boot_id", None), ("self/ns/pid", None), ("{}/stat", None),
     ("self/status", "NSpid:\t4711\t{}\n"), ("self/status", "\n"), ("{}/stat", "1 (init) S")],
)  # fmt: skip
def test_where_proc_does_not_tell_a_lease_has_no_place(
    tmp_path: Path, proc: Callable[[], str | None], name: str, text: str | None
) -> None:
    """Another system, a sandbox, or the ``/proc`` of another pid namespace: the ttl decides."""
    assert proc()
    path = tmp_path / name.format(os.getpid())
    path.unlink()
    if text is not None:
        path.write_text(f"Name:\tcelery\n{text}".format(os.getpid()))
    assert proc() is None
