"""What a worker remembers of the messages it has in hand, by their keys: who is the last, and how long."""

from typing import Any

import pytest

from celery_redislock.publishing.message import Message
from celery_redislock.receiving import line
from tests.clocks import ManualClock


class Received:
    """A message in hand."""

    state = "received"
    first_behind = ""


def note(key: str) -> Received:
    """Receive a message of this key."""
    request = Received()
    line.note(Message(key, "t1/x").dumps(), request)
    return request


@pytest.mark.parametrize("key", ["account:7", "account:café", 'say "x"', "back\\slash", "日本"])
def test_a_key_is_known_by_its_name_however_the_header_writes_it(key: str) -> None:
    """Who is parked behind it is put there by the name of the lock."""
    first = note(key)
    line.put("t3", key)

    assert line.last(key) is first
    assert first.first_behind == "t3"


@pytest.mark.parametrize("header", ["", "\\", '{"v":1,"k":"\\x","t":"a"}', '{"v":1,"k":null,"t":"a\\"}'])
def test_what_is_no_header_of_ours_breaks_nothing(header: str) -> None:
    line.note(header, Received())


def test_who_comes_stands_behind_the_last_one_whose_end_was_not_heard() -> None:
    """One that has ended, and one that nobody has any more, are in no hand."""
    first, second, third = note("a"), note("a"), note("a")
    assert line.last("a") is third
    third.state = "ending"
    assert line.last("a") is second
    del second
    assert line.last("a") is first
    assert line.last("b") is None


def test_those_in_hand_know_the_first_one_parked_behind_them() -> None:
    """One that its child refuses goes before that one, and is then the first behind those before itself."""
    first, second = note("a"), note("a")
    line.put("t3", "a")
    third = note("a")
    line.put("t4", "a")
    assert [each.first_behind for each in (first, second, third)] == ["t3", "t3", "t4"]
    line.put("t2", "a", second)
    assert [each.first_behind for each in (first, second, third)] == ["t2", "t3", "t4"]


def test_one_that_nobody_has_any_more_hides_none_of_those_behind_it() -> None:
    """Who is refused goes before what was parked behind it, whatever has become of earlier ones."""
    first, second = note("a"), note("a")
    del first
    line.put("t3", "a")
    assert second.first_behind == "t3"


def test_a_key_is_busy_for_a_while_after_one_was_parked(clock: ManualClock, monkeypatch: Any) -> None:
    """Others may come behind that one; what nobody waits for is forgotten."""
    monkeypatch.setattr(line, "boottime", clock)
    line.is_parked("a")
    clock.advance(line.LATELY - 0.1)
    assert line.was_parked_lately("a")
    assert "a" in line.busy
    clock.advance(0.2)
    assert not line.was_parked_lately("a")
    assert "a" not in line.busy


def test_keys_of_which_nothing_is_in_hand_make_room_for_others(monkeypatch: Any) -> None:
    """Law 10: a worker that receives a million keys remembers some thousands of them."""
    monkeypatch.setattr(line, "MOST_KEYS", 2)
    kept = note("kept")
    line.is_parked("parked")
    another = note("another")
    assert set(line.busy) == {"kept", "another"}
    assert line.last("kept") is kept
    third = note("third")
    assert set(line.busy) == {"third"}
    assert line.last("third") is third
    assert another.state == "received"
