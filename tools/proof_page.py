"""Write the page of proof from what tools have kept: ``python tools/proof_page.py docs/proof.md``.

A tool is given ``--record docs/proof.json``, and keeps its figures there (``tools/record.py``).
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["SECTIONS", "proof_page"]

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "proof.json"

HEAD = """\
# Proof

<!-- Made from docs/proof.json and tools/proof_page.py: make docs -->

What was explored, injected and measured, when, and with which versions. No figure on this page is typed
by hand: the tools wrote them, by the commands that are named. What is promised:
[the ten promises](promises.md).
"""

TAIL = """
## On a server of your own

`celery redislock drill` plays holders, faults and a verdict on your server: [drill](operating.md#drill).

## Beside other libraries

Everyday scenarios, with real workers and beats: [scoreboard](scoreboard.md). What it costs:
[benchmarks](../benchmarks/README.md).

## Random attacks

`make attack` draws set-ups and faults at random, and prints its seed; `--seed` draws the same rounds again.
A minute of it is part of every change's tests: [contributing](../CONTRIBUTING.md#attack-soak-benchmarks).
"""


class Section(NamedTuple):
    """A part of the page: the tool that keeps its figures, by which command, and what they mean."""

    tool: str
    title: str
    command: str
    text: str


#: A section is on the page from the day on that its tool has kept figures.
SECTIONS = (
    Section(
        "explore",
        "Every history of small worlds",
        "make explore ARGS='--record docs/proof.json'",
        "Two or three calls, what each of their processes asks for, at most so many losses and kills as a "
        "world has, and time: every step is taken from every state, on the store in memory. In each state "
        "the promises are looked at, and whether all accepted calls end in time from there, under two "
        "schedules without faults: the longest that this took, of what it may take, in seconds of the "
        "model. In the words of a fault `0/c` is the message of call 0, `0/r0` its first run, `0/d0` its "
        "first retry. The second table has stores that are broken on purpose: each must be found, by the "
        "number of steps that is told. A world has bounds (`tools/explore/worlds.py`): what "
        "needs more calls, losses or kills is not seen.",
    ),
    Section(
        "explore --large",
        "Larger worlds",
        "make explore ARGS='--large --record docs/proof.json'",
        "Worlds with more time, and worlds whose loss and kill together take too long for every run.",
    ),
    Section(
        "replay on Valkey",
        "The same histories on a real server",
        "make replay ARGS='--record docs/proof.json'",
        "The shortest way to each state of these worlds is played on a server with the real scripts; so are "
        "some of the other steps, of each kind. What it answers and what it keeps are compared with the "
        "store in memory, and every key but those of lines must have an end. The second table has random "
        "ways in worlds that are too large to be explored: four calls, four losses, four kills, and three "
        "acts of operators and of other programs. The third one has scripts that are broken on purpose. "
        "Only the clock is the model's: scripts are told the time that has passed, and keys are made to "
        "live for less.",
    ),
    Section(
        "replay on Redis",
        "Likewise on Redis",
        "make replay ARGS='--server redis-server --record docs/proof.json'",
        "The same, on another server.",
    ),
    Section(
        "history",
        "Histories under faults",
        "make history ARGS='--record docs/proof.json'",
        "Four processes take one lock while they are paused or cut off, or their servers restart or fail "
        "over. An overlap is two that trusted their lease at once. What each scene and column means, and "
        "which overlaps are expected: [what histories show](locks.md#what-histories-show).",
    ),
    Section(
        "soak",
        "Three beats for minutes",
        "make soak ARGS='--record docs/proof.json'",
        "One beat is killed and replaced, one is stopped for a while, and the lock server is killed and "
        "comes back with its data, then without. A tick may come twice once, where the server has lost "
        "its data.",
    ),
    Section(
        "newest",
        "The versions that users have",
        "make newest ARGS='--record docs/proof.json'",
        "Each row shows how many tests passed with one Python, and on which day: units, the promises with "
        "real workers on one server as broker and lock server, and the store on that server; without slow "
        "tests. Tests are skipped of what this Python, Celery or kombu does not have. What every change is "
        "run with: "
        "[which with which](policy.md#which-with-which).",
    ),
)


def proof_page(kept: Mapping[str, Any]) -> str:
    """Return the page as Markdown, for the figures that tools have kept."""
    return HEAD + "".join(_section(each, kept[each.tool]) for each in SECTIONS if each.tool in kept) + TAIL


def _section(section: Section, kept: Mapping[str, Any]) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in {**kept["versions"], **kept["drawn"]}.items())
    tables = "".join(f"\n{_table(*table)}" for table in kept["tables"])
    return (
        f"\n## {section.title}\n\n{section.text}\n\n`{section.command}` on {kept['day']}: {facts}.\n{tables}"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/proof_page.py PATH")
    Path(sys.argv[1]).write_text(
        proof_page(json.loads(FIGURES.read_text(encoding="utf-8"))), encoding="utf-8"
    )
