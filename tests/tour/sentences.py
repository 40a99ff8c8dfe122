"""Every sentence in the package's code that is made for people, so that none is left unsaid.

A place that is passed may have said one thing of two (``"did you mean …" if nearest else "known are …"``),
and what is wrong with an option is worded far from where it is raised.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.tour.sites import PACKAGE

__all__ = ["UNSAID", "Sentence", "all_sentences", "sentences_of"]

#: What no stop says, and why; by file, or by a sentence's beginning.
UNSAID = {
    "cli/demo/": "the demo's commentary",
    "options/reference.py": "a page of this documentation",
    "cli/showing.py": "an answer, on standard output",
    "cli/releasing.py": "answers and questions, on standard output",
    "is held on": "an answer, on standard output",
    "usage: python -m celery_redislock.options": "how to write a page of this documentation",
    "from publish until": "a page of this documentation",
    "while it runs; any number may be queued": "a page of this documentation",
    "client: ": "a page of this documentation",
    "(others: not yet)": "a page of this documentation",
    "a copy of this message has run already": "why Celery ignores a message: nobody shows it",
    "it was broadcast, and another worker has it": "why Celery ignores a message: nobody shows it",
    "put off for": "why Celery ignores a message: nobody shows it",
    "the body in process": "a DEBUG line's",
    "has not ended yet": "a DEBUG line's",
    "not giving back": "a DEBUG line",
    "the main process cannot tell the lock of": "a DEBUG line",
    "of a timed out run": "names a hold in the lines about what is owed",
    "Address already in use": "looked for in what a server writes",
    r"\AError running script": "looked for in what a server says",
    "credential_provider must be an object": "makes a URL one that cannot be read",
}

#: Keywords whose texts are help or documentation, not messages.
_OTHER_TEXTS = frozenset({"help", "meaning", "default_note", "metavar"})
_PLACEHOLDER = re.compile(r"%[-\d.]*[a-z]")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A piece of text between two values: at least three words.

    Attributes:
        file: from the package.
        line: it stands in.
        text: its words.
    """

    file: str
    line: int
    text: str

    @property
    def exclusion(self) -> str | None:
        """The entry of the table that says why it need not be said."""
        beginnings = (name for name in UNSAID if self.file.startswith(name) or self.text.startswith(name))
        return next(beginnings, None)


@cache
def all_sentences() -> tuple[Sentence, ...]:
    """Return every sentence of the package."""
    files = ((path, path.relative_to(PACKAGE).as_posix()) for path in sorted(PACKAGE.rglob("*.py")))
    return tuple(found for path, file in files for found in sentences_of(path.read_text(), file))


def sentences_of(source: str, file: str) -> Iterator[Sentence]:
    """Yield the sentences of one module, without its docstrings and help texts."""
    tree = ast.parse(source)
    others = {id(each) for each in _no_messages(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in others:
            for piece in _PLACEHOLDER.split(node.value):
                words = piece.split()
                if sum(word.strip(".,;:()'").isalpha() for word in words) >= 3:
                    yield Sentence(file, node.lineno, " ".join(words))


def _no_messages(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value  # a docstring
        if isinstance(node, ast.keyword) and node.arg in _OTHER_TEXTS:
            yield from ast.walk(node.value)
