"""What importing the package and installing its command-line plug-in cost.

::

    python benchmarks/startup.py [--quick] [--json PATH]

Needs no server: that nothing connects is one of the facts it shows.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.pairs import Figure, report, rounds, say
from benchmarks.peers import HOME, ROOT, run_beside_peers

_PLAIN = """
import time
started = time.perf_counter()
from celery import Celery
app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
@app.task
def sync(account_id): pass
sync.name
print(time.perf_counter() - started)
"""

_OURS = _PLAIN.replace("@app.task", "@app.task(base=SingletonTask)").replace(
    "from celery import Celery", "from celery import Celery\nfrom celery_redislock import SingletonTask"
)

_WHAT_IS_THERE = """
import sys, threading
from celery_redislock.declaring.declaration import declaration_of
declaration_of(sync._get_current_object())
print(int("redis" in sys.modules), threading.active_count() - 1)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few short rounds: shows only that it runs")
    parser.add_argument("--json", metavar="PATH", help="write the figures as JSON too; - for stdout")
    arguments = parser.parse_args()
    run_beside_peers()
    times = 2 if arguments.quick else 45
    say("importing")
    imports = rounds(times, {"plain": _import(_PLAIN), "ours": _import(_OURS)})
    say("celery --help")
    with tempfile.TemporaryDirectory() as folder:
        _install_plug_in(Path(folder))
        helps = rounds(times, {"without": _help(ROOT), "with": _help(ROOT, Path(folder))})
    redis, threads = map(float, _python("-c", _OURS + _WHAT_IS_THERE).split()[1:])
    figures = [
        Figure(
            "import and a bound task: ours - plain", _differences(imports, "ours", "plain"), 30, unit="ms"
        ),
        *(Figure(f"  {name}", _in_ms(found["seconds"]), unit="ms") for name, found in imports.items()),
        Figure(
            "celery --help: with the plug-in - without", _differences(helps, "with", "without"), 20, unit="ms"
        ),
        *(Figure(f"  {name}", _in_ms(found["seconds"]), unit="ms") for name, found in helps.items()),
        Figure("redis imported before the first lock", [redis], 0, unit=""),
        Figure("threads before the first lock", [threads], 0, unit=""),
    ]
    report("starting", figures, json_path=arguments.json)


def _import(code: str) -> Callable[[], Mapping[str, float]]:
    return lambda: {"seconds": float(_python("-c", code))}


def _help(*path: Path) -> Callable[[], Mapping[str, float]]:
    def measure() -> Mapping[str, float]:
        started = time.perf_counter()
        text = _python("-m", "celery", "--help", path=path)
        seconds = time.perf_counter() - started
        assert ("redislock" in text) == (len(path) > 1), "the plug-in is not where it should be"
        return {"seconds": seconds}

    return measure


def _install_plug_in(folder: Path) -> None:
    """Let this checkout look installed: a plug-in is found by its distribution's entry points."""
    info = folder / "celery_redislock-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: celery_redislock\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[celery.commands]\nredislock = celery_redislock.cli:redislock\n")


def _python(*arguments: str, path: tuple[Path, ...] = (ROOT,)) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    # Installed packages are compiled once: with the variable set each start would compile this checkout.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(HOME / "compiled")
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def _differences(found: Mapping[str, Mapping[str, list[float]]], one: str, other: str) -> list[float]:
    pairs = zip(found[one]["seconds"], found[other]["seconds"], strict=True)
    return [(a - b) * 1000 for a, b in pairs]


def _in_ms(seconds: list[float]) -> list[float]:
    return [value * 1000 for value in seconds]


if __name__ == "__main__":
    main()
