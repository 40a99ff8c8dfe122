"""Taking a lock away: from a program that is not ours, and over a network that loses the answer."""

from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from celery_redislock.cli import main
from celery_redislock.locks import connect
from celery_redislock.locks.redisstore import RedisStore
from celery_redislock.publishing.handle import LockHandle
from tests.faults import Fault, FaultyProxy


class TestLostReply:
    """Law 3: what an operator took away is told and logged, also where the server's word for it got lost."""

    @pytest.fixture
    def lossy(self, proxy: FaultyProxy, prefix: str) -> Iterator[RedisStore]:
        """A store with a queued claim on ``night``; the next forced release is done, its answer lost."""
        with closing(connect(proxy.url, prefix=prefix, socket_timeout=2.0)) as store:
            store.acquire("night", "t1/m", 60.0, facts='{"state": "queued"}')
            store.force_release("another")  # so that the server knows the script
            proxy.fail(Fault.REPLY_LOST, of="force_release")
            yield store

    def test_the_handle_names_whom_it_was_taken_from(
        self, lossy: RedisStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        victim = LockHandle(SimpleNamespace(name="shop.sync"), lossy, "night").release(reason="purged")

        assert victim is not None
        assert victim.owner == "t1"
        assert caplog.messages == ["released 'night' by force from 't1' (queued): 'purged'"]
        assert lossy.inspect("night") is None

    def test_the_command_line_says_that_it_was_released(
        self, lossy: RedisStore, proxy: FaultyProxy, prefix: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        place = ["--url", proxy.url, "--prefix", prefix]

        done = CliRunner().invoke(main, [*place, "release", "night", "--reason", "purged", "--yes"])

        assert done.output.startswith("released night: taken from t1 ")
        assert done.exit_code == 0
        assert caplog.messages == ["released 'night' by force from 't1' (queued): 'purged'"]
        assert lossy.inspect("night") is None
