"""The page in a real browser, over a system that is broken in every way and has hostile texts.

JavaScript is off where nothing else is said: axe-core needs it, and what is hostile would.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

import pytest

from tests.acceptance import broken_names as names
from tests.acceptance.broken_system import APP, Broken, served_page, wait_asked
from tests.acceptance.processes import run_check
from tests.browser import Browser, axe, scrolls_sideways, tab_stops
from tests.facts import wait_until
from tests.servers import EmbeddedServer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pages")]

#: Seconds until a fact is there, on the slowest machine.
PATIENCE = 90.0
#: Calls that are queued beside the others: with them the locks have two pages.
MORE = 100
HOSTILE = shlex.quote("hostile:" + names.HOSTILE[1].replace(" ", "%20"))
SECTIONS = ("needs", "lines", "held", "schedule", "happened")
#: Each view, with few rows: the page itself, the sections, an explanation, errors, and what is none.
VIEWS = ["", "needs", "lines", "held?search=hostile", "schedule", "happened?search=stock", "no-such-view"]
VIEWS += [f"explain?q={names.DEAD}", f"explain?q={quote(HOSTILE)}", "explain?q=", "held?sort=colour"]
VIEWS += ["held?search=hostile&refresh=1"]
#: On a screen and on a phone.
LOOKS = (("light", 1180), ("dark", 400))


def reloaded(page: Any, selector: str, *, is_there: bool = True) -> None:
    """Load a page again until such an element is there, or none is any more."""
    found = page.locator(selector)
    told = wait_until(lambda: bool(found.count()) is is_there or page.reload() is None, PATIENCE)
    assert told, page.content()


@pytest.fixture(scope="module")
def url(broken: Broken) -> Iterator[str]:
    """Where the page is served, when it has looked at everything."""
    more = f"for n in range({MORE}): shop.report.apply_async((f'later-{{n}}',), queue='reports')"
    done = run_check([sys.executable, "-c", f"import {APP} as shop\n{more}"], broken.environment)
    assert done.returncode == 0, done.stderr
    with served_page(broken) as url:
        wait_asked(url)
        yield url


@pytest.fixture(scope="module")
def sections(browser: Browser, url: str) -> Iterator[dict[str, Any]]:
    """Each section's own view, as it was when it was opened."""
    with ExitStack() as stack:
        opened = {name: browser.page(urljoin(url, name), script=False) for name in SECTIONS}
        yield {name: stack.enter_context(each) for name, each in opened.items()}


