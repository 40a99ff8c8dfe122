"""A forked child that must get through something, within a deadline."""

import faulthandler
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def gets_through(action: Callable[[], object], *, within: int = 10) -> bool:
    """Fork, act in the child, reap it: whether it came to the end, by itself and in time.

    A child that is late says where it was, on stderr.
    """
    pid = os.fork()
    if not pid:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.register(signal.SIGALRM, file=2, chain=True)
            signal.alarm(within)
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


@contextmanager
def held_elsewhere(lock: Any) -> Iterator[None]:
    """Another thread holds the lock, for the block."""
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            let_go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(10)
        yield
    finally:
        let_go.set()
        thread.join(10)
