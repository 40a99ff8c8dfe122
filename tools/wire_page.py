"""Write the scripts' contracts into the page of the wire: ``python tools/wire_page.py docs/wire.md``."""

import re
import sys
from itertools import takewhile
from pathlib import Path

from celery_redislock.store import redisstore

__all__ = ["with_contracts"]

LUA = Path(redisstore.__file__).with_name("lua")
#: Between these the command writes.
REGION = re.compile(r"(<!-- contracts: make docs -->\n).*(\n<!-- end of contracts -->)", re.DOTALL)


def with_contracts(page: str) -> str:
    """Return the page with the contract of each script, which is the comment that the script begins with."""
    contracts = "".join(map(_contract, redisstore.SCRIPTS))
    return REGION.sub(lambda found: found[1] + contracts + found[2], page)


def _contract(name: str) -> str:
    lines = (LUA / f"{name}.lua").read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("--"), lines)
    text = "\n".join(line.removeprefix("--").removeprefix(" ") for line in comment)
    return f"\n### `{name}`\n\n```text\n{text}\n```\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/wire_page.py PATH")
    path = Path(sys.argv[1])
    path.write_text(with_contracts(path.read_text(encoding="utf-8")), encoding="utf-8")
