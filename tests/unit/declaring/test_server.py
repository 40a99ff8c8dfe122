"""From settings to a lock store: Celery's own URLs, without opening a connection."""

import gc
import socket
import ssl
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import celery
import fakeredis
import pytest
import redis
import redis.asyncio
from celery import Celery
from kombu import Connection
from kombu.transport import redis as redis_transport

from celery_redislock.declaring.options import LockSettings
from celery_redislock.declaring.server import settings_of, store_of, use_store
from celery_redislock.exceptions import LockOptionError
from celery_redislock.store.memory import MemoryStore


def app_with(**settings: Any) -> Celery:
    app = Celery("shop", set_as_current=False)
    app.conf.update({"broker_url": "amqp://", "result_backend": None, **settings})
    return app


def connections(url: str | None = None, **settings: Any) -> Any:
    """The connections of the store made from these settings; none is opened."""
    return _store(url, **settings)._scripts._connections


def _store(url: str | None = None, **settings: Any) -> Any:
    return store_of(app_with(**settings), LockSettings(url=url))


def reached(url: str | None = None, **settings: Any) -> dict[str, Any]:
    """Where a connection would go, and as whom."""
    one = connections(url, **settings).take()
    names = ("host", "port", "db", "username", "password", "path")
    return {name: value for name in names if (value := getattr(one, name, None)) is not None}


class Vault(redis.CredentialProvider):
    """Credentials from elsewhere."""

    def get_credentials(self) -> tuple[str, str]:
        return "bob", "from the vault"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: Any) -> Iterator[None]:
    """A store is made without connecting to anything."""
    tried = []

    def refuse(*_: Any, **__: Any) -> None:
        tried.append(threading.current_thread())
        raise ConnectionRefusedError

    monkeypatch.setattr(socket.socket, "connect", refuse)
    yield
    assert threading.current_thread() not in tried


# --- every form of URL Celery knows ----------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://bob:p%40x@h:6/3", {"host": "h", "port": 6, "db": 3, "username": "bob", "password": "p@x"}),
        ("redis://h", {"host": "h", "port": 6379, "db": 0}),
        ("redis+socket:///run/s?virtual_host=2", {"path": "/run/s", "db": 2}),
        ("unix:///run/s?db=2", {"path": "/run/s", "db": 2}),
        ("redis://[::1]:6380/1", {"host": "::1", "port": 6380, "db": 1}),
        ("redis://h/0?health_check_interval=5", {"host": "h", "port": 6379, "db": 0}),
        ("valkey://:secret@h/4", {"host": "h", "port": 6379, "db": 4, "password": "secret"}),
    ],
)
@pytest.mark.parametrize("place", ["url", "broker_url", "result_backend"])
def test_a_url_means_here_what_it_means_to_celery(url: str, expected: dict[str, Any], place: str) -> None:
    found = reached(url) if place == "url" else reached(**{place: url})
    assert found == expected


