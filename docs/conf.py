"""The site: the Markdown of the repository as it is, with search, and the API from its docstrings.

Sphinx, with MyST for Markdown and the theme furo: links to headings of other pages are checked, the
docstrings use its roles, and search needs no service. ``make site`` takes each warning for an error.
"""

import posixpath
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for tools.site

project = "celery_redislock"
author = copyright = "The celery_redislock authors"  # noqa: A001  Sphinx's name
code = (ROOT / "celery_redislock" / "__init__.py").read_text(encoding="utf-8")
version = release = re.findall(r'^__version__ = "(.+)"', code, re.MULTILINE)[0]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "tools.site"]
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/*.md",
    "examples/README.md",
    "examples/*/README.md",
    "benchmarks/README.md",
    "benchmarks/scoreboard/README.md",
]
# The index lists the pages of docs (tests/unit/test_readme.py); an example is reached from the page of all.
suppress_warnings = ["toc.not_included"]
myst_heading_anchors = 4
about = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
myst_html_meta = {"description": re.findall(r'^description = "(.+)"', about, re.MULTILINE)[0]}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_ivar = True  # or an attribute that is a property as well is described twice
# Without a prompt, if there is one; and a drawing is not copied.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_selector = "div:not(.diagram) > div.highlight > pre"
smartquotes = False  # a value is copied with the quotes it is written in
html_theme = "furo"
html_title = f"celery_redislock {release}"
html_extra_path = ["site"]
html_favicon = "static/favicon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Make the contents of the site from the index: each heading is a part, each link a page."""
    if page != app.config.root_doc:
        return
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for part, items in re.findall(r"^## (.+)\n\n((?:- .+\n)+)", index, re.MULTILINE):
        links = re.findall(r"^- \[.+?\]\((.+?)\)", items, re.MULTILINE)
        pages = "\n".join(f"/{posixpath.normpath(posixpath.join('docs', link))}" for link in links)
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {part}\n\n{pages}\n```\n"
    source[0] += "\n```{toctree}\n:hidden:\n\n/docs/index\n```\n"


def setup(app: Sphinx) -> None:
    """Connect to Sphinx."""
    app.connect("source-read", add_contents)
