"""``celery -A proj redislock doctor`` and ``celery-redislock doctor``, on systems that are really broken."""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from celery_redislock.locks import Lock, connect
from tests.facts import wait_until
from tests.integration.commands import ROOT, run_command
from tests.pages import acl_rule, blocks_of, recipes_of_the_readme
from tests.servers import EmbeddedServer

APP = "tests.integration.doctor_app"

#: Results are kept for longer than any period, so that nothing is wrong.
WELL = {"result_expires": 7 * 86400}

#: Seconds until a worker answers, on the busiest machine.
PATIENCE = 60.0


class Answer(NamedTuple):
    """What ``doctor`` says."""

    status: int
    findings: list[dict[str, str]]

    def of(self, level: str) -> list[str]:
        """The texts of this level."""
        return [each["text"] for each in self.findings if each["level"] == level]


def _environment(settings: Mapping[str, Any]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k != "REDIS_URL" and not k.startswith("CELERY_")}
    return {**kept, "DOCTOR_APP": json.dumps(settings)}


def _read(done: subprocess.CompletedProcess[str]) -> Answer:
    # A misspelt setting is told there by every program that takes no lock, too.
    assert [line for line in done.stderr.splitlines() if " is no setting; " not in line] == []
    document = json.loads(done.stdout)
    assert list(document) == ["version", "server", "findings"]
    return Answer(done.returncode, document["findings"])


def of_server(url: str, prefix: str = "redislock") -> Answer:
    """Ask about a server only."""
    words = ["--url", url, "--prefix", prefix, "doctor", "--json"]
    return _read(run_command("celery-redislock", words, _environment({})))


def of_app(url: str, **settings: Any) -> Answer:
    """Ask about an app whose broker, results and locks are on one server, unless its settings differ."""
    conf = {"broker_url": url, "result_backend": url, **WELL, **settings}
    return _read(run_command("celery", ["-A", APP, "redislock", "doctor", "--json"], _environment(conf)))


@contextmanager
def server_with(*arguments: str) -> Iterator[str]:
    """Yield the URL of a server of one's own that was started with these arguments."""
    with EmbeddedServer(port=0, extra_args=arguments) as server:
        yield _url(server)


