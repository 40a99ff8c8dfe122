"""The page as a WSGI application: which view an address names, and the view's document or its elements."""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from http import HTTPStatus
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode
from xml.etree.ElementTree import Element, tostring

from celery_redislock.exceptions import RedisLockError
from celery_redislock.operating import telling
from celery_redislock.operating.server import LockServer, Trouble
from celery_redislock.web import views
from celery_redislock.web.asked import Busy, Explainer
from celery_redislock.web.guard import guarded
from celery_redislock.web.markup import opened, shown, tag
from celery_redislock.web.sampler import Sampler
from celery_redislock.web.sections import SECTIONS, Look

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

#: Parts of a query that are read.
MOST_PARTS = 20

_Answer = tuple[HTTPStatus, str, str]


def page_of(server: LockServer) -> "WSGIApplication":
    """Return the page of a lock server. It asks nothing until somebody asks for it."""
    return guarded(_Page(server))


class Request:
    """What is wanted: a view, in which form, of what; and how to link to others.

    Attributes:
        view: its name; '' for the page itself.
        is_json: for a program. ``refreshes``: it is loaded again and again.
        query: what is wanted of it, by name, without what is empty.
    """

    def __init__(self, environ: "WSGIEnvironment") -> None:
        """Read the address; what is no part of one is left out."""
        # As PEP 3333 has them, its characters are bytes.
        self._base = quote(environ.get("SCRIPT_NAME", "").rstrip("/"), encoding="latin-1")
        name = environ.get("PATH_INFO", "").strip("/")
        self.is_json = name.endswith(".json")
        self.view = name.removesuffix(".json")
        if self.is_json and self.view == "index":
            self.view = ""
        pairs = parse_qsl(environ.get("QUERY_STRING", ""))[:MOST_PARTS]
        self.query = {key: value.strip() for key, value in pairs if value.strip()}
        self.refreshes = "refresh" in self.query

    @property
    def page(self) -> int:
        """Which page of a list."""
        number = re.fullmatch("[0-9]{1,4}", self.query.get("page", ""))
        return max(1, int(number[0])) if number else 1

    def link(self, view: str = "", /, **query: object) -> str:
        """Return the address of a view, below where the page is mounted."""
        wanted = {key: value for key, value in query.items() if value not in {None, ""}}
        return f"{self._base}/{view}" + (f"?{urlencode(wanted, errors='replace')}" if wanted else "")


class _NoSuchPage(Exception):  # noqa: N818  a sentence
    """No view has this address."""


