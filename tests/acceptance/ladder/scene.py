"""One ending in one pool: played, watched, and judged by what its case says."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import celery
from celery import states
from celery.result import AsyncResult

from tests.acceptance.harness import Shop, wait_until
from tests.acceptance.journal import Body, overlaps_of
from tests.acceptance.ladder.ending import Case, Ending, Freed
from tests.acceptance.ladder.watch import Watch
from tests.servers import EmbeddedServer

__all__ = ["LONG", "Scene", "play"]

#: TTL of a lease that cannot have expired within any bound: what is free before has been given back.
LONG = 60.0
#: Seconds a task goes on in its ``after_return``, when its result can be seen already.
LINGERING = 0.15
#: Seconds an ending may take over its bound, until its facts are in.
PATIENCE = 30.0
#: Seconds of its TTL a hold that was given back has left at least, and one that expired at most.
LEFT = 0.4

_IN_TIME = {Freed.RUN, Freed.MAIN}
_GIVEN_BACK = {Freed.RUN, Freed.MAIN, Freed.DEAD, Freed.LATE, Freed.TURN, Freed.TOLD, Freed.OPERATOR}


class Scene:
    """A shop of some pool, and the key an ending is about.

    Attributes:
        shop: with its workers at work.
        key: argument of the bodies; their lock is that of :meth:`Shop.holder`.
        broker: a server of the ending's own, if its stage asks for one.
    """

    def __init__(self, shop: Shop, key: str, broker: EmbeddedServer | None = None) -> None:
        """Set the scene; publishes nothing."""
        self.shop = shop
        self.key = key
        self._broker = broker
        self.result: AsyncResult | None = None
        self.watch: Watch | None = None

    def close(self) -> None:
        """Look no more."""
        if self.watch is not None:
            self.watch.stop()

    @property
    def broker(self) -> EmbeddedServer:
        """The server that may be disturbed."""
        assert self._broker is not None, "the stage has no broker of its own"
        return self._broker

    def publish(
        self,
        task: str = "sell",
        then: str | None = None,
        more: Any = None,
        *,
        seconds: float = 0.05,
        **options: Any,
    ) -> AsyncResult:
        """Publish a task and watch it; options as for ``apply_async``."""
        args = (self.key, seconds, then, more) if then else (self.key, seconds)
        options = {"lock_ttl": LONG, "headers": {"linger": LINGERING}, **options}
        result = getattr(self.shop, task).apply_async(args, **options)
        assert not result.is_duplicate
        return self.follow(result)

    def follow(self, result: AsyncResult) -> AsyncResult:
        """Watch a task that was published otherwise."""
        self.result = result
        self.watch = Watch(self.shop, self.key, result.id)
        return result

    @contextmanager
    def running(self, *args: Any, **options: Any) -> Iterator[Body]:
        """Publish a task whose body is on until the block ends; as :meth:`publish`."""
        with self.shop.kept_on(self.key):
            self.publish(*args, seconds=0.0, **options)
            yield self.shop.wait_started(self.key, timeout=20.0)

    @contextmanager
    def behind_another(self, task: str = "sell") -> Iterator[None]:
        """Keep the one place of a shop taken until the block ends."""
        other = f"{self.key}-first"
        with self.shop.kept_on(other):
            getattr(self.shop, task).delay(other)
            self.shop.wait_started(other)
            yield

    def wait_received(self, task_id: str) -> None:
        """Return when a worker has the message."""
        wait_until(
            lambda: any(task_id in line for line in self.shop.lines("received")), 20.0, "it is received"
        )

    @property
    def bodies(self) -> list[Body]:
        """The bodies of the key so far."""
        return self.shop.bodies(self.key)

    def undelivered(self) -> int:
        """Return how many messages the broker would still deliver."""
        unacked = self.shop.redis.hlen(f"{self.shop.plan['prefix']}:unacked")
        return self.shop.queued() + int(unacked)

    @property
    def has_workers(self) -> bool:
        """Whether anybody is left to run a task."""
        return any(worker.process.poll() is None for worker in self.shop.workers)


def play(ending: Ending, case: Case, scene: Scene) -> float | None:
    """Bring an ending about, and check all that its case says.

    Returns:
        Seconds from the cause to the free lock; ``None`` where nothing was locked.
    """
    caused = ending.act(scene)
    try:
        _wait_over(case, scene, caused)
    finally:
        scene.close()
    took = _judge(ending, case, scene, caused)
    if case.lost:
        wait_until(lambda: not scene.undelivered(), PATIENCE, "no message is left")
    again = _publish_again(case, scene)
    return again - caused if case.freed == Freed.NEXT and caused is not None else took


def _wait_over(case: Case, scene: Scene, caused: float | None) -> None:
    """Wait until the facts of a case are in; how long the lock took is looked at later."""
    since = caused or time.monotonic()

    def is_over() -> bool:
        last = scene.watch.last if scene.watch is not None else None
        ended = [body.ended_by for body in scene.bodies]
        is_at_end = _is_at_end(case, last.state if last else None) and ended == [*case.ends]
        return is_at_end and (case.freed == Freed.NEXT or _is_free(scene, since))

    def told() -> str:
        last = scene.watch.last if scene.watch is not None else None
        return f"it is over as {case.ends, case.state}; last seen: {last}, bodies: {scene.bodies}"

    deadline = since + case.within + PATIENCE
    while not is_over():
        assert time.monotonic() < deadline, f"not over in time: {told()}"
        time.sleep(0.02)


def _is_free(scene: Scene, since: float) -> bool:
    if scene.watch is None:
        return scene.shop.holder(scene.key) is None
    return scene.watch.last.when >= since and not scene.watch.is_ours(scene.watch.last)


def _is_at_end(case: Case, state: str | None) -> bool:
    return state is None or not _stores(case) or state in {case.state, case.rather}


def _stores(case: Case) -> bool:
    return case.stores or celery.VERSION >= (5, 7)


def _judge(ending: Ending, case: Case, scene: Scene, caused: float | None) -> float | None:
    watch, bodies = scene.watch, scene.bodies
    if watch is None or case.freed == Freed.NEXT:
        return None
    if case.freed == Freed.NOBODY:
        assert [one for one in watch.glances if one.holder is not None] == []
        return None
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
    return took


def _judge_order(case: Case, watch: Watch, freed: float) -> None:
    """Was it free when the result could be seen, and given back or expired as the case says?"""
    seen = watch.first_with(case.state)
    if case.freed in _IN_TIME and seen is not None:
        assert not watch.is_ours(seen), f"held when the result was seen: {seen}"
    held = watch.held_before(freed)
    if held is None or held.holder is None:
        return
    if case.freed in _GIVEN_BACK:
        assert held.holder.remaining > LEFT, f"not given back, but expired: {held}"
    elif case.freed == Freed.EXPIRY:
        # Not what it had at the last look: a machine that stands still may not look again before its end.
        left = held.holder.remaining - (freed - held.when)
        assert left < LEFT, f"not expired, but given back: {held}, free at {freed}"


def _publish_again(case: Case, scene: Scene) -> float:
    """Prove that the key can be used, that nothing else ran for it, and that no two bodies overlapped."""

    def accepted() -> AsyncResult | None:
        published: AsyncResult = scene.shop.sell.delay(scene.key)
        return None if published.is_duplicate else published

    result: Any = wait_until(
        accepted, case.within if case.freed == Freed.NEXT else 0.0, "the key can be used again"
    )
    when = time.monotonic()
    killed = sum(end is None for end in case.ends)
    if scene.has_workers:
        assert result.get(timeout=PATIENCE) == f"{scene.key} done"
        assert [body.ended_by for body in scene.bodies] == [*case.ends, ""]
    if case.freed != Freed.NOBODY:
        assert overlaps_of(scene.bodies) == []
    assert sum(body.ended_by is None for body in scene.bodies) == killed
    if scene.result is not None and _stores(case) and case.state == states.PENDING:
        assert scene.result.state in {states.PENDING, case.rather}
    return when
