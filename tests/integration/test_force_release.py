"""Taking a lock away over a network that loses the answer."""

from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from celery_redislock.cli import main
from celery_redislock.locks import connect
from celery_redislock.publishing.handle import LockHandle
from celery_redislock.store.redisstore import RedisStore
from tests.faults import Fault, FaultyProxy


def by_handle(store: RedisStore, _url: str, _prefix: str) -> None:
    victim = LockHandle(SimpleNamespace(name="shop.sync"), store, "night").release(reason="purged")
    assert victim is not None
    assert victim.owner == "t1"


def by_command(_store: RedisStore, url: str, prefix: str) -> None:
    command = ["--url", url, "--prefix", prefix, "release", "night", "--reason", "purged", "--yes"]
    done = CliRunner().invoke(main, command)
    assert done.output.startswith("released night: taken from t1 ")
    assert done.exit_code == 0


@pytest.mark.parametrize("take_away", [by_handle, by_command])
def test_what_an_operator_took_away_is_told_and_logged_although_the_reply_was_lost(
    proxy: FaultyProxy, prefix: str, caplog: pytest.LogCaptureFixture, take_away: Callable[..., None]
) -> None:
    """Law 3: it is done, and the server's word for it was all that got lost."""
    with closing(connect(proxy.url, prefix=prefix, socket_timeout=2.0)) as store:
        store.acquire("night", "t1/m", 60.0, facts='{"state": "queued"}')
        store.force_release("another")  # so that the server knows the script
        proxy.fail(Fault.REPLY_LOST, of="force_release")
        take_away(store, proxy.url, prefix)
        assert caplog.messages == ["released 'night' by force from 't1' (queued): 'purged'"]
        assert store.inspect("night") is None
