"""What a task costs is mostly how much different code it touches, which opcodes tell: it cannot grow unseen.

The budgets are those of CPython 3.11 and Celery 5.7; elsewhere the figures are only printed.
"""

import json
import platform
import subprocess
import sys
from collections.abc import Mapping

import celery
import pytest

#: Opcodes above a plain task's; of a refused call in all, since there is no plain one to compare with.
BUDGETS = {
    "publish": -5430,
    "publish, elsewhere": 1105,
    "refused": 1470,
    "main process": 250,
    "child": -4420,
    "child, results elsewhere": 1640,
    "child, result ignored": 1630,
}


#: Counted once for all of them.
pytestmark = pytest.mark.xdist_group("footprint")


@pytest.fixture(scope="module")
def figures() -> Mapping[str, float]:
    """The opcodes of each step."""
    program = [sys.executable, "-m", "tests.integration.footprint"]
    answer: Mapping[str, float] = json.loads(subprocess.check_output(program, timeout=60))
    return answer


@pytest.mark.parametrize("step", BUDGETS)
def test_a_step_stays_within_its_budget(figures: Mapping[str, float], step: str) -> None:
    """Law 10: a cost in its place is two to three times that of a tight loop, as caches have been evicted."""
    print(f"{step}: {figures[step]:.0f} opcodes of {BUDGETS[step]}")  # noqa: T201  pytest shows it with -s
    if platform.python_implementation() != "CPython" or sys.version_info[:2] != (3, 11):
        pytest.skip("counted on CPython 3.11")
    if not celery.__version__.startswith("5.7."):
        pytest.skip("counted with Celery 5.7")
    assert figures[step] <= BUDGETS[step]
