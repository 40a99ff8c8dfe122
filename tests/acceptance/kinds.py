"""The ways people write tasks."""

from typing import Any

from celery import Celery

from celery_redislock import SingletonTask

__all__ = ["declare_kinds"]


class Stumbling(SingletonTask):
    """Fails before its body begins."""

    name = "shop.stumble"
    lock_key = "sale:{key}"

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        message = "stumbled"
        raise ValueError(message)

    def run(self, key: str) -> None:
        with self.app.journal.body(self, key):
            pass


def declare_kinds(app: Celery) -> list[Any]:
    """Declare them on this app."""

    @app.task(name="shop.collect", shared=False)
    def collect(value: Any = None) -> Any:
        """Pass a value on; an ordinary task."""
        return value

    @app.task(name="shop.share", base=SingletonTask, bind=True, shared=False, lock_key="sale:{key}")
    def share(self: Any, key: str) -> str:
        """Do other work on the resource of ``serve``."""
        with self.app.journal.body(self, key):
            return f"{key} shared"

    return [app.register_task(Stumbling()), collect, share]
