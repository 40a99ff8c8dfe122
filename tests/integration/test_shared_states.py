"""The contract of a schedule's shared states: on a server, and in the memory that unit tests use."""

import time
from datetime import datetime, timezone
from math import inf
from typing import Any

import pytest

from celery_redislock.exceptions import LockKeyError, LockUnavailable
from celery_redislock.scheduling.state import (
    KEPT,
    LONGEST_PAUSE,
    NOTHING,
    Answer,
    Pause,
    State,
    States,
    finished,
    prolonged,
)
from tests.clocks import ManualClock
from tests.facts import wait_until
from tests.states import MemoryStates, state_of
from tests.stores import RedisCase

#: Longer than any test takes, unless it waits for the end itself.
BOUND = 30.0


class Case:
    """The states, and how a test ends the bound of a tick that is being sent."""

    def __init__(self, states: States, prefix: str, client: Any = None, store: Any = None) -> None:
        self.states, self.client, self.prefix, self.store = states, client, prefix, store

    def take(
        self, known: str = NOTHING, *, nonce: str = "a", bound: float = BOUND, entry: str = "e"
    ) -> Answer:
        return self.states.take(entry, known, about(nonce), bound=bound, next_in=60.0)

    def pass_bound(self, seconds: float, now: float) -> None:
        """Let a bound pass that began at *now*, by the server's clock."""
        if isinstance(self.states, MemoryStates):
            self.states._clock.advance(seconds)  # type: ignore[attr-defined]
            return
        end = time.monotonic() + seconds + 10
        while self.states.read([])[0] < now + seconds:
            assert time.monotonic() < end, "the server's clock stands still"

    def key(self, what: str, entry: str = "e") -> str:
        return f"{self.prefix}:{{shop/{entry}}}:{what}"


def about(nonce: str = "a") -> dict[str, Any]:
    moment = datetime.now(timezone.utc).isoformat()
    return {"at": moment, "before": moment, "by": f"host:{nonce}", "ran": None, "due": None, "nonce": nonce}


def ends_in(case: Case, seconds: float | None) -> float:
    """When a pause of so many seconds ends that begins now, by the server's clock."""
    return inf if seconds is None else case.states.read([])[0] + seconds


def sent(case: Case, known: str = NOTHING, *, nonce: str = "a", entry: str = "e") -> str:
    """Take a tick and settle it; returns the state that is there then."""
    answer = case.take(known, nonce=nonce, entry=entry)
    assert answer.status == "taken"
    after = finished(answer.text, is_sent=True)
    assert case.states.replace(entry, answer.text, after, 60.0)
    return after


@pytest.fixture(params=["memory", "server"])
def case(request: pytest.FixtureRequest, prefix: str) -> Case:
    if request.param == "memory":
        return Case(MemoryStates(ManualClock(1_780_000_000.0)), prefix)
    return request.getfixturevalue("server")


@pytest.fixture
def server(plain_case: RedisCase) -> Case:
    return on_server(plain_case)


def on_server(case: RedisCase) -> Case:
    return Case(States(case.redis, "shop"), case.prefix, case.client, case.redis)


def test_one_of_two_beats_that_know_the_same_takes_the_tick(case: Case) -> None:
    """Compare and set: the other one is shown what is there now."""
    known = sent(case)
    first, second = case.take(known, nonce="a"), case.take(known, nonce="b")
    assert (first.status, second.status) == ("taken", "sending")
    assert second.text == first.text
    state = state_of(first.text)
    assert state.by == "host:a"
    assert state.sending_until == pytest.approx(first.now + BOUND, abs=0.002)
    assert state.taken_at == pytest.approx(first.now, abs=0.002)


def test_a_request_that_is_repeated_takes_the_tick_again(case: Case) -> None:
    """Its answer was lost: the nonce tells it from another beat's."""
    words = about()
    first = case.states.take("e", NOTHING, words, bound=BOUND, next_in=60.0)
    again = case.states.take("e", NOTHING, words, bound=BOUND, next_in=60.0)
    assert (first.status, again.status) == ("taken", "taken")
    assert again.text == first.text


