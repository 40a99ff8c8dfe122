"""Build sdist and wheel into ``dist/``: ``python -m tools.release``."""

import argparse
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.release.addresses import Addresses
from tools.release.checkout import Checkout
from tools.release.readme import absolute

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["release"]

ROOT = Path(__file__).resolve().parents[2]


def release(root: Path, *, is_isolated: bool = True) -> list[Path]:
    """Build what is uploaded, and return the files; ``SystemExit`` says what is missing."""
    checkout = Checkout(root)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    addresses = Addresses.of(project["tool"]["celery_redislock"]["release"], checkout.tag)
    checkout.check()
    with TemporaryDirectory() as temporary:
        copy = Path(temporary) / "copy"
        built = Path(temporary) / "built"
        checkout.copy_to(copy)
        with (copy / "pyproject.toml").open("a", encoding="utf-8") as file:
            file.write(addresses.table())
        readme = copy / "README.md"
        readme.write_text(absolute(readme.read_text(encoding="utf-8"), addresses, copy), encoding="utf-8")
        _run("build", "--outdir", str(built), *([] if is_isolated else ["--no-isolation"]), str(copy))
        files = sorted(built.iterdir())
        if find_spec("twine"):
            _run("twine", "check", "--strict", *map(str, files))
        (root / "dist").mkdir(exist_ok=True)
        return [Path(shutil.copy(file, root / "dist")) for file in files]


def _run(module: str, *words: str) -> None:
    if subprocess.run([sys.executable, "-m", module, *words], check=False).returncode:
        raise SystemExit(f"{module} failed: see above.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--no-isolation", action="store_true", help="build with what is installed here")
    for file in release(ROOT, is_isolated=not parser.parse_args().no_isolation):
        print(file)
