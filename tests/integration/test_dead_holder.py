"""A lease whose process was killed, as seen from its own pid namespace and from another one."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

#: What begins a program in a pid namespace of its own, as a container does; who is killed takes it with him.
ANOTHER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
#: A process in this one.
HERE: tuple[str, ...] = ()

_PROLOGUE = """
import sys, time
from celery_redislock.locks import connect
from celery_redislock.store.store import Refusal
from celery_redislock.locks.tasklock import Says, TaskLock

url, prefix, owner = sys.argv[1:]
store = connect(url, prefix=prefix)
lock = TaskLock(store, "t", 60.0, 60.0, None, None, Says(), "n", owner)
"""

HOLD = """
terms = dict.fromkeys(["claim", "message", "max_hold"])
lease = lock.start(f"{owner}/1", **terms, may_be_done=False, accepted=True, on_lost=lambda lease: None)
print(lease.key, flush=True)
time.sleep(60)
"""

ASK = """
print("refused" if isinstance(lock.accept(f"{owner}/1", 60.0, message=None), Refusal) else "accepted")
"""


def unshared() -> bool:
    """Whether this machine lets a test make a pid namespace."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*ANOTHER, "true"], capture_output=True, timeout=10, check=False).returncode == 0


@contextmanager
def program(where: tuple[str, ...], text: str, *argv: str) -> Iterator[subprocess.Popen[str]]:
    command = [*where, sys.executable, "-c", _PROLOGUE + text, *argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as it:
        try:
            yield it
        finally:
            it.kill()


@pytest.mark.law(1, 4)
@pytest.mark.skipif(not unshared(), reason="no new pid namespace: needs Linux, unshare(1) and CAP_SYS_ADMIN")
@pytest.mark.parametrize(
    ("holder", "asker", "answer"),
    [(HERE, HERE, "accepted"), (ANOTHER, HERE, "refused"), (HERE, ANOTHER, "refused")],
    ids=["in one namespace", "held in another", "asked from another"],
)
def test_only_who_shares_its_pid_namespace_knows_that_a_holder_is_dead(
    redis_url: str, prefix: str, holder: tuple[str, ...], asker: tuple[str, ...], answer: str
) -> None:
    """Elsewhere its pid names nobody, or somebody else: there the ttl decides."""
    with program(holder, HOLD, redis_url, prefix, "killed") as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "n\n"
        run.kill()
        assert run.stdout.read() == ""  # nobody has it open any more
    with program(asker, ASK, redis_url, prefix, "next") as next_one:
        assert next_one.communicate(timeout=30) == (f"{answer}\n", None)
