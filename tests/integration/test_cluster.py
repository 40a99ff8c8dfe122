"""Locks on a Cluster: on all its nodes, and while slots move."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_redislock import Resources, SingletonTask
from celery_redislock.exceptions import LockOptionError, LockUnavailable
from celery_redislock.locks import Lock, ReadWriteLock, Semaphore, aio, connect
from celery_redislock.store.cluster import ClusterStore
from celery_redislock.store.store import Entry, Mark, Term
from celery_redislock.wire.clock import boottime
from celery_redislock.wire.connection import Connections
from tests.acceptance.processes import free_port
from tests.cluster import Cluster, Node, running_cluster
from tests.facts import wait_until
from tests.history import Interval, violations
from tests.integration.programs import PATCHED, run_program
from tests.stores import ClusterCase, binary_named, granted, refused
from tests.tiers import slow
from tests.tls import tls_arguments, tls_options
from tests.waiters import PATIENCE

pytestmark = pytest.mark.xdist_group("cluster")

A, B = "job-a/1", "job-b/1"
#: So many names that each of three nodes has some.
NAMES = [f"name-{number}" for number in range(50)]
#: Seconds, short enough that a node that is away is given up while a test looks on.
SOCKET_TIMEOUT = 0.5
#: Seconds of a lease that only a machine that stands still for longer loses.
TTL = 20.0


class Load:
    """Four threads that take one lock in turn: their turns, and their requests that were given up."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._is_over = threading.Event()
        self._turns = [0] * 4
        self.history: list[Interval] = []
        self.unavailable: list[LockUnavailable] = []

    @contextmanager
    def on(self) -> Iterator["Load"]:
        """Keep them at it until the block ends; then all of them end."""
        with ThreadPoolExecutor(4) as pool:
            done = [pool.submit(self._work, number) for number in range(4)]
            try:
                self.wait_turns()
                yield self
            finally:
                self._is_over.set()
            for each in done:
                each.result(3 * PATIENCE)

    def wait_turns(self, unless: Callable[[], bool] = lambda: False) -> None:
        """Return when each thread has had two more turns: the last one's request is of now."""
        before = [*self._turns]
        ahead = lambda: min(now - then for now, then in zip(self._turns, before, strict=True))  # noqa: E731
        assert wait_until(lambda: ahead() >= 2 or unless(), 2 * PATIENCE), f"{before}, {self._turns} now"

    def _work(self, number: int) -> None:
        lock = Lock(self._store, "n", ttl=TTL)
        while not self._is_over.is_set():
            try:
                assert lock.acquire(2 * PATIENCE), "it is forgotten"
                start = time.monotonic()
                name = f"{number}, turn {self._turns[number]}"
                self.history.append(Interval("n", name, lock.fence, start, time.monotonic()))
                self._turns[number] += 1
                assert lock.release(), "it has lost its lock"
            except LockUnavailable as error:
                self.unavailable.append(error)
                time.sleep(0.01)


def named_on(cluster: Cluster, node: Node, number: int) -> list[str]:
    """So many names that this node keeps."""
    names = (f"kept-{each}" for each in range(1000))
    return [name for name in names if cluster.node_of(name) is node][:number]


