"""Requests made by hand, as tests make them: with less in them than a worker puts there, or with more."""

from typing import Any
from uuid import UUID

import pytest
from celery.app.trace import build_tracer

from celery_redislock.publishing.message import Message
from tests.unit.shop import KEY, Shop


def headers_seen(self: Any) -> Any:
    return self.request.headers


def run() -> str:
    return "ran"


@pytest.mark.parametrize("headers", [123, "text", [], (), {}, None], ids=repr)
def test_headers_that_are_no_mapping_say_nothing(shop: Shop, headers: Any) -> None:
    """Celery takes any headers for a call in place, and hands them on as they are."""
    task = shop.unique(headers_seen, bind=True)
    assert task.apply(headers=headers).get() == headers
    assert Message.of(headers, "t1") is None


def test_a_task_run_by_hand_through_its_proxy_is_done(shop: Shop) -> None:
    """Law 8: ``app.task`` returns a proxy, and its run is concluded like any other."""
    runs: list[str] = []
    proxy = shop.noting(runs, lambda task: task.request.id, lazy=True, lock_key=KEY, acks_late=True)
    trace = build_tracer(proxy.name, proxy, app=shop.app)
    properties = {"delivery_tag": "a tag"}
    request = {"id": "t1", "delivery_info": {"redelivered": True}, "properties": properties}
    trace("t1", (7,), {}, request)
    trace("t1", (7,), {}, request)
    assert runs == ["t1"]
    assert shop.messages() == []


@pytest.mark.parametrize("request_is", [{}, {"id": None}, {"id": "t1"}], ids=repr)
def test_a_request_of_next_to_nothing_runs_the_body(shop: Shop, request_is: dict[str, Any]) -> None:
    """Without an id it takes no lock; with one its task does, and leaves none behind."""
    task = shop.unique(run, lock_key=KEY)
    task.push_request(called_directly=False, **request_is)
    try:
        assert task() == "ran"
    finally:
        task.pop_request()
    assert shop.held() == {}


@pytest.mark.parametrize("task_id", ["a\0b", "import/7", UUID(int=7), 5], ids=repr)
def test_a_task_id_of_any_kind_runs_and_leaves_no_lock(shop: Shop, task_id: Any) -> None:
    """Law 2: what runs with plain Celery runs with a lock."""
    task = shop.unique(run, lock_key=KEY, acks_late=True)
    task.apply_async(task_id=task_id)
    assert shop.run() == "ran"
    assert (shop.messages(), shop.held()) == ([], {})


@pytest.mark.parametrize("task_id", [5, 1.5, True, None], ids=repr)
@pytest.mark.parametrize("lock", [None, "until_executed"])
def test_a_raw_message_whose_id_is_no_text_ends_no_worker(shop: Shop, lock: Any, task_id: Any) -> None:
    """Law 2: the main process receives it as plain Celery does."""
    shop.unique(run, lock=lock, lock_key=KEY)
    shop.app.send_task("shop.sync", task_id="t1")
    message = shop.message()
    message.headers["id"] = task_id
    assert shop.receive(message).id == task_id