def _url(server: EmbeddedServer) -> str:
    return f"redis://127.0.0.1:{server.port}/0"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where a server runs with which nothing is wrong, and which keeps nothing on disk."""
    with server_with() as url:
        yield url


@contextmanager
def worker(url: str, **settings: Any) -> Iterator[str]:
    """Run a real worker with these settings; yield its name when it answers."""
    conf = {"broker_url": url, "result_backend": url, **WELL, **settings}
    name = f"w{secrets.token_hex(4)}@here"
    command = [sys.executable, "-m", "celery", "-A", APP, "worker", "-P", "solo", "-n", name, "-l", "warning"]
    process = subprocess.Popen(command, cwd=ROOT, env=_environment(conf), stderr=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        assert wait_until(lambda: name in str(of_app(url, **settings).findings), PATIENCE)
        yield name
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) is not None


def one(texts: list[str], *said: str) -> str:
    """The one text there is, which says all this."""
    (text,) = texts
    assert [part for part in said if part not in text] == []
    return text


class TestServer:
    def test_with_a_server_that_is_well_it_says_where_locks_are_and_ends_with_0(self, url: str) -> None:
        """What is told of it is no risk: the exit status is for a script."""
        answer = of_server(url)
        assert (answer.status, answer.of("warning"), answer.of("error")) == (0, [], [])
        assert f"{url} takes locks, under the prefix redislock: " in answer.findings[0]["text"]
        one(answer.of("note"), "it keeps no append-only file", "appendonly yes")
        assert [text for text in answer.of("ok") if "s apart" in text]
        people = run_command("celery-redislock", ["--url", url, "doctor"], _environment({}))
        assert (people.returncode, people.stderr) == (0, "")
        assert [line.split()[0] for line in people.stdout.splitlines()] == ["ok", "ok", "note", "ok"]

    def test_one_that_deletes_locks_is_a_warning_which_is_given_once(self) -> None:
        """Law 1: short of memory it frees the key of a running task."""
        with server_with("--maxmemory-policy", "allkeys-lru") as url:
            alone, beside = of_server(url), of_app(url)
        assert alone.status == 1
        one(alone.of("warning"), "'allkeys-lru'", "set it to 'noeviction'")
        assert [text for text in beside.of("warning") if "allkeys-lru" in text] == alone.of("warning")

    def test_one_whose_memory_is_nearly_full_is_told_with_figures(self) -> None:
        """A full one accepts no call any more."""
        with server_with() as url, closing(redis.Redis.from_url(url)) as client:
            # A request of that size would stay in one of the server's buffers, for a while.
            client.setrange("filler", 50_000_000, "x")
            of_server(url)  # its connections, and the scripts, take memory, too
            used: Any = client.info("memory")
            client.config_set("maxmemory", int(used["used_memory"] / 0.95))
            answer = of_server(url)
        assert answer.status == 1
        one(answer.of("warning"), "95% of its memory", "raise maxmemory")

    def test_locks_under_another_prefix_are_told_and_a_name_that_looks_like_it_is_not(self) -> None:
        """Publishers and workers that differ in it do not exclude each other."""
        with (
            server_with() as url,
            closing(connect(url, prefix="staging")) as store,
            closing(redis.Redis.from_url(url)) as client,
            Lock(store, "n"),
        ):
            client.zadd("articles:index", {"no lock": 9e12})
            client.set("cache:index", "another type")
            here, there = of_server(url), of_server(url, "staging")
        assert (here.status, there.status) == (1, 0)
        one(here.of("warning"), "under the prefix 'staging' as well", "one redislock_prefix")

    def test_locks_of_other_libraries_that_never_expire_are_counted(self) -> None:
        """They refuse calls for ever where their message was run by this package's worker."""
        with server_with() as url, closing(redis.Redis.from_url(url)) as client:
            for number in range(1200):  # of more keys than are looked at by one request
                client.set(f"SINGLETONLOCK_{number}", "id", ex=None if number < 1100 else 60)
            client.set("qo_shop.sync_a-7", "token", ex=60)
            answer = of_server(url)
        assert (answer.status, answer.of("warning"), answer.of("error")) == (0, [], [])
        told = [text for text in answer.of("note") if "append-only" not in text]
        one(told, "1100 locks of celery-singleton (SINGLETONLOCK_*)", "no time to live", "delete them when")

    def test_a_user_who_may_not_look_for_them_is_told_so(self) -> None:
        """With the ACL of the page all else is answered."""
        with server_with() as url, closing(redis.Redis.from_url(url)) as client:
            client.execute_command(*acl_rule())  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
            answer = of_server(url.replace("//", "//locks:password@"))
        assert (answer.status, answer.of("warning"), answer.of("error")) == (0, [], [])
        assert [text for text in answer.of("note") if "other prefixes could not be looked for" in text]
        assert "password" not in str(answer.findings)


class TestServerThatTakesNoLocks:
    """Exit status 2; and one finding about the server, because nothing else can be asked."""

    def check(self, answer: Answer, *said: str) -> None:
        assert answer.status == 2
        one(answer.of("error"), *said)
        assert len(answer.findings) == 1

    def test_a_replica(self, url: str) -> None:
        port = url.rpartition(":")[2].removesuffix("/0")
        with server_with("--replicaof", "127.0.0.1", port) as replica:
            self.check(of_server(replica), "replica")

    def test_a_user_without_scripts(self) -> None:
        with server_with() as url, closing(redis.Redis.from_url(url)) as client:
            client.acl_setuser("locks", enabled=True, passwords=["+password"], keys=["*"],
                               commands=["+@all", "-eval", "-evalsha"])  # fmt: skip
            self.check(of_server(url.replace("//", "//locks:password@")), "eval")

    def test_one_that_is_silent_or_down(self) -> None:
        """Within the time that a lock would take to fail."""
        with EmbeddedServer(port=0) as server:
            url = _url(server)
            server.pause()
            try:
                answer = of_server(url)
            finally:
                server.resume()
        self.check(answer, "no answer in time")
        self.check(of_server(url), "refused")


