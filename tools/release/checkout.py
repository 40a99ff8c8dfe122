"""The checkout that is released: its version, whether it may be, and a clean copy of it."""

import re
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

__all__ = ["Checkout"]


#: What pages say as long as there is nothing to install from.
UNRELEASED = "Until there is a release"


class Checkout(NamedTuple):
    """A folder with a Git checkout of this project."""

    root: Path

    @property
    def version(self) -> str:
        """The package's version, read from its text."""
        text = (self.root / "celery_redislock" / "__init__.py").read_text(encoding="utf-8")
        (version,) = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
        return str(version)

    @property
    def tag(self) -> str:
        """The name of the version's tag."""
        return f"v{self.version}"

    def check(self) -> None:
        """Raise ``SystemExit`` if this commit cannot be the version's release."""
        if changed := self._git("status", "--porcelain").decode().splitlines():
            names = ", ".join(line[3:] for line in changed)
            raise SystemExit(f"Some files differ from the last commit: commit or remove them: {names}.")
        version = self.version
        changelog = (self.root / "CHANGELOG.md").read_text(encoding="utf-8")
        if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
            raise SystemExit(
                f"CHANGELOG.md has no dated section for {version}: write '## [{version}] - YYYY-MM-DD'."
            )
        for page in ("README.md", "docs/quickstart.md"):
            if UNRELEASED in (self.root / page).read_text(encoding="utf-8"):
                raise SystemExit(f"{page} says '{UNRELEASED}': say how it is installed now.")
        tagged = self._git("for-each-ref", "--format=%(*objectname) %(objectname)", f"refs/tags/{self.tag}")
        if tagged and tagged.split()[0] != self._git("rev-parse", "HEAD").strip():
            raise SystemExit(
                f"The tag {self.tag} names another commit: check that one out, or raise __version__."
            )

    def copy_to(self, folder: Path) -> None:
        """Write the files of the last commit into a folder."""
        with tarfile.open(fileobj=BytesIO(self._git("archive", "--format=tar", "HEAD"))) as archive:
            archive.extractall(folder, filter="data")

    def _git(self, *words: str) -> bytes:
        return subprocess.run(["git", *words], cwd=self.root, stdout=subprocess.PIPE, check=True).stdout
