"""Task classes of the users' own: whatever they override, and however, the lock is not stepped around."""

from typing import Any, ClassVar

import pytest

from celery_redislock import SingletonTask
from tests.unit.shop import KEY, Shop, body


class Seen(SingletonTask):
    """Writes down the calls of its methods, and what the lock's state is then."""

    seen: ClassVar[list[Any]] = []


class Mixin:
    def __call__(self, account_id: int) -> int:
        Seen.seen.append("mixin")
        return body(account_id)


class CallOfAMixin(Mixin, Seen):
    """Its call never reaches ours."""


class Counting(Seen):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append("call")
        return super().__call__(*args, **kwargs)


class CountingTwice(Counting):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append("outer")
        return super().__call__(*args, **kwargs)


@pytest.mark.parametrize(
    ("base", "calls", "way"),
    [
        *((Counting, ["call"], way) for way in ("direct", "direct, eager", "worker")),
        *((CountingTwice, ["outer", "call"], way) for way in ("direct", "direct, eager", "worker")),
        (CallOfAMixin, ["mixin"], "worker"),
    ],
)
def test_a_call_of_a_classs_own_runs_once(shop: Shop, base: type[Seen], calls: list[str], way: str) -> None:
    """Called directly with ``redislock_eager``, the tracer calls it: it must not have been called already."""
    Seen.seen.clear()
    shop.app.conf.redislock_eager = way == "direct, eager"
    task = shop.unique(body, base=base, lock_key=KEY)

    if way == "worker":
        task.delay(7)
        assert shop.run() == 7
    else:
        assert task(7) == 7

    assert Seen.seen == calls
    assert shop.held() == {}
    asked = {
        "direct": [],
        "direct, eager": ["acquire", "release"],
        "worker": ["acquire", "acquire", "release"],
    }
    assert shop.store.calls == asked[way]
