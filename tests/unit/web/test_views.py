"""The views of the page: what is found, in which order, on which page, and how they lead to each other."""

import re
import time
from typing import Any

import pytest

from celery_redislock.web.around import as_now
from celery_redislock.web.sampler import Event
from celery_redislock.web.sections import SECTIONS
from tests.unit.web.site import LISTS, VIEWS, Site, entry, holder, line


@pytest.fixture(autouse=True)
def filled(site: Site) -> Site:
    """The page of a system in which each list has three rows."""
    site.show(
        holder("a", age=30.0, host="web-2", task="shop.mail", remaining=25.0),
        holder("b", "queued", age=20.0, owner="first", about="of ann", remaining=9.0),
        holder("c", "foreign", age=10.0, owner="1234567890", task=None, host=None),
        lines=[line("b", 2), line("d", 9, rank=0), line("e", 4, about="of bob")],
    )
    around = site.sampler.around
    around.workers = {"w@a": frozenset()}
    dues = (("x", None), ("y", 1.0), ("z", 1.0))
    around.entries = as_now(entry(name, next_due=due) for name, due in dues)
    around.acts = [{"since": time.time() + 9.0, "act": "hold", "key": "b", "by": "ann", "host": "web-1"}]
    site.sampler.events += [Event(2.0, "lost", "shop.sync", "9 times"), Event(1.0, "skipped", "c", "of eve")]
    return site


@pytest.mark.parametrize("view", LISTS)
def test_a_list_has_the_same_rows_for_people_and_for_programs(site: Site, view: str) -> None:
    """On the page itself, on its own, and as JSON."""
    document = site.get(f"{view}.json").document
    assert document["total"] == len(document["rows"]) == 3
    names = [row.get("key") or row.get("subject") or row.get("name") for row in document["rows"]]
    assert None not in names
    place = {"needs": 1, "happened": 2}.get(view, 0)
    for path in ("", view):
        page = site.get(path)
        assert [cells[place] for cells in page.parsed.rows[view]] == names
        assert len(page.parsed.rows[view][0]) == len(SECTIONS[view].head)
    overview = site.get("index.json").document
    assert overview[view]["total"] == 3
    assert [{**row}.keys() for row in overview[view]["rows"]] == [{**row}.keys() for row in document["rows"]]


def test_each_cell_has_the_name_of_its_column_for_narrow_windows(site: Site) -> None:
    """There cells stand below each other, and none is left out."""
    for view in LISTS:
        assert site.get(view).parsed.values("data-name") == [*SECTIONS[view].head] * 3
    assert b"attr(data-name)" in site.get("style.css").body


def test_a_short_key_stays_in_one_line(site: Site) -> None:
    site.show(holder("k" * 28), holder("l" * 29))
    kinds = [kind for kind in site.get("held").parsed.values("class") if kind.startswith("key")]
    assert kinds == ["key unbroken", "key"]


def test_the_page_itself_has_the_six_figures_and_the_sections_in_their_order(site: Site) -> None:
    document = site.get("index.json").document
    names = ["running", "queued", "in line", "late", "skipped", "workers"]
    assert [*document["figures"]] == names
    assert document["figures"] == {
        **dict.fromkeys(names, 0),
        "running": 1,
        "queued": 1,
        "in line": 15,
        "workers": 1,
    }
    page = site.get().parsed
    last = "workers; beats: 1"
    assert re.findall(f"running|queued|in line|late|skipped|{last}", page.text)[:6] == [*names[:5], last]
    for asked, troubles in ({"schedule"}, {}), ({"schedule", "workers"}, {"workers": "no answer"}):
        site.sampler.around.asked = asked
        site.sampler.around.troubles = troubles
        assert site.get("index.json").document["figures"]["workers"] is None
    assert [value for value in page.values("id") if value in SECTIONS] == [*LISTS]


