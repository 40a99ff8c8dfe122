"""An app whose settings come from the environment, as JSON, for the tests of ``doctor``."""

import json
import os

from celery import Celery

from celery_redislock import SingletonTask

app = Celery("doctor_app")
app.conf.update(broker_connection_timeout=1, **json.loads(os.environ["DOCTOR_APP"]))


@app.task(base=SingletonTask, name="shop.sync_account")
def sync_account(account_id: int) -> None:
    """Take a lock per arguments."""


@app.task(base=SingletonTask, name="shop.charge", lock="while_executing", lock_key="account:{account_id}")
def charge(account_id: int) -> None:
    """Wait in line."""


@app.task(base=SingletonTask, name="shop.confirm", lock="until_expired", lock_period=3 * 86400)
def confirm(order: int) -> None:
    """Take a period."""


@app.task(name="shop.export")
def export() -> None:
    """Take no lock."""
