"""The page over a store in memory. Nobody looks at the store unless a test says so."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from celery_redislock.operating.server import LockServer, Place
from celery_redislock.publishing.handle import Holder
from celery_redislock.store.store import Counts, Entry, History, Hold
from celery_redislock.web import asked, page
from celery_redislock.web.around import EVERY
from celery_redislock.web.sample import Sample, sample_of
from celery_redislock.web.sampler import Cost, Sampler
from tests.unit.shop import FlakyStore

COMMAND = "celery -A shop redislock"

#: Each list, and all views beside the one that explains.
LISTS = ("needs", "lines", "held", "schedule", "happened")
VIEWS = ("", *LISTS)


class TellingStore(FlakyStore):
    """A store in memory that tells, of what a server counts and notes, what a test has set."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[tuple[str, ...], int] = {}
        self.refusals: dict[str, History] = {}
        self.ahead = 0.0

    def walk_holds(self, *, limit: int = 100_000) -> Iterator[list[Hold]]:
        for holds in super().walk_holds(limit=limit):
            yield [hold for hold in holds if hold.state]  # on a server, no other program's is on the list

    def counts(self) -> Counts:
        self._asked("counts")
        return Counts(None, dict(self.numbers))

    def refused(self, *, limit: int = 1000) -> list[str]:
        latest_first = sorted(self.refusals, key=lambda name: -self.refusals[name].refused[0].last)
        return latest_first[:limit]

    def happened(self, name: str, **_: Any) -> History:
        return self.refusals.get(name, History())

    def clock(self, name: str = "") -> float:  # noqa: ARG002
        return time.time() + self.ahead


class Parsed(HTMLParser):
    """A page as a browser reads it.

    Attributes:
        elements: each with the names of its attributes, in order; ``attributes``: each with its value.
        texts: what is between them. ``rows``: of the tables' bodies, by section; each a list of cells.
    """

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.rows: dict[str, list[list[str]]] = {}
        self._cells: list[str] = []
        self.feed(markup)
        self.close()

    @property
    def text(self) -> str:
        """All of them."""
        return "".join(self.texts)

    def values(self, name: str) -> list[str]:
        """Return what stands in attributes of this name."""
        return [value for key, value in self.attributes if key == name]

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.attributes += attrs
        if tag == "table":
            self._table = self.rows.setdefault(dict(attrs)["aria-labelledby"], [])
        if tag == "tr":
            self._cells = []
        if tag == "td":
            self._cells.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "tr" and self._cells:
            self._table.append(self._cells)
            self._cells = []

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self._cells:
            self._cells[-1] += data


