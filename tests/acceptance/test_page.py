"""The page in a real browser, over a system that is broken in every way and has hostile texts."""

import re
from collections.abc import Iterator
from urllib.parse import urljoin

import pytest

from tests.acceptance import broken_names as names
from tests.acceptance.broken_system import Broken
from tests.acceptance.processes import started, until
from tests.browser import Browser

#: The system needs more than ten seconds to start, for all of them together.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pages")]

#: Seconds until the page is served.
PATIENCE = 60.0


@pytest.fixture(scope="module")
def url(broken: Broken) -> Iterator[str]:
    """Where ``web`` serves the page."""
    command = broken.command("web", "--port", "0")
    with started(command, broken.environment, broken.folder) as page:
        said = re.compile(r"serving .* at (http://\S+)")
        until(lambda: said.search(page.log) is not None, PATIENCE, page, "it serves the page")
        yield said.findall(page.log)[0]


def test_a_dead_holder_needs_somebody(browser: Browser, url: str) -> None:
    """It is told at the first look, in a row with its key and one command to copy."""
    with browser.page(urljoin(url, "needs")) as page:
        link = page.get_by_role("link", name=names.DEAD, exact=True)
        row = page.locator("tr", has_text="dead holder").filter(has=link)
        assert row.count() == 1
        assert row.locator(".copy").count() == 1
