"""Every place of the package where something is raised or told, and which of them a tour has passed."""

import ast
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import celery_redislock

__all__ = ["EXCLUDED", "PACKAGE", "STEERING", "Passage", "Site", "all_sites", "sites_of"]

PACKAGE = Path(celery_redislock.__file__).parent

_LEVELS = frozenset({"info", "warning", "error", "exception", "critical", "log"})

#: What no stop passes, and why; by file, or by file and function.
EXCLUDED = {
    "__init__.py:__getattr__": "a missing name of the package: Python's own words",
    "locks/__init__.py:__getattr__": "the same",
    "options/__main__.py:main": "how to write a page of this documentation",
    "cli/demo/app.py": "a task of the demo fails to show what follows; nobody is told",
    "cli/demo/scenes.py": "a promise that is not kept is told as the demo's verdict",
    "cli/demo/stage.py:interrupt": "ends the demo: somebody pressed Ctrl-C",
    "cli/demo/stage.py:_wait_for_worker": "the log of the demo's own worker, which did not start",
}


#: Statements that tell nobody anything: they steer, and what is told stands elsewhere.
STEERING = {
    "raise late_copy(run)": "the line that is logged is in late_copy",
    "raise NotYet(message)": "an answer to whoever asks for a release later",
}


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """A statement that raises or tells.

    Attributes:
        file: from the package.
        line: its first.
        end: its last line.
        function: it is in; empty at the top of a module.
        code: its beginning.
    """

    file: str
    line: int
    end: int
    function: str
    code: str

    @property
    def is_excluded(self) -> bool:
        """Whether it is in the table."""
        is_named = self.file in EXCLUDED or f"{self.file}:{self.function}" in EXCLUDED
        return is_named or self.code in STEERING

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function}): {self.code}"


@cache
def all_sites() -> tuple[Site, ...]:
    """Return every site of the package, sorted."""
    files = sorted(PACKAGE.rglob("*.py"))
    return tuple(site for path in files for site in sites_of(path.read_text(), _named(path)))


def sites_of(source: str, file: str) -> Iterator[Site]:
    """Yield the sites of one module: ``raise X``, log lines, warnings, and lines on standard error."""
    yield from _within(ast.parse(source), file, "")


class Passage:
    """Watches this process's threads pass the sites; for a ``with`` statement.

    Attributes:
        passed: those that were executed so far.
    """

    def __init__(self) -> None:
        self.passed: set[Site] = set()
        self._lines: dict[str, dict[int, Site]] = {}
        for site in all_sites():
            lines = self._lines.setdefault(str(PACKAGE / site.file), {})
            lines.update(dict.fromkeys(range(site.line, site.end + 1), site))
        self._before: Any = None

    def __enter__(self) -> "Passage":
        self._before = sys.gettrace(), threading.gettrace()
        threading.settrace(self._enter_frame)
        sys.settrace(self._enter_frame)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.settrace(self._before[0])
        threading.settrace(self._before[1])

    def _enter_frame(self, frame: FrameType, _event: str, _arg: object) -> Any:
        return self._step if frame.f_code.co_filename in self._lines else None

    def _step(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line":
            site = self._lines[frame.f_code.co_filename].get(frame.f_lineno)
            if site is not None:
                self.passed.add(site)
        return self._step


def _named(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _within(node: ast.AST, file: str, function: str) -> Iterator[Site]:
    for child in ast.iter_child_nodes(node):
        inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if _raises(child) or _tells(child):
            assert isinstance(child, ast.Raise | ast.Call)
            end = child.end_lineno or child.lineno
            yield Site(file, child.lineno, end, function, ast.unparse(child)[:100])
        yield from _within(child, file, inner)


def _raises(node: ast.AST) -> bool:
    return isinstance(node, ast.Raise) and node.exc is not None


def _tells(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    called = f"{ast.unparse(node.func.value)}.{node.func.attr}"
    if called == "click.echo":
        return any(keyword.arg == "err" for keyword in node.keywords)
    return called == "warnings.warn" or (called.startswith("logger.") and node.func.attr in _LEVELS)
