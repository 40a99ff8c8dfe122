"""The pytest plugin for users' tests, as their own ``conftest.py`` meets it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_conftest_may_name_the_plugin_and_import_from_it(tmp_path: Path) -> None:
    """Pytest warns of a plugin that is imported before it is named, unless it says it has no asserts."""
    (tmp_path / "conftest.py").write_text(
        'from celery_redislock.testing import memory_locks\npytest_plugins = ["celery_redislock.testing"]\n'
    )
    (tmp_path / "test_shop.py").write_text(
        "import os\n\ndef test_off(redislock_off):\n    assert os.environ['REDISLOCK_ENABLED'] == '0'\n"
    )

    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
