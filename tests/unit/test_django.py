"""Under Django: claims only for what is committed, and system checks."""

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_redislock.declaring.server import store_of
from tests.pages import blocks_of
from tests.unit.shop import Shop, body

if importlib.util.find_spec("django") is None and not os.environ.get("CI"):
    pytest.skip("Django is not installed", allow_module_level=True)

django: Any = importlib.import_module("django")
settings: Any = importlib.import_module("django.conf").settings
db: Any = importlib.import_module("django.db")
override_settings: Any = importlib.import_module("django.test.utils").override_settings
check_settings: Any = importlib.import_module("celery_redislock.django").check_settings


@pytest.fixture(autouse=True)
def database() -> Iterator[None]:
    """A database in memory, as Django wants one for a transaction."""
    if not settings.configured:
        memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        settings.configure(DATABASES={"default": memory})
        django.setup()
    yield
    db.connection.close()


def run(program: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_task_is_published_when_the_transaction_commits(shop: Shop) -> None:
    """Celery picks its Django base class by itself, but not where a base class is named."""
    task = shop.unique(body)
    with db.transaction.atomic():
        task.delay_on_commit(7)
        task.delay_on_commit(7)
        task.apply_async_on_commit((8,), countdown=5)
        assert (shop.messages(), shop.held()) == ([], {})
    assert [message.headers["argsrepr"] for message in shop.messages()] == ["(7,)", "(8,)"]
    assert len(shop.held()) == 2


def test_a_rolled_back_transaction_claims_nothing(shop: Shop) -> None:
    task = shop.unique(body)
    with db.transaction.atomic():
        task.delay_on_commit(7)
        db.transaction.set_rollback(True)
    assert (shop.messages(), shop.held(), shop.store.calls) == ([], {}, [])


# --- system checks -----------------------------------------------------------------------------


def test_the_system_checks_tell_of_wrong_settings(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a worker, or a request, meets them."""
    shop.app.conf.update(redislock_ttl=-5, redislock_socket_timeout="soon")
    monkeypatch.setattr("celery_redislock.django.current_app", shop.app)  # a later test has another one
    with override_settings(CELERY_REDISLOCK_TTTL=5, CELERY_REDISLOCK_ENABLED=True):
        found = [(each.id[-4:], each.msg.partition(" ")[0]) for each in check_settings()]
    wrong = [
        ("W001", "CELERY_REDISLOCK_TTTL"),
        ("E001", "redislock_socket_timeout"),
        ("E001", "redislock_ttl"),
    ]
    assert found == wrong


@pytest.mark.parametrize("app", ["celery_redislock.django", "celery_redislock.django.RedislockConfig"])
def test_the_checks_are_run_where_the_app_is_installed(app: str) -> None:
    """By ``manage.py check``, whose command this is; the class or its module may be named."""
    program = f"""
    import django
    from django.conf import settings
    settings.configure(INSTALLED_APPS=[{app!r}], CELERY_REDISLOCK_TTTL=1)
    django.setup()
    from django.core.management import call_command
    call_command("check", fail_level="WARNING")
    """
    done = run(program)
    assert done.returncode == 1
    assert "celery_redislock.W001) CELERY_REDISLOCK_TTTL is no setting" in done.stderr


def test_the_checks_tell_of_a_lock_server_that_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL that is none, or the name of a cache; nothing is connected to."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    monkeypatch.setattr(sys.modules["celery_redislock.django"], "current_app", app)
    app.conf.redislock_url = "redis:/localhost"
    assert [each.id for each in check_settings()] == ["celery_redislock.E001"]
    app.conf.redislock_url = "django-cache://default"
    (cache,) = check_settings()
    assert "write redislock_url = CACHES['default']['LOCATION']" in cache.msg
    app.conf.redislock_url = "redis://h/0"
    assert check_settings() == []


def test_the_settings_of_the_docs_name_the_server_of_the_cache_once() -> None:
    """As the app that reads them connects: the URL of the cache is the lock server's."""
    (code,) = [each.code for each in blocks_of("py") if "RedisCache" in each.code]
    names: dict[str, Any] = {}
    exec(code.replace("...", "'proj'"), names)  # noqa: S102
    app = Celery("shop", broker="memory://", set_as_current=False)
    ours = {name: value for name, value in names.items() if name.startswith("CELERY_")}
    app.config_from_object(ours, namespace="CELERY")
    assert store_of(app).server == "redis://cache-1:6379/1"
