"""A short run of ``make history``, against real servers and processes."""

import pytest

from tests.acceptance.processes import needs
from tools.history.__main__ import run


@pytest.mark.slow
@pytest.mark.parametrize(
    "scene", ["one server, clients paused", "Redlock of five, two down", "Cluster, slot moves"]
)
def test_holders_that_trust_their_leases_never_overlap(scene: str) -> None:
    """Whoever holds by its own deadline is alone, and each one's fence is larger than those before it."""
    verdict = run(scene, 4.0)
    assert verdict.holds
    assert verdict.overlaps == []
    assert verdict.disorder == []


@pytest.mark.slow
def test_a_server_that_forgets_lets_two_hold_at_once_and_the_checker_sees_it() -> None:
    """One server that restarts empty while its lock is held breaks the promise; the history shows that."""
    assert run("one server, restarts empty", 6.0).overlaps


@pytest.mark.slow
def test_a_majority_that_forgets_breaks_a_quorum_unless_it_stays_away_for_the_ttl() -> None:
    """Two of three that return empty at once grant what is held; after the ttl nobody trusts it."""
    broken = run("Redlock of three, two restart empty at once", 3.0)
    assert broken.overlaps
    kept = run("Redlock of three, two restart empty after the ttl", 3.0)
    assert kept.holds
    assert (kept.overlaps, kept.disorder) == ([], [])


@pytest.mark.slow
def test_a_clock_that_jumps_ends_leases_early_and_one_that_is_set_back_wants_counted_fences() -> None:
    """By its wall clock a server expires keys and draws fences: the history shows what that costs."""
    needs("faketime")
    ahead = run("one server, its clock jumps ahead", 8.0)
    assert ahead.overlaps
    assert ahead.disorder == []
    back = run("one server, its clock is set back", 6.0)
    assert back.disorder
    assert back.overlaps == []
    counted = run("one server, its clock is set back, strict_fence", 6.0)
    assert (counted.overlaps, counted.disorder) == ([], [])
