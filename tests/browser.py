"""A headless Chromium, Debian's, and what tests ask of a page in it."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

#: Milliseconds that anything in a page may take, on a busy machine.
_LONGEST = 20_000
#: What axe-core calls what keeps people out.
_GRAVE = {"serious", "critical"}
#: What the keyboard is on, as its reader would name it.
_FOCUSED = """() => {
    const one = document.activeElement;
    if (one === document.body) return null;
    const name = one.getAttribute("aria-label") || one.innerText || one.name || one.value || one.href || "";
    return one.tagName.toLowerCase() + " " + name.trim().replace(/\\s+/g, " ");
}"""


class Browser:
    """One Chromium; each page in it has a profile of its own."""

    def __init__(self, chromium: Any) -> None:
        """Take over a browser that was launched."""
        self._chromium = chromium

    @contextmanager
    def page(
        self, url: str = "about:blank", *, dark: bool = False, width: int = 1180, script: bool = True
    ) -> Iterator[Any]:
        """Open a page, Playwright's, and close it; fail if it did what no page of ours may do.

        That is: it asked another host, broke its own Content-Security-Policy, ran a script, or had an error.

        Args:
            url: to go to.
            dark: as who prefers dark colours sees it.
            width: of the window, in pixels.
            script: whether JavaScript is on; axe-core needs it.
        """
        context = self._chromium.new_context(
            color_scheme="dark" if dark else "light",
            viewport={"width": width, "height": 900},
            java_script_enabled=script,
        )
        context.set_default_timeout(_LONGEST)
        page = context.new_page()
        did: list[str] = []
        hosts: set[str] = set()

        def dismiss(dialog: Any) -> None:
            did.append(f"dialog: {dialog.message}")
            dialog.dismiss()  # else the page stands still

        page.on("console", lambda said: did.append(said.text) if _is_wrong(said) else None)
        page.on("pageerror", lambda error: did.append(f"error: {error}"))
        page.on("dialog", dismiss)
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        try:
            page.goto(url)
            yield page
        finally:
            context.close()
        hosts.discard(urlsplit(url).netloc)
        assert not did, did
        assert not hosts, f"it asked other hosts: {hosts}"


def _is_wrong(said: Any) -> bool:
    """Whether the console tells what a page did wrong: an answer with an error status is none of that."""
    return said.type == "error" and not said.text.startswith("Failed to load resource")


@contextmanager
def running_browser(chromium: str) -> Iterator[Browser]:
    """Run Chromium, the program of this path, while the block does.

    Playwright keeps an event loop in this thread meanwhile: ``asyncio.run`` fails inside the block.
    """
    with sync_playwright() as playwright:
        # A container has no user namespaces for its sandbox, and runs tests as root; the pages are our own.
        launched = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            yield Browser(launched)
        finally:
            launched.close()


def axe(page: Any, *, but: Collection[str] = ()) -> list[str]:
    """Return what axe-core finds serious or critical in a page: rule, impact, and each element.

    Args:
        page: where JavaScript is on; its Content-Security-Policy does not matter.
        but: rules that this view breaks knowingly, by name.
    """
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']} ({each['impact']}): {node['html']}"
        for each in found
        if each["impact"] in _GRAVE and each["id"] not in but
        for node in each["nodes"]
    ]


def tab_stops(page: Any, *, most: int = 500) -> list[str]:
    """Press Tab until the keyboard has been everywhere, and return where: tag and name of each element."""
    stops: list[str] = []
    for _ in range(most):
        page.keyboard.press("Tab")
        focused = page.evaluate(_FOCUSED)
        if focused is None:
            return stops
        stops.append(focused)
    raise AssertionError(f"more than {most} stops: {stops[:5]} …")


def scrolls_sideways(page: Any) -> bool:
    """Whether the page is wider than its window."""
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))
