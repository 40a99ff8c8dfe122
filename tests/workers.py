"""What every worker process needs that a test or an attack starts."""

import os
import select
import threading

#: Let kombu look for messages to restore every second; its own default, ten times ten, would take minutes.
#: A worker that is killed while it looks keeps the others from it, by default for five minutes.
SWEEPING = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1, "unacked_mutex_expire": 2}


def end_with_parent() -> None:
    """End this worker when its starter is gone, however that ended: its end of our standard input closes."""

    def watch() -> None:
        # Not read alone, which would stop every greenlet of a pool of these.
        while select.select([0], [], []) and os.read(0, 1):
            pass
        os.kill(os.getpid(), 9)

    threading.Thread(target=watch, daemon=True).start()
