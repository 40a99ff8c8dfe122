"""What a server keeps of operators' acts: in order, bounded, for thirty days."""

import json
import time
from typing import Any

import pytest

from celery_redislock.exceptions import LockKeyError
from celery_redislock.store.redisstore import MOST_ACTS
from tests.stores import RedisCase

#: The time that an act is kept, in ms.
A_MONTH = 30 * 86400 * 1000


def note(case: RedisCase, *numbers: int) -> None:
    """Note acts that differ by their numbers."""
    for number in numbers:
        assert case.store.acts(json.dumps({"act": "release", "key": f"{number}"})) == []


def keys(case: RedisCase) -> list[str]:
    """The keys of the acts that are kept, in order."""
    return [act["key"] for act in case.store.acts()]


def test_acts_are_kept_in_order_for_thirty_days_from_the_last(plain_case: RedisCase) -> None:
    note(plain_case, 1, 2)
    time.sleep(0.002)  # of one millisecond they would be in no order
    note(plain_case, 3)
    assert sorted(keys(plain_case)[:2]) + keys(plain_case)[2:] == ["1", "2", "3"]
    assert A_MONTH - 60_000 < plain_case.client.pttl(f"{plain_case.prefix}:acts") <= A_MONTH


def test_the_last_thousand_are_kept(plain_case: RedisCase) -> None:
    """The key is one sorted set: it must not grow with what operators do."""
    acts: dict[str, Any] = {json.dumps({"key": f"{number}"}): number for number in range(MOST_ACTS)}
    now = int(time.time() * 1000)
    plain_case.client.zadd(f"{plain_case.prefix}:acts", {act: now - 5000 + at for act, at in acts.items()})
    note(plain_case, 1000, 1001)
    assert sorted(map(int, keys(plain_case))) == [*range(2, 1002)]


def test_what_is_older_than_thirty_days_is_not_shown_and_goes_with_the_next_act(
    plain_case: RedisCase,
) -> None:
    """It names people."""
    acts = f"{plain_case.prefix}:acts"
    note(plain_case, 1, 2)
    old = json.dumps({"act": "release", "key": "1"})
    plain_case.client.zincrby(acts, -A_MONTH, old)
    assert keys(plain_case) == ["2"]
    assert plain_case.client.zcard(acts) == 2
    note(plain_case, 3)
    assert plain_case.client.zscore(acts, old) is None
    assert sorted(keys(plain_case)) == ["2", "3"]


def test_another_programs_key_is_told(plain_case: RedisCase) -> None:
    plain_case.foreign = (f"{plain_case.prefix}:acts",)
    plain_case.client.set(*plain_case.foreign, "text")
    with pytest.raises(LockKeyError, match="WRONGTYPE"):
        note(plain_case, 1)
