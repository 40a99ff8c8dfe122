"""What stands before the page: which requests reach it, and what every answer says to a browser."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from wsgiref.validate import validator

import pytest

from celery_redislock.web.guard import Environ, WSGIApplication, at_home, guarded

POLICY = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
SAID = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
HOSTS = {"127.0.0.1:5556", "localhost:5556", "[::1]:5556", "locks.example", "locks.example:5556"}


class Answer(NamedTuple):
    """What a browser is given."""

    status: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def said(self) -> dict[str, str]:
        """Its headers, of which each must be there once."""
        names = [name.lower() for name, _ in self.headers]
        assert len(names) == len(set(names))
        return dict(self.headers)


def ask(application: WSGIApplication, method: str = "GET", path: str = "/", **more: str) -> Answer:
    """Ask as a server does that looks whether both sides keep to PEP 3333."""
    environ: Environ = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "5556",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.input": Input(),
        "wsgi.errors": Errors(),
        "wsgi.url_scheme": "http",
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        **more,
    }
    line: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        line[:] = [status, headers]
        return lambda _: pytest.fail("nothing is written")

    checked: Any = validator(application)  # type: ignore[arg-type]
    result = checked(environ, start_response)
    body = b"".join(result)
    result.close()
    return Answer(line[0], line[1], body)


class Input:
    """The body of a request, which nobody reads."""

    def read(self, *_: object) -> bytes:
        raise AssertionError("the body of a request was read")

    readline = readlines = __iter__ = read


class Errors:
    """Where a server's own errors would go."""

    def flush(self) -> None:
        raise AssertionError("something was written to wsgi.errors")

    write = writelines = flush


class Page:
    """A page that counts who reaches it."""

    def __init__(self) -> None:
        self.reached = 0

    def __call__(self, _environ: Environ, start_response: Any) -> Iterable[bytes]:
        self.reached += 1
        start_response("200 OK", [("Content-Type", "text/html; charset=utf-8"), ("Cache-Control", "public")])
        return [b"<p>", b"the page"]


@pytest.fixture
def page() -> Page:
    return Page()


def not_found(environ: Environ, start_response: Any) -> Iterable[bytes]:
    start_response("404 Not Found", [("content-type", "text/plain"), ("x-content-type-options", "any")])
    return [b"no such view"]


def failing(environ: Environ, start_response: Any) -> Iterable[bytes]:
    raise ValueError("hush: redis://me:secret@h/0")


def failing_late(environ: Environ, start_response: Any) -> Iterator[bytes]:
    start_response("200 OK", [("Content-Type", "text/html"), ("Set-Cookie", "half=1")])
    yield b"half a page with a secret"
    raise ValueError("hush")


def speechless(environ: Environ, start_response: Any) -> Iterable[bytes]:
    return [b"no status"]


@pytest.mark.parametrize(
    ("application", "asked", "status"),
    [
        (Page(), {}, "200 OK"),
        (Page(), {"method": "HEAD"}, "200 OK"),
        (not_found, {}, "404 Not Found"),
        (Page(), {"method": "POST"}, "405 Method Not Allowed"),
        (Page(), {"path": "/" * 1_001}, "414 URI Too Long"),
        (failing, {}, "500 Internal Server Error"),
        (failing_late, {}, "500 Internal Server Error"),
        (speechless, {}, "500 Internal Server Error"),
        (Page(), {"HTTP_HOST": "evil.example"}, "421 Misdirected Request"),
        (Page(), {"HTTP_SEC_FETCH_SITE": "cross-site"}, "403 Forbidden"),
    ],
)
def test_every_answer_keeps_a_browser_from_running_keeping_and_telling_anything(
    application: WSGIApplication, asked: dict[str, str], status: str
) -> None:
    """Whatever its status, once each, in place of what the application says there."""
    answer = ask(at_home(guarded(application), HOSTS), **{"HTTP_HOST": "localhost:5556", **asked})
    assert answer.status == status
    assert {name.title(): value for name, value in answer.said.items()}.items() >= {
        name.title(): value for name, value in SAID.items()
    }.items()
    assert any(name.lower() == "content-type" for name in answer.said)
    if asked.get("method") != "HEAD":
        assert answer.said["Content-Length"] == str(len(answer.body))


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_a_method_that_could_change_something_never_reaches_the_page(page: Page, method: str) -> None:
    """GET and HEAD alone, as there is nothing to be changed."""
    answer = ask(guarded(page), method)
    assert (answer.status, answer.said["Allow"], page.reached) == ("405 Method Not Allowed", "GET, HEAD", 0)
    assert answer.body == b"this page shows, and changes nothing: GET and HEAD alone\n"


