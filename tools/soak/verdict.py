"""What is wrong with the ticks of an entry: one that came twice, is missing, or late without a reason."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from tests.acceptance.ticks import Tick

#: Seconds by which a tick may be late, or early after a late one, on a busy machine.
SLACK = 0.45
#: Seconds by which a beat that did not send the last tick stands back.
STANDBY = 0.2


@dataclass(frozen=True, slots=True)
class Trouble:
    """What was done to beats or to the lock server; times are ``time.monotonic()``.

    Attributes:
        name: what.
        start: when it began.
        end: when it was over.
        late: seconds after its end until which a tick may be late that was due meanwhile.
        repeats: how many ticks of an entry may come twice for it.
    """

    name: str
    start: float
    end: float
    late: float
    repeats: int = 0

    def explains(self, due: float, sent: float) -> bool:
        """Whether a tick that was due then may have been sent so late."""
        return self.start - SLACK <= due <= self.end + self.late and sent <= self.end + self.late + SLACK


@dataclass(slots=True)
class Verdict:
    """Figures of one entry, and what is wrong with it.

    Attributes:
        sent: ticks.
        repeats: those of them that came twice.
        merged: due times of an interval that one late tick stands for.
        late: of each tick, the seconds between its due time and its sending.
        explained: what is late or twice and has a reason.
        problems: what has none.
    """

    sent: int = 0
    repeats: int = 0
    merged: int = 0
    late: list[float] = field(default_factory=list)
    explained: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def figures(self) -> str:
        """A line of them."""
        late = [1000 * each for each in self.late] or [0.0]
        return (
            f"sent {self.sent:4}, twice {self.repeats}, merged {self.merged:3}, late {median(late):6.1f} ms "
            f"(median), {max(late):8.1f} ms (most), {len(self.explained)} explained, {len(self.problems)} not"
        )


class _Judge:
    def __init__(self, troubles: Sequence[Trouble]) -> None:
        self.troubles, self.verdict = troubles, Verdict()
        self._spare = {trouble: trouble.repeats for trouble in troubles}

    def repeat(self, earlier: Tick, later: Tick, patience: float) -> None:
        """A tick came twice."""
        self.verdict.repeats += 1
        text = f"{later.key} {later.at:.2f} from {later.pid}: again, {later.at - earlier.at:.3f} s later"
        for trouble, spare in self._spare.items():
            if spare and trouble.start <= later.at <= trouble.end + trouble.late + patience + SLACK:
                self._spare[trouble] -= 1
                self.verdict.explained.append(f"{text}: {trouble.name}")
                return
        self.verdict.problems.append(text)

    def sending(self, due: float, sent: float, what: str) -> None:
        """A tick was due, and was sent."""
        self.verdict.late.append(sent - due)
        if sent - due <= STANDBY + SLACK:
            return
        text = f"{what} {sent:.2f}: late by {sent - due:.3f} s"
        reason = next((each.name for each in self.troubles if each.explains(due, sent)), None)
        if reason is None:
            self.verdict.problems.append(text)
        else:
            self.verdict.explained.append(f"{text}: {reason}")


def of_interval(ticks: Sequence[Tick], interval: float, until: float, troubles: Sequence[Trouble]) -> Verdict:
    """Judge the ticks of an interval entry, in order, up to ``until``: each is due so long after the last."""
    judge = _Judge(troubles)
    judge.verdict.sent = len(ticks)
    seen = set()
    for earlier, later in pairwise(ticks):
        seen.add(earlier.tick)
        if later.at - earlier.at < interval - SLACK or later.tick in seen:
            judge.repeat(earlier, later, interval)
        else:
            judge.verdict.merged += int((later.at - earlier.at - STANDBY - SLACK) / interval - 1e-9)
            judge.sending(earlier.at + interval, later.at, later.key)
    if not ticks or until - ticks[-1].at > interval + STANDBY + SLACK:
        judge.verdict.problems.append("none was sent at the end")
    return judge.verdict


def of_minutes(
    ticks: Sequence[Tick], since: float, until: float, troubles: Sequence[Trouble], seconds: float = 60.0
) -> Verdict:
    """Judge the ticks of an entry that is due at each minute that begins between two moments."""
    judge = _Judge(troubles)
    judge.verdict.sent = len(ticks)
    if not ticks:
        judge.verdict.problems.append("none was sent")
        return judge.verdict
    offset = ticks[0].wall - ticks[0].at
    first, last = int((since + offset) // seconds) + 1, int((until - STANDBY - SLACK + offset) // seconds)
    for number in range(first, last + 1):
        found = [tick for tick in ticks if tick.wall // seconds == number]
        for earlier, later in pairwise(found):
            judge.repeat(earlier, later, seconds)
        if found:
            judge.sending(number * seconds - offset, found[0].at, found[0].key)
        else:
            judge.verdict.problems.append(f"none was sent at {number * seconds - offset:.2f}")
    return judge.verdict
