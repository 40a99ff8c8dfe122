"""A process that publishes until it is killed: ``python -m tests.attack.publisher SEED``."""

import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID, uuid4

from celery import chain, chord, group

from tests.attack.draw import ENDINGS, KEYS, TTL
from tests.attack.shop import app


class Publisher:
    """Publishes one call after the other, and notes what it tries and what it is told."""

    def __init__(self, seed: str) -> None:
        self.chance = random.Random(seed)  # noqa: S311  not for secrets
        self.tasks = [task for name, task in sorted(app.tasks.items()) if name.startswith("attack.")]

    def publish(self) -> None:
        """Publish one call, or one workflow."""
        WAYS[self.chance.choices(list(WAYS), WEIGHTS)[0]](self)

    def key(self) -> str:
        """Return a resource; few of them are wanted by many."""
        return f"k{min(self.chance.randrange(KEYS), self.chance.randrange(KEYS))}"

    def seconds(self) -> float:
        """Return how long a body stays on."""
        return self.chance.choice([0.0, 0.0, 0.1, 0.3, 0.6, 1.5])

    def call(self, *, endings: tuple[str, ...] = ENDINGS) -> tuple[Any, int, list[Any]]:
        """Return a task, and a number and arguments for a call of it."""
        task, number = self.chance.choice(self.tasks), app.journal.new_number()
        return task, number, [self.key(), number, self.seconds(), self.chance.choice(endings)]

    def attempt(self, calls: list[dict[str, Any]], publish: Callable[[], Any]) -> None:
        """Publish, and note before and after what is known."""
        name = str(calls[0]["number"])
        app.journal.note("attempts", name, calls)
        try:
            result = publish()
        except Exception as error:  # noqa: BLE001  what it may be is the kit's question
            app.journal.note("outcomes", name, ["failed", type(error).__name__, str(error)])
            return
        kind = "refused" if getattr(result, "is_duplicate", False) else "accepted"
        app.journal.note("outcomes", name, [kind, str(result.id)])


def _one(publisher: Publisher, **options: Any) -> None:
    task, number, args = publisher.call()
    task_id = options.pop("task_id", None) or str(uuid4())
    may_drop = dict(task.options_of_round, **options)
    about = _about(task, number, task_id, droppable=_is_droppable(may_drop))
    publisher.attempt([about], lambda: task.apply_async(args, task_id=task_id, **options))


def _later(publisher: Publisher) -> None:
    _one(publisher, countdown=publisher.chance.choice([1, 2]))  # whole seconds: quorum queues know no others


def _fixed(publisher: Publisher) -> None:
    _one(publisher, task_id=f"fixed-{publisher.chance.randrange(5)}")


def _odd(publisher: Publisher) -> None:
    number = publisher.chance.randrange(10**6)
    _one(
        publisher,
        task_id=publisher.chance.choice(
            [f"n\0l {number}", f"s/a\x1b[31m{number}", f"ü'\"{number}", UUID(int=number)]
        ),
    )


def _optional(publisher: Publisher) -> None:
    """Give options per call."""
    _one(publisher, **publisher.chance.choice([
        {"on_conflict": "retry"}, {"lock_ttl": 2 * TTL}, {"lock": None}, {"lock_key": "attack:k0"},
        {"lock_period": 0.3},
    ]))  # fmt: skip


def _unclaimed(publisher: Publisher) -> None:
    """Publish as who has not imported the task."""
    task, number, args = publisher.call()
    task_id = str(uuid4())
    about = _about(task, number, task_id, droppable=_is_droppable(task.options_of_round, claims=False))
    publisher.attempt([about], lambda: app.send_task(task.name, args, task_id=task_id))


def _workflow(publisher: Publisher) -> None:
    calls, signatures = [], []
    for _ in range(3):
        task, number, args = publisher.call(endings=("", "", "retry"))
        calls.append(_about(task, number, str(uuid4())))
        signatures.append(task.si(*args).set(task_id=calls[-1]["id"]))
    canvas = publisher.chance.choice([
        lambda: chain(*signatures), lambda: group(signatures), lambda: chord(signatures[:2], signatures[2]),
    ])()  # fmt: skip
    publisher.attempt(calls, canvas.apply_async)


def _about(task: Any, number: int, task_id: object, *, droppable: bool = False) -> dict[str, Any]:
    early = not task.acks_late
    about = {"task": task.name, "number": number, "id": str(task_id), "early": early, "droppable": droppable}
    return {**about, "fixed": about["id"].startswith("fixed")}


def _is_droppable(options: Mapping[str, Any], *, claims: bool = True) -> bool:
    """Whether the worker may drop a message as a duplicate: nobody accepted it before."""
    asked = options["on_conflict"]
    client, server = (asked["client"], asked["server"]) if isinstance(asked, dict) else (asked, asked)
    is_claimed = claims and options["lock"] != "while_executing" and client != "retry"
    return not is_claimed and server != "retry"


#: Ways to publish, with their weights.
_WAYS: Mapping[Callable[[Publisher], None], int] = {
    _one: 8, _later: 3, _fixed: 2, _odd: 2, _optional: 3, _unclaimed: 3, _workflow: 2,
}  # fmt: skip
WAYS = {way.__name__: way for way in _WAYS}
WEIGHTS = list(_WAYS.values())

if __name__ == "__main__":
    publisher = Publisher(sys.argv[1])
    while True:
        publisher.publish()
        time.sleep(publisher.chance.uniform(0.0, 0.3))
