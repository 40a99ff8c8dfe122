"""How beat is plugged in: which beats are asked to share their schedule."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.beat import Scheduler

from celery_redislock.scheduling.plug import prepare_beat


class Own(Scheduler):
    """A scheduler that cannot be shared, so that beat ends where it is asked to."""

    def tick(self, *_args: Any, **_kwargs: Any) -> float:
        return 1.0


def service(**settings: Any) -> SimpleNamespace:
    app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update(settings)
    return SimpleNamespace(app=app, scheduler=Own(app, lazy=True))


def test_a_beat_without_a_unique_task_shares_what_redislock_beat_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The promise of ``redislock_beat``: no module with a unique task has to be imported for it."""
    monkeypatch.delitem(sys.modules, "celery_redislock.task", raising=False)

    prepare_beat(service())
    with pytest.raises(SystemExit, match=r"a tick\(\) of its own"):
        prepare_beat(service(redislock_beat=["nightly-*"]))


def test_a_beat_with_a_unique_task_shares_its_ticks_by_default() -> None:
    """Each tick of a unique task is sent once, without a setting."""
    import celery_redislock.task  # noqa: F401  as a module with a unique task does

    with pytest.raises(SystemExit, match=r"a tick\(\) of its own"):
        prepare_beat(service())


@pytest.mark.parametrize("module", ["celery_redislock.cli", "celery_redislock.task"])
def test_the_command_line_and_a_unique_task_each_plug_beat_in(module: str) -> None:
    """``celery`` loads the command line's package by an entry point; a program of one's own need not."""
    program = (
        f"import {module}; from celery.signals import beat_init; "
        "print(*(receiver.__module__ for _, receiver in beat_init.receivers))"
    )
    connected = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60)

    assert connected.split() == ["celery_redislock.scheduling.plug"]
