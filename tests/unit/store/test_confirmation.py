"""What confirms an acquire: which command is sent, what an answer lacks, and which replicas are online."""

import logging
from typing import Any

import fakeredis
import pytest
import redis.asyncio

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks import aio, connect
from celery_redislock.store.confirmation import Confirmation
from tests.clocks import ManualClock

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


@pytest.mark.parametrize(("replicas", "command"), [(0, ()), (2, ("WAIT", "2")), ("auto", ("WAIT", "1"))])
def test_a_command_confirms_replicas(replicas: Any, command: tuple[str, ...]) -> None:
    confirmation = Confirmation(replicas, ManualClock())

    assert confirmation.command == command
    assert bool(confirmation) == bool(command)


@pytest.mark.parametrize("info", [ONLINE, READ, SECOND], ids=["server's words", "redis-py's", "the second"])
def test_a_replica_that_answers_must_confirm(info: bytes, caplog: Any) -> None:
    confirmation = Confirmation("auto", ManualClock())

    confirmation.learn("here", "info", info)

    assert confirmation.command == ("WAIT", "1")
    assert not told(caplog)


@pytest.mark.parametrize("info", [NONE, LOADS, SYNCS], ids=["none", "loads", "is being sent the data"])
def test_where_no_replica_answers_none_must_confirm(info: bytes) -> None:
    confirmation = Confirmation("auto", ManualClock())

    confirmation.learn("here", "info", info)

    assert confirmation.command == ()
    assert confirmation
    assert confirmation.missing(0) == ""


def test_each_change_is_told_once(caplog: Any) -> None:
    """At first a replica is expected, so the first answer may be a change."""
    confirmation = Confirmation("auto", ManualClock())

    for info in (NONE, NONE, ONLINE, ONLINE, LOADS, NONE):
        confirmation.learn("here", "info", info)

    has_none, has_one, has_none_again = told(caplog)
    assert has_none == has_none_again
    assert "here has no replica online" in has_none
    assert "here has a replica again" in has_one


def test_the_server_is_asked_again_after_ten_seconds() -> None:
    """Where a number was given it is never asked."""
    clock = ManualClock()
    auto = Confirmation("auto", clock)
    assert auto.is_stale
    assert not Confirmation(1, clock).is_stale

    auto.learn("here", "info", NONE)
    clock.advance(9.9)
    assert not auto.is_stale
    clock.advance(0.2)
    assert auto.is_stale


@pytest.mark.parametrize(
    ("confirmed", "said"), [(None, ""), (2, ""), (1, "only 1 of 2 replicas confirmed the lock")]
)
def test_what_is_missing_is_named(confirmed: int | None, said: str) -> None:
    assert Confirmation(2, ManualClock()).missing(confirmed) == said


# --- what is refused before anything is sent -------------------------------------------------


@pytest.mark.parametrize("make", [connect, aio.connect], ids=["threads", "asyncio"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_replicas": -1}, "min_replicas=-1 is neither a whole number .* nor 'auto'"),
        ({"min_replicas": 10**30}, "is neither a whole number"),
        ({"min_replicas": True}, "min_replicas=True is neither"),
        ({"min_replicas": "1"}, "min_replicas='1' is neither"),
    ],
)
def test_what_cannot_be_confirmed_is_refused(make: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(LockOptionError, match=said):
        make("redis://127.0.0.1:1/0", **options)


@pytest.mark.parametrize("options", [{"min_replicas": 1}, {"min_replicas": "auto"}], ids=str)
def test_a_store_is_not_made_that_could_not_wait_on_the_connection_of_its_script(options: Any) -> None:
    """On another one it would be confirmed what nobody has."""
    for make, client in ((connect, fakeredis.FakeRedis()), (aio.connect, redis.asyncio.Redis())):
        with pytest.raises(LockOptionError, match=r"min_replicas .* does not offer; .* give a URL"):
            make(client, **options)  # type: ignore[operator]
