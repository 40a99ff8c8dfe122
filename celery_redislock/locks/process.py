"""The processes that hold a lease: how they are named, and whether they are dead. The latter on Linux only.

The *whereabouts* of a lease are 24 characters, three times eight: the machine (a digest of boot, pid and time
namespace, and host name); the worker's main process (its pid, and when it started); the process that runs the
body, likewise, which may be the same one. Only a process of the same machine can tell that they are dead. On
any doubt they live, and the lease ends with its ttl.
"""

import os
import socket
from base64 import b64decode, urlsafe_b64encode
from contextlib import suppress
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path

_PROC = Path("/proc")


@cache
def hostname() -> str:
    """Return this machine's name, as holders are shown with it."""
    return socket.gethostname()


@lru_cache(maxsize=1)
def name_of(pid: int) -> str | None:
    """Return machine and process, 16 characters, ``None`` where it cannot be told; ``pid`` is our own."""
    own = _PROC / "self"
    try:
        # One number alone: this /proc is that of our own pid namespace.
        if f"\nNSpid:\t{pid}\n" not in (own / "status").read_text():
            return None
        boot = (_PROC / "sys/kernel/random/boot_id").read_text()
        pids = (own / "ns/pid").readlink()
        times = (own / "ns/time").readlink() if (own / "ns/time").is_symlink() else ""  # since Linux 5.6
        process, _ = _look(pid)
        # By host name, because copies of a running virtual machine may share all the rest.
        machine = sha256(f"{boot}\n{pids}\n{times}\n{os.uname().nodename}".encode()).digest()
    except (OSError, ValueError, IndexError):
        return None
    return urlsafe_b64encode(machine[:6] + process).decode()


@lru_cache(maxsize=1)
def whereabouts_of(main: str | None, pid: int) -> str | None:
    """Return the whereabouts of a lease of this process; ``main``: the name of its worker's main process."""
    here = name_of(pid)
    main = main or here
    return main + here[8:] if main and here and main[:8] == here[:8] else None


def is_dead(whereabouts: object) -> bool:
    """Whether both processes are known to be dead. Anybody may have written anything as whereabouts."""
    here = name_of(os.getpid())
    if here is None or not isinstance(whereabouts, str) or len(whereabouts) != 24:
        return False
    if whereabouts[:8] != here[:8]:
        return False
    try:
        processes = b64decode(whereabouts[8:], altchars=b"-_", validate=True)
    except ValueError:
        return False
    return len(processes) == 12 and _is_gone(processes[:6]) and _is_gone(processes[6:])


def _is_gone(process: bytes) -> bool:
    pid = int.from_bytes(process[:3], "big")
    try:
        with suppress(PermissionError):  # another user's
            os.kill(pid, 0)
        now, is_zombie = _look(pid)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, IndexError):
        return False
    return is_zombie or now != process


def _look(pid: int) -> tuple[bytes, bool]:
    """Return a process as six bytes, and whether it and all its threads have ended, reaped by nobody."""
    # The command's name before them may hold anything. Proc(5) counts fields from 1, and these from 3.
    fields = (_PROC / f"{pid}/stat").read_bytes().rpartition(b")")[2].split()
    started = int(fields[19]) & 0xFFFFFF
    ended = fields[0] in {b"Z", b"X"} and int(fields[17]) <= 1
    return pid.to_bytes(3, "big") + started.to_bytes(3, "big"), ended
