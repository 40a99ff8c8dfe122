"""What a release is refused for, and what is in its files; built in a copy, without a network."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import pytest

from celery_redislock import __version__
from tools.release.__main__ import ROOT, release
from tools.release.addresses import Addresses
from tools.release.checkout import UNRELEASED, Checkout

SHOP = "https://example.invalid/shop"
FOLDERS = (".github", "benchmarks", "celery_redislock", "docs", "examples", "tests", "tools")
FILES = (
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md"),
    *(".pre-commit-config.yaml", ".readthedocs.yaml", "SECURITY.md", "docker-compose.yml", "pyproject.toml"),
)
LEAVE = shutil.ignore_patterns("__pycache__", "*.pyc", ".*_cache", "celerybeat-schedule*")
DATED = f"## [{__version__}] - 2026-01-31"

# One process builds.
pytestmark = pytest.mark.xdist_group("release")


def git(root: Path, *words: str) -> None:
    """Call git as somebody whose settings nobody knows."""
    who = ["-c", "user.name=shop", "-c", "user.email=shop@example.invalid", "-c", "commit.gpgsign=false"]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", *who, *words], cwd=root, env=environment, check=True, capture_output=True)


def checkout(root: Path, *, repository: str = SHOP, heading: str = DATED, more: str = "") -> Path:
    """Lay out a small checkout that could be released, and commit it."""
    if shutil.which("git") is None and not os.environ.get("CI"):
        pytest.skip("git is not installed: apt-get install git")
    (root / "celery_redislock").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "celery_redislock" / "__init__.py", root / "celery_redislock")
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    told = f'[tool.celery_redislock.release]\nrepository = "{repository}"\n{more}\n'
    pyproject = re.sub(r"\[tool\.celery_redislock\.release\]\n(?:.+\n)*", told, pyproject)
    (root / "pyproject.toml").write_text(pyproject, encoding="utf-8")
    (root / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n\n- It is there.\n", encoding="utf-8")
    (root / ".gitignore").write_text("dist/\n", encoding="utf-8")
    for page in ("README.md", "docs/quickstart.md"):
        (root / page).parent.mkdir(exist_ok=True)
        text = (root / page).read_text(encoding="utf-8") if (root / page).exists() else "# Shop\n"
        (root / page).write_text(text.replace(UNRELEASED, "From a package index"), encoding="utf-8")
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "Begin")
    return root


def project(root: Path) -> Path:
    """Copy this project, but for what is only in a checkout."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, root / name, ignore=LEAVE)
    for name in FILES:
        shutil.copy(ROOT / name, root)
    return root


def refusal(root: Path) -> str:
    """Return the sentence with which a release is refused, before anything is built."""
    with pytest.raises(SystemExit) as caught:
        release(root, is_isolated=False)
    assert not (root / "dist").exists()
    text = str(caught.value)
    assert text.endswith(".")
    assert "\n" not in text
    return text


def test_a_page_that_says_that_there_is_no_release_is_refused(tmp_path: Path) -> None:
    """It would be the package page of one."""
    root = checkout(tmp_path)
    (root / "docs" / "quickstart.md").write_text(f"{UNRELEASED}: build it.\n", encoding="utf-8")
    git(root, "commit", "--quiet", "--all", "--message", "Say how it is installed")

    assert refusal(root).startswith("docs/quickstart.md says 'Until there is a release'")


def test_a_release_cannot_be_built_without_an_address(tmp_path: Path) -> None:
    """A package page without links cannot be mended: a version is uploaded once."""
    text = refusal(checkout(tmp_path, repository=""))

    assert text.startswith("The repository has no address: write repository = ")


@pytest.mark.parametrize(
    "address",
    ["http://example.invalid/shop", "git@example.invalid:shop", "example.invalid/shop", "https:///shop"],
)
def test_an_address_that_is_not_https_is_refused(address: str, tmp_path: Path) -> None:
    """Users follow these links."""
    assert refusal(checkout(tmp_path / "repository", repository=address)).startswith(
        f"repository = {address!r} is no https address: "
    )
    assert refusal(checkout(tmp_path / "issues", more=f'issues = "{address}"')).startswith("issues = ")


def test_a_tree_that_differs_from_its_commit_is_refused(tmp_path: Path) -> None:
    """What is uploaded is what the tag names, so a change or a new file would be missing."""
    root = checkout(tmp_path)
    with (root / "CHANGELOG.md").open("a") as file:
        file.write("- And more.\n")
    (root / "new.py").touch()

    assert refusal(root).endswith("commit or remove them: CHANGELOG.md, new.py.")


@pytest.mark.parametrize(
    "heading",
    ["## [Unreleased]", f"## [{__version__}] - unreleased", f"## [{__version__}]", "## [0.0.1] - 2026-01-31"],
)
def test_a_version_without_a_dated_section_in_the_changelog_is_refused(heading: str, tmp_path: Path) -> None:
    """Who upgrades looks there."""
    text = refusal(checkout(tmp_path, heading=heading))

    assert text == (
        f"CHANGELOG.md has no dated section for {__version__}: write '## [{__version__}] - YYYY-MM-DD'."
    )


