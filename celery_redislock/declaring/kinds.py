"""Kinds of values: how each is read, what is refused, how the reference page words it."""

import re
from collections.abc import Callable
from datetime import timedelta

from celery_redislock.locks.store import TEN_YEARS


class Kind:
    """A kind of value. Values may be anything: they come from users.

    Attributes:
        wording: what is allowed, for people.
    """

    def __init__(self, wording: str, is_allowed: Callable[[object], bool] = lambda _: True) -> None:
        self.wording = wording
        self._is_allowed = is_allowed

    def read(self, value: object) -> object:
        """Return the value to use.

        Raises:
            ValueError: it is not allowed; the text follows the option's name.
        """
        if self._is_allowed(value):
            return value
        raise self.refusal(value)

    def refusal(self, value: object) -> ValueError:
        """Return the error for a value that is not allowed."""
        return ValueError(f"is {value!r}; give {self.wording}")


class Seconds(Kind):
    """A duration: a number of seconds or a ``timedelta``, read as float seconds.

    The least is a millisecond, the unit Redis counts in, where nothing asks for more.
    """

    def __init__(self, *, least: float = 0.001, most: float = TEN_YEARS) -> None:
        super().__init__(f"seconds ({least:g} … {most:.0f}) or a timedelta")
        self.least, self.most = least, most

    def read(self, value: object) -> float:
        """Return float seconds."""
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise self.refusal(value)
        if self.least <= seconds <= self.most:  # which NaN never is
            return float(seconds)
        raise self.refusal(value)


class Url(Kind):
    """Where the lock server is. The value is never shown: it may hold a password."""

    def __init__(self) -> None:
        super().__init__("a URL such as 'redis://localhost:6379/0'")

    def read(self, value: object) -> str:
        """Return the URL; :mod:`celery_redislock.declaring.server` reads its parts."""
        if isinstance(value, str) and "://" in value:
            return value
        found = "has no scheme ('://')" if isinstance(value, str) else f"is of type {type(value).__name__}"
        message = f"{found}; give {self.wording}"
        raise ValueError(message)


def one_of(*values: str, or_callable: bool = False) -> Kind:
    """Return the kind of some texts, and of callables where they are allowed."""
    return Kind(
        " or ".join([*map(repr, values), *(["a callable"] if or_callable else [])]),
        lambda value: (isinstance(value, str) and value in values) or (or_callable and callable(value)),
    )


def whole(least: int, most: int) -> Kind:
    """Return the kind of whole numbers within bounds; ``True`` is none."""
    return Kind(
        f"a whole number ({least} … {most})",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most,
    )


#: Texts are refused: ``"false"`` would be true.
FLAG = Kind("True or False", lambda value: isinstance(value, bool))
#: Braces would move a Redis key's hash tag.
PREFIX = Kind(
    "a text without braces, white space and control characters",
    lambda value: isinstance(value, str) and re.fullmatch(r"[^{}\s\x00-\x1f\x7f]+", value) is not None,
)
#: ``lock_key``; :func:`celery_redislock.declaring.keys.parse_key` checks it with the parameters.
KEY = Kind("a tuple of parameter names, a text such as 'account:{account_id}', or a callable")
