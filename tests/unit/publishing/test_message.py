"""The header a message carries: small, readable by the next version, never a reason to lose a message."""

import json

import pytest

from celery_redislock.publishing.message import HEADER, Message

FULL = Message(
    key="account:7",
    token="t1/nonce",  # noqa: S106  of a lock
    claimed=True,
    published_at=1234.567,
    must_run=True,
    options={"lock_ttl": 60.0},
    has_own_key=True,
    waits_for=HolderSeen("t2", is_same_work=True),
    put_off=3,
    was_delivered=True,
)


@pytest.mark.parametrize(
    "header",
    [
        FULL,
        Message("k", "t/x"),
        Message(None, "t/x"),
        Message("k", "t/x", waits_for=HolderSeen("a", is_same_work=False)),
    ],
)
def test_a_header_is_read_as_it_was_written(header: Message) -> None:
    assert Message.loads(header.dumps()) == header


def test_an_ordinary_header_is_short() -> None:
    """It travels with every message."""
    assert json.loads(Message("k", "t/x", claimed=True).dumps()) == {
        "v": 1,
        "k": "k",
        "t": "t/x",
        "at": 0.0,
        "c": 1,
    }


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        b"{}",
        "",
        "nonsense",
        "[]",
        "null",
        "{}",
        '{"v": 2, "k": "k", "t": "t"}',
        '{"v": 1, "k": "k"}',
        '{"v": 1, "t": "t"}',
        '{"v": 1, "k": "k", "t": "t", "at": "x"}',
        '{"v": 1, "k": "k", "t": "t", "o": 5}',
        '{"v": 1, "k": "k", "t": "t", "n": "x"}',
        '{"v": 1, "k": "k", "t": "t", "f": 5}',
        '{"v": 1, "k": "k", "t": "t", "f": {"id": "x"}}',
        '{"v": 1, "k": 5, "t": "t"}',
        '{"v": 1, "k": "k", "t": 5}',
        '{"v": 1, "k": "k", "t": null}',
        '{"v": 1, "k": "k", "t": "t", "at": 1e999, "n": 1e999}',
        "[" * 100_000,
    ],
    ids=lambda text: str(text)[:40],
)
def test_what_cannot_be_read_counts_as_none(text: object) -> None:
    """Made by hand, or by another version: the worker computes the key itself, and nothing is lost."""
    assert Message.loads(text) is None


def test_what_a_later_version_adds_is_passed_over() -> None:
    assert Message.loads('{"v": 1, "k": "k", "t": "t", "new": 1}') == Message("k", "t")


def test_putting_off_counts_and_remembers_the_holder() -> None:
    seen = HolderSeen("t2", is_same_work=True)

    again = Message("k", "t/x", claimed=True).put_off_for(seen).put_off_for(seen)

    assert again == Message("k", "t/x", claimed=True, waits_for=seen, put_off=2)
    assert Message("k", "t/x").as_copy() == Message("k", "t/x", was_delivered=True)


@pytest.mark.parametrize("task_id", ["t1", "import/7", "/", "7/"])
@pytest.mark.parametrize("token", ["{id}", "{id}/nonce"])
def test_a_header_is_read_whatever_its_task_id_looks_like(task_id: str, token: str) -> None:
    """Law 8: the header of a message put off that came without one has its task id for a token."""
    header = Message("k", token.format(id=task_id), was_delivered=True)

    assert Message.of({HEADER: header.dumps()}, task_id) == header
    assert Message.of({HEADER: header.dumps()}, f"{task_id}x") is None
