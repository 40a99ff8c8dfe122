"""Play clients that take one lock while faults are injected, and print what their histories show."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.faults import FaultyProxy, faulty_proxy
from tests.servers import EmbeddedServer
from tools.history import forgetting
from tools.history.client import PATIENCE, now
from tools.history.verdict import Held, Verdict, judge

CLIENTS = 4
#: Ttls that are longer than a lease: whoever was held up for so long has lost it.
LONGER = 1.5


class Stage:
    """Servers, a proxy before each, and client processes."""

    def __init__(self, stack: ExitStack, servers: int, ttl: float) -> None:
        self.ttl = ttl
        self.servers = [stack.enter_context(EmbeddedServer(port=0)) for _ in range(servers)]
        self.proxies: list[FaultyProxy] = []
        for server in self.servers:
            assert server.port is not None
            self.proxies.append(stack.enter_context(faulty_proxy(server.port)))
        self.clients: list[subprocess.Popen[bytes]] = []

    def play(self, seconds: float, fault: Callable[["Stage", int], None], folder: Path) -> list[Held]:
        """Let clients run, inject the fault again and again, and return their history."""
        until = now() + seconds
        urls = [proxy.url for proxy in self.proxies]
        for number in range(CLIENTS):
            arguments = [str(self.ttl), str(until), str(folder / f"client-{number}"), *urls]
            self.clients.append(subprocess.Popen([sys.executable, "-m", "tools.history.client", *arguments]))
        turn = 0
        try:
            while now() < until:
                time.sleep(0.5)
                fault(self, turn)
                turn += 1
            for client in self.clients:
                assert client.wait(60 + PATIENCE + self.ttl) == 0
        finally:
            for client in self.clients:
                client.kill()
                client.wait()
        lines = [line for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]
        return [Held(**json.loads(line)) for line in lines]


def nothing(stage: Stage, turn: int) -> None:
    """Disturb nobody."""


def pause(stage: Stage, turn: int) -> None:
    """Stop half of the clients for longer than the ttl; a holder is often among them."""
    stopped = [stage.clients[(turn + each) % CLIENTS] for each in range(CLIENTS // 2)]
    for client in stopped:
        if client.poll() is None:
            os.kill(client.pid, signal.SIGSTOP)
    time.sleep(LONGER * stage.ttl)
    for client in stopped:
        if client.poll() is None:
            os.kill(client.pid, signal.SIGCONT)


def cut(stage: Stage, turn: int) -> None:
    """Let nothing through between the clients and the first server, for longer than the ttl."""
    stage.proxies[0].black_hole()
    time.sleep(LONGER * stage.ttl)
    stage.proxies[0].black_hole(on=False)
    stage.proxies[0].reset()


def empty(stage: Stage, turn: int) -> None:
    """Kill the first server, and start it again at once without its data."""
    stage.servers[0].kill()
    stage.servers[0].restart()


def two_down(stage: Stage, turn: int) -> None:
    """Kill two of five; they stay away."""
    if turn == 0:
        stage.servers[0].kill()
        stage.servers[1].kill()


#: Servers, seconds of the ttl, and the fault.
SCENES: dict[str, tuple[int, float, Callable[[Stage, int], None]]] = {
    "one server, no fault": (1, 1.0, nothing),
    "one server, clients paused": (1, 1.0, pause),
    "one server, clients cut off": (1, 1.0, cut),
    "one server, restarts empty": (1, 1.0, empty),
    "Redlock of five, two down": (5, 1.0, two_down),
}
#: Seconds of the ttl, and until the two of three that forget are back.
FORGETTING = {
    "Redlock of three, two restart empty at once": (4.0, 0.0),
    "Redlock of three, two restart empty after the ttl": (1.0, LONGER),
}


def run(name: str, seconds: float) -> Verdict:
    """Play a scene for so many seconds and judge its history."""
    if name in FORGETTING:
        return judge(forgetting.play(seconds, *FORGETTING[name]))
    servers, ttl, fault = SCENES[name]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        return judge(Stage(stack, servers, ttl).play(seconds, fault, Path(folder)))


def row(name: str, verdict: Verdict) -> str:
    """Return a row of the table."""
    figures = (verdict.holds, len(verdict.overlaps), len(verdict.disorder))
    writes = (verdict.late, verdict.refused, verdict.slipped)
    return f"| {name} | {' | '.join(str(each) for each in (*figures, *writes))} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.history", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each scene (default: 30)")
    names = [*SCENES, *FORGETTING]
    parser.add_argument("--only", choices=names, action="append", help="play this scene; may be repeated")
    options = parser.parse_args(arguments)
    print("| scene | holds | overlaps | fences out of order | late writes | refused | late and let in |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name in options.only or names:
        print(row(name, run(name, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
