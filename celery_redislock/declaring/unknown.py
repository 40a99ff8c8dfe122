"""Names that are meant for this package and mean nothing to it: each with what to write instead."""

import re
import sys
from collections.abc import Collection, Iterable, Mapping

from celery_redislock.declaring.table import GROUPS, SETTING_ROWS, TASK_ROWS

#: An option of an entry of the schedule, which beat reads: none of a call.
OF_ENTRIES = "redislock_catchup"

#: Whose option it is, and who takes it as it is.
_SINGLETON = "celery-singleton's (celery_redislock.compat.celery_singleton takes it); write"
_ONCE = "celery-once's (celery_redislock.compat.celery_once takes it); write"
_ONCE_TASK = "celery-once-task's; write lock="

#: Options of other libraries, and of none, with what to write here.
OTHER_LIBRARIES: Mapping[str, str] = {
    "unique_on": f"{_SINGLETON} lock_key=('name', …), the parameters that count",
    "raise_on_duplicate": f"{_SINGLETON} on_conflict='raise' for True, and nothing for False: then the "
    "holder's result is returned",
    "lock_expiry": f"{_SINGLETON} lock_queue_ttl=seconds; a run renews its lock (lock_ttl)",
    "once": f"{_ONCE} lock_key=('name', …) for its keys, on_conflict='raise' unless graceful, "
    "lock='until_executing' for unlock_before_run, lock_queue_ttl=seconds for timeout",
    "queue_lock": f"{_ONCE_TASK}'until_and_while_executing' for True, and for False lock='while_executing', "
    "on_conflict='skip'",
    "running_lock": f"{_ONCE_TASK}'until_and_while_executing' for True, and 'until_executing' for False",
    "lock_order": "no option; for the order of publishing write on_conflict='wait' in a scope that claims at "
    "publish, such as lock='until_executed': a refused call waits in line from its publish on",
    "lock_collect": "no option; for all calls in one run, push what came to a list, and let a task with "
    "on_conflict='coalesce' drain it (docs/flow.md#collect)",
    "heimdall": "celery-heimdall's; write lock_key='name:{parameter}' for its key, on_conflict='raise' for "
    "unique_raises, lock_queue_ttl=seconds for unique_timeout",
}

#: Options, settings and a scheme of URLs of ours that were taken out, with what to write.
GONE: Mapping[str, str] = {
    "django-cache": "write redislock_url = CACHES['default']['LOCATION']",
    "lock_wait_queue": "what has waited goes back to its own queue; for another, set task_routes",
    "redislock_sync": "set appendfsync always on the lock server: it answers only what is on its disk",
    "redislock_park_sync": "set appendfsync always on the lock server: it answers only what is on its disk",
    "redislock_through": "name the lock server by its URL; tests take memory_locks()",
    "redislock_wait_queue": "what has waited goes back to its own queue; for another, set task_routes",
}

#: Settings of libraries that were moved away from: the shim that reads them, and what to write here.
_LEFT_OVER: Mapping[str, tuple[str, str]] = {
    "once": ("celery_once", "redislock_url for its url"),
    "singleton_backend_url": ("celery_singleton", "redislock_url"),
    "singleton_key_prefix": ("celery_singleton", "redislock_prefix"),
    "singleton_raise_on_duplicate": ("celery_singleton", "redislock_on_conflict = 'raise'"),
    "singleton_lock_expiry": ("celery_singleton", "redislock_queue_ttl"),
}

_BEGINNINGS = ("lock_", "on_lock_", "on_conflict", "redislock_")
_KNOWN_OPTIONS = "; ".join(
    f"{group}: {', '.join(row.name for row in rows if row.attribute)}" for group, rows in GROUPS.items()
)
_NAMES = TASK_ROWS.keys() | OTHER_LIBRARIES.keys()


def is_meant_for_us(name: str) -> bool:
    """Whether a keyword or attribute of this name is an option, or was meant for one."""
    return name in _NAMES or name.startswith(_BEGINNINGS)


def unknown_options(names: Iterable[str]) -> list[str]:
    """Return a problem for each of *names* that is meant for an option and is none."""
    return [
        f"{name} is {OTHER_LIBRARIES[name]}" if name in OTHER_LIBRARIES else f"{name} is no {_option(name)}"
        for name in names
        if name not in TASK_ROWS and is_meant_for_us(name)
    ]


def unknown_settings(names: Iterable[str]) -> list[str]:
    """Return a problem for each of *names* that is meant for a setting of ours and is none.

    A setting begins with ``redislock_``; in capitals with a namespace in front
    (``CELERY_REDISLOCK_TTL``) Celery reads it as ``redislock_ttl``.
    """
    return [
        f"{name} is no setting; {_as_written_in(name, GONE.get(setting) or _nearest(setting, SETTING_ROWS))}"
        for name in names
        if (setting := _setting(name)) is not None and setting not in SETTING_ROWS
    ]


def left_over_settings(names: Iterable[str]) -> list[str]:
    """Return a sentence for each setting of another library that nothing reads."""
    return [
        f"{name} is a setting of {library.replace('_', '-')}, which nothing reads here; write {instead}, and "
        "delete it"
        for name in names
        for library, instead in [_LEFT_OVER.get(name.lower().removeprefix("celery_"), ("", ""))]
        if library and f"celery_redislock.compat.{library}" not in sys.modules
    ]


def _as_written_in(name: str, hint: str) -> str:
    """Return a hint with its settings in capitals and the namespace, where this name has one."""
    namespace, mark, _ = name.partition("REDISLOCK_")
    if not mark or not namespace:
        return hint
    return re.sub(r"redislock_\w+", lambda found: namespace + found[0].upper(), hint)


def _setting(name: str) -> str | None:
    namespace, mark, rest = name.partition("REDISLOCK_")
    if mark and namespace.endswith("_") and name.isupper():
        return f"redislock_{rest.lower()}"
    return name if name.lower().startswith("redislock_") else None


def _option(name: str) -> str:
    setting = SETTING_ROWS.get(name) or SETTING_ROWS.get(f"redis{name}")
    if setting is not None and setting.attribute is None:
        return f"option of a task; set {setting.setting} on the app"
    return f"option; {GONE.get(name) or _nearest(name, [*TASK_ROWS, OF_ENTRIES], _KNOWN_OPTIONS)}"


def _nearest(name: str, known: Collection[str], told: str = "") -> str:
    from difflib import get_close_matches  # noqa: PLC0415  only for an error

    stems = {_stem(one): one for one in known}
    nearest = get_close_matches(_stem(name), stems, n=1)
    return (
        f"did you mean {stems[nearest[0]]}?" if nearest else f"known are {told or ', '.join(sorted(known))}"
    )


def _stem(name: str) -> str:
    """Leave out what all names share, which would make any two of them alike."""
    return name.lower().removeprefix("redislock_").removeprefix("lock_")
