"""What a task declares: resolved when bound, and again whenever something changes."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from pydantic import BaseModel

from celery_redislock import LockOptionError, Resources, SingletonTask
from celery_redislock.declaring.declaration import declaration_of, is_unique
from celery_redislock.declaring.server import use_store
from celery_redislock.store.memory import MemoryStore
from tests.unit.shop import body


class Account(BaseModel):
    id: int


def celery_app(**settings: Any) -> Celery:
    return Celery("shop", set_as_current=False, broker="memory://", **settings)


@pytest.fixture
def app() -> Iterator[Celery]:
    app = celery_app()
    use_store(app, MemoryStore())
    yield app
    use_store(app, None)


def declare(app: Celery, function: Any = body, **options: Any) -> Any:
    """A task of this function, bound to the app."""
    asked = {"name": "shop.sync", "base": SingletonTask, "shared": False, "lazy": False, **options}
    return app.task(**asked)(function)


def lock_of(task: Any, *args: Any, **kwargs: Any) -> Any:
    return declaration_of(task).task_lock(args, kwargs, "t1")


def problems(app: Celery, **options: Any) -> list[str]:
    with pytest.raises(LockOptionError) as refusal:
        declare(app, **options)
    assert refusal.value.where == "shop.sync"
    return refusal.value.problems


# --- what changes later ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "option", "value"),
    [
        (lambda app, _: app.conf.update(redislock_ttl=60.0), "lock_ttl", 60.0),
        (lambda app, _: app.conf.update(redislock_queue_ttl=60.0), "lock_queue_ttl", 60.0),
        (lambda app, _: app.conf.update(redislock_on_lock_error="run"), "on_lock_error", "run"),
        # A layer below what was set on the app itself.
        (lambda app, _: app.add_defaults({"redislock_ttl": 60.0}), "lock_ttl", 60.0),
        (lambda _, task: setattr(task, "lock_ttl", 60), "lock_ttl", 60.0),
        (lambda _, task: setattr(task, "lock_key", "account:7"), "lock_key", "account:7"),
    ],
)
def test_what_is_changed_after_the_bind_counts(app: Celery, change: Any, option: str, value: Any) -> None:
    """A setting, a default, or an attribute of the task."""
    task = declare(app)
    before = getattr(declaration_of(task).options, option)
    key = lock_of(task, 7).key
    change(app, task)
    assert getattr(declaration_of(task).options, option) == value != before
    assert (lock_of(task, 7).key != key) is (option == "lock_key")


def test_the_switch_in_the_environment_counts_at_once(app: Celery, monkeypatch: Any) -> None:
    """What did not change is not resolved again."""
    task = declare(app)
    assert declaration_of(task) is declaration_of(task)
    assert declaration_of(task).settings.enabled
    monkeypatch.setenv("REDISLOCK_ENABLED", "0")
    assert not declaration_of(task).settings.enabled


def test_what_a_decorator_returns_is_resolved_as_the_task_it_stands_for(app: Celery) -> None:
    """Its options were read from the proxy, which has none, and remembered for the task."""
    lazy = declare(app, lazy=True, lock_key="account:{account_id}", lock_ttl=7)
    assert lock_of(lazy, 42).key == "account:42"
    assert declaration_of(lazy) is declaration_of(lazy._get_current_object())


def test_nothing_is_used_unchecked(app: Celery) -> None:
    """A change for the worse raises when it is next asked for; Celery keeps a task whose bind failed."""
    task = declare(app)
    app.conf.redislock_ttl = -1
    for _ in range(2):
        with pytest.raises(LockOptionError, match="redislock_ttl is -1"):
            declaration_of(task)


# --- the lock of one call --------------------------------------------------------------------


def test_the_lock_of_a_call_has_the_options_of_the_task_and_of_the_call(app: Celery) -> None:
    task = declare(app, lock_ttl=7, lock_period=9)
    declaration = declaration_of(task)
    options = declaration.for_call({"lock_queue_ttl": 8, "lock_key": "account:{account_id}"})
    lock = declaration.task_lock((42,), None, "t1", options=options, is_ignored=True)
    assert (lock.store, lock.task, lock.owner) == (declaration.store, "shop.sync", "t1")
    assert (lock.key, lock.ttl, lock.queue_ttl, lock.period) == ("account:42", 7.0, 8.0, 9.0)
    assert lock.is_ignored


@pytest.mark.parametrize("lock_key", ["account:{account_id}", ("account_id",), "nightly"])
def test_what_the_key_does_not_name_is_not_read(app: Celery, lock_key: Any) -> None:
    """Nor anything where a message carries its key: a changed ``lock_key`` affects new messages only."""

    class Unread:
        def __getattribute__(self, name: str) -> Any:
            pytest.fail(f"{name} was asked for")

    task = declare(app, lock_key=lock_key)

    assert lock_of(task, 42, Unread()).key == lock_of(task, 42, 0).key
    carried = declaration_of(task).task_lock((Unread(), "too", "many"), {}, "t1", key="account:42")
    assert carried.key == "account:42"


def test_arguments_that_do_not_fit_are_a_type_error_that_names_the_task(app: Celery) -> None:
    with pytest.raises(TypeError, match=r"^shop\.sync\(account_id, amount\): too many positional arguments"):
        lock_of(declare(app), 1, 2, 3)
    loose = declare(app, name="shop.loose", typing=False)
    assert lock_of(loose, 1, 2, 3).key != lock_of(loose, 1, 2, 4).key


def test_a_model_and_its_dump_are_one_call(app: Celery) -> None:
    """Celery dumps models after the key was needed."""

    def with_model(account: Account) -> None: ...

    task = declare(app, with_model, pydantic=True, lock_key="account:{account.id}")

    assert lock_of(task, Account(id=42)).key == lock_of(task, {"id": 42}).key == "account:42"


# --- callables -------------------------------------------------------------------------------


def plain_strategy(_conflict: Any) -> str:
    return "skip"


CALLABLES = {
    "lock_key": lambda arguments: f"plain-{arguments['account_id']}",
    "on_conflict": plain_strategy,
    "on_lock_lost": lambda _lease: None,
}


@pytest.mark.parametrize("way", ["plain", "static", "options"])
@pytest.mark.parametrize("bind", [True, False])
def test_callables_never_become_methods(app: Celery, way: str, *, bind: bool) -> None:
    """Called with the task as first argument, a plain ``lambda bound: …`` breaks."""

    def with_self(_self: Any, account_id: int = 7) -> int:
        return account_id

    its = {name: staticmethod(each) if way == "static" else each for name, each in CALLABLES.items()}
    given = {"base": type("Its", (SingletonTask,), {"abstract": True, **its})}
    task = declare(app, with_self if bind else body, bind=bind, **(its if way == "options" else given))

    options: Any = declaration_of(task).options
    assert lock_of(task, 7).key == "plain-7"
    assert options.client(None) == "skip"
    assert options.on_lock_lost(None) is None


# --- what is refused -------------------------------------------------------------------------


def test_all_problems_are_told_at_once(app: Celery) -> None:
    """One deploy, one list; a value of a setting is told under the setting's name."""
    app.conf.update(redislock_fence="sometimes", redislock_queue_ttl="1h")
    misspelt = type("Misspelt", (SingletonTask,), {"abstract": True, "on_lock_eror": "run"})

    found = problems(
        app,
        base=misspelt,
        lock="until_excuted",
        lock_ttl=-1,
        lock_key=("acount_id",),
        lock_tll=5,
        on_conflict="skp",
        unique_on=["account_id"],
        Request="celery.worker.request:Request",
    )

    text = " | ".join(found)
    assert len(found) == 10
    for said in (
        "on_lock_eror is no option; did you mean on_lock_error?",
        "lock is 'until_excuted', which is unknown; did you mean 'until_executed'?",
        "lock_ttl is -1; give seconds",
        "redislock_queue_ttl is '1h'; give seconds",
        "'acount_id', which the task does not have; did you mean 'account_id'?",
        "lock_tll is no option; did you mean lock_ttl?",
        "on_conflict is 'skp', which is unknown; did you mean 'skip'?",
        "redislock_fence is 'sometimes'; give 'time' or 'strict'",
        "unique_on is celery-singleton's (celery_redislock.compat.celery_singleton takes it); write ",
        "Request class 'celery.worker.request:Request' is not a subclass",
    ):
        assert said in text