@pytest.mark.parametrize("kind", [[], ["--annotate", "--message", "Release"]], ids=["light", "annotated"])
def test_a_tag_that_names_another_commit_is_refused(kind: list[str], tmp_path: Path) -> None:
    """The links of the page lead to the tag's files; the tag may be there, or be set later."""
    root = checkout(tmp_path)
    git(root, "tag", *kind, f"v{__version__}")
    Checkout(root).check()
    git(root, "commit", "--quiet", "--allow-empty", "--message", "Go on")

    assert refusal(root).startswith(f"The tag v{__version__} names another commit: ")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder ``dist`` of a copy of this project that was released, and did not change otherwise."""
    root = project(tmp_path_factory.mktemp("project"))
    release(checkout(root), is_isolated=False)
    Checkout(root).check()
    return root / "dist"


@pytest.fixture(scope="module")
def metadata(built: Path) -> Message:
    """What the wheel tells the package page."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return BytesParser().parsebytes(archive.read(f"celery_redislock-{__version__}.dist-info/METADATA"))


@pytest.fixture(scope="module")
def unpacked(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in the sdist."""
    (sdist,) = built.glob("*.tar.gz")
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"celery_redislock-{__version__}"


def test_the_package_page_has_each_address(metadata: Message) -> None:
    """One place names the repository, and the others follow from it."""
    assert sorted(metadata.get_all("Project-URL", [])) == [
        f"Changelog, {SHOP}/blob/v{__version__}/CHANGELOG.md",
        f"Documentation, {SHOP}/tree/v{__version__}/docs",
        f"Homepage, {SHOP}",
        f"Issues, {SHOP}/issues",
        f"Source, {SHOP}",
    ]


def test_documentation_and_issues_may_have_addresses_of_their_own() -> None:
    """A site for the pages, say."""
    told = {
        "repository": SHOP + "/",
        "documentation": "https://docs.invalid",
        "issues": "https://issues.invalid/shop",
    }

    assert Addresses.of(told, "v1.2.3").table().split() == [
        "[project.urls]",
        *("Homepage", "=", f'"{SHOP}"'),
        *("Documentation", "=", '"https://docs.invalid"'),
        *("Source", "=", f'"{SHOP}"'),
        *("Issues", "=", '"https://issues.invalid/shop"'),
        *("Changelog", "=", f'"{SHOP}/blob/v1.2.3/CHANGELOG.md"'),
    ]


def test_no_link_on_the_package_page_is_relative_and_each_leads_to_a_file(metadata: Message) -> None:
    """The page has no folder beside it, so a relative link leads nowhere."""
    text = re.sub(r"^```.*?^```", "", metadata.get_payload(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)\s]+)", text) + re.findall(r"(?:href|src|srcset)=\"([^\"]+)", text)
    files = re.compile(rf"{SHOP}/(blob|raw|tree)/v{re.escape(__version__)}/([^#]+)")
    ours = [
        found.groups() for found in map(files.fullmatch, (link.partition("#")[0] for link in links)) if found
    ]

    assert [link for link in links if not link.startswith("https://")] == []
    assert len(ours) > 20
    assert [path for kind, path in ours if (ROOT / path).is_dir() is not (kind == "tree")] == []
    assert [path for _, path in ours if not (ROOT / path).exists()] == []


def test_the_sdist_has_all_that_a_packager_needs(built: Path, unpacked: Path) -> None:
    """Tests, pages and programs, as they are in the checkout."""
    for name in (*FILES, "PKG-INFO"):
        assert (unpacked / name).is_file(), name
    for name in FOLDERS:
        assert files_in(unpacked / name) == files_in(built.parent / name)
    assert os.access(unpacked / "examples" / "quickstart" / "install-and-run", os.X_OK)


def test_a_build_for_development_needs_no_address_and_takes_no_cache_along(tmp_path: Path) -> None:
    """No hidden file but those of the repository's services, no cache, nothing compiled."""
    root = project(tmp_path)
    left = (
        ".ci/run",
        ".venv/a.py",
        "tests/__pycache__/a.cpython-311.pyc",
        "tests/.pytest_cache/v",
        "tools/a.pyc",
    )
    for name in left:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    build = ["build", "--quiet", "--no-isolation", "--sdist", "--outdir", str(root / "dist"), str(root)]
    subprocess.run([sys.executable, "-m", *build], check=True)
    with tarfile.open(next((root / "dist").iterdir())) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"celery_redislock/__init__.py", "tests/conftest.py"} <= names
    assert names & set(left) == set()
    hidden = {name for name in names if re.search(r"(^|/)(\.|__pycache__)|\.(pyc|so)$", name)}
    assert {name.partition("/")[0] for name in hidden} <= {*FOLDERS, *FILES}


def files_in(folder: Path) -> set[Path]:
    """Every file in a folder, by its path in there."""
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_tests_of_the_sdist_can_be_collected_from_it(unpacked: Path) -> None:
    """Every file that they read when they are imported is there, and those of the project pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    for words in (["--collect-only"], ["tests/unit/test_readme.py", "tests/unit/test_project.py"]):
        done = subprocess.run(
            [*command, *words], cwd=unpacked, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
