"""What bodies do, and the ways they end."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import isfunction
from typing import Any

from celery import chain, chord, group
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_redislock import LockLost


def new_body() -> Callable[..., Any]:
    """Make a body of its own for each task: Celery keeps attributes on it."""

    def work(self: Any, key: str, seconds: float = 0.0, then: str | None = None, more: Any = None) -> Any:
        with self.app.journal.body(self, key) as number:
            self.request.body = number
            self.app.journal.stay(key, number, seconds)
            value = ENDINGS[then](self, key, more) if then else f"{key} done"
        self.app.journal.reach(key, "returned")
        return value

    return work


def _tell(task: Any, key: str, more: Any) -> Any:
    return more


def _drain(task: Any, key: str, more: Any) -> list[Any]:
    found = []
    while (each := task.app.journal.take(key)) is not None:
        found.append(each)
    return found


def _fail(task: Any, key: str, more: Any) -> None:
    message = f"{key} failed"
    raise ValueError(message)


def _ignore(task: Any, key: str, more: Any) -> None:
    raise Ignore


def _reject(task: Any, key: str, more: Any) -> None:
    raise Reject("not wanted", requeue=False)


def _requeue(task: Any, key: str, more: Any) -> str:
    if not task.request.delivery_info.get("redelivered"):
        raise Reject("not now", requeue=True)
    return f"{key} done"


def _exit(task: Any, key: str, more: Any) -> None:
    raise SystemExit(3)


def _run_out_of_memory(task: Any, key: str, more: Any) -> None:
    raise MemoryError


def _unserialisable(task: Any, key: str, more: Any) -> object:
    return threading.Lock()


class _Leisurely:
    """A value whose result is not stored while ``<key>@encoded`` is kept on."""

    def __init__(self, task: Any, key: str) -> None:
        self._reach, self._key = task.app.journal.reach, key

    def __json__(self) -> str:
        self._reach(self._key, "encoded")
        return f"{self._key} done"


def _encode_at_leisure(task: Any, key: str, more: Any) -> _Leisurely:
    return _Leisurely(task, key)


def _retry(task: Any, key: str, more: Any) -> str:
    more = more or {}
    if task.request.retries < more.get("times", 1):
        raise task.retry(countdown=more.get("countdown", 0), max_retries=5, queue=more.get("queue"))
    # The last run can be kept on by itself: it shares its key and its id with those before it.
    task.app.journal.stay(key, task.request.body, gate=f"{key} retried")
    return f"{key} done"


def _retry_quietly(task: Any, key: str, more: Any) -> str:
    if task.request.retries < 1:
        task.retry(countdown=0, throw=False)
    time.sleep((more or {}).get("lingering", 0))
    return f"{key} done"


def _retry_and_stay(task: Any, key: str, more: Any) -> str:
    """Ask for a retry that raises nothing, and stay while ``<key> asked`` is kept on."""
    if task.request.retries < 1:
        task.retry(countdown=0, throw=False, queue=(more or {}).get("queue"))
        task.app.journal.stay(key, task.request.body, gate=f"{key} asked")
    return f"{key} done"


def _retry_lingering(task: Any, key: str, more: Any) -> str:
    """Ask for a retry, and take half a second to unwind."""
    if task.request.retries:
        return f"{key} done"
    try:
        raise task.retry(countdown=0)
    finally:
        time.sleep(0.5)


def _exhaust(task: Any, key: str, more: Any) -> None:
    # Not at once: Celery publishes a retry before it stores RETRY, which may then replace the last outcome.
    raise task.retry(countdown=0.5, max_retries=1, exc=ValueError(f"{key} failed"))


def _replace(task: Any, key: str, more: Any) -> None:
    name, *arguments = more
    raise task.replace(task.app.tasks[name].si(*arguments))


def _expand(task: Any, key: str, more: Any) -> None:
    """Be replaced by a canvas of calls of a task: ``more`` is the canvas, the task, and the calls' keys."""
    canvas, name, keys = more
    calls = [task.app.tasks[name].si(each) for each in keys]
    collect = task.app.tasks["project.collect"].s()
    raise task.replace(
        chord(calls, collect) if canvas == "chord" else {"group": group, "chain": chain}[canvas](calls)
    )


def _outlive(task: Any, key: str, more: Any) -> str:
    """Go on without the worker's main process, with which Celery lets its children die (prctl(2))."""
    ctypes.CDLL(None).prctl(1, 0)
    task.app.journal.note(f"outliving {key}", os.getpid())
    task.app.journal.stay(key, task.request.body, gate=f"{key} outliving")
    return f"{key} done"


def _give_in(task: Any, key: str, more: Any) -> str:
    """Stay for ``more`` seconds, but for a soft time limit."""
    with suppress(SoftTimeLimitExceeded):
        task.app.journal.stay(key, task.request.body, more)
    return f"{key} done"


def _swallow(task: Any, key: str, more: Any) -> str:
    """Refuse to end on SIGTERM for ``more`` seconds, and as long as ``<key> refusing`` is kept on."""
    until = time.monotonic() + more
    while True:
        try:
            task.app.journal.note(f"refusing {key}", time.monotonic())
            task.app.journal.stay(key, task.request.body, until - time.monotonic(), gate=f"{key} refusing")
        except SystemExit:
            task.app.journal.note(f"swallowed {key}", time.monotonic())
        else:
            return f"{key} done"


def _spin(task: Any, key: str, more: Any) -> str:
    """Run bytecodes for ``more`` seconds, noting what interrupts them."""
    until = time.monotonic() + more
    try:
        while time.monotonic() < until:
            time.sleep(0.001)
    except LockLost as error:
        task.app.journal.note(f"lost {key}", [time.monotonic(), error.key, error.reason])
        raise
    return f"{key} done"


def _doze(task: Any, key: str, more: Any) -> str:
    """Sleep for ``more`` seconds in one piece."""
    time.sleep(more)
    return f"{key} done"


def _quit(task: Any, key: str, more: Any) -> str:
    """Hear a SIGQUIT: Python runs its handler in whatever greenlet is on, which is this one."""
    os.kill(os.getpid(), signal.SIGQUIT)
    return f"{key} done"


def _publish_another(task: Any, key: str, more: Any) -> str:
    """Call a unique task, whose message goes to a queue: ``more`` names both."""
    name, queue = more
    task.app.tasks[name].apply_async((f"{key} from a body",), queue=queue)
    return f"{key} done"


def _look_at_lease(task: Any, key: str, more: Any) -> list[Any]:
    lease = task.lease
    lease.check()
    return [lease.key, lease.token, lease.fence, lease.held, lease.lost, lease.expires_in]


#: By the name a call gives, the argument ``then``: each function above, without its ``_``.
ENDINGS: Mapping[str, Callable[[Any, str, Any], Any]] = {
    name.removeprefix("_"): function
    for name, function in [*vars().items()]
    if isfunction(function) and function.__module__ == __name__
}
