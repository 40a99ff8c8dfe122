"""The twenty-three scenarios, by number."""

from benchmarks.scoreboard.scenarios import duplicates, followers, freed, in_hand, schedules
from benchmarks.scoreboard.scenarios.scenario import Scenario

__all__ = ["SCENARIOS", "Scenario"]

SCENARIOS = {
    each.number: each
    for each in sorted(
        (
            each
            for room in (duplicates, followers, freed, in_hand, schedules)
            for each in vars(room).values()
            if isinstance(each, Scenario)
        ),
        key=lambda each: each.number,
    )
}
