"""What importing the package, starting a worker and installing the command-line plug-in cost.

::

    python benchmarks/startup.py [--quick] [--json PATH]

All on one core, with compiled files, as of an installed package. That an import connects to nothing
is one of the facts it shows.
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

from benchmarks.cores import pin, places
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
print(time.perf_counter() - started, time.process_time())
"""

_OURS = _PLAIN.replace("@app.task", "@app.task(base=SingletonTask)").replace(
    "from celery import Celery", "from celery import Celery\nfrom celery_redislock import SingletonTask"
)

_WORKER = """
import os
from celery.signals import worker_ready
@worker_ready.connect
def end(**_):
    print(time.perf_counter() - started, time.process_time(), flush=True)
    os._exit(0)
app.conf.update(broker_url=os.environ["CELERY_REDISLOCK_BENCH_URL"], worker_redirect_stdouts=False)
app.Worker(pool="solo", loglevel="CRITICAL", quiet=True).start()
"""

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
    from celery_redislock.embedded import EmbeddedServer

    pin(places()[0].client, os.getpid())
    times = 2 if arguments.quick else 45
    say("importing")
    imports = rounds(times, {"plain": _program(_PLAIN), "ours": _program(_OURS)})
    say("starting a worker")
    with EmbeddedServer(port=0) as server:
        os.environ["CELERY_REDISLOCK_BENCH_URL"] = server.url
        workers = rounds(times, {"plain": _program(_PLAIN + _WORKER), "ours": _program(_OURS + _WORKER)})
    say("celery --help")
    with tempfile.TemporaryDirectory() as folder:
        _install_plug_in(Path(folder))
        helps = rounds(times, {"without": _help(ROOT), "with": _help(ROOT, Path(folder))})
    redis, threads = map(float, _python("-c", _OURS + _WHAT_IS_THERE).split()[2:])
    figures = [
        *_above("import and a bound task", imports, 12),
        *_above("worker, until it is ready", workers, 40),
        Figure(
            "celery --help: with the plug-in - without",
            _differences(helps, "seconds", "with", "without"),
            20,
            unit="ms",
        ),
        *(Figure(f"  {name}", _in_ms(found["seconds"]), unit="ms") for name, found in helps.items()),
        Figure("redis imported before the first lock", [redis], 0, unit=""),
        Figure("threads before the first lock", [threads], 0, unit=""),
    ]
    report("starting", figures, json_path=arguments.json)


def _program(code: str) -> Callable[[], Mapping[str, float]]:
    def measure() -> Mapping[str, float]:
        *_, seconds, cpu = _python("-c", code).split()
        return {"seconds": float(seconds), "CPU": float(cpu)}

    return measure


def _above(name: str, found: Mapping[str, Mapping[str, list[float]]], most: float) -> list[Figure]:
    return [
        Figure(f"{name}: CPU: ours - plain", _differences(found, "CPU", "ours", "plain"), most, unit="ms"),
        *(Figure(f"  {kind}", _in_ms(values["CPU"]), unit="ms") for kind, values in found.items()),
        Figure("  time: ours - plain", _differences(found, "seconds", "ours", "plain"), unit="ms"),
    ]


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


def _differences(
    found: Mapping[str, Mapping[str, list[float]]], quantity: str, one: str, other: str
) -> list[float]:
    pairs = zip(found[one][quantity], found[other][quantity], strict=True)
    return [(a - b) * 1000 for a, b in pairs]


def _in_ms(seconds: list[float]) -> list[float]:
    return [value * 1000 for value in seconds]


if __name__ == "__main__":
    main()
