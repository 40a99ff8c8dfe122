"""URLs and connections, without a server."""

import ssl
from typing import Any

import pytest

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks import connect
from celery_redislock.wire.connection import MOST_IDLE, Connections, mask_password, pool_of

#: Pieces of a password that end in the same word, and where a password may stand.
SECRETS = ["hunter2", "hun/ter2", "hun@ter2", "hun?ter2", "hun#ter2", "hun&ter2", "hun:ter2", "hun%zter2"]
PLACES = [
    *(
        "redis://:{}@host:port/0",
        "redis://user:{}@host:port/0",
        "redis://{}@host:port/0",
        "redis://:{}@[::1/0",
    ),
    *("redis://us@er:{}@host:port/0", "valkeys://:{}@host:99999/0", ":{}@host:6379/0", "user:{}@host:6379/0"),
    *("http://:{}@host/0", "redis://host:port/0?password={}", "redis://host:port/0?PASSWORD={}&db=1"),
    *("redis://host/0?nonsense=1&password={}", "rediss://host/0?nonsense=1&ssl_password={}"),
    *("unix:///tmp/socket?db=x&password={}", "redis://user:{}@host:port/0?password={}"),
]


def test_a_url_that_cannot_be_read_is_told_without_its_password() -> None:
    """In logs and error trackers, wherever it stood and however badly it was quoted."""
    for url in [place.replace("{}", secret) for place in PLACES for secret in SECRETS]:
        try:
            told = connect(url).server + mask_password(url)
        except LockOptionError as error:
            told = f"{error} {error!r} {error.args} {error.__cause__!r}"
        assert "ter2" not in told, url


def test_what_is_no_secret_stays_readable() -> None:
    for url, masked in {
        "redis://host:6379/0": "redis://host:6379/0",
        "redis://user:pass@host:6379/0": "redis://***@host:6379/0",
        "redis://host/0?db=1&password=x&y=z": "redis://host/0?db=1&password=***",
        "unix:///tmp/s?db=1": "unix:///tmp/s?db=1",
        "host:6379": "host:6379",
        "me:hush@host:1/0": "***@host:1/0",
    }.items():
        assert mask_password(url) == masked


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("redis://:secret@host:7000/3", "redis://host:7000/3"),
        ("valkey://host", "redis://host:6379/0"),
        ("rediss://:secret@host:7000/3", "rediss://host:7000/3"),
        ("valkeys://host", "rediss://host:6379/0"),
        ("unix:///tmp/socket?db=2", "unix:///tmp/socket?db=2"),
    ],
)
def test_a_store_says_where_it_is_without_credentials(url: str, server: str) -> None:
    assert connect(url).server == server


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("rediss://h/0?ssl_cert_reqs=CERT_NONE", {"cert_reqs": ssl.CERT_NONE, "check_hostname": False}),
        ("rediss://h/0?ssl_cert_reqs=CERT_OPTIONAL", {"cert_reqs": ssl.CERT_OPTIONAL}),
        ("valkeys://h/0?ssl_cert_reqs=none", {"cert_reqs": ssl.CERT_NONE}),
        ("redis://h/1?ssl=True", {"cert_reqs": ssl.CERT_REQUIRED, "db": 1}),
        ("redis://h/1?ssl=true&db=2&ssl_cert_reqs=CERT_NONE", {"cert_reqs": ssl.CERT_NONE, "db": 2}),
        ("redis://h/1?db=2&ssl=False", {"db": 2}),
        ("redis://:s@h?db=1", {"db": 1, "password": "s"}),
        ("redis+socket:///run/s?virtual_host=3", {"path": "/run/s", "db": 3}),
        ("unix://:s@/run/s?db=1", {"path": "/run/s", "db": 1, "password": "s"}),
        ("sentinel://:s@a:1;sentinel://b/2?master_name=mine", {"db": 2, "password": "s"}),
        ("sentinel://a/2?master_name=mine&ssl=True", {"cert_reqs": ssl.CERT_REQUIRED}),
        ("sentinel://a/2?master_name=mine&ssl=False", {"db": 2}),
    ],
)
def test_a_url_is_read_as_celery_and_django_users_write_it(url: str, expected: dict[str, Any]) -> None:
    connection = connect(url).connections.take()
    assert {name: getattr(connection, name, None) for name in expected} == expected
    assert hasattr(connection, "cert_reqs") == ("cert_reqs" in expected)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        *((url, "redis://host:port/db") for url in ("", "localhost", "http://host", "redis://host:port")),
        *((f"redis://host{more}", "redis://host:port/db") for more in ("/0?db=x", "/shop", "/1/2")),
        ("redis://host/0?credential_provider=vault", "redis://host:port/db"),
        ("redis://h?socket_timeot=1", "has the option 'socket_timeot', which redis-py does not know"),
        ("redis://h/0?ssl_cert_reqs=none", "'ssl_cert_reqs', which redis-py does not know for this kind"),
        ("sentinel://a?master_name=m&nonsense=1", "'nonsense'"),
        ("sentinel://:hunter2@a/0", r"does not say which primary to ask the Sentinels for \(\?master_name="),
        ("redis+cluster://:hunter2@h,i:2/1", "a Cluster has one database, 0"),
        ("rediss+cluster://h:1?nonsense=1", "'nonsense'"),
        ("valkey+cluster://h:port", "is not a URL of a Redis or Valkey server"),
        ("redis://:p?hunter2=x@h/0", "URL"),  # what may be a piece of a password is not named
        ("redis://h/0?password=p&hunter2=x", "URL"),
    ],
)
def test_a_wrong_url_is_reported_at_once_with_what_is_wrong_or_a_remedy(url: str, named: str) -> None:
    """Not by the first lock, hours later, as redis-py's TypeError."""
    with pytest.raises(LockOptionError, match=named) as refusal:
        connect(url)
    assert "hunter2" not in str(refusal.value)


