"""An embedded server that a test can pause, kill and start again."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import redis

from celery_redislock import embedded
from tests.facts import lives, wait_until

#: Seconds until a signal has had its effect, on the busiest machine.
_PATIENCE = 10.0
#: Seconds in which a replica is promoted, and a server that was killed follows it.
_FAILOVER = 60.0


class EmbeddedServer(embedded.EmbeddedServer):
    """The package's server, with verbs that signal its process, which the test has started."""

    def __init__(
        self, *, data_dir: Path | str | None = None, extra_args: Sequence[str] = (), **options: Any
    ) -> None:
        """Take what the package's server takes, and a directory to keep the data in."""
        # Rewritten, the file would not say any more what happened: some read it as a record.
        whole = ["--auto-aof-rewrite-percentage", "0"]
        durable = ["--appendonly", "yes", "--dir", str(data_dir), *whole] if data_dir else []
        super().__init__(extra_args=[*extra_args, *durable], **options)

    @property
    def is_running(self) -> bool:
        """Whether the server's process exists, paused or not."""
        return lives(self.pid)

    def pause(self) -> None:
        """Stop the process (SIGSTOP): connections stay open, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)
        assert wait_until(self._is_stopped, _PATIENCE)

    def resume(self) -> None:
        """Let a paused process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process as a crash would; ``restart()`` starts it again."""
        os.kill(self.pid, signal.SIGKILL)
        assert wait_until(lambda: not self.is_running, _PATIENCE)

    def restart(self) -> None:
        """End the server if it runs, and start it at the same address; only ``data_dir`` keeps its data."""
        launch = self._launched
        launch.end()
        self._launch = type(launch)(self.binary, self._extra_args, launch.directory, launch.port)

    def _is_stopped(self) -> bool:
        stat = Path(f"/proc/{self.pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "T"


@contextmanager
def failing_over(folder: Path) -> Iterator[tuple[EmbeddedServer, EmbeddedServer, EmbeddedServer]]:
    """A primary, its replica, and the Sentinel that promotes it within seconds and calls them ``mine``."""
    config = folder / "sentinel.conf"
    with EmbeddedServer(port=0) as primary:
        lines = [
            f"monitor mine 127.0.0.1 {primary.port} 1",
            "down-after-milliseconds mine 500",
            "failover-timeout mine 2000",
        ]
        config.write_text("".join(f"sentinel {line}\n" for line in lines))
        with (
            EmbeddedServer(port=0, extra_args=["--replicaof", "127.0.0.1", str(primary.port)]) as replica,
            EmbeddedServer(port=0, extra_args=[str(config), "--sentinel"]) as sentinel,
            closing(redis.Redis(port=sentinel.port or 0)) as client,
        ):
            assert wait_until(lambda: bool(client.sentinel_slaves("mine")), 3 * _PATIENCE)
            yield primary, replica, sentinel


def follow(server: EmbeddedServer, primary: EmbeddedServer, sentinel: EmbeddedServer) -> None:
    """Start a server that was killed; it follows the other one, and could take its place again."""
    server.restart()
    with closing(redis.Redis(port=server.port or 0)) as client:
        client.replicaof("127.0.0.1", str(primary.port))
        up = {"role": "slave", "master_link_status": "up"}.items()
        assert wait_until(lambda: up <= dict(client.info("replication")).items(), _FAILOVER)  # type: ignore[call-overload]

    with closing(redis.Redis(port=sentinel.port or 0, decode_responses=True)) as client:

        def knows() -> bool:
            replicas: Any = client.sentinel_slaves("mine")
            return [(each["flags"], each["master-link-status"]) for each in replicas] == [("slave", "ok")]

        assert wait_until(knows, _FAILOVER)
