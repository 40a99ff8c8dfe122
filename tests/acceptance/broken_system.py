"""A system that is broken in every way that operators meet, and really so: workers and a beat were killed.

``python -m tests.acceptance.broken_system`` starts one to look at, and keeps it until it is interrupted.

What has to be old was done half an hour ago: by processes, and on a lock server, whose clocks are behind the
machine's (``libfaketime``). They are killed, and the server starts again with its data and without a clock of
its own. All that is in it the package has written, but for one key, which another program holds. Then workers
and a beat start that live.

What is in which state: ``broken_names.py``.
"""

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from celery_redislock.embedded import EmbeddedServer as Found
from tests.acceptance.broken_names import HOSTILE_HOST, OVERDUE, PAUSED, SKIPPED
from tests.acceptance.processes import Process, run_check, started, until
from tests.acceptance.worker import STARTING
from tests.servers import EmbeddedServer
from tools.history.faketime import FakedClock

#: Seconds by which clocks are behind: more than half of a lease of an hour, after which a renewal is late;
#: and so few that all stays as it is for twenty minutes.
AGO = 2100.0

APP = "tests.acceptance.broken_shop"

#: What its page tells of it, by kind; and seconds until it does, on a busy machine.
ASKED = {"dead holder", "line stands still", "foreign lock", "line is full", "queued for long", "schedule"}
ASKED |= {"set-up", "skipped", "had to wait"}
LOOKING = 90.0


@dataclass(frozen=True)
class Broken:
    """The system, while it is there.

    Attributes:
        environment: what a program of this app needs.
        server: its broker, lock server and result backend.
        folder: for the logs of what is started in it.
        app: as ``celery -A`` names it.
    """

    environment: dict[str, str]
    server: EmbeddedServer
    folder: Path
    app: str = APP

    def command(self, *words: str) -> list[str]:
        """Return ``celery -A … redislock`` with these words."""
        return [sys.executable, "-m", "celery", "-A", self.app, "redislock", *words]

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run it, and return what came of it."""
        return run_check(self.command(*words), self.environment)

    def ask(self, *words: str) -> Any:
        """Return its JSON document."""
        done = self.run(*words, "--json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)


@contextmanager
def served_page(broken: Broken) -> Iterator[str]:
    """Serve the page about it with ``web`` while the block runs, and return where."""
    with started(broken.command("web", "--port", "0"), broken.environment, broken.folder) as page:
        said = re.compile(r"serving .* at (http://\S+)")
        until(lambda: said.search(page.log) is not None, LOOKING, page, "it serves the page")
        yield said.findall(page.log)[0]


def wait_asked(url: str) -> None:
    """Return when the page there, which looks since its first visit, tells all that needs somebody.

    Lines that stand still need a second look; the rest the answers of workers, of beats, and of ``doctor``.
    """
    deadline = time.monotonic() + LOOKING
    while not _told(url) >= ASKED:
        assert time.monotonic() < deadline, f"it tells no more within {LOOKING} s than {_told(url)}"
        time.sleep(0.5)


def _told(url: str) -> set[str]:
    with urlopen(f"{url}index.json", timeout=LOOKING) as answer:  # noqa: S310  our own
        document = json.load(answer)
    needs = [row["kind"] for row in document.get("needs", {"rows": ()})["rows"]]
    happened = [row["what"] for row in document.get("happened", {"rows": ()})["rows"]]
    return {*needs, *happened}


@contextmanager
def broken_system(*, hostile: bool = False) -> Iterator[Broken]:
    """Run such a system while the block runs; ``hostile``: with texts that are code elsewhere.

    Raises:
        SystemExit: ``libfaketime`` is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="broken-") as name, ExitStack() as stack:
        folder = Path(name)
        clock = FakedClock(folder)
        clock.move(-AGO)
        server = EmbeddedServer(port=0, binary=clock.binary, data_dir=folder)
        stack.enter_context(server)
        environment = {
            "SHOP_URL": server.url,
            "SHOP_REDIS": server.redis_url,
            "SHOP_HOST": "web-1",
            "LOGNAME": "ann",
        }
        broken = Broken(environment, server, folder)
        _break(broken, clock)
        server.binary = Found().binary
        server.restart()
        _serve(broken, stack)
        if hostile:
            _publish(broken, "be_hostile", SHOP_HOST=HOSTILE_HOST)
        yield broken


def _break(broken: Broken, clock: FakedClock) -> None:
    """Do what was half an hour ago, and kill who did it."""
    past = clock.variables
    other = {"SHOP_BROKER": f"{broken.environment['SHOP_URL'].removesuffix('/0')}/1"}
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        workers = [
            stack.enter_context(_worker(broken, "worker-7", **past)),
            stack.enter_context(_worker(broken, "old-1", **past, **other)),
        ]
        published = [pool.submit(_publish, broken, "elsewhere", **past, **other)]
        _wait_ready(workers)
        # Not before: a tick whose message nobody takes yet makes the next one a duplicate.
        beat = stack.enter_context(_beat(broken, OVERDUE, **past))
        published.append(pool.submit(_publish, broken, "long_ago", **past))
        for each in published:
            each.result()
        for process in (*workers, beat):
            process.process.kill()
            process.process.wait(STARTING)


def _serve(broken: Broken, stack: ExitStack) -> None:
    """Start what lives, and act as an operator."""
    workers = [stack.enter_context(_worker(broken, host)) for host in ("worker-1", "worker-2")]
    stack.enter_context(_beat(broken, f"{PAUSED} {SKIPPED} vacuum"))
    _publish(broken, "now")
    _wait_ready(workers)


def _wait_ready(workers: Sequence[Process]) -> None:
    for worker in workers:
        until(lambda worker=worker: " ready." in worker.log, STARTING, worker, "it is ready")  # type: ignore[misc]


def _worker(broken: Broken, host: str, **variables: str) -> AbstractContextManager[Process]:
    words = ["worker", "-P", "threads", "-c", "16", "-n", f"shop@{host}", "-l", "INFO", "--without-mingle"]
    return _celery(broken, *words, **{"SHOP_HOST": host, **variables})


def _beat(broken: Broken, entries: str, **variables: str) -> AbstractContextManager[Process]:
    file = broken.folder / f"schedule of {entries}"
    words = ["beat", "-s", str(file), "--pidfile=", "-l", "INFO", "--max-interval", "1"]
    return _celery(broken, *words, **{"SHOP_HOST": "beat-1", "SHOP_ENTRIES": entries, **variables})


@contextmanager
def _celery(broken: Broken, *words: str, **variables: str) -> Iterator[Process]:
    command = [sys.executable, "-m", "celery", "-A", APP, *words]
    environment = {**broken.environment, "C_FORCE_ROOT": "1", **variables}
    with started(command, environment, broken.folder) as process:
        try:
            yield process
        finally:
            process.process.kill()  # its bodies never end


def _publish(broken: Broken, act: str, **variables: str) -> None:
    words = [sys.executable, "-c", f"import {APP} as shop; shop.{act}()"]
    done = run_check(words, {**broken.environment, **variables})
    assert done.returncode == 0, done.stdout + done.stderr


def main() -> None:
    """Start it, say how to look at it, and keep it until it is interrupted."""
    # Also where a shell lets what it starts in the background ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    with suppress(KeyboardInterrupt), broken_system(hostile="--hostile" in sys.argv[1:]) as broken:
        print(f"broken after {time.monotonic() - began:.0f} s; ends with Ctrl-C. Look at it with")
        print("export", *(f"{name}={value}" for name, value in broken.environment.items()))
        print(f"celery -A {APP} redislock list")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