@pytest.mark.parametrize("path", ["", "/", "//", "/%2f", "//?", "/2", "//2"])
@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey", "sentinel"])
def test_a_brokers_database_is_the_one_kombu_takes(scheme: str, path: str) -> None:
    """Its virtual host ``/`` among them, which Celery does not take for a result backend's database."""
    kombu_takes = redis_transport.Channel._prepare_virtual_host(
        None, Connection(f"redis://h{path}").virtual_host
    )
    url = f"{scheme}://h{path};{scheme}://i{path}"
    found = connections(broker_url=url, broker_transport_options={"master_name": "m"})
    assert found._kwargs["db"] == kombu_takes == (2 if path.endswith("2") else 0)


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_tls_is_spoken_and_certificates_are_checked_unless_said_otherwise(scheme: str) -> None:
    """But for a broker, which is trusted as kombu trusts it: what publishes must be able to lock."""
    for query, expected in (
        ("?ssl_cert_reqs=CERT_REQUIRED", ssl.CERT_REQUIRED),
        ("?ssl_cert_reqs=required", ssl.CERT_REQUIRED),
        ("?ssl_cert_reqs=CERT_NONE", ssl.CERT_NONE),
        ("", ssl.CERT_REQUIRED),
    ):
        found = connections(f"{scheme}://h:6380/1{query}")
        assert issubclass(found._pool.connection_class, redis.SSLConnection)
        its = (found._kwargs["ssl_cert_reqs"], found._kwargs["host"], found._kwargs["db"])
        assert its == (expected, "h", 1)
    silent = connections(broker_url="rediss://h/0")
    assert silent._kwargs["ssl_cert_reqs"] == ssl.CERT_NONE
    told = connections(broker_url="rediss://h/0", broker_use_ssl={"ssl_ca_certs": "/ca"})
    assert told._kwargs["ssl_cert_reqs"] == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("url", "settings", "setting"),
    [
        *(
            (None, {"broker_url": url}, "broker_use_ssl")
            for url in ("redis://h/0", "rediss://h/0", "rediss://h/0?ssl_cert_reqs=CERT_NONE")
        ),
        (None, {"result_backend": "rediss://h/0"}, "redis_backend_use_ssl"),
        ("rediss://h/0", {}, "redis_backend_use_ssl"),
    ],
)
def test_each_place_has_its_own_tls_settings(url: str | None, settings: dict[str, str], setting: str) -> None:
    """A broker with ``broker_use_ssl`` and nothing about TLS in its URL is a common way to write it."""
    asked = ssl.CERT_NONE if setting == "broker_use_ssl" else ssl.CERT_REQUIRED
    given = {"ssl_cert_reqs": asked, "ssl_ca_certs": "/etc/ca.pem"}
    found = connections(url, **settings, **{setting: given})
    assert issubclass(found._pool.connection_class, redis.SSLConnection)
    assert found._kwargs["ssl_ca_certs"] == "/etc/ca.pem"
    assert found._kwargs["ssl_cert_reqs"] == asked


def test_what_is_meant_for_the_result_backend_does_not_reach_the_broker() -> None:
    """Two servers: TLS and passwords of the one are not the other's."""
    found = connections(
        broker_url="redis://h/0",
        result_backend="rediss://other/0",
        redis_backend_use_ssl={"ssl_cert_reqs": ssl.CERT_NONE},
        redis_username="bob",
        redis_password="secret",  # noqa: S106  the test's own
        result_backend_transport_options={"global_keyprefix": "results:"},
    )
    assert not issubclass(found._pool.connection_class, redis.SSLConnection)
    assert (found._kwargs.get("username"), found._kwargs.get("password")) == (None, None)


@pytest.mark.skipif(celery.VERSION < (5, 6), reason="this Celery knows no credential providers")
def test_credentials_can_come_from_a_provider() -> None:
    found = connections(f"redis://h/0?credential_provider={__name__}.Vault")
    assert isinstance(found._kwargs["credential_provider"], Vault)
    with pytest.raises(LockOptionError, match="cannot be read"):
        connections("redis://h/0?credential_provider=nowhere.Vault")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("broker_url", "sentinel://:pw@a:26379/2;sentinel://:pw@b:26380/2"),
        ("broker_url", ["sentinel://:pw@a:26379/2", "sentinel://:pw@b:26380/2"]),
        ("result_backend", "sentinel://:pw@a:26379/2;sentinel://:pw@b:26380/2"),
    ],
)
def test_sentinels_are_asked_for_the_primary_by_name(setting: str, value: Any) -> None:
    """Also where they are a list: they are one broker."""
    options = f"{setting.removesuffix('_url')}_transport_options"
    named = {"master_name": "mymaster", "sentinel_kwargs": {"password": "s"}}
    found = connections(**{setting: value, options: named})
    assert found._pool.service_name == "mymaster"
    assert (found._kwargs["db"], found._kwargs["password"]) == (2, "pw")
    sentinels = [one.connection_pool.connection_kwargs for one in found._pool.sentinel_manager.sentinels]
    places = [(one["host"], one["port"], one["password"]) for one in sentinels]
    assert places == [("a", 26379, "s"), ("b", 26380, "s")]
    assert found.server == "sentinel service 'mymaster', db 2"


