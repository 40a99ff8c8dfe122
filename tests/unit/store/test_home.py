"""A home: which spellings are one broker, and what a worker's children know of it."""

import os

import pytest

from celery_redislock.store.home import LIVES, LONGEST, Proof, SharedText, is_served, spellings_of
from celery_redislock.store.memory import MemoryStore
from tests.forks import fork

PROOFS = {
    "amqp:a": Proof("x", 0.0),
    "amqp:b": Proof("x", LIVES),
    "amqp:c": Proof("y", LIVES),
    "sqs:d": Proof("", 0.0),
    "sqs:e": Proof("", LIVES),
}


@pytest.mark.parametrize(
    ("own", "all_of_it"),
    [
        ("amqp:a", ["amqp:a", "amqp:b"]),
        ("amqp:b", ["amqp:b", "amqp:a"]),
        ("amqp:c", ["amqp:c"]),
        ("sqs:d", ["sqs:d"]),
        ("amqp:new", ["amqp:new"]),
    ],
)
def test_spellings_are_one_home_where_one_name_is_proved_of_them(own: str, all_of_it: list[str]) -> None:
    """Without a name nothing is proved: each spelling is a home."""
    assert spellings_of(own, PROOFS) == all_of_it


@pytest.mark.parametrize("home", [*PROOFS, "amqp:new"])
def test_a_home_is_served_while_a_worker_of_any_of_its_spellings_is_there(home: str) -> None:
    assert is_served(home, PROOFS) is (home in {"amqp:a", "amqp:b", "sqs:d"})


def test_a_child_that_was_forked_before_reads_what_its_parent_writes() -> None:
    """A worker's pool is there before its connection to the broker, over which it proves."""
    store = MemoryStore()
    store.home = "amqp:a"
    asked, answered = os.pipe(), os.pipe()
    if (pid := fork()) == 0:
        os.read(asked[0], 1)
        os.write(answered[1], store.home.encode())
        os._exit(0)

    store.home = "amqp:a\namqp:b"
    os.write(asked[1], b".")
    seen = os.read(answered[0], 100)
    os.waitpid(pid, 0)
    for end in (*asked, *answered):
        os.close(end)

    assert seen == b"amqp:a\namqp:b"
    assert store.own_home == "amqp:a"


def test_of_a_text_that_is_too_long_whole_lines_are_kept() -> None:
    """A piece of a spelling would be another broker's."""
    text = SharedText()
    line = "é" * 500
    text.text = "\n".join([line] * LONGEST)
    assert set(text.text.split("\n")) == {line}
    assert len(text.text.encode()) <= LONGEST
