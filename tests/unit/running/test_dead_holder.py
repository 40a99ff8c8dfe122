"""A lease whose run is known to be dead is in nobody's way; whatever else stands there is."""

import json
import os
import sys
from typing import Any

import pytest

from celery_redislock.locks.process import name_of, whereabouts_of
from celery_redislock.store.store import RUNNING
from tests.forks import fork
from tests.unit.shop import KEY, SCOPES, Shop, body, carried

pytestmark = [
    pytest.mark.law(4),
    pytest.mark.skipif(sys.platform != "linux", reason="only /proc tells of other processes"),
]

#: The process of this pid that began in the first tick after boot.
DEAD = "AAAB"


def dead_place() -> str:
    here = name_of(os.getpid())
    assert here is not None
    return here[:8] + 2 * (here[8:12] + DEAD)


def held(shop: Shop, key: str = KEY, *, owner: str = "gone", **about: Any) -> str:
    """Let somebody hold a key, by default a run that is dead; return its token."""
    about = {"state": RUNNING, "pid": 4711, "at": dead_place(), **about}
    token = f"{owner}/nonce"
    shop.store.acquire(key, token, 30, facts=json.dumps(about))
    shop.store.calls.clear()
    return token


@pytest.mark.parametrize("scope", ["until_executed", "until_executing", "until_expired"])
def test_a_publish_is_accepted_at_once(shop: Shop, caplog: Any, scope: str) -> None:
    """And a line names what was released, and whose it was."""
    task = shop.unique(body, lock_key=KEY, **SCOPES[scope])
    held(shop)
    result = task.delay(7)
    assert not result.is_duplicate
    assert shop.store.calls == ["acquire", "release", "acquire"]
    assert [token.partition("/")[0] for token, _ in shop.states()] == [result.id]
    (line,) = [record.getMessage() for record in caplog.records if record.name == "celery_redislock"]
    assert all(fact in line for fact in (repr(KEY), "'gone'", "4711", "its worker was killed"))


@pytest.mark.parametrize(
    ("scope", "again"),
    [*((scope, False) for scope in SCOPES), ("until_executing", True), ("until_expired", True)],
)
def test_a_run_starts_at_once(shop: Shop, scope: str, again: bool) -> None:
    """Published without a claim, so that nothing but its start can find the dead.

    Delivered again, where no lock is held while running, the dead run's lease is on the message.
    """
    task = shop.unique(body, lock_key=KEY, acks_late=again, **SCOPES[scope])
    if again:
        task.delay(7)
    else:
        shop.app.send_task("shop.sync", (7,))
    message = shop.message()
    name = f"message:{carried(message).token}" if again else KEY
    token = held(shop, name, owner=message.headers["id"] if again else "gone")
    assert shop.run(shop.receive(message, redelivered=again)) == 7
    assert token not in dict(shop.states())


@pytest.mark.parametrize(
    "about",
    [
        {"state": "queued"},
        {"at": whereabouts_of(None, os.getpid())},
        {"at": None},
        {"at": "another machine's place!"},
        {"at": [7]},
    ],
    ids=["a claim", "it lives", "unknown", "elsewhere", "garbage"],
)
def test_whoever_may_live_is_left_alone(shop: Shop, about: dict[str, Any]) -> None:
    """A claim's message lives on in the broker, whoever has published it."""
    task = shop.unique(body, lock_key=KEY)
    token = held(shop, **about)
    assert task.delay(7).is_duplicate
    assert shop.store.calls == ["acquire"]
    assert token in dict(shop.states())


def test_a_period_outlives_the_run_that_was_accepted(shop: Shop) -> None:
    """Law 2: ``lock_period`` is no lease."""
    task = shop.unique(body, lock_key=KEY, lock_period=50)
    about = {"state": RUNNING, "at": dead_place()}
    shop.store.acquire(KEY, "gone/nonce", 30, facts=json.dumps(about), period=50)
    assert task.delay(7).is_duplicate
    assert shop.held() == {}


def test_only_a_lease_says_who_holds_it(shop: Shop) -> None:
    """The main process's name comes with the delivery: a child that is adopted has another parent."""
    read, write = os.pipe()

    def look(account_id: int = 7) -> None:
        (hold,) = shop.held().values()
        os.write(write, json.dumps(dict(hold.facts)).encode())

    shop.unique(look, lock_key=KEY).delay(7)
    (claim,) = shop.held().values()
    request = shop.receive()
    if not (parent := fork()):
        if not fork():
            shop.child(request)
        os._exit(0)
    os.waitpid(parent, 0)
    os.close(write)
    with os.fdopen(read) as answer:
        lease = json.load(answer)

    main = name_of(os.getpid())
    assert main is not None
    assert "at" not in claim.facts
    assert lease["pid"] not in {os.getpid(), parent}
    assert (lease["at"][:16], len(lease["at"])) == (main, 24)
    assert lease["at"][16:] != main[8:]