@pytest.mark.parametrize(
    ("path", "query", "is_taken"),
    [
        ("/" + "a" * 999, "q=" + "b" * 1_998, True),
        ("/" + "a" * 1_000, "", False),
        ("/", "q=" + "b" * 1_999, False),
    ],
)
def test_a_path_of_a_thousand_characters_and_a_query_of_two_thousand_are_the_longest(
    page: Page, path: str, query: str, is_taken: bool
) -> None:
    """A longer one is refused before anything looks at it."""
    answer = ask(guarded(page), path=path, QUERY_STRING=query)
    assert answer.status == ("200 OK" if is_taken else "414 URI Too Long")
    assert page.reached == is_taken


@pytest.mark.parametrize("application", [Page(), not_found, failing], ids=["page", "not found", "failing"])
def test_head_is_told_what_get_is_but_for_the_body(application: WSGIApplication) -> None:
    """The length of the body, too, through both guards."""
    page = at_home(guarded(application), HOSTS)
    whole, head = (ask(page, method, HTTP_HOST="localhost:5556") for method in ("GET", "HEAD"))
    assert (head.status, head.said, head.body) == (whole.status, whole.said, b"")
    assert whole.body


def test_head_of_what_is_refused_has_no_body_either(page: Page) -> None:
    """Of a host, and of a path."""
    refused = ask(at_home(page, HOSTS), "HEAD", HTTP_HOST="evil.example")
    long = ask(guarded(page), "HEAD", path="/" * 1_001)
    assert (refused.status[:3], refused.body, long.status[:3], long.body) == ("421", b"", "414", b"")


@pytest.mark.parametrize("application", [failing, failing_late])
def test_an_exception_is_a_sentence_for_the_browser_and_a_traceback_in_the_log(
    application: WSGIApplication, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one in the middle of a page, of which nothing is sent then, no cookie either."""
    answer = ask(guarded(application), path="/held\n")
    assert answer.status == "500 Internal Server Error"
    assert answer.body == b"the page failed; its log says why\n"
    assert "Set-Cookie" not in answer.said
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("celery_redislock", "ERROR")
    assert record.getMessage() == r"the page failed at '/held\n'"
    assert record.exc_info
    assert "hush" in str(record.exc_info[1])


@pytest.mark.parametrize(
    "host", ["127.0.0.1:5556", "localhost:5556", "LocalHost:5556", "[::1]:5556", "locks.example"]
)
def test_its_own_hosts_are_answered(page: Page, host: str) -> None:
    """In small letters or not: names of hosts know no difference."""
    assert ask(at_home(page, HOSTS), HTTP_HOST=host).status == "200 OK"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:5556", "127.0.0.1", "127.0.0.1:80", "localhost", "[::1]", "::1:5556",
        "localhost.evil.example:5556", "127.0.0.1.evil.example:5556", "localhost:5556,evil.example", "", None,
    ],
)  # fmt: skip
def test_a_name_that_somebody_lets_point_here_is_not_answered(page: Page, host: str | None) -> None:
    """DNS rebinding: the browser takes the page for one of that site, and that site's script reads it."""
    named = {} if host is None else {"HTTP_HOST": host}
    for site in ({}, {"HTTP_SEC_FETCH_SITE": "same-origin"}):
        answer = ask(at_home(page, HOSTS), **named, **site)
        assert (answer.status, page.reached) == ("421 Misdirected Request", 0)


def test_who_runs_the_page_is_told_which_name_to_give_it(page: Page) -> None:
    """A proxy's name, with the port that a browser sends."""
    for host in ("locks.example.org", "locks.example.org:8443", "[fd00::7]:5556"):
        answer = ask(at_home(page, HOSTS), HTTP_HOST=host)
        text = f"this server does not answer to that name; if it is yours, start it with --host {host}\n"
        assert answer.body.decode() == text


def test_what_is_no_host_is_not_quoted(page: Page) -> None:
    """The sentence is for people, and the name anybody's."""
    for host in ("<script>alert(1)</script>", "a b", "x" * 10 + "\x1b[2J", "b\xfccher.example"):
        assert ask(at_home(page, HOSTS), HTTP_HOST=host).body.endswith(b"start it with --host NAME\n")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_a_request_from_another_sites_page_is_refused(page: Page, method: str) -> None:
    """Whatever its method; from a page of the same site, from a bookmark, or by a program it is answered."""
    guard = at_home(page, HOSTS)
    other = ask(guard, method, HTTP_HOST="localhost:5556", HTTP_SEC_FETCH_SITE="cross-site")
    assert (other.status, page.reached) == ("403 Forbidden", 0)
    for site in ("same-origin", "same-site", "none"):
        assert ask(guard, HTTP_HOST="localhost:5556", HTTP_SEC_FETCH_SITE=site).status == "200 OK"
    assert page.reached == 3
