"""What a task declares: resolved when bound, and again whenever something changes."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery_redislock.declaration import declaration_of

from celery_redislock import LockOptionError, SingletonTask, declaration
from celery_redislock.request import LockRequest
from tests.forks import gets_through, held_elsewhere
from tests.unit.shop import Shop


def body(account_id: int = 7, amount: int = 0) -> int:
    return account_id + amount


def key_of(task: Any, *args: Any, **kwargs: Any) -> str:
    return str(task.lock_for(*args, **kwargs).key)


def problems(shop: Shop, **options: Any) -> list[str]:
    with pytest.raises(LockOptionError) as refusal:
        shop.unique(body, **options)
    assert refusal.value.where == "shop.sync"
    return refusal.value.problems


# --- what changes later ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value", "option"),
    [
        ("redislock_ttl", 60.0, "lock_ttl"),
        ("redislock_queue_ttl", 60.0, "lock_queue_ttl"),
        ("redislock_lock", "while_executing", "lock"),
        ("redislock_on_lock_error", "run", "on_lock_error"),
    ],
)
def test_a_setting_changed_after_the_task_was_bound_counts(
    shop: Shop, setting: str, value: Any, option: str
) -> None:
    task = shop.unique(body)
    before = getattr(declaration_of(task).options, option)

    shop.app.conf[setting] = value

    assert getattr(declaration_of(task).options, option) == value != before


def test_what_a_decorator_returns_is_resolved_as_the_task_it_stands_for(shop: Shop) -> None:
    """Its options were read from the proxy, which has none, and remembered for the task."""
    lazy = shop.unique(body, lazy=True, lock_key="account:{account_id}", lock_ttl=7)

    assert declaration_of(lazy).work((42,), {}, "t1").key == "account:42"
    assert declaration_of(lazy) is declaration_of(lazy._get_current_object())
    assert key_of(lazy, 42) == "account:42"


def test_an_attribute_changed_on_the_task_counts(shop: Shop) -> None:
    task = shop.unique(body)
    before = key_of(task, 7)

    task.lock_ttl = 60
    task.lock_key = "account:{account_id}"

    assert declaration_of(task).options.lock_ttl == 60.0
    assert (before != key_of(task, 7), key_of(task, 7)) == (True, "account:7")


def test_the_switch_in_the_environment_counts_at_once(shop: Shop, monkeypatch: Any) -> None:
    task = shop.unique(body)
    assert declaration_of(task).settings.enabled

    monkeypatch.setenv("REDISLOCK_ENABLED", "0")

    assert not declaration_of(task).settings.enabled


def test_what_did_not_change_is_not_resolved_again(shop: Shop) -> None:
    task = shop.unique(body)

    assert declaration_of(task) is declaration_of(task)


def test_a_change_for_the_worse_is_told_at_the_next_publish(shop: Shop) -> None:
    """Nothing is used unchecked."""
    task = shop.unique(body)
    task.delay(7)
    shop.messages()

    shop.app.conf.redislock_ttl = -1

    with pytest.raises(LockOptionError, match="redislock_ttl is -1"):
        task.delay(8)
    assert shop.messages() == []


def test_a_task_whose_bind_failed_raises_again_at_publish_and_at_start(shop: Shop) -> None:
    """Celery keeps it, usable and unchecked."""
    task = shop.app.task(name="shop.lazy", base=SingletonTask, shared=False, lock_ttl="x")(body)
    with pytest.raises(LockOptionError):
        shop.app.finalize()
    bound = shop.app.tasks.get("shop.lazy") or task

    for _ in range(2):
        with pytest.raises(LockOptionError, match="lock_ttl is 'x'"):
            bound.delay(7)
    with shop.running(bound), pytest.raises(LockOptionError, match="lock_ttl is 'x'"):
        bound(7)
    assert shop.messages() == []


def test_many_threads_may_ask_at_once(shop: Shop) -> None:
    task = shop.unique(body)
    task.__dict__.pop("_redislock_declaration", None)
    barrier, found = threading.Barrier(8), []

    def ask() -> None:
        barrier.wait()
        found.append(declaration_of(task).options)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert len(set(map(id, found))) <= 8
    assert all(options == found[0] for options in found)


# --- callables -------------------------------------------------------------------------------


def plain_key(arguments: Any) -> str:
    return f"plain-{arguments['account_id']}"


def plain_strategy(_conflict: Any) -> str:
    return "skip"


def plain_lost(_lease: Any) -> None: ...


class Plain(SingletonTask):
    abstract = True
    lock_key = plain_key
    on_conflict = plain_strategy
    on_lock_lost = plain_lost


class Static(SingletonTask):
    abstract = True
    lock_key = staticmethod(plain_key)
    on_conflict = staticmethod(plain_strategy)
    on_lock_lost = staticmethod(plain_lost)


class Lambda(SingletonTask):
    abstract = True
    lock_key = lambda arguments: f"plain-{arguments['account_id']}"  # noqa: E731
    on_conflict = lambda _conflict: "skip"  # noqa: E731
    on_lock_lost = lambda _lease: None  # noqa: E731


@pytest.mark.parametrize("way", [Plain, Static, Lambda, None])
@pytest.mark.parametrize("bind", [True, False])
def test_callables_never_become_methods(shop: Shop, way: Any, *, bind: bool) -> None:
    """Called with the task as first argument, a plain ``lambda bound: …`` breaks."""

    def with_self(_self: Any, account_id: int = 7) -> int:
        return account_id

    given = {"base": way} if way else {
        "lock_key": plain_key, "on_conflict": plain_strategy, "on_lock_lost": plain_lost,
    }  # fmt: skip
    task = shop.unique(with_self if bind else body, bind=bind, **given)

    options = declaration_of(task).options
    client: Any = options.client
    assert key_of(task, 7) == "plain-7"
    assert not hasattr(client, "__self__")
    assert client(None) == "skip"
    assert callable(options.on_lock_lost)
    assert not hasattr(options.on_lock_lost, "__self__")
    task.delay(7)
    assert task.delay(7).is_duplicate


def test_annotations_of_the_app_declare_locks_too() -> None:
    """``task_annotations``: options for a task one cannot edit."""
    shop = Shop(task_annotations={"shop.sync": {"lock_ttl": 77, "lock_key": plain_key}})

    task = shop.unique(body)

    assert declaration_of(task).options.lock_ttl == 77.0
    assert key_of(task, 7) == "plain-7"


# --- what is refused -------------------------------------------------------------------------


def test_all_problems_are_told_at_once(shop: Shop) -> None:
    shop.app.conf.redislock_fence = "sometimes"

    found = problems(
        shop, lock="until_excuted", lock_ttl=-1, lock_key=("acount_id",), lock_tll=5, on_conflict="skp"
    )

    text = " | ".join(found)
    assert len(found) == 6
    for said in (
        "lock is 'until_excuted', which is unknown; did you mean 'until_executed'?",
        "lock_ttl is -1; give seconds",
        "'acount_id', which the task does not have; did you mean 'account_id'?",
        "lock_tll is no option; did you mean lock_ttl?",
        "on_conflict is 'skp', which is unknown; did you mean 'skip'?",
        "redislock_fence is 'sometimes'; give 'time' or 'strict'",
    ):
        assert said in text


def test_somebody_elses_lock_attribute_is_no_scope(shop: Shop) -> None:
    (problem,) = problems(shop, lock=threading.Lock())

    assert "which is no scope" in problem
    assert "an attribute of your own with this name must be renamed" in problem


def test_a_misspelt_attribute_of_a_class_is_told(shop: Shop) -> None:
    class Misspelt(SingletonTask):
        abstract = True
        on_lock_eror = "run"

    (problem,) = problems(shop, base=Misspelt)

    assert problem == "on_lock_eror is no option; did you mean on_lock_error?"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("onconflict", "on_conflict"), ("lockttl", "lock_ttl"), ("redislock_ttl", "lock_ttl")],
)
def test_a_slip_in_an_options_name_is_told(shop: Shop, wrong: str, right: str) -> None:
    (problem,) = problems(shop, **{wrong: "skip"})

    assert problem == f"{wrong} is no option; did you mean {right}?"


def test_attributes_of_the_users_own_are_left_alone(shop: Shop) -> None:
    task = shop.unique(body, locked=True, locker="x", clock=3)

    assert task.locked


class Own(LockRequest):
    """A task's own request class, derived from ours."""


