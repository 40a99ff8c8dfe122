"""A worker proves to which broker its URL leads; brokers and lock server in memory."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest

from celery_redislock.receiving import proof
from celery_redislock.receiving.proof import Prover, learn, look_up, prove
from celery_redislock.store.home import LIVES
from celery_redislock.store.memory import MemoryStore
from tests.clocks import AheadClock
from tests.unit.shop import Shop, body, raising

HERE, THERE = "amqp:here", "amqp:there"

_numbers = count(1)


class Broker:
    """One that knows names; it lets nobody declare one where it is told so."""

    def __init__(self, *, may_declare: bool = True) -> None:
        self.names: set[str] = set()
        self.may_declare = may_declare
        self.before_declaring: Callable[[], object] = lambda: None

    def known(self, names: Sequence[str]) -> list[str] | None:
        return sorted(self.names.intersection(names))

    def declare(self) -> str:
        self.before_declaring()
        if not self.may_declare:
            return ""
        name = f"name {next(_numbers):04}"
        self.names.add(name)
        return name


class Dumb(Broker):
    """One that may not be asked."""

    def known(self, names: Sequence[str]) -> list[str] | None:  # noqa: ARG002
        return None


@pytest.fixture
def clock() -> AheadClock:
    """The lock server's."""
    return AheadClock()


@pytest.fixture
def worker(clock: AheadClock) -> Callable[..., MemoryStore]:
    """Makes the store of one worker's process, on one lock server for all."""
    server = MemoryStore(clock=clock)

    def worker() -> MemoryStore:
        store = MemoryStore(clock=clock)
        store._proofs = server._proofs
        store.homes = server.homes  # type: ignore[method-assign]
        return store

    return worker


def homes(store: MemoryStore) -> list[str]:
    """All spellings of the broker that a process serves, its own first."""
    return store.home.split("\n")


@pytest.mark.parametrize("is_one", [True, False])
def test_two_spellings_of_one_broker_are_one_home(worker: Callable[[], MemoryStore], is_one: bool) -> None:
    """And two brokers are two."""
    first, second, broker = worker(), worker(), Broker()
    other = broker if is_one else Broker()
    for _ in range(2):
        prove(first, HERE, broker)
        prove(second, THERE, other)
    assert homes(first) == [HERE, THERE][: 1 + is_one]
    assert homes(second) == [THERE, HERE][: 1 + is_one]
    assert len(broker.names) == 1


@pytest.mark.parametrize("spelling", [HERE, THERE])
def test_two_that_prove_for_the_first_time_at_once_agree(
    worker: Callable[[], MemoryStore], caplog: Any, spelling: str
) -> None:
    """Each has asked before the other one declared: the least of their names counts."""
    broker, first, second = Broker(), worker(), worker()

    def other() -> None:
        broker.before_declaring = lambda: None
        prove(second, HERE, broker)

    broker.before_declaring = other
    for _ in range(2):
        prove(first, spelling, broker)
        prove(second, HERE, broker)
    assert set(homes(first)) == set(homes(second)) == {HERE, spelling}
    assert homes(first)[0] == spelling
    assert caplog.records == []


def test_one_that_may_declare_is_enough_for_a_fleet(worker: Callable[[], MemoryStore]) -> None:
    """Asking takes no right."""
    broker, first, second = Broker(may_declare=False), worker(), worker()
    prove(first, HERE, broker)
    prove(second, THERE, broker)
    assert (homes(first), homes(second)) == ([HERE], [THERE])
    broker.may_declare = True
    prove(second, THERE, broker)
    broker.may_declare = False
    prove(first, HERE, broker)
    assert homes(first) == [HERE, THERE]


@pytest.mark.parametrize("broker", [None, Dumb()])
def test_where_nothing_can_be_proved_the_spelling_counts(
    worker: Callable[[], MemoryStore], broker: Broker | None
) -> None:
    """Other workers know that it is served, and what they have proved of it stays."""
    store = worker()
    prove(store, HERE, broker)
    assert homes(store) == [HERE]
    assert store.homes()[HERE].is_living
    store.homes(HERE, "x")
    store.homes(THERE, "x")
    prove(store, HERE, broker)
    assert homes(store) == [HERE, THERE]
    assert store.homes()[HERE].name == "x"


