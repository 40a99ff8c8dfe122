"""What tests of the page may use."""

import pytest

from tests.unit.shop import Shop
from tests.unit.web.site import Site


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, shop: Shop) -> Site:
    """The page of an app, whose first look has seen nothing."""
    site = Site(monkeypatch, shop.app)
    site.show()
    return site


@pytest.fixture
def lone(monkeypatch: pytest.MonkeyPatch) -> Site:
    """The page of a lock server without an app, at which nobody has looked."""
    return Site(monkeypatch)
