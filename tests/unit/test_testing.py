"""The pytest plugin for users' tests, as their own ``conftest.py`` meets it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from celery import Celery

from celery_redislock import Lock, LockUnavailable, Resources, SingletonTask
from celery_redislock.locks.lease import Lease
from celery_redislock.locks.watchdog import Watchdog, watchdog_of
from celery_redislock.testing import hold, locks_off, memory_locks
from tests.unit.shop import Shop, body, no_patience

ROOT = Path(__file__).resolve().parents[2]


#: A project whose tests lie below its root, as Django's often do.
PROJECT = {
    "backend/shop.py": """
        from celery import Celery
        from celery_redislock import SingletonTask

        app = Celery("shop", broker="redis://127.0.0.1:1/0")
        app.conf.update(task_always_eager=True, redislock_eager=True)

        @app.task(base=SingletonTask)
        def sync_account(account_id):
            return account_id
        """,
    "backend/tests/conftest.py": """
        import sys
        from pathlib import Path

        sys.path.insert(0, str(Path(__file__).parents[1]))
        from celery_redislock.testing import hold
        """,
    "backend/tests/test_shop.py": """
        import pytest
        from celery_redislock import SingletonTask
        from celery_redislock.testing import hold
        from shop import sync_account

        @pytest.mark.usefixtures("redislock_memory")
        def test_locks_are_in_memory_once_the_fixture_is_asked_for():
            with hold(sync_account, 42):
                assert sync_account.delay(42).is_duplicate
                assert sync_account.delay(43).get() == 43

        def test_each_test_has_fresh_locks_to_look_into(redislock_memory):
            assert redislock_memory.names() == []
            with hold(sync_account, 42) as name:
                assert redislock_memory.names() == [name]

        def test_celerys_own_app_is_meant_whatever_the_order(redislock_memory, celery_app):
            task = celery_app.task(base=SingletonTask, shared=False, lazy=False)(sync_account.run)
            with hold(task, 42) as name:
                assert redislock_memory.names() == [name]

        def test_without_locks(redislock_off):
            assert not sync_account.delay(42).is_duplicate
        """,
}


@pytest.mark.parametrize("way", ["named", "installed and named", "imported before"])
def test_pytest_has_the_fixtures_in_a_project_below_its_root(tmp_path: Path, way: str) -> None:
    """Without a word in ``conftest.py`` where the package is installed; no warning, however it is loaded."""
    if way != "named" and not entry_points(group="pytest11", name="celery_redislock.testing"):
        pytest.skip("the project is not installed")
    files = dict(PROJECT)
    if "named" in way:
        files["conftest.py"] = 'pytest_plugins = ["celery_redislock.testing"]'
    before = "import celery_redislock.task" if way == "imported before" else ""
    done = run_pytest(tmp_path, files, "-p", "celery.contrib.pytest", before=before, autoload=way != "named")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_a_project_without_unique_tasks_pays_nothing_for_the_plugin(tmp_path: Path) -> None:
    """Every pytest run of the environment loads it: it brings neither Celery nor redis."""
    test = """
        import sys

        def test_nothing_is_imported(request):
            assert request.config.pluginmanager.has_plugin("celery_redislock.testing")
            assert not {"celery", "kombu", "redis", "celery_redislock.locks"} & set(sys.modules)
        """
    done = run_pytest(tmp_path, {"test_other.py": test}, "-p", "celery_redislock.testing")
    assert done.returncode == 0, done.stdout + done.stderr


def run_pytest(
    folder: Path, files: Mapping[str, str], *words: str, before: str = "", autoload: bool = False
) -> "subprocess.CompletedProcess[str]":
    """Write the files, and run pytest on them; a warning is an error."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text))
    program = f"import sys\n{before}\nimport pytest\nsys.exit(pytest.main(sys.argv[1:]))"
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", str(folder), *words, str(folder)]
    environment = dict(os.environ) if autoload else {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-W", "error", "-c", program, *options]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment
    )


def test_what_cannot_be_held_is_an_error(shop: Shop) -> None:
    """Nobody would notice that it is not held, and the user's test would prove nothing."""
    plain = shop.app.task(body, name="shop.plain", shared=False)
    unlocked = shop.unique(body, name="shop.unlocked", lock=None)
    task = shop.unique(body)
    for what, args, words in (
        ("shop.sync", (7,), "not 'shop.sync'"),
        (body, (7,), "not <function body"),
        (None, (7,), "not None"),
        (plain, (7,), r"not <@task: shop\.plain"),
        (unlocked, (7,), r"^shop\.unlocked takes no lock"),
        (task, (1, 2, 3), r"shop\.sync\(account_id, amount\): too many"),
    ):
        with pytest.raises(TypeError, match=words):
            hold(what, *args).__enter__()
    with hold(task, 7), pytest.raises(AssertionError, match="is held already, by somebody-else"):
        hold(task, 7).__enter__()

    assert shop.held() == {}


