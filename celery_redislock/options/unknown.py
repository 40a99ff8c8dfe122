"""Names that look like ours and are not: each with the nearest that exists."""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from celery_redislock.options.slips import is_slip
from celery_redislock.options.table import SETTING_ROWS, TASK_ROWS, Row

__all__ = ["unknown_attributes", "unknown_settings"]

_METHODS = ("lock_for",)
_NAMESPACE = "CELERY_"


def unknown_settings(names: Iterable[str]) -> list[str]:
    """Return a problem for each of *names* that is meant for a setting of ours and is none.

    That is what begins with ``redislock_`` and does not exist, what is a slip of
    the pen away from a setting, and a task option's name, where the setting has
    another. A name in capitals is one too: Celery passes over it in silence. With a
    namespace in front (``CELERY_REDISLOCK_TTL``, as Django has it) it is right.
    """
    return [problem for name in names if (problem := _setting_problem(name)) is not None]


def unknown_attributes(names: Iterable[str], *, methods: Collection[str] = _METHODS) -> list[str]:
    """Return a problem for each of *names* that is meant for an option and is none.

    That is what begins like an option and does not exist, what is a slip of the
    pen away from one, and a setting's name, where the option has another.

    Args:
        names: of attributes a task's class or its decorator brings, or of keywords of a call.
        methods: names with such a beginning that a task has anyway.
    """
    return [
        problem
        for name in names
        if name not in TASK_ROWS and name not in methods and (problem := _attribute_problem(name)) is not None
    ]


def _setting_problem(name: str) -> str | None:
    namespace, mark, rest = name.lower().partition("redislock_")
    if mark and (not namespace or (name.isupper() and namespace.endswith("_"))):
        setting = mark + rest
        if setting not in SETTING_ROWS:
            return f"{name} is no setting; {_hint(setting, SETTING_ROWS, 'redislock_')}"
        if not namespace and name != setting:
            return f"{name} is not read in capitals; write {setting}"
        return None
    # In capitals and without Celery's namespace it is somebody else's: Django's settings are all of them.
    is_namespaced = name.isupper() and name.startswith(_NAMESPACE)
    meant = _meant_setting(name.removeprefix(_NAMESPACE).lower() if is_namespaced else name)
    if meant is None:
        return None
    return f"{name} is no setting; did you mean {_NAMESPACE + meant.upper() if is_namespaced else meant}?"


def _meant_setting(name: str) -> str | None:
    row = TASK_ROWS.get(name)
    if row is not None:
        # A module may well have a "lock" of its own.
        return None if name == "lock" else row.setting
    return next((setting for setting in SETTING_ROWS if is_slip(name, setting)), None)


@lru_cache(maxsize=1000)
def _attribute_problem(name: str) -> str | None:
    if name.startswith("redislock_"):
        row = SETTING_ROWS.get(name)
        if row is not None and row.attribute is None:
            return f"{name} is no option of a task; set it on the app"
        hint = f"did you mean {row.attribute}?" if row is not None else _hint(name, TASK_ROWS, "redislock_")
        return f"{name} is no option; {hint}"
    setting = SETTING_ROWS.get("redis" + name) if name.startswith("lock_") else None
    if setting is not None and setting.attribute is None:
        return f"{name} is no option of a task; set redis{name} on the app"
    if name.startswith(("lock_", "on_lock_", "on_conflict")):
        return f"{name} is no option; {_hint(name, TASK_ROWS, 'lock_')}"
    # "lock" is too short a word to tell a slip from somebody's own attribute.
    meant = next((option for option in TASK_ROWS if option != "lock" and is_slip(name, option)), None)
    return None if meant is None else f"{name} is no option; did you mean {meant}?"


def _hint(name: str, known: Mapping[str, Row], beginning: str) -> str:
    stems = {_stem(one, beginning): one for one in known}
    from difflib import get_close_matches  # noqa: PLC0415  only for an error

    nearest = get_close_matches(_stem(name, beginning), stems, n=1)
    if nearest:
        return f"did you mean {stems[nearest[0]]}?"
    return f"known are {', '.join(sorted(one for one, row in known.items() if not row.is_planned))}"


def _stem(name: str, beginning: str) -> str:
    """Leave out what all names share, which would make any two of them alike."""
    return name.removeprefix(beginning).removeprefix("lock_")
