"""A lock server's complaints, in words for people."""

import re
from collections.abc import Mapping, Sequence

__all__ = ["words_of", "wrong_kind"]

#: What servers add to an error inside a script: Redis 6.2 in front of it, later ones and Valkey behind it.
_OF_THE_SCRIPT = re.compile(
    r"\AError running script .*?: -(?:OOM )?|\.? script: (?:\w+, )?on @user_script:\d+\.?\Z"
)


def words_of(error: Exception) -> str:
    """Return an error's words, or its name where it has none."""
    return _OF_THE_SCRIPT.sub("", str(error)) or type(error).__name__


def wrong_kind(keys: Sequence[str], kinds: Mapping[str, str]) -> str:
    """Say which of a lock's keys another program has put something else into.

    Args:
        keys: of the script that was refused; the index is the only sorted set among them.
        kinds: what the server answered to ``TYPE``, by key; empty where it did not.
    """
    wrong = [f"its key {key!r} is a {kind}" for key, kind in kinds.items() if kind not in _expected(key)]
    return " and ".join(wrong) or f"one of its keys ({', '.join(keys)}) is of another kind"


def _expected(key: str) -> set[str]:
    return {"none", "zset" if key.endswith(":index") else "string"}
