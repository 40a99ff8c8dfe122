"""Scopes and conflict strategies: which sides a scope has, and what a duplicate does on each."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

__all__ = [
    "SCOPES",
    "STRATEGIES",
    "Asked",
    "Choice",
    "ConflictKind",
    "Scope",
    "ScopeKind",
    "Strategy",
    "contradictions",
    "resolve",
]

#: How long a task is unique.
Scope = Literal["until_executed", "until_executing", "until_expired", "while_executing"]
#: What happens to a duplicate.
Strategy = Literal["skip", "raise", "retry"]
#: Where a duplicate is noticed: at publish, or when its run is about to start.
Side = Literal["client", "server"]
#: A strategy's name, or a callable that is given the conflict and returns one.
Choice = str | Callable[..., object]

#: Each scope's sides and their default strategies. What runs anyway must not be dropped by default.
SCOPES: Mapping[str, Mapping[str, Strategy]] = {
    "until_executed": {"client": "skip", "server": "skip"},
    "until_executing": {"client": "skip", "server": "skip"},
    "until_expired": {"client": "skip", "server": "skip"},
    "while_executing": {"server": "retry"},
}
SCOPE_MEANINGS: Mapping[str, str] = {
    "until_executed": "from publish until the run has ended",
    "until_executing": "from publish until the run starts",
    "until_expired": "from publish until `lock_period` has passed, however the run ends",
    "while_executing": "while it runs; any number may be queued",
}
PLANNED_SCOPES: Mapping[str, str] = {
    "until_and_while_executing": "meanwhile use 'until_executed' (one queued or running) or "
    "'while_executing' (one running)",
}
STRATEGIES: Mapping[str, str] = {
    "skip": "client: not published, the holder's result is returned; server: ends as a skipped duplicate",
    "raise": "client: `DuplicateTask` is raised; server: the task fails with it",
    "retry": "client: published without a claim; server: published again after `lock_retry_delay`",
}
PLANNED_STRATEGIES: Mapping[str, str] = {
    "wait": "meanwhile use 'retry', which drops nothing but polls",
    "replace": "meanwhile use 'skip'",
    "cancel": "meanwhile revoke the holder yourself (DuplicateTask.task_id with 'raise')",
    "coalesce": "meanwhile use 'skip'",
}


class Asked(NamedTuple):
    """``on_conflict`` as it was asked for, side by side; ``None`` leaves a side its default.

    Attributes:
        client: at publish.
        server: on the worker.
        by_side: both were named; otherwise one value was given for both, and
            counts where the scope has that side.
    """

    client: Choice | None = None
    server: Choice | None = None
    by_side: bool = False

    def over(self, other: "Asked") -> "Asked":
        """Return what is asked here, and *other* where nothing is."""
        return Asked(self.client or other.client, self.server or other.server, by_side=True)


class ScopeKind:
    """``lock``: a scope, or ``None``/``False`` for no locking."""

    @property
    def wording(self) -> str:
        """What is allowed, for people."""
        return ", ".join(map(repr, SCOPES)) + ", or None or False for no lock"

    def read(self, value: object) -> str | None:
        """Return the scope, ``None`` for off."""
        if value is None or value is False:
            return None
        if isinstance(value, str):
            return _name(value, SCOPES, PLANNED_SCOPES)
        message = (
            f"is {value!r}, which is no scope; give {self.wording} (an attribute of your own with this name "
            "must be renamed)"
        )
        raise ValueError(message)


class ConflictKind:
    """``on_conflict``: one strategy for all sides, or one for each."""

    @property
    def wording(self) -> str:
        """What is allowed, for people."""
        return ", ".join(map(repr, STRATEGIES)) + ", a callable, or {'client': …, 'server': …}"

    def read(self, value: object) -> Asked:
        """Return what is asked of each side."""
        if isinstance(value, Asked):
            return value
        if not isinstance(value, Mapping):
            choice = self._choice(value)
            return Asked(choice, choice)
        strange = [key for key in value if key not in ("client", "server")]
        if strange or not value:
            message = f"is {dict(value)!r}; its keys are 'client' (at publish) and 'server' (on the worker)"
            raise ValueError(message)
        sides = {side: None if one is None else self._choice(one) for side, one in value.items()}
        return Asked(sides.get("client"), sides.get("server"), by_side=True)

    def _choice(self, value: object) -> Choice:
        if isinstance(value, str):
            return _name(value, STRATEGIES, PLANNED_STRATEGIES)
        if callable(value) and not isinstance(value, type):
            return value
        message = f"is {value!r}; give {self.wording}"
        raise ValueError(message)


def resolve(scope: str | None, asked: Asked) -> tuple[Choice | None, Choice | None]:
    """Return the strategies at publish and on the worker; ``None`` where *scope* has no such side."""
    sides = SCOPES.get(scope or "", {})
    return (
        (asked.client or sides["client"]) if "client" in sides else None,
        (asked.server or sides["server"]) if "server" in sides else None,
    )


def contradictions(scope: str | None, asked: Asked) -> list[str]:
    """Return what *asked* names by side although *scope* has no such side."""
    if scope is None or not asked.by_side:
        return []
    return [
        f"on_conflict names the {side} side, which lock={scope!r} does not have: it takes no lock "
        f"{'at publish' if side == 'client' else 'on the worker'}; leave it out"
        for side, choice in (("client", asked.client), ("server", asked.server))
        if choice is not None and side not in SCOPES[scope]
    ]


def _name(value: str, known: Mapping[str, str] | Mapping[str, object], planned: Mapping[str, str]) -> str:
    if value in known:
        return value
    if value in planned:
        message = f"is {value!r}, which is not yet supported; {planned[value]}"
        raise ValueError(message)
    from difflib import get_close_matches  # noqa: PLC0415  only for an error

    nearest = get_close_matches(value, known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(map(repr, known))}"
    message = f"is {value!r}, which is unknown; {hint}"
    raise ValueError(message)
