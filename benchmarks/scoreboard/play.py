"""Play one scenario with one library: in its environment, on a server and with a worker of its own.

Writes the outcome as JSON to standard output, and everything else to standard
error. Instead of a scenario's number, ``about`` tells what it is played with.
"""

import argparse
import json
import os
import platform
import signal
import sys
from contextlib import closing
from importlib.metadata import version
from types import FrameType
from typing import Any

import celery_redislock
from benchmarks.scoreboard.judging import Outcome
from benchmarks.scoreboard.libraries import OURS, PLAN
from benchmarks.scoreboard.scenarios import SCENARIOS
from benchmarks.scoreboard.stage import NeverCameError, Stage
from benchmarks.scoreboard.worker import CONCURRENCY
from celery_redislock.embedded import EmbeddedServer

__all__ = ["main"]


def main() -> None:
    """Play the scenario named on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("scenario")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    # A port: not every library knows unix sockets.
    with EmbeddedServer(port=0) as server:
        if arguments.scenario == "about":
            print(json.dumps(_about(arguments.library, server.redis_url)))
            return
        scenario = SCENARIOS[arguments.scenario]
        plan = {
            "library": arguments.library,
            "url": server.url,
            "visibility": scenario.visibility,
            "term": scenario.term,
        }
        os.environ[PLAN] = json.dumps(plan)
        stage = Stage(quick=arguments.quick, verbose=arguments.verbose)
        with closing(stage):
            print(json.dumps(_outcome(arguments.scenario, stage).as_json()))


def _outcome(number: str, stage: Stage) -> Outcome:
    scenario = SCENARIOS[number]
    if not scenario.starts_worker:
        stage.start_worker()
        stage.wait_ready()
    try:
        return scenario.play(stage)
    except NeverCameError as error:
        return Outcome(False, str(error))


def _about(library: str, url: str) -> dict[str, Any]:
    import redis

    server = redis.Redis.from_url(url, decode_responses=True).info("server")
    kind = "Valkey" if "valkey_version" in server else "Redis"
    return {
        "version": celery_redislock.__version__ if library == OURS else version(library),
        "conditions": {
            **{name: version(package) for name, package in (("Celery", "celery"), ("kombu", "kombu"))},
            "redis-py": version("redis"),
            kind: server.get("valkey_version") or server["redis_version"],
            "Python": platform.python_version(),
            "a prefork pool of": str(CONCURRENCY),
        },
    }


def _interrupt(signum: int, frame: FrameType | None) -> None:
    sys.exit(1)


if __name__ == "__main__":
    main()
    # Results that are dropped when the interpreter ends would try to reach the server, which has gone.
    sys.stdout.flush()
    os._exit(0)
