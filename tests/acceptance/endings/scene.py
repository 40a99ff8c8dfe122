"""One ending in one pool: played, watched, and judged by what its case says."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import celery
from celery import states
from celery.result import AsyncResult

from tests.acceptance.endings.ending import Case, Ending, Free
from tests.acceptance.endings.watch import Watch
from tests.acceptance.harness import Project, wait_until
from tests.acceptance.journal import Body, overlaps_of
from tests.acceptance.terms import LONG_LEASE, PATIENCE
from tests.servers import EmbeddedServer

#: Seconds a task goes on in its ``after_return``, when its result can be seen already.
LINGERING = 0.15
#: Seconds of its TTL a hold that was released has left at least, and one that expired at most.
LEFT = 0.4


class Scene:
    """A project of some pool, the key an ending is about, and a broker of its own if its stage has one."""

    def __init__(self, project: Project, key: str, broker: EmbeddedServer | None = None) -> None:
        """Set the scene; publishes nothing."""
        self.project = project
        self.key = key
        self.broker = broker
        self.result: AsyncResult | None = None
        self.watch: Watch | None = None

    def close(self) -> None:
        """Look no more."""
        if self.watch is not None:
            self.watch.stop()

    def publish(
        self,
        task: str = "executed",
        then: str | None = None,
        more: Any = None,
        *,
        seconds: float = 0.05,
        **options: Any,
    ) -> AsyncResult:
        """Publish a task and watch it; options as for ``apply_async``."""
        args = (self.key, seconds, then, more) if then else (self.key, seconds)
        options = {"lock_ttl": LONG_LEASE, "headers": {"linger": LINGERING}, **options}
        result = getattr(self.project, task).apply_async(args, **options)
        assert not result.is_duplicate
        return self.follow(result)

    def follow(self, result: AsyncResult) -> AsyncResult:
        """Watch a task that was published otherwise."""
        self.result = result
        self.watch = Watch(self.project, self.key, result.id)
        return result

    @contextmanager
    def running(self, *args: Any, **options: Any) -> Iterator[Body]:
        """Publish a task whose body is on until the block ends; as :meth:`publish`."""
        with self.project.kept_on(self.key):
            self.publish(*args, seconds=0.0, **options)
            yield self.project.wait_started(self.key, timeout=PATIENCE)

    @contextmanager
    def behind_another(self, task: str = "executed") -> Iterator[None]:
        """Keep the one place of a project taken until the block ends."""
        other = f"{self.key}-first"
        with self.project.kept_on(other):
            getattr(self.project, task).delay(other)
            self.project.wait_started(other)
            yield

    @property
    def bodies(self) -> list[Body]:
        """The bodies of the key so far."""
        return self.project.bodies(self.key)

    @property
    def has_workers(self) -> bool:
        """Whether anybody is left to run a task."""
        return any(worker.process.poll() is None for worker in self.project.workers)


def play(ending: Ending, case: Case, scene: Scene) -> None:
    """Bring an ending about, and check all that its case says."""
    caused = ending.act(scene)
    try:
        _wait_over(case, scene, caused)
    finally:
        scene.close()
    _judge(ending, case, scene, caused)
    if case.is_lost:
        wait_until(lambda: not scene.project.undelivered(), PATIENCE, "no message is left")
    _publish_again(case, scene)


def _wait_over(case: Case, scene: Scene, caused: float | None) -> None:
    """Wait until the facts of a case are in; how long the lock took is looked at later."""
    since = caused or time.monotonic()

    def is_over() -> bool:
        last = scene.watch.last if scene.watch is not None else None
        ended = [body.ended_by for body in scene.bodies]
        is_at_end = _is_at_end(case, last.state if last else None) and ended == [*case.ends]
        return is_at_end and _is_free(scene, since)

    def seen() -> str:
        last = scene.watch.last if scene.watch is not None else None
        return f"wanted: {case.ends, case.state}; last seen: {last}, bodies: {scene.bodies}"

    deadline = since + case.within + PATIENCE
    while not is_over():
        assert time.monotonic() < deadline, f"not over in time; {seen()}"
        time.sleep(0.02)


def _is_free(scene: Scene, since: float) -> bool:
    if scene.watch is None:
        return scene.project.holder(scene.key) is None
    return scene.watch.last.when >= since and not scene.watch.is_ours(scene.watch.last)


def _is_at_end(case: Case, state: str | None) -> bool:
    return state is None or not _stores(case) or state in {case.state, case.rather}


def _stores(case: Case) -> bool:
    return case.stores or celery.VERSION >= (5, 7)


def _judge(ending: Ending, case: Case, scene: Scene, caused: float | None) -> None:
    watch, bodies = scene.watch, scene.bodies
    if watch is None:
        return
    cause = caused if caused is not None else bodies[-1].end
    began = bodies[-1].start if bodies else cause
    freed = watch.first_free(max(cause, began) if ending.kept else cause)
    assert freed is not None
    took = freed - cause
    over = [body for body in bodies if body.start < freed]
    assert all(freed >= body.end for body in over), f"free at {freed}, before a body was over: {over}"
    assert took <= case.within, f"free {took:.2f} s after its cause"
    if ending.kept and not case.gap:
        # Scopes without a claim hold nothing before their first body.
        first = watch.glances[0]
        gaps = list(watch.gaps(first.when if watch.is_ours(first) else bodies[0].start, began))
        assert gaps == [], f"free before the last body began at {began}"
    _judge_order(case, watch, freed)


def _judge_order(case: Case, watch: Watch, freed: float) -> None:
    """Was it free when the result could be seen, and released or expired as the case says?"""
    seen = watch.first_with(case.state)
    if case.free == Free.BEFORE_RESULT and seen is not None:
        assert not watch.is_ours(seen), f"held when the result was seen: {seen}"
    held = watch.held_before(freed)
    if held is None or held.holder is None:
        return
    if case.free in {Free.BEFORE_RESULT, Free.RELEASED}:
        assert held.holder.remaining > LEFT, f"not released, but expired: {held}"
    elif case.free == Free.EXPIRED:
        # Not what it had at the last look: a machine that stands still may not look again before its end.
        left = held.holder.remaining - (freed - held.when)
        assert left < LEFT, f"not expired, but released: {held}, free at {freed}"


def _publish_again(case: Case, scene: Scene) -> None:
    """Prove that the key can be used, that nothing else ran for it, and that no two bodies overlapped."""

    def accepted() -> AsyncResult | None:
        published: AsyncResult = scene.project.executed.delay(scene.key)
        return None if published.is_duplicate else published

    result: Any = wait_until(accepted, PATIENCE if case.copied else 0.0, "the key can be used again")
    if scene.has_workers:
        assert result.get(timeout=PATIENCE) == f"{scene.key} done"
        assert [body.ended_by for body in scene.bodies] == [*case.ends, ""]
    assert overlaps_of(scene.bodies) == []
    assert sum(body.ended_by is None for body in scene.bodies) == case.ends.count(None)
    if scene.result is not None and _stores(case) and case.state == states.PENDING:
        assert scene.result.state in {states.PENDING, case.rather}
