"""The README as a package page shows it: a link of it leads to the file at the release's tag."""

import re
from pathlib import Path
from posixpath import normpath

from tools.release.addresses import Addresses

__all__ = ["absolute"]

_CODE = r"^(?P<fence>```+|~~~+)[\s\S]*?^(?P=fence)|(?P<ticks>`+)[^\n]+?(?P=ticks)"
#: Markdown's ``](…)`` and ``[…]: …``, and HTML's attributes.
_LINK = r"(?P<before>\]\(\s*<?|^\[[^\]\n]+\]:\s*<?|\b(?:href|src|srcset)=\")(?P<target>[^\s)>\"]+)"
_PART = re.compile(f"{_CODE}|{_LINK}", re.MULTILINE)
_IS_ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
_IMAGES = {".avif", ".gif", ".jpeg", ".jpg", ".png", ".svg", ".webp"}


def absolute(text: str, addresses: Addresses, root: Path) -> str:
    """Return the text with every relative link made absolute, but for those in code.

    *root* is the folder of the README: a folder has another address than a file.
    """

    def rewritten(found: re.Match[str]) -> str:
        target = found["target"]
        if target is None or _IS_ABSOLUTE.match(target):
            return found[0]
        path, mark, anchor = target.partition("#")
        path = normpath(path) if path else "README.md"
        kind = "tree" if (root / path).is_dir() else "blob"
        if Path(path).suffix in _IMAGES:
            kind = "raw"
        return found["before"] + addresses.of_file(kind, path) + mark + anchor

    return _PART.sub(rewritten, text)
