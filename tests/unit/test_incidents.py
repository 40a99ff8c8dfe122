"""The page of incidents: what it names is there, and it is what ``make docs`` writes."""

import re
from functools import cache

from tests.pages import PAGES, ROOT
from tools.incidents_page import incidents, incidents_page

ROWS = [row for part in incidents() for row in part["row"]]
LINK = re.compile(r"\[[^]]+\]\(([\w-]+\.md)#([\w-]+)\)")


@cache
def names_in(path: str) -> set[str]:
    return set(re.findall(r"def (test_\w+)\(", (ROOT / path).read_text(encoding="utf-8")))


@cache
def headings_of(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", PAGES[f"docs/{page}"], re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_committed_page_of_incidents_is_current():
    assert PAGES["docs/incidents.md"] == incidents_page()


def test_each_incident_names_a_test_that_is_there():
    """What is said to happen here is shown, or the page that limits it is named as well."""
    named = [test.split("::") for row in ROWS for test in row["tests"]]
    assert [each for each in named if each[1] not in names_in(each[0])] == []
    assert [row for row in ROWS if not row["tests"]] == []


def test_each_limit_of_an_incident_is_a_heading_of_a_page():
    for row in ROWS:
        if "limit" in row:
            page, anchor = LINK.fullmatch(row["limit"]).groups()
            assert anchor in headings_of(page), row["limit"]


def test_a_thread_is_told_once():
    """By a repository and a number; two reports of one story are one row."""
    threads = [link for row in ROWS for link in row.get("links", ())]
    assert [link for link in threads if not re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", link)] == []
    assert len(set(threads)) == len(threads)
