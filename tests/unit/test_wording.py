"""A lock server's complaints, in words for people."""

import pytest

from celery_redislock.locks.wording import words_of, wrong_kind

KEYS = ["redislock:{a}:lock", "redislock:{a}:window", "redislock:index"]
ALL = "one of its keys (redislock:{a}:lock, redislock:{a}:window, redislock:index) is of another kind"


@pytest.mark.parametrize(
    "said",
    [
        "Error running script (call to f_2cc1): @user_script:73: @user_script: 73: -OOM it is full",
        "it is full. script: 2cc17a8c15af68143e206d36583feca7ad513cc1, on @user_script:73.",
        "it is full script: on @user_script:73.",
        "it is full",
    ],
)
def test_what_a_server_adds_about_the_script_is_left_out(said: str) -> None:
    """Where in a script of ours a command failed tells a user nothing."""
    assert words_of(ValueError(said)) == "it is full"


def test_an_error_without_words_is_named() -> None:
    assert words_of(TimeoutError()) == "TimeoutError"


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (["list", "none", "zset"], "its key 'redislock:{a}:lock' is a list"),
        (["string", "none", "string"], "its key 'redislock:index' is a string"),
        (
            ["zset", "hash", "none"],
            "its key 'redislock:{a}:lock' is a zset and its key 'redislock:{a}:window' is a hash",
        ),
        ([], ALL),
        (["string", "string", "zset"], ALL),
    ],
)
def test_the_key_that_is_in_the_way_is_named(kinds: list[str], said: str) -> None:
    """All of them only where the server does not tell, or where that key is gone meanwhile."""
    assert wrong_kind(KEYS, dict(zip(KEYS, kinds, strict=False))) == said
