"""What every test may use: a server, and a key prefix of its own.

``CELERY_REDISLOCK_TEST_URL`` (``redis://host:port/db``) names a server to use
instead of an embedded one. It is never flushed, paused or ended.
``CELERY_REDISLOCK_TEST_BINARY`` (a path) names the server to embed, instead of
the one that is found.
"""

import gc
import os
import secrets
import signal
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from celery_redislock.embedded import EmbeddedServer
from celery_redislock.locks import watchdog
from celery_redislock.locks.notes import NOTES, Notes
from celery_redislock.running import transition
from tests.cluster import Cluster, running_cluster

if TYPE_CHECKING:
    from tests.browser import Browser

# A shell without job control lets what it starts in the background ignore SIGINT, and so would every process
# that these tests start and interrupt (POSIX, "Signals and Error Handling").
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _fail(what: str) -> None:
    """Let what no machine foresees end a test: in a worker it is logged."""
    raise AssertionError(what)


transition.report = _fail


@pytest.hookimpl(hookwrapper=True, optionalhook=True)
def pytest_handlecrashitem(report: pytest.TestReport) -> Iterator[None]:
    """Let a test whose process crashed count as failed.

    pytest-rerunfailures runs it again if it is marked ``timing``, and would call the crash a rerun (16.7).
    """
    yield
    report.outcome = "failed"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one process run what looks at pages, and at the system that they show: each starts once."""
    for item in items:
        if {"browser", "broken"}.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("pages"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))  # the first one starts more than a dozen processes


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell each reason to skip once: a missing program alone skips a hundred tests."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, number in reasons.most_common():
        terminalreporter.write_line(f"SKIPPED {number}: {reason}")


@pytest.fixture(scope="session")
def embedded_server() -> Iterator[EmbeddedServer]:
    """The session's own server; whoever pauses or kills a server starts one for it."""
    with EmbeddedServer(binary=os.environ.get("CELERY_REDISLOCK_TEST_BINARY")) as server:
        yield server
        # Celery's results that are left over unsubscribe when they are collected: now, not for 20 s each
        # when nobody answers any more (celery before 5.7.0; there only unfinished ones). One that is
        # collected after its thread's PubSub opens a socket for it that nobody closes (seen with plain
        # Celery 5.5.0 to 5.7.0, backends/redis.py, cancel_for).
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture(scope="session")
def redis_url(request: pytest.FixtureRequest) -> str:
    """The server to test on, as redis-py writes it."""
    given = os.environ.get("CELERY_REDISLOCK_TEST_URL")
    return given or str(request.getfixturevalue("embedded_server").redis_url)


@pytest.fixture(scope="session")
def celery_url(request: pytest.FixtureRequest) -> str:
    """The server to test on, as Celery writes it (``broker_url``, ``result_backend``)."""
    given = os.environ.get("CELERY_REDISLOCK_TEST_URL")
    return given or str(request.getfixturevalue("embedded_server").url)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A Cluster that tests share; whoever kills a node runs one for it. They are of one group (xdist)."""
    with running_cluster(replicas=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """A headless Chromium; the tests of pages are of one group (xdist).

    Not the session's: ``asyncio.run`` of other tests in this process would fail while it runs.
    """
    from tests.acceptance.processes import program
    from tests.browser import running_browser

    with running_browser(program("chromium")) as browser:
        yield browser


@pytest.fixture
def prefix() -> str:
    """Start of key names that no other test uses."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture(autouse=True)
def _nobody_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no thread of this process tell a server what it has added up, while a test counts requests.

    It may run since a test before.
    """
    Notes.__init__(NOTES)
    NOTES._has_thread = True
    monkeypatch.setattr(NOTES, "write", lambda: None)


@pytest.fixture(autouse=True)
def _nothing_owed() -> Iterator[None]:
    """Watchdogs go on giving back what a server that is away was owed; not into the next test."""
    yield
    for each in list(watchdog._live):
        each._debts = []
