"""A job that takes longer than its lock lives, and longer than the broker waits for its acknowledgement."""

import os
import time
from pathlib import Path

from celery import Celery

from celery_redislock import SingletonTask

__all__ = ["TTL", "VISIBILITY", "app", "rebuild_index"]

LOCAL = "redis://localhost:6379/0"
#: Seconds a lock lives after its last renewal: far too short for production, where 30 is the default.
TTL = 4.0
#: Seconds after which the broker delivers a message again that was not acknowledged; the default is an hour.
VISIBILITY = 6.0

app = Celery(
    __name__,
    broker=os.environ.get("BROKER_URL", LOCAL),
    backend=os.environ.get("RESULT_URL", LOCAL),
)
app.conf.update(
    redislock_ttl=TTL,
    redislock_retry_delay=1.0,
    broker_transport_options={
        "visibility_timeout": VISIBILITY,
        # How often kombu looks for messages to deliver again. Its default, ten times ten seconds, would be
        # long to watch; before 5.7 it knows no other, but a worker looks when it starts. One that is killed
        # while it looks keeps the others from it.
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 2,
    },
)


@app.task(base=SingletonTask, lock_key=("name",), acks_late=True)
def rebuild_index(name: str, complete: str) -> str:
    """Work until the file ``complete`` is there, as long as the story wants.

    With ``acks_late`` the message stays with the broker until the job has ended.
    """
    print(f"{name}: begins in worker {os.getppid()}", flush=True)
    while not Path(complete).exists():
        time.sleep(0.05)
    print(f"{name}: ends in worker {os.getppid()}", flush=True)
    return f"{name} rebuilt"