class _Page:
    """The application."""

    def __init__(self, server: LockServer) -> None:
        self._sampler = Sampler(server)
        self._explainer = Explainer(self._sampler)

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        status, kind, text = self._answer(Request(environ))
        body = text.encode("utf-8", "replace")
        headers = [("Content-Type", kind), ("Content-Length", str(len(body)))]
        start_response(f"{status.value} {status.phrase}", headers)
        return [body]

    def _answer(self, request: Request) -> _Answer:
        if request.view == "style.css":
            return HTTPStatus.OK, "text/css; charset=utf-8", _packaged("style.css")
        self._sampler.wake()
        status = HTTPStatus.OK
        try:
            document, elements = self._viewed(request)
        except _NoSuchPage as error:
            home = tag("a", "To the page of the locks", href=request.link())
            document, elements = {"error": str(error)}, [tag("p", error, " ", home)]
            request.view = ""  # whose other forms are offered
            status = HTTPStatus.NOT_FOUND
        except (RedisLockError, Trouble) as error:
            document, elements = {"error": str(error)}, [tag("p", error, class_="bad", role="alert")]
            is_later = isinstance(error, RedisLockError | Busy)
            status = HTTPStatus.SERVICE_UNAVAILABLE if is_later else HTTPStatus.BAD_REQUEST
        if request.is_json:
            return status, "application/json", self._as_json(document)
        return status, "text/html; charset=utf-8", self._as_html(request, elements)

    def _viewed(self, request: Request) -> tuple[Mapping[str, Any], Sequence[Element]]:
        sampler = self._sampler
        if request.view not in {"", "explain", *SECTIONS}:
            raise _NoSuchPage("There is no such page.")
        if request.view == "explain":
            return views.explained(self._explainer, request.link, request.query.get("q", ""))
        if sampler.last is None:
            return {}, [tag("p", "The first look at the locks has no answer yet.")]
        look = Look(sampler, sampler.last, request.link)
        if not request.view:
            return views.overview(look)
        section = SECTIONS[request.view]
        wanted = {name: request.query[name] for name in section.fields if name in request.query}
        for name, choices in views.CHOICES.items():
            if wanted.get(name, choices[0]) not in choices:
                kind = "order" if name == "sort" else name
                raise Trouble(f"there is no {kind} {wanted[name]!r}; there are {', '.join(choices)}")
        return views.listed(look, section, wanted, request.page, has_form=not request.refreshes)

    def _as_json(self, document: Mapping[str, Any]) -> str:
        sampler = self._sampler
        about = {
            "version": telling.VERSION,
            "server": sampler.server.store.server,
            "at": sampler.last and sampler.last.at,
            "rests": sampler.rest,
            "trouble": sampler.trouble or None,
            "missing": sampler.around.troubles,
        }
        return json.dumps(opened({**about, **document}), indent=1)

    def _as_html(self, request: Request, elements: Sequence[Element]) -> str:
        sampler = self._sampler
        words = [*_troubles(sampler), *elements]
        store = sampler.server.store
        app = sampler.server.app
        server = f"{app.main or ''} locks on {store.server}, prefix {store.prefix}" if app else store.server
        field = None if request.refreshes else views.field(request.link, request.query.get("q", ""))
        seconds = f"{sampler.rest:.0f}"
        refresh = tag("meta", http_equiv="refresh", content=seconds) if request.refreshes else None
        links = [tag("a", each.title, href=request.link(name)) for name, each in SECTIONS.items()]
        parts = {
            "refresh": [] if refresh is None else [refresh],
            "field": [] if field is None else [field],
            "state": [tag("p", *self._state(request), class_="dim")],
            "links": links,
            "main": words,
        }
        texts = {name: "".join(map(_markup, some)) for name, some in parts.items()}
        page = Template(_packaged("page.html"))
        return page.substitute(texts, base=escape(request.link()), server=escape(shown(server)))

    def _state(self, request: Request) -> Iterator[object]:
        """Tell how old the look is, and offer other forms of the view."""
        sampler = self._sampler
        others = {key: value for key, value in request.query.items() if key != "refresh"}
        if sampler.last is not None:
            age = max(0.0, time.time() - sampler.last.at)
            yield f"Seen {age:.0f} s ago; it is looked at every {sampler.rest:.0f} s. "
        if request.refreshes:
            yield tag("a", "Stop refreshing", href=request.link(request.view, **others))
        else:
            yield tag("a", "Refresh by itself", href=request.link(request.view, **others, refresh=1))
        yield " "
        yield tag("a", "JSON", href=request.link(f"{request.view or 'index'}.json", **others))


def _troubles(sampler: Sampler) -> Iterator[Element]:
    """Tell what could not be looked at."""
    if sampler.trouble:
        told = f"The lock server could not be looked at: {sampler.trouble}. It is looked at again by itself."
        yield tag("p", told, class_="bad", role="alert")
    for what, why in sampler.around.troubles.items():
        yield tag("p", f"The {what} could not be asked: {why}", class_="warn")


def _markup(element: Element) -> str:
    return tostring(element, encoding="unicode", method="html")


@cache
def _packaged(name: str) -> str:
    """Return a file of this package."""
    return files(__package__).joinpath(name).read_text("utf-8")
