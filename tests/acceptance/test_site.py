"""The documentation as a site, in a browser: on a screen and on a phone, in light and in dark."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Browser, axe
from tests.pages import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pages")]

#: Pages that Sphinx makes of nothing, and the one that leads to the first.
EMPTY = {"genindex.html", "search.html", "index.html"}
#: Pixels: the width of a small screen, and of a phone.
WIDTHS = (1280, 400)
#: Pages that have all there is: code, tables, pictures, the API.
SAMPLES = [
    "README",
    *(f"docs/{name}" for name in ("api", "how-it-works", "index", "options", "proof", "wire")),
]
#: What of a page is cut: it is wider than what it is in, or than the window.
CUT = """() => {
    const isCut = one => one.scrollWidth > one.clientWidth + 1;
    const width = document.documentElement.clientWidth;
    const told = (one, what) => what + ": " + one.innerText.slice(0, 60);
    const cut = [];
    for (const table of document.querySelectorAll("article table")) {
        const box = table.getBoundingClientRect();
        let isIn = box.left >= -1 && box.right <= width + 1;
        for (let one = table; one !== document.body; one = one.parentElement)
            if (isCut(one) && getComputedStyle(one).overflowX !== "visible") isIn = false;
        if (!isIn || [...table.querySelectorAll("td, th")].some(isCut)) cut.push(told(table, "table"));
    }
    for (const code of document.querySelectorAll("article pre"))
        if (isCut(code)) cut.push(told(code, "code"));
    for (const image of document.querySelectorAll("article img"))
        if (image.getBoundingClientRect().right > width + 1) cut.push("picture: " + image.src);
    if (document.documentElement.scrollWidth > width) cut.push("the page");
    return cut;
}"""
#: The smallest letters of a page's drawings and code, in pixels.
SMALLEST = """() => Math.min(99, ...[...document.querySelectorAll("article pre")].map(
    one => parseFloat(getComputedStyle(one).fontSize)))"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The site, and what was said while it was built."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [
            sys.executable, "-m", "sphinx", "--builder", "html", "--conf-dir", "docs", "--quiet",
            "--doctree-dir", folder / "doctrees", ".", folder / "html",
        ],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return folder / "html", done.stdout