def test_locks_on_all_nodes_exclude_are_renewed_and_told(cluster: Cluster, cluster_case: ClusterCase) -> None:
    """Law 1, whichever node keeps a name, and in another process too."""
    store = cluster_case.redis
    assert {cluster.node_of(name) for name in NAMES} == set(cluster.nodes)
    locks = [Lock(store, name, ttl=TTL, owner=f"owner of {name}") for name in NAMES]
    for lock in locks:
        assert lock.acquire(timeout=0)
    others = run_program(
        """
        print([Lock(store, name).acquire(timeout=0) for name in rest].count(True))
        """,
        cluster.url,
        cluster_case.prefix,
        *NAMES,
    )
    assert others.strip() == "0"
    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(lambda lock: lock.acquire(timeout=0), locks))
    assert all(lock.renew() for lock in locks)
    assert [hold.owner for lock in locks if (hold := lock.holder())] == [f"owner of {name}" for name in NAMES]
    assert wait_until(lambda: sorted(store.names()) == sorted(NAMES), PATIENCE)
    assert len(store.names(limit=10)) == 10
    walked = [hold for some in store.walk_holds() for hold in some]
    assert sorted((hold.name, hold.owner) for hold in walked) == [
        (name, f"owner of {name}") for name in sorted(NAMES)
    ]
    assert sum(map(len, store.walk_holds(limit=10))) == 10
    assert all(lock.release() for lock in locks)
    assert [store.holders(name) for name in NAMES] == [()] * len(NAMES)
    assert wait_until(lambda: store.names() == [], PATIENCE)


