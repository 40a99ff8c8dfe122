"""What workers and beats of a Django project write, whose ``LOGGING`` is the one of the pages."""

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

from celery_redislock.locks import Lock, connect
from tests.acceptance.processes import ROOT, started, until
from tests.acceptance.terms import PATIENCE
from tests.pages import blocks_of

if importlib.util.find_spec("django") is None and not os.environ.get("CI"):
    pytest.skip("Django is not installed", allow_module_level=True)

SETTINGS = """
SECRET_KEY = "of a test"
USE_TZ = True
CELERY_BROKER_URL = CELERY_RESULT_BACKEND = {url!r}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_DEFAULT_QUEUE = {key!r}
CELERY_BEAT_SCHEDULE = {{"report": {{"task": "logged.report", "schedule": 0.5}}}}
"""

PROJECT = """
import os
from celery import Celery
from celery_redislock import SingletonTask

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "logged_settings")
app = Celery("logged")
app.config_from_object("django.conf:settings", namespace="CELERY")


@app.task(base=SingletonTask, name="logged.report", lock_key={key!r})
def report(): ...


@app.task(base=SingletonTask, name="logged.pay", lock="while_executing", on_conflict="skip", lock_key={key!r})
def pay(): ...


if __name__ == "__main__":
    pay.delay()
"""

#: As Celery writes its own lines: time, level, process.
DATED = (
    r"^\[\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d,\d{{3}}: INFO/{process}\] skipped logged\.{task}\[.+\] at {side}: "
)


@pytest.mark.slow
def test_lines_of_workers_and_beats_have_time_level_and_process(
    tmp_path: Path, celery_url: str, redis_url: str, key: str
) -> None:
    """Not bare among Celery's dated lines, and each of them once."""
    (logging,) = [
        block.code
        for block in blocks_of("python")
        if block.page == "docs/quickstart.md" and "LOGGING = " in block.code
    ]
    (tmp_path / "logged_settings.py").write_text(SETTINGS.format(url=celery_url, key=key) + logging)
    (tmp_path / "logged.py").write_text(PROJECT.format(key=key))
    here = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "C_FORCE_ROOT": "1"}
    celery = [sys.executable, "-m", "celery", "-A", "logged"]
    schedule = ["-s", str(tmp_path / "schedule"), "--pidfile="]

    with (
        Lock(connect(redis_url), key),
        started([*celery, "beat", "-l", "INFO", *schedule], here, tmp_path) as beat,
        started([*celery, "worker", "-c", "1", "-l", "INFO"], here, tmp_path) as worker,
        started([sys.executable, str(tmp_path / "logged.py")], here, tmp_path),
    ):
        for process, name, task, side in (
            (beat, "MainProcess", "report", "publish"),
            (worker, "ForkPoolWorker-1", "pay", "start"),
        ):
            until(
                lambda process=process: "skipped logged." in process.log, PATIENCE, process, "it has skipped"
            )
            lines = [line for line in process.log.splitlines() if "skipped logged." in line]
            dated = re.compile(DATED.format(process=name, task=task, side=side))
            assert all(dated.match(line) for line in lines), process.log
            owners = re.findall(r"\[\S+\] at ", "\n".join(lines))
            assert len(owners) == len({*owners})
