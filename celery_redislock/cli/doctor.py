"""The command that checks a set-up: ``doctor``."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import celery
import click
from kombu.transport import resolve_transport
from packaging.version import Version

from celery_redislock.cli import output
from celery_redislock.cli.subject import LockServer, as_json_option
from celery_redislock.declaring.declaration import declaration_of, is_unique
from celery_redislock.exceptions import LockOptionError, RedisLockError
from celery_redislock.locks.connection import mask_password
from celery_redislock.locks.store import NOBODY, LockStore

#: Seconds by which a clock may differ before it is told: ages and waiting times are shown that much wrong.
APART = 1.0

#: The part of ``maxmemory`` from which on it is told.
NEARLY_FULL = 0.9

#: Celery's minor versions that the tests play, and the least version of a lock server.
TESTED = ("5.5", "5.6", "5.7")
LEAST = Version("6.2")

#: What was found: its level and text. A note is no risk by itself; an error means that something cannot work.
_Found = tuple[str, str]

#: Exit statuses, by the worst level that was found.
_STATUS = {"ok": 0, "note": 0, "warning": 1, "error": 2}

#: What the server says of itself: section and name.
_ASKED = (
    ("server", "redis_version"), ("server", "valkey_version"), ("memory", "maxmemory"),
    ("memory", "used_memory"), ("memory", "maxmemory_policy"), ("persistence", "aof_enabled"),
    ("persistence", "rdb_last_bgsave_status"), ("replication", "connected_slaves"),
)  # fmt: skip


@click.command()
@as_json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check the settings, the lock server, the tasks, and the workers that answer.

    A worker's checks at its start; and what it cannot see: memory, replicas, the clocks, other prefixes on
    the server, workers with other settings, results that expire before a period, versions that nobody tested.
    Nothing is changed. Without an app only the server is looked at.

    Exit status: 0 all is well, 1 something is at risk, 2 something cannot work.
    """
    server = LockServer.of(ctx)
    found = [*_of_server(server.store), *(_of_app(server) if server.app is not None else ())]
    if as_json:
        findings = [{"level": level, "text": text} for level, text in found]
        output.write_json({"server": server.store.server, "findings": findings})
    else:
        for level, text in found:
            output.say(f"{level:<9}{text}")
    ctx.exit(max(_STATUS[level] for level, _ in found))


def _of_server(store: LockStore) -> Iterator[_Found]:
    try:
        store.release("message:", NOBODY)  # changes nothing, and fails where a lock would
        says = {name: store.server_says(section, name) for section, name in _ASKED}
        apart = _apart(store)
    except RedisLockError as error:
        yield "error", str(error)
        return
    name = "Redis" if says["valkey_version"] is None else "Valkey"
    number = says["valkey_version"] or says["redis_version"]
    yield "ok", f"{store.server} takes locks, under the prefix {store.prefix}: {name} {number or '?'}"
    if number and Version(number) < LEAST:
        yield "error", f"{name} {number} is older than {LEAST}: update it"
    yield from _of_memory(says)
    yield from _of_durability(says)
    if apart is not None and abs(apart) > APART:
        where = "ahead of" if apart > 0 else "behind"
        yield (
            "warning",
            f"its clock is {abs(apart):.1f} s {where} this machine's: ages are that much off",
        )
    elif apart is not None:
        yield "ok", f"its clock and this machine's are {abs(apart):.1f} s apart"
    with suppress(RedisLockError):  # a user who may not look
        for prefix in store.other_prefixes():
            text = (
                f"locks are held there under the prefix {prefix!r} as well: if that is this app, its "
                "processes do not exclude each other; give all of them one redislock_prefix"
            )
            yield "warning", text


def _apart(store: LockStore) -> float | None:
    before = time.time()
    now = store.clock()
    return None if now is None else now - (before + time.time()) / 2


