"""The texts on the page, most of which are anybody's: they stay texts, and some are not told at all."""

import json
import re
import shlex
import time
from functools import cache
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import pytest
from celery import Celery

from celery_redislock.declaring.server import use_store
from celery_redislock.operating import telling
from celery_redislock.operating.explain import explanation
from celery_redislock.publishing import promote
from celery_redislock.receiving import whereabouts
from celery_redislock.receiving.whereabouts import Idle
from celery_redislock.store.memory import MemoryStore
from celery_redislock.store.store import Entry, History, Hold, Refused, owner_name
from celery_redislock.web.markup import COMMANDS, LONGEST, LONGEST_COMMAND
from celery_redislock.web.page import page_of
from celery_redislock.web.sampler import Event
from tests.unit.shop import Shop
from tests.unit.web.site import LISTS, VIEWS, Answer, Parsed, Site, entry, written

NONCE = "0f1e2d3c4b5a"
FOREIGN = "lock-of-cron-5e884898da28"

#: What is to be copied.
COMMAND = re.compile("(?s)<code class=.copy.>.*?</code>")

PAYLOADS = [
    "<script>alert(1)</script>",
    "</td></tr></table></main><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "\"><b id='x' onclick='alert(1)'>",
    "' onmouseover='alert(1)' x='",
    '" onfocus=alert(1) autofocus x="',
    "--><!--<script>-->",
    "<![CDATA[<b>]]>",
    "</title><style>*{display:none}</style>",
    "</textarea></option></select><b>",
    "&lt;b&gt;&#60;b&#62;&amp;",
    "${refresh}$field$$",
    "<b\u2028>\u2029</b\x85>\x0b\x0c",
    "<b\x00>\x1b[2J\u202e</b>",
    "\uff1cb\uff1e\ufeff\u200b",
    "\ud800<b>",
    "%3Cb%3E%22%27%00",
    "+ADw-b+AD4-",
    "javascript:alert(1)//",
    "it's \\ a `backtick` $(id) ; #",
    "{}\n{0}\r\nSet-Cookie: x=1",
]


def pay(number: str = "") -> None:
    """Do nothing."""


def fill(site: Site, monkeypatch: Any, text: str) -> list[str]:
    """Put a text wherever one of somebody's may stand, and return the questions that are asked of it."""
    store = site.store
    around = site.sampler.around
    # Redis gives keys and tokens as bytes, so that no half of a character is in one; and NUL ends a token.
    task_id = text.encode("utf-8", "replace").decode()
    key = owner_name(task_id)
    held = f"held {key}"
    stands = f"line {key}"
    facts = {"task": text, "about": text, "host": text, "since": time.time() - 90.0, "on_conflict": text}
    state = text if text.isprintable() else "odd"
    for name, said in ((held, "running"), (stands, "queued"), (f"q {key}", "queued"), (f"x {key}", state)):
        store.acquire(name, f"{key}/{NONCE}", 30.0, facts=written({**facts, "state": said, "ttl": 900.0}))
    store._keep(f"foreign {key}", f"{FOREIGN}{key}".encode(), 900.0)
    site.wait_by_hand(f"foreign {key}", f"{key} too", **facts)
    site.wait_by_hand(stands, f"{key} too", **facts)
    site.wait_by_hand(held, f"operator {key}", **{**facts, "state": "hold"})
    site.sampler._look()
    hold = Hold(held, f"{key}/{NONCE}\0{written({**facts, 'on_conflict': 'skip'})}".encode(), 0.0)
    forced = {"by": text, "host": text, "reason": text, "owner": text, "since": 1.0}
    store.refusals[held] = History((Refused(2, time.time(), time.time(), text, hold),), forced)
    around.workers = {text: frozenset({text})}
    around.queues = [Idle(text, 9, (task_id,))]
    around.troubles = {"set-up": text}
    around.findings = [("warning", text)]
    skip = {"at": 1.0, "task_id": f"{FOREIGN}{text}", "state": None, "held_for": None, "in_a_row": 3}
    known = {"schedule": text, "beat": text, "pause_reason": text, "paused": True}

    def rows(*_: Any) -> list[dict[str, Any]]:
        return [entry(text, task=text, last_skip={**skip}, **known)]

    monkeypatch.setattr("celery_redislock.web.around.Schedule", lambda _: SimpleNamespace(rows=rows))
    around._ask_schedule()
    act = {"since": time.time() + 9.0, "act": text, "key": held, "by": text, "host": text, "reason": text}
    around.acts = [{**act, "outcome": text}]
    site.sampler._look()
    site.sampler.events.append(Event(1.0, text, text, text))
    site.sampler.trouble = text
    monkeypatch.setattr(MemoryStore, "server", text)
    monkeypatch.setattr("celery_redislock.operating.explain._entries", rows)
    site.explainer._answers[held,] = time.monotonic(), explanation(site.explainer._server, [held])
    return [shlex.quote(name) for name in (held, stands, f"foreign {key}")]


