"""A worker proves to which broker its URL leads, so that two spellings of one broker are one home.

What is proved is a name that only that broker knows:

- on RabbitMQ an exchange, ``redislock.home.`` and random characters. It is internal: neither federation nor
  exported definitions take it to another broker, as they do with a plain one.
- on Redis and Valkey a key, ``redislock:home``, with random characters.

Of several names that a broker knows the least counts, so two workers that declare one at once agree when they
prove again. Anybody may ask RabbitMQ whether an exchange exists; to declare one takes the right to configure
it. Without that, and with other brokers, nothing is proved, and the spelling counts.

One spelling may lead to two brokers, in two networks. A worker whose spelling was proved by a living one, by
a name that its own broker does not know, has another home: the spelling, ``#``, and a name of its broker.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Protocol
from uuid import uuid4

from celery_redislock.log import logger
from celery_redislock.publishing import promote
from celery_redislock.receiving.in_hand import is_forbidden
from celery_redislock.receiving.restore import run_script
from celery_redislock.store.home import KEPT, LIVES, Proof, spellings_of
from celery_redislock.store.store import LockStore
from celery_redislock.wire.clock import Clock, boottime
from celery_redislock.wire.thread import tell

#: Seconds between two proofs.
AGAIN = LIVES / 3

#: Seconds that a connection or an answer of the broker may take.
BOUND = 1.0

#: What bounds an answer, by kombu's driver: where something can be proved.
_BOUNDED = {
    "py-amqp": ("read_timeout", "write_timeout"),
    "redis": ("socket_timeout", "socket_connect_timeout"),
}


class Broker(Protocol):
    """What can be proved of a broker, over one connection."""

    def known(self, names: Sequence[str]) -> list[str] | None:
        """Return those names that this broker knows, the least first; ``None`` where it cannot be asked."""

    def declare(self) -> str:
        """Let it know a new name, if it knows none, and return what it knows; '' where that is forbidden."""


class _RabbitMQ:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def known(self, names: Sequence[str]) -> list[str]:
        return list(filter(self._knows, sorted(names)))

    def _knows(self, name: str) -> bool:
        from amqp.exceptions import NotFound  # noqa: PLC0415  only with this broker

        with suppress(NotFound), self._connection.channel() as channel:
            channel.exchange_declare(name, type="direct", passive=True)
            return True
        return False

    def declare(self) -> str:
        from amqp.exceptions import AccessRefused  # noqa: PLC0415  only with this broker
        from amqp.spec import Exchange  # noqa: PLC0415  as above

        name = f"redislock.home.{uuid4().hex}"
        # Durable and internal; exchange_declare of amqp 5 has no argument for the latter.
        terms: Any = (0, name, "direct", False, True, False, True, False, {})
        with suppress(AccessRefused), self._connection.channel() as channel:
            channel.send_method(Exchange.Declare, "BssbbbbbF", terms, wait=Exchange.DeclareOk)
            return name
        return ""


class _Redis:
    def __init__(self, connection: Any, prefix: str) -> None:
        self._channel = connection.default_channel
        self._key = f"{self._channel.global_keyprefix}{prefix}:home"

    def known(self, names: Sequence[str]) -> list[str] | None:  # noqa: ARG002  it has one for all
        try:
            known = self._ask()
        except Exception as error:
            if is_forbidden(error):
                return None
            raise
        return [known] if known else []

    def declare(self) -> str:
        return self._ask(uuid4().hex)

    def _ask(self, *name: str) -> str:
        answer: bytes = run_script(self._channel, "home", [self._key], round(1000 * KEPT), *name)
        return answer.decode()


def broker_of(connection: Any, prefix: str) -> Broker | None:
    """Return what can be proved over this connection of kombu's; ``None`` where nothing can."""
    name = connection.transport.driver_name
    if name not in _BOUNDED:
        return None
    return _Redis(connection, prefix) if name == "redis" else _RabbitMQ(connection)


