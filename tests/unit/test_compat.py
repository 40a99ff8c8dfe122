"""Tasks that are declared by another library's options: what is said in their place, and to their callers."""

import pickle
import re
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from celery import Celery

from celery_redislock import DuplicateTask, LockOptionError
from celery_redislock.compat.celery_once import AlreadyQueued, QueueOnce
from celery_redislock.compat.celery_singleton import DuplicateTaskError, Singleton, clear_locks
from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.declaring.server import setting_problems, use_store
from celery_redislock.store.memory import MemoryStore
from celery_redislock.testing import hold
from tests.unit.shop import Shop, body

pytestmark = pytest.mark.filterwarnings("ignore:shop.sync.* is declared by options of:DeprecationWarning")


def native(task: Any) -> tuple[Any, ...]:
    """Return the scope, the key, what a duplicate does at publish and on the worker, and the claim's ttl."""
    options = declaration_of(task).options
    return options.scope.name, options.lock_key, options.client, options.server, options.lock_queue_ttl


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app without a server, whose settings a test chooses before it declares its task."""
    app = Celery("shop", broker="memory://localhost", backend="cache+memory://", set_as_current=False)
    use_store(app, MemoryStore())
    yield app
    app.close()


def declare(app: Celery, base: type[Any], *, name: str = "shop.sync", **options: Any) -> Any:
    return app.task(base=base, name=name, lazy=False, shared=False, **options)(body)


@pytest.mark.parametrize(
    ("options", "settings", "meaning"),
    [
        ({}, {}, ("until_executed", None, "skip", "skip", 3600)),
        ({"unique_on": "amount"}, {}, ("until_executed", ("amount",), "skip", "skip", 3600)),
        ({"unique_on": ["amount"]}, {}, ("until_executed", ("amount",), "skip", "skip", 3600)),
        ({"raise_on_duplicate": True}, {}, ("until_executed", None, "raise", "skip", 3600)),
        ({"lock_expiry": 60}, {}, ("until_executed", None, "skip", "skip", 60)),
        ({}, {"raise_on_duplicate": True, "lock_expiry": 6}, ("until_executed", None, "raise", "skip", 6)),
        (
            {"raise_on_duplicate": False},
            {"raise_on_duplicate": True},
            ("until_executed", None, "skip", "skip", 3600),
        ),
        ({"lock_expiry": 5}, {"lock_expiry": 60}, ("until_executed", None, "skip", "skip", 5)),
        # A project on its way: this package's options count.
        ({"unique_on": ["amount"], "lock_key": ()}, {}, ("until_executed", (), "skip", "skip", 3600)),
        ({"lock": "until_executing"}, {}, ("until_executing", None, "skip", "skip", 3600)),
    ],
)
def test_options_of_celery_singleton_mean_the_same(
    app: Celery, options: dict[str, Any], settings: dict[str, Any], meaning: tuple[Any, ...]
) -> None:
    app.conf.update({f"singleton_{name}": value for name, value in settings.items()})
    assert native(declare(app, Singleton, **options)) == meaning


@pytest.mark.parametrize(
    ("options", "settings", "meaning"),
    [
        ({}, {}, ("until_executed", None, "raise", "skip", 3600)),
        ({"once": {"graceful": True}}, {}, ("until_executed", None, "skip", "skip", 3600)),
        ({"once": {"keys": ["amount"]}}, {}, ("until_executed", ("amount",), "raise", "skip", 3600)),
        ({"once": {"keys": []}}, {}, ("until_executed", (), "raise", "skip", 3600)),
        ({"once": {"timeout": 60}}, {}, ("until_executed", None, "raise", "skip", 60)),
        ({"once": {"unlock_before_run": True}}, {}, ("until_executing", None, "raise", "skip", 3600)),
        ({}, {"default_timeout": 60}, ("until_executed", None, "raise", "skip", 60)),
        ({"once": {"timeout": 5}}, {"default_timeout": 60}, ("until_executed", None, "raise", "skip", 5)),
    ],
)
def test_options_of_celery_once_mean_the_same(app: Celery, options: Any, settings: Any, meaning: Any) -> None:
    app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": settings}
    assert native(declare(app, QueueOnce, **options)) == meaning


def test_a_class_passes_on_what_it_says_and_its_subclass_says_it_anew(app: Celery) -> None:
    class Ours(Singleton):
        abstract = True
        unique_on: ClassVar[list[str] | None] = ["amount"]
        raise_on_duplicate = True

    class Wider(Ours):
        abstract = True
        unique_on = None

    assert native(declare(app, Ours)) == ("until_executed", ("amount",), "raise", "skip", 3600)
    wider = native(declare(app, Wider, name="shop.sync_all"))
    assert wider == ("until_executed", None, "raise", "skip", 3600)


@pytest.mark.parametrize("namespace", [None, "CELERY"])
@pytest.mark.parametrize(
    ("base", "settings", "meaning"),
    [
        (Singleton, {"singleton_backend_url": "redis://locks/1", "singleton_key_prefix": "mine_"}, "mine_"),
        (QueueOnce, {"ONCE": {"settings": {"url": "redis://locks/1"}}}, None),
    ],
)
def test_the_other_librarys_server_is_the_lock_server(
    base: type[Any], settings: dict[str, Any], meaning: str | None, namespace: str | None
) -> None:
    """With Django's names, too."""
    app = Celery("shop", broker="memory://localhost", set_as_current=False)
    if namespace is None:
        app.conf.update(settings)
    else:
        names = {f"{namespace}_{name.upper()}": value for name, value in settings.items()}
        app.config_from_object(type("Settings", (), names), namespace=namespace)
    declared = declaration_of(declare(app, base)).settings
    assert (declared.url, declared.prefix) == ("redis://locks/1", meaning or "redislock")


