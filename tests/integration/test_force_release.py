"""Taking a lock away from a program that is not ours."""

from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from celery_redislock.locks import LockStore, MemoryStore, RedisStore, connect
from celery_redislock.locks.store import Grant


@pytest.fixture
def foreign(redis_url: str, prefix: str) -> Iterator[tuple[RedisStore, redis.Redis, str]]:
    """A store, a plain client, and the key another program would use for the lock ``night``."""
    with closing(redis.Redis.from_url(redis_url)) as client:
        key = f"{prefix}:{{night}}:lock"
        store = connect(redis_url, prefix=prefix)
        yield store, client, key
        client.delete(key)
        store.close()


class TestForceRelease:
    def test_a_foreign_lock_is_released_from_the_holder_that_was_seen(
        self, foreign: tuple[RedisStore, redis.Redis, str]
    ) -> None:
        """Its value has no NUL: all of it is the token, and compared as such."""
        store, client, key = foreign
        client.set(key, "somebody", px=60_000)
        seen = store.inspect("night")
        assert seen is not None

        release = store.force_release("night", expected=seen.token)

        assert release.released
        assert client.get(key) is None

    def test_a_foreign_lock_with_another_value_stays(
        self, foreign: tuple[RedisStore, redis.Redis, str]
    ) -> None:
        store, client, key = foreign
        client.set(key, "somebody else", px=60_000)

        release = store.force_release("night", expected="somebody")

        assert not release.released
        assert release.held_by is not None
        assert release.held_by.owner == "somebody else"
        assert client.get(key) == b"somebody else"

    @pytest.mark.parametrize("kind", ["redis", "memory"])
    def test_a_token_that_only_begins_alike_is_another_one(
        self, kind: str, foreign: tuple[RedisStore, redis.Redis, str]
    ) -> None:
        store: LockStore = foreign[0] if kind == "redis" else MemoryStore()
        assert isinstance(store.acquire("night", "id/nonce2", 60.0, about={}), Grant)

        release = store.force_release("night", expected="id/nonce")

        assert not release.released
        assert store.force_release("night", expected="id/nonce2").released