@pytest.mark.parametrize("may_declare", [True, False])
def test_of_two_behind_one_spelling_the_second_has_a_home_of_its_own_and_tells(
    worker: Callable[[], MemoryStore], caplog: Any, *, may_declare: bool
) -> None:
    """As in two networks. Also where it can prove nothing; who spells its broker otherwise serves both."""
    first, second, third = worker(), worker(), worker()
    of_first = Broker()
    broker = Broker(may_declare=may_declare)
    for _ in range(2):
        prove(first, HERE, of_first)
        prove(second, HERE, broker)
    prove(third, THERE, broker)

    assert homes(first) == [HERE]
    assert second.own_home.startswith(f"{HERE}#")
    assert HERE not in homes(second) + homes(third)
    assert (second.own_home in homes(third)) == may_declare
    (record,) = caplog.records
    assert (record.levelname, HERE in record.getMessage()) == ("WARNING", True)


def test_a_minute_after_the_last_of_the_others_one_takes_over_their_spelling(
    worker: Callable[[], MemoryStore], clock: AheadClock
) -> None:
    """The other broker is gone, or it is one that has lost its data: what waits goes on."""
    broker, first, second = Broker(), worker(), worker()
    prove(first, HERE, broker)
    broker.names.clear()
    for store in (first, second):
        prove(store, HERE, broker)
    assert HERE not in homes(first) + homes(second)
    clock.advance(LIVES)
    own = first.own_home
    for store in (first, second):
        prove(store, HERE, broker)
    assert homes(first) == homes(second) == [HERE, own]


def test_a_command_learns_which_home_it_has_and_notes_nothing(worker: Callable[[], MemoryStore]) -> None:
    """It is no worker: it may be the only process of that spelling."""
    broker, store, command = Broker(), worker(), worker()
    prove(store, HERE, broker)
    proofs = store.homes()
    look_up(command, THERE, broker)
    assert homes(command) == [THERE]
    look_up(command, HERE, Broker())
    assert homes(command) == [f"{HERE}#"]
    assert store.homes().keys() == proofs.keys()


@pytest.fixture
def shop_with_task(shop: Shop) -> Shop:
    """A shop whose broker is not its lock server."""
    shop.unique(body, lock="while_executing")
    learn(shop.app, shop.store)
    return shop


def new_prover(shop: Shop, clock: AheadClock) -> Prover:
    """Let a worker prove for the first time."""
    prover = Prover(shop.app, shop.store, clock)
    prover.prove()
    return prover


def has_proved(shop: Shop) -> bool:
    """Whether it has proved its own home since this was asked last."""
    found = {*shop.store.homes()}
    shop.store._proofs.clear()
    assert found <= {shop.store.own_home}
    return bool(found)


def test_a_worker_proves_each_twenty_seconds_and_when_it_has_connected_anew(shop_with_task: Shop) -> None:
    """It may be with another broker then."""
    shop, clock = shop_with_task, AheadClock()
    prover = new_prover(shop, clock)
    assert has_proved(shop)
    for seconds, expected in ((19.9, False), (0.2, True), (19.9, False), (0.2, True)):
        clock.advance(seconds)
        prover.prove()
        assert has_proved(shop) is expected

    prover.stop()
    prover.prove()
    assert not has_proved(shop)
    prover.start()
    prover.prove()
    assert has_proved(shop)


@pytest.mark.parametrize("fails", ["connect", "broker_of"])
def test_a_broker_without_an_answer_is_asked_as_seldom(
    shop_with_task: Shop, monkeypatch: Any, fails: str
) -> None:
    """It keeps no worker from starting, and no line from being looked at; the spelling counts."""
    shop, clock = shop_with_task, AheadClock()
    home = shop.store.home
    asked: list[float] = []

    def fail(*_: object) -> None:
        asked.append(round(clock() - began))
        raise OSError("no broker")

    began = clock()
    monkeypatch.setattr(proof, fails, fail)
    prover = new_prover(shop, clock)
    for _ in range(25):
        clock.advance(2.0)
        prover.prove()

    assert asked == [0, 20, 40]
    assert shop.store.home == home


def test_where_the_lock_server_is_the_broker_nothing_is_asked(shop: Shop, monkeypatch: Any) -> None:
    """Law 10."""
    shop.unique(body)
    monkeypatch.setattr(proof, "connect", raising(AssertionError()))
    new_prover(shop, AheadClock())
