"""How many replicas must confirm an acquire: what is refused before anything is sent."""

from typing import Any

import pytest

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks import aio, connect


@pytest.mark.parametrize("make", [connect, aio.connect], ids=["threads", "asyncio"])
@pytest.mark.parametrize("wrong", [-1, 10**30, True, "1", "auto"], ids=repr)
def test_what_is_no_number_of_replicas_is_refused(make: Any, wrong: Any) -> None:
    with pytest.raises(LockOptionError, match=r"min_replicas=.* is no whole number \(0 … 100\)"):
        make("redis://127.0.0.1:1/0", min_replicas=wrong)