@pytest.mark.parametrize(
    ("base", "options", "note"),
    [
        (Singleton, {}, "declared by options of celery-singleton; write base=celery_redislock.SingletonTask"),
        (
            Singleton,
            {"unique_on": ["amount"], "lock_expiry": 60},
            "write base=celery_redislock.SingletonTask, lock_key=('amount',), lock_queue_ttl=60",
        ),
        (
            QueueOnce,
            {"once": {"unlock_before_run": True, "keys": ["account_id"]}},
            "lock_key=('account_id',), on_conflict={'client': 'raise'}; on the app set redislock_url",
        ),
    ],
)
def test_a_note_tells_once_how_a_task_is_written_here(
    app: Celery, base: type[Any], options: dict[str, Any], note: str
) -> None:
    """It keeps the password of the server to itself."""
    app.conf.ONCE = {"settings": {"url": "redis://:secret@locks/1"}}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        task = declare(app, base, **options)
        task.delay(7)
        task.delay(8)

        app.conf.redislock_url = "redis://locks/2"
        own = declare(app, base, name="shop.own", **options)

    one, of_own = told
    assert one.category is DeprecationWarning
    assert str(one.message).startswith("shop.sync is declared by options of ")
    assert str(one.message).endswith(note)
    # Where the lock server is named by this package's setting, it stays, and is not asked for.
    assert declaration_of(own).settings.url == "redis://locks/2"
    assert "on the app set" not in str(of_own.message)


