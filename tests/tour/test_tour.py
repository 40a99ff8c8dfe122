"""The tour passes everything the package can say, and the page is what was said."""

import re
from pathlib import Path

import pytest

from tests.tour.page import main, messages_page, tour
from tests.tour.sentences import UNSAID, all_sentences, sentences_of
from tests.tour.sites import EXCLUDED, STEERING, all_sites, sites_of
from tests.tour.stops import GROUPS

PAGE = Path(__file__).parents[2] / "docs" / "messages.md"
STOPS = [stop for group in GROUPS for stop in group.stops]

#: Words that are written so: names of commands and headers, and placeholders in what is to be typed.
CAPITALS = {"URL", "REDIS_URL", "REDISLOCK_ENABLED", "REDISLOCK_TTL", "PX", "NX", "SET", "TEXT", "JSON"}


def said() -> list[str]:
    """Every message, without what was typed for it and the levels in front."""
    lines = [line for stop in STOPS for message in tour().said[stop] for line in message.splitlines()]
    return [re.sub(r"^[A-Z]+: ", "", line) for line in lines if not line.startswith("$ ")]


def test_the_page_is_what_was_said() -> None:
    assert PAGE.read_text(encoding="utf-8") == messages_page(), "run make docs"


def test_every_place_that_raises_or_tells_is_passed() -> None:
    """Whoever adds one adds a stop, and reads in the page what users will read."""
    missed = [str(site) for site in all_sites() if not site.is_excluded and site not in tour().passed]

    assert missed == []


def test_every_sentence_is_said() -> None:
    """Also those that a place which is passed says only sometimes."""
    text = " ".join(" ".join(said()).split())
    unsaid = [
        sentence for sentence in all_sentences() if sentence.exclusion is None and sentence.text not in text
    ]

    assert unsaid == []


def test_every_exclusion_is_needed() -> None:
    """A table of exceptions that nobody clears out would grow until it excepts what it must not."""
    named = {site.file for site in all_sites()} | {f"{site.file}:{site.function}" for site in all_sites()}
    passed = {f"{site.file}:{site.function}" for site in tour().passed}

    assert EXCLUDED.keys() - named == set()
    assert EXCLUDED.keys() & passed == set()
    assert STEERING.keys() - {site.code for site in all_sites()} == set()
    assert UNSAID.keys() - {sentence.exclusion for sentence in all_sentences()} == set()


def test_a_new_message_is_noticed() -> None:
    """The two enumerations see each way there is to say something."""
    source = '''
def f(logger, problems):
    """A docstring says nothing to users."""
    if problems:
        raise ValueError("something is quite wrong")
    logger.warning("%s is not yet as it was", 1)
    logger.debug("for us")
    warnings.warn("this is going away")
    click.echo("an answer")
    click.echo("a complaint", err=True)
    raise
'''
    sites = list(sites_of(source, "new.py"))

    assert [(site.line, site.function) for site in sites] == [(5, "f"), (6, "f"), (8, "f"), (10, "f")]
    assert not any(site.is_excluded for site in sites)
    assert {sentence.text for sentence in sentences_of(source, "new.py")} == {
        "something is quite wrong",
        "this is going away",
        "is not yet as it was",
    }


def test_every_stop_says_something() -> None:
    assert [stop.heading for stop in STOPS if not all(tour().said[stop]) or not tour().said[stop]] == []
    assert [stop.heading for stop in STOPS if not stop.sentence.endswith((".", "`"))] == []


def test_every_heading_leads_to_one_stop() -> None:
    """Within its section: a page may have two of a kind."""
    for group in GROUPS:
        headings = [stop.heading for stop in group.stops]

        assert sorted(set(headings)) == sorted(headings)


def test_no_password_is_said() -> None:
    assert [line for line in said() if "secret" in line or "pass/word" in line] == []


def test_nothing_is_shouted_or_slipped() -> None:
    for line in said():
        shouted = set(re.findall(r"\b[A-Z]{2,}(?:_[A-Z]+)*\b", line)) - CAPITALS

        assert shouted == set(), line
        assert re.search(r"  |\.\.(?!\.)|[;,.] *;|\( | \)|;$|\bNone:", line.replace("...", "")) is None, line


def test_the_page_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    main([str(tmp_path / "page.md")])

    assert (tmp_path / "page.md").read_text(encoding="utf-8") == messages_page()
    with pytest.raises(SystemExit, match="usage"):
        main([])
