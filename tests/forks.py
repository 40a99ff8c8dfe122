"""Forks of a process that tests run in, and a child that must get through something, within a deadline."""

import faulthandler
import os
import signal
import traceback
import warnings
from collections.abc import Callable


def fork() -> int:
    """``os.fork``, without Python's warning that another thread runs: pytest's plug-ins have some.

    Python 3.15 would raise it in the parent, which would leave its child alone. (Older ones drop the error.)
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)
        return os.fork()


def gets_through(action: Callable[[], object], *, within: int = 10) -> bool:
    """Fork, act in the child, reap it: whether it came to the end, by itself and in time.

    A child that is late says where it was, on stderr.
    """
    pid = fork()
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
