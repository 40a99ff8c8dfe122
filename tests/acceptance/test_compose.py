"""docker-compose.yml without Docker: it parses, and each of its commands runs."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from tests.acceptance.compose import service
from tests.acceptance.processes import free_port, needs, run_check, started, until
from tests.acceptance.rabbitmq import epmd_command, node_environment


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compose")


@pytest.fixture(scope="module")
def redis_port(folder: Path) -> Iterator[int]:
    """The service ``redis``, on a free port, once its own health check passes."""
    redis = service("redis")
    port = free_port()
    needs(redis.command[0], redis.check[0])
    command = [*redis.command, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    check = [redis.check[0], "-p", str(port), *redis.check[1:]]
    assert run_check(check, {}).returncode != 0
    with started(command, {}, folder) as server:
        until(lambda: run_check(check, {}).returncode == 0, 20, server, "redis is healthy")
        yield port


@pytest.fixture(scope="module")
def rabbitmq_port(folder: Path) -> Iterator[int]:
    """The service ``rabbitmq``: a node that meets no other, with an epmd of its own."""
    command, check, its_environment = service("rabbitmq")
    needs(command[0], check[0], "epmd", "erl")
    environment = {**its_environment, **node_environment(folder / "rabbitmq")}
    with (
        started(epmd_command(environment), environment, folder),
        started(command, environment, folder) as server,
    ):
        until(lambda: run_check(check, environment).returncode == 0, 60, server, "rabbitmq is healthy")
        yield int(environment["RABBITMQ_NODE_PORT"])


@pytest.mark.slow
def test_the_shop_works_as_composed(rabbitmq_port: int, redis_port: int, folder: Path) -> None:
    """RabbitMQ carries the messages, Redis keeps results and locks; of two beats either one may be killed."""
    worker = service("worker")
    servers = {"@rabbitmq:5672": f"@127.0.0.1:{rabbitmq_port}", "//redis:6379": f"//127.0.0.1:{redis_port}"}
    environment = dict(worker.environment)
    for there, here in servers.items():
        environment = {name: value.replace(there, here) for name, value in environment.items()}
    beats = [moved(service(name).command, folder / name) for name in ("beat-1", "beat-2")]
    of_second = moved(service("beat-2").check, folder / "beat-2")

    for setting, value in ("maxmemory-policy", "noeviction"), ("appendonly", "yes"):
        said = run_check(["redis-cli", "-p", str(redis_port), "config", "get", setting], {}).stdout
        assert said.split() == [setting, value]
    assert run_check(worker.check, environment).returncode != 0
    with started(worker.command, environment, folder) as running:
        until(lambda: " ready." in running.log, 40, running, "the worker is ready")
        check = run_check(worker.check, environment)
        pressed = run_check(["python", "press.py"], environment)
        with (
            started(beats[0], environment, folder) as first,
            started(beats[1], environment, folder) as second,
        ):
            until(lambda: len(reports(running.log)) > 2, 60, running, "three reports ran")
            is_healthy = run_check(of_second, environment).returncode == 0
            first.process.kill()
            first.process.wait()
            ran = len(reports(running.log))
            until(lambda: len(reports(running.log)) > ran + 1, 60, second, "the other beat goes on")
    times = reports(running.log)

    assert check.returncode == 0, check.stdout + check.stderr
    assert "shop@worker: OK" in check.stdout
    assert pressed.returncode == 0, pressed.stderr
    assert len(re.findall("published$", pressed.stdout, re.MULTILINE)) == 1
    assert len(re.findall("duplicate$", pressed.stdout, re.MULTILINE)) == 4
    assert "every result says: ['account 42 is in sync']" in pressed.stdout
    assert "its lock after get(): free" in pressed.stdout
    assert "overlaps: 0" in pressed.stdout
    assert is_healthy
    assert run_check(of_second, environment).returncode != 0
    assert min(later - earlier for earlier, later in pairwise(times)) > 2.5, times


def reports(log: str) -> list[float]:
    """Return when the report ran, every five seconds, by the worker's log."""
    return [float(found) for found in re.findall(r"reported at ([\d.]+) s", log)]


def moved(command: Sequence[str], place: Path) -> list[str]:
    """Return a command whose files are not in the container's own folder, but beside a place."""
    return [word.replace("/tmp/", f"{place}-") for word in command]  # noqa: S108  a container's own
