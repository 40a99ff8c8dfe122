"""What type checkers are told of options is what the table says of them."""

from celery_redislock import SingletonTask
from celery_redislock.declaring import types
from celery_redislock.declaring.scopes import SCOPES, STRATEGIES
from celery_redislock.declaring.table import TASK_ROWS


def test_an_option_is_known_to_checkers_as_it_is_to_the_table() -> None:
    assert set(types.TaskOptions.__annotations__) == set(TASK_ROWS)
    assert set(TASK_ROWS) - set(types.CallOptions.__annotations__) == {"lock_describe", "lock_skip_result"}
    assert set(SingletonTask.__annotations__) >= set(TASK_ROWS)


def test_checkers_know_each_scope_and_strategy() -> None:
    assert types.ScopeName.__args__ == tuple(SCOPES)  # type: ignore[attr-defined]  # a Literal's values
    assert types.Strategy.__args__ == tuple(STRATEGIES)  # type: ignore[attr-defined]  # same