class Foreign:
    """A request class that knows nothing of locks."""


@pytest.mark.parametrize("given", [f"{__name__}:Own", Own])
def test_a_request_class_derived_from_ours_is_accepted(shop: Shop, given: Any) -> None:
    task = shop.unique(body, Request=given)

    assert not task.delay(7).is_duplicate


@pytest.mark.parametrize("given", ["celery.worker.request:Request", Foreign])
def test_another_request_class_is_refused(shop: Shop, given: Any) -> None:
    """Nothing would free the lock of a killed pool child."""
    (problem,) = problems(shop, Request=given)

    assert "is not a subclass of celery_redislock.request.LockRequest" in problem


@pytest.mark.parametrize("scope", ["until_executed", "while_executing"])
def test_contradictions_are_told(shop: Shop, scope: str) -> None:
    (problem,) = problems(shop, lock=scope, lock_ttl=60, lock_max_hold=30)

    assert problem.startswith("lock_max_hold (30) must be longer than lock_ttl (60)")


# --- where settings come from ----------------------------------------------------------------


def test_settings_are_read_from_djangos_namespace() -> None:
    app = Celery("shop", set_as_current=False, broker="memory://")

    class Settings:
        CELERY_REDISLOCK_TTL = 66.0
        CELERY_REDISLOCK_ENABLED = False
        CELERY_BROKER_URL = "memory://"

    app.config_from_object(Settings(), namespace="CELERY")
    task = app.task(name="shop.sync", base=SingletonTask, shared=False, lazy=False)(body)

    declaration = declaration_of(task)
    assert (declaration.options.lock_ttl, declaration.settings.enabled) == (66.0, False)


