"""What a lock without Celery may be told: its name, times and numbers, checked before anything is sent."""

import re
from collections.abc import Mapping
from typing import Any

from celery_redislock.exceptions import LockOptionError
from celery_redislock.store.store import MOST_HOLDERS, TEN_YEARS
from celery_redislock.wire.clock import is_seconds

#: What other libraries call the terms of a lock, and what they are here.
_OTHERS = {
    "timeout": "ttl= says how long the server keeps it (redis-py's timeout), wait= how long a block waits",
    "blocking_timeout": "wait= says how long a block waits",
    "blocking": "acquire(0) asks once and does not wait",
    "expire": "ttl= says how long the server keeps it",
    "thread_local": "each thread holds for itself; Lock(..., token=lock.token) continues a hold elsewhere",
}

#: Options that ``connect`` had, or that redis-py has, and what there is instead.
OF_CONNECT = {
    "sync": "set appendfsync always on the lock server: it answers only what is on its disk",
    "through": "give a URL, or a redis.Redis, whose options are taken",
    "timeout": "socket_timeout= says how long one answer may take",
}

#: Half of a character: no bytes of UTF-8 stand for it.
_UNSENDABLE = re.compile("[\ud800-\udfff]")

#: What ends the owner's name in a token is a nonce, or longer: a delivery tag.
_TOKEN = re.compile("[^\0\ud800-\udfff]*/[A-Za-z0-9_-]{12,}")


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


def check_lines(name: object, store: Any) -> None:
    """Raise :class:`LockOptionError` where a store keeps no lines: a quorum has exclusive locks only."""
    if not store.keeps_lines:
        problem = f"{store.server} is a quorum of servers, which keeps a Lock only; give one server's URL"
        raise LockOptionError(repr(name), [problem])


def check_connect(where: str, prefix: object, socket_timeout: object) -> None:
    """Raise :class:`LockOptionError` unless keys can begin so, and a server can be waited for so long."""
    problems = []
    if not isinstance(prefix, str) or not prefix.isprintable() or not prefix or {*prefix} & {*" {}"}:
        problems.append(f"prefix={prefix!r} is not a text without braces, white space and control characters")
    if not is_seconds(socket_timeout) or not 0.001 <= socket_timeout < float("inf"):
        problems.append(f"socket_timeout={socket_timeout!r} is not a number of seconds from 0.001 up")
    if problems:
        raise LockOptionError(where, problems)


def check_terms(  # noqa: PLR0912  one for each term
    name: object, *, ttl: object = 1.0, timeout: object = None, wait: object = None, owner: object = None,
    by: object = None, for_: object = 1.0, margin: object = 0.1, lock_delay: object = 0.0,
    on_lost: object = None, on_state: object = None, **counts: object,
) -> None:  # fmt: skip
    """Raise :class:`LockOptionError`, with all problems, unless a lock can have these terms.

    ``counts``: whole numbers from 1 to 10,000, by the names of
    their arguments.
    """
    problems = []
    if not isinstance(name, str) or not name:
        what = "empty" if name == "" else repr(name)
        problems.append(f"the name is {what}; give a text that names the resource the lock is for")
    for argument, seconds, first in ("ttl", ttl, 0.001), ("for_", for_, 0.001), ("lock_delay", lock_delay, 0):
        if not is_seconds(seconds) or not first <= seconds <= TEN_YEARS:
            problems.append(
                f"{argument}={seconds!r} is not a number of seconds from {first:g} to {TEN_YEARS:.0f}"
            )
    for argument, seconds in ("timeout", timeout), ("wait", wait):
        if seconds is not None and not is_seconds(seconds):
            what = "is not a number of seconds; None waits for ever, 0 asks once"
            problems.append(f"{argument}={seconds!r} {what}")
    for argument, text in ("owner", owner), ("by", by):
        if text is not None and (not isinstance(text, str) or _UNSENDABLE.search(text)):
            what = "is no text that can be sent; name who it is, or leave it out"
            problems.append(f"{argument}={text!r} {what}")
    if not is_seconds(margin) or not 0.01 <= margin <= 0.5:
        problems.append(f"margin={margin!r} is not a part of the ttl from 0.01 to 0.5")
    for argument, call in ("on_lost", on_lost), ("on_state", on_state):
        if call is not None and (not callable(call) or is_async(call)):
            what = "is a coroutine function, and nobody awaits it" if callable(call) else "cannot be called"
            more = ", or in asyncio 'cancel'" if argument == "on_lost" else ""
            problems.append(f"{argument}={call!r} {what}; give a function{more}")
    for argument, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_HOLDERS:
            problems.append(f"{argument}={count!r} is not a whole number from 1 to {MOST_HOLDERS}")
    if problems:
        raise LockOptionError(repr(name), problems)


def is_async(call: Any) -> bool:
    """Whether calling it makes a coroutine; a ``functools.partial`` and an object with ``__call__`` too."""
    from inspect import iscoroutinefunction  # noqa: PLC0415  only for callbacks

    call = getattr(call, "func", call)
    return iscoroutinefunction(call) or iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004


def check_token(name: object, token: object) -> None:
    """Raise :class:`LockOptionError` unless it has the form of a hold's token."""
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        problem = f"token={token!r} is none that this package makes; give what the .token of the hold was"
        raise LockOptionError(repr(name), [problem])


def refuse_others(where: str, others: Mapping[str, object], instead: Mapping[str, str] = _OTHERS) -> None:
    """Raise :class:`LockOptionError` for options that it does not have, and say what to write instead."""
    problems = [
        f"{other}={value!r} is no option here: {instead.get(other, 'leave it out')}"
        for other, value in others.items()
    ]
    if problems:
        raise LockOptionError(where, problems)
