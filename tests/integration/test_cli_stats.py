"""``celery redislock stats`` and ``exporter``: what the scripts count, as a table and for Prometheus."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from celery_redislock.locks.lease import new_token
from tests.integration.commands import ROOT
from tests.integration.test_cli import APP, Shell

TIMED = {"task": "shop.nightly", "host": "web-1", "pid": 7, "on_conflict": "skip", "timed": 1}


@pytest.fixture
def shell(redis_url: str, celery_url: str, prefix: str) -> Iterator[Shell]:
    with Shell.on(redis_url, celery_url, prefix) as shell:
        yield shell


def play(shell: Shell) -> None:
    """One call that ran, one that runs and is late, two that were skipped, one that waits."""

    def said(state: str, **more: object) -> str:
        return json.dumps({**TIMED, "state": state, **more}, separators=(",", ":"))

    store = shell.store
    claim, first, run = new_token("job-1"), new_token("job-1"), new_token("job-2")
    store.acquire("night", claim, 60.0, facts=said("queued", since=1.0))
    store.acquire("night", first, 60.0, facts=said("running", since=9e9), instead_of=claim, starts_run=True)
    store.release("night", first)
    store.acquire("night", run, 900.0, facts=said("running", since=1.0, ttl=3000), starts_run=True)
    store.happened("night", task="shop.nightly", what="started", times=2)
    for owner in ("job-3", "job-4"):
        store.acquire("night", new_token(owner), 60.0, facts=said("queued"))
    shell.park("night", "job-5")


def test_counts_holders_and_waiters_are_shown_by_task_and_told_to_programs(shell: Shell) -> None:
    play(shell)
    done = shell.celery("stats")
    head, row = (re.split("  +", line.strip()) for line in done.stdout.splitlines()[1:])
    table = dict(zip(head, row, strict=True))

    assert "days" in table.pop("WAIT")
    counted = {"ACCEPTED": "1", "STARTED": "2", "SKIPPED": "2", "WAITED": "1"}
    held = {"RUNNING": "1", "LATE": "1", "IN LINE": "1", "HOLD": "0.0 s"}
    nothing = dict.fromkeys(["ASKED", "MERGED", "LOST", "FORCED", "RESTORED", "QUEUED"], "-")
    assert table == {"TASK": "shop.nightly", **counted, **held, **nothing}

    document = json.loads(shell.celery("stats", "--task", "shop.*", "--json").stdout)

    assert document["since"] > 0
    assert document["tasks"]["shop.nightly"]["events"]["skipped"] == 2
    assert json.loads(shell.celery("stats", "--task", "x.*", "--json").stdout)["tasks"] == {}


def test_a_watch_shows_them_anew_until_it_is_ended(shell: Shell) -> None:
    """Ended by hand, it ends well."""
    program = [sys.executable, "-m", "celery", "-A", APP, "redislock", "stats", "--watch", "0.1"]
    with subprocess.Popen(
        program, cwd=ROOT, env=shell.environment, stdout=subprocess.PIPE, text=True
    ) as watch:
        assert watch.stdout is not None
        shown = [watch.stdout.readline() for _ in range(6)]
        watch.send_signal(signal.SIGINT)
        watch.stdout.read()
        assert watch.wait(30) == 0
    assert sum("nothing was counted, and nothing is held" in line for line in shown) == 3


@contextmanager
def exporting(shell: Shell) -> Iterator[str]:
    """Serve what Prometheus reads; yields the address."""
    program = [sys.executable, "-m", "celery", "-A", APP, "redislock", "exporter", "--port", "0"]
    with subprocess.Popen(
        program, cwd=ROOT, env=shell.environment, stdout=subprocess.PIPE, text=True
    ) as served:
        try:
            assert served.stdout is not None
            yield served.stdout.readline().split()[-1]
        finally:
            served.kill()


def scrape(address: str) -> dict[tuple[str, ...], float]:
    """What Prometheus' own parser reads there, by name and labels."""
    with urlopen(address, timeout=30) as answer:  # noqa: S310  our own
        text = answer.read().decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_reads_what_the_lock_server_counts(shell: Shell) -> None:
    """One exporter for all workers: it asks the lock server. Buckets add up, as a histogram's do."""
    play(shell)
    shell.celery("schedule", "pause", "tick")
    with exporting(shell) as address:
        found = scrape(address)
        port = address.rpartition(":")[2].partition("/")[0]
        second = shell.celery("exporter", "--port", port)

    assert second.returncode == 2
    assert second.stderr.startswith(f"Error: cannot listen at 127.0.0.1:{port}: ")
    assert address.startswith("http://127.0.0.1:")
    assert found["redislock_up",] == 1
    assert found["redislock_events_total", "skipped", "shop.nightly"] == 2
    assert found["redislock_held", "running", "shop.nightly"] == 1
    assert found["redislock_oldest_seconds", "running", "shop.nightly"] > 1e9
    assert found["redislock_late", "shop.nightly"] == 1
    assert found["redislock_in_line", "shop.nightly"] == 1
    assert found["redislock_hold_seconds_bucket", "0.1", "shop.nightly"] == 1
    assert found["redislock_hold_seconds_count", "shop.nightly"] == 1
    assert found["redislock_wait_seconds_bucket", "3600", "shop.nightly"] == 0
    assert found["redislock_wait_seconds_bucket", "+Inf", "shop.nightly"] == 1
    assert found["redislock_wait_seconds_sum", "shop.nightly"] > 1e9
    assert found["redislock_beat_paused", "tick"] == 1

    # Of a name that nobody serves a dashboard shows an empty panel, and an alert on it never fires.
    served = {name for name, *_ in found}
    pages = [(ROOT / "docs" / name).read_text("utf-8") for name in ("grafana.json", "monitoring.md")]
    asked = {name for page in pages for name in re.findall(r"redislock_[a-z_]+", page)}
    histograms = {"redislock_wait_seconds", "redislock_hold_seconds"}  # named as a whole

    assert asked - {"redislock_metrics", *histograms} <= served
    assert {name.removesuffix("_count") for name in served if name.endswith("_seconds_count")} == histograms