def test_a_tick_that_is_being_sent_is_taken_when_its_bound_has_passed(case: Case) -> None:
    """By whoever knows that state; before, by nobody."""
    first = case.take(bound=0.3)
    assert case.take(first.text, nonce="b").status == "sending"
    case.pass_bound(0.3, first.now)
    assert case.take(first.text, nonce="b").status == "taken"


@pytest.mark.parametrize("later", [3600.0, 9e10])
def test_a_state_that_is_being_sent_for_long_can_be_taken(server: Case, later: float) -> None:
    """The server's clock was set back, or it is nonsense: no entry waits for that."""
    text = prolonged(server.take(bound=0.1).text, later)
    server.client.set(server.key("beat"), text)
    assert server.take(text, nonce="b").status == "taken"


def test_only_who_took_a_tick_settles_it_and_repeating_that_is_harmless(case: Case) -> None:
    """A beat that stood still for too long finds another one's state, and leaves it."""
    first = case.take(bound=0.001)
    case.pass_bound(0.002, first.now)
    second = case.take(first.text, nonce="b")
    after = finished(second.text, is_sent=True)
    assert not case.states.replace("e", first.text, "late", 60.0)
    assert case.states.replace("e", second.text, after, 60.0)
    assert case.states.replace("e", second.text, after, 60.0)
    assert case.states.read(["e"])[1] == [after]


@pytest.mark.parametrize("known", [NOTHING, "sent"])
def test_a_released_tick_leaves_what_was_there_before(case: Case, known: str) -> None:
    """Also where nothing was."""
    before = sent(case) if known else NOTHING
    taken = case.take(before, nonce="b")
    assert case.states.replace("e", taken.text, before, 60.0)
    assert case.states.read(["e"])[1] == [before]
    assert case.take(before, nonce="c").status == "taken"


def test_a_prolonged_tick_is_still_its_beats(case: Case) -> None:
    """Compare and set as well: who was overtaken learns of it."""
    first = case.take(bound=0.3)
    longer = prolonged(first.text, BOUND)
    assert case.states.replace("e", first.text, longer, 60.0)
    case.pass_bound(0.3, first.now)
    assert case.take(first.text, nonce="b").status == "sending"
    assert case.take(longer, nonce="b").status == "sending"


def test_a_paused_entry_spends_its_tick_until_it_is_resumed(server: Case) -> None:
    """In the same request: one beat alone asks for nothing more."""
    known = sent(server)
    server.states.pause("e", None)
    paused = server.take(known, nonce="b")
    assert paused.status == "paused"
    state = state_of(paused.text)
    assert state.sending_until == 0
    assert server.take(known, nonce="b").status == "refused"
    assert server.states.resume("e")
    assert not server.states.resume("e")
    assert server.take(paused.text, nonce="c").status == "taken"


@pytest.mark.parametrize(("seconds", "lives"), [(None, LONGEST_PAUSE), (90.0, 90.0)])
def test_a_pause_says_who_began_it_and_why_and_ends(
    server: Case, seconds: float | None, lives: float
) -> None:
    """Law 4. And the script that spends the tick reads no more of it than it needs."""
    facts = {"by": "anna", "host": "ops1", "since": 1780315200.5, "reason": "größer als 5"}
    server.states.pause("e", seconds, facts)
    ends = pytest.approx(ends_in(server, seconds), abs=5.0)
    assert server.states.pauses(["e", "f"])[1] == {"e": Pause(ends, 1780315200.5, facts)}
    assert server.take().status == "paused"
    assert server.client.pttl(server.key("pause")) == pytest.approx(lives * 1000, abs=5000)


@pytest.mark.parametrize("text", ["inf", "1780315200.5", "inf\0", "inf\0[1]", "inf\0{", "inf\0\0"])
def test_a_pause_without_facts_is_a_pause(server: Case, text: str) -> None:
    """As an earlier version writes it, and with rubbish behind the number."""
    server.client.set(server.key("pause"), text)
    assert server.states.pauses(["e"])[1] == {"e": Pause(float(text.partition("\0")[0]), None, {})}
    assert server.take().status == "paused"


