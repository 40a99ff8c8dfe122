"""The soak's judge: what it must find, and what it must let pass."""

from dataclasses import replace

import pytest

from tests.soak.history import Run, overlaps, unordered_fences

FIRST = Run("a", "t1", "t1/x", 10, 0.0, 5.0, 6.0, "", False)
SECOND = Run("a", "t2", "t2/x", 11, 5.5, 8.0, 9.0, "", False)


@pytest.mark.parametrize(
    ("change", "is_wrong"),
    [
        ({}, False),
        ({"start": 4.9}, True),
        ({"start": 4.9, "key": "b"}, False),
        ({"start": 5.0}, False),
    ],
    ids=str,
)
def test_a_body_that_begins_while_another_of_its_key_is_on_overlaps(
    change: dict[str, object], is_wrong: bool
) -> None:
    """Law 1."""
    later = replace(SECOND, **change)  # type: ignore[arg-type]  # any of its fields

    assert overlaps([later, FIRST]) == ([(FIRST, later)] if is_wrong else [])


def test_a_body_that_went_on_after_its_deadline_is_no_overlap() -> None:
    """It was paused, and its lease had run out: the fence is for that."""
    paused = replace(FIRST, end=50.0)

    assert overlaps([paused, replace(SECOND, start=6.0)]) == []
    assert overlaps([paused, replace(SECOND, start=5.9)]) != []


def test_an_overlap_with_any_earlier_body_is_found() -> None:
    long = replace(FIRST, end=50.0, trusted_until=60.0)
    third = replace(SECOND, token="t3/x", start=20.0, end=21.0, trusted_until=22.0)  # noqa: S106  of a lock

    assert {(one.token, other.token) for one, other in overlaps([long, SECOND, third])} == {
        ("t1/x", "t2/x"),
        ("t1/x", "t3/x"),
    }


@pytest.mark.parametrize("fence", [9, 10])
def test_a_later_body_with_no_larger_fence_is_out_of_order(fence: int) -> None:
    later = replace(SECOND, fence=fence)

    assert unordered_fences([later, FIRST]) == [(FIRST, later)]
    assert unordered_fences([replace(later, key="b"), FIRST]) == []
    assert unordered_fences([SECOND, FIRST]) == []
