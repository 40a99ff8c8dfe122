"""Kinds of values: how each is read, what is refused, how the reference page words it."""

import re
from collections.abc import Callable
from datetime import timedelta

from celery_redislock.locks.store import TEN_YEARS

__all__ = ["Choice", "Flag", "Key", "Kind", "Prefix", "Seconds", "Url", "Whole"]


class Kind:
    """A kind of value. Values may be anything: they come from users.

    Attributes:
        wording: what is allowed, for people.
    """

    wording: str

    def read(self, value: object) -> object:
        """Return the value to use.

        Raises:
            ValueError: it is not allowed; the text follows the option's name.
        """
        raise NotImplementedError

    def refusal(self, value: object) -> ValueError:
        """Return the error for a value that is not allowed."""
        return ValueError(f"is {value!r}; give {self.wording}")


class Seconds(Kind):
    """A duration: a number of seconds or a ``timedelta``, read as float seconds.

    The least is a millisecond, the unit Redis counts in, where nothing asks for more.
    """

    def __init__(self, *, least: float = 0.001, most: float = TEN_YEARS) -> None:
        self.least, self.most = least, most
        self.wording = f"seconds ({least:g} … {most:.0f}) or a timedelta"

    def read(self, value: object) -> float:
        """Return float seconds; ``bool``, NaN and the infinities are refused."""
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise self.refusal(value)
        if self.least <= seconds <= self.most:  # which NaN never is
            return float(seconds)
        raise self.refusal(value)


class Whole(Kind):
    """A whole number."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most
        self.wording = f"a whole number ({least} … {most})"

    def read(self, value: object) -> int:
        """Return the number; ``True`` is refused."""
        if isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most:
            return value
        raise self.refusal(value)


class Flag(Kind):
    """Yes or no. Texts are refused: ``"false"`` would be true."""

    wording = "True or False"

    def read(self, value: object) -> bool:
        """Return the flag."""
        if isinstance(value, bool):
            return value
        raise self.refusal(value)


class Choice(Kind):
    """One of some texts, or a callable where that is allowed."""

    def __init__(self, *values: str, or_callable: bool = False) -> None:
        self.values, self.or_callable = values, or_callable
        self.wording = " or ".join([*map(repr, values), *(["a callable"] if or_callable else [])])

    def read(self, value: object) -> str | Callable[..., object]:
        """Return the text or the callable."""
        if isinstance(value, str) and value in self.values:
            return value
        if self.or_callable and callable(value):
            return value
        raise self.refusal(value)


class Prefix(Kind):
    """A text that may begin a Redis key: no braces, which would move its hash tag, and no white space."""

    wording = "a text without braces, white space and control characters"

    def read(self, value: object) -> str:
        """Return the text."""
        if isinstance(value, str) and re.fullmatch(r"[^{}\s\x00-\x1f\x7f]+", value):
            return value
        raise self.refusal(value)


class Url(Kind):
    """Where the lock server is. The value is never shown: it may hold a password."""

    wording = "a URL such as 'redis://localhost:6379/0'"

    def read(self, value: object) -> str:
        """Return the URL; :mod:`celery_redislock.declaring.server` reads its parts."""
        if isinstance(value, str) and "://" in value:
            return value
        found = "has no scheme ('://')" if isinstance(value, str) else f"is of type {type(value).__name__}"
        hint = (
            "; several servers are not supported, but Sentinels are"
            if isinstance(value, list | tuple)
            else ""
        )
        message = f"{found}; give {self.wording}{hint}"
        raise ValueError(message)


class Key(Kind):
    """``lock_key``: :func:`celery_redislock.declaring.keys.parse_key` checks it with the parameters."""

    wording = "a tuple of parameter names, a text such as 'account:{account_id}', or a callable"

    def read(self, value: object) -> object:
        """Return it unchecked."""
        return value
