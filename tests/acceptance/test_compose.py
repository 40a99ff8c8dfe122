"""docker-compose.yml without Docker: it parses, and each of its commands runs."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.compose import COMPOSE, services
from tests.acceptance.processes import free_port, needs, run_check, started, until
from tests.acceptance.rabbitmq import epmd_command, node_environment

SERVICES = services()


def test_published_ports_are_bound_to_loopback_only() -> None:
    """Nothing of the example is reachable from another host."""
    ports = [port for data in COMPOSE["services"].values() for port in data.get("ports", [])]

    assert ports
    assert [port for port in ports if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compose")


@pytest.fixture(scope="module")
def redis_port(folder: Path) -> Iterator[int]:
    """The service ``redis``, on a free port, once its own health check passes."""
    service, port = SERVICES["redis"], free_port()
    needs(*service.programs)
    command = [*service.command, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    check = [service.check[0], "-p", str(port), *service.check[1:]]
    assert run_check(check, {}).returncode != 0
    with started(command, {}, folder) as server:
        until(lambda: run_check(check, {}).returncode == 0, 20, server, "redis is healthy")
        yield port


@pytest.fixture(scope="module")
def rabbitmq_port(folder: Path) -> Iterator[int]:
    """The service ``rabbitmq``: a node that meets no other, with an epmd of its own."""
    service = SERVICES["rabbitmq"]
    needs(*service.programs, "epmd", "erl")
    environment = {**service.environment, **node_environment(folder / "rabbitmq")}
    with (
        started(epmd_command(environment), environment, folder),
        started(service.command, environment, folder) as server,
    ):
        check = service.check
        until(lambda: run_check(check, environment).returncode == 0, 60, server, "rabbitmq is healthy")
        yield int(environment["RABBITMQ_NODE_PORT"])


def test_redis_keeps_locks_rather_than_memory(redis_port: int) -> None:
    policy = ask_redis(redis_port, "config", "get", "maxmemory-policy")
    is_durable = ask_redis(redis_port, "config", "get", "appendonly")

    assert policy.split() == ["maxmemory-policy", "noeviction"]
    assert is_durable.split() == ["appendonly", "yes"]


@pytest.mark.slow
def test_the_shop_works_as_composed(rabbitmq_port: int, redis_port: int, folder: Path) -> None:
    """RabbitMQ carries the messages, Redis keeps results and locks; of two beats either one may be killed."""
    environment = composed_environment(rabbitmq_port, redis_port)
    worker, beats = SERVICES["worker"], [SERVICES["beat-1"], SERVICES["beat-2"]]
    paths = [found for found in beats[0].command if found.startswith("/tmp/")]  # noqa: S108  a container's own
    here = [[(path, str(folder / f"{beat.name}{Path(path).suffix}")) for path in paths] for beat in beats]

    was_healthy_before = run_check(worker.check, environment).returncode == 0
    shop_works(environment, folder)
    with (
        started(worker.command, environment, folder) as running,
        started(moved(beats[0].command, here[0]), environment, folder) as first,
        started(moved(beats[1].command, here[1]), environment, folder) as second,
    ):
        until(lambda: len(reports(running.log)) > 2, 60, running, "three reports ran")
        is_healthy = run_check(moved(beats[1].check, here[1]), environment).returncode == 0
        first.process.kill()
        first.process.wait()
        ran = len(reports(running.log))
        until(lambda: len(reports(running.log)) > ran + 1, 60, second, "the other beat goes on")
    is_healthy_after = run_check(moved(beats[1].check, here[1]), environment).returncode == 0
    times = reports(running.log)

    assert not was_healthy_before
    assert is_healthy
    assert not is_healthy_after
    assert min(later - earlier for earlier, later in pairwise(times)) > 2.5, times


def reports(log: str) -> list[float]:
    """Return when the report ran, every five seconds, by the worker's log."""
    return [float(found) for found in re.findall(r"reported at ([\d.]+) s", log)]


def shop_works(environment: dict[str, str], folder: Path) -> None:
    """Start the worker, carry out its health check, and press the buttons."""
    worker = SERVICES["worker"]
    with started(worker.command, environment, folder) as running:
        until(lambda: " ready." in running.log, 40, running, "the worker is ready")
        check = run_check(worker.check, environment)
        pressed = run_check(["python", "press.py"], environment)

    assert check.returncode == 0, check.stdout + check.stderr
    assert "shop@worker: OK" in check.stdout
    assert pressed.returncode == 0, pressed.stderr
    assert len(re.findall("published$", pressed.stdout, re.MULTILINE)) == 1
    assert len(re.findall("duplicate$", pressed.stdout, re.MULTILINE)) == 4
    assert "every result says: ['account 42 is in sync']" in pressed.stdout
    assert "its lock after get(): free" in pressed.stdout
    assert "overlaps: 0" in pressed.stdout


def composed_environment(rabbitmq_port: int, redis_port: int) -> dict[str, str]:
    """Return what compose gives the shop, with the servers' names and ports here."""
    servers = {"rabbitmq:5672": rabbitmq_port, "redis:6379": redis_port}
    environment: dict[str, Any] = dict(SERVICES["worker"].environment)
    for name, value in environment.items():
        for there, port in servers.items():
            environment[name] = environment[name].replace(f"@{there}", f"@127.0.0.1:{port}")
            environment[name] = environment[name].replace(f"//{there}", f"//127.0.0.1:{port}")
        assert "rabbitmq:" not in environment[name], value
    return environment


def moved(command: Sequence[str], paths: Sequence[tuple[str, str]]) -> list[str]:
    """Return a command with some paths replaced."""
    words = list(command)
    for there, here in paths:
        words = [word.replace(there, here) for word in words]
    return words


def ask_redis(port: int, *command: str) -> str:
    """Return what redis-cli prints."""
    return run_check(["redis-cli", "-p", str(port), *command], {}).stdout
