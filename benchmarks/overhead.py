"""What a unique task costs, against a plain Celery task, celery-singleton, celery-once and celery-once-task.

::

    python benchmarks/overhead.py [--quick] [--json PATH]

Starts its own servers and its own workers, and makes an environment of its own
for the other packages. ``--quick`` only shows that it runs.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.cores import pin, places
from benchmarks.draining import draining
from benchmarks.network import through_network
from benchmarks.pairs import report, say
from benchmarks.peers import run_beside_peers
from benchmarks.publishing import publishing, publishing_through

#: Seconds one way. With what the proxy itself takes, a trip is about 0.7 ms; a row says how much it was.
NETWORK = 0.0002


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few short rounds: shows only that it runs")
    parser.add_argument("--json", metavar="PATH", help="write the figures as JSON too; - for stdout")
    arguments = parser.parse_args()
    run_beside_peers()
    import redis

    from celery_redislock.embedded import EmbeddedServer

    everywhere, figures = places(), []
    if not everywhere[-1].client:
        say("this system cannot pin processes to cores: times differ by where its scheduler puts them")
    with EmbeddedServer(port=0) as server, EmbeddedServer(port=0) as other:
        os.environ["CELERY_REDISLOCK_BENCH_URL"] = server.url
        client = redis.Redis.from_url(server.redis_url)
        for place in everywhere:
            pin(place.client, os.getpid())
            pin(place.server, server.pid, other.pid)
            figures += publishing(client, other.url, place.name, quick=arguments.quick)
        with through_network(server.port, NETWORK) as (port, proxy):
            pin(place.server, proxy)
            figures += publishing_through(port, client, quick=arguments.quick)
        figures += draining(server, other, everywhere, quick=arguments.quick)
    report("overhead of a unique task", figures, json_path=arguments.json)


if __name__ == "__main__":
    main()
