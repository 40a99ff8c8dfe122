"""Where a claim can go with its message: the lock server is the broker, and kombu is as it is known."""

import pytest
from kombu import Connection, Producer
from kombu.transport.redis import Channel

from celery_redislock.locks import connect
from celery_redislock.publishing.kombu import _is_kombus, leads_to

URL = "redis://user:secret@127.0.0.1:6399/3"


@pytest.mark.parametrize(
    ("broker", "locks", "leads"),
    [
        ("redis://", "redis://localhost:6379/0", True),
        ("redis://127.0.0.1", "redis://default@localhost", True),
        ("rediss://localhost/1", "rediss://localhost/1", True),
        ("redis+socket:///tmp/s?virtual_host=2", "unix:///tmp/s?db=2", True),
        (URL, URL.replace("6399", "6379"), False),
        (URL, URL.replace("/3", "/4"), False),
        (URL, URL.replace("user", "another"), False),
        (URL, URL.replace("secret", "another"), False),
        (URL, URL.replace("127.0.0.1", "127.0.0.2"), False),
        (URL, URL.replace("redis:", "rediss:"), False),
        ("redis+socket:///tmp/s", "unix:///tmp/another", False),
        (f"{URL};redis://127.0.0.2", URL, False),
        ("sentinel://127.0.0.1:26379", "redis://127.0.0.1:26379", False),
        ("memory://", URL, False),
        ("amqp://", URL, False),
    ],
)
def test_the_lock_server_is_the_broker(broker: str, locks: str, *, leads: bool) -> None:
    """The same database as the same user; of several servers none, as kombu moves between them."""
    assert leads_to(Connection(broker), connect(locks)) is leads


@pytest.mark.parametrize("name", ["_put", "_connparams"])
def test_another_kombu_is_not_used_so(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It is looked at before anything is sent. CI runs this with the lowest versions and the newest."""
    assert _is_kombus(Producer)
    assert leads_to(Connection(URL), connect(URL))
    monkeypatch.delattr(Channel, name)
    assert not leads_to(Connection(URL), connect(URL))
    assert not _is_kombus(object)
    assert not _is_kombus(type("Producer", (), {"_publish": Producer.publish}))
