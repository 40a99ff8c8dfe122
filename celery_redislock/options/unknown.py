"""Names that look like ours and are not: each with the nearest that exists."""

from collections.abc import Collection, Iterable

from celery_redislock.options.table import SETTING_ROWS, TASK_ROWS

__all__ = ["unknown_attributes", "unknown_settings"]

_METHODS = ("lock_for",)


def unknown_settings(names: Iterable[str]) -> list[str]:
    """Return a problem for each of *names* that begins with ``redislock_`` and does not exist.

    A name in capitals is one too: Celery passes over it in silence. With a
    namespace in front (``CELERY_REDISLOCK_TTL``, as Django has it) it is right.
    """
    problems = []
    for name in names:
        namespace, mark, rest = name.lower().partition("redislock_")
        if not mark or (namespace and not (name.isupper() and namespace.endswith("_"))):
            continue
        setting = mark + rest
        if setting not in SETTING_ROWS:
            problems.append(f"{name} is no setting; {_hint(setting, SETTING_ROWS, 'redislock_')}")
        elif not namespace and name != setting:
            problems.append(f"{name} is not read in capitals; write {setting}")
    return problems


def unknown_attributes(names: Iterable[str], *, methods: Collection[str] = _METHODS) -> list[str]:
    """Return a problem for each of *names* that begins like an option and does not exist.

    Args:
        names: of attributes a task's class or its decorator brings, or of keywords of a call.
        methods: names with such a beginning that a task has anyway.
    """
    return [
        f"{name} is no option; {_hint(name, TASK_ROWS, 'lock_')}"
        for name in names
        if name.startswith(("lock_", "on_lock_", "on_conflict"))
        and name not in TASK_ROWS
        and name not in methods
    ]


def _hint(name: str, known: Iterable[str], beginning: str) -> str:
    stems = {_stem(one, beginning): one for one in known}
    from difflib import get_close_matches  # noqa: PLC0415  only for an error

    nearest = get_close_matches(_stem(name, beginning), stems, n=1)
    if nearest:
        return f"did you mean {stems[nearest[0]]}?"
    return f"known are {', '.join(sorted(one for one in stems.values() if one.startswith(beginning)))}"


def _stem(name: str, beginning: str) -> str:
    """Leave out what all names share, which would make any two of them alike."""
    return name.removeprefix(beginning).removeprefix("lock_")
