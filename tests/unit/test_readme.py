"""What the pages name exists: commands, options, links. That their code works is an integration test."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import celery
import click
import kombu
import pytest
from celery.bin.celery import celery as celery_command

from celery_redislock.declaring.scopes import SCOPES, STRATEGIES
from celery_redislock.declaring.table import SETTING_ROWS, TASK_ROWS
from celery_redislock.declaring.unknown import GONE
from tests.acceptance.compose import COMPOSE
from tests.pages import PAGES, ROOT, Block, blocks_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Names that begin like an option and are something else.
OTHER_NAMES = {
    *("lock_for", "lock_acquired", "lock_released", "lock_lost", "lock_conflict"),
    "lock_delay",  # of a Lock
    *("redislock_up", "redislock_events_total", "redislock_held", "redislock_oldest_seconds"),  # metrics
    *("redislock_late", "redislock_in_line", "redislock_wait_seconds", "redislock_hold_seconds"),
    *("redislock_beat_last_sent_seconds", "redislock_beat_paused", "redislock_scrape_seconds"),
    *("redislock_memory", "redislock_off", "redislock_skipped"),
    *("redislock_tick", "redislock_in_hand_of"),  # a header, a property
    "lock_expiry",  # celery-singleton's
    "lock_collect",  # other systems'
}
#: Where a file may be that a page names.
ROOMS = (
    *(ROOT / room for room in (".", "celery_redislock", "examples/quickstart")),
    *(Path(library.__file__).parent for library in (celery, kombu)),
)
OPTION = re.compile(r"(?<![\w./-])((?:redislock_|lock_|on_lock_)[a-z_]*[a-z])\b(?!\.(?:py|lua|md))")
CHOICE = re.compile(r"\b(lock|on_conflict)=\"(\w+)\"")
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#]+)(#[^)]*)?\)")

MAKEFILE = (ROOT / "Makefile").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    """Each option, scope, strategy, link, file and test."""
    # Messages name what does not exist, to tell so; the changelog says what was taken out.
    text = re.sub(r"```text\n.*?```", "", PAGES[page], flags=re.DOTALL)
    known = {*TASK_ROWS, *SETTING_ROWS, *OTHER_NAMES, *(GONE if page == "CHANGELOG.md" else ())}
    assert set(OPTION.findall(text)) <= known

    values = {"lock": SCOPES, "on_conflict": STRATEGIES}
    assert [found for found in CHOICE.findall(PAGES[page]) if found[1] not in values[found[0]]] == []

    folder = (ROOT / page).parent
    assert [target for target, _ in LINK.findall(PAGES[page]) if not (folder / target).exists()] == []

    code = re.findall(r"`([^`\n]+)`", PAGES[page])
    files = [name for name in code if re.fullmatch(r"[\w/.]+\.(?:py|lua)|\w+(?:/\w+)*/", name)]
    assert [name for name in files if not any((room / name).exists() for room in (folder, *ROOMS))] == []
    tests = {name for name in code if re.fullmatch(r"test_\w+", name)}
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py")) if tests else ""
    assert {name for name in tests if f"def {name}(" not in sources} == set()
    placed = re.findall(r"`(tests/[\w/]+\.py)::(?:\w+::)?(\w+)`", PAGES[page])
    assert [each for each in placed if f"def {each[1]}(" not in (ROOT / each[0]).read_text()] == []


def test_every_page_of_docs_is_in_the_index() -> None:
    """Once; the contents of the site are made of it."""
    lists = "".join(re.findall(r"^- .*\n", PAGES["docs/index.md"], re.MULTILINE))
    linked = [target for target, _ in LINK.findall(lists) if "/" not in target]
    assert sorted(linked) == sorted(
        f"{path.name}" for path in (ROOT / "docs").glob("*.md") if path.stem != "index"
    )


@pytest.mark.parametrize("block", blocks_of("sh"), ids=str)
def test_every_command_can_be_called_like_that(block: Block) -> None:
    for line in block.code.splitlines():
        words = shlex.split(line, comments=True)
        if words:
            check_command(words)


def check_command(words: list[str]) -> None:
    """Fail where a line names a program, a target, a module, a subcommand or an option that is not there."""
    while re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    program, *rest = words
    CHECKS[program.removeprefix(".venv/bin/")](rest)


def check_make(targets: list[str]) -> None:
    assert [each for each in targets if not re.search(rf"^{each}:", MAKEFILE, re.MULTILINE)] == []


def check_python(rest: list[str]) -> None:
    if rest[:2] == ["-m", "pip"]:
        check_pip(rest[2:])
    elif rest[0] == "-m":
        assert importlib.util.find_spec(rest[1]), rest
        paths = [word for word in rest[2:] if word.startswith(("tests", "benchmarks", "docs", "examples"))]
        assert [word for word in paths if not (ROOT / word.partition("::")[0]).exists()] == []
    else:
        assert (ROOT / "examples" / "quickstart" / rest[0]).is_file(), rest


def check_pip(rest: list[str]) -> None:
    words = " ".join(rest)
    named = [
        *re.findall(r"--group (\S+)", words),
        *re.findall(r"\w+", "".join(re.findall(r"\[(.*?)\]", words))),
    ]
    assert {*named} <= {*PYPROJECT["dependency-groups"], *PYPROJECT["project"]["optional-dependencies"]}, rest


def check_script(rest: list[str]) -> None:
    is_unpacked = not (ROOT / ".ci").exists()  # an sdist has none
    assert is_unpacked or (ROOT / rest[0]).is_file(), rest


def check_docker(rest: list[str]) -> None:
    assert rest[:1] == ["compose"]
    assert rest[1] in {"up", "down"} or rest[2] in COMPOSE["services"], rest


def check_celery(rest: list[str]) -> None:
    from celery_redislock.cli import redislock

    if rest[2] == "redislock":
        parse(redislock, rest[3:])
    else:
        assert rest[2] in celery_command.commands, rest


def check_own_command(rest: list[str]) -> None:
    from celery_redislock.cli import main

    parse(main, rest)


def parse(group: click.Group, words: list[str]) -> None:
    """Parse a command line as click would, without carrying it out."""
    context = click.Context(group)
    options = {name for parameter in group.params for name in parameter.opts}
    while words[0].startswith("-"):
        assert words[0] in options, words
        words = words[2:]
    command = group.get_command(context, words[0])
    assert command is not None, words
    command.make_context(words[0], words[1:], parent=context).close()


CHECKS = {
    "make": check_make, "python": check_python, "python3": check_python, "pip": check_pip,
    "celery": check_celery, "celery-redislock": check_own_command, "docker": check_docker,
    "bash": check_script, "redis-cli": lambda _rest: None,
}  # fmt: skip