def test_one_call_renews_leases_on_all_nodes_and_asks_each_node_once(
    cluster: Cluster, cluster_case: ClusterCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog's verb: a round trip a node, not a slot; every answer stands where its term stood."""
    store = cluster_case.redis
    for name in NAMES:
        granted(store.acquire(name, A, 5.0, facts="{}"))
    terms = [Term(name, A, TTL) for name in NAMES]
    assert all(store.renew(terms).renewed)  # each node knows the script
    assert all((cluster_case.remaining(name) or 0.0) > 5.0 for name in NAMES)
    gone = NAMES[::7]
    for name in gone:
        assert store.force_release(name).released
    asked: list[Connections] = []
    take = Connections.take

    def counted(connections: Connections) -> Any:
        asked.append(connections)
        return take(connections)

    monkeypatch.setattr(Connections, "take", counted)
    assert store.renew(terms).renewed == [None if name in gone else True for name in NAMES]
    assert len(asked) == len(set(asked)) == len(cluster.primaries)


def test_leases_are_trusted_from_the_first_request_where_one_is_asked_again(
    cluster_case: ClusterCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 1: one answer about all of them; a later time would be trusted for those that were asked before."""
    store = cluster_case.redis
    for name in NAMES:
        granted(store.acquire(name, A, TTL, facts="{}"))
    terms = [Term(name, A, TTL) for name in NAMES]
    store.renew(terms)  # each node knows the script
    answered: list[float] = []
    at_once = ClusterStore._renew_at_once

    def all_but_the_first(self: Any, of_slots: Any, within: float | None) -> Any:
        told = at_once(self, of_slots, within)
        answered.append(boottime())
        return {slot: told[slot] for slot in [*told][1:]}

    monkeypatch.setattr(ClusterStore, "_renew_at_once", all_but_the_first)
    answer = store.renew(terms)
    assert answer.renewed == [True] * len(NAMES)
    assert answer.sent_at < answered[0] < answer.answered_at


def test_semaphores_and_read_write_locks_hold_on_each_node(
    cluster: Cluster, cluster_case: ClusterCase
) -> None:
    """The same places, sides and lines as on one server, wherever the name's slot is."""
    for node in cluster.primaries:
        (name,) = named_on(cluster, node, 1)
        seats = Semaphore(cluster_case.redis, name, 3, ttl=TTL)
        three = [seats.acquire(timeout=0) or pytest.fail("no place") for _ in range(3)]
        assert seats.acquire(timeout=0) is None
        with ThreadPoolExecutor(1) as pool:
            two = pool.submit(seats.acquire, 2, timeout=PATIENCE)
            assert wait_until(lambda: [hold.facts["permits"] for hold in seats.waiting()] == [2], PATIENCE)  # noqa: B023
            assert [permit.release() for permit in three] == [True] * 3
            assert two.result(PATIENCE).release()  # type: ignore[union-attr]
            book = ReadWriteLock(cluster_case.redis, name, ttl=TTL)
            with book.read:
                assert pool.submit(_enters, book.read).result(PATIENCE)
                assert not pool.submit(_enters, book.write).result(PATIENCE)
            with book.write:
                assert not pool.submit(_enters, book.read).result(PATIENCE)


def _enters(lock: Any) -> bool:
    entered: bool = lock.acquire(timeout=0)
    return entered and bool(lock.release())


@pytest.mark.parametrize("how", ["key by key", slow("in one step"), slow("halfway")])
def test_a_slot_moves_and_returns_under_load(
    cluster: Cluster, cluster_case: ClusterCase, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Law 1: nobody overlaps, and nobody who waits is forgotten.

    Halfway, when half of a lock's keys are on either node, a request may be given up.
    """
    slot, home = cluster.slot_of("n"), cluster.node_of("n")
    with Load(cluster_case.redis).on() as load:

        def refused_now() -> int:
            return len(load.unavailable) + len(caplog.records)

        def stop() -> None:
            before = refused_now()
            load.wait_turns(unless=lambda: refused_now() > before)

        for node in (cluster.other_than(home), home):
            if how == "in one step":
                cluster.move_slot_atomically(slot, node)
            else:
                cluster.move_slot(slot, node, stop if how == "halfway" else lambda: None)
            load.wait_turns()
    assert violations(load.history) == []
    assert load.unavailable == [] or how == "halfway"
    assert cluster.node_of("n") is home


#: What a script touches besides, of which nobody knows the name before: in the slot of the lock, too.
UNNAMED = ("merge", "newest", "mark:", "note:", "bell:", "again:")


def test_every_script_declares_what_it_touches(cluster: Cluster, cluster_case: ClusterCase) -> None:
    """An undeclared key that has moved already would stop it halfway, after its first writes."""
    store = cluster_case.redis

    def each_verb() -> None:
        granted(store.acquire("n", A, TTL, facts="{}", period=TTL, starts_run=True))
        refused(store.acquire("n", B, TTL, facts="{}", limit=3))
        store.look("n", B, period=TTL)
        store.park("n", B, Entry("ring", store.bell("n", "x"), TTL, '{"limit":3}'), nonce="1", within=TTL)
        store.renew([Term("n", A, TTL)])
        store.hand_on("n", A, "job-c/1", TTL, facts="{}")
        store.limit("n", 2, ttl=TTL)
        store.release("n", "job-c/1", mark=Mark("job-c/1", True, TTL))
        store.settle("n", B, TTL)
        store.leave("n", B)
        store.move("n", B, "first")
        store.waiting("n")
        store.holders("n")
        store.force_release("n")

    each_verb()  # by their texts, which the server knows from then on
    with cluster.node_of("n").client.monitor() as monitor:
        each_verb()
        cluster.node_of("n").client.ping()
        declared: set[str] = set()
        undeclared: list[str] = []
        scripts = 0
        for heard in monitor.listen():
            word, *rest = heard["command"].split(" ")
            if word == "PING":
                break
            if word == "EVALSHA":
                declared = {*rest[2 : 2 + int(rest[1])]}
                scripts += 1
            elif heard["client_type"] == "lua" and rest and "}:" in rest[0]:
                known = rest[0] in declared or rest[0].partition("}:")[2].startswith(UNNAMED)
                undeclared += [] if known else [heard["command"]]
    assert undeclared == []
    assert scripts >= 12


#: What a process does that parks a bell, and is killed before the request of that number.
KILLED_PARKING = """
from celery_redislock.store.cluster import ClusterScripts
from celery_redislock.store.store import Entry

sent = iter(range(int(rest[0])))
begin = ClusterScripts.begin

def begin_unless_killed(*args, **options):
    read = begin(*args, **options)
    return lambda: read() if next(sent, None) is not None else os.kill(os.getpid(), signal.SIGKILL)

ClusterScripts.begin = begin_unless_killed
entry = Entry("ring", store.bell("n", "x"), 20.0, "{}")
store.park("n", "job-b/1", entry, nonce="1")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("requests", [0, 1, 2], ids=["before noting", "before parking", "when parked"])
def test_who_is_killed_between_noting_and_parking_leaves_no_line_that_nobody_finds(
    cluster: Cluster, cluster_case: ClusterCase, requests: int
) -> None:
    """Law 4: at each step the slot is noted, or nothing stands in it."""
    store = cluster_case.redis
    granted(store.acquire("n", A, TTL, facts="{}"))
    run_program(KILLED_PARKING, cluster.url, cluster_case.prefix, str(requests), returns=-signal.SIGKILL)
    noted: Any = cluster.client.zscore(f"{cluster_case.prefix}:slots", str(cluster.slot_of("n")))
    assert (cluster_case.lines(), noted < float("inf")) == (["n"] if requests == 2 else [], requests > 0)
    cluster_case.expire("n")
    with closing(connect(cluster.url, prefix=cluster_case.prefix)) as another:
        served = B if requests == 2 else None
        assert wait_until(
            lambda: another.sweep() is not None and cluster_case.holder("n") == served, PATIENCE
        )


def test_lines_are_looked_at_while_a_node_is_silent(cluster: Cluster, cluster_case: ClusterCase) -> None:
    """Its own are looked at when it answers again. Nobody looks where it has noted the slots in use.

    And an operator is told of each line that only another home can serve, on whichever node.
    """
    store = cluster_case.redis
    noting = cluster.living[0].owner(cluster.client.keyslot(f"{cluster_case.prefix}:slots"))
    away = next(node for node in cluster.primaries if node.address != noting)
    named = {node: named_on(cluster, node, 2) for node in cluster.primaries}
    told: set[tuple[str, str]] = set()
    for served_here, given in named.values():
        entries = {served_here: Entry("ring", store.bell(served_here, "x"), TTL, "{}")}
        entries[given] = Entry("give", "amqp:elsewhere", TTL, "{}")
        for name, entry in entries.items():
            granted(store.acquire(name, A, TTL, facts="{}"))
            store.park(name, B, entry, nonce="1")
            cluster_case.expire(name)

    def are_looked_at(*nodes: Node) -> bool:
        told.update(store.sweep().elsewhere)
        is_served = all([hold.token for hold in store.holders(named[node][0])] == [B] for node in nodes)
        return is_served and told >= {(named[node][1], "amqp:elsewhere") for node in nodes}

    away.server.pause()
    try:
        assert wait_until(lambda: are_looked_at(*(node for node in named if node is not away)), PATIENCE)
    finally:
        away.server.resume()
    assert wait_until(lambda: are_looked_at(*named), PATIENCE)


def test_greenlets_of_a_process_keep_what_they_hold(cluster: Cluster, cluster_case: ClusterCase) -> None:
    """With gevent: the native watchdog has connections of its own to each node."""
    pytest.importorskip("gevent")
    program = """
        held = [Lock(store, f"name-{each}", ttl=1.5) for each in range(7)]
        assert all(lock.acquire() for lock in held)
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            pass
        assert all(lock.release() for lock in held)
    """
    run_program(program, cluster.url, cluster_case.prefix, first=PATCHED)


def test_threads_that_begin_together_look_for_the_nodes_once(cluster: Cluster, prefix: str) -> None:
    """Each look costs 40 ms of computing: by thirty greenlets, more than the time that each of them has."""

    def looks() -> int:
        told = [node.client.info("commandstats").get("cmdstat_cluster|slots", {}) for node in cluster.living]
        return sum(each.get("calls", 0) for each in told)

    with closing(connect(cluster.url, prefix=prefix)) as store, ThreadPoolExecutor(20) as pool:
        begin = threading.Barrier(20)
        before = looks()

        def take(number: int) -> bool:
            begin.wait(PATIENCE)
            return Lock(store, f"name-{number}", ttl=TTL).acquire()

        assert all(pool.map(take, range(20)))
        assert looks() - before == 1


def test_a_cluster_with_passwords_and_tls_keeps_locks(tmp_path: Path) -> None:
    """The options of the URL are those of every connection, also to nodes that others have named."""
    ports: list[int] = []

    def arguments() -> list[str]:
        words, port = tls_arguments(tmp_path)
        ports.append(port)
        return [*words, "--tls-cluster", "yes", "--tls-ca-cert-file", str(tmp_path / "cert.pem")]

    with running_cluster(False, binary_named("redis-server"), arguments) as cluster:
        for node in cluster.nodes:
            node.client.config_set("requirepass", "s3cret")
        url = f"rediss+cluster://:s3cret@127.0.0.1:{ports[-1]}/0{tls_options(tmp_path)}"
        with closing(connect(url, socket_timeout=2.0)) as store:
            for name in NAMES:
                with Lock(store, name, ttl=TTL, wait=0):
                    assert not Lock(store, name, owner="another").acquire(timeout=0)
        wrong = url.replace("s3cret", "wr0ng")
        with (
            closing(connect(wrong, socket_timeout=2.0)) as refusing,
            pytest.raises(LockUnavailable) as raised,
        ):
            Lock(refusing, "n").acquire(timeout=0)
        assert "wr0ng" not in str(raised.value)


@pytest.mark.slow
def test_a_lock_counts_when_a_replica_of_its_node_has_it() -> None:
    """``min_replicas``: it is asked on the connection of the acquire, whichever node that is."""
    with running_cluster() as cluster, closing(ClusterCase(cluster, socket_timeout=3.0)) as case:
        store = connect(cluster.url, prefix=case.prefix, socket_timeout=3.0, min_replicas=1)
        with closing(store):
            names = [named_on(cluster, node, 1)[0] for node in cluster.primaries]
            for name in names:
                with Lock(store, name, wait=0):
                    pass
            replica = next(
                node
                for node in cluster.nodes
                if node.client.info("replication").get("master_port") == cluster.node_of(names[0]).server.port
            )
            replica.server.kill()
            with pytest.raises(LockUnavailable, match="only 0 of 1 replicas confirmed"):
                Lock(store, names[0]).acquire(timeout=0)
            assert case.holder(names[0]) is None
            with Lock(store, names[1], wait=0):
                pass


def test_several_names_are_refused_when_the_lock_is_made_or_the_task_bound(cluster: Cluster) -> None:
    """Their keys are in different slots, and so no script can take them all or none."""
    with Celery("cluster", set_as_current=False, broker="memory://") as app:
        app.conf.redislock_url = cluster.url
        both = Resources("{one}", "{other}")

        def transfer(one: str, other: str) -> None:
            pass

        declare = app.task(base=SingletonTask, shared=False, lock="while_executing", lock_key=both)
        for refused_ in (
            lambda: Lock(connect(cluster.url), ["a", "b"]),
            lambda: aio.Lock(aio.connect(cluster.url), ["a", "b"]),
            lambda: declare(transfer).bind(app),
        ):
            with pytest.raises(LockOptionError, match="cannot be locked together"):
                refused_()


def test_one_node_that_answers_is_enough_to_find_the_others(cluster: Cluster, prefix: str) -> None:
    host = cluster.url.rpartition(",")[2]
    with closing(connect(f"redis+cluster://127.0.0.1:{free_port()},{host}", prefix=prefix)) as store:
        for name in NAMES:
            with Lock(store, name, ttl=TTL, wait=0):
                pass


def test_a_cluster_that_cannot_be_reached_is_unavailable_and_its_password_is_masked() -> None:
    """Law 9: a bounded time, an error that says where, and nothing that is secret."""
    nodes = ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))
    with closing(connect(f"redis+cluster://:s3cret@{nodes}", socket_timeout=0.2)) as store:
        began = time.monotonic()
        with pytest.raises(LockUnavailable) as raised:
            Lock(store, "n").acquire(timeout=0)
    assert time.monotonic() - began < PATIENCE
    assert "s3cret" not in f"{raised.value} {raised.value.server} {store.server}"
    assert nodes.partition(",")[0] in raised.value.server
