"""What a lock without Celery may be told: its name, times and numbers, checked before anything is sent."""

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks.clock import is_seconds
from celery_redislock.locks.store import TEN_YEARS, too_short

__all__ = ["check_store", "check_terms"]

#: More places than anybody counts one by one.
MOST = 1_000_000


def check_store(name: object, store: object, has: str, made_by: str) -> None:
    """Raise :class:`LockOptionError` unless it has what each store has that this function makes.

    By its attribute, so that a store may be wrapped.
    """
    if not hasattr(store, has):
        found = f"{type(store).__module__}.{type(store).__qualname__}"
        problem = f"a {found} is no store for it; give what {made_by}() returns for a URL or a client"
        if hasattr(store, "conf"):
            problem += ", or store_of(app); celery_redislock.Lock(app, name) does so itself"
        raise LockOptionError(repr(name), [problem])


def check_terms(
    name: object, *, ttl: object = 1.0, timeout: object = None, for_: object = 1.0, margin: object = 0.1,
    lock_delay: object = 0.0, least: float = 0.0, **counts: object,
) -> None:  # fmt: skip
    """Raise :class:`LockOptionError`, with all problems, unless a lock can have these terms.

    ``least``: seconds that a ttl is at least. ``counts``: whole numbers from 1 on, by the names of their
    arguments.
    """
    problems = []
    if not isinstance(name, str):
        problems.append(f"the name is {name!r}; give a text that names the resource the lock is for")
    elif not name:
        problems.append("the name is empty; name the resource the lock is for")
    for argument, seconds in (("ttl", ttl), ("for_", for_)):
        if not is_seconds(seconds) or not 0.001 <= seconds <= TEN_YEARS:
            problems.append(
                f"{argument}={seconds!r} is not a number of seconds from 0.001 to {TEN_YEARS:.0f}"
            )
    if is_seconds(ttl) and ttl < least:
        problems.append(too_short("ttl", ttl, least))
    if timeout is not None and not is_seconds(timeout):
        problems.append(f"timeout={timeout!r} is not a number of seconds; None waits for ever, 0 asks once")
    if not is_seconds(margin) or not 0.01 <= margin <= 0.5:
        problems.append(f"margin={margin!r} is not a part of the ttl from 0.01 to 0.5")
    if not is_seconds(lock_delay) or not 0 <= lock_delay <= TEN_YEARS:
        problems.append(f"lock_delay={lock_delay!r} is not a number of seconds from 0 to {TEN_YEARS:.0f}")
    for argument, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST:
            problems.append(f"{argument}={count!r} is not a whole number from 1 to {MOST}")
    if problems:
        raise LockOptionError(repr(name), problems)
