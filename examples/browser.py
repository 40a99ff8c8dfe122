"""A browser without a window, and what somebody with one sees of the page of the locks."""

import re
from collections.abc import Mapping
from email.message import Message
from html import unescape
from http.cookiejar import CookieJar
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, Request, build_opener

from examples.stage import PATIENCE, Stage, wait_until

__all__ = ["Answer", "Browser", "look_at_the_locks"]

#: Seconds until the page has the lock: it looks at the lock server now and then.
A_LOOK = 20.0
#: What each answer of the page says to a browser.
SAFETY = {
    "Content-Security-Policy": "default-src 'none'; ",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Answer(NamedTuple):
    """What a site has said."""

    status: int
    headers: Message
    text: str


class Browser:
    """Keeps cookies, and shows redirects instead of following them.

    Attributes:
        cookies: what the site has set, by name.
    """

    def __init__(self, site: str, **headers: str) -> None:
        """Visit this site, with these headers in each request."""
        self._site = site
        self._headers = headers
        self._jar = CookieJar()
        self._opener = build_opener(HTTPCookieProcessor(self._jar), _Stays)

    @property
    def cookies(self) -> Mapping[str, str]:
        return {cookie.name: cookie.value or "" for cookie in self._jar}

    def ask(self, path: str, *, method: str = "GET", form: Mapping[str, str] | None = None) -> Answer:
        """Ask the site for what is at a path; send it a form, if there is one."""
        body = None if form is None else urlencode(form).encode()
        request = Request(self._site + path, body, self._headers, method=method)  # noqa: S310  an address of ours
        try:
            with self._opener.open(request, timeout=PATIENCE) as answer:
                return Answer(answer.status, answer.headers, answer.read().decode())
        except HTTPError as refused:
            with refused:
                return Answer(refused.code, refused.headers, refused.read().decode())


class _Stays(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follow none."""


def look_at_the_locks(
    here: Stage, root: str, key: str, stranger: Browser, staff: Browser, **form: str
) -> None:
    """See that the page is there for staff alone, whole, and only to be read.

    Args:
        here: the stage.
        root: the path that the page is mounted at, as ``/locks/``.
        key: of a lock that is held.
        stranger: somebody who has not logged in.
        staff: somebody who has.
        form: what a form of the site has in it, so that its protection of forms lets it pass.
    """
    refused = [stranger.ask(root + view) for view in ("", "held.json", "style.css")]
    here.expect(
        f"a stranger is told {[answer.status for answer in refused]}, and shown nothing",
        all(answer.status in {302, 401, 403} and "<h1><a" not in answer.text for answer in refused),
    )

    here.expect(
        "whoever has logged in sees the lock", wait_until(lambda: key in staff.ask(root).text, A_LOOK)
    )
    page = staff.ask(root)
    links = {unescape(link) for link in re.findall(r'href="([^"#]+)"', page.text)}
    here.expect(
        f"{len(links)} links lead below {root}", links and all(each.startswith(root) for each in links)
    )
    # Explanations of other keys as well, at the same moment, would be more than the page gives.
    explanation = f"{root}explain?{urlencode({'q': key})}"
    asked = {link for link in links if "explain?" not in link} | {explanation}
    here.expect("and are answered", all(staff.ask(link).status == 200 for link in asked))
    here.expect("one explains the lock", explanation in links)
    kinds = [staff.ask(root + view).headers.get_content_type() for view in ("style.css", "held.json")]
    here.expect("with its stylesheet, and as JSON", kinds == ["text/css", "application/json"])
    said = {name: page.headers.get_all(name) or [] for name in SAFETY}
    here.expect(
        f"with {', '.join(SAFETY)}",
        all(len(said[name]) == 1 and said[name][0].startswith(SAFETY[name]) for name in SAFETY),
    )
    head = staff.ask(root, method="HEAD")
    here.expect("HEAD has no body", (head.status, head.text) == (200, ""))
    here.expect("POST is refused with 405", staff.ask(root, method="POST", form=form).status == 405)