# --- where options come from -----------------------------------------------------------------


def test_options_come_from_annotations_and_djangos_namespace_too() -> None:
    """``task_annotations``: options for a task one cannot edit."""
    app = celery_app()
    app.conf.task_annotations = {"shop.sync": {"lock_ttl": 77, "on_conflict": plain_strategy}}
    options = declaration_of(declare(app)).options
    assert (options.lock_ttl, options.client) == (77.0, plain_strategy)

    app = celery_app()
    app.config_from_object(
        {"CELERY_REDISLOCK_TTL": 66.0, "CELERY_REDISLOCK_ENABLED": False}, namespace="CELERY"
    )
    declaration = declaration_of(declare(app))
    assert (declaration.options.lock_ttl, declaration.settings.enabled) == (66.0, False)


def test_task_cls_makes_every_task_unique_but_celerys_own() -> None:
    """``chord_unlock`` skipped as a duplicate would hang every chord."""
    app = celery_app(task_cls="celery_redislock:SingletonTask")
    app.task(name="shop.sync", shared=False)(body)
    app.task(name="celery.mine", shared=False, lock="while_executing")(body)
    app.finalize()
    # Shared tasks of other tests may be there as well.
    known = {name: task for name, task in app.tasks.items() if name.startswith(("celery.", "shop."))}
    locked = {name for name, task in known.items() if declaration_of(task).options.scope is not None}
    assert set(app.tasks) >= {"celery.chord_unlock", "celery.map", "celery.chord"}
    assert locked == {"shop.sync", "celery.mine"}


def test_a_task_without_a_server_can_be_declared_but_one_of_several_names() -> None:
    """Whether these can be taken in one step is asked at once; where locking is off nobody asks."""
    declaration = declaration_of(declare(celery_app()))
    with pytest.raises(LockOptionError, match="neither the broker"):
        _ = declaration.store
    both = Resources("account:{account_id}", "amount:{amount}")
    several: dict[str, Any] = {"lock": "while_executing", "lock_key": both}
    declaration_of(declare(celery_app(redislock_enabled=False), **several))
    with pytest.raises(LockOptionError, match="neither the broker"):
        declaration_of(declare(celery_app(), **several))


def test_a_task_is_unique_by_its_class_through_a_proxy_too(app: Celery) -> None:
    """A test that runs a task by hand has the proxy that ``app.task`` returns."""

    @app.task(base=SingletonTask)
    def sync() -> None: ...

    @app.task
    def plain() -> None: ...

    @app.task(base=SingletonTask, lock=None)
    def unlocked() -> None: ...

    assert [is_unique(each) for each in (sync, app.tasks[sync.name], unlocked)] == [True] * 3
    assert [is_unique(each) for each in (plain, app.tasks[plain.name], None)] == [False] * 3
