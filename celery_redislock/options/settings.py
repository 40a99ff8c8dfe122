"""Settings of the app: read, checked, frozen; and the switch in the environment."""

from collections.abc import Mapping
from dataclasses import dataclass

from celery_redislock.exceptions import LockOptionError
from celery_redislock.options.reading import Setting, read_value
from celery_redislock.options.table import DEFAULTS, INHERIT, SETTING_ROWS, said

__all__ = ["ENABLED_VARIABLE", "LockSettings", "read_settings"]

#: The environment variable that switches locking off, or on against the setting.
ENABLED_VARIABLE = "REDISLOCK_ENABLED"

_SWITCH = {
    "0": False,
    "false": False,
    "no": False,
    "off": False,
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSettings:
    """What holds for the whole app: the settings without ``redislock_``. Times are float seconds.

    Attributes:
        url: the lock server; ``None`` for the broker's Redis, else the result backend's.
    """

    url: str | None = DEFAULTS["redislock_url"]
    prefix: str = DEFAULTS["redislock_prefix"]
    socket_timeout: float = DEFAULTS["redislock_socket_timeout"]
    start_timeout: float = DEFAULTS["redislock_start_timeout"]
    min_replicas: int = DEFAULTS["redislock_min_replicas"]
    fence: str = DEFAULTS["redislock_fence"]
    eager: bool = DEFAULTS["redislock_eager"]
    enabled: bool = DEFAULTS["redislock_enabled"]
    check: str = DEFAULTS["redislock_check"]

    def __repr__(self) -> str:
        """Leave the URL out: it may hold a password."""
        return f"LockSettings(prefix={self.prefix!r}, enabled={self.enabled!r})"


def read_settings(where: str, setting: Setting, environ: Mapping[str, str]) -> LockSettings:
    """Read the settings that are no task's. Called once per app, in publisher and worker.

    Args:
        where: the app's name.
        setting: ``app.conf.get``.
        environ: ``os.environ``; ``REDISLOCK_ENABLED`` wins over the setting
            (``0``, ``false``, ``no``, ``off`` / ``1``, ``true``, ``yes``, ``on``;
            empty is not set).

    Raises:
        LockOptionError: with every problem there is.
    """
    problems: list[str] = []
    values: dict[str, object] = {}
    for name, row in SETTING_ROWS.items():
        if row.attribute is None:
            value = setting(name, INHERIT)
            read = read_value(row, name, value, problems) if said(row, value) else row.default
            values[name.removeprefix("redislock_")] = read
    text = environ.get(ENABLED_VARIABLE, "").strip().lower()
    if text in _SWITCH:
        values["enabled"] = _SWITCH[text]
    elif text:
        problems.append(
            f"{ENABLED_VARIABLE} is {text!r} in the environment; give one of {', '.join(_SWITCH)}"
        )
    if problems:
        raise LockOptionError(where, problems)
    return LockSettings(**values)  # type: ignore[arg-type]  # the kinds check the types
