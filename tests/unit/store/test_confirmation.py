"""What confirms an acquire: which command is sent, what an answer lacks, and which replicas are online."""

import logging
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks import aio, connect
from celery_redislock.store.confirmation import Confirmation
from tests.clocks import ManualClock
from tests.kinds import BOUNDED

#: What servers say of a replica, as they write it and as redis-py has read it.
ONLINE = (
    b"role:master\r\nslave0:ip=10.0.0.1,port=6379,state=online,offset=14,lag=0\r\nmaster_repl_offset:14\r\n"
)
READ = (
    b"slave0:{'ip': '10.0.0.1', 'port': 6379, 'state': 'online', 'offset': 14, 'lag': 1, 'type': 'replica'}"
)
SECOND = (
    b"slave0:ip=a,port=1,state=wait_bgsave,offset=0,lag=0\r\nslave1:ip=b,port=1,state=online,offset=5,lag=0"
)

NONE = b"role:master\r\nconnected_slaves:0\r\nmaster_repl_offset:14\r\n"
LOADS = b"slave0:ip=10.0.0.1,port=6379,state=online,offset=0,lag=0\r\nmaster_repl_offset:14\r\n"
SYNCS = b"slave0:ip=10.0.0.1,port=6379,state=wait_bgsave,offset=0,lag=0\r\nmaster_repl_offset:14\r\n"


def told(caplog: Any) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize(
    ("replicas", "sync", "command"),
    [
        (0, None, ()),
        (2, None, ("WAIT", "2")),
        ("auto", None, ("WAIT", "1")),
        (0, "aof", ("WAITAOF", "1", "0")),
        (2, "aof", ("WAITAOF", "1", "2")),
        ("auto", "aof", ("WAITAOF", "1", "1")),
    ],
)
def test_one_command_confirms_replicas_and_disks(replicas: Any, sync: Any, command: tuple[str, ...]) -> None:
    confirmation = Confirmation(replicas, sync, ManualClock())

    assert confirmation.command == command
    assert bool(confirmation) == bool(command)


@pytest.mark.parametrize("info", [ONLINE, READ, SECOND], ids=["server's words", "redis-py's", "the second"])
def test_a_replica_that_answers_must_confirm(info: bytes, caplog: Any) -> None:
    confirmation = Confirmation("auto", None, ManualClock())

    confirmation.learn("here", "info", info)

    assert confirmation.command == ("WAIT", "1")
    assert not told(caplog)


@pytest.mark.parametrize("info", [NONE, LOADS, SYNCS], ids=["none", "loads", "is being sent the data"])
def test_where_no_replica_answers_none_must_confirm(info: bytes) -> None:
    confirmation = Confirmation("auto", "aof", ManualClock())

    confirmation.learn("here", "info", info)

    assert confirmation.command == ("WAITAOF", "1", "0")
    assert confirmation
    assert confirmation.missing((1, 0)) == ""


def test_each_change_is_told_once(caplog: Any) -> None:
    """At first a replica is expected, so the first answer may be a change."""
    confirmation = Confirmation("auto", None, ManualClock())

    for info in (NONE, NONE, ONLINE, ONLINE, LOADS, NONE):
        confirmation.learn("here", "info", info)

    has_none, has_one, has_none_again = told(caplog)
    assert has_none == has_none_again
    assert "here has no replica online" in has_none
    assert "here has a replica again" in has_one


def test_the_server_is_asked_again_after_ten_seconds() -> None:
    """Where a number was given it is never asked."""
    clock = ManualClock()
    auto = Confirmation("auto", None, clock)
    assert auto.is_stale
    assert not Confirmation(1, "aof", clock).is_stale

    auto.learn("here", "info", NONE)
    clock.advance(9.9)
    assert not auto.is_stale
    clock.advance(0.2)
    assert auto.is_stale


@pytest.mark.parametrize(
    ("replicas", "sync", "counts", "said"),
    [
        (2, None, None, ""),
        (2, None, (1, 2), ""),
        (2, None, (1, 1), "only 1 of 2 replicas confirmed the lock"),
        (0, "aof", (1, 0), ""),
        (0, "aof", (0, 0), "it was not confirmed in time that the lock is on the server's disk"),
        (1, "aof", (1, 0), "only 0 of 1 replicas confirmed the lock on their disks, for which they need app"),
    ],
)
def test_what_is_missing_is_named(replicas: Any, sync: Any, counts: Any, said: str) -> None:
    missing = Confirmation(replicas, sync, ManualClock()).missing(counts)

    assert missing.startswith(said)
    assert bool(missing) == bool(said)


# --- what is refused before anything is sent -------------------------------------------------


@pytest.mark.parametrize("make", [connect, aio.connect], ids=["threads", "asyncio"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_replicas": -1}, "min_replicas=-1 is neither a whole number .* nor 'auto'"),
        ({"min_replicas": 10**30}, "is neither a whole number"),
        ({"min_replicas": True}, "min_replicas=True is neither"),
        ({"min_replicas": "1"}, "min_replicas='1' is neither"),
        ({"sync": "rdb"}, "sync='rdb' is neither 'aof' nor None"),
        ({"sync": ["aof"]}, r"sync=\['aof'\] is neither"),
        ({"sync": False}, "sync=False is neither"),
    ],
)
def test_what_cannot_be_confirmed_is_refused(make: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(LockOptionError, match=said):
        make("redis://127.0.0.1:1/0", **options)


@pytest.mark.parametrize("options", [{"min_replicas": 1}, {"min_replicas": "auto"}, {"sync": "aof"}], ids=str)
def test_a_store_is_not_made_that_could_not_wait_on_the_connection_of_its_script(options: Any) -> None:
    """On another one it would be confirmed what nobody has."""
    for make, client in ((connect, fakeredis.FakeRedis()), (aio.connect, redis.asyncio.Redis())):
        with pytest.raises(LockOptionError, match=r"min_replicas, sync .* does not offer; .* give a URL"):
            make(client, **options)  # type: ignore[operator]


def test_a_client_that_cannot_wait_for_a_disk_is_refused() -> None:
    """Its own timeout would come first, each time; one that is patient enough is none too slow."""
    with pytest.raises(LockOptionError, match=r"a client with a socket_timeout from 3 s up"):
        connect(redis.Redis(**BOUNDED), sync="aof", through=True)

    connect(redis.Redis(**{**BOUNDED, "socket_timeout": 3.0}), sync="aof", through=True)
    connect(redis.Redis(**BOUNDED), sync="aof")