class Answer(NamedTuple):
    """What a browser is given."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def parsed(self) -> Parsed:
        """It, read as HTML."""
        return Parsed(self.body.decode())

    @property
    def document(self) -> Any:
        """It, read as JSON that every reader takes."""
        return json.loads(self.body, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


class Gratis(Cost):
    """Costs nothing, so that the next question need not wait."""

    def __exit__(self, *_: object) -> None:
        self.rest = 0.0


class Site:
    """The page, mounted anywhere, and what a test tells it.

    Attributes:
        store, app, server: of the locks.
        sampler: the page's own; it looks when its ``_look`` is called. All around it has answered.
        explainer: the page's own. Nobody asks workers for it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, app: Any = None) -> None:
        monkeypatch.setattr(Sampler, "wake", lambda _: None)
        monkeypatch.setattr(asked, "AT_ONCE", 0)
        monkeypatch.setattr(asked, "Cost", Gratis)
        self.store = TellingStore()
        self.store.prefix = "shop"
        self.app = app
        self.server = LockServer(self.store, COMMAND, app)
        made: list[Any] = []
        for name in ("Sampler", "Explainer"):
            kind = getattr(page, name)
            monkeypatch.setattr(page, name, lambda given, kind=kind: made.append(kind(given)) or made[-1])
        self._application = page.page_of(self.server)
        self.sampler, self.explainer = made
        self.sampler.around.asked = {*EVERY}

    def show(self, *holders: Holder, lines: Any = (), **more: Any) -> None:
        """Let the last look have seen this."""
        self.sampler.last = sample = sample_of(time.time(), holders, lines, **more)
        self.sampler.first = self.sampler.first or Sample(sample.at)
        self.sampler.curve.append((sample.at, sample.figures(self.sampler.first, 0)))

    def get(self, view: str = "", /, *, method: str = "GET", script: str = "", **query: Any) -> Answer:
        """Ask for a view, as a server does."""
        environ = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": script,
            "PATH_INFO": f"/{view}",
            "QUERY_STRING": urlencode(query),
        }
        said: list[Any] = []
        body = b"".join(self._application(environ, lambda *line: said.extend(line)))
        return Answer(int(said[0].split()[0]), dict(said[1]), body)

    def rows(self, view: str, /, **query: Any) -> list[Any]:
        """Return the rows of a list, as programs get them."""
        rows: list[Any] = self.get(f"{view}.json", **query).document["rows"]
        return rows

    def wait_by_hand(self, key: str, owner: str = "first", text: str = "{}", **facts: Any) -> None:
        """Put a call into the line of a lock that somebody holds."""
        said = {"state": "queued", "task": "shop.sync", "since": time.time() - 90.0, **facts}
        self.store.park(key, f"{owner}/1", Entry("push", "celery", 30.0, written(said), text), nonce=key)


def written(facts: Mapping[str, Any]) -> str:
    """Return facts as holders write them."""
    return json.dumps(facts, separators=(",", ":"))


def holder(key: str = "k", state: str = "running", *, age: float = 90.0, **more: Any) -> Holder:
    """Return a run that is well, or what is said."""
    terms = {"owner": f"id of {key}", "task": "shop.sync", "host": "web-1", "pid": 7, "remaining": 29.0}
    ttl = 30.0 if state == "running" else None
    return Holder(key, state=state, since=time.time() - age, **{"token": "", "ttl": ttl, **terms, **more})  # type: ignore[arg-type]


def line(key: str = "k", length: int = 3, *, home: str = "", rank: int = 1, **more: Any) -> Place:
    """Return the first of a line of calls."""
    facts = more.pop("facts", {})
    waiter = holder(key, "queued", **{"remaining": float("inf"), **more})
    return Place(rank, length, waiter, home, 0, facts)


def entry(name: str = "nightly", **more: Any) -> dict[str, Any]:
    """Return an entry of the schedule that is well."""
    names = ("paused_until", "paused_by", "paused_since", "pause_reason", "last_skip", "sending_since")
    known = {"name": name, "task": "shop.sync", "schedule": "every minute", "in_schedule": True, "beat": "b"}
    times = {"last_sent": time.time() - 30.0, "next_due": time.time() + 30.0}
    return {**dict.fromkeys(names), **known, **times, "shared": True, "paused": False, **more}


def looks(monkeypatch: pytest.MonkeyPatch, sampler: Any, *steps: Callable[[], object]) -> list[float]:
    """Do here what the sampler's thread does; return its rests.

    At each rest a step is taken. After the last one nobody asks for the page, for an hour.
    """
    from celery_redislock.web import sampler as module

    rests: list[float] = []
    left = [*steps]

    def rest(seconds: float) -> None:
        rests.append(seconds)
        clock.now += seconds
        if left:
            left.pop(0)()
            sampler._wanted_at = clock.now
        else:
            clock.now += module.AN_HOUR

    clock = SimpleNamespace(now=1000.0)
    faked = SimpleNamespace(time=time.time, monotonic=lambda: clock.now, sleep=rest)
    monkeypatch.setattr(module, "time", faked)
    monkeypatch.setattr(sampler.around, "ask", lambda: None)
    sampler._wanted_at = clock.now
    sampler.clock = clock
    sampler._run()
    return rests
