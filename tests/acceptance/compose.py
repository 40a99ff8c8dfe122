"""The services of docker-compose.yml, as far as they can be run without Docker: their commands by hand."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from tests.acceptance.processes import ROOT

COMPOSE: Mapping[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


class Service(NamedTuple):
    """What a service runs, its health check, and the environment of both."""

    command: Sequence[str]
    check: Sequence[str]
    environment: Mapping[str, str]


def service(name: str) -> Service:
    """Return one of the services."""
    data = COMPOSE["services"][name]
    how, *check = data["healthcheck"]["test"]
    if how == "CMD-SHELL":
        # Compose writes $$ for a dollar sign that is not its own.
        check = ["sh", "-c", check[0].replace("$$", "$")]
    return Service(data["command"], check, data.get("environment", {}))
