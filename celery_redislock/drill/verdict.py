"""What a history shows: overlaps, what a resource that compares fences refuses, and fences out of order."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Held:
    """One hold, as its client wrote it down. Times are seconds of one clock of the machine.

    Attributes:
        who: the client.
        token: of the hold.
        fence: of the hold.
        start: when acquire had returned.
        writes: when it wrote to the resource, which never asks whether the hold is still trusted.
        end: before it called release; when it was killed; ``inf``: it was not seen to end.
        deadline: until when its lease was trusted.
        is_lost: the client had learnt that its hold was lost, by its release at the latest.
        is_over: it called release, and was answered or not; ``False`` where it was killed before.
    """

    who: str
    token: str
    fence: int
    start: float
    writes: Sequence[float]
    end: float
    deadline: float
    is_lost: bool = False
    is_over: bool = True

    @property
    def until(self) -> float:
        """The end of the time in which it trusted its lease: who goes on after the deadline holds nothing."""
        return max(self.start, min(self.end, self.deadline))

    @property
    def name(self) -> str:
        """Names it in what is found."""
        return f"{self.who} ({self.token})"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Figures of one history.

    Attributes:
        holds: how many.
        overlaps: two that both trusted their lease at once, in words.
        disorder: fences that are not larger than that of the hold before, in words.
        late: writes after the writer's own deadline.
        refused: writes whose fence was smaller than one the resource had seen.
        slipped: late writes that it let in, because nobody newer had written yet.
        lost: holds of which the holder learnt that they were lost, by their release at the latest.
        idle: the longest time after the first hold in which nobody trusted one, in seconds.
        handed: seconds from each release to the next hold, shortest first.
    """

    holds: int
    overlaps: Sequence[str]
    disorder: Sequence[str]
    late: int
    refused: int
    slipped: int
    lost: int
    idle: float
    handed: Sequence[float]


def judge(history: Sequence[Held], end: float = 0.0) -> Verdict:
    """Return the figures of a history, whose holds may come in any order; ``end``: when it was over."""
    in_order = sorted(history, key=lambda each: each.start)
    # One that was paused before it began may have held nothing by then.
    trusted = [each for each in in_order if each.deadline > each.start]
    writes = sorted((at, each.fence, at > each.deadline) for each in history for at in each.writes)
    largest = late = refused = slipped = 0
    for _, fence, is_late in writes:
        late += is_late
        if fence < largest:
            refused += 1
        else:
            slipped += is_late
        largest = max(largest, fence)
    disorder = [
        f"{each.name} has fence {each.fence}, not more than {before.fence} of {before.name} before it"
        for before, each in pairwise(trusted)
        if each.fence <= before.fence
    ]
    lost = sum(each.is_lost for each in history)
    handed = sorted(
        each.start - before.end
        for before, each in pairwise(in_order)
        if before.is_over and not before.is_lost and each.start >= before.end
    )
    overlaps = _overlaps(trusted)
    idle = _idle(in_order, end)
    return Verdict(len(history), overlaps, disorder, late, refused, slipped, lost, idle, handed)


def _overlaps(in_order: Sequence[Held]) -> list[str]:
    found = []
    latest: Held | None = None
    for each in in_order:
        if latest is not None and each.start < latest.until:
            seconds = min(each.until, latest.until) - each.start
            found.append(f"{latest.name} and {each.name} held it at once for {seconds:.3f} s")
        if latest is None or each.until > latest.until:
            latest = each
    return found


def _idle(in_order: Sequence[Held], end: float) -> float:
    idle = 0.0
    held_until = in_order[0].start if in_order else end
    for start, until in [*((each.start, each.until) for each in in_order), (end, end)]:
        idle = max(idle, start - held_until)
        held_until = max(held_until, until)
    return idle
