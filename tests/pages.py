"""The pages people read, and the code in them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Every page, by its path from the top of the checkout.
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "examples").rglob("README.md")),
    ]
}

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of code in a page."""

    page: str
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(*languages: str) -> list[Block]:
    """Return the pieces of code in these languages, page by page, in order."""
    return [
        Block(page, text[: found.start(2)].count("\n") + 1, found[1], found[2])
        for page, text in PAGES.items()
        for found in _FENCE.finditer(text)
        if found[1] in languages
    ]


def acl_rule() -> list[str]:
    """Return the command of the pages that allows a user what the locks need, and nothing else."""
    (block,) = [block for block in blocks_of("text") if block.code.startswith("ACL SETUSER")]
    return shlex.split(block.code)


def recipes_of_the_readme() -> str:
    """Return Python that declares a task for each row of its table of problems, ``recipes``."""
    rows = re.findall(r"^\| \[[^\n]*?\| (?:`([^`]*)`)?[^|\n]*\|$", PAGES["README.md"], re.MULTILINE)
    tasks = [
        f"@app.task(base=SingletonTask, name='recipes.{number}', {options})\n"
        "def recipe(order_id=1, account_id=1, table=1, customer=1): ...\nrecipes.append(recipe)\n"
        for number, options in enumerate(rows)
    ]
    return "recipes = []\n" + "".join(tasks)
