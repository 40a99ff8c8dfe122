"""The shop's app for its beats, the first of which to send ``backup`` stands still in the middle of its tick.

The message is in its queue then, and nobody knows. No application has such a module.
"""

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from celery.signals import after_task_publish

from examples.beat.shop import app, backup

__all__ = ["app", "stand_still"]

#: Seconds within which the story kills it.
PATIENCE = 60.0


@after_task_publish.connect
def stand_still(sender: str, headers: Mapping[str, str], **_: object) -> None:
    """Tell of each message of ``backup``; stand still after the first one of all beats."""
    if sender != backup.name:
        return
    print(f"    beat: {os.getpid()} has sent backup: {headers['id']}", flush=True)
    try:
        (Path(tempfile.gettempdir()) / "accident").touch(exist_ok=False)
    except FileExistsError:
        return
    time.sleep(PATIENCE)
