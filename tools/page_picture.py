"""Take pictures of the page about a system that is broken: ``python -m tools.page_picture FOLDER [PATH]``.

Each view is taken into the folder, as a whole, in each look. The top of the first one, with a palette, is
written to the path as well, for the docs. ``--url URL`` takes pictures of a page that is served already.
"""

import argparse
import os
import shutil
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urljoin

from tests.acceptance.broken_names import DEAD, HEADLESS
from tests.acceptance.broken_system import APP, Broken, broken_system, served_page, wait_asked
from tests.browser import Browser, running_browser
from tools.palette import reduced

__all__ = ["pictures"]

#: Each view: its name, and its address below the page's.
VIEWS = {
    "page": "",
    "dead-holder": f"explain?q={quote(DEAD)}",
    "headless-line": f"explain?q={quote(HEADLESS)}",
    **{name: name for name in ("needs", "lines", "held", "schedule", "happened")},
}
#: Each look: its name, the width of the window in pixels, and whether it is dark.
LOOKS = (("light", 1180, False), ("dark", 1180, True), ("phone", 400, False))
#: The last section in the picture of the docs, the pixels below it, and the bytes that it may have.
LAST = "lines"
MARGIN = 16
MOST = 150_000


def pictures(browser: Browser, url: str, folder: Path) -> None:
    """Take a picture of each view in each look."""
    for look, width, dark in LOOKS:
        for name, view in VIEWS.items():
            with browser.page(urljoin(url, view), width=width, dark=dark) as page:
                page.screenshot(path=folder / f"{name}-{look}.png", full_page=True)
                if (name, look) == ("page", "light"):
                    last = page.locator("section", has=page.locator(f"#{LAST}")).bounding_box()
                    clip = {"x": 0, "y": 0, "width": width, "height": last["y"] + last["height"] + MARGIN}
                    top = page.screenshot(full_page=True, clip=clip)
                    (folder / "docs.png").write_bytes(reduced(top))


def _as_a_project(broken: Broken) -> Broken:
    """Let commands name the app as a project's own would."""
    (broken.folder / "webshop.py").write_text(f"from {APP} import app as app\n")
    paths = os.pathsep.join([str(broken.folder), str(Path(__file__).resolve().parent.parent)])
    return replace(broken, app="webshop", environment={**broken.environment, "PYTHONPATH": paths})


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
            with broken_system() as broken, served_page(_as_a_project(broken)) as url:
                wait_asked(url)
                pictures(browser, url, given.folder)
    taken = given.folder / "docs.png"
    if taken.stat().st_size > MOST:
        raise SystemExit(f"{taken} has {taken.stat().st_size} bytes, more than {MOST}")
    if given.path:
        shutil.copyfile(taken, given.path)


if __name__ == "__main__":
    main()
