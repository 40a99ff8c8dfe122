"""Kinds of values: how each is read, what is refused, how a reference page words it.

Every kind has ``read(value)``, which returns the value to use or raises
``ValueError`` with the rest of a sentence that begins with the option's name,
and ``wording``, what is allowed. Values may be anything: they come from users.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple, Protocol

from celery_redislock.locks.store import TEN_YEARS

__all__ = ["Choice", "Flag", "Key", "Kind", "Planned", "Prefix", "Seconds", "Url", "Whole"]


class Kind(Protocol):
    """A kind of value."""

    @property
    def wording(self) -> str:
        """What is allowed, for people."""
        ...

    def read(self, value: object) -> object:
        """Return the value to use.

        Raises:
            ValueError: it is not allowed; the text follows the option's name.
        """
        ...


class Seconds(NamedTuple):
    """A duration: a number of seconds or a ``timedelta``, read as float seconds.

    The least is a millisecond, the unit Redis counts in, where nothing asks for more.
    """

    least: float = 0.001
    most: float = TEN_YEARS

    @property
    def wording(self) -> str:
        """What is allowed, for people."""
        return f"seconds ({self.least:g} … {self.most:.0f}) or a timedelta"

    def read(self, value: object) -> float:
        """Return float seconds; ``bool``, NaN and the infinities are no numbers here."""
        if isinstance(value, timedelta):
            value = value.total_seconds()
        # NaN is within no bounds.
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and self.least <= value <= self.most
        ):
            return float(value)
        message = f"is {value!r}; give {self.wording}"
        raise ValueError(message)


class Whole(NamedTuple):
    """A whole number."""

    least: int
    most: int

    @property
    def wording(self) -> str:
        """What is allowed, for people."""
        return f"a whole number ({self.least} … {self.most})"

    def read(self, value: object) -> int:
        """Return the number; ``True`` is none."""
        if isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most:
            return value
        message = f"is {value!r}; give {self.wording}"
        raise ValueError(message)


class Flag:
    """Yes or no. Texts are refused: ``"false"`` would be true."""

    wording: str = "True or False"

    def read(self, value: object) -> bool:
        """Return the flag."""
        if isinstance(value, bool):
            return value
        message = f"is {value!r}; give {self.wording}"
        raise ValueError(message)


class Choice(NamedTuple):
    """One of some texts, or a callable where that is allowed."""

    values: tuple[str, ...]
    or_callable: bool = False

    @property
    def wording(self) -> str:
        """What is allowed, for people."""
        return " or ".join([*map(repr, self.values), *(["a callable"] if self.or_callable else [])])

    def read(self, value: object) -> str | Callable[..., object]:
        """Return the text or the callable."""
        if isinstance(value, str) and value in self.values:
            return value
        if self.or_callable and callable(value):
            return value
        message = f"is {value!r}; give {self.wording}"
        raise ValueError(message)


class Prefix:
    """A text that may begin a Redis key: no braces, which would move its hash tag, and no white space."""

    wording: str = "a text without braces, white space and control characters"

    def read(self, value: object) -> str:
        """Return the text."""
        if isinstance(value, str) and re.fullmatch(r"[^{}\s\x00-\x1f\x7f]+", value):
            return value
        message = f"is {value!r}; give {self.wording}"
        raise ValueError(message)


class Url:
    """Where the lock server is. The value is never shown: it may hold a password."""

    wording: str = "a URL such as 'redis://localhost:6379/0'"

    def read(self, value: object) -> str:
        """Return the URL; whether it can be used is the connection's to say."""
        if isinstance(value, list | tuple):
            message = (
                "is a list; a quorum of servers is not yet supported: name one, or Sentinels as Celery does"
            )
            raise ValueError(message)  # noqa: TRY004  a kind refuses with one type of error
        if isinstance(value, str) and "://" in value:
            return value
        if isinstance(value, str):
            found = "has no scheme ('://')" if value else "is empty"
        else:
            found = f"is no text but of type {type(value).__name__}"
        message = f"{found}; give {self.wording}"
        raise ValueError(message)


class Key:
    """``lock_key``: checked against the task's parameters by :func:`celery_redislock.keys.parse_key`."""

    wording: str = "a tuple of parameter names, a text such as 'account:{account_id}', or a callable"

    def read(self, value: object) -> object:
        """Return it unchecked."""
        return value


class Planned(NamedTuple):
    """An option that does not exist yet: only what already happens can be asked for."""

    allowed: object
    instead: str

    @property
    def wording(self) -> str:
        """What is allowed, for people."""
        return "not yet" if self.allowed is None else f"{self.allowed!r} (others: not yet)"

    def read(self, value: object) -> object:
        """Return the one value there is."""
        if type(value) is type(self.allowed) and value == self.allowed:
            return value
        only = "" if self.allowed is None else f" (only {self.allowed!r})"
        message = f"is {value!r}, which is not yet supported{only}; {self.instead}"
        raise ValueError(message)
