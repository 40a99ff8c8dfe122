"""Kinds of values: how each is read, what is refused, how the reference page words it."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from types import MappingProxyType

from celery_redislock.locks.terms import is_async
from celery_redislock.store.store import MOST_HOLDERS, TEN_YEARS
from celery_redislock.wire.clock import is_seconds


@dataclass(eq=False)
class Kind:
    """A kind of value. Values may be anything: they come from users.

    Attributes:
        wording: what is allowed, for people.
    """

    wording: str
    _is_allowed: Callable[[object], bool] = lambda _: True

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
        found = "a coroutine function, and nobody awaits it" if is_async(value) else repr(value)
        return ValueError(f"is {found}; give {self.wording}")


class Seconds(Kind):
    """A duration: a number of seconds or a ``timedelta``, read as float seconds.

    The least is a millisecond, the unit Redis counts in, where nothing asks for more.
    """

    def __init__(self, *, least: float = 0.001) -> None:
        super().__init__(f"seconds ({least:g} … {TEN_YEARS:.0f}) or a timedelta")
        self._least = least

    def read(self, value: object) -> float:
        """Return float seconds."""
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        if is_seconds(seconds) and self._least <= seconds <= TEN_YEARS:
            return float(seconds)
        raise self.refusal(value)


class Rates(Kind):
    """``lock_rate``: how many may start in any span of so long; one such text, or two."""

    _TEXT = re.compile(r"([1-9]\d{0,6})/([1-9]\d{0,4})?([smhd])")
    _UNITS = MappingProxyType({"s": 1, "m": 60, "h": 3600, "d": 86400})

    def read(self, value: object) -> tuple[str, ...]:
        """Return the texts."""
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list | tuple) and all(isinstance(each, str) for each in texts):
            spans = {each[1] for each in map(self._parsed, texts) if each}
            # Starts are counted by span: two rates of one would count each start twice.
            if 1 <= len(spans) == len(texts) <= 2:
                return tuple(texts)
        raise self.refusal(value)

    def refusal(self, value: object) -> ValueError:
        """Return the error, with what Celery's own ``rate_limit`` would be."""
        error = super().refusal(value)
        is_celerys = isinstance(value, int | float) or re.fullmatch(r"\d+|\d*\.\d+(/[smh])?", str(value))
        return ValueError(f"{error}; Celery's rate_limit is another option") if is_celerys else error

    @classmethod
    def _parsed(cls, text: str) -> tuple[int, int] | None:
        found = cls._TEXT.fullmatch(text)
        if found is None:
            return None
        number, count, unit = found.groups()
        seconds = int(count or 1) * cls._UNITS[unit]
        return (int(number), seconds) if seconds <= cls._UNITS["d"] else None

    @classmethod
    def for_scripts(cls, texts: Iterable[str]) -> str:
        """Return rates that were read as the scripts take them."""
        parsed = filter(None, map(cls._parsed, texts))
        return " ".join(f"{number}/{1000 * seconds}" for number, seconds in parsed)


class Url(Kind):
    """Where the lock server is, or a client of it. The value is never shown: it may hold a password."""

    def refusal(self, value: object) -> ValueError:
        """Return the error for what is no URL; :mod:`celery_redislock.declaring.server` reads its parts."""
        if isinstance(value, list | tuple):
            return ValueError(
                "is a list, and tasks have no locks on a quorum of servers (Redlock); give the URL of one "
                "server, and use celery_redislock.locks.connect([...]) for a Lock without tasks"
            )
        found = "has no scheme ('://')" if isinstance(value, str) else f"is of type {type(value).__name__}"
        return ValueError(f"{found}; give {self.wording}")


class Entries(Kind):
    """``redislock_beat``: which entries of the schedule; read as patterns beside the unique tasks'."""

    def read(self, value: object) -> tuple[str, ...] | None:
        """Return the patterns, ``None`` for no entry at all."""
        if value is False:
            return None
        if value in ("unique", "all"):
            return ("*",) if value == "all" else ()
        if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
            return tuple(value)
        raise self.refusal(value)


class Restore(Seconds):
    """``redislock_restore``: after how many seconds, or a flag; ``False`` is read as infinite."""

    def __init__(self, *, usual: float) -> None:
        # A third of it is left for a worker to be late, and a message is in hand for over a second.
        super().__init__(least=6.0)
        self.wording = f"True, False, or {self.wording}"
        self._usual = usual

    def read(self, value: object) -> float:
        """Return float seconds."""
        if isinstance(value, bool):
            return self._usual if value else inf
        return super().read(value)


def one_of(*values: str, or_callable: bool = False) -> Kind:
    """Return the kind of some texts, and of callables where they are allowed."""
    return Kind(
        " or ".join([*map(repr, values), *(["a callable"] if or_callable else [])]),
        lambda value: (
            (isinstance(value, str) and value in values)
            or (or_callable and callable(value) and not is_async(value))
        ),
    )


REPLICAS = Kind(
    "a whole number (0 … 100)",
    lambda value: type(value) is int and 0 <= value <= 100,
)


def _is_holders(value: object) -> bool:
    return type(value) is int and 1 <= value <= MOST_HOLDERS


COUNT = Kind("a whole number from 1 on", lambda value: type(value) is int and value >= 1)
_NUMBER = f"a whole number from 1 to {MOST_HOLDERS}"
_NO_LIMIT = "; a call without a limit takes lock=None"
HOLDERS = Kind(_NUMBER + _NO_LIMIT, _is_holders)
LIMIT = Kind(
    f"{_NUMBER}, or a callable of the call's arguments, by name, that returns one{_NO_LIMIT}",
    lambda value: _is_holders(value) or (callable(value) and not isinstance(value, type)),
)
RATE = Rates("a text such as '10/m', '1/s' or '10/90s' (1 s … 1 d), or two of two spans: ['10/s', '1000/h']")
#: Texts are refused: ``"false"`` would be true.
FLAG = Kind("True or False", lambda value: isinstance(value, bool))
#: Braces would move a Redis key's hash tag.
PREFIX = Kind(
    "a text without braces, white space and control characters",
    lambda value: isinstance(value, str) and re.fullmatch(r"[^{}\s\x00-\x1f\x7f]+", value) is not None,
)
URL = Url(
    "a URL such as 'redis://localhost:6379/0', a `redis.Redis`, or a callable that returns one",
    lambda value: (
        (isinstance(value, str) and "://" in value)
        or (not isinstance(value, str) and (callable(value) or hasattr(value, "execute_command")))
    ),
)
ENTRIES = Entries("'unique', 'all', False, or a list of patterns such as 'report-*'")
ANYTHING = Kind("any value, or a callable of the `Conflict` that returns one")
#: ``lock_key``; :func:`celery_redislock.declaring.keys.parse_key` checks it with the parameters.
KEY = Kind("a tuple of parameter names, a text such as 'account:{account_id}', Resources(...), or a callable")


#: ``lock_describe``; checked as a template with the others of a task.
ANY_TEXT = Kind("a text such as 'order {order_id}'", lambda value: isinstance(value, str) and value != "")


def hint(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return what to say of an unknown word: which of those known is nearest, or *otherwise*."""
    from difflib import get_close_matches  # noqa: PLC0415  only for an error

    nearest = get_close_matches(word, known, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else otherwise
