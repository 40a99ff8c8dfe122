"""An app for the tests of the command line; its server comes from the environment."""

import os

from celery import Celery

from celery_redislock import SingletonTask

app = Celery("cli_app", broker=os.environ["CLI_APP_URL"], include=["tests.integration.cli_app_more"])
app.conf.update(
    broker_transport_options={"global_keyprefix": os.environ["CLI_APP_PREFIX"]},
    broker_connection_timeout=1,
    task_publish_retry=False,
)


@app.task(base=SingletonTask, name="shop.sync_account")
def sync_account(account_id: int, deep: bool = False) -> None:
    """Take a lock per arguments."""


@app.task(base=SingletonTask, name="shop.nightly", lock_key="night")
def nightly() -> None:
    """Take one lock by name."""


@app.task(base=SingletonTask, name="shop.report", lock_key="shop.report")
def report(day: str) -> None:
    """Take one lock, called as the task is."""


@app.task(name="shop.plain")
def plain() -> None:
    """Be no concern of ours."""
