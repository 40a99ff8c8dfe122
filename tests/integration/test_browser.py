"""The browser of the tests: what it reports of a page, and what it lets no page do."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from tests.browser import Browser, axe, scrolls_sideways, tab_stops

GOOD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Locks</title>
<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">
<main><h1>Locks</h1><a href="/held">Held</a>
<label>Key <input name="q"></label> <button>Ask</button></main>"""
#: As strict as a page of ours.
POLICY = "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'"


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(text: str, policy: str = POLICY) -> Iterator[str]:
    """Serve a text with a policy, under any path, and return its address."""

    def application(environ: object, start_response: Callable[..., object]) -> list[bytes]:
        headers = [("Content-Type", "text/html; charset=utf-8"), ("Content-Security-Policy", policy)]
        start_response("200 OK", headers)
        return [text.encode()]

    with make_server("127.0.0.1", 0, application, handler_class=_Silent) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("dark", [False, True])
def test_a_page_is_seen_light_and_dark_and_as_wide_as_a_phone(browser: Browser, dark: bool) -> None:
    with serving(GOOD) as url, browser.page(url, dark=dark, width=400) as page:
        assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is dark
        assert page.evaluate("innerWidth") == 400
        assert not scrolls_sideways(page)


def test_a_good_page_has_nothing_grave_and_the_keyboard_gets_everywhere(browser: Browser) -> None:
    """Though its policy forbids every script: axe-core comes by the browser's own protocol."""
    with serving(GOOD) as url, browser.page(url) as page:
        assert axe(page) == []
        assert tab_stops(page) == ["a Held", "input q", "button Ask"]


def test_what_keeps_people_out_is_found_unless_it_is_excepted_by_name(browser: Browser) -> None:
    bad = GOOD.replace('<html lang="en">', '<html><meta http-equiv="refresh" content="60">')
    with serving(bad) as url, browser.page(url) as page:
        assert sorted(each.partition(" ")[0] for each in axe(page)) == ["html-has-lang", "meta-refresh"]
        assert [each.partition(" ")[0] for each in axe(page, but={"meta-refresh"})] == ["html-has-lang"]


def test_a_page_works_without_scripts(browser: Browser) -> None:
    with serving(GOOD) as url, browser.page(url, script=False) as page:
        page.click("text=Held")
        assert page.url == f"{url}held"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("<script>document.title = 'xss'</script>", "inline script"),
        ("<p style='color: red'>red</p>", "inline style"),
        ("<img alt='' src=x onerror=alert(1)>", "inline event handler"),
        ("<img alt='' src='http://127.0.0.1:9/x.png'>", "img-src"),
    ],
)
def test_a_page_that_breaks_its_own_policy_fails_its_test(browser: Browser, more: str, told: str) -> None:
    """Nothing in it has to run, or to be fetched, for that."""
    with serving(GOOD + more) as url, pytest.raises(AssertionError, match=told), browser.page(url):
        pass


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("<script>alert('xss')</script>", "dialog: xss"),
        ("<script>null.x</script>", "error: "),
        ("<img alt='' src='http://127.0.0.1:9/x.png'>", r"other hosts: {'127\.0\.0\.1:9'}"),
    ],
)
def test_a_page_without_a_policy_fails_its_test_for_what_it_does(
    browser: Browser, more: str, told: str
) -> None:
    with (
        serving(GOOD + more, policy="") as url,
        pytest.raises(AssertionError, match=told),
        browser.page(url),
    ):
        pass
