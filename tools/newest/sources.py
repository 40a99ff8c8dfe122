"""This machine's package sources, with another suite of the same distribution in them."""

import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["exchanged", "sources_for"]

_ONE_LINE = re.compile(r"^(deb\s+(?:\[[^\]]*\]\s+)?\S+\s+)(\S+)(\s+.*)$")
_SUITES = re.compile(r"^Suites:.*$", re.MULTILINE)


def sources_for(suite: str, release: Mapping[str, str], apt: Path = Path("/etc/apt")) -> Mapping[str, str]:
    """Return the machine's sources of its own release, by file, with this suite in its place.

    No address is written down anywhere: it is where the machine's packages are from, with the same keys.
    ``release`` is what ``/etc/os-release`` says.

    Raises:
        SystemExit: the machine is not Debian, or names no source of its own release.
    """
    codename = release.get("VERSION_CODENAME")
    if release.get("ID") != "debian" or codename is None:
        raise SystemExit(
            f"The newest versions are fetched from Debian's suite {suite}, and this machine is "
            f"{release.get('PRETTY_NAME', 'no Linux that tells its name')}: run this on a release of Debian, "
            "or name the combinations whose programs are installed here: ARGS='3.10 3.12'."
        )
    paths = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    texts = {path.name: path.read_text(encoding="utf-8") for path in paths if path.is_file()}
    found = {name: exchanged(name, text, codename, suite) for name, text in texts.items()}
    if not any(found.values()):
        raise SystemExit(
            f"No package source in {apt} is of this release, {codename}, itself: nothing tells where the "
            f"suite {suite} is."
        )
    return {name: text for name, text in found.items() if text}


def exchanged(name: str, text: str, codename: str, suite: str) -> str:
    """Return the sources of a file that are of this release, with the suite in its place; ``""`` without any.

    Updates, security fixes and other people's packages are left out: a suite that is not released has none.
    """
    form = _FORMS.get(Path(name).suffix)
    return form(text, codename, suite) if form else ""


def _lines(text: str, codename: str, suite: str) -> str:
    found = (_ONE_LINE.match(line) for line in text.splitlines())
    return "".join(f"{each[1]}{suite}{each[3]}\n" for each in found if each and each[2] == codename)


def _stanzas(text: str, codename: str, suite: str) -> str:
    kept = []
    for stanza in re.split(r"\n\s*\n", text):
        suites = _SUITES.search(stanza)
        if suites and codename in suites[0].split():
            kept.append(f"{_SUITES.sub(f'Suites: {suite}', stanza).strip()}\n")
    return "\n".join(kept)


#: How a file is read, by the end of its name: apt's own two forms (``sources.list(5)``).
_FORMS = {".list": _lines, ".sources": _stanzas}
