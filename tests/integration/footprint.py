"""How much code one step of a unique task runs above a plain one, in opcodes: the same on any machine.

A program of its own, so that nothing else in the process counts.
"""

import itertools
import json
import pickle
import secrets
import sys
import warnings
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

from celery import Celery
from celery.app.trace import build_tracer, setup_worker_optimizations
from celery.worker import state

from celery_redislock import SingletonTask
from celery_redislock.embedded import EmbeddedServer

#: Steps before the count, until nothing is done for the first time, and steps that are counted.
WARM, COUNTED = 30, 10


def opcodes(step: Callable[[], object]) -> float:
    """Return how many opcodes a step takes, on average, once nothing is new to it."""
    count = 0

    def in_frame(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return in_frame

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return in_frame

    for _ in range(WARM):
        step()
    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        for _ in range(COUNTED):
            step()
    finally:
        sys.settrace(before)
    return count / COUNTED


def body(number: int) -> int:
    """Cost nothing."""
    return number


class Result:
    """The pool's, which ends when it is told to."""

    is_ready = False

    def ready(self) -> bool:
        """As billiard's."""
        return self.is_ready


class Site:
    """An app whose broker, locks and (but for a given backend) results are one server; a worker's steps."""

    def __init__(self, url: str, backend: str | None = None, locks: str | None = None) -> None:
        """Declare the tasks; connect to nothing. ``locks``: the URL of a lock server of their own."""
        name = f"footprint-{secrets.token_hex(4)}"
        self.app = app = Celery(name, broker=url, backend=backend or url, set_as_current=False)
        app.conf.update(task_default_queue=name, redislock_prefix=name, redislock_url=locks)
        self.tasks = {
            (is_unique, is_ignored): app.task(
                body,
                name=f"{app.main}.{is_unique}.{is_ignored}",
                base=SingletonTask if is_unique else None,
                ignore_result=is_ignored,
            )
            for is_unique in (True, False)
            for is_ignored in (True, False)
        }
        self.numbers = itertools.count()
        self.jobs: list[Any] = []
        setup_worker_optimizations(app, "footprint@localhost")
        pool = SimpleNamespace(apply_async=self._take)
        self.consumer = SimpleNamespace(
            hostname="footprint@localhost",
            connection_errors=(),
            event_dispatcher=None,
            timer=SimpleNamespace(call_at=None),
            apply_eta_task=None,
            _limit_task=None,
            _limit_post_eta=None,
            disable_rate_limits=True,
            task_buckets={},
            pool=pool,
            controller=SimpleNamespace(state=state),
            on_task_request=lambda request: request.execute_using_pool(pool),
        )

    def _take(self, target: Any, args: Any = (), **callbacks: Any) -> Any:
        result = Result()
        self.jobs.append((pickle.dumps((target, args)), callbacks, result))
        return result

    def publish(self, task: Any) -> None:
        """Publish a call that no other call is like."""
        task.delay(next(self.numbers))

    def receiver(self, task: Any, count: int) -> Callable[[], None]:
        """Publish so many; return what receives the next one, and hands it to the pool."""
        channel = self.app.connection_for_read().channel()
        queue = self.app.amqp.queues[self.app.main](channel)
        task = self.app.tasks[task.name]  # a worker has no proxies
        task.__trace__ = build_tracer(task.name, task, self.app.loader, self.consumer.hostname, app=self.app)
        receive = task.start_strategy(self.app, self.consumer)
        queue.purge()  # of what other steps have published
        for _ in range(count):
            self.publish(task)
        messages = iter([queue.get(no_ack=True) for _ in range(count)])
        return lambda: receive(next(messages), None, lambda *_, **__: None, lambda *_: None, ())

    def in_main_process(self, task: Any) -> Callable[[], None]:
        """Return the step from a message's receipt to its end, but for what the pool does."""
        receive = self.receiver(task, WARM + COUNTED)

        def step() -> None:
            receive()
            _, callbacks, result = self.jobs[-1]
            callbacks["accept_callback"](1, 0.0)
            result.is_ready = True
            callbacks["callback"]((0, "1", 0.1))

        return step

    def in_child(self, task: Any) -> Callable[[], None]:
        """Return the step that a pool child makes of a message."""
        receive = self.receiver(task, WARM + COUNTED)
        for _ in range(WARM + COUNTED):
            receive()
        jobs = iter([job for job, _, _ in self.jobs[-WARM - COUNTED :]])

        def step() -> None:
            target, args = pickle.loads(next(jobs))  # noqa: S301  our own bytes
            target(*args)

        return step


def above_plain(
    site: Site, step_of: Callable[[Any], Callable[[], object]], *, is_ignored: bool = False
) -> float:
    """Return the opcodes of a unique task's step that a plain task's does not take."""
    unique, plain = (opcodes(step_of(site.tasks[is_unique, is_ignored])) for is_unique in (True, False))
    return unique - plain


def main() -> None:
    """Print the opcodes of each step as JSON."""
    with EmbeddedServer() as server, EmbeddedServer() as another:
        elsewhere = Site(server.url, locks=another.redis_url)
        site = Site(server.url)
        refused = site.tasks[True, False]
        refused.delay(-1)
        figures = {
            "publish": above_plain(site, lambda task: lambda: site.publish(task)),
            "publish, elsewhere": above_plain(elsewhere, lambda task: lambda: elsewhere.publish(task)),
            "refused": opcodes(lambda: refused.delay(-1)),
            "main process": above_plain(site, site.in_main_process),
            "child": above_plain(site, site.in_child),
            "child, result ignored": above_plain(site, site.in_child, is_ignored=True),
        }
        elsewhere = Site(server.url, f"{server.url[:-1]}1")  # now, as a process is one app's worker
        figures["child, results elsewhere"] = above_plain(elsewhere, elsewhere.in_child)
    print(json.dumps(figures))  # noqa: T201  the answer


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # Celery stores results by a command that redis-py 8 deprecates
    main()
