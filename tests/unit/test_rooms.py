"""The rooms of the package: who imports whom, and what an import costs."""

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import celery_redislock

PACKAGE = "celery_redislock"
ROOT = Path(celery_redislock.__file__).parent

#: A room imports only what is on a lower floor.
_UPWARDS = (
    "exceptions log, wire embedded, store, locks, declaring, publishing, running scheduling, receiving, "
    "task, testing operating django compat, web drill, cli"
)
FLOORS = {room: floor for floor, rooms in enumerate(_UPWARDS.split(", ")) for room in rooms.split()}

#: Rooms and modules that may import Celery, and those that may import redis-py.
CELERYS = {
    *("cli", "web", "operating", "django", "task", "testing"),
    *("receiving", "running", "scheduling", "publishing"),
    *("compat.translation", "declaring.server", "declaring.keys.digest"),
}
REDIS = {
    *("wire.client", "wire.nodes", "wire.connection", "wire.scripts", "wire.loop", "store.cluster"),
    *("locks.errors", "locks.aio", "locks.aio.cluster", "locks.aio.store", "declaring.server"),
}

#: The exceptions to "import at the top": a process that only declares tasks pays for none of these.
LOADED_ON_FIRST_USE = {
    *("publishing", "running", "locks.tasklock"),
    *("locks.lock", "store.memory", "locks.readwrite", "locks.semaphore", "locks.watchdog"),
}

CELERY_PACKAGES = {"celery", "kombu", "billiard"}


def modules() -> dict[str, ast.Module]:
    """Return every module by its name inside the package; the package's own ``__init__`` as ``""``."""
    paths = sorted(ROOT.rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return {
        "" if name == "__init__" else name.removesuffix(".__init__"): ast.parse(path.read_text("utf-8"))
        for name, path in zip(names, paths, strict=True)
    }


def named_on_the_map() -> list[str]:
    """Return the files that the map of CONTRIBUTING names, in the first column of its tables."""
    page = (ROOT.parent / "CONTRIBUTING.md").read_text("utf-8")
    lines = page.partition("\n## In which room a line lives\n")[2].partition("\n## ")[0].splitlines()
    rows = [line.split("|")[1] for line in lines if line.startswith("|")]
    return [name for row in rows for name in re.findall(r"`([\w/]+\.py)`", row)]


def imports(node: ast.AST) -> Iterator[str]:
    """Yield whatever is imported, wherever in the module: ``package.module[.name]``."""
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"a relative import in line {child.lineno}"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)


def room_of(module: str) -> str:
    return module.partition(".")[0]


def printed(program: str) -> list[str]:
    """The words that a program of its own prints."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.check_output(command, text=True, timeout=60).split()


def test_every_import_leads_to_a_lower_room_and_none_in_a_circle() -> None:
    """Imports at the top of a module, on first use, and for types alike.

    Nobody imports the package itself, whose names are for its users. ``embedded`` knows no other room but the
    errors, and only ``testing`` may know it.
    """
    trees = modules()
    ours: dict[str, set[str]] = {name: set() for name in trees}
    wrong = []
    for name, tree in trees.items():
        for imported in imports(tree):
            package, _, inner = imported.partition(".")
            room = room_of(name)
            if package in CELERY_PACKAGES and not {room, name} & CELERYS:
                wrong.append(f"{name} imports {imported}")
            if package == "redis" and name not in REDIS:
                wrong.append(f"{name} imports {imported}")
            if package != PACKAGE:
                continue
            target = inner if inner in trees else inner.rpartition(".")[0]
            if name in {"", target}:
                continue
            ours[name].add(target)
            is_lower = target != "" and FLOORS[room_of(target)] < FLOORS[room]
            is_hidden = room_of(target) == "embedded" and room not in {"embedded", "testing"}
            if room_of(target) != room and (not is_lower or is_hidden):
                wrong.append(f"{name} imports {target or 'the package'}")

    assert not wrong
    list(TopologicalSorter(ours).static_order())  # CycleError names the circle


def test_the_map_names_every_module_once() -> None:
    """Who looks for a line finds its file on the map of CONTRIBUTING."""
    named = named_on_the_map()
    there = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py")}
    assert len(named) == len(set(named))
    # What a room is for stands at the head of its table.
    assert {name for name in there if not name.endswith("__init__.py")} <= set(named) <= there


def test_a_process_that_only_declares_tasks_loads_neither_side_and_connects_to_nothing() -> None:
    """Law 10: nothing is imported, connected or started before it is needed."""
    program = """
    import sys, threading
    opened = []
    sys.addaudithook(lambda event, args: opened.append(event) if event == "socket.connect" else None)
    from celery import Celery
    from celery_redislock import SingletonTask
    app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    @app.task(base=SingletonTask, lock_key="account:{account_id}")
    def sync(account_id): ...
    print(sync.name, threading.active_count(), len(opened), *sys.modules)
    """
    name, threads, connections, *loaded = printed(program)

    assert (name, threads, connections) == ("shop.sync", "1", "0")
    assert not {"redis", *(f"{PACKAGE}.{name}" for name in LOADED_ON_FIRST_USE)} & set(loaded)


def test_the_classes_of_the_locks_are_imported_when_they_are_asked_for() -> None:
    """Law 10: each by its own name, and each that is promised is there."""
    program = """
    import sys
    from celery_redislock import locks
    before = {"celery_redislock.locks.lock", "celery_redislock.locks.semaphore"} & set(sys.modules)
    from celery_redislock.locks import Semaphore
    missing = [name for name in locks.__all__ if name not in dir(locks) or not getattr(locks, name)]
    print(len(before), Semaphore.__name__, len(missing), hasattr(locks, "Semafore"))
    """
    assert printed(program) == ["0", "Semaphore", "0", "False"]


#: The store of an app is found through Celery's settings; and what finds a task's declaration asks for it.
ASKS_CELERY = {"declaring.server", "declaring.lock", "declaring.declaration"}


LOWER = [each for each in modules() if room_of(each) in {"wire", "store", "locks", "declaring"}]


@pytest.mark.parametrize(
    ("without", "names"),
    [
        ("celery kombu billiard redis", ["", "locks", "locks.lock", "locks.tasklock", "store.memory"]),
        ("celery kombu billiard", [name for name in LOWER if name not in ASKS_CELERY]),
    ],
    ids=["locks in memory", "locks and options"],
)
def test_locks_and_options_need_no_celery(without: str, names: list[str]) -> None:
    """Law 10: nothing is imported before it is needed, and locks without Celery need no Celery."""
    wanted = ", ".join(f"{PACKAGE}.{name}".rstrip(".") for name in names)
    printed(f"""
    import sys
    for name in {without.split()}:
        sys.modules[name] = None  # any import of it fails from here on
    import {wanted}
    from celery_redislock.locks import Lock, MemoryStore, connect
    with Lock(MemoryStore(), "n") as lock:
        lock.check()
    """)


@pytest.mark.parametrize("package", [celery_redislock, celery_redislock.locks])
def test_every_public_name_is_there(package: object) -> None:
    """Names are resolved on first use, so a wrong one would fail only at its user's."""
    names = vars(package)["__all__"]
    assert set(names) <= set(dir(package))
    assert all(getattr(package, name) for name in names)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing  # type: ignore[attr-defined]
