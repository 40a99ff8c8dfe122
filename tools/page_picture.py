"""Take pictures of the page about a system that is broken: ``python -m tools.page_picture FOLDER [PATH]``.

Each view is taken into the folder, as a whole, in each look. The top of the first one, with a palette, is
written to the path as well, for the docs. ``--url URL`` takes pictures of a page that is served already.
"""

import argparse
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urljoin

from tests.acceptance.broken_names import DEAD, HEADLESS
from tests.acceptance.broken_system import broken_system
from tests.acceptance.processes import started, until
from tests.browser import Browser, running_browser
from tools.palette import reduced

__all__ = ["pictures", "served"]

#: Each view: its name, and its address below the page's.
VIEWS = {
    "page": "",
    "dead-holder": f"explain?q={quote(DEAD)}",
    "headless-line": f"explain?q={quote(HEADLESS)}",
    **{name: name for name in ("needs", "lines", "held", "schedule", "happened")},
}
#: Each look: its name, the width of the window in pixels, and whether it is dark.
LOOKS = (("light", 1180, False), ("dark", 1180, True), ("phone", 400, False))
#: Pixels of the picture in the docs, from the top, and the bytes that it may have.
HEIGHT, MOST = 1000, 150_000
#: Seconds until the page is served, and until it has looked at everything.
PATIENCE = 60.0
#: What the page tells last, when it has asked ``doctor``.
LAST = "result_expires"


@contextmanager
def served() -> Iterator[str]:
    """Serve the page of a broken system while the block runs, and yield its address."""
    with broken_system() as broken:
        command = broken.command("web", "--port", "0")
        with started(command, broken.environment, broken.folder) as page:
            said = re.compile(r"serving .* at (http://\S+)")
            until(lambda: said.search(page.log) is not None, PATIENCE, page, "it serves the page")
            yield said.findall(page.log)[0]


def pictures(browser: Browser, url: str, folder: Path) -> None:
    """Take a picture of each view in each look."""
    for look, width, dark in LOOKS:
        for name, view in VIEWS.items():
            with browser.page(urljoin(url, view), width=width, dark=dark) as page:
                page.screenshot(path=folder / f"{name}-{look}.png", full_page=True)
                if (name, look) == ("page", "light"):
                    clip = {"x": 0, "y": 0, "width": width, "height": HEIGHT}
                    top = page.screenshot(full_page=True, clip=clip)
                    (folder / "docs.png").write_bytes(reduced(top))


def _wait_looked(browser: Browser, url: str) -> None:
    """Return when the page has looked at everything; it begins with the first visit."""
    deadline = time.monotonic() + PATIENCE
    with browser.page(url) as page:
        while LAST not in page.content():
            if time.monotonic() > deadline:
                raise SystemExit(f"the page does not tell {LAST!r} within {PATIENCE:.0f} s")
            time.sleep(1.0)
            page.reload()


def main() -> None:
    """Take them.

    Raises:
        SystemExit: Chromium is missing, or the picture for the docs is too large.
    """
    parser = argparse.ArgumentParser(description="Take pictures of the page about a broken system.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("path", type=Path, nargs="?")
    parser.add_argument("--url")
    given = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("chromium not found: apt-get install chromium fonts-dejavu-core")
    given.folder.mkdir(parents=True, exist_ok=True)
    with running_browser(chromium) as browser:
        if given.url:
            pictures(browser, given.url, given.folder)
        else:
            with served() as url:
                _wait_looked(browser, url)
                pictures(browser, url, given.folder)
    taken = given.folder / "docs.png"
    if taken.stat().st_size > MOST:
        raise SystemExit(f"{taken} has {taken.stat().st_size} bytes, more than {MOST}")
    if given.path:
        shutil.copyfile(taken, given.path)


if __name__ == "__main__":
    main()
