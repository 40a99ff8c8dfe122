"""Play each case of a table with a module, and print what came of it by name, as JSON.

``python -m tests.peers celery_once celery_redislock.compat.celery_once redis://127.0.0.1:6379/0``
"""

import json
import sys
from importlib import import_module

from tests.peers.stage import Stage


def main(table: str, module: str, url: str) -> None:
    library = import_module(module)
    seen = {}
    for case in import_module(f"tests.peers.{table}").CASES:
        with Stage(url, case.settings) as stage:
            seen[case.name] = case.play(library, stage)
    sys.stdout.write(json.dumps(seen))


main(*sys.argv[1:])
