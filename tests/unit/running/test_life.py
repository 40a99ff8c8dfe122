"""The life of a run: where each event takes it, and what is no transition."""

import logging
from itertools import pairwise
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject

from celery_redislock.running import finish as module
from celery_redislock.running import life, transition
from celery_redislock.running.run import Run
from celery_redislock.running.transition import Transition
from celery_redislock.testing import hold
from tests.unit.running.lives import Life, raising
from tests.unit.shop import KEY, Shop, body, carried

#: What a body does, how its task is declared, and the states after it has begun.
LIVES: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "returns": (bool, {}, ["ended"]),
    "returns, and may come again": (bool, {"acks_late": True}, ["ended", "over"]),
    "raises": (raising(ValueError("no")), {"acks_late": True}, ["ended", "over"]),
    "ignored": (raising(Ignore("no")), {"acks_late": True}, ["ended", "over"]),
    "requeued": (raising(Reject("later", requeue=True)), {"acks_late": True}, ["requeued"]),
    "not requeued": (raising(Reject("no", requeue=True)), {}, ["ended"]),
    "its process exits": (raising(SystemExit(1)), {"acks_late": True}, ["broken off"]),
}


class History:
    """Stands in for a run's state, and remembers each one."""

    def __init__(self) -> None:
        self.states = ["not begun"]

    def __get__(self, run: object, owner: object) -> str:
        return self.states[-1]

    def __set__(self, run: object, state: str) -> None:
        self.states.append(state)


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The states of the one run of a test."""
    history = History()
    monkeypatch.setattr(Run, "state", history)
    return history.states


@pytest.mark.parametrize(("act", "options", "states"), LIVES.values(), ids=LIVES)
def test_each_end_of_a_body_has_its_transition(
    shop: Shop, monkeypatch: Any, history: list[str], act: Any, options: dict[str, Any], states: list[str]
) -> None:
    """Law 8: what is over has told its copies, and what may run again has not."""
    Life(shop, monkeypatch, "until_executed", **options).run(act)

    assert history == ["not begun", "begun", *states]


@pytest.mark.parametrize(("late", "states"), [(False, []), (True, ["over"])])
def test_a_result_that_is_stored_next_releases_before_the_run_is_over(
    shop: Shop, monkeypatch: Any, history: list[str], late: bool, states: list[str]
) -> None:
    """Law 5, where results and locks share a server."""
    monkeypatch.setattr(module, "_joining", lambda *_: lambda *_: True)

    Life(shop, monkeypatch, "until_executed", acks_late=late).run()

    assert history == ["not begun", "begun", "ended", "stored next", *states]


def test_one_that_has_waited_in_vain_ends_and_has_not_begun(shop: Shop, history: list[str]) -> None:
    """A copy of its message, as a broker may have, has nothing to do."""
    task = shop.unique(body, lock_key=KEY, lock="while_executing", lock_wait_timeout=5)
    with hold(task, 7):
        task.delay(7)
        message = shop.message()
        message.headers = carried(message)._replace(parked_at=1.0).added_to(message.headers)
        shop.run(shop.receive(message))

    assert history == ["not begun", "ended", "over"]


def test_every_transition_is_in_one_of_these_lives() -> None:
    """A transition that no message meets is one too many."""
    begun = [["begun", *states] for *_, states in LIVES.values()]
    told = [["not begun", "begun"], ["not begun", "ended"], ["ended", "stored next", "over"], *begun]
    met = {pair for states in told for pair in pairwise(states)}

    tables = [table for table in vars(life).values() if isinstance(table, Transition)]
    assert {pair for table in tables for pair in table.items()} == met


def test_what_cannot_happen_is_an_error_here_and_is_logged_in_a_worker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The state stays: a worker's messages run all the same."""
    with pytest.raises(AssertionError, match="its body ends, and was 'not begun': no such transition"):
        life.END[life.NOT_BEGUN]
    monkeypatch.setattr(transition, "report", transition.log)

    assert life.END[life.OVER] == "over"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
