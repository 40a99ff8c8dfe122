"""Law 10, cheap: what an import costs, counted; nothing here is timed.

``test_everywhere`` counts the three trips of a whole task, in every pool and on every broker;
``test_law_5_freed_before_seen`` those of a run and its result; ``integration/test_claim_and_publish.py``
those of a publish, and ``integration/test_round_trips.py`` those of each verb.
"""

import subprocess
import sys
import textwrap

import pytest

from tests.acceptance.paths import FUSED

pytestmark = [
    pytest.mark.law(10),
    pytest.mark.paths(FUSED, why="nothing is published"),
]


def test_before_the_first_lock_nothing_is_imported_connected_or_started(celery_url: str) -> None:
    """Nothing runs and nothing is imported before it is needed."""
    code = """
        import sys, threading
        opened = []
        sys.addaudithook(lambda event, args: opened.append(event) if event == "socket.connect" else None)
        from celery import Celery
        from celery_redislock import SingletonTask
        app = Celery("cheap", broker=sys.argv[1], backend=sys.argv[1])
        @app.task(base=SingletonTask, lock_key="account:{account_id}")
        def sync(account_id): pass
        assert sync.name.endswith("sync")  # declared, and its options checked
        print("redis" in sys.modules, threading.active_count(), opened)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), celery_url],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.split("\n")[0] == "False 1 []"