class TestApp:
    def test_with_a_worker_of_the_same_settings_all_is_well(self) -> None:
        with server_with() as url, worker(url) as name:
            answer = of_app(url)
            # The default, written down, is no difference.
            explicit = of_app(url, redislock_prefix="redislock")
            other = of_app(url, redislock_prefix="staging")
        assert (answer.status, answer.of("warning"), answer.of("error")) == (0, [], [])
        assert f"{name} keeps its locks where this program does" in answer.of("ok")
        assert "3 unique tasks, and nothing is wrong with their options" in answer.of("ok")
        assert explicit.status == 0
        assert other.status == 2
        one(other.of("error"), f"{name} has redislock_prefix = 'redislock', and this program has 'staging'")

    def test_settings_that_endanger_a_task_are_told_and_that_no_worker_answers(self, url: str) -> None:
        """A result that is gone before its period; plain tasks that are delivered again while they run.

        Where no results are kept, nobody waits for one; copies of unique tasks are harmless.
        """
        both = {"result_expires": 86400, "task_acks_late": True, "task_time_limit": 7200}
        told = of_app(url, **both, redislock_tll=5)
        longer = {"broker_transport_options": {"visibility_timeout": 7201}}
        without = of_app(url, **both, **longer, result_backend=None)

        (again,) = [text for text in told.of("note") if "visibility_timeout" in text]
        warnings = "\n".join(told.of("warning"))
        assert "no worker answers" in warnings
        assert "redislock_tll is no setting" in warnings
        assert "shop.confirm: a result is kept for 86400 s" in warnings
        assert "its lock_period is 259200 s" in warnings
        assert "after 3600 s" in again
        assert "these plain tasks is longer: shop.export." in again
        assert (told.status, without.status) == (1, 1)
        assert not [name for name in ("lock_period", "visibility_timeout") if name in str(without.findings)]

    def test_nothing_is_wrong_with_the_recipes_of_the_readme(self, url: str, tmp_path: Path) -> None:
        """Who copies the first example into a project has a pipeline that checks it."""
        app, *_ = [block.code for block in blocks_of("python") if block.page == "README.md"]
        declared = app.partition("first = ")[0].replace("redis://localhost:6379/0", url)
        (tmp_path / "shop.py").write_text(declared + recipes_of_the_readme())
        words = ["-A", "shop", "redislock", "doctor", "--json"]
        answer = _read(run_command("celery", words, _environment({}), tmp_path))
        one(answer.of("warning"), "no worker answers")
        assert answer.of("error") == []
        assert "10 unique tasks, and nothing is wrong with their options" in answer.of("ok")

    def test_a_line_is_less_durable_than_rabbitmq_without_a_file(self, url: str, tmp_path: Path) -> None:
        """The broker is away here: what is known without it is told, too."""
        broker = {"broker_url": "amqp://127.0.0.1:1//"}
        without = of_app("redis://127.0.0.1:1/0", redislock_url=url, **broker)
        with EmbeddedServer(port=0, data_dir=tmp_path) as server:
            durable = of_app("redis://127.0.0.1:1/0", redislock_url=_url(server), **broker)
        one(without.of("warning"), "move from RabbitMQ to the lock server", "give it appendonly yes")
        assert durable.of("warning") == []
        one(durable.of("error"), "the broker cannot be asked: ")

    def test_replicas_that_nobody_waits_for_are_noted(self) -> None:
        """A failover may forget the latest locks."""
        with EmbeddedServer(port=0) as primary:
            port = str(primary.port)
            with (
                server_with("--replicaof", "127.0.0.1", port),
                closing(redis.Redis(port=primary.port or 0)) as client,
            ):

                def is_online() -> bool:
                    says: Any = client.info("replication")
                    return bool(says.get("slave0", {}).get("state") == "online")

                assert wait_until(is_online, PATIENCE)
                alone, waited = of_server(_url(primary)), of_app(_url(primary), redislock_min_replicas=1)

        assert [text for text in alone.of("note") if "it has 1 replica:" in text]
        assert "1 replicas are online, and redislock_min_replicas is 1" in waited.of("ok")
