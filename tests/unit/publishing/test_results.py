"""Results that are dropped."""

import subprocess
import sys
import textwrap
from typing import Any

import pytest
from celery import Celery

from celery_redislock.publishing.results import LockResult
from tests.unit.shop import Shop


class Backend:
    """Takes down which results ended their subscription."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def remove_pending_result(self, result: Any) -> None:
        self.ended.append(result.id)


def _result(app: Celery, backend: Backend) -> LockResult:
    return LockResult("7", backend=backend, app=app)


def test_a_finished_result_that_is_dropped_asks_nothing_of_its_backend(shop: Shop) -> None:
    """Its subscription has ended; asking again would connect, for 20 s if the server is gone."""
    backend = Backend()
    result = _result(shop.app, backend)
    result.on_ready(result)
    assert backend.ended == ["7"]

    result.__del__()

    assert backend.ended == ["7"]


def test_an_unfinished_result_that_is_dropped_ends_its_subscription(shop: Shop) -> None:
    """Or a process that publishes and never asks would subscribe to more and more."""
    backend = Backend()
    result = _result(shop.app, backend)

    del result

    assert backend.ended == ["7"]


def test_a_result_whose_subscription_could_not_be_ended_tries_again(shop: Shop) -> None:
    class Unwilling(Backend):
        def remove_pending_result(self, result: Any) -> None:
            super().remove_pending_result(result)
            if len(self.ended) == 1:
                raise ConnectionError

    backend = Unwilling()
    result = _result(shop.app, backend)
    with pytest.raises(ConnectionError):
        result.on_ready(result)

    result.__del__()

    assert backend.ended == ["7", "7"]


def test_a_result_that_was_never_made_is_dropped_in_silence() -> None:
    """What ``__init__`` refuses has no backend; an error here would be printed, not raised."""
    with pytest.raises(ValueError, match="valid id"):
        LockResult(None)


def test_a_result_that_lives_until_the_interpreter_ends_is_dropped_in_silence() -> None:
    """Celery connects to unsubscribe and imports for it, which fails by then: a traceback."""
    script = """
    from celery import Celery
    from celery_redislock.publishing.results import LockResult

    class Backend:
        def remove_pending_result(self, result):
            import importlib
            importlib.import_module("json.tool")

    result = LockResult("7", backend=Backend(), app=Celery(set_as_current=False))
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (process.returncode, process.stderr) == (0, "")
