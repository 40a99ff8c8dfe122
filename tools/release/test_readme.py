"""What becomes of the README's links, one by one."""

from pathlib import Path

import pytest

from tools.release.addresses import Addresses
from tools.release.readme import absolute

SHOP = "https://example.invalid/shop"
ADDRESSES = Addresses(SHOP, "v1.2.3", "https://example.invalid/docs", "https://example.invalid/issues")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[keys](docs/keys.md)", f"[keys]({SHOP}/blob/v1.2.3/docs/keys.md)"),
        ("[`lock_key`](./docs/keys.md#a-key)", f"[`lock_key`]({SHOP}/blob/v1.2.3/docs/keys.md#a-key)"),
        ("[all](docs)", f"[all]({SHOP}/tree/v1.2.3/docs)"),
        ("[below](#scopes)", f"[below]({SHOP}/blob/v1.2.3/README.md#scopes)"),
        ('![a](docs/a.svg "A")', f'![a]({SHOP}/raw/v1.2.3/docs/a.svg "A")'),
        (
            "[![a](docs/a.png)](docs/keys.md)",
            f"[![a]({SHOP}/raw/v1.2.3/docs/a.png)]({SHOP}/blob/v1.2.3/docs/keys.md)",
        ),
        ("[keys]: docs/keys.md", f"[keys]: {SHOP}/blob/v1.2.3/docs/keys.md"),
        ('<img alt="" src="docs/a.png">', f'<img alt="" src="{SHOP}/raw/v1.2.3/docs/a.png">'),
        ('<a href="docs/keys.md">', f'<a href="{SHOP}/blob/v1.2.3/docs/keys.md">'),
    ],
)
def test_a_relative_link_leads_to_the_file_of_this_version(text: str, expected: str, tmp_path: Path) -> None:
    """A page shows the links of its version, not those of the latest commit."""
    (tmp_path / "docs").mkdir()

    assert absolute(f"See {text}\n{text}\n", ADDRESSES, tmp_path).splitlines()[1] == expected


@pytest.mark.parametrize(
    "text",
    [
        "[Celery](https://docs.celeryq.dev/en/stable/)",
        "[write](mailto:shop@example.invalid)",
        "`tasks[name](docs/keys.md)`",
        "```python\ntasks[name](docs/keys.md)\n```",
        "```sh\necho `date`\n```\n\n~~~\n[a](docs/keys.md)\n~~~",
    ],
)
def test_addresses_and_code_stay_as_they_are(text: str, tmp_path: Path) -> None:
    """What looks like a link in code is none."""
    assert absolute(text, ADDRESSES, tmp_path) == text
