"""How beat is plugged in: which beats share their schedule, and what ends one that cannot."""

import subprocess
import sys
from typing import Any

import pytest
from celery import Celery
from celery.beat import Scheduler
from celery.signals import beat_init

from celery_redislock import SingletonTask
from celery_redislock.scheduling.plug import connect, join, prepare_beat
from tests.unit.scheduling.world import nothing
from tests.unit.shop import forget_unique


class Own(Scheduler):
    """A scheduler that cannot be shared, so that beat ends where it is asked to."""

    def tick(self, *_args: Any, **_kwargs: Any) -> float:
        return 1.0


class Unreadable(Scheduler):
    """Its database is away."""

    @property
    def schedule(self) -> Any:
        raise RuntimeError("the database is away")


def service(kind: type[Scheduler] = Own, **settings: Any) -> Any:
    app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update(settings)
    return type("Service", (), {"app": app, "scheduler": kind(app, lazy=True)})()


def test_a_beat_without_a_unique_task_shares_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The promise of ``redislock_beat``: no module with a unique task has to be imported for it."""
    monkeypatch.delitem(sys.modules, "celery_redislock.task", raising=False)
    prepare_beat(service())
    with pytest.raises(SystemExit, match=r"a tick\(\) of its own"):
        prepare_beat(service(redislock_beat=["nightly-*"]))
    # The switches for an incident count here, too.
    assert join(service(redislock_beat=False)) is None
    monkeypatch.setenv("REDISLOCK_ENABLED", "0")
    assert join(service()) is None


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Own, r"Own has a tick\(\) of its own.*redislock_beat = False"), (Unreadable, "the database is away")],
)
def test_whatever_keeps_a_beat_from_sharing_ends_it(kind: type[Scheduler], said: str) -> None:
    """Unshared, it would send each tick beside the others. Celery's signal swallows all other errors."""
    import celery_redislock.task  # noqa: F401  as a module with a unique task does

    connect()
    with pytest.raises(SystemExit, match=f"beat does not start: .*{said}"):
        beat_init.send(sender=service(kind))


@pytest.mark.parametrize(
    ("has_unique", "settings", "ends"),
    [
        (True, {}, True),
        (False, {"redislock_beat": "all"}, True),
        (False, {}, False),
        (True, {"redislock_enabled": False}, False),
        (True, {"redislock_beat": False}, False),
    ],
)
def test_a_beat_that_shares_needs_a_lock_server(has_unique: bool, settings: Any, ends: bool) -> None:
    """As a worker with unique tasks does; the error says what to set, and what goes without."""
    beat = service(Scheduler, broker_url="amqp://h//", result_backend="rpc://", **settings)
    forget_unique(beat.app)
    if has_unique:
        beat.app.task(base=SingletonTask, name="shop.sync", shared=False)(nothing)
    if ends:
        remedy = "set redislock_url = .*redislock_enabled = False goes without"
        with pytest.raises(SystemExit, match=f"beat does not start: .*{remedy}"):
            prepare_beat(beat)
    else:
        assert join(beat) is None


@pytest.mark.parametrize("lock_key", [None, "redbeat:lock"])
def test_redbeat_is_left_alone_and_warned_without_its_lock(caplog: Any, lock_key: str | None) -> None:
    """It elects a leader by itself."""
    redbeat = pytest.importorskip("redbeat.schedulers")
    settings = {"redbeat_redis_url": "redis://127.0.0.1:1", "redbeat_lock_key": lock_key}
    assert join(service(redbeat.RedBeatScheduler, **settings)) is None
    assert ("RedBeat's lock is off" in caplog.text) == (lock_key is None)


@pytest.mark.parametrize("module", ["celery_redislock.cli", "celery_redislock.task"])
def test_the_command_line_and_a_unique_task_each_plug_beat_in(module: str) -> None:
    """``celery`` loads the command line's package by an entry point; a program of one's own need not."""
    program = (
        f"import {module}; from celery.signals import beat_init; "
        "print(*(receiver.__module__ for _, receiver in beat_init.receivers))"
    )
    connected = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60)
    assert connected.split() == ["celery_redislock.scheduling.plug"]
