"""What stands before the page: which requests reach it, and what every answer of it says to a browser.

The names of tasks, keys and hosts are anybody's, and the page has no login. So a browser shall run nothing of
it, keep nothing of it, and give nothing of it to another site.
"""

import re
from collections.abc import Callable, Collection, Iterable
from typing import Any
from wsgiref.headers import Headers

from celery_redislock.log import logger

#: As PEP 3333 has them; ``wsgiref.types`` is in Python 3.11 and newer.
Environ = dict[str, Any]
WSGIApplication = Callable[[Environ, Any], Iterable[bytes]]

_POLICY = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
#: What every answer says, whatever its status; an application's own headers of these names are replaced.
HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)
PLAIN = ("Content-Type", "text/plain; charset=utf-8")

#: The longest path and the longest query string that are read, in characters.
LONGEST_PATH = 1_000
LONGEST_QUERY = 2_000

#: What a ``Host`` may be: a name or an address, with or without a port.
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)


def guarded(application: WSGIApplication) -> WSGIApplication:
    """Return the application for ``GET`` and ``HEAD`` alone, with :data:`HEADERS` on each of its answers.

    Another method is answered with 405, a path or a query string that is too long with 414. An exception of
    the application is logged, and answered with 500 and nothing of it. ``HEAD`` has no body. An answer is
    collected before its first byte is sent, so that a part of a page is never taken for the page.

    Args:
        application: one that returns its body, as this package's page does, and writes nothing itself.
    """

    def answer(environ: Environ, start_response: Any) -> Iterable[bytes]:
        path, query = (len(environ.get(name, "")) for name in ("PATH_INFO", "QUERY_STRING"))
        chosen = application
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            text = "this page shows, and changes nothing: GET and HEAD alone"
            chosen = _says("405 Method Not Allowed", text, ("Allow", "GET, HEAD"))
        elif path > LONGEST_PATH or query > LONGEST_QUERY:
            text = f"a path has {LONGEST_PATH:,} characters at most, a query {LONGEST_QUERY:,}"
            chosen = _says("414 URI Too Long", text)
        return chosen(environ, start_response)

    return _sealed(answer)


def at_home(application: WSGIApplication, hosts: Collection[str]) -> WSGIApplication:
    """Return the application for requests to these hosts alone, and from no other site's page.

    A name that somebody lets point here (DNS rebinding) is answered with 421, and so is a request without a
    ``Host``. A request that a browser sends for another site's page is answered with 403. These answers have
    :data:`HEADERS`, too.

    Args:
        application: a guarded one.
        hosts: what ``Host`` may be, in small letters, each with its port where a browser sends one.
    """

    def answer(environ: Environ, start_response: Any) -> Iterable[bytes]:
        host = environ.get("HTTP_HOST", "")
        chosen = application
        if host.lower() not in hosts:
            name = host if HOST.fullmatch(host) else "NAME"
            text = f"this server does not answer to that name; if it is yours, start it with --host {name}"
            chosen = _says("421 Misdirected Request", text)
        elif environ.get("HTTP_SEC_FETCH_SITE") == "cross-site":
            text = "another site led here; type the address of this page, or open it from a bookmark"
            chosen = _says("403 Forbidden", text)
        return chosen(environ, start_response)

    return _sealed(answer)


def _says(status: str, text: str, *headers: tuple[str, str]) -> WSGIApplication:
    def answer(_environ: Environ, start_response: Any) -> Iterable[bytes]:
        start_response(status, [PLAIN, *headers])
        return [f"{text}\n".encode()]

    return answer


def _sealed(application: WSGIApplication) -> WSGIApplication:
    def answer(environ: Environ, start_response: Any) -> Iterable[bytes]:
        said: list[Any] = []
        try:
            body = b"".join(application(environ, lambda *line: said.extend(line)))
            status, headers = said
        except Exception:
            logger.exception("the page failed at %r", environ.get("PATH_INFO"))
            status = "500 Internal Server Error"
            headers = [PLAIN]
            body = b"the page failed; its log says why\n"
        sent = Headers([*headers])
        for name, value in HEADERS:
            sent[name] = value
        # An application that was asked for its headers alone may have said how long the body would be.
        sent.setdefault("Content-Length", str(len(body)))
        start_response(status, sent.items())
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return answer