@pytest.fixture(scope="module", params=VIEWS)
def viewed(browser: Browser, url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A view where scripts may run; the refreshing one does so in an hour, not while it is looked at."""

    def later(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=re.sub(r'content="\d+"', 'content="3600"', answer.text()))

    with browser.page(urljoin(url, request.param)) as page:
        if "refresh" in request.param:
            page.route(page.url, later)
            page.reload()
        yield page


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Any]:
    """The page itself."""
    with browser.page(url, script=False) as page:
        yield page


def follow(page: Any, selector: str) -> None:
    """Click, and return when what it leads to is there."""
    with page.expect_event("load"):
        page.click(selector)


def rows(page: Any) -> Any:
    """The rows of what is listed."""
    return page.locator("main tbody tr")


def keys(page: Any) -> list[str]:
    """Their keys, as they are shown."""
    return rows(page).locator("td:first-child").all_inner_texts()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("section", "subject", "told", "command"), names.ON_PAGE)
def test_a_section_names_each_state_by_its_key_with_a_command_to_copy(
    sections: dict[str, Any], section: str, subject: str, told: tuple[str, ...], command: str
) -> None:
    """That the first row of it is enough: permits and events have several."""
    view = sections[section]
    row = rows(view).filter(has=view.get_by_text(subject, exact=True), has_text=re.compile(told[0])).first
    assert row.count(), view.inner_text("main")
    text = row.inner_text()
    assert [phrase for phrase in told if re.search(phrase, text) is None] == []
    copied = row.locator(".copy").all_inner_texts()
    assert copied == ([f"celery -A {APP} {command}"] if command else [])


def test_a_bar_says_the_length_of_a_line_beside_the_longest(sections: dict[str, Any]) -> None:
    bars = sections["lines"].locator("meter").all()
    assert [bar.get_attribute("value") for bar in bars] == [*"4332211"]
    assert {bar.get_attribute("max") for bar in bars} == {"4"}


def test_a_command_that_is_copied_works(broken: Broken, page: Any) -> None:
    """A click selects it, all of it and nothing else."""
    page.locator(".copy", has_text=f"explain -- {names.FULL}").click()
    selected = page.evaluate("getSelection().toString()").strip()
    done = run_check([sys.executable, "-m", *shlex.split(selected)], broken.environment)
    assert (done.returncode, "shop.resize" in done.stdout) == (0, True), done.stdout + done.stderr


def test_the_figures_are_what_the_commands_say(broken: Broken, page: Any) -> None:
    """Each of them stands still but for a moment in each minute, when an entry runs that is well."""

    def agree() -> bool:
        page.reload()
        tiles = page.locator(".figures b").all_inner_texts()
        held = [holder["state"] for holder in broken.ask("list")["locks"]]
        in_line = sum(first["in_line"] for first in broken.ask("waiting")["waiting"])
        late = sum(task["late"] for task in broken.ask("stats")["tasks"].values())
        seen = [held.count("running"), held.count("queued"), in_line, late]
        told.append((tiles, seen))
        return tiles[:4] == [*map(str, seen)] and tiles[5] == "2" and len(tiles) == 6

    told: list[object] = []
    assert wait_until(agree, PATIENCE), told


@pytest.mark.parametrize(
    ("section", "fields", "found"),
    [
        ("needs", {"search": "warehouse"}, ["line stands still"]),
        ("lines", {"search": "index"}, [names.DEBOUNCED]),
        ("lines", {"search": "nobody's"}, []),
        ("schedule", {"search": "news"}, [names.PAUSED]),
        ("held", {"search": "dispute"}, [names.HELD]),
        ("held", {"state": "foreign"}, [names.FOREIGN]),
        ("held", {"task": "shop.export"}, [names.PERMITS] * 3),
        ("held", {"host": "worker-7"}, [names.DEAD]),
        ("held", {"task": "shop.confirm", "state": "period", "sort": "key"}, [names.SKIPS, names.PERIOD]),
    ],
)
def test_a_section_is_narrowed_by_its_fields(
    browser: Browser, url: str, section: str, fields: dict[str, str], found: list[str]
) -> None:
    """What was chosen is there afterwards, to be changed."""
    with browser.page(urljoin(url, section), script=False) as page:
        for name, value in fields.items():
            field = page.locator(f"main [name={name}]")
            (field.select_option if name in {"state", "sort"} else field.fill)(value)
        follow(page, "main form button")
        assert keys(page) == found
        assert {name: page.locator(f"main [name={name}]").input_value() for name in fields} == fields


def test_locks_are_sorted_and_paged_and_none_is_left_out(browser: Browser, url: str) -> None:
    with browser.page(urljoin(url, "held"), script=False) as page:
        oldest = keys(page)
        assert (len(oldest), oldest[0]) == (100, names.DEAD)
        page.select_option("main [name=sort]", "key")
        follow(page, "main form button")
        first = keys(page)
        follow(page, "main a[href*='page=2']")
        last = keys(page)
        assert len(first) == 100
        ours = [key for key in first + last if "hostile" not in key]  # whose characters are shown otherwise
        assert ours == sorted(ours)
        assert {f"report:later-{number}" for number in range(MORE)} < {*first, *last}
        follow(page, "main a[href*='page=1']")
        assert keys(page) == first


def test_a_key_leads_to_what_explains_it_and_workers_are_asked_meanwhile(page: Any) -> None:
    """What the lock server knows is there at once, and at a later load in which queue the message lies."""
    follow(page, f"#main a:text-is('{names.UNCONSUMED}') >> nth=0")
    assert page.locator("main dd", has_text="report of 2026-09").count()
    assert not page.locator("main dd", has_text="start one with -Q reports").count()
    reloaded(page, "main dd >> text=start one with -Q reports")


def test_the_keyboard_alone_asks_why_something_does_not_run(page: Any) -> None:
    """It meets the way past all that first, and the field before everything that is listed."""
    stops: list[str] = []
    for _ in range(3):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("document.activeElement.getAttribute('href')"))
        assert page.evaluate("document.activeElement.getBoundingClientRect().x") >= 0  # it is seen
        assert page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2
    assert stops == ["#main", "/", None]
    page.keyboard.type(names.RATE)
    with page.expect_event("load"):
        page.keyboard.press("Enter")
    assert page.locator("main dd", has_text="3 of 3").count()
    link = page.locator("main").get_by_role("link").last  # loads it again
    for _ in range(30):
        page.keyboard.press("Tab")
        if link.evaluate("one => one === document.activeElement"):
            break
    with page.expect_event("load"):
        page.keyboard.press("Enter")
    assert page.locator("main dd", has_text="3 of 3").count()


def test_the_keyboard_gets_past_the_head_and_to_each_key_of_the_page(page: Any) -> None:
    for key in ("Tab", "Enter", "Tab"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.closest('main') !== null")
    page.reload()
    assert {f"a {name}" for name in (names.DEAD, names.HEADLESS, names.PAUSED)} < {*tab_stops(page)}


def test_nothing_is_loaded_again_until_its_link_is_followed(browser: Browser, url: str) -> None:
    """That view keeps what was chosen, and has no field: what somebody types would be lost."""
    with browser.page(urljoin(url, "held?state=hold"), script=False) as page:
        assert not page.locator("meta[http-equiv=refresh]").count()
        follow(page, "header a[href*='refresh=1']")
        assert page.locator("meta[http-equiv=refresh]").count() == 1
        assert page.locator("form, input, select, button").count() == 0
        assert keys(page) == [names.HELD]
        with page.expect_event("load", timeout=PATIENCE * 1000):
            pass  # by itself
        follow(page, "text=Stop refreshing")
        assert not page.locator("meta[http-equiv=refresh]").count()
        assert (page.locator("main form").count(), keys(page)) == (1, [names.HELD])


def test_dark_is_dark_and_light_is_light(page: Any) -> None:
    """As the system of who looks has it: the ground, the text, and links."""
    light: list[bool] = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for of, what in (("body", "backgroundColor"), ("body", "color"), ("main a", "color")):
            colour = page.locator(of).first.evaluate(f"one => getComputedStyle(one).{what}")
            light.append(sum(map(int, re.findall(r"\d+", colour)[:3])) > 380)
    assert light == [True, False, False, False, True, True]


def test_a_view_is_no_wider_than_its_window_and_keeps_nobody_out(viewed: Any) -> None:
    """The refreshing view alone breaks a rule, knowingly."""
    but = {"meta-refresh"} if "refresh" in viewed.url else set()
    for scheme, width in LOOKS:
        viewed.emulate_media(color_scheme=scheme)
        viewed.set_viewport_size({"width": width, "height": 900})
        assert (scheme, width, axe(viewed, but=but)) == (scheme, width, [])
        assert not scrolls_sideways(viewed), (scheme, width)


def test_hostile_texts_stay_text(viewed: Any) -> None:
    """In each view; that none has run, asked or said anything, the browser sees to."""
    made = "script, img, iframe, object, style, main svg:not(.figures svg), [onerror], [onload]"
    assert viewed.locator(f"{made}, b:text-is('bold'), a[href^='javascript:' i]").count() == 0
    wanted = [names.HOSTILE_TASK, names.HOSTILE_HOST, names.HOSTILE[1]] if "hostile" in viewed.url else []
    wanted += names.HOSTILE[:7] if "search=hostile" in viewed.url else []
    text = viewed.locator("body").text_content()
    assert [one for one in wanted if one not in text] == []


def test_a_lock_server_that_is_away_is_told_with_the_age_of_what_is_seen_until_it_is_back(
    browser: Browser, tmp_path: Path
) -> None:
    """Nobody has to start the page again."""
    server = EmbeddedServer(port=0, data_dir=tmp_path)
    with server:
        variables = {"SHOP_URL": server.url, "SHOP_REDIS": server.redis_url, "SHOP_HOST": "web-1"}
        broken = Broken(variables, server, tmp_path)
        with served_page(broken) as url, browser.page(f"{url}held?search=a", script=False) as page:
            done = broken.run("hold", "account:9", "--for", "2h", "--reason", "a test")
            assert done.returncode == 0, done.stderr
            reloaded(page, "main a >> text=account:9")
            server.kill()
            reloaded(page, "[role=alert]")
            reloaded(page, r"header >> text=/([3-9]|\d\d) s ago/")
            assert keys(page) == ["account:9"]
            server.restart()
            reloaded(page, "[role=alert]", is_there=False)
            assert keys(page) == ["account:9"]
