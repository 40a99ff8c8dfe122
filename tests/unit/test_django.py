"""Under Django: ``delay_on_commit`` of a unique task, and claims only for what is committed."""

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.shop import Shop, body

if importlib.util.find_spec("django") is None and not os.environ.get("CI"):
    pytest.skip("Django is not installed", allow_module_level=True)

django: Any = importlib.import_module("django")
settings: Any = importlib.import_module("django.conf").settings
db: Any = importlib.import_module("django.db")


@pytest.fixture(autouse=True)
def database() -> Iterator[None]:
    """A database in memory, as Django wants one for a transaction."""
    if not settings.configured:
        settings.configure(
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
        )
        django.setup()
    yield
    db.connection.close()


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

    def fail() -> Any:
        with db.transaction.atomic():
            task.delay_on_commit(7)
            raise ValueError(7)

    with pytest.raises(ValueError, match="7"):
        fail()

    assert (shop.messages(), shop.held(), shop.store.calls) == ([], {}, [])
