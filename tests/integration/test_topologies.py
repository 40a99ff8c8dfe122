"""Each kind of lock, wherever its server is and whatever its user may do there."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from celery_redislock.locks import Lock, LockStore, ReadWriteLock, Semaphore, aio
from tests.aio import play, until
from tests.facts import wait_until
from tests.pages import acl_rule
from tests.servers import EmbeddedServer
from tests.stores import RedisCase
from tests.tls import WAYS, tls_server
from tests.waiters import PATIENCE, in_line

#: Seconds: what was rung for a waiter lives for two of them.
SOCKET_TIMEOUT = 0.5


@pytest.fixture(params=["unix socket", *WAYS, "the ACL of the page"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisCase]:
    """A store that is connected so, and a client beside it that may see everything."""
    with ExitStack() as stack:
        if request.param in WAYS:
            server, url = stack.enter_context(tls_server(request.param, tmp_path))
        elif request.param == "unix socket":
            server = stack.enter_context(EmbeddedServer())
            url = server.redis_url
            assert url.startswith("unix://")
        else:
            server = stack.enter_context(EmbeddedServer(port=0))
            url = f"redis://locks:password@127.0.0.1:{server.port}/0"
        case = RedisCase(url, client_url=server.redis_url, socket_timeout=SOCKET_TIMEOUT)
        stack.enter_context(closing(case))
        if "ACL" in request.param:
            rule = [word.replace("~redislock:", f"~{case.prefix}:") for word in acl_rule()]
            case.client.execute_command(*rule)
        yield case


#: For each kind who holds, and who waits for it.
KINDS: list[tuple[Callable[[LockStore], Any], Callable[[LockStore], Any]]] = [
    (lambda store: Lock(store, "n"), lambda store: Lock(store, "n", wait=PATIENCE)),
    (
        lambda store: Semaphore(store, "n", 2).acquire(2),
        lambda store: Semaphore(store, "n", 2, wait=PATIENCE),
    ),
    (
        lambda store: ReadWriteLock(store, "n").read,
        lambda store: ReadWriteLock(store, "n", wait=PATIENCE).write,
    ),
    (
        lambda store: ReadWriteLock(store, "n").write,
        lambda store: ReadWriteLock(store, "n", wait=PATIENCE).read,
    ),
]


def _nothing_left(case: RedisCase) -> bool:
    """Whether nothing is on the server once the bells of those who were rung have expired."""
    return wait_until(lambda: case.keys() == [], PATIENCE)


def test_a_lock_is_held_waited_for_handed_over_and_released(case: RedisCase) -> None:
    """What is handed over is held under the token of the entry in line."""
    for holds, waits in KINDS:
        inside: list[str] = []

        def wait() -> None:
            with waits(case.store):  # noqa: B023  called at once
                inside.extend(hold.token for hold in case.store.holders("n"))  # noqa: B023

        with ExitStack() as holding:
            holding.enter_context(holds(case.store))
            with in_line(case, wait) as (waiter,):
                (entry,) = case.store.waiting("n")[1]
                assert inside == []
                holding.close()
                waiter.result(PATIENCE)
        assert inside == [entry.id]
    assert _nothing_left(case)


def test_a_task_of_asyncio_does_likewise(case: RedisCase) -> None:
    inside: list[str] = []

    async def story(store: aio.Store) -> str:
        async def wait() -> None:
            async with aio.Lock(store, "n", wait=PATIENCE):
                inside.extend(hold.token for hold in case.store.holders("n"))

        async with aio.Lock(store, "n") as lock:
            waiter = asyncio.create_task(wait())
            assert await until(lambda: case.store.waiting("n")[0] == 1)
            (entry,) = case.store.waiting("n")[1]
            assert inside == []
            assert await lock.renew(60.0)
        await waiter
        async with aio.Semaphore(
            store, "many", 2, owner="y" * 100_000
        ) as permit:  # more than a record of TLS
            assert [hold.token for hold in case.store.holders("many")] == [permit.token]
        return entry.id

    waited = play(case, story)
    assert inside == [waited]
    assert _nothing_left(case)
