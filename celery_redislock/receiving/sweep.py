"""The sweep: a thread of the worker's main process that looks at lines whose holders may be gone.

Whoever ends a hold hands its lock to the next in line. Nobody does where a hold expires, or its process was
killed. So each worker looks at the lines that are due, once a second, or sooner where one will be: one small
request, shared by all workers, as each line is looked at by one of them.

Where locking is switched off, the lines are emptied instead: no message stays behind.
"""

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty
from shlex import quote
from typing import Any

from celery.bootsteps import StartStopStep
from celery.worker.consumer.tasks import Tasks

from celery_redislock.declaring.declaration import is_unique
from celery_redislock.declaring.server import settings_of, store_of
from celery_redislock.exceptions import RedisLockError
from celery_redislock.log import command, is_news, logger
from celery_redislock.publishing.promote import tell_of_loss, tell_of_lying
from celery_redislock.receiving.proof import Prover
from celery_redislock.running.leavings import lock_by_name
from celery_redislock.store.home import is_served, spellings_of
from celery_redislock.store.store import LockStore
from celery_redislock.wire.retrying import LONGEST_PAUSE
from celery_redislock.wire.thread import original, start_thread, tell

#: Seconds between two looks, at most and at least.
PAUSE = LONGEST_PAUSE
SHORTEST = 0.003

#: Rung where a line may be due sooner than the last look knew.
_bell = original("_queue", "SimpleQueue")()  # native with gevent

#: Lines that one request looks at: each takes up to a fifth of a millisecond of the server.
AT_ONCE = 8


class Sweeping(StartStopStep):  # type: ignore[misc]  # celery-types has it untyped
    """A step of the worker's consumer: it starts the thread, once for each worker.

    The thread proves which home this worker has as well (``receiving/proof.py``).
    """

    requires = (Tasks,)

    def include_if(self, consumer: Any) -> bool:
        """Only where there are unique tasks."""
        return any(map(is_unique, consumer.app.tasks.values()))

    def create(self, consumer: Any) -> Prover | None:
        """Prove, and start to look; called once, before the consumer starts."""
        app = consumer.app
        with suppress(RedisLockError):  # no lock server is named: the check at the worker's start tells
            settings = settings_of(app)
            store = store_of(app, settings)
            by_name = partial(lock_by_name, app, settings)
            prover = Prover(app, store)
            prover.prove()
            step = partial(look, store, by_name) if settings.enabled else emptying(store)
            start_thread(partial(_run, weakref.ref(consumer), prover, step), "redislock-sweep")
            return prover
        return None


def _run(consumer: "weakref.ref[Any]", prover: Prover, step: Callable[[], float]) -> None:
    """Prove and look until the consumer is gone from this process; in a thread."""
    is_away = False
    while consumer() is not None:
        prover.prove()
        pause = PAUSE
        try:
            pause = step()
            is_away = False
        except RedisLockError as error:
            if not is_away:
                tell(logger.warning, "waiting messages are not looked at: %s", error)
            is_away = True
        except Exception as error:  # noqa: BLE001  a thread that dies would look at nothing any more
            tell(logger.error, "the look at waiting messages failed unexpectedly", exc_info=error)
        with suppress(Empty):
            while True:
                _bell.get(timeout=pause)
                pause = 0.0


def look_soon(_: object = None) -> None:
    """Let the thread look at lines at once; from any thread of the worker's main process."""
    _bell.put(None)


def look(store: LockStore, by_name: Any) -> float:
    """Look at the lines that are due; return the seconds until the next look."""
    sweep = store.sweep(most=AT_ONCE)
    for name, error in sweep.broken:
        line = "what waits for %r is not looked at for a minute: %s; look at it: %s"
        tell(logger.error, line, name, error, command(f"redislock waiting {quote(name)}"))
    for each in sweep.unstarted:
        (tell_of_loss if each.is_lost else tell_of_lying)(each.name, each.id, repr(each.queue), each.times)
    if sweep.elsewhere:
        _tell_of_elsewhere(store, sweep.elsewhere)
    for hold in sweep.held:
        by_name(hold.name).release_if_dead(hold)
    return min(PAUSE, max(SHORTEST, sweep.next_in))


def _tell_of_elsewhere(store: LockStore, elsewhere: Sequence[tuple[str, str]]) -> None:
    """Learn which spellings of this home were proved; tell of homes, once a minute, that no worker has."""
    proofs = store.homes()
    store.home = "\n".join(spellings_of(store.own_home, proofs))
    for name, to in elsewhere:
        if is_served(to, proofs) or not is_news(f"{to} has no worker"):
            continue
        line = (
            "what waits for %r stands still: its first message belongs to the broker %s, of which no worker "
            "has been seen for a minute; start one, or send to this broker what waits for that: %s"
        )
        tell(logger.warning, line, name, to, command("redislock waiting --drain --home --all"))


def emptying(store: LockStore) -> Callable[[], float]:
    """Return a step that sends what waits to its queues without its lock, until the next one.

    It tells of that once a minute, with the number of messages since it has told.
    """
    untold = 0

    def empty() -> float:
        nonlocal untold
        count, given = store.drain(most=AT_ONCE)
        untold += count + len(given)
        if untold and is_news("locking is switched off"):
            line = "locking is switched off: %d waiting messages are back in their queues"
            tell(logger.warning, line, untold)
            untold = 0
        return SHORTEST if count else PAUSE

    return empty
