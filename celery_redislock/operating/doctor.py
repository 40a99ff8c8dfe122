"""A check of a set-up: its settings, its lock server, its tasks, and the workers that answer."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from itertools import islice
from typing import Any

from kombu.transport import resolve_transport
from packaging.specifiers import SpecifierSet

from celery_redislock.declaring.declaration import declaration_of, is_unique
from celery_redislock.declaring.server import settings_of
from celery_redislock.declaring.table import DEFAULTS
from celery_redislock.exceptions import LockOptionError, RedisLockError
from celery_redislock.operating.server import LockServer, Trouble
from celery_redislock.publishing import promote
from celery_redislock.store.store import NOBODY, LockStore
from celery_redislock.wire.connection import mask_password

#: Seconds by which a clock may differ before it is told: ages and waiting times are shown that much wrong.
APART = 1.0

#: Seconds within which the broker must have passed on a question to the workers, and their answers.
PATIENCE = 10.0

#: The part of ``maxmemory`` from which on it is told.
NEARLY_FULL = 0.9

#: Lines that are looked at.
LINES = 1000

#: The versions that the tests play, by distribution, and the least version of a lock server.
TESTED = {"celery": ">=5.5,<5.8", "redis": ">=5.2.1,<9"}
LEAST = (6, 2)

#: Keys of libraries whose locks may have no time to live, and what to do about them.
THEIRS = {"celery-singleton": "SINGLETONLOCK_*", "celery-once": "qo_*"}
REMEDY = (
    "delete them when no process uses that library: each refuses its calls for ever if its message is gone"
)

#: What was found: its level and text. A note is no risk by itself; an error means that something cannot work.
_Found = tuple[str, str]

#: What the server says of itself: section and name.
_ASKED = (
    ("server", "redis_version"), ("server", "valkey_version"), ("memory", "maxmemory"),
    ("memory", "used_memory"), ("memory", "maxmemory_policy"), ("persistence", "aof_enabled"),
    ("persistence", "aof_last_write_status"), ("persistence", "rdb_last_bgsave_status"),
    ("replication", "connected_slaves"),
)  # fmt: skip


def findings(server: LockServer) -> Iterator[_Found]:
    """Check a set-up: look at one thing after the other, and yield levels and texts. Changes nothing.

    What takes long comes last: the app's workers are asked. A level is ``ok``, ``note`` (no risk by itself),
    ``warning``, or ``error``: something cannot work.
    """
    app = server.app
    if app is None:
        yield from _of_server(server.store, 0, some_wait=False)
        yield from _of_lines(server)
        return
    # What it learns of the broker it stands beside must not make this process publish for others.
    server = replace(server, store=copy(server.store))
    of_tasks, some_wait = _of_tasks(server)
    settings = settings_of(app)
    if not settings.enabled:
        yield (
            "warning",
            "locking is off here: redislock_enabled, or REDISLOCK_ENABLED in the environment",
        )
    yield from _of_server(server.store, settings.min_replicas, some_wait=some_wait)
    yield from _of_lines(server)
    yield from of_tasks
    yield from _of_visibility(app)
    yield from _of_versions()
    yield from _of_workers(app)


def _of_server(store: LockStore, replicas: int, *, some_wait: bool) -> Iterator[_Found]:
    from celery_redislock.receiving.check import (  # noqa: PLC0415  imports a worker's parts
        problems_of_server,
        problems_of_waiting,
    )

    try:
        store.release("message:", NOBODY)  # changes nothing, and fails where a lock would
        says = _says(store)
        apart = _apart(store)
        problems = problems_of_server(store) + (problems_of_waiting(store) if some_wait else [])
    except RedisLockError as error:
        yield "error", str(error)
        return
    name = "Redis" if says["valkey_version"] is None else "Valkey"
    number = says["valkey_version"] or says["redis_version"] or ""
    known = tuple(map(int, re.findall("[0-9]+", number)[:2]))
    yield "ok", f"{store.server} takes locks, under the prefix {store.prefix}: {name} {number or '?'}"
    if known and known < LEAST:
        yield "error", f"{name} {number} is older than 6.2: update it"
    for problem in problems:
        yield "warning", problem
    yield from _of_memory(says)
    yield from _of_durability(says)
    yield from _of_replicas(says["connected_slaves"], replicas)
    if apart is not None and abs(apart) > APART:
        where = "ahead of" if apart > 0 else "behind"
        text = (
            f"its clock is {abs(apart):.1f} s {where} this machine's: ages are shown that much wrong; "
            "set both by NTP"
        )
        yield "warning", text
    elif apart is not None:
        yield "ok", f"its clock and this machine's are {abs(apart):.1f} s apart"
    yield from _of_others(store)


def of_losses(store: LockStore, replicas: int) -> list[_Found]:
    """Return what is lost when the lock server is short of memory, restarts or fails over.

    ``replicas``: so many confirm a lock.

    Raises as :meth:`LockStore.names`.
    """
    from celery_redislock.receiving.check import problems_of_server  # noqa: PLC0415  as above

    says = _says(store)
    online = says["connected_slaves"]
    found = [("warning", problem) for problem in problems_of_server(store)]
    found += [*_of_durability(says), *_of_replicas(online, replicas)]
    if online == "0" and not replicas:
        found.append(("note", "it has no replica: no lock is granted while it is away"))
    return found


def _says(store: LockStore) -> Mapping[str, str | None]:
    return {name: store.server_says(section, name) for section, name in _ASKED}


def _apart(store: LockStore) -> float | None:
    before = time.time()
    now = store.clock()
    return None if now is None else now - (before + time.time()) / 2


def _of_memory(says: Mapping[str, str | None]) -> Iterator[_Found]:
    policy = says["maxmemory_policy"]
    most = int(says["maxmemory"] or 0)
    used = int(says["used_memory"] or 0)
    if most and used >= NEARLY_FULL * most:
        text = (
            f"{used / most:.0%} of its memory are used: when it is full, no call is accepted any more; "
            "raise maxmemory, or find what fills it (redis-cli --bigkeys)"
        )
        yield "error" if used >= most else "warning", text
    elif policy == "noeviction":
        yield "ok", f"it deletes no lock when it is short of memory, and has used {used / 1e6:.0f} MB"


def _of_durability(says: Mapping[str, str | None]) -> Iterator[_Found]:
    if says["aof_enabled"] == "1":
        yield "ok", "it keeps an append-only file"
    elif says["aof_enabled"] == "0":
        text = (
            "it keeps no append-only file: a restart forgets what came after its last snapshot, or all if it "
            "makes none, locks of running tasks and what waits in line too; appendonly yes keeps them"
        )
        yield "note", text
    for name, what in (("rdb_last_bgsave_status", "snapshot"), ("aof_last_write_status", "write to disk")):
        if says[name] not in {None, "ok"}:
            yield "warning", f"its last {what} failed, after which it may refuse writes: look into its log"


def _of_replicas(online: str | None, wanted: int) -> Iterator[_Found]:
    if online is None or (online == "0" and wanted == 0):
        return
    if wanted == 0:
        text = (
            f"it has {online} replica{'s' * (online != '1')}: a failover may forget its latest locks, unless "
            "redislock_min_replicas waits for them"
        )
        yield "note", text
    elif int(online) < wanted:
        text = (
            f"redislock_min_replicas is {wanted}, and {online} replicas are online: no lock is granted; "
            "bring them back, or lower it"
        )
        yield "error", text
    else:
        yield "ok", f"{online} replicas are online, and redislock_min_replicas is {wanted}"


def _of_others(store: LockStore) -> Iterator[_Found]:
    """Look for what is there beside the locks of this app."""
    try:
        for prefix in store.other_prefixes():
            text = (
                f"locks are held there under the prefix {prefix!r} as well: if that is this app, its "
                "processes do not exclude each other; give all of them one redislock_prefix"
            )
            yield "warning", text
        for library, pattern in THEIRS.items():
            if number := len(store.others(pattern, endless=True)):
                text = f"{number} locks of {library} ({pattern}) have no time to live; {REMEDY}"
                yield "note", text
    except RedisLockError as error:  # a user who may not look
        yield "note", f"locks of other libraries, or under other prefixes could not be looked for: {error}"


def _of_lines(server: LockServer) -> Iterator[_Found]:
    """Look for lines of which no worker can publish the first."""
    with suppress(RedisLockError):  # it is told already
        lines = islice(server.places(last=0), LINES)
        for key, home in server.unserved(lines).items():
            yield "error", server.told_of_unserved(key, home)


def _of_tasks(server: LockServer) -> tuple[list[_Found], bool]:
    """Return what is wrong with the tasks, and whether some of them wait in line."""
    from celery_redislock.receiving.check import problems_of_tasks  # noqa: PLC0415  as above

    app = server.app
    try:
        tasks = {name: task for name, task in server.tasks().items() if is_unique(task)}
    except Trouble as trouble:
        return [("error", trouble.message)], False
    with suppress(Exception):  # an unknown broker is told by what asks the workers
        promote.install(app, server.store)  # so that the store knows which broker it stands beside
    problems, _, some_wait = problems_of_tasks(app)
    found: list[_Found] = []
    refused = set()
    for name, task in tasks.items():
        try:
            found += _of_results(app, name, task)
        except LockOptionError as error:
            refused.add(str(error))
    found += [("error" if text in refused else "warning", text) for text in dict.fromkeys(problems)]
    if not found:
        found = [("ok", f"{len(tasks)} unique tasks, and nothing is wrong with their options")]
    return found, some_wait


def _of_results(app: Any, name: str, task: Any) -> Iterator[_Found]:
    period = declaration_of(task).options.lock_period
    expires = app.conf.result_expires
    kept = expires.total_seconds() if isinstance(expires, timedelta) else expires
    if period and kept and period > kept and app.conf.result_backend and not task.ignore_result:
        text = (
            f"{name}: a result is kept for {kept:g} s (result_expires), its lock_period is {period:g} s: "
            "get() of a call that is skipped later waits for ever; raise result_expires, or ignore results"
        )
        yield "warning", text


def _of_visibility(app: Any) -> Iterator[_Found]:
    """Look for plain tasks that the broker delivers again while they run."""
    scheme = str(app.conf.broker_url or "").partition("://")[0]
    transport = ""
    with suppress(Exception):  # an unknown one is told by what asks the workers
        transport = resolve_transport(scheme).__module__
    timeout = (app.conf.broker_transport_options or {}).get("visibility_timeout", 3600)
    longer = [
        task.name
        for task in app.tasks.values()
        if task.acks_late and not is_unique(task) and not task.name.startswith("celery.")
        if (task.time_limit or app.conf.task_time_limit or 0) > timeout
    ]
    if longer and ("redis" in transport or "SQS" in transport):
        text = (
            f"the broker delivers a message again after {timeout:g} s (visibility_timeout), and the time "
            f"limit of these plain tasks is longer: {', '.join(longer[:5])}. Raise it, or make them unique: "
            "then a copy waits, and does nothing"
        )
        yield "note", text


def _of_workers(app: Any) -> Iterator[_Found]:
    from celery_redislock.receiving.whereabouts import within  # noqa: PLC0415  as above

    ask = app.control.inspect(timeout=1.0).conf
    try:
        answers: Mapping[str, Mapping[str, Any]] = within(PATIENCE, ask) or {}
    except Exception as error:  # noqa: BLE001  of any transport
        yield "error", f"the broker cannot be asked: {type(error).__name__}: {error}"
        return
    if not answers:
        yield "warning", "no worker answers: none runs, or its remote control is switched off"
    for worker, conf in answers.items():
        differing = [*_differing(app, conf)]
        for text in differing:
            yield "error", f"{worker} has {text}: its tasks and this program's do not exclude each other"
        if not differing:
            yield "ok", f"{worker} keeps its locks where this program does"


def _differing(app: Any, theirs: Mapping[str, Any]) -> Iterator[str]:
    for name in ("redislock_url", "redislock_prefix", "redislock_enabled"):
        here = app.conf.get(name)
        named = here, theirs.get(name)
        if name == "redislock_url" and not all(one is None or "://" in str(one) for one in named):
            continue  # a client or a callable, whose text tells nothing
        here, there = (_shown(name, value) for value in named)
        if here != there:
            yield f"{name} = {there}, and this program has {here}"


def _shown(name: str, value: object) -> str:
    value = DEFAULTS[name] if value is None else value
    return repr(mask_password(value) if isinstance(value, str) else value)


def _of_versions() -> Iterator[_Found]:
    for name, tested in TESTED.items():
        number = version(name)
        if SpecifierSet(tested).contains(number, prereleases=True):
            yield "ok", f"{name} {number}"
        else:
            yield "warning", f"{name} {number} is not tested with this package: use {tested}"