def connect(app: Any) -> Any:
    """Return a connection to the broker that the app publishes to; what is asked over it is bounded."""
    connection = app.connection_for_write(connect_timeout=BOUND)
    names = _BOUNDED.get(connection.transport.driver_name)
    if names is not None:
        bounded = {**(connection.transport_options or {}), **dict.fromkeys(names, BOUND)}
        connection = connection.clone(transport_options=bounded)
        connection.ensure_connection(max_retries=1, interval_start=0)
    return connection


def prove(store: LockStore, spelling: str, broker: Broker | None) -> None:
    """Find out which home a worker has whose URL is spelled so; note the proof, and set it on the store."""
    proofs = store.homes()
    names = _names_of(broker, proofs)
    if broker is not None and names == []:
        names = [broker.declare()]
    own, name = _home(spelling, names, proofs)
    proofs = store.homes(own, name)
    if own not in {spelling, store.own_home}:
        line = (
            "%s leads other workers to another broker, or this one has lost its data: what waits for those "
            "is not published here; if they are two brokers, give them two names in broker_url, if it is one "
            "this ends within %d s"
        )
        tell(logger.warning, line, spelling, LIVES + AGAIN)
    store.home = "\n".join(spellings_of(own, proofs))


def look_up(store: LockStore, spelling: str, broker: Broker | None) -> None:
    """Find out the home of a command, by what workers have proved, and set it on the store."""
    proofs = store.homes()
    own, _ = _home(spelling, _names_of(broker, proofs), proofs)
    store.home = "\n".join(spellings_of(own, proofs))


def _names_of(broker: Broker | None, proofs: Mapping[str, Proof]) -> list[str] | None:
    """Return the proved names that this broker knows; ``None`` where it cannot be asked."""
    return None if broker is None else broker.known(sorted({each.name for each in proofs.values()} - {""}))


def _home(spelling: str, names: Sequence[str] | None, proofs: Mapping[str, Proof]) -> tuple[str, str]:
    """Return the home of this spelling at a broker that has these names, and the one that counts."""
    noted = proofs.get(spelling)
    if names is None:
        return spelling, "" if noted is None else noted.name
    name = names[0] if names else ""
    is_others = noted is not None and noted.is_living and noted.name not in {"", *names}
    return f"{spelling}#{name}" if is_others else spelling, name


def learn(app: Any, store: LockStore) -> None:
    """Let a command publish what it promotes: :func:`promote.install`, for the home that is proved here."""
    promote.install(app, store)
    if store.home:
        _ask(app, store, store.own_home, look_up)


def _ask(
    app: Any, store: LockStore, spelling: str, find_out: Callable[[LockStore, str, Broker | None], None]
) -> None:
    """Connect to the broker, and find out which home it is; where that cannot be, it stays as it is."""
    try:
        with connect(app) as connection:
            find_out(store, spelling, broker_of(connection, store.prefix))
    except Exception as error:  # noqa: BLE001  every broker has errors of its own
        tell(logger.debug, "could not prove which broker %s is: %r", spelling, error)


class Prover:
    """What proves the home of one worker: before the worker looks at lines, and each 20 s."""

    def __init__(self, app: Any, store: LockStore, clock: Clock = boottime) -> None:
        """Of this app's broker; sends nothing yet."""
        self._app = app
        self._store = store
        self._spelling = store.own_home
        self._clock = clock
        self._due_at = 0.0

    def start(self) -> None:
        """Prove soon, where the consumer has connected again, maybe to another broker than before."""
        if self._due_at == inf:
            self._due_at = 0.0

    def stop(self) -> None:
        """Prove no more until the consumer has connected again; for a minute others take it for living."""
        self._due_at = inf

    def prove(self) -> None:
        """Prove, where that is due and the lock server is not the broker; it takes some seconds at most."""
        if self._spelling and self._clock() >= self._due_at:
            self._due_at = self._clock() + AGAIN
            _ask(self._app, self._store, self._spelling, prove)