@pytest.mark.parametrize("nothing", [[], (), ""])
def test_an_empty_unique_on_means_all_arguments_with_a_warning(
    app: Celery, nothing: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert native(declare(app, Singleton, unique_on=nothing))[1] is None
    (record,) = caplog.records
    assert (record.levelname, "lock_key=()" in record.getMessage()) == ("WARNING", True)


def test_a_setting_that_means_nothing_here_is_told(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    app.conf.update(singleton_backend_class="shop.Backend", ONCE={"settings": {"blocking": True}})
    for base, *names in (
        (Singleton, "singleton_backend_class", "redislock_url"),
        (QueueOnce, "blocking", "on_conflict='wait'"),
    ):
        caplog.clear()
        declare(app, base, name=f"shop.sync_{base.__name__}")
        (text,) = caplog.messages
        assert all(name in text for name in names)
    # What a stand-in reads is not told as left over.
    app.conf.update(ONCE={"settings": {"url": "redis://locks/1"}}, singleton_lock_expiry=60)
    assert setting_problems(app) == []


def test_a_wrong_option_or_a_method_that_nothing_calls_is_refused(app: Celery) -> None:
    """A key of the user's own would be another one, in silence."""
    for base, method, option in (
        (Singleton, "generate_lock", "lock_key"),
        (Singleton, "on_duplicate", "on_conflict"),
        (QueueOnce, "get_key", "lock_key"),
    ):
        own = type("Own", (base,), {"abstract": True, method: lambda *_: "mine"})
        with pytest.raises(LockOptionError, match=rf"its {method}\(\), .* write {option} as a callable"):
            declare(app, own, name=f"shop.sync_{method}")
    with pytest.raises(LockOptionError, match="names the parameter 'acount_id'"):
        declare(app, Singleton, unique_on=["acount_id"])
    with pytest.raises(LockOptionError, match=re.escape("unique_on is celery-singleton's")):
        declare(app, QueueOnce, name="shop.sync_all", unique_on=["account_id"])


@pytest.mark.parametrize("base", [Singleton, QueueOnce])
def test_a_refused_callers_error_is_the_other_librarys_and_ours(shop: Shop, base: type[Any]) -> None:
    """``except`` clauses of both kinds go on working."""
    options: Any = {"raise_on_duplicate": True} if base is Singleton else {}
    task = shop.unique(body, base=base, **options)
    first = task.delay(7)
    with pytest.raises(DuplicateTask) as refused:
        task.delay(7)
    error = refused.value
    assert isinstance(error, DuplicateTaskError if base is Singleton else AlreadyQueued)
    assert (error.task_id, error.is_period) == (first.id, False)
    assert 0 < error.expires_in <= 3600
    assert first.id in str(error)


def test_the_errors_can_be_made_by_hand_and_survive_pickling() -> None:
    by_hand = DuplicateTaskError("a text", task_id="an id")
    queued = AlreadyQueued(30)
    for error in (by_hand, queued):
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301  made here
        assert (type(copy), copy.args, copy.__dict__) == (type(error), error.args, error.__dict__)
    assert (by_hand.task_id, queued.countdown, queued.expires_in) == ("an id", 30, 30)


#: An argument of every kind that JSON has.
NESTED = {"b": [1, {"z": "é", "a": None}], "a": 0.5}


@pytest.mark.parametrize(
    ("base", "options", "args", "kwargs", "key"),
    [
        (QueueOnce, {}, [7, "x"], {}, "qo_shop.sync_account_id-7_amount-x"),
        (QueueOnce, {"once": {"keys": ["amount"]}}, [7], {"amount": NESTED},
         "qo_shop.sync_amount-{'a': 0.5, 'b': [1, \"{'a': None, 'z': 'é'}\"]}"),
        (QueueOnce, {"once": {"keys": []}}, [7, "x"], {}, "qo_shop.sync"),
        (Singleton, {}, [7], {"amount": NESTED}, "SINGLETONLOCK_7890ed386f048fb63dc61b4dad66fb49"),
        (Singleton, {"unique_on": ["amount", "account_id"]}, [7], {"amount": NESTED},
         "SINGLETONLOCK_8ca29d9878bcdac6c816d68478d8b2bb"),
        (Singleton, {"unique_on": []}, [7, "x"], {}, "SINGLETONLOCK_f5df09029ed025196047991e30400c65"),
    ],
)  # fmt: skip
def test_the_other_librarys_key_is_its_own(
    app: Celery, base: Any, options: dict[str, Any], args: list[Any], kwargs: dict[str, Any], key: str
) -> None:
    """As celery-once 3.0.1 and celery-singleton 0.3.1 named it for these calls."""
    assert declare(app, base, **options)._their_key(args, kwargs) == key


@pytest.mark.filterwarnings("ignore:clear_locks:DeprecationWarning")
def test_clear_locks_releases_what_is_queued_and_no_run(shop: Shop, caplog: Any, monkeypatch: Any) -> None:
    """A run renews its lock, so no dead one's is left. It is called at each start: no act is noted."""
    acts: list[str] = []
    monkeypatch.setattr(shop.store, "acts", acts.append)
    single = shop.unique(body, base=Singleton)
    other = shop.unique(body, name="shop.other")
    single.delay(7)
    other.delay(7)

    with hold(single, 8):
        clear_locks(shop.app)

        assert not single.delay(7).is_duplicate
        assert single.delay(8).is_duplicate
        assert other.delay(7).is_duplicate
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "clear_locks()" in record.getMessage()
    assert acts == []