@pytest.fixture(scope="module")
def site(built: tuple[Path, str]) -> Path:
    """Where the site is."""
    return built[0]


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    """Where the site is served: from files alone no script may read a style, as axe-core does."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def readme(browser: Browser, url: str) -> Iterator[Any]:
    """The first page, on a screen."""
    with browser.page(f"{url}/README.html", width=WIDTHS[0]) as page:
        yield page


def pages(site: Path) -> list[Path]:
    """Each page with words of ours."""
    found = [path for path in sorted(site.rglob("*.html")) if path.name not in EMPTY or path.parent != site]
    assert len(found) > 30
    return found


def test_it_is_built_without_a_warning(built: tuple[Path, str]) -> None:
    """A link to a page or a heading that is gone is one."""
    assert built[1] == ""


@pytest.mark.parametrize("width", WIDTHS)
def test_no_table_no_code_and_no_picture_is_cut(browser: Browser, site: Path, url: str, width: int) -> None:
    cut: dict[str, list[str]] = {}
    with browser.page(f"{url}/README.html", width=width) as page:
        for path in pages(site):
            page.goto(f"{url}/{path.relative_to(site)}")
            cut[str(path.relative_to(site))] = page.evaluate(CUT)
            assert page.evaluate(SMALLEST) > (11 if width > 1000 else 6.5), path
    assert {name: found for name, found in cut.items() if found} == {}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_page_keeps_nobody_out(browser: Browser, url: str, name: str) -> None:
    """Among others: each colour has contrast enough to its ground, in light and in dark."""
    with browser.page(f"{url}/{name}.html") as page:
        for dark, width in ((False, WIDTHS[0]), (True, WIDTHS[0]), (True, WIDTHS[1])):
            page.emulate_media(color_scheme="dark" if dark else "light")
            page.set_viewport_size({"width": width, "height": 900})
            assert (dark, width, axe(page)) == (dark, width, [])


def test_on_a_phone_a_cell_has_the_head_of_its_column(browser: Browser, url: str) -> None:
    with browser.page(f"{url}/docs/options.html", width=WIDTHS[1]) as page:
        row = page.locator("article tr", has_text="lock_ttl").first
        labels = row.locator("td").evaluate_all(
            "cells => cells.map(one => getComputedStyle(one, '::before').content)"
        )
        boxes = [box.bounding_box() for box in row.locator("td").all()]
    assert labels == ["none", '"meaning"', '"value"', '"default"']
    assert all(below["y"] >= above["y"] + above["height"] for above, below in pairwise(boxes))
    assert {box["x"] for box in boxes} == {boxes[0]["x"]}


def test_a_command_that_wraps_is_one_line_where_it_is_copied(browser: Browser, url: str) -> None:
    """By hand and by its button; and code has the lines that it was written in."""
    source = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = [
        code.rstrip("\n") for code in re.findall(r"^```\w+\n(.*?)^```$", source, re.MULTILINE | re.DOTALL)
    ]
    with browser.page(f"{url}/README.html", width=WIDTHS[1]) as page:
        for number, code in enumerate(blocks):
            pre = page.locator("article pre").nth(number)
            height = pre.locator(".line").first.evaluate(
                "one => parseFloat(getComputedStyle(one).lineHeight)"
            )
            lines = pre.locator(".line").all()
            assert any(line.bounding_box()["height"] > height * 1.5 for line in lines)
            selected = pre.evaluate(
                "one => { getSelection().selectAllChildren(one); return `${getSelection()}` }"
            )
            assert selected.rstrip("\n") == code
            pre.evaluate("""one => {
                window.copied = null;
                document.addEventListener("copy", event => {
                    window.copied = document.activeElement.value ?? `${getSelection()}`;
                }, {once: true});
            }""")
            pre.hover()
            page.locator("article .highlight").nth(number).locator("button.copybtn").click()
            assert page.evaluate("window.copied").rstrip("\n") == code


def test_a_picture_has_a_form_for_a_phone_and_one_in_dark(browser: Browser, url: str) -> None:
    """A photograph is a link to itself, in full size."""
    seen = []
    for width in WIDTHS:
        with browser.page(f"{url}/README.html", width=width) as page:
            image = page.locator("article picture img").first
            seen.append(image.evaluate("one => one.currentSrc.split('/').pop()"))
            link = page.locator("article a.full-size")
            assert link.get_attribute("href") == link.locator("img").get_attribute("src")
    assert seen == ["demo.svg", "demo-phone.svg"]


def test_the_button_for_dark_turns_pictures_too(readme: Any) -> None:
    readme.emulate_media(color_scheme="light")
    schemes = []
    for theme in ("light", "dark"):
        readme.evaluate(f"document.body.dataset.theme = '{theme}'")
        schemes.append(
            readme.locator("article img").first.evaluate("one => getComputedStyle(one).colorScheme")
        )
    assert schemes == ["light", "dark"]


def test_the_menu_shows_its_parts_and_the_pages_of_the_first(readme: Any) -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    parts = re.findall(r"^## (.+)$", index, re.MULTILINE)
    menu = readme.locator(".sidebar-tree")
    assert [part.casefold() for part in menu.locator("summary").all_inner_texts()] == [
        part.casefold() for part in parts
    ]
    shown = [link for link in menu.locator("a").all() if link.is_visible()]
    first = re.findall(r"^- \[", index.partition("## " + parts[1])[0], re.MULTILINE)
    assert len(shown) == len(first) + 1  # and the page of all pages
    menu.locator("summary").nth(1).click()
    assert menu.locator("details").nth(1).locator("a").first.is_visible()
    addresses = [link.get_attribute("href") for link in menu.locator("a").all()]
    assert len(addresses) == len({*addresses})


def test_a_page_says_what_it_is_about_and_has_a_sign(readme: Any, site: Path) -> None:
    about = readme.locator("meta[name=description]").get_attribute("content")
    assert f'description = "{about}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    sign = readme.locator("link[rel~=icon]").get_attribute("href")
    assert (site / sign.partition("?")[0]).is_file()


def test_the_address_of_the_site_leads_to_its_first_page(browser: Browser, url: str) -> None:
    with browser.page(f"{url}/index.html") as page:
        page.wait_for_url("**/README.html")
        assert page.locator("h1").inner_text().startswith("celery_redislock")
