"""What a holder tells of its call's arguments."""

import json
from typing import Any

import pytest

from celery_redislock.declaring.keys import problems_of_text, teller


def told(arguments: dict[str, object], lock_key: Any = None, describe: str | None = None) -> dict[str, Any]:
    """What is written, as who is refused reads it."""
    tell = teller(lock_key, describe, ["account_id", "amount"])
    assert tell is not None
    facts: dict[str, Any] = json.loads(f'{{"task":"t"{tell(arguments)}}}')
    return facts


@pytest.mark.parametrize(
    "lock_key", [None, ("amount", "account_id"), "a:{account_id}:{amount}", "{amount}-{account_id}"]
)
def test_a_key_that_has_all_arguments_tells_nothing_more(lock_key: Any) -> None:
    """Equal keys are equal calls."""
    assert teller(lock_key, None, ["account_id", "amount"]) is None


@pytest.mark.parametrize(
    "lock_key", [("account_id",), (), "a:{account_id}", "a:{account_id}:{amount.x}", str]
)
def test_calls_that_differ_in_what_the_key_leaves_out_are_told_apart(lock_key: Any) -> None:
    """By a fingerprint, which is no argument."""
    one, same, other = (
        told({"account_id": 42, "amount": amount}, lock_key)["args"] for amount in (5, 5, 700)
    )
    assert one == same != other
    assert len(one) == 8


def test_large_and_strange_arguments_are_not_looked_at() -> None:
    """Whatever they cost to read, the call does not pay it."""

    class Unread:
        def __getattribute__(self, name: str) -> Any:
            pytest.fail(f"{name} was asked for")

    values = [Unread(), "x" * 10_000, ["x"] * 10_000]

    assert len({told({"account_id": 42, "amount": each}, ("account_id",))["args"] for each in values}) == 1


@pytest.mark.parametrize(
    ("describe", "text"),
    [
        ("order {account_id} of {amount[name]}", 'order 42 of Ann "the" {1}'),
        ("{account_id}{amount[lines]}", "42?"),
        ("{amount[gone]} {{x}}", "? {x}"),
        ("x" * 100, "x" * 79 + "…"),
        ("ünï\n{account_id}", "ünï\n42"),
    ],
)
def test_a_text_about_a_call_has_its_arguments_in_it(describe: str, text: str) -> None:
    """What a call does not have, or what has no text, is a question mark; the call is published."""
    arguments: dict[str, object] = {"account_id": 42, "amount": {"name": 'Ann "the" {1}', "lines": [1]}}
    assert told(arguments, describe=describe) == {"task": "t", "args": "", "about": text}


def test_a_text_that_names_no_parameter_is_refused_with_the_nearest() -> None:
    """When the task is bound."""
    nearest = "'acount_id', which is no parameter of the task; did you mean 'account_id'?"
    for text, said in (
        ("order {acount_id}", f"lock_describe names {nearest}"),
        ("order {", "lock_describe: "),
        ("order {account_id!r}", "lock_describe: {account_id!r}"),
    ):
        assert problems_of_text(text, ["account_id"])[0].startswith(said)
    assert problems_of_text("order {account_id} {amount}", ["account_id", "amount"]) == []