def _of_memory(says: Mapping[str, str | None]) -> Iterator[_Found]:
    policy = says["maxmemory_policy"] or "noeviction"
    most = int(says["maxmemory"] or 0)
    used = int(says["used_memory"] or 0)
    if policy != "noeviction":
        yield "warning", f"maxmemory-policy is {policy}: short of memory it deletes locks; set noeviction"
    if most and used >= NEARLY_FULL * most:
        text = (
            f"{used / most:.0%} of its memory are used: when it is full, no call is accepted any more; "
            "raise maxmemory, or find what fills it (redis-cli --bigkeys)"
        )
        yield "warning", text
    elif policy == "noeviction":
        yield "ok", f"it deletes no lock when it is short of memory, and has used {used / 1e6:.0f} MB"


def _of_durability(says: Mapping[str, str | None]) -> Iterator[_Found]:
    if says["aof_enabled"] == "1":
        yield "ok", "it keeps an append-only file"
    else:
        text = (
            "it keeps no append-only file: a restart forgets what came after its last snapshot, locks of "
            "running tasks and what waits in line too; appendonly yes keeps them"
        )
        yield "note", text
    if says["rdb_last_bgsave_status"] not in {None, "ok"}:
        yield "warning", "its last snapshot failed, after which Redis may refuse writes: look into its log"
    if says["connected_slaves"] not in {None, "0"}:
        text = (
            f"it has {says['connected_slaves']} replicas: a failover may forget its latest locks, unless "
            "redislock_min_replicas waits for them"
        )
        yield "note", text


def _of_app(server: LockServer) -> Iterator[_Found]:
    from celery_redislock.receiving.check import problems_of_app  # noqa: PLC0415  imports a worker's parts

    app = server.app
    tasks = {name: task for name, task in server.tasks().items() if is_unique(task)}
    problems = problems_of_app(app)
    for problem in dict.fromkeys(problems):
        yield "warning", problem
    if not problems:
        yield "ok", f"{len(tasks)} unique tasks, and nothing is wrong with their options"
    for name, task in tasks.items():
        with suppress(LockOptionError):  # told above
            yield from _of_results(app, name, task)
    yield from _of_visibility(app)
    yield from _of_workers(app)
    versions = f"Celery {celery.__version__}, redis-py {version('redis')}"
    if celery.__version__.startswith(TESTED):
        yield "ok", versions
    else:
        yield "note", f"{versions}: tests are run with Celery {', '.join(TESTED)}"


def _of_results(app: Any, name: str, task: Any) -> Iterator[_Found]:
    period = declaration_of(task).options.lock_period
    expires = app.conf.result_expires
    kept = expires.total_seconds() if isinstance(expires, timedelta) else expires
    if period and kept and period > kept and not task.ignore_result:
        text = (
            f"{name}: a result is kept for {kept:g} s (result_expires), its lock_period is {period:g} s: "
            "get() of a call that is skipped after that waits for ever"
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
        if task.acks_late and not is_unique(task)
        if (task.time_limit or app.conf.task_time_limit or 0) > timeout
    ]
    if longer and ("redis" in transport or "SQS" in transport):
        text = (
            f"the broker delivers a message again after {timeout:g} s (visibility_timeout), and the time "
            f"limit of these plain tasks is longer: {', '.join(longer[:5])}. Raise it, or make them unique: "
            "then a copy waits, and does nothing"
        )
        yield "warning", text


def _of_workers(app: Any) -> Iterator[_Found]:
    try:
        answers: Mapping[str, Mapping[str, Any]] = app.control.inspect(timeout=1.0).conf() or {}
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
        here, there = map(_shown, (app.conf.get(name), theirs.get(name)))
        if here != there:
            yield f"{name} = {there!r}, and this program has {here!r}"


def _shown(value: object) -> str | None:
    return None if value is None else mask_password(str(value))


COMMANDS: Mapping[str, click.Command] = {"doctor": doctor}
