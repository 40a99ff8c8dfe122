"""A test that failed while the machine stood still is run once more, and both are told.

Much of what is proved here has to do with time: a lease that is renewed is kept,
a request is answered or given up. On a machine that stands still for longer than
a lease, the lease is lost, as it should be, and the test has shown nothing about
this package. That is measured (:mod:`tests.standstill`), not supposed: a failure
without a standstill is a failure at once, the second attempt's is final, what was
run again is counted and printed with its traceback, and more than a few are a failure.

``pytest-rerunfailures`` is not used: it also runs a test again whose process
crashed, whatever its condition says (16.7, ``pytest_handlecrashitem``).
"""

import time
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.standstill import LONG, Meter

_METER = pytest.StashKey[Meter]()
_IS_SECOND = pytest.StashKey[bool]()

#: The outcome of the attempts that do not count.
AGAIN = "run again"
#: How many there may be before the whole run counts as failed: nothing can be judged on such a machine.
MOST = 20


def pytest_unconfigure(config: pytest.Config) -> None:
    if _METER in config.stash:
        config.stash[_METER].close()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    if _METER not in item.config.stash:
        item.config.stash[_METER] = Meter()
    if _IS_SECOND not in item.stash:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports, still = _attempt(item, nextitem)
    if _IS_SECOND in item.stash or not still:
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True
    for report in reports:
        if report.failed:
            report.outcome = AGAIN
            item.ihook.pytest_runtest_logreport(report=report)
    item.stash[_IS_SECOND] = True
    item._initrequest()  # fixtures anew, as they are for the first attempt
    # By the hook, so that pytest-timeout and others begin anew as well.
    again: bool = item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
    return again


def _attempt(item: pytest.Item, nextitem: pytest.Item | None) -> tuple[list[pytest.TestReport], float]:
    """Run a test; return its reports and, if it failed, for how many seconds the machine stood still."""
    began = time.monotonic()
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if not any(each.failed for each in reports):
        return reports, 0.0
    still = item.config.stash[_METER].since(began)
    told = f"stood still for {still:.2f} s" if still else f"never stood still for {LONG} s"
    for report in reports:
        if report.failed:
            report.sections.append(("the machine", f"It {told} during this attempt."))
    return reports, still


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, Any] | None:
    if report.outcome == AGAIN:
        return AGAIN, "A", (AGAIN.upper(), {"yellow": True})
    return None


def pytest_sessionfinish(session: pytest.Session) -> None:
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and len(terminal.stats.get(AGAIN, [])) > MOST:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = terminalreporter.stats.get(AGAIN, [])
    if reports:
        terminalreporter.section("failed while the machine stood still, and run again")
    if len(reports) > MOST:
        terminalreporter.line(f"More than {MOST}: this machine cannot judge, and the run counts as failed.")
    for report in reports:
        terminalreporter.section(report.nodeid, sep="_", yellow=True)
        report.toterminal(terminalreporter._tw)
        terminalreporter.line(report.sections[-1][1])
