"""An "app" that writes down what a process finds when it starts, and ends it with status 3."""

import json
import os
import random
import signal
import sys
import threading

_started = [name for name in sys.modules if name.startswith(("celery_redislock.", "tests."))]
_handlers = {
    number.name: str(signal.getsignal(number)) for number in signal.Signals if number < signal.SIGRTMIN
}

sys.stdout.write(
    json.dumps(
        {
            "argv": sys.argv,
            "path": sys.path,
            "folder": os.getcwd(),  # noqa: PTH109  as it is, not resolved
            "environ": dict(os.environ),
            "main": sys.modules["__main__"].__spec__.name,  # type: ignore[union-attr]
            "leads": [os.getsid(0), os.getpgrp()] == [os.getpid()] * 2,
            "files": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],  # noqa: PTH208  but its own
            "signals": _handlers,
            "threads": threading.active_count(),
            "ours": sorted(set(_started) - {"tests.acceptance", __name__}),
            "chance": random.random(),  # noqa: S311  not for secrets
        }
    )
    + "\n"
)
sys.exit(3)