@pytest.mark.parametrize("options", [{}, {"master_name": ""}, {"master_name": None}])
@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"broker_url": "sentinel://:hunter2@a:26379/2?master_name=m"}, "broker_transport_options"),
        ({"broker_url": ["sentinel://:hunter2@a:26379", "sentinel://b"]}, "broker_transport_options"),
        ({"result_backend": "sentinel://:hunter2@a:26379"}, "result_backend_transport_options"),
        (
            {"url": "sentinel://:hunter2@a:26379", "broker_transport_options": {"master_name": "elsewhere"}},
            "result_backend_transport_options",
        ),
    ],
)
def test_sentinels_without_a_primary_are_refused(settings: Any, setting: str, options: Any) -> None:
    """Else each lock fails as if a server on localhost were away, which nobody named."""
    with pytest.raises(LockOptionError) as refusal:
        connections(**{setting: options, **settings})
    assert f"set {setting} = {{'master_name': …}}" in str(refusal.value)
    assert "sentinel://" in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_locks_have_their_own_patience() -> None:
    """Celery's 120 s for results would freeze a publish."""
    app = app_with(broker_url="redis://h/0", redis_socket_timeout=120, redis_retry_on_timeout=True)
    found = store_of(app, LockSettings(socket_timeout=0.25))._scripts._connections  # type: ignore[attr-defined]
    assert (found._kwargs["socket_timeout"], found._kwargs["socket_connect_timeout"]) == (0.25, 0.25)
    assert (found._kwargs["retry_on_timeout"], found._kwargs["retry"]._retries) == (False, 0)


# --- which server ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({"url": "redis://own/0", "broker_url": "redis://broker/0", "result_backend": "redis://b/0"}, "own"),
        ({"broker_url": "redis://broker/0", "result_backend": "redis://backend/0"}, "broker"),
        ({"broker_write_url": "redis://write/0", "broker_read_url": "redis://read/0"}, "write"),
        ({"broker_url": "amqp://h//", "result_backend": "redis://backend/0"}, "backend"),
        ({"broker_url": ["redis://first/0", "redis://second/0"]}, "first"),
        ({"broker_url": "redis://first/0;redis://second/0"}, "first"),
    ],
)
def test_the_brokers_redis_comes_before_the_result_backends(settings: dict[str, Any], host: str) -> None:
    """The broker must be reachable to publish anyway: that adds no new way to fail."""
    assert reached(**settings)["host"] == host


@pytest.mark.parametrize(
    ("settings", "prefix"),
    [
        ({"url": "redis://h/0", "result_backend_transport_options": {}}, "redislock"),
        ({"broker_url": "redis://h/0"}, "a:redislock"),
        ({"result_backend": "redis://h/0"}, "b:redislock"),
        ({"broker_url": "redis://h/0", "broker_transport_options": {}}, "redislock"),
    ],
)
def test_the_key_prefix_of_the_servers_place_is_put_in_front(settings: dict[str, Any], prefix: str) -> None:
    of_broker, of_backend = {"global_keyprefix": "a:"}, {"global_keyprefix": "b:"}
    given = {"broker_transport_options": of_broker, "result_backend_transport_options": of_backend}
    assert _store(**{**given, **settings})._index == f"{prefix}:index"