@pytest.mark.parametrize(
    ("view", "query", "names"),
    [
        ("held", {}, "abc"),
        ("held", {"sort": "age"}, "abc"),
        ("held", {"sort": "remaining"}, "bac"),
        ("held", {"sort": "key"}, "abc"),
        ("held", {"sort": "task"}, "cab"),
        ("held", {"state": "queued"}, "b"),
        ("held", {"state": "running", "host": "web-1"}, ""),
        ("held", {"state": "running", "host": "web-2"}, "a"),
        ("held", {"task": "shop."}, "ab"),
        ("held", {"task": "shop.", "sort": "remaining", "search": " "}, "ba"),
        ("held", {"search": "mail"}, "a"),
        ("held", {"search": "MAIL"}, "a"),
        ("held", {"task": "SHOP.Mail", "host": "WEB-2"}, "a"),
        ("held", {"state": "late"}, ""),
        ("held", {"search": "first"}, "b"),
        ("held", {"search": "of ann"}, "b"),
        ("held", {"search": "12345"}, ""),
        ("lines", {}, "deb"),
        ("lines", {"search": "of bob"}, "e"),
        ("lines", {"search": "id of d"}, "d"),
        ("needs", {"search": "foreign"}, "c"),
        ("needs", {"search": "False"}, ""),
        ("lines", {"search": "of BOB"}, "e"),
        ("needs", {"search": "FOREIGN"}, "c"),
        ("schedule", {"search": "Z"}, "z"),
        ("schedule", {"search": "z"}, "z"),
        ("schedule", {"search": "shop."}, "xyz"),
        ("happened", {"search": "of Eve"}, "c"),
        ("happened", {"search": "by ann"}, "b"),
    ],
)
def test_a_list_is_narrowed_and_sorted_as_one_asks(site: Site, view: str, query: Any, names: str) -> None:
    rows = site.rows(view, **query)
    assert [row.get("key") or row.get("subject") or row.get("name") for row in rows] == [*names]
    page = site.get(view, **query).parsed
    assert len(page.rows.get(view, [])) == len(names)
    assert {value for value in query.values() if value.strip()} <= {*page.values("value")}
    if not names:
        assert "none fits" in page.text


@pytest.mark.parametrize(
    ("page", "number", "shown", "links"),
    [
        *((nonsense, 1, 100, ["2"]) for nonsense in ("0", "-1", "abc", "1e3", "²", "", str(10**9))),
        ("1", 1, 100, ["2"]),
        ("2", 2, 100, ["1", "3"]),
        ("3", 3, 1, ["2"]),
        ("4", 4, 0, ["3"]),
        ("9999", 9999, 0, []),
    ],
)
def test_a_long_list_has_pages(site: Site, page: str, number: int, shown: int, links: list[str]) -> None:
    site.show(*(holder(f"k{place:03}", age=900.0 - place) for place in range(201)))
    document = site.get("held.json", page=page, task="shop").document
    assert (document["total"], document["page"], len(document["rows"])) == (201, number, shown)
    if shown:
        assert document["rows"][0]["key"] == f"k{(number - 1) * 100:03}"
    found = site.get("held", page=page, task="shop").parsed
    hrefs = [href for href in found.values("href") if "page=" in href and "refresh" not in href]
    assert [href for href in hrefs if ".json" not in href] == [
        f"/held?task=shop&page={link}" for link in links
    ]
    overview = site.get().parsed
    assert len(overview.rows["held"]) == 15
    assert "all 201" in overview.text


@pytest.mark.parametrize(
    "view", ["nonsense", "index", "held.xml", "held/x", "page.html", "../page.py", "web.py"]
)
def test_another_address_is_answered_with_404(site: Site, view: str) -> None:
    """With a page that leads back, and none of whose links leads there again."""
    answer = site.get(view, script="/locks")
    assert (answer.status, answer.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "There is no such page. To the page of the locks" in answer.parsed.text
    hrefs = answer.parsed.values("href")
    assert "/locks/" in hrefs
    assert not [href for href in hrefs if f"/{view}" in href.removesuffix("index.json")]
    assert site.get(f"{view}.json" if view != "index" else "x.json").status == 404


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"sort": "<b>"}, "there is no order '<b>'; there are age, remaining, key, task"),
        ({"state": "zzz"}, "there is no state 'zzz'; there are queued, running, period, hold, foreign, late"),
    ],
)
def test_what_cannot_be_chosen_is_said_to_be_none(site: Site, query: Any, told: str) -> None:
    answer = site.get("held", **query)
    assert answer.status == 400
    assert told in answer.parsed.text


def test_a_figure_leads_to_its_rows(site: Site) -> None:
    site.show(holder("a", remaining=1.0), holder("b"), holder("c", "queued"), lines=[line("b", 1)])
    hrefs = site.get(script="/locks").parsed.values("href")
    for name, href in (
        ("running", "held?state=running"),
        ("queued", "held?state=queued"),
        ("in line", "lines"),
        ("late", "held?state=late"),
    ):
        assert f"/locks/{href}" in hrefs
        view, _, query = href.partition("?state=")
        found = site.get(f"{view}.json", **({"state": query} if query else {})).document
        assert found["total"] == site.get("index.json").document["figures"][name] > 0
    assert "/locks/happened" in hrefs


def test_a_list_says_by_what_it_is_narrowed_and_sorted(site: Site) -> None:
    """Also where it refreshes, which has no fields."""
    assert "Held oldest first" in site.get("held").parsed.text
    page = site.get("held", sort="remaining", state="queued", search="ANN", refresh=1).parsed
    assert "oldest first" not in page.text
    assert "Held the soonest to end first" in page.text
    assert "1 in all, search ANN, state queued, sort remaining, page 1." in page.text


