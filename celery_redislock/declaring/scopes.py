"""Scopes and conflict strategies: how long a task is unique, and what a duplicate does.

A row of :data:`SCOPES` says all there is to say about a scope. Other modules
ask a row for its attributes and never compare a scope's name.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from celery_redislock.declaring.kinds import Kind, hint

ScopeName = Literal[
    "until_executed", "until_executing", "until_expired", "while_executing", "until_and_while_executing"
]
Strategy = Literal["skip", "raise", "wait", "coalesce"]
#: Those with which a duplicate runs later.
WAITING = ("wait", "coalesce")
#: Where a duplicate is noticed: at publish, or when its run is about to start.
Side = Literal["client", "server"]
#: A strategy's name, or a callable that is given the conflict and returns one, or a :class:`Skip`.
Choice = str | Callable[..., object]


class Scope(NamedTuple):
    """How long a task is unique: what its publish claims, and what its run holds.

    Attributes:
        name: the value of ``lock``.
        meaning: for the reference page.
        claim: until when a publish claims the key: until its run starts, until that ends (the claim becomes
            its lease), or until ``lock_period`` has passed. ``None``: a publish claims nothing.
        lease: a run holds a lease on the key, which is renewed.
        claims_beside: the claim is kept under the key's second name, beside the lease of a run, so that one
            call may be queued while one runs.
        client: the default strategy at publish; ``None`` where nothing is claimed there.
        server: the default strategy on the worker.
    """

    name: ScopeName
    meaning: str
    claim: Literal["start", "end", "period"] | None
    lease: bool
    client: Strategy | None
    server: Strategy
    claims_beside: bool = False

    @property
    def may_wait(self) -> bool:
        """A refused call can wait: what refuses it is released sometime. Nobody releases a period."""
        return self.claim != "period"

    @property
    def may_coalesce(self) -> bool:
        """Of its calls one may run and the newest one wait: they meet in one line, from their publish on."""
        return self.claim in {"start", "end"} and not self.claims_beside


#: The scopes by name.
SCOPES: Mapping[str, Scope] = {
    scope.name: scope
    for scope in (
        Scope("until_executed", "from publish until the run has ended",
              claim="end", lease=True, client="skip", server="skip"),
        Scope("until_executing", "from publish until the run starts",
              claim="start", lease=False, client="skip", server="skip"),
        Scope("until_expired", "from publish until `lock_period` has passed, or the job has failed",
              claim="period", lease=False, client="skip", server="skip"),
        Scope("while_executing", "while it runs; any number may be queued",
              claim=None, lease=True, client=None, server="wait"),
        Scope("until_and_while_executing", "from publish until the run starts, and while it runs; one may be "
              "queued while one runs",
              claim="start", lease=True, client="skip", server="wait", claims_beside=True),
    )
}  # fmt: skip

#: The scope of a message whose claim stands for a period, whatever its task declares by now.
OF_PERIOD = SCOPES["until_expired"]


#: The values of ``on_conflict``: what becomes of a duplicate at publish, and on the worker.
STRATEGIES: Mapping[Strategy, tuple[str, str]] = {
    "skip": ("not published; the holder's result is returned", "ends as a skipped duplicate"),
    "raise": ("`DuplicateTask` is raised", "the task fails with `DuplicateTask`"),
    "wait": (
        "waits in line from then on, or is published without a claim",
        "waits in line, and starts when the lock is released",
    ),
    "coalesce": (
        "waits in line; one that waits already runs with these arguments instead, under its own task id",
        "waits in line, and the older one that waits there ends as `REVOKED`",
    ),
}

#: Why the calls of a scope cannot coalesce, and what to write instead.
NO_NEWEST: Mapping[ScopeName, str] = {
    "until_expired": "whose duplicates never run; use lock='until_executed' without lock_period",
    "while_executing": "whose calls are queued without a look at the others; use lock='until_executed'",
    "until_and_while_executing": "of whose calls the oldest waits; leave on_conflict out, or use "
    "lock='until_executed'",
}

#: Why a call cannot wait at publish, and what to write instead; with the scope's name.
NO_TURN = (
    "and lock={!r} is released by nobody, so nobody's turn would come; use 'skip' or 'raise', or "
    "lock='until_executed' with lock_period"
)

#: Other names of strategies.
ALIASES: Mapping[str, Strategy] = {"retry": "wait"}

#: Strategies of other systems that are combinations here: each with what to write.
COMBINATIONS: Mapping[str, str] = {
    "replace": "for the newest arguments in place of those that wait, write on_conflict='coalesce' "
    "(docs/flow.md#one-runs-the-newest-waits)",
    "cancel": "to end the run that is on, write a callable that revokes conflict.holder with terminate=True "
    "and returns 'wait' (docs/flow.md#cancel-the-running-one)",
    "oldest": "for the oldest of the calls that come during a run, leave on_conflict out and write "
    "lock='until_and_while_executing' (docs/which-duplicate.md#one-more-run-afterwards)",
}


class OnConflict(NamedTuple):
    """``on_conflict`` as it was asked for, side by side; ``None`` leaves a side its default.

    Attributes:
        by_side: the sides were named; otherwise one value was given for both, and counts where the
            scope has that side.
    """

    client: Choice | None = None
    server: Choice | None = None
    by_side: bool = False

    def over(self, other: "OnConflict") -> "OnConflict":
        """Return what is asked here, and *other* where nothing is."""
        return OnConflict(self.client or other.client, self.server or other.server, by_side=True)


class Skip(NamedTuple):
    """What a callable strategy returns for a duplicate that is skipped with a result.

    On the worker the call ends in SUCCESS with this result, and its body is not run. At publish it is skipped
    as with ``"skip"``: the caller has ``is_duplicate``.
    """

    result: object


class Conflict(NamedTuple):
    """A duplicate, as a callable strategy or ``lock_skip_result`` is given it.

    Attributes:
        task: the bound task; ``args``, ``kwargs`` and ``task_id`` are the duplicate's.
        key: the lock's name.
        holder: the holder's task id. Advisory: it may be gone by now.
        expires_in: seconds until the hold ends unless renewed; ``inf`` where another program set no end.
        side: ``client`` at publish, ``server`` on the worker.
        has_other_arguments: in ``until_expired``, with a ``lock_key`` for the call: the holder, which was
            called under the same key, has other arguments. Whatever the callable returns is done: ``"skip"``
            drops the call, ``"raise"`` refuses it, as is done without a callable.
    """

    task: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    task_id: str
    key: str
    holder: str
    expires_in: float
    side: Side
    has_other_arguments: bool = False


class _ScopeKind(Kind):
    """``lock``: a scope, or ``None`` or ``False`` for no locking."""

    def read(self, value: object) -> Scope | None:
        """Return the scope, ``None`` for off."""
        if value is None or value is False:
            return None
        if isinstance(value, Scope):
            return value
        if isinstance(value, str):
            return SCOPES[_known(value, SCOPES)]
        raise ValueError(
            f"is {value!r}, which is no scope; give {self.wording} (an attribute of your own with this name "
            "must be renamed)"
        )


class _ConflictKind(Kind):
    """``on_conflict``: one strategy for all sides, or one for each."""

    def read(self, value: object) -> OnConflict:
        """Return what is asked of each side."""
        if isinstance(value, OnConflict):
            return value
        if not isinstance(value, Mapping):
            choice = self._choice(value)
            return OnConflict(choice, choice)
        if not value or not value.keys() <= {"client", "server"}:
            raise ValueError(
                f"is {dict(value)!r}; its keys are 'client' (at publish) and 'server' (on the worker)"
            )
        sides = {side: None if one is None else self._choice(one) for side, one in value.items()}
        return OnConflict(sides.get("client"), sides.get("server"), by_side=True)

    def _choice(self, value: object) -> Choice:
        if isinstance(value, str):
            return ALIASES.get(value) or _known(value, STRATEGIES)
        if callable(value) and not isinstance(value, type):
            return value
        raise self.refusal(value)


SCOPE = _ScopeKind(", ".join(map(repr, SCOPES)) + ", or None or False for no lock")
CONFLICT = _ConflictKind(", ".join(map(repr, STRATEGIES)) + ", a callable, or {'client': …, 'server': …}")


def resolve(
    scope: Scope | None, asked: OnConflict, *, has_period: bool = False
) -> tuple[Choice | None, Choice | None]:
    """Return the strategies at publish and on the worker; ``None`` where *scope* takes no lock there.

    Who waits at publish waits on the worker, too, unless something else is asked for there: its message may
    have to go there without a claim.
    """
    if scope is None:
        return None, None
    client = asked.client
    server = asked.server
    if client == "wait" and not scope.may_wait:
        client = None
    # A setting counts for the tasks it can count for.
    if has_period or not scope.may_coalesce:
        client = None if client == "coalesce" else client
        server = None if server == "coalesce" else server
    client = client or ("coalesce" if server == "coalesce" else scope.client) if scope.claim else None
    return client, server or (client if client in WAITING else scope.server)


def _known(value: str, known: Collection[str]) -> str:
    if value in known:
        return value
    remedy = COMBINATIONS.get(value) or hint(value, known, f"known are {', '.join(map(repr, known))}")
    raise ValueError(f"is {value!r}, which is unknown; {remedy}")