def test_what_a_url_asks_for_does_not_change_what_the_store_needs() -> None:
    """Bytes, its own timeouts, and no repeating behind its back."""
    url = "redis://host?decode_responses=true&encoding=latin-1&socket_timeout=99&retry_on_timeout=true"
    connection = Connections(pool_of(url), socket_timeout=0.5).take()
    assert connection.encoder.decode_responses is False
    assert connection.encoder.encoding == "utf-8"
    assert b"".join(connection.pack_command("AUTH", "\u00fc")).endswith(b"$2\r\n\xc3\xbc\r\n")
    assert connection.socket_timeout == connection.socket_connect_timeout == 0.5
    assert connection.retry._retries == 0


class FakeConnection:
    """As much of a connection as is asked for here; it closes itself when nobody knows it, as redis-py's."""

    count = 0

    def __init__(self, **_: object) -> None:
        FakeConnection.count += 1

    def __del__(self) -> None:
        FakeConnection.count -= 1


def test_after_a_rush_no_more_than_a_few_connections_stay_open() -> None:
    """Five hundred greenlets that lock at once must not leave five hundred sockets behind for ever."""
    connections = Connections(pool_of("redis://host"), socket_timeout=1.0)
    connections._pool.connection_class = FakeConnection
    lent = [connections.take() for _ in range(500)]
    assert FakeConnection.count == 500
    while lent:
        last = lent.pop()
        last.redislock_idle.append(last)
    assert FakeConnection.count == MOST_IDLE
    assert connections.take() is last  # the last one given back is the next one lent


@pytest.mark.parametrize("timeout", [None, True, 0, -1.0, 0.0001, float("inf"), float("nan"), "1"], ids=str)
def test_a_timeout_that_bounds_nothing_is_refused_at_once(timeout: Any) -> None:
    """Not at the first lock, and by the watchdog's thread."""
    with pytest.raises(LockOptionError, match="socket_timeout="):
        connect("redis://host", socket_timeout=timeout)