def answers(site: Site, questions: list[str], text: str = "") -> list[Answer]:
    """Return every view, for people and for programs; also as one gets it who searches for a text."""
    paths = [path for view in LISTS for path in (view, f"{view}.json")]
    searched = [site.get(path, search=text) for path in paths if text]
    explained = [site.get(path, q=question) for path in ("explain", "explain.json") for question in questions]
    plain = [site.get(path) for path in (*paths, "", "index.json")]
    found = [*searched, *explained, *plain]
    assert {answer.status for answer in found} == {200}
    return found


@cache
def pages_with(text: str, *, searched: bool) -> list[Answer]:
    """Return the pages with a text everywhere, as one sees them who searches for it, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whereabouts, "_PATIENCE", 0.01)
        site = Site(patch, Celery("shop", broker="memory://localhost", set_as_current=False))
        found = answers(site, fill(site, patch, text), text if searched else "")
    pages = [each for each in found if each.headers["Content-Type"].startswith("text/html")]
    assert all(each.document for each in found if each not in pages)
    return pages


@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_anybody_wrote_stays_text(payload: str) -> None:
    """No element and no attribute is on the page beside those of the same page with harmless texts."""
    harmless = pages_with("harmless", searched=payload.isprintable())
    for expected, answer in zip(harmless, pages_with(payload, searched=payload.isprintable()), strict=True):
        page = answer.parsed
        assert page.elements == expected.parsed.elements
        links = [*page.values("href"), *page.values("action")]
        assert all(link.startswith(("/", "#")) for link in links), links
        assert page.text.count(telling.printable(payload)) > 3


def test_every_list_has_its_rows_where_texts_are_anybodys(site: Site, monkeypatch: Any) -> None:
    """Else the test above sees little."""
    fill(site, monkeypatch, "harmless")
    numbers = {view: site.get(f"{view}.json").document["total"] for view in LISTS}
    assert numbers == {"needs": 5, "lines": 3, "held": 5, "schedule": 1, "happened": 3}
    kinds = {need["kind"] for need in site.rows("needs")}
    assert kinds == {"dead holder", "foreign lock", "queued for long", "schedule", "set-up"}


def test_a_key_leads_to_what_explains_it(site: Site) -> None:
    """Whatever is in it: spaces, quotation marks, a dash at its front."""
    keys = ["a b", "it's", '"', "\\", "-x", "--help", "é", "<b>&amp;", "#?%", "$(id)"]
    for key in keys:
        site.store.acquire(key, f"owner of {key}/1", 30.0, facts='{"state":"queued"}')
    site.sampler._look()
    links = [href for href in site.get("held").parsed.values("href") if href.startswith("/explain?q=")]
    assert len(links) == len(keys)
    for link in links:
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": "/explain.json",
            "QUERY_STRING": link.partition("?")[2],
        }
        [body] = page_of(site.server)(environ, lambda *_: bool)
        document = json.loads(body)
        assert document["keys"] == [each["key"] for each in document["locks"]] != [], link


def test_no_token_and_no_value_of_a_foreign_lock_is_told(site: Site, monkeypatch: Any) -> None:
    """Who knows one can release that lock. Of a foreign value the first eight characters are told."""
    found = answers(site, fill(site, monkeypatch, "harmless"), "harmless")
    told = [answer.body.decode() for answer in found]
    assert all(NONCE not in each for each in told)
    assert all('"token"' not in each for each in told)
    assert all(FOREIGN[9:] not in each for each in told)
    assert sum("lock-of-…" in each or r"lock-of-\u2026" in each for each in told) > 8
    # Nor does a search confirm a guess.
    for view in LISTS:
        assert all(FOREIGN[:12] not in json.dumps(row) for row in site.rows(view, search=FOREIGN[:12]))
        assert site.rows(view, search=FOREIGN[:12]) == []


def test_a_refusal_by_a_foreign_lock_does_not_tell_its_value(site: Site) -> None:
    """It is noted as an owner would be."""
    site.store._keep("k", FOREIGN.encode(), 900.0)
    hold = Hold("k", b't1/1\0{"task":"shop.sync","on_conflict":"skip"}', 0.0)
    site.store.refusals["k"] = History((Refused(1, 1.0, time.time() + 9.0, FOREIGN, hold),))
    site.sampler._look()
    [event] = site.rows("happened")
    assert event["told"] == "shop.sync: held by lock-of-…"


def test_passwords_are_masked_wherever_an_address_stands(site: Site, monkeypatch: Any) -> None:
    text = "redis://ann:hunter2@shop:6379/0"
    found = answers(site, fill(site, monkeypatch, text), "")
    for answer in found:
        assert b"hunter2" not in answer.body.replace(b"redis%3A%2F%2Fann%3Ahunter2", b"")
        assert b"***@shop:6379" in answer.body
    site.sampler.last = None
    assert b"hunter2" not in site.get().body


@pytest.mark.parametrize("about", [None, "card {number}"])
def test_an_argument_is_told_by_lock_describe_alone(site: Site, shop: Shop, about: str | None) -> None:
    """Of who holds a lock, and of who waits, whose message lies there."""
    secret = "4111-1111"
    use_store(shop.app, site.store)
    promote.install(shop.app, site.store)
    runs = shop.unique(pay, lock_describe=about, lock="while_executing", on_conflict="wait")
    queued = shop.unique(pay, name="shop.queued", lock_describe=about)
    key = runs.lock_for(secret).key
    site.store.acquire(key, "t1/1", 30.0, facts='{"state":"running"}')
    waiter = runs.delay(secret)
    shop.run()
    holder = queued.delay(secret)
    site.sampler._look()
    described = None if about is None else about.format(number=secret)
    rows = [*site.rows("lines"), *site.rows("held", task="shop.")]
    assert [row["about"] for row in rows] == [described, described]
    for answer in answers(site, [key, waiter.id, holder.id], ""):
        told = answer.body.decode().replace(described or secret, "described")
        assert secret not in told


@pytest.mark.parametrize(
    "text", ["x" * 10_000, "é" * 10_000, "x y " * 2_500, "\x00" * 10_000], ids=str.__len__
)
def test_every_text_is_bounded(site: Site, monkeypatch: Any, text: str) -> None:
    questions = fill(site, monkeypatch, text)
    site.explainer._answers.clear()
    found = [site.get(path) for view in VIEWS for path in (view, f"{view or 'index'}.json")]
    assert len(questions) == 3
    for answer in found:
        assert len(answer.body) < 250_000
        if "html" in answer.headers["Content-Type"]:
            told = "".join(COMMAND.split(answer.body.decode()))
            assert max(map(len, Parsed(told).texts)) <= 3 * LONGEST
            assert max(map(len, COMMAND.findall(answer.body.decode())), default=0) <= 6 * LONGEST_COMMAND
        else:
            assert all(len(value) <= LONGEST for value in strings(answer.document))


def strings(value: Any) -> list[str]:
    """Return all texts of a document, but for its commands."""
    if isinstance(value, dict):
        pairs = [pair for pair in value.items() if pair[0] not in COMMANDS]
        return [each for pair in pairs for part in pair for each in strings(part)]
    if isinstance(value, list):
        return [each for part in value for each in strings(part)]
    return [value] if isinstance(value, str) else []


def test_a_link_to_a_key_keeps_its_control_characters(site: Site) -> None:
    key = "a\nb\tc"
    site.store.acquire(key, "t1/1", 30.0, facts='{"state":"queued"}')
    site.sampler._look()
    [link] = [href for href in site.get("held").parsed.values("href") if href.startswith("/explain?q=")]
    assert parse_qs(link.partition("?")[2])["q"] == [f"'{key}'"]


@pytest.mark.parametrize(
    ("key", "is_whole"),
    [
        *[("k" * length, length < 4000) for length in (900, 1900, 3900, 4000)],
        ("amqp://guest:guest@mail/", False),
        ("a\nb", False),
        ("a b", True),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_command_is_whole_or_none(site: Site, key: str, is_whole: bool) -> None:
    """For who copies it: a part of a key is another key. Where one is not shown, it is told where that is."""
    expected = f" -- {shlex.quote(key)}" if is_whole else "list --json tells the whole key"
    site.store.acquire(key, "t1/1", 30.0, facts='{"state":"running","ttl":900}')
    site.sampler._look()
    assert site.get("needs").parsed.rows["needs"][0][2].endswith(expected)
    assert site.rows("needs")[0]["command"].endswith(expected)
    if len(key) < 2000:  # else its question is too long
        question = shlex.quote(key)
        assert expected in site.get("explain", q=question).parsed.text
        assert site.get("explain.json", q=question).document["release_command"].endswith(expected)


def test_a_key_whose_address_would_be_refused_is_no_link(site: Site) -> None:
    for length in (1950, 1980, 4000):
        site.store.acquire("k" * length, "t1/1", 30.0, facts='{"state":"running"}')
    site.sampler._look()
    links = [href for href in site.get("held").parsed.values("href") if href.startswith("/explain?q=k")]
    assert [len(link) > 1950 for link in links] == [True, True]
    for link in links:
        assert site.get("explain", q=link.partition("=")[2]).status == 200


HUGE = "9" * 400


@pytest.mark.parametrize(
    "fact",
    ["NaN", "Infinity", "-Infinity", "1e308", "-1", "0", HUGE, f"-{HUGE}", "true", "null", '"x"', "[]", "{}"],
)
@pytest.mark.parametrize("state", ["running", "queued", "hold", "odd"])
def test_a_fact_that_makes_no_sense_keeps_nothing_else_from_being_shown(
    site: Site, state: str, fact: str
) -> None:
    """Whatever a holder, or one that waits, has written about itself."""
    names = (
        "ttl",
        "since",
        "pid",
        "about",
        "task",
        "host",
        "due",
        "first",
        "merged",
        "limit",
        "rate",
        "period",
    )
    facts = "".join(f',"{name}":{fact}' for name in names)
    text = f'{{"state":"{state}"{facts}}}'
    site.store._keep("k", f"t1/1\0{text}".encode(), 30.0)
    site.store._keep("well", b't3/1\0{"state":"running"}', 30.0)
    site.store.park("k", "t2/1", Entry("push", "celery", 30.0, text), nonce="t2")
    site.sampler._look()
    assert site.get("index.json").document["lines"]["total"] == 1
    for answer in answers(site, ["k"]):
        assert "html" in answer.headers["Content-Type"] or answer.document
    assert {row["key"] for row in site.rows("held")} == {"k", "well"}
