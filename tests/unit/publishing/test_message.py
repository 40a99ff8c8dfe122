"""The header a message carries: small, readable by the next version, never a reason to lose a message."""

import pytest

from celery_redislock.publishing.message import HEADER, Message

FULL = Message(
    key="account:7",
    token="t1/nonce",  # noqa: S106  of a lock
    claimed=True,
    must_run=True,
    options={"lock_ttl": 60.0},
    has_own_key=True,
    stands_for_period=True,
    was_delivered=True,
    is_tick=True,
    opened_by="t1/first",
    was_told=True,
)


def test_a_header_is_read_as_it_was_written_and_an_ordinary_one_is_short() -> None:
    """It travels with every message; what a later version adds to it is passed over."""
    ordinary = Message("k", "t/x", claimed=True)
    assert ordinary.dumps() == '{"v":1,"k":"k","t":"t/x","c":1}'
    for header in (FULL, ordinary, Message(None, "t/x")):
        assert Message.loads(header.dumps()) == header
        assert Message.loads(header.dumps().replace("{", '{"new": 1, ', 1)) == header


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"{}",
        "nonsense",
        "[]",
        '{"v": 2, "k": "k", "t": "t"}',
        '{"v": 1, "k": "k"}',
        '{"v": 1, "t": "t"}',
        '{"v": 1, "k": "k", "t": "t", "o": 5}',
        '{"v": 1, "k": 5, "t": "t"}',
        '{"v": 1, "k": "k", "t": 5}',
        '{"v": 1, "k": "k", "t": null}',
        r'{"v": 1, "k": "\ud800", "t": "t"}',
        r'{"v": 1, "k": "k", "t": "t\ud800"}',
        '{"v": 1, "k": "k", "t": "t", "a": 5}',
        r'{"v": 1, "k": "k", "t": "t", "a": "t\ud800"}',
        "[" * 100_000,
    ],
    ids=lambda text: str(text)[:40],
)
def test_a_header_that_cannot_be_read_counts_as_none(text: object) -> None:
    """Law 2: made by hand, or by another version, the worker computes the key itself, and nothing is lost."""
    assert Message.loads(text) is None


@pytest.mark.parametrize("task_id", ["t1", "import/7", "/", "7/"])
@pytest.mark.parametrize("token", ["{id}", "{id}/nonce"])
def test_a_header_belongs_to_its_own_task_id_whatever_that_looks_like(task_id: str, token: str) -> None:
    """Law 8: a message that came without a header and had to wait has its task id for a token."""
    header = Message("k", token.format(id=task_id), was_delivered=True)
    assert Message.of({HEADER: header.dumps()}, task_id) == header
    assert Message.of({HEADER: header.dumps()}, f"{task_id}x") is None
