"""How many replicas must confirm an acquire: what is refused before anything is sent."""

from typing import Any

import fakeredis
import pytest
import redis.asyncio

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks import aio, connect


@pytest.mark.parametrize("make", [connect, aio.connect], ids=["threads", "asyncio"])
@pytest.mark.parametrize("wrong", [-1, 10**30, True, "1", "auto"], ids=repr)
def test_what_is_no_number_of_replicas_is_refused(make: Any, wrong: Any) -> None:
    with pytest.raises(LockOptionError, match=r"min_replicas=.* is no whole number \(0 … 100\)"):
        make("redis://127.0.0.1:1/0", min_replicas=wrong)


def test_a_store_is_not_made_that_could_not_wait_on_the_connection_of_its_script() -> None:
    """On another one it would be confirmed what nobody has."""
    for make, client in ((connect, fakeredis.FakeRedis()), (aio.connect, redis.asyncio.Redis())):
        with pytest.raises(LockOptionError, match=r"min_replicas .* does not offer; .* give a URL"):
            make(client, min_replicas=1)  # type: ignore[operator]