@pytest.mark.parametrize("limit", [2, lambda arguments: arguments["account_id"] - 5], ids=["2", "a callable"])
def test_of_a_lock_that_several_hold_one_place_is_held(shop: Shop, limit: Any) -> None:
    """As a run of the task would: a call finds the other one free."""
    task = shop.unique(body, lock_limit=limit, lock_key="account:{account_id}")
    with hold(task, 7):
        assert not task.delay(7).is_duplicate
        assert task.delay(7).is_duplicate


@pytest.mark.parametrize("running", [True, False])
def test_what_is_held_is_renewed_until_the_block_ends(shop: Shop, monkeypatch: Any, *, running: bool) -> None:
    """However long the block takes, and however short the task's ``lock_ttl`` is."""
    watched: list[Lease] = []
    watch = Watchdog.watch
    monkeypatch.setattr(
        Watchdog, "watch", lambda self, lease, **more: (watched.append(lease), watch(self, lease, **more))
    )
    task = shop.unique(body, lock_key="account:7", lock_ttl=0.1)

    with hold(task, 7, running=running) as name:
        (lease,) = watched
        (held,) = shop.held().values()
        assert (lease.key, lease.token) == (name, held.token)
        assert lease.token in watchdog_of(shop.store)._watched

    assert lease.token not in watchdog_of(shop.store)._watched
    assert shop.held() == {}


def test_memory_locks_need_no_server_and_leave_nothing() -> None:
    """Blocks can be nested, each with locks of its own; after the last the app has no lock server again."""
    app = Celery("shop", set_as_current=False, broker="memory://", backend="cache+memory://")
    task = app.task(name="shop.sync", base=SingletonTask, shared=False, lazy=False)(body)

    with memory_locks(app) as outer:
        assert not task.delay(7).is_duplicate
        with memory_locks(app) as inner:
            assert not task.delay(7).is_duplicate
            assert task.delay(7).is_duplicate
            assert len(inner.names()) == 1
        assert task.delay(7).is_duplicate
        assert len(outer.names()) == 1

    with pytest.raises(ValueError, match="neither the broker"):
        task.delay(7)


def test_several_resources_are_held_in_memory_as_on_a_server(shop: Shop) -> None:
    """All or none, so that a test of such a task needs no server either."""
    shop.app.conf.update(task_always_eager=True, redislock_eager=True)
    with memory_locks(shop.app) as store:
        held: list[list[str]] = []

        def transfer(source: int, target: int) -> None:
            held.append(sorted(store.names()))

        both = Resources("account:{source}", "account:{target}")
        task = shop.unique(transfer, lock="while_executing", lock_key=both, on_conflict="skip")

        assert task.delay(1, 2).successful()
        assert (held, store.names()) == ([["account:1", "account:2"]], [])
        with hold(task, 1, 2):
            assert task.delay(2, 3).is_duplicate
            assert not task.delay(4, 3).is_duplicate
        with Lock(shop.app, "account:1"):
            assert task.delay(9, 1).is_duplicate


@pytest.mark.parametrize("before", [None, "1"])
def test_locks_off_puts_the_switch_back(monkeypatch: Any, before: str | None) -> None:
    """The environment is as it was when the block has ended."""
    monkeypatch.setenv("REDISLOCK_ENABLED", before or "")
    if before is None:
        monkeypatch.delenv("REDISLOCK_ENABLED")
    with locks_off():
        assert os.environ["REDISLOCK_ENABLED"] == "0"
    assert os.environ.get("REDISLOCK_ENABLED") == before


def test_a_test_that_meets_no_server_learns_that_it_needs_none(shop: Shop, monkeypatch: Any) -> None:
    """What it forgot is the first thing it reads. In production the error names what was not published."""
    no_patience(monkeypatch)
    task = shop.unique(body)
    shop.store.failures = float("inf")
    with pytest.raises(LockUnavailable, match="was not published") as raised:
        task.delay(7)
    assert "test" not in str(raised.value)

    shop.app.conf.update(task_always_eager=True, redislock_eager=True)
    for call in (hold(task, 7).__enter__, lambda: task.delay(7), lambda: task.apply((7,)).get()):
        with pytest.raises(
            LockUnavailable, match=r"it is away \(a test needs no server: .*memory_locks\(app\)"
        ):
            call()
