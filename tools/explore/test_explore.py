"""Exploring finds what is broken; each world's own figures are those of ``make explore``."""

import json

import pytest

from celery_redislock.store.memory import MemoryStore
from tests.pages import ROOT
from tools.explore.broken import BROKEN, BROKEN_SCRIPTS
from tools.explore.clients import Clients
from tools.explore.frozen import freeze, thaw
from tools.explore.search import explore
from tools.explore.world import World
from tools.explore.worlds import LARGE, WIDE, WORLDS


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_store_that_is_broken_on_purpose_is_found(kind: type[MemoryStore]) -> None:
    """By a story of a few steps."""
    found = explore(WORLDS[BROKEN[kind]], kind)
    assert found.broken
    assert found.story


def test_a_world_without_faults_is_explored_whole() -> None:
    """A call, its run, and what time does to both: small enough to be counted by hand."""
    found = explore(World("one call", messages=1, losses=0, kills=0, ticks=0, on_conflict="skip"))
    # New; queued; its body runs; its lock is released; it is done.
    assert (found.states, found.broken, found.story) == (5, "", [])


def test_what_a_store_keeps_can_be_put_back() -> None:
    """Each state of a world is the same after it was put back."""
    world = WORLDS["line"]._replace(ticks=0, kills=0)
    store = MemoryStore(clock=lambda: 0.0)
    for state in explore(world).seen:
        thaw(state.store, store)
        assert freeze(store, 0.0) == state.store
    assert len(Clients(world).begin().jobs) == 2


def test_what_was_kept_is_of_these_worlds_and_breaks_no_law() -> None:
    """The page of proof shows what is explored and played now, not what once was."""
    kept = json.loads((ROOT / "docs/proof.json").read_text(encoding="utf-8"))
    (_, explored), (_, caught) = kept["explore"]["tables"]
    (_, larger), _ = kept["explore --large"]["tables"]
    assert [row[0] for row in explored] == [*WORLDS]
    assert [row[0] for row in larger] == [*LARGE]
    assert len(caught) == len(BROKEN)
    assert "**nowhere**" not in {row[1] for row in caught}
    for server in ("Valkey", "Redis"):
        played, walked, scripts = (rows for _, rows in kept[f"replay on {server}"]["tables"])
        assert [row[0] for row in played] == [*WORLDS]
        assert [row[0] for row in walked] == [*WIDE]
        assert {row[3] for row in (*played, *walked)} == {"0"}
        assert len(scripts) == len(BROKEN_SCRIPTS)
        assert "**nowhere**" not in {row[1] for row in scripts}
