"""The services of docker-compose.yml, as far as they can be run without Docker: their commands by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from tests.acceptance.processes import ROOT

COMPOSE: Mapping[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@dataclass(frozen=True, slots=True)
class Service:
    """One service, as far as it can be run without Docker."""

    name: str
    image: str
    command: Sequence[str]
    check: Sequence[str]
    environment: Mapping[str, str]

    @property
    def programs(self) -> set[str]:
        """The programs it needs by name; what it calls in a shell is its first word there."""
        return {self.command[0], self.check[0]}


def services() -> dict[str, Service]:
    """Return the services by name."""
    return {name: _service(name, data) for name, data in COMPOSE["services"].items()}


def _service(name: str, data: Mapping[str, Any]) -> Service:
    how, *check = data["healthcheck"]["test"]
    if how == "CMD-SHELL":
        # Compose writes $$ for a dollar sign that is not its own.
        check = ["sh", "-c", check[0].replace("$$", "$")]
    return Service(name, data["image"], data["command"], check, data.get("environment", {}))