@pytest.mark.parametrize("script", ["", "/admin/locks", "/ad\"min'/lö".encode().decode("latin-1")])
def test_every_link_begins_where_the_page_is_mounted(site: Site, script: str) -> None:
    base = {"": "", "/admin/locks": "/admin/locks"}.get(script, "/ad%22min%27/l%C3%B6")
    for view in (*VIEWS, "explain"):
        page = site.get(view, script=script, q="b").parsed
        addresses = [*page.values("href"), *page.values("action")]
        assert len(addresses) > 8
        assert all(each.startswith(f"{base}/") for each in addresses if each != "#main"), addresses
    assert f"{base}/style.css" in addresses
    assert b"prefers-color-scheme" in site.get("style.css", script=script).body


@pytest.mark.parametrize("view", [*VIEWS, "explain"])
def test_a_view_is_loaded_again_and_again_only_where_that_was_asked_for(site: Site, view: str) -> None:
    """What is being typed would be gone, so that view has no field; its link leads back."""
    page = site.get(view, q="b").parsed
    assert "refresh" not in page.values("http-equiv")
    assert "q" in page.values("name")
    [link] = [href for href in page.values("href") if "refresh=1" in href]
    assert link == f"/{view}?q=b&refresh=1"
    again = site.get(view, q="b", refresh="1").parsed
    assert again.values("http-equiv") == ["refresh"]
    assert again.values("content")[1:] == ["5"]
    assert "form" not in [name for name, _ in again.elements]
    assert f"/{view}?q=b" in again.values("href")


def test_the_next_page_of_a_view_that_refreshes_does_so_too(site: Site) -> None:
    site.show(*(holder(f"k{place}") for place in range(101)))
    assert "/held?page=2&refresh=1" in site.get("held", refresh="1").parsed.values("href")


@pytest.mark.parametrize(
    "name", ["view", "self", "script", "error", "figures", "\ud800".encode("utf-8", "replace").decode()]
)
def test_whatever_else_is_in_a_query_changes_nothing(site: Site, name: str) -> None:
    for view in (*VIEWS, "explain"):
        assert site.get(view, q="b", **{name: "x"}).status == 200


def test_a_query_is_bounded(site: Site) -> None:
    """In its length, and in the number of its parts."""
    assert site.get("held", search="x" * 2001).status == 414
    parts = {f"p{number}": "1" for number in range(100)}
    assert site.get("held", **parts, state="queued").parsed.rows["held"][0][0] == "a"


@pytest.mark.parametrize("view", [*VIEWS, "held.json", "style.css", "nonsense"])
def test_head_is_answered_without_a_body(site: Site, view: str) -> None:
    wanted = site.get(view)
    answer = site.get(view, method="HEAD")
    assert (answer.status, answer.body) == (wanted.status, b"")
    assert abs(int(answer.headers["Content-Length"]) - len(wanted.body)) < 100  # ages change


def test_the_schedule_says_how_old_it_is_and_what_is_due_now(site: Site) -> None:
    """Beats are asked seldom: what was to come then is due meanwhile, and not late."""
    around = site.sampler.around
    around._asked_at["schedule"] = time.monotonic() - 12.0
    now = time.time()
    around.entries = [
        *as_now([entry("late", next_due=1.0)]),
        *as_now([entry("to come", next_due=now + 90.0)]),
    ]
    around.entries += [{**row, "next_due": now - 28.0} for row in around.entries[1:]]
    page = site.get("schedule").parsed
    assert "what beats share, asked 12 s ago" in page.text
    late, coming, due = (cells[3] for cells in page.rows["schedule"])
    assert late.endswith(" ago")
    assert coming == "in 1 min"
    assert due == "due now"


@pytest.mark.parametrize(
    ("view", "nothing"),
    [("lines", "nobody waits in line"), ("held", "no lock is held"), ("schedule", "no entries")],
)
def test_a_list_without_rows_says_so_when_that_is_known(lone: Site, view: str, nothing: str) -> None:
    assert "The first look at the locks has no answer yet." in lone.get(view).parsed.text
    assert lone.get(f"{view}.json").document["at"] is None
    lone.show()
    if view == "schedule":
        lone.sampler.around.asked = set()
        assert "not known yet: the schedule; load this page again" in lone.get(view).parsed.text
        assert "beats: …" in lone.get().parsed.text
        lone.sampler.around.asked = {"schedule"}
    assert nothing in lone.get(view).parsed.text
    assert lone.rows(view) == []
