"""A thread that no greenlet holds up, and how it reports to greenlets.

gevent makes greenlets of threads, and one that never switches would starve the
watchdog. So that runs in a native thread there, with a hub and sockets of its
own. It may get a lock of gevent's only when the other hub runs: a log line or a
callable of the user's, which may take one, is sent to that hub. Imports take such
locks as well, so what such a thread would be the first to import is imported before.
"""

import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from typing import Any

#: In a thread that runs beside greenlets: their hub. Elsewhere ``None``.
greenlets: ContextVar[Any] = ContextVar("greenlets", default=None)

#: In such a thread: its own hub's mark, by which it keeps its sockets apart. Elsewhere ``None``.
beside: ContextVar[object] = ContextVar("beside", default=None)


def original(module: str, name: str) -> Any:
    """Return an object of the standard library as it was before gevent replaced it."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey.get_original(module, name) if monkey else getattr(import_module(module), name)


def has_greenlets() -> bool:
    """Whether gevent has replaced threads, or their sockets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and any(map(monkey.is_module_patched, ("threading", "socket")))


def start_thread(run: Callable[[], None], name: str) -> None:
    """Start a daemon thread: a native one where gevent has replaced threads, or their sockets."""
    if not has_greenlets():
        threading.Thread(target=run, name=name, daemon=True).start()
        return
    theirs = greenlets.get()
    if theirs is None:  # a hub that has not run yet is false
        theirs = sys.modules["gevent"].get_hub()
        theirs.resolver  # noqa: B018  imports how gevent looks names up, which it does at its first use

    def run_beside() -> None:
        greenlets.set(theirs)
        beside.set(object())
        threading.current_thread().name = name
        run()

    original("_thread", "start_new_thread")(run_beside, ())


def tell(report: Callable[..., object], *args: object, **facts: object) -> None:
    """Call it here; in a thread beside greenlets, send it to them: it is called when one of them switches."""
    hub = greenlets.get()
    if hub is None or hub.loop is None:
        report(*args, **facts)
    else:
        hub.loop.run_callback_threadsafe(sys.modules["gevent"].spawn, partial(report, *args, **facts))
