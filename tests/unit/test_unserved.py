"""A line whose first message belongs to a broker without workers: it is told, and can be sent elsewhere."""

from typing import Any

import pytest

from celery_redislock import log
from celery_redislock.publishing import promote
from celery_redislock.receiving import sweep
from celery_redislock.store.home import LIVES
from tests.clocks import AheadClock
from tests.unit.shop import KEY, Shop, body
from tests.unit.test_cli_line import LOCK, answer, call, held, in_line, park

GONE = "amqp:gone:5672//"


@pytest.fixture
def clock(shop: Shop, monkeypatch: Any) -> AheadClock:
    """That of the lock server and of the worker."""
    clock = AheadClock()
    shop.store._clock = clock
    monkeypatch.setattr(log, "monotonic", clock)
    monkeypatch.setattr(log, "_told_at", {})
    return clock


@pytest.fixture
def task(shop: Shop, monkeypatch: Any) -> Any:
    """A task of which three calls wait, that a worker of another broker has received."""
    task = shop.unique(body, **LOCK)
    held(shop)
    with monkeypatch.context() as patch:
        patch.setattr(promote, "install", lambda _app, store: setattr(store, "home", GONE))
        park(shop, task, "a", "b", "c")
    shop.store.home = ""
    return task


def told(shop: Shop, words: str) -> str:
    """What a command says, on either stream."""
    done = call(shop, *words.split())
    return done.stdout + done.stderr


@pytest.mark.usefixtures("task")
@pytest.mark.parametrize("words", [f"waiting {KEY}", "waiting", f"explain {KEY}", "doctor"])
def test_each_command_that_shows_a_line_tells_of_it_and_what_to_do(
    shop: Shop, clock: AheadClock, words: str
) -> None:
    """Until a worker of that broker is there again."""
    remedy = f"waiting --drain --home {KEY}"
    assert GONE in (said := told(shop, words))
    assert remedy in said

    shop.store.homes(GONE, "x")
    assert GONE not in told(shop, words)

    clock.advance(LIVES)
    assert GONE in told(shop, words)


@pytest.mark.usefixtures("task")
@pytest.mark.parametrize("words", [("waiting", KEY), ("explain", KEY)])
def test_programs_are_told_as_well(shop: Shop, words: tuple[str, str]) -> None:
    assert answer(shop, *words)["unserved"] == {KEY: GONE}
    shop.store.homes(GONE)
    assert answer(shop, *words)["unserved"] == {}


@pytest.mark.usefixtures("task")
def test_the_look_of_a_worker_tells_of_it_once_a_minute(shop: Shop, clock: AheadClock, caplog: Any) -> None:
    """Nothing, while one of that broker is there: it is that one's turn."""

    def looks(seconds: float) -> int:
        caplog.clear()
        for _ in range(10):
            clock.advance(seconds / 10)
            sweep.look(shop.store, lambda _name: shop)
        return [record.levelname for record in caplog.records if GONE in record.getMessage()].count("WARNING")

    shop.store.release(KEY, "holder/1")
    assert looks(20.0) == 1
    assert looks(30.0) == 0
    assert looks(30.0) == 1
    shop.store.homes(GONE, "x")
    assert looks(50.0) == 0
    assert looks(30.0) == 1


class TestSentElsewhere:
    """``waiting --drain --home``."""

    @pytest.mark.usefixtures("task")
    def test_it_goes_to_the_queues_of_the_apps_broker_and_that_is_logged(
        self, shop: Shop, caplog: Any
    ) -> None:
        done = call(shop, "waiting", KEY, "--drain", "--home", "--yes", "--reason", "moved")

        assert (done.exit_code, done.stdout) == (0, "3 waiting messages are back in their queues\n")
        assert in_line(shop) == []
        assert [message.headers["id"] for message in shop.messages()] == ["a", "b", "c"]
        (line,) = [record.getMessage() for record in caplog.records if "drained" in record.getMessage()]
        assert f"those of {GONE} to the queues of memory" in line
        assert "moved" in line

    @pytest.mark.usefixtures("task")
    def test_it_is_asked_for_by_the_brokers_name(self, shop: Shop, monkeypatch: Any) -> None:
        asked: list[str] = []
        monkeypatch.setattr("celery_redislock.cli.line.ask", asked.append)

        call(shop, "waiting", KEY, "--drain", "--home")

        assert GONE in asked[0]

    @pytest.mark.usefixtures("task")
    def test_without_it_they_stay_and_the_remedy_is_told(self, shop: Shop) -> None:
        done = call(shop, "waiting", KEY, "--drain", "--yes")

        assert (done.exit_code, in_line(shop)) == (1, ["a", "b", "c"])
        assert f"some belong to the broker {GONE}: add --home" in done.stdout

    @pytest.mark.usefixtures("task")
    def test_what_a_living_worker_serves_stays_in_any_case(self, shop: Shop) -> None:
        """Its broker's queues are where it belongs."""
        shop.store.homes(GONE, "x")

        done = call(shop, "waiting", KEY, "--drain", "--home", "--yes")

        assert (done.exit_code, in_line(shop)) == (1, ["a", "b", "c"])
        assert f"some belong to the broker {GONE}: a worker of that was seen" in done.stdout

    def test_it_goes_with_a_drain_only(self, shop: Shop) -> None:
        assert "--home and --dry-run go with --drain" in call(shop, "waiting", "--home").stderr