# --- what cannot be used ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "http://h/0"}, "scheme 'http' cannot be used; use one of redis://, "),
        ({"url": "redis+cluster://h/1"}, r"redislock_url: .* a Cluster has one database, 0; leave it out"),
        (
            {"broker_url": "amqp://bob:hunter2@h//"},
            r"neither the broker \(amqp\) nor the result backend \(none\)",
        ),
        (
            {"broker_url": "amqp://h//", "result_backend": "db+sqlite:///x"},
            r"nor the result backend \(db\+sqlite\).*set redislock_url = 'redis://host:port/db'",
        ),
        ({"url": "redis://:hunter2@h:port/0"}, "cannot be read"),
        ({"url": "unix:///s?db=x"}, "is not a URL"),
        ({"url": "redis://h/0?socket_timeot=1"}, "the option 'socket_timeot', which redis-py does not know"),
        ({"broker_url": "redis://h/0?socket_timeot=1"}, "'socket_timeot', which redis-py does not know"),
    ],
)
def test_an_unusable_place_is_told_with_a_remedy(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(LockOptionError, match=said):
        reached(**settings)


@pytest.mark.parametrize("named", [redis.Redis(host="own", password="x"), lambda: redis.Redis(host="own")])  # noqa: S106
def test_the_lock_server_can_be_a_client(named: Any) -> None:
    """Its keys are those of a URL in its place."""
    options = {"result_backend_transport_options": {"global_keyprefix": "b:"}}
    app = app_with(redislock_url=named, redislock_min_replicas=2, **options)
    settings = settings_of(app)
    store: Any = store_of(app, settings)
    assert store.min_replicas == 2
    assert store.server == "redis://own:6379/0 (options of a redis.client.Redis)"
    assert store.prefix == "b:redislock"
    assert store_of(app, settings_of(app)) is store
    assert "Redis" not in repr(settings)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (6379, "redislock_url is of type int; give a URL such as .*, a `redis.Redis`, or a callable"),
        (redis.asyncio.Redis(), "redislock_url: a redis.asyncio.client.Redis cannot be used: its calls must"),
        (fakeredis.FakeAsyncRedis, "its calls must be awaited"),
    ],
)
def test_what_is_no_client_of_ours_is_refused_with_a_remedy(named: Any, said: str) -> None:
    app = app_with(redislock_url=named)
    with pytest.raises(LockOptionError, match=said):
        store_of(app, settings_of(app))


def test_sentinels_together_are_given_as_long_as_the_lock_server() -> None:
    """Law 9: one that does not answer would be waited for for ever (redis 5), or for a minute (8)."""
    options = {"master_name": "mine", "sentinel_kwargs": {"socket_timeout": 7.0}}
    app = app_with(broker_url="sentinel://h:26379;sentinel://i:26379", broker_transport_options=options)

    found = store_of(app, LockSettings(socket_timeout=0.4))._scripts._connections._pool  # type: ignore[attr-defined]

    assert len(found.sentinel_manager.sentinels) == 2
    for sentinel in found.sentinel_manager.sentinels:
        kwargs = sentinel.connection_pool.connection_kwargs
        assert (kwargs["socket_timeout"], kwargs["socket_connect_timeout"]) == (7.0, 0.2)
        assert kwargs["retry"]._retries == 0

    # A URL may name their primary, as connect reads it.
    named = connections("sentinel://:pw@a:26379;sentinel://b/2?master_name=mine")
    assert named.server == "sentinel service 'mine', db 2"
    sentinels = named.take().connection_pool.sentinel_manager.sentinels
    assert [each.connection_pool.connection_kwargs["socket_timeout"] for each in sentinels] == [0.5, 0.5]


def test_a_server_that_is_being_moved_cannot_make_us_wait_longer() -> None:
    """Law 9: redis 8 would wait ten seconds where the server asks for it, and asks it to say so."""
    found = connections("redis://h/0")
    assert [name for name in found._kwargs if name.startswith(("maint", "orig_", "oss_"))] == []
    assert getattr(found.take(), "_maint_notifications_connection_handler", None) is None


@pytest.mark.parametrize("setting", ["broker_url", "broker_write_url", "result_backend", "redislock_url"])
@pytest.mark.parametrize("url", ["redis://h/nonsense", "sentinel://h:26379/0"])
def test_what_cannot_be_read_is_told_of_the_setting_it_was_found_in(setting: str, url: str) -> None:
    given = {"broker_url": "amqp://h//", setting: url}
    with pytest.raises(LockOptionError) as raised:
        reached(**given)
    assert raised.value.where == setting


