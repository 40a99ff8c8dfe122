"""Commands in log lines name the app as one has to type it."""

import sys
from concurrent.futures import ThreadPoolExecutor

import click
import pytest
from celery.bin.celery import celery

from celery_redislock import log


@pytest.fixture(autouse=True)
def app_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has asked yet."""
    monkeypatch.setattr(log, "_app_given", [])


@pytest.mark.parametrize(
    "options", [["-A", "proj.celery:app"], ["-qAproj.celery:app"], ["--app=proj.celery:app"]]
)
def test_it_is_the_one_that_celerys_command_line_was_given(options: list[str]) -> None:
    """However it was given; and in threads, too, once the main thread has asked."""
    with celery.make_context("celery", [*options, "worker"]):
        assert log.command("redislock list") == "celery -A proj.celery:app redislock list"
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(log.command, "report").result() == "celery -A proj.celery:app report"


@pytest.mark.parametrize("has_celery", [True, False])
def test_another_program_prints_no_guess(monkeypatch: pytest.MonkeyPatch, *, has_celery: bool) -> None:
    """An app that another program was given is a name of that program's; an app object has none."""
    server = click.Command("server", params=[click.Option(["--app"])])
    if not has_celery:
        monkeypatch.delitem(sys.modules, "celery.bin.celery")
    with server.make_context("server", ["--app", "web:app"]):
        assert log.command("report") == "celery -A YOUR_APP report"
    with celery.make_context("celery", ["worker"]):
        assert log.command("report") == "celery -A YOUR_APP report"
