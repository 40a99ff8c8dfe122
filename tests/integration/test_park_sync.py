"""Where what waits must be on the lock server's disk: it counts as parked when that is confirmed."""

import secrets
from collections.abc import Iterator
from contextlib import closing

import pytest

from celery_redislock.embedded import EmbeddedServer
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.store.redisstore import RedisStore
from celery_redislock.store.store import Entry, Parked
from celery_redislock.wire.connection import Connections, pool_of
from tests.stores import start_server

#: Servers that keep no such file, or know no confirmation, or never write it to their disk by themselves.
APART = {
    "keeps none": ("embedded", ()),
    "does not know it": ("redis-server", ("--appendonly", "yes")),
    "never confirms": ("embedded", ("--appendonly", "yes", "--appendfsync", "no")),
}


def store_on(server: EmbeddedServer, *, syncs_parked: bool = True) -> RedisStore:
    """A store whose process publishes what waits."""
    connections = Connections(pool_of(server.redis_url), socket_timeout=0.5)
    store = RedisStore(connections, prefix=f"test-{secrets.token_hex(6)}", syncs_parked=syncs_parked)
    store.home = "amqp:here"
    return store


def park(store: RedisStore, kind: str = "give", *, nonce: str = "1") -> Parked:
    """Park a message."""
    entry = Entry(kind, store.home if kind == "give" else f"{store.prefix}:q", 30.0, "{}", "text")
    return store.park("n", "job/1", entry, nonce=nonce, how="behind")


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A server of one's own."""
    name, arguments = getattr(request, "param", ("embedded", ("--appendonly", "yes")))
    with start_server(name, extra_args=arguments) as server:
        yield server


def test_a_message_is_parked_when_it_is_on_disk(server: EmbeddedServer) -> None:
    """In one request, also where the server writes to its disk once a second only."""
    with closing(store_on(server)) as store:
        store.confirm_on_disk()

        assert park(store).word == "parked"
        assert park(store).word == "repeated"


@pytest.mark.parametrize("server", APART.values(), ids=APART, indirect=True)
def test_what_is_not_confirmed_may_be_parked_also_when_it_is_asked_again(server: EmbeddedServer) -> None:
    """So its message is published for later, and the copy that comes second does nothing (law 9)."""
    with closing(store_on(server)) as store:
        for nonce in ("1", "1", "2"):
            with pytest.raises(LockUnavailable) as raised:
                park(store, nonce=nonce)

            assert not raised.value.was_refused
            assert raised.value.was_sent
        assert store.waiting("n")[0] == 1


@pytest.mark.parametrize("server", [APART["keeps none"], APART["does not know it"]], indirect=True)
def test_a_server_that_can_never_confirm_says_so(server: EmbeddedServer) -> None:
    """The worker does not start then."""
    with closing(store_on(server)) as store, pytest.raises(LockUnavailable) as raised:
        store.confirm_on_disk()

    assert raised.value.was_refused
    assert "WAITAOF" in raised.value.reason


@pytest.mark.parametrize("server", [APART["keeps none"]], indirect=True)
def test_only_messages_that_leave_their_broker_are_confirmed_and_only_where_asked(
    server: EmbeddedServer,
) -> None:
    """A queue of this very server is no safer, and a process that waits dies with its connection."""
    with closing(store_on(server)) as store, closing(store_on(server, syncs_parked=False)) as other:
        assert park(store, "push").word == "parked"
        assert park(other).word == "parked"
