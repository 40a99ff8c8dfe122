"""A process that publishes until it is killed: ``python -m tools.attack.publisher SEED``."""

import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from celery import chain, chord, group

from celery_redislock.wire.clock import boottime
from tools.attack.draw import ENDINGS, KEYS, draw_call
from tools.attack.shop import app

SECONDS = (0.0, 0.0, 0.1, 0.3, 0.6, 1.5)
#: Of hot keys: bodies; calls that are on their way at once, of which killed ones are no longer; a pause, and
#: the longest one.
SHORT, ENOUGH, BUSY, MOST_BUSY = (0.0, 0.0, 0.005, 0.01), 150, 0.01, 0.3
#: Task ids.
IDS: tuple[Callable[[int], str], ...] = (
    *(lambda _: uuid4().hex,) * 10, *(lambda number: f"fixed-{number % 5}",) * 2,
    lambda number: f"n\0l {number}", lambda number: f"s/a\x1b[31m{number}",
)  # fmt: skip
WORKFLOWS: tuple[Callable[[list[Any]], Any], ...] = (
    chain, group, lambda signatures: chord(signatures[:-1], signatures[-1]),
)  # fmt: skip


def publish(chance: random.Random) -> None:
    """Publish one call, or a workflow of three."""
    tasks = [task for name, task in sorted(app.tasks.items()) if name.startswith("attack.")]
    size, calls, signatures = chance.choice([1] * 10 + [3]), [], []
    keys = 20 * KEYS if app.is_restoring else KEYS
    for _ in range(size):
        task = chance.choice(tasks)
        options = draw_call(chance, task.options_of_round, restoring=app.is_restoring)
        number = int(app.journal.redis.incr("attack:numbers"))
        task_id = chance.choice(IDS)(number) if size == 1 else uuid4().hex
        may_drop = size == 1 and _is_droppable(task, options)
        calls.append(_call(task, number, task_id, droppable=may_drop))
        # Few of the keys are wanted by many.
        key = f"k{min(chance.randrange(keys), chance.randrange(keys))}"
        if size == 1 and task.options_of_round["on_conflict"] == "coalesce":
            calls[0]["newest"] = _newest_of(task, key, options)
        ending = chance.choice(ENDINGS if size == 1 else ("", "", "retry"))
        args = [key, number, chance.choice(SECONDS), ending]
        signatures.append(task.si(*args).set(task_id=task_id))
    if size > 1:
        _attempt(calls, chance.choice(WORKFLOWS)(signatures).apply_async)
    elif options is None:
        _attempt(calls, lambda: app.send_task(task.name, args, task_id=task_id))
    else:
        _attempt(calls, lambda: task.apply_async(args, task_id=task_id, **options))


def publish_hot(chance: random.Random) -> None:
    """Publish one call of few keys; wait while those that have not ended are enough to keep workers busy."""
    name, keys = chance.choice(list(app.keys_of_round.items()))
    task, journal = app.tasks[name], app.journal
    number = int(journal.redis.incr("attack:numbers"))
    # Also while a key stands still: who asks for it may keep others from looking at it.
    until = time.monotonic() + MOST_BUSY
    while number > journal.redis.hlen("attack:ends") + ENOUGH and time.monotonic() < until:
        time.sleep(BUSY)
    key = chance.choice(keys)
    call = {**_call(task, number, uuid4().hex), "names": key, "at": boottime()}
    args = [key, number, chance.choice(SHORT), ""]
    _attempt([call], lambda: task.apply_async(args, task_id=call["id"]))


def _call(task: Any, number: int, task_id: str, *, droppable: bool = False) -> dict[str, Any]:
    about = {"task": task.name, "number": number, "id": task_id, "early": not task.acks_late}
    return {**about, "droppable": droppable, "fixed": task_id.startswith("fixed"), "newest": None}


def _attempt(calls: list[dict[str, Any]], publish: Callable[[], Any]) -> None:
    """Publish, and note before and after what is known."""
    name = str(calls[0]["number"])
    app.journal.note("attempts", name, calls)
    try:
        result = publish()
    except Exception as error:  # noqa: BLE001  what it may be is the kit's question
        app.journal.note("outcomes", name, ["failed", type(error).__name__, str(error)])
        return
    kind = "refused" if getattr(result, "is_duplicate", False) else "accepted"
    app.journal.note("outcomes", name, [kind, str(result.id), boottime()])


def _newest_of(task: Any, key: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return of which calls it is one whose newest has to run, and whether that is told by a number."""
    asked = options or {}
    takes_part = "countdown" not in asked and asked.get("lock", "") is not None
    declared = task.options_of_round["lock_key"]
    own = declared.format(key=key) if isinstance(declared, str) else key
    of = f"{task.name} {asked.get('lock_key', own)}"
    return {"of": of, "takes_part": takes_part, "is_numbered": options is not None}


def _is_droppable(task: Any, asked_here: Mapping[str, Any] | None) -> bool:
    """Whether the worker may drop a message as a duplicate: nobody accepted it before."""
    options = {**task.options_of_round, **(asked_here or {})}
    asked = options["on_conflict"]
    client, server = (asked["client"], asked["server"]) if isinstance(asked, dict) else (asked, asked)
    if client == "coalesce":
        return True  # it may give way to a newer one
    is_claimed = asked_here is not None and options["lock"] != "while_executing" and client != "retry"
    return not is_claimed and server != "retry"


if __name__ == "__main__":
    chance = random.Random(sys.argv[1])  # noqa: S311  not for secrets
    while app.keys_of_round:
        publish_hot(chance)
    while True:
        publish(chance)
        # In bursts where they are to wait in workers' hands.
        seconds = 0.3 if not app.is_restoring else 3.0 if chance.random() < 0.1 else 0.0
        time.sleep(chance.uniform(0.0, seconds))
