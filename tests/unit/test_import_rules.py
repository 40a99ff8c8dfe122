"""Who may import whom, and what an import may cost."""

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import celery_redislock

ROOT = Path(celery_redislock.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

#: The doors to redis-py: how a connection is made, and what is said on it.
MAY_IMPORT_REDIS = {"locks/connection.py", "locks/scripts.py", "connection.py"}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield node.module or ""


def _packages(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in _imports(path)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
class TestEachModule:
    def test_only_the_doors_import_redis(self, path: Path) -> None:
        name = path.relative_to(ROOT).as_posix()

        assert "redis" not in _packages(path) or name in MAY_IMPORT_REDIS

    def test_the_lock_room_knows_no_celery(self, path: Path) -> None:
        if "locks" not in path.relative_to(ROOT).parts:
            return
        assert _packages(path).isdisjoint({"celery", "kombu", "billiard"})
        assert {
            name
            for name in _imports(path)
            if name.startswith("celery_redislock.") and not name.startswith("celery_redislock.locks")
        } <= {"celery_redislock.exceptions"}

    def test_its_name_says_what_it_holds(self, path: Path) -> None:
        assert path.stem not in {"tasks", "utils", "util", "helpers", "common", "base", "misc"}

    def test_it_lists_its_public_names(self, path: Path) -> None:
        tree = ast.parse(path.read_text("utf-8"))
        names = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }

        assert "__all__" in names


def _run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_locks_can_be_imported_without_celery_and_before_redis() -> None:
    """Locks without Celery, and nothing imported before it is needed."""
    _run(
        """
        import sys
        for name in ("celery", "kombu", "redis"):
            sys.modules[name] = None  # any import of it fails from here on
        import celery_redislock
        import celery_redislock.locks
        from celery_redislock.locks import Hold, Lease, Lock, LockStore, MemoryStore, Watchdog, connect
        with Lock(MemoryStore(), "n") as lock:
            lock.check()
        """
    )


def test_a_store_on_redis_needs_redis_and_still_no_celery() -> None:
    _run(
        """
        import sys
        for name in ("celery", "kombu"):
            sys.modules[name] = None
        from celery_redislock.locks import RedisStore, connect
        assert isinstance(connect("redis://localhost"), RedisStore)
        """
    )


def test_every_name_the_lock_room_offers_is_there() -> None:
    from celery_redislock import locks

    assert set(locks.__all__) <= set(dir(locks))
    assert all(getattr(locks, name) for name in locks.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = locks.nothing
