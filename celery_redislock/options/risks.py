"""Options and settings that can be honoured, and do not do together what their author expects."""

from celery_redislock.options.reading import LockOptions
from celery_redislock.options.settings import LockSettings

__all__ = ["risks"]

#: Renewed every third, a lease outlives an unanswered call, which takes two socket timeouts, if it is this
#: many of them long. A little less, for the rounding of a timeout that is a third of it.
_TIMEOUTS = 2.999


def risks(options: LockOptions, settings: LockSettings, *, time_limit: float | None) -> list[str]:
    """Return what a worker tells about a task when it starts, each with the values and a remedy.

    Args:
        options: of the task.
        settings: of the app.
        time_limit: the task's hard time limit in seconds, if it has one.
    """
    found: list[str] = []
    if not options.holds_while_running:
        return found
    if options.lock_ttl < _TIMEOUTS * settings.socket_timeout:
        found.append(
            f"lock_ttl ({options.lock_ttl:g}) is shorter than three times redislock_socket_timeout "
            f"({settings.socket_timeout:g}): one renewal without an answer loses the lock; "
            "raise the former, or lower the latter"
        )
    longest = options.lock_max_hold
    if longest is not None and time_limit and longest < time_limit and options.on_lock_lost == "log":
        found.append(
            f"lock_max_hold ({longest:g}) is shorter than the hard time limit ({time_limit:g}): a run may go "
            "on for longer than it holds its lock; raise it, or set on_lock_lost='terminate'"
        )
    return found
