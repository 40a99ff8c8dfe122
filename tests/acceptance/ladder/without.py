"""Bodies without a message of their own: not locked."""

from typing import Any

from tests.acceptance.ladder.ending import EVERY_POOL, Act, Case, Ending, Freed, Group, own
from tests.acceptance.ladder.scene import Scene

__all__ = ["WITHOUT"]

HERE = ("caller",)


def _many(kind: str) -> Act:
    """Publish one message that calls two bodies."""

    def act(scene: Scene) -> None:
        task: Any = scene.shop.sell
        if kind == "map":
            result = task.map([scene.key] * 2).apply_async()
        elif kind == "starmap":
            result = task.starmap([(scene.key,)] * 2).apply_async()
        else:
            result = task.chunks([(scene.key,)] * 2, 2).apply_async().results[0]
        scene.follow(result)

    return act


def _here(kind: str) -> Act:
    """Run a body in this process, while the key is held by a message on its way."""

    def act(scene: Scene) -> None:
        task = scene.shop.sell
        queued = task.apply_async((scene.key,), queue="of-nobody")
        task.apply((scene.key,)) if kind == "apply" else task(scene.key)
        holder = scene.shop.holder(scene.key)
        assert holder is not None
        assert (holder.owner, holder.state) == (queued.id, "queued")
        scene.shop.sell.lock_for(scene.key).release(reason="a test", only="queued")

    return act


WITHOUT = Group(
    "Without a message of its own",
    "`map`, `starmap` and `chunks` call bodies inside one message of a task of Celery's own; direct and "
    "eager calls send none. None of them is locked, and none disturbs a lock.",
    (
        *(
            Ending(f"`{kind}`", _many(kind), (Case(EVERY_POOL, ("", ""), Freed.NOBODY),))
            for kind in ("map", "starmap", "chunks")
        ),
        Ending(
            "`task.apply()`, `task_always_eager`",
            _here("apply"),
            (Case(HERE, ("",), Freed.NOBODY),),
            own(workers=0),
        ),
        Ending(
            "`task()`, called directly", _here("call"), (Case(HERE, ("",), Freed.NOBODY),), own(workers=0)
        ),
    ),
)
