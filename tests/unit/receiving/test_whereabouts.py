"""What is said of where a message is, without a broker."""

from celery import Celery

from celery_redislock.receiving import whereabouts


def test_workers_that_nobody_can_ask_are_not_told_to_be_started() -> None:
    """As with SQS, where remote control is off and a worker runs."""
    app = Celery(broker="redis://127.0.0.1:1/0")  # nobody is there
    app.conf.worker_enable_remote_control = False

    said = whereabouts._consumers(app, "celery")

    assert "worker_enable_remote_control is off" in said
    assert "start one" not in said
