"""Make the page of all messages: ``python -m tests.tour.page docs/messages.md``."""

import os
import sys
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from celery_redislock.embedded import EmbeddedServer
from tests.tour.guide import sayings
from tests.tour.sites import Passage, Site
from tests.tour.stand_ins import stable
from tests.tour.stop import Group, Stop
from tests.tour.stops import GROUPS

__all__ = ["Tour", "main", "messages_page", "tour"]

_HEAD = """\
# Messages

<!-- Made from tests/tour: python -m tests.tour.page docs/messages.md -->

Every error, every log line from INFO up and every complaint of the command line that this package has, each
as it was said when a test provoked it. Log lines have their level in front, errors their class; `<...>`
stands for what differs each time. Almost all errors derive from `RedisLockError`, and have their values as
attributes; log lines are of the logger `celery_redislock`.

What to look at when something is wrong and nothing is said: [troubleshooting.md](troubleshooting.md).
"""


@dataclass(frozen=True, slots=True)
class Tour:
    """What was said at every stop, and which sites were passed."""

    said: dict[Stop, tuple[str, ...]]
    passed: frozenset[Site]


@cache
def tour() -> Tour:
    """Take the tour; once per process."""
    said = {}
    binary = os.environ.get("CELERY_REDISLOCK_TEST_BINARY")
    with EmbeddedServer(port=0, binary=binary) as server, Passage() as passage:
        for group in GROUPS:
            for each in group.stops:
                with sayings(server, passage.passed) as guide:
                    each.provoke(guide)
                said[each] = tuple(map(stable, guide.said))
    return Tour(said, frozenset(passage.passed))


def messages_page() -> str:
    """Return the page as Markdown, one line ending at its end; the same every time."""
    contents = "".join(f"- [{group.title}](#{_anchor(group.title)})\n" for group in GROUPS)
    return "\n".join([_HEAD, contents, *(_section(group) for group in GROUPS)])


def _section(group: Group) -> str:
    return "\n".join([f"## {group.title}\n\n{group.promise}\n", *(_entry(each) for each in group.stops)])


def _entry(each: Stop) -> str:
    said = "\n".join(tour().said[each])
    return f"### {each.heading}\n\n{each.sentence}\n\n```text\n{said}\n```\n"


def _anchor(title: str) -> str:
    return "".join(char for char in title.lower().replace(" ", "-") if char.isalnum() or char == "-")


def main(arguments: list[str]) -> None:
    """Write the page to the one path given.

    Raises:
        SystemExit: not exactly one path was given.
    """
    if len(arguments) != 1:
        raise SystemExit("usage: python -m tests.tour.page PATH")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = messages_page()
    Path(arguments[0]).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
