"""Redlock: one lock on a quorum of independent servers, held by who holds it on most of them.

It goes on while fewer than half of the servers are away. A lock is granted when a majority has granted it,
and the largest of their fences has been written back to a majority. Two majorities have a server in common:
it has the last fence, and the next one is larger.

Every server must keep what it was told, or stay away: one that restarts without its data, and answers again
before the longest ttl has passed, has given its vote twice.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from celery_redislock.exceptions import LockKeyError, LockOptionError, LockUnavailable, RedisLockError
from celery_redislock.store.redisstore import RedisStore
from celery_redislock.store.store import Grant, Hold, LockStore, Mark, Marked, Refusal, Release, Renewal
from celery_redislock.wire.clock import Clock, boottime
from celery_redislock.wire.connection import Connections
from celery_redislock.wire.scripts import Scripts
from celery_redislock.wire.servers import Servers, no_quorum

#: The fewest servers of which one may be away.
FEWEST = 3


class QuorumStore(RedisStore):
    """Keeps exclusive locks on several servers that know nothing of each other; a majority decides.

    The verbs of a ``Lock``: acquire, renew, release, inspect, and an operator's ``force_release`` and
    ``names``. Others raise ``LockOptionError``, and nothing is sent. Each verb asks all servers at once;
    ``LockUnavailable`` means that no majority answered.
    """

    keeps_lines = False

    def __init__(
        self, stores: Sequence[object], *, prefix: str = "redislock", clock: Clock = boottime
    ) -> None:
        """Keep locks on the servers of these stores; opens no connection.

        Raises:
            LockOptionError: they are fewer than three, an even number, or two of one server; or one is no
                single server.
        """
        of_one = [each.connections for each in stores if type(each) is RedisStore]
        servers = [each for each in of_one if isinstance(each, Connections)]
        _check(servers, len(stores))
        super().__init__(servers[0], prefix=prefix, strict_fence=True, clock=clock)
        self._servers = servers
        self._scripts = Servers(servers, _DECIDES, package=__package__, clock=clock)
        # To acquire, to write the fence back, and to release if that fails.
        self.patience *= 3

    @property
    def server(self) -> str:
        return f"quorum of {', '.join(each.server for each in self._servers)}"

    def acquire(
        self, name: str, token: str, ttl: float, *, facts: str = "", starts_run: bool = False, **terms: Any
    ) -> Grant | Refusal | Marked:
        """As :meth:`LockStore.acquire`; two round trips, and one more where it is refused.

        A grant was sent when the first server was asked, and answered when the fence had been written back:
        its lease ends so much sooner. What a round got that was refused, or failed, has been released on all
        servers that answer before this returns or raises; on others it expires.
        """
        if asked := [term for term, value in terms.items() if value is not None]:
            raise no_quorum(f"acquire with {', '.join(asked)}")
        answer = None
        try:
            answer = super().begin(name, token, ttl, facts=facts, starts_run=starts_run)()
            if isinstance(answer, Grant):
                return self._write_back(name, token, ttl, answer)
        except BaseException:
            # The error of the acquire matters more; its caller releases what is left.
            with suppress(RedisLockError):
                self.release(name, token)
            raise
        self.release(name, token)
        return answer

    begin = LockStore.begin
    walk_holds = LockStore.walk_holds
    walk_lines = LockStore.walk_lines

    def release(
        self, name: str, token: str, *, opened_by: str | None = None, mark: Mark | None = None
    ) -> Release:
        if opened_by or mark is not None:
            raise no_quorum("release with a period or a mark")
        return super().release(name, token)

    def _write_back(self, name: str, token: str, ttl: float, grant: Grant) -> Grant:
        """Write the fence back to a majority; return the grant as of then.

        Raises:
            LockUnavailable: the hold was gone from too many servers meanwhile, or its ttl has passed.
        """
        keys = [self._base(name) + "lock", self._base(name) + "fence"]
        args = [token + "\0", str(grant.fence), self._strict_ms]
        is_written = self._scripts.begin("fence", keys, args, _written, name=name)()
        answered_at = self._clock()
        if not is_written or answered_at - grant.sent_at >= ttl:
            took = f"{answered_at - grant.sent_at:.3f} s of a ttl of {ttl:g} s"
            reason = f"no majority held the lock when its fence was to be written back, after {took}"
            raise LockUnavailable(self.server, "acquire", reason)
        return Grant(grant.fence, False, grant.sent_at, answered_at, grant.repeated)

    def scripts(self, names: Sequence[str], package: str) -> Scripts:  # noqa: ARG002  none of them
        raise no_quorum(names[0])

    def close(self) -> None:
        for each in self._servers:
            each.drop_idle()


def _check(servers: Sequence[Any], count: int) -> None:
    """Raise :class:`LockOptionError`, with all problems, unless these servers can vote."""
    problems = []
    if count < FEWEST:
        problems.append(
            f"a quorum of {count} does not outlive the loss of one server; name three or five, or connect to "
            "one by its URL alone"
        )
    elif count % 2 == 0:
        problems.append(
            f"a quorum of {count} outlives the loss of no more servers than one of {count - 1}; take one "
            "away, or add one"
        )
    if len(servers) < count or None in [each.place for each in servers]:
        problems.append("each of a quorum must be a single server; name it by its URL: no list, no Sentinel")
    places = Counter(each.place for each in servers)
    twice = [each.server for each in servers if each.place is not None and places[each.place] > 1]
    if twice:
        problems.append(
            f"{' and '.join(twice)} are one server, also with two databases, and go away together; name "
            "servers that do not"
        )
    if problems:
        raise LockOptionError("connect", problems)


# How answers become one: each function gets a value or an error of each server, and how many are a majority.


class _Undecided(Exception):  # noqa: N818  it is answered by asking again
    """Too few servers answered to tell about one hold, while others of the batch are known."""


def _told(answers: Sequence[Any], majority: int) -> list[Any]:
    """Return what the servers said that answered; raises LockUnavailable or LockKeyError if too few did."""
    told = [each for each in answers if not isinstance(each, RedisLockError)]
    if len(told) < majority:
        _fail(answers, majority)
    return told


def _fail(answers: Sequence[Any], majority: int) -> NoReturn:
    failed = [each for each in answers if isinstance(each, RedisLockError)]
    unavailable = [each for each in failed if isinstance(each, LockUnavailable)]
    if len(unavailable) < len(failed):
        raise next(each for each in failed if isinstance(each, LockKeyError))
    told = len(answers) - len(failed)
    reasons = "; ".join(f"{each.server}: {each.reason.rstrip('.')}" for each in unavailable)
    error = LockUnavailable(
        f"quorum of {len(answers)}",
        unavailable[0].operation,
        f"{told} of {len(answers)} servers answered as they must, {majority} are needed ({reasons})",
    )
    error.was_refused = all(each.was_refused for each in unavailable)
    # A fence is written back when the lock has been granted.
    error.was_sent = error.operation == "fence" or bool(told) or any(each.was_sent for each in unavailable)
    raise error


def _granted(answers: Sequence[Any], majority: int) -> Grant | Refusal:
    told = _told(answers, majority)
    grants = [each for each in told if isinstance(each, Grant)]
    if len(grants) < majority:
        holds = [hold for each in told if isinstance(each, Refusal) for hold in each.holds]
        votes = Counter(hold.token for hold in holds)
        # The one that most servers know, of those that are left the last to end.
        return Refusal((max(holds, key=lambda hold: (votes[hold.token], hold.expires_in)),))
    fence = max([each.fence or 0 for each in grants])
    return Grant(
        fence, False, grants[0].sent_at, grants[-1].answered_at, True in [each.repeated for each in grants]
    )


def _written(_name: str, reply: Any, *_: object) -> bool:
    (word,) = reply
    is_written: bool = {b"written": True, b"missing": False}[word]
    return is_written


def _is_written(answers: Sequence[Any], majority: int) -> bool:
    told: list[bool] = _told(answers, majority)
    return sum(told) >= majority


def _renewed(answers: Sequence[Any], majority: int) -> Renewal:
    """Renewed where a majority has; not, where even those who are silent could not make it one."""
    told: list[Renewal] = _told(answers, majority)
    silent = len(answers) - len(told)
    renewed: list[bool | None] = []
    undecided = 0
    for votes in zip(*(each.renewed for each in told), strict=True):
        count = Counter(votes)
        renewed.append(True if count[True] >= majority else False if count[False] > count[None] else None)
        undecided += count[True] < majority <= count[True] + silent
    if undecided == len(renewed):
        _fail(answers, majority)
    if undecided:
        # Whoever renews several asks for each alone then, and one that cannot be told costs itself only.
        raise _Undecided(f"{undecided} of {len(renewed)} renewals")
    return Renewal(renewed, min(each.sent_at for each in told), max(each.answered_at for each in told))


def _released(answers: Sequence[Any], majority: int) -> Release:
    told: list[Release] = _told(answers, majority)
    released = sum([each.released for each in told])
    held_by = _majority_of([each.held_by for each in told if each.held_by], majority)
    if released >= majority:
        return Release(True, held_by)
    # A server that did not answer, or only when it was asked again, may have released it.
    perhaps = len(answers) - len(told) + sum(each.repeated and not each.released for each in told)
    return Release(False, held_by, repeated=released + perhaps >= majority)


def _held(answers: Sequence[Any], majority: int) -> tuple[Hold, ...]:
    hold = _majority_of([hold for holds in _told(answers, majority) for hold in holds], majority)
    return () if hold is None else (hold,)


def _majority_of(holds: Sequence[Hold], majority: int) -> Hold | None:
    """Return the hold that a majority knows, as it is on the server with which it stops to be one."""
    if len(holds) < majority:
        return None
    of_token: dict[str, list[Hold]] = {}
    for hold in sorted(holds, key=lambda hold: -hold.expires_in):
        of_token.setdefault(hold.token, []).append(hold)
    return next((each[majority - 1] for each in of_token.values() if len(each) >= majority), None)


def _listed(answers: Sequence[Any], majority: int) -> list[str]:
    counts = Counter(name for names in _told(answers, majority) for name in names)
    return [name for name, count in counts.items() if count >= majority]


_DECIDES = {
    "acquire": _granted,
    "fence": _is_written,
    "force_release": _released,
    "inspect": _held,
    "names": _listed,
    "release": _released,
    "renew": _renewed,
}
