"""The addresses of a release: those of the package page, and where the README's links lead from there."""

import json
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

__all__ = ["Addresses"]

_PLACE = "[tool.celery_redislock.release] in pyproject.toml"


class Addresses(NamedTuple):
    """The repository at one tag, the documentation and the issues."""

    repository: str
    tag: str
    documentation: str
    issues: str

    @classmethod
    def of(cls, told: Mapping[str, str], tag: str) -> "Addresses":
        """Read the table of a release; ``SystemExit`` where an address is missing or is not https."""
        said = {name: value.rstrip("/") for name, value in told.items() if value}
        repository = said.get("repository")
        if repository is None:
            raise SystemExit(
                f'The repository has no address: write repository = "https://..." into {_PLACE}.'
            )
        for name, value in said.items():
            if urlsplit(value).scheme != "https" or not urlsplit(value).hostname:
                raise SystemExit(f"{name} = {value!r} is no https address: write one into {_PLACE}.")
        documentation = said.get("documentation", f"{repository}/tree/{tag}/docs")
        return cls(repository, tag, documentation, said.get("issues", f"{repository}/issues"))

    def of_file(self, kind: str, path: str) -> str:
        """Return where a path is at this tag; *kind* is ``blob``, ``raw`` or ``tree``."""
        return f"{self.repository}/{kind}/{self.tag}/{path}"

    def table(self) -> str:
        """Return the table ``[project.urls]``, as TOML."""
        urls = {
            "Homepage": self.repository,
            "Documentation": self.documentation,
            "Source": self.repository,
            "Issues": self.issues,
            "Changelog": self.of_file("blob", "CHANGELOG.md"),
        }
        # JSON's strings are TOML's as well.
        return "\n[project.urls]\n" + "".join(f"{name} = {json.dumps(url)}\n" for name, url in urls.items())