@pytest.mark.parametrize(
    "password", ["hunter2", "a/hunter2", "a@hunter2", "a?hunter2", "a#hunter2", "a:hunter2"]
)
@pytest.mark.parametrize(
    "template",
    [
        "redis://:{}@h:port/0",
        "redis://bob:{}@h/nonsense",
        "http://bob:{}@h/0",
        "redis+cluster://:{}@h/9",
        "unix:///s?db=x&password={}",
        "rediss://:{}@h/0?ssl_cert_reqs=nonsense",
        "sentinel://:{}@h:port;sentinel://:{}@h:port",
        "redis://h/0?bogus=1&password={}",
    ],
)
def test_no_error_shows_a_password(template: str, password: str) -> None:
    with pytest.raises(LockOptionError) as refusal:
        reached(template.format(password, password))
    assert "hunter2" not in str(refusal.value) + repr(refusal.value)
    assert refusal.value.__cause__ is None


# --- one store per app -----------------------------------------------------------------------


def test_an_app_has_one_store_until_its_settings_change() -> None:
    app, first = app_with(broker_url="redis://h/0"), LockSettings()
    store = store_of(app, first)
    assert store_of(app, LockSettings()) is store
    assert store_of(app, LockSettings(prefix="other")) is not store
    assert store_of(app_with(broker_url="redis://h/0"), first) is not store


def test_a_store_can_be_put_in_its_place_and_taken_out_again() -> None:
    """An app that is gone keeps none."""
    app, mine, other = app_with(), MemoryStore(), MemoryStore()

    assert use_store(app, mine) is None
    assert store_of(app, LockSettings()) is store_of(app, LockSettings(prefix="x")) is mine
    assert use_store(app, other) is mine
    assert use_store(app, None) is other

    with pytest.raises(LockOptionError):
        store_of(app, LockSettings())
    use_store(app, mine)
    there = weakref.ref(mine)
    del app, mine
    gc.collect()
    assert there() is None


def test_threads_that_ask_at_once_are_given_one_store() -> None:
    """With two, each with a watchdog of its own, neither would know what the other owes."""
    app = app_with(broker_url="redis://h/0")
    barrier = threading.Barrier(8)

    def ask(_: int) -> Any:
        barrier.wait()
        return store_of(app, LockSettings())

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))

    assert len(set(map(id, found))) == 1


# --- unknown settings ------------------------------------------------------------------------


def test_an_unknown_setting_is_logged_with_the_apps_first_lock_and_only_then(caplog: Any) -> None:
    """A program that only publishes has no start at which it could be logged; unless nothing is checked."""
    store_of(app_with(redislock_tll=5, redislock_check="ignore"), LockSettings(url="redis://h/0"))
    for name in ("redislock_enabld", "redislock_preifx"):
        app = app_with(**{name: 1})
        for url in ("redis://h/0", "redis://other/0"):
            store_of(app, LockSettings(url=url))
    assert caplog.messages == [
        "redislock: redislock_enabld is no setting; did you mean redislock_enabled?",
        "redislock: redislock_preifx is no setting; did you mean redislock_prefix?",
    ]


@pytest.mark.parametrize("namespace", [None, "CELERY"])
def test_settings_of_another_library_are_told_once(caplog: Any, monkeypatch: Any, namespace: Any) -> None:
    """They would be believed to count; an app's own settings, and a dictionary of that name, are its own."""
    for name in ("celery_once", "celery_singleton"):  # another test may have imported it
        monkeypatch.delitem(sys.modules, f"celery_redislock.compat.{name}", raising=False)
    names = ["ONCE", "SINGLETON_BACKEND_URL"] if namespace else ["ONCE", "singleton_backend_url"]
    app = app_with()
    settings = {f"{namespace}_{name}" if namespace else name: {} for name in names}
    app.config_from_object({**settings, "my_once": 1}, namespace=namespace)
    for url in ("redis://h/0", "redis://other/0"):
        store_of(app, LockSettings(url=url))
    once, singleton = sorted(caplog.messages)
    assert "ONCE is a setting of celery-once, which nothing reads here; write redislock_url" in once
    assert "is a setting of celery-singleton" in singleton