def test_every_key_ends_and_outlives_the_next_due_time_by_a_week(server: Case) -> None:
    """Law 4. Beats may be away for so long and know what was sent last."""
    answer = server.take()
    least = {server.key("beat"): KEPT, f"{server.prefix}:beat": KEPT}
    assert {key.decode() for key in server.client.keys(f"{server.prefix}*")} == set(least)
    for key, seconds in least.items():
        assert server.client.pttl(key) > (seconds - 5) * 1000
    assert server.states.replace("e", answer.text, finished(answer.text, is_sent=True), 60.0)
    assert server.client.pttl(server.key("beat")) > (KEPT - 5) * 1000


@pytest.mark.parametrize("rubbish", [None, "rubbish", "7 {"], ids=["a list", "a text", "half a state"])
def test_a_key_that_is_no_state_is_shown_and_then_replaced_and_no_pause(
    server: Case, rubbish: str | None
) -> None:
    """Never a stop of the schedule; and what the listing shows is what the beats do."""
    for key in (server.key("beat"), server.key("pause")):
        if rubbish is None:
            server.client.rpush(key, "x")
        else:
            server.client.set(key, rubbish)
    first = server.take()
    assert first.status == "refused"
    assert first.text
    assert State.read(first.text) is None
    assert server.take(first.text).status == "taken"
    assert server.states.pauses(["e"])[1] == {}


def test_entries_of_one_name_in_two_apps_are_told_apart(server: Case) -> None:
    """On one prefix, as two projects may have by default."""
    other = States(server.store, "bakery")
    known = sent(server)
    assert other.read(["e"])[1] == [NOTHING]
    assert other.take("e", NOTHING, about(), bound=BOUND, next_in=60.0).status == "taken"
    assert server.states.read(["e"])[1] == [known]
    assert [state.entry for state in other.listed()] == ["e"]


def test_names_of_any_kind_are_read_and_listed(server: Case) -> None:
    """Braces would move a key's hash tag; and what is long is cut."""
    names = ["nightly report", "a{b}c", "größe", "%41", "x" * 300, "tab\there"]
    for name in names:
        sent(server, entry=name)
    assert sorted(state.entry for state in server.states.listed()) == sorted(names)
    assert all(State.read(text) for text in server.states.read(names)[1])
    assert server.states.read(["nobody"])[1] == [NOTHING]


def test_a_list_of_entries_that_is_another_programs_key_stops_no_beat(server: Case) -> None:
    """Beats never look at it; whoever lists the schedule is told what to do."""
    server.client.set(f"{server.prefix}:beat", "x")
    known = sent(server)
    with pytest.raises(LockKeyError, match=f"{server.prefix}:beat is another program's.*rename it"):
        server.states.listed()
    assert server.states.read(["e"])[1] == [known]


def test_more_entries_than_one_request_takes_are_read_in_several(server: Case) -> None:
    """A beat with ten thousand entries keeps the server for no longer than one with five hundred."""
    known = sent(server, entry="n700")
    _, texts = server.states.read([f"n{number}" for number in range(1201)])
    assert [index for index, text in enumerate(texts) if text] == [700]
    assert texts[700] == known


def test_what_is_asked_to_learn_whether_ticks_can_be_taken_leaves_nothing(server: Case) -> None:
    """A beat asks it each second of an outage."""
    server.states.write_nothing()
    assert wait_until(lambda: server.client.keys(f"{server.prefix}*") == [], 5.0)


@pytest.mark.parametrize("refuses", ["no memory", "no writes"])
def test_a_server_that_is_only_read_cannot_take_ticks(lone_case: RedisCase, refuses: str) -> None:
    """The probe fails as the tick does, so that beat does not think every second that the server is back."""
    case = on_server(lone_case)
    case.take()
    setting = ("maxmemory", "1") if refuses == "no memory" else ("min-replicas-to-write", "3")
    before = case.client.config_get(setting[0])[setting[0]]
    case.client.config_set(*setting)
    try:
        assert case.states.read(["e"])[1] != [NOTHING]
        with pytest.raises(LockUnavailable):
            case.take(entry="f")
        with pytest.raises(LockUnavailable):
            case.states.write_nothing()
    finally:
        case.client.config_set(setting[0], before)
