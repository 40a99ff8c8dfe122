"""Task classes of the users' own: whatever they override, and however, the lock is not stepped around."""

from typing import Any, ClassVar

import pytest

from celery_redislock import SingletonTask
from tests.unit.shop import Shop

KEY = "account:7"


def body(account_id: int) -> int:
    return account_id


class Seen(SingletonTask):
    """Writes down what its methods are given."""

    seen: ClassVar[list[Any]] = []


class StaticStart(Seen):
    @staticmethod
    def before_start(task_id: str, args: Any, kwargs: Any) -> None:
        Seen.seen.append((task_id, *args, *kwargs.values()))


class ClassStart(Seen):
    @classmethod
    def before_start(cls, task_id: str, args: Any, kwargs: Any) -> None:
        cls.seen.append((task_id, *args, *kwargs.values()))


class StaticCall(Seen):
    @staticmethod
    def __call__(account_id: int) -> int:
        Seen.seen.append(("t1", account_id))
        return body(account_id)


class ClassCall(Seen):
    @classmethod
    def __call__(cls, account_id: int) -> int:
        cls.seen.append(("t1", account_id))
        return body(account_id)


class Mixin:
    @staticmethod
    def before_start(task_id: str, args: Any, kwargs: Any) -> None:
        Seen.seen.append((task_id, *args, *kwargs.values()))


class StaticStartOfAMixin(Mixin, Seen):
    pass


@pytest.mark.parametrize("base", [StaticStart, ClassStart, StaticCall, ClassCall, StaticStartOfAMixin])
def test_what_needs_no_task_may_be_written_without_one(shop: Shop, base: type[Seen]) -> None:
    """It is called as Celery calls it, and the run takes and gives back its lock."""
    Seen.seen.clear()
    shop.unique(body, base=base, lock_key=KEY).apply_async((7,), task_id="t1")
    claimed = list(shop.held())

    result = shop.run()

    assert (result, Seen.seen) == (7, [("t1", 7)])
    assert (claimed, shop.held()) == ([KEY], {})


class Counting(Seen):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append("call")
        return super().__call__(*args, **kwargs)


class CountingTwice(Counting):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append("outer")
        return super().__call__(*args, **kwargs)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(("base", "calls"), [(Counting, ["call"]), (CountingTwice, ["outer", "call"])])
def test_a_call_of_a_classs_own_runs_once_when_it_is_called_directly(
    shop: Shop, base: type[Seen], calls: list[str], *, eager: bool
) -> None:
    """With ``redislock_eager`` the tracer calls it: it must not have been called already."""
    Seen.seen.clear()
    shop.app.conf.redislock_eager = eager
    task = shop.unique(body, base=base, lock_key=KEY)

    assert task(7) == 7

    assert Seen.seen == calls
    assert shop.held() == {}
    assert ("acquire" in shop.store.calls) is eager
