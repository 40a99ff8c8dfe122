"""What a lock is told that it cannot take: something that is no store, and a time too short for one."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import redis
import redis.asyncio

from celery_redislock.exceptions import LockOptionError
from celery_redislock.locks import Lock, MemoryStore, ReadWriteLock, Semaphore, aio, connect

URL = "redis://:secret@127.0.0.1:1/0"


@pytest.mark.parametrize(
    ("kinds", "others", "named"),
    [
        ([Lock, partial(Semaphore, limit=2), ReadWriteLock], [redis.Redis(), aio.connect(URL)], "connect"),
        ([aio.Lock, partial(aio.Semaphore, limit=2)], [redis.asyncio.Redis(), connect(URL)], "aio.connect"),
    ],
    ids=["of threads", "of a loop"],
)
def test_a_lock_says_what_it_takes_in_place_of_a_store(kinds: Any, others: Any, named: str) -> None:
    for kind in kinds:
        for store in (URL, None, *others):
            with pytest.raises(LockOptionError, match="is no store for it; give what") as raised:
                kind(store, "n")
            assert f" {named}() returns" in str(raised.value)
            assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "semaphore",
    [partial(Semaphore, MemoryStore(), "n"), partial(aio.Semaphore, aio.connect(URL), "n")],
    ids=["of threads", "of a loop"],
)
def test_a_semaphore_has_ten_thousand_places_at_most(semaphore: Any) -> None:
    """Who is refused looks at all holders, which keeps the server from others."""
    assert semaphore(10_000).limit == 10_000
    with pytest.raises(LockOptionError, match="limit=10001 is not a whole number from 1 to 10000"):
        semaphore(10_001)
    seats = Semaphore(MemoryStore(), "n", 2)
    with pytest.raises(LockOptionError, match="limit=10001 is not a whole number from 1 to 10000"):
        seats.set_limit(10_001)
    with pytest.raises(LockOptionError, match="permits=10001 is not a whole number from 1 to 10000"):
        seats.acquire(10_001)


async def _await_me(*_: object) -> None:
    """A callback that nobody would await."""


class _Awaited:
    async def __call__(self, *_: object) -> None:
        """Likewise."""


KINDS: dict[str, Callable[..., Any]] = {
    "Lock": lambda **told: Lock(MemoryStore(), "n", **told),
    "Semaphore": lambda **told: Semaphore(MemoryStore(), "n", 2, **told),
    "ReadWriteLock": lambda **told: ReadWriteLock(MemoryStore(), "n", **told),
    "aio.Lock": lambda **told: aio.Lock(aio.connect(URL), "n", **told),
    "aio.Semaphore": lambda **told: aio.Semaphore(aio.connect(URL), "n", 2, **told),
    "aio.ReadWriteLock": lambda **told: aio.ReadWriteLock(aio.connect(URL), "n", **told),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_callback_that_would_have_to_be_awaited_is_refused(kind: str) -> None:
    """Nobody awaits it: a loss would be told to nobody."""
    options = ("on_lost", "on_state") if kind in {"Lock", "aio.Lock"} else ("on_lost",)
    awaited = (_await_me, partial(_await_me, 1), _Awaited(), partial(_Awaited(), 1), _Awaited().__call__)
    for option, call in product(options, awaited):
        with pytest.raises(
            LockOptionError, match=f"{option}=.* is a coroutine function, and nobody awaits it"
        ):
            KINDS[kind](**{option: call})
    for call in (print, partial(print, 1), [].append):
        KINDS[kind](on_lost=call)


def test_each_refusal_names_its_lock_alike() -> None:
    """In quotes: its name is any text. Whichever value is wrong, and whenever that is found."""
    store = MemoryStore()
    seats = Semaphore(store, "my book", 2)
    permit = seats.acquire(timeout=0)
    assert permit is not None
    for ask in (
        lambda: Lock(store, "my book", ttl=0),
        lambda: Lock(store, "my book", timeout=3),  # type: ignore[arg-type]
        lambda: Lock(store, "my book", token=""),
        lambda: Lock(store, "my book", token=permit.token).acquire(),
        lambda: seats.acquire(3),
    ):
        with pytest.raises(LockOptionError, match=r"\A'my book': "):
            ask()


@pytest.mark.parametrize("make", [connect, aio.connect])
@pytest.mark.parametrize(
    ("gone", "instead"),
    [
        ("sync", "set appendfsync always"),
        ("through", "give a URL"),
        ("timeout", "socket_timeout="),
        ("db", "leave it out"),
    ],
)
def test_a_store_says_what_to_write_for_an_option_that_it_does_not_have(
    make: Any, gone: str, instead: str
) -> None:
    with pytest.raises(LockOptionError, match=f"{gone}='x' is no option here: {instead}"):
        make(URL, **{gone: "x"})
