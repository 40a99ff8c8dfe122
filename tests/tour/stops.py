"""All groups, in the order of the page."""

from tests.tour import (
    alone,
    background,
    calling,
    commands,
    declaring,
    embedded,
    keys,
    losing,
    running,
    testing,
    trouble,
)
from tests.tour.stop import group_of

__all__ = ["GROUPS"]

GROUPS = tuple(
    group_of(module)
    for module in (
        declaring,
        calling,
        keys,
        running,
        trouble,
        losing,
        background,
        alone,
        commands,
        embedded,
        testing,
    )
)
