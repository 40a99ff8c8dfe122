"""What a history shows: overlaps, what a resource that compares fences refuses, and fences out of order."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.history import Interval, violations


@dataclass(frozen=True, slots=True)
class Held:
    """One hold, as its client wrote it down. Times are seconds of one clock of the machine.

    Attributes:
        who: the client.
        token: of the hold.
        fence: of the hold.
        start: when acquire had returned.
        writes: when it wrote to the resource, which never asks whether the hold is still trusted.
        end: before it called release.
        deadline: until when its lease was trusted.
        is_lost: the client had learnt that its hold was lost, by its release at the latest.
    """

    who: str
    token: str
    fence: int
    start: float
    writes: Sequence[float]
    end: float
    deadline: float
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Figures of one history.

    Attributes:
        holds: how many.
        overlaps: two that both trusted their lease at once, in words.
        disorder: fences that are not larger than all before, in words.
        late: writes after the writer's own deadline.
        refused: writes whose fence was smaller than one the resource had seen.
        slipped: late writes that it let in, because nobody newer had written yet.
        lost: holds of which the holder learnt that they were lost, by their release at the latest.
        idle: the longest time after the first hold in which nobody trusted one, in seconds.
    """

    holds: int
    overlaps: Sequence[str]
    disorder: Sequence[str]
    late: int
    refused: int
    slipped: int
    lost: int
    idle: float


def judge(history: Sequence[Held], end: float = 0.0) -> Verdict:
    """Return the figures of a history, whose holds may come in any order; ``end``: when it was over."""
    found = violations(
        Interval("resource", f"{each.who} ({each.token})", each.fence, each.start, each.end, each.deadline)
        for each in history
    )
    writes = sorted((at, each.fence, at > each.deadline) for each in history for at in each.writes)
    largest = late = refused = slipped = 0
    for _, fence, is_late in writes:
        late += is_late
        if fence < largest:
            refused += 1
        else:
            slipped += is_late
        largest = max(largest, fence)
    disorder = [each for each in found if "has fence" in each]
    overlaps = [each for each in found if each not in disorder]
    lost = sum(each.is_lost for each in history)
    return Verdict(len(history), overlaps, disorder, late, refused, slipped, lost, _idle(history, end))


def _idle(history: Sequence[Held], end: float) -> float:
    idle = 0.0
    held_until = min([each.start for each in history], default=end)
    # Who goes on after his deadline holds nothing.
    trusted = [(each.start, max(each.start, min(each.end, each.deadline))) for each in history]
    for start, until in [*sorted(trusted), (end, end)]:
        idle = max(idle, start - held_until)
        held_until = max(held_until, until)
    return idle
