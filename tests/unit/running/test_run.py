"""The run of a unique task as its body, its class and its caller meet it."""

import pickle
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError

from celery_redislock import LockLost
from celery_redislock.locks.lease import InertLease
from celery_redislock.store.store import History
from celery_redislock.testing import hold
from tests.unit.shop import KEY, SCOPES, Shop, body


def test_a_body_sees_its_lease(shop: Shop) -> None:
    """``self.lease``: ``key``, ``token``, ``fence``, ``expires_in``, ``held``, ``lost``, ``check()``."""
    seen: dict[str, Any] = {}

    def look(self: Any, account_id: int) -> None:
        lease = self.lease
        lease.check()
        seen.update(key=lease.key, held=lease.held, lost=lease.lost, fence=lease.fence, token=lease.token)
        seen["expires_in"] = lease.expires_in

    task = shop.unique(look, bind=True, lock_key=KEY)
    with shop.running(task):
        task(7)

        assert not task.lease.held
        with pytest.raises(LockLost, match="it has been released"):
            task.lease.check()
    assert (seen["key"], seen["held"], seen["lost"]) == (KEY, True, False)
    assert seen["token"].startswith("t1/")
    assert seen["fence"] > 10**15
    assert 28 < seen["expires_in"] <= 30


@pytest.mark.parametrize("acks_late", [False, True])
@pytest.mark.parametrize("scope", ["until_executing", "until_expired"])
def test_where_the_key_is_not_held_the_lease_is_inert(shop: Shop, scope: str, *, acks_late: bool) -> None:
    """Also where the run holds a lease on its message: that is no lock of the user's."""
    leases: list[Any] = []
    task = shop.noting(leases, lambda task: task.lease, acks_late=acks_late, **SCOPES[scope])
    task.delay(7)
    shop.run()
    for lease in (task.lease, *leases):
        lease.check()
        assert isinstance(lease, InertLease)
        assert (lease.held, lease.lost, lease.expires_in) == (False, False, 0)
        assert (lease.fence, lease.key, lease.token) == (None, None, None)


def test_a_body_that_calls_its_own_task_does_not_lock_itself(shop: Shop) -> None:
    """A call inside a body is a function call."""

    def count(account_id: int) -> int:
        return 0 if account_id == 0 else 1 + int(shop.app.tasks["shop.sync"](account_id - 1))

    shop.unique(count, lock_key=KEY).delay(3)
    assert shop.run() == 3
    assert shop.store.calls == ["acquire", "acquire", "release"]


def test_eager_and_direct_calls_take_no_lock(shop: Shop) -> None:
    """They never disturb a queued task's lock."""
    task = shop.unique(body, lock_key=KEY)
    with hold(task, 7):
        shop.store.calls.clear()
        result = task.apply((7,))
        assert task(7) == 7
        assert shop.store.calls == []
    copy = pickle.loads(pickle.dumps(result))  # noqa: S301  as a caller may
    assert (copy.get(), copy.id, copy.is_duplicate) == (7, result.id, False)


def test_with_redislock_eager_they_take_it(shop: Shop, monkeypatch: Any) -> None:
    """Also inside the body of another task, where Celery forbids to wait for results: this one is there."""
    monkeypatch.setattr("celery.result.task_join_will_block", lambda: True)
    shop.app.conf.redislock_eager = True
    states: list[Any] = []
    task = shop.noting(
        states, lambda _task: [state for _, state in shop.states()], lock_key=KEY, acks_late=True
    )
    assert task.apply((7,)).result == 7
    assert task(7) == 7
    assert states == [["running"], ["running"]]
    assert (shop.held(), shop.store.marks()) == ({}, {})


@pytest.mark.parametrize("backend", ["cache+memory://", "disabled://"])
@pytest.mark.parametrize("form", ["apply", "delay", "apply_async", "delay of while_executing"])
def test_every_form_of_an_eager_call_answers_a_skip_in_one_way(form: str, backend: str) -> None:
    """``get()`` raises at once, as for one that a worker skipped; there is nobody to wait for."""
    shop = Shop(result_backend=backend, redislock_eager=True, task_always_eager=form != "apply")
    task = shop.unique(body, lock_key=KEY)
    serialised = shop.unique(body, name="shop.one", lock_key=KEY, lock="while_executing", on_conflict="skip")
    call = {
        "apply": lambda: task.apply((7,)),
        "delay": lambda: task.delay(7),
        "apply_async": lambda: task.apply_async((7,), task_id="mine"),
        "delay of while_executing": lambda: serialised.delay(7),
    }[form]
    with hold(task, 7, task_id="first"):
        result = call()

    for seen in (result, pickle.loads(pickle.dumps(result))):  # noqa: S301  as a caller may
        assert (seen.is_duplicate, seen.state, seen.successful()) == (True, "REVOKED", False)
        assert isinstance(seen.get(propagate=False), TaskRevokedError)
        with pytest.raises(TaskRevokedError, match=r"^duplicate of first$"):
            seen.get()
    with hold(task, 7, task_id="first"), pytest.raises(TaskRevokedError, match=r"^duplicate of first$"):
        task(7)  # a direct call has no result to tell by, and None could be the body's
    assert call().get() == 7


def losing(shop: Shop, **options: Any) -> Any:
    """Declare a task whose body loses its lease."""

    def sync(self: Any, account_id: int) -> None:
        self.request.redislock_run.lease.lose("it was taken away")

    return shop.unique(sync, bind=True, lock_key=KEY, **options)


def test_the_loss_of_a_lease_on_a_message_is_only_logged(shop: Shop, caplog: Any) -> None:
    """``on_lock_lost`` is about a lock of the key, which ``until_executing`` does not hold while it runs."""
    losses: list[Any] = []
    shop.app.conf.redislock_on_lock_lost = losses.append
    losing(shop, lock="until_executing", acks_late=True).delay(7)
    shop.run()
    assert losses == []
    assert "lost its lock on 'message:" in caplog.text


@pytest.mark.parametrize("task_id", ["first", "another"])
def test_who_released_the_lock_by_force_is_told_to_the_run_that_lost_it(
    shop: Shop, caplog: Any, monkeypatch: Any, task_id: str
) -> None:
    """Quoted in its line; not what befell an earlier holder of the key."""
    forced = {"by": "ann", "host": "web-1", "pid": 7, "reason": "host died", "owner": task_id, "since": 1.5}
    monkeypatch.setattr(shop.store, "happened", lambda *_, **__: History(forced=forced))
    losing(shop).apply_async((7,), task_id="first")
    shop.run()
    assert ("from first by ann on web-1 (pid 7): 'host died'" in caplog.text) == (task_id == "first")
    assert ("it was taken away" in caplog.text) == (task_id == "another")


def test_a_run_that_cannot_be_skipped_says_so_to_the_server(shop: Shop) -> None:
    """Refused, it is counted among those that wait, whatever its task asks for."""
    seen: list[Any] = []
    facts = lambda task: shop.store.inspect(task.lease.key).facts["on_conflict"]  # noqa: E731
    task = shop.noting(seen, facts)
    task.delay(7)
    shop.app.send_task(task.name, (8,))
    for message in shop.messages():
        shop.run(shop.receive(message))
    assert seen == ["wait", "skip"]