def test_celerys_own_tasks_take_no_lock_from_task_cls() -> None:
    """``chord_unlock`` skipped as a duplicate would hang every chord."""
    app = Celery("shop", set_as_current=False, task_cls="celery_redislock:SingletonTask", broker="memory://")
    app.finalize()

    found = {name: declaration_of(task).options.lock for name, task in app.tasks.items()}

    assert set(found) >= {"celery.chord_unlock", "celery.map", "celery.chord"}
    assert {scope for name, scope in found.items() if name.startswith("celery.")} == {None}


def test_a_lock_asked_for_counts_whatever_the_tasks_name(shop: Shop) -> None:
    task = shop.unique(body, name="celery.mine", lock="while_executing")

    assert declaration_of(task).options.lock == "while_executing"


def test_task_cls_makes_every_task_unique() -> None:
    app = Celery("shop", set_as_current=False, task_cls="celery_redislock:SingletonTask", broker="memory://")

    task = app.task(name="shop.sync", shared=False, lazy=False)(body)

    assert isinstance(task, SingletonTask)
    assert declaration_of(task).options.lock == "until_executed"


def test_a_task_without_a_server_is_declared_and_told_at_its_publish() -> None:
    """Nothing connects, and nothing fails, before it is needed."""
    app = Celery("shop", set_as_current=False, broker="memory://")
    task = app.task(name="shop.sync", base=SingletonTask, shared=False, lazy=False)(body)

    with pytest.raises(LockOptionError, match="neither the broker"):
        task.delay(7)


# --- threads, forks, and binding inside binding ----------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_in_the_middle_of_another_threads_resolving_leaves_no_lock_behind(shop: Shop) -> None:
    """No thread survives a fork, and what it held would stay locked for ever: every publish would hang."""
    task = shop.unique(body)
    task.lock_ttl = 60

    with held_elsewhere(declaration._resolving):
        assert gets_through(lambda: declaration_of(task))


def test_resolving_a_task_may_bind_another_one(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A Request class named by a string is imported then, and its module may declare unique tasks."""
    (tmp_path / "own_request.py").write_text(
        "from celery_redislock.request import LockRequest\n"
        "from tests.unit import test_declaration\n"
        "test_declaration.DECLARE()\n"
        "class Mine(LockRequest): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        sys.modules[__name__], "DECLARE", lambda: shop.unique(body, name="shop.other"), raising=False
    )
    bound: list[Any] = []

    thread = threading.Thread(
        target=lambda: bound.append(shop.unique(body, Request="own_request:Mine")), daemon=True
    )
    thread.start()
    thread.join(10)

    assert len(bound) == 1
