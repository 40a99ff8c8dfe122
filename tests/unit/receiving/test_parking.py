"""What becomes of a message that waits in line, without a server: its time, its end, and who hears of it."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Ignore

from celery_redislock import LockBusy, LockOptionError, log
from celery_redislock.publishing import promote
from celery_redislock.publishing.message import HEADER, Message
from celery_redislock.receiving import line, parking, renewal
from celery_redislock.store.store import Entry, Parked, owner_of
from celery_redislock.testing import hold, locks_off
from tests.unit.shop import KEY, Shop, body, carried, debts

RUNNING_ONLY: dict[str, Any] = {
    "lock_key": "account:{account_id}",
    "lock": "while_executing",
    "lock_ttl": 1000.0,
}

CONSUMER = SimpleNamespace(hostname="here", connection_errors=(), event_dispatcher=None)


def let_pass(shop: Shop, monkeypatch: Any, seconds: float) -> None:
    """Let time pass on the lock server and for messages, and look at the lines that are due."""
    now = time.time() + seconds
    shop.store.let_pass(seconds)
    monkeypatch.setattr(time, "time", lambda: now)
    shop.store.sweep()


@contextmanager
def parked(shop: Shop, **options: Any) -> Iterator[Any]:
    """While the block runs a lock is held, and a message waits for it in line; its task is returned."""
    promote.install(shop.app, shop.store)
    task = shop.unique(body, **{**RUNNING_ONLY, **options})
    with hold(task, 7, task_id="first"):
        task.apply_async((7,), task_id="t1")
        shop.run()
        assert [waiter.owner for waiter in task.lock_for(7).waiting()] == ["t1"]
        yield task


@pytest.mark.parametrize(
    ("options", "call", "is_parked"),
    [({}, {}, True), ({}, {"countdown": 60}, False), ({"lock_limit": 2}, {}, False)],
    ids=repr,
)
def test_a_message_waits_behind_one_in_hand_that_is_on_its_way(
    shop: Shop, options: dict[str, Any], call: dict[str, Any], *, is_parked: bool
) -> None:
    """And not behind one that waits for its ETA, which may take a day, nor where there is room for both."""
    promote.install(shop.app, shop.store)
    task = shop.unique(body, **RUNNING_ONLY, **options)
    task.apply_async((7,), **call)
    in_hand = shop.receive()
    task.delay(7)
    assert parking._park_received(task, CONSUMER, shop.message(), KEY) is is_parked
    assert in_hand.state == "received"


@pytest.mark.parametrize(
    ("scope", "is_received"),
    [
        ("until_executed", False),
        ("until_executed", True),
        ("while_executing", False),
        ("while_executing", True),
        ("until_and_while_executing", False),
    ],
)
def test_what_a_worker_parks_tells_of_its_call_and_so_does_its_run(
    shop: Shop, scope: str, *, is_received: bool
) -> None:
    """``lock_describe``, also where no claim has told of it: beside another broker it is refused unparked."""
    promote.install(shop.app, shop.store)
    seen: list[Any] = []
    task = shop.noting(
        seen, lambda task: task.lock_for(7).holder().about,
        lock_key="account:{account_id}", lock=scope, on_conflict="wait", lock_describe="{account_id} EUR",
    )  # fmt: skip
    with hold(task, 7, task_id="first"):
        task.apply_async((7,), task_id="t1")
        message = shop.message()
        if is_received:
            line.is_parked(KEY)
            assert parking._park_received(task, CONSUMER, message, KEY)
        else:
            shop.run(shop.receive(message))
        assert [waiter.about for waiter in task.lock_for(7).waiting()] == ["7 EUR"]
    shop.run()
    assert seen == ["7 EUR"]


@pytest.mark.parametrize("scope", ["until_executed", "until_and_while_executing"])
def test_a_run_whose_claim_did_not_become_its_lock_tells_of_its_call(shop: Shop, scope: str) -> None:
    """It was refused a claim, and finds its key free; or its claim is kept beside its lock."""
    seen: list[Any] = []
    task = shop.noting(
        seen, lambda task: task.lock_for(7).holder().about,
        lock_key="account:{account_id}", lock=scope, on_conflict="wait", lock_describe="{account_id} EUR",
    )  # fmt: skip
    with hold(task, 7, task_id="first"):
        task.apply_async((7,), task_id="t1")
    shop.run()
    assert seen == ["7 EUR"]


def test_calls_that_were_accepted_under_another_limit_wait_before_those_that_were_not(shop: Shop) -> None:
    """In the order in which they came: they had their places, and lost them to the worker's own limit."""
    promote.install(shop.app, shop.store)
    task = shop.unique(body, lock_key=KEY, lock_limit=3, on_conflict="wait")
    with hold(task, 7, task_id="runs"):
        for number in (1, 2, 3):
            task.apply_async((7,), task_id=f"t{number}")
        first, second, third = shop.messages()
        task.lock_limit = 1
        for message in (third, first, second):
            shop.run(shop.receive(message))
        assert [waiter.owner for waiter in task.lock_for(7).waiting()] == ["t1", "t2", "t3"]


@pytest.mark.parametrize("refused", [*itertools.permutations(range(3))], ids=str)
def test_those_that_children_refuse_wait_in_the_order_of_their_receipt(
    shop: Shop, refused: tuple[int, ...]
) -> None:
    """Where several may run, several of a key are in hand at once, and others wait behind them already."""
    promote.install(shop.app, shop.store)
    task = shop.unique(body, **RUNNING_ONLY, lock_limit=2)
    for number in range(5):
        task.apply_async((7,), task_id=f"t{number}")
    messages = shop.messages()
    in_hand = [shop.receive(message) for message in messages[:3]]
    with hold(task, 7, task_id="first"), hold(task, 7, task_id="second"):
        for message in messages[3:]:
            assert parking._park_received(task, CONSUMER, message, KEY)
        for number in refused:
            shop.run(in_hand[number])
        owners = [waiter.owner for waiter in task.lock_for(7).waiting()]
        assert owners == ["t0", "t1", "t2", "t3", "t4"]


def test_one_that_is_refused_while_another_is_received_goes_before_it(shop: Shop, monkeypatch: Any) -> None:
    """With threads both are parked at the same moment, and the order is still that of their receipt."""
    promote.install(shop.app, shop.store)
    task = shop.unique(body, **RUNNING_ONLY)
    for number in (1, 2):
        task.apply_async((7,), task_id=f"t{number}")
    first, second = shop.messages()
    in_hand = shop.receive(first)
    refused = threading.Thread(target=shop.run, args=(in_hand,))
    park = shop.store.park

    def park_while_the_first_is_refused(name: str, id_: str, *args: Any, **how: Any) -> Any:
        answer = park(name, id_, *args, **how)
        if id_ == carried(second).token:
            refused.start()
            refused.join(0.3)  # it is parked by then, if nothing keeps it from that
        return answer

    monkeypatch.setattr(shop.store, "park", park_while_the_first_is_refused)
    with hold(task, 7, task_id="runs"):
        assert parking._park_received(task, CONSUMER, second, KEY)
        refused.join(60)
        assert [waiter.owner for waiter in task.lock_for(7).waiting()] == ["t1", "t2"]


@pytest.mark.parametrize("is_heard_meanwhile", [False, True])
def test_one_that_is_parked_behind_a_run_that_is_over_starts_when_that_is_heard(
    shop: Shop, monkeypatch: Any, *, is_heard_meanwhile: bool
) -> None:
    """With threads it may be heard while the next one is parked, and nobody else looks at that line."""
    promote.install(shop.app, shop.store)
    task = shop.unique(body, **RUNNING_ONLY)
    for number in (1, 2):
        task.apply_async((7,), task_id=f"t{number}")
    first, second = shop.messages()
    in_hand = shop.receive(first)
    hear = partial(in_hand.on_success, shop.child(in_hand))
    park = shop.store.park

    def park_while_it_is_heard(*args: Any, **how: Any) -> Any:
        answer = park(*args, **how)
        hear()
        return answer

    if is_heard_meanwhile:
        monkeypatch.setattr(shop.store, "park", park_while_it_is_heard)
    assert parking._park_received(task, CONSUMER, second, KEY)
    if not is_heard_meanwhile:
        hear()

    assert task.lock_for(7).waiting() == []


def test_a_strategy_that_a_task_is_given_gets_what_need_not_wait(shop: Shop) -> None:
    """And not what waits: that is parked, in order, as with Celery's own."""
    handled: list[str] = []

    def own(task: Any, app: Any, consumer: Any) -> Any:
        return lambda message, *_, **__: handled.append(message.headers["id"])

    promote.install(shop.app, shop.store)
    task = shop.unique(body, **RUNNING_ONLY)
    task.Strategy = own
    task.apply_async((7,), task_id="t1")
    in_hand = shop.receive()
    receive = task.start_strategy(shop.app, CONSUMER)
    acks: list[Any] = []
    for task_id, account in [("t2", 7), ("t3", 8)]:
        task.apply_async((account,), task_id=task_id)
        receive(shop.message(), None, lambda *_, task_id=task_id: acks.append(task_id), None, [])

    assert (handled, acks) == (["t3"], ["t2"])
    assert in_hand.state == "received"


class TestLongestWait:
    """``lock_wait_timeout``."""

    def test_a_message_fails_visibly_that_has_waited_for_as_long_as_it_may(
        self, shop: Shop, monkeypatch: Any
    ) -> None:
        """Its body has not run, and the lock stays with its holder."""
        with parked(shop, lock_wait_timeout=60.0) as task:
            let_pass(shop, monkeypatch, 59.0)
            assert shop.messages() == []
            let_pass(shop, monkeypatch, 1.5)
            error = shop.run()
            assert isinstance(error, LockBusy)
            assert (error.key, error.holder, error.waited) == (KEY, "first", pytest.approx(60.5, abs=0.3))
            assert shop.state("t1") == "FAILURE"
            assert [state for _, state in shop.states()] == ["running"]
            assert task.lock_for(7).waiting() == []

    def test_its_time_begins_with_its_first_parking(self, shop: Shop, monkeypatch: Any) -> None:
        """Refused again when its turn was over before it came, it waits for what is left."""
        with parked(shop, lock_wait_timeout=60.0) as task:
            let_pass(shop, monkeypatch, 40.0)
            shop.store.drain()
            shop.run()
            assert len(task.lock_for(7).waiting()) == 1
            let_pass(shop, monkeypatch, 20.5)
            assert isinstance(shop.run(), LockBusy)

    def test_one_that_finds_the_lock_free_runs(self, shop: Shop, monkeypatch: Any) -> None:
        """The holder's run ended meanwhile: nothing is gained by its failure."""
        with parked(shop, lock_wait_timeout=60.0):
            let_pass(shop, monkeypatch, 61.0)
            message = shop.message()
        assert shop.run(shop.receive(message)) == 7

    def test_a_copy_of_a_message_that_runs_never_fails(self, shop: Shop, monkeypatch: Any) -> None:
        """Law 8: the failure would be stored for an id that is running."""
        promote.install(shop.app, shop.store)
        answers: list[Any] = []

        def sync(account_id: int) -> int:
            if not answers:
                answers.append(shop.run(shop.receive(message, redelivered=True)))
                let_pass(shop, monkeypatch, 6.0)
                answers.append(shop.run())
                let_pass(shop, monkeypatch, 12.0)
                answers.append(shop.messages())
            return account_id

        task = shop.unique(sync, acks_late=True, lock_wait_timeout=5, **RUNNING_ONLY)
        task.delay(7)
        message = shop.message()

        assert shop.run(shop.receive(message)) == 7
        assert isinstance(answers[0], Ignore)
        assert isinstance(answers[1], Ignore)
        assert answers[2] == [], "it goes for its time once, and then waits for its turn"

    def test_a_copy_of_a_message_that_has_failed_so_does_nothing(self, shop: Shop, monkeypatch: Any) -> None:
        """A broker, or a publisher that was killed, may send it once more: its errbacks have been called."""
        with parked(shop, lock_wait_timeout=60.0):
            let_pass(shop, monkeypatch, 61.0)
            message = shop.message()
            assert isinstance(shop.run(shop.receive(message)), LockBusy)
        assert isinstance(shop.run(shop.receive(message)), Ignore)
        assert carried(message).token in message.headers[HEADER]

    def test_its_claim_ends_with_it(self, shop: Shop, monkeypatch: Any) -> None:
        """It will not run, so the next call is no duplicate."""
        with parked(shop, lock="until_and_while_executing", lock_wait_timeout=60.0) as task:
            let_pass(shop, monkeypatch, 61.0)
            assert isinstance(shop.run(), LockBusy)
            assert not task.delay(7).is_duplicate

    def test_a_claim_that_was_never_handed_over_is_none(self, shop: Shop) -> None:
        """``until_executing``, parked by its publish: another call is queued still when its time is over."""
        promote.install(shop.app, shop.store)
        task = shop.unique(body, lock="until_executing", lock_key=KEY, lock_wait_timeout=60.0)
        first = task.delay(7)
        shop.message()

        def run(task_id: str, waited: float) -> int:
            header = Message(KEY, f"{task_id}/m", claimed=True, parked_at=time.time() - waited)
            with shop.running(task, task_id=task_id, header=header):
                answer: int = task(7)
                return answer

        with pytest.raises(LockBusy) as raised:
            run("t1", 61.0)
        assert raised.value.holder == first.id
        assert [hold.owner for hold in shop.held().values()] == [first.id]
        assert run("t2", 59.0) == 7
        shop.store.force_release(KEY)
        assert run("t3", 61.0) == 7

    def test_what_its_dead_run_took_is_no_time_in_line(self, shop: Shop, monkeypatch: Any) -> None:
        """Delivered again, it waits anew."""
        with parked(shop, lock_wait_timeout=60.0, acks_late=True) as task:
            pass
        message = shop.message()
        promote.install(shop.app, shop.store)
        shop.store.leave(KEY, carried(message).token)
        with hold(task, 7, task_id="another"):
            let_pass(shop, monkeypatch, 600.0)
            assert isinstance(shop.run(shop.receive(message, redelivered=True)), Ignore)
            assert [waiter.owner for waiter in task.lock_for(7).waiting()] == ["t1"]
            let_pass(shop, monkeypatch, 59.0)
            assert shop.messages() == []

            let_pass(shop, monkeypatch, 2.5)

            error = shop.run()
            assert isinstance(error, LockBusy)
            assert error.waited == pytest.approx(61.5, abs=0.3)


def test_a_copy_waits_for_its_own_message_alone_whatever_the_limit(shop: Shop) -> None:
    """The lock of a message has one holder: a copy is handed it by a claim that knows of no limit."""
    answers: list[Any] = []
    facts: list[Any] = []

    def sync(account_id: int) -> int:
        if not answers:
            answers.append(shop.run(shop.receive(message, redelivered=True)))
            (name,) = shop.store.lines()
            facts.extend(waiter.hold.facts for waiter in shop.store.waiting(name)[1])
        return account_id

    promote.install(shop.app, shop.store)
    task = shop.unique(sync, lock="until_executing", acks_late=True, lock_limit=3, lock_key=KEY)
    task.delay(7)
    message = shop.message()

    assert shop.run(shop.receive(message, redelivered=True)) == 7

    assert isinstance(answers[0], Ignore)
    assert [each.get("limit") for each in facts] == [None]
    assert isinstance(shop.run(), Ignore)
    assert (shop.messages(), shop.store.lines(), shop.held()) == ([], [], {})


def retried(shop: Shop, *, countdown: float = 50.0, way: str = "retry", **options: Any) -> tuple[Any, Any]:
    """Run a task once that is retried then; return the task, and the retry's message."""

    def again(self: Any, account_id: int) -> int:
        if self.request.retries or carried_in(self).must_run:
            return account_id
        if way == "replace":
            self.replace(self.si(account_id).set(countdown=countdown))
        raise self.retry(countdown=countdown)

    promote.install(shop.app, shop.store)
    task = shop.unique(again, bind=True, lock_key=KEY, **{"lock_on_retry": "release", **options})
    task.apply_async((7,), task_id="t1")
    shop.run()
    return task, shop.message()


def carried_in(task: Any) -> Message:
    """What the message says whose body runs."""
    message = Message.of(task.request.headers, task.request.id)
    assert message is not None
    return message


LEASED = [
    {"lock": "until_executed"},
    {"lock": "while_executing"},
    {"lock": "until_and_while_executing"},
    {"lock": "until_executed", "lock_period": 90.0},
    {"lock": "while_executing", "lock_period": 90.0},
    {"lock": "until_and_while_executing", "lock_period": 90.0},
]


class TestRetryThatLeavesItsLock:
    """``lock_on_retry="release"``."""

    @pytest.mark.parametrize("options", LEASED, ids=repr)
    def test_the_lock_is_free_until_the_retry_is_due_and_then_it_runs(
        self, shop: Shop, options: dict[str, Any]
    ) -> None:
        """Its job was accepted: no period refuses it, and it leaves nothing."""
        task, message = retried(shop, **options)
        assert task.lock_for(7).holder() is None or "lock_period" in options
        assert shop.held() == {}
        assert shop.run(shop.receive(message)) == 7
        assert shop.held() == {}

    def test_the_lock_is_free_when_the_body_has_unwound(self, shop: Shop) -> None:
        """Law 5: before anybody can see that it is retried."""
        seen: list[Any] = []
        retried(shop, on_retry=lambda *_: seen.append(shop.states()))
        assert seen == [[]]

    @pytest.mark.parametrize("options", LEASED[:3], ids=repr)
    def test_one_that_finds_the_lock_taken_goes_before_those_that_wait(
        self, shop: Shop, options: dict[str, Any]
    ) -> None:
        """It is never skipped, whatever duplicates are."""
        task, message = retried(shop, **options)
        with hold(task, 7, task_id="another"):
            shop.store.park(KEY, "parked/1", Entry("hold", "", 60.0, "{}"), nonce="1", band=2 * 255 + 1)
            assert isinstance(shop.run(shop.receive(message)), Ignore)
            assert [waiter.owner for waiter in task.lock_for(7).waiting()] == ["t1", "parked"]

    def test_in_line_it_does_not_wait_for_the_period_of_its_own_job(self, shop: Shop) -> None:
        """Law 7: its job was accepted."""
        task, message = retried(shop, lock="while_executing", lock_period=90.0)
        with hold(task, 7, task_id="another"):
            assert isinstance(shop.run(shop.receive(message)), Ignore)
            assert shop.messages() == []
        assert shop.run() == 7

    def test_one_that_comes_before_its_body_has_unwound_is_served_when_it_has(self, shop: Shop) -> None:
        """Its countdown was shorter than what the body did after it."""
        came: list[Any] = []

        def again(self: Any, account_id: int) -> int:
            if not self.request.retries:
                self.retry(countdown=1, throw=False)
                came.append(shop.run(shop.receive(shop.message())))
            return account_id

        promote.install(shop.app, shop.store)
        task = shop.unique(again, bind=True, lock_on_retry="release", **RUNNING_ONLY)
        task.delay(7)

        shop.run()

        assert isinstance(came[0], Ignore)
        assert shop.run() == 7
        assert shop.held() == {}

    @pytest.mark.parametrize(
        "change", [{"countdown": 0.0}, {"way": "replace"}, {"lock_on_retry": "keep"}], ids=repr
    )
    def test_any_other_message_keeps_the_lock(self, shop: Shop, change: dict[str, Any]) -> None:
        """One that runs at once, and one that was not retried."""
        retried(shop, **change)
        assert [state for _, state in shop.states()] == ["queued"]

    def test_its_time_in_line_begins_when_it_is_due(self, shop: Shop, monkeypatch: Any) -> None:
        """Else it would have waited too long before it came."""
        task, message = retried(shop, lock_wait_timeout=10.0, lock_ttl=1000.0)
        with hold(task, 7):
            let_pass(shop, monkeypatch, 55.0)
            assert isinstance(shop.run(shop.receive(message)), Ignore)
            let_pass(shop, monkeypatch, 4.0)
            assert shop.messages() == []
            let_pass(shop, monkeypatch, 1.5)
            assert isinstance(shop.run(), LockBusy)

    def test_its_time_in_line_ends_also_where_its_own_start_has_used_up_its_rate(
        self, shop: Shop, monkeypatch: Any
    ) -> None:
        """Nobody else holds the lock, and who started last is the task itself."""
        task, message = retried(shop, lock_rate="1/h", lock_wait_timeout=10.0, countdown=0.0)
        assert isinstance(shop.run(shop.receive(message)), Ignore)
        assert [waiter.owner for waiter in task.lock_for(7).waiting()] == ["t1"]
        let_pass(shop, monkeypatch, 10.5)
        assert isinstance(shop.run(), LockBusy)
        assert task.lock_for(7).waiting() == []

    @pytest.mark.parametrize("scope", ["until_executing", "until_expired"])
    def test_it_is_refused_where_a_run_holds_no_lock(self, shop: Shop, scope: str) -> None:
        with pytest.raises(LockOptionError, match="lock_on_retry is about the lock of a running task"):
            shop.unique(body, lock=scope, lock_period=9, lock_on_retry="release")


@pytest.mark.parametrize(
    ("options", "looks"), [({"lock_period": 9.0}, True), ({"lock_rate": "1/s"}, True), ({}, False)]
)
def test_the_first_in_line_that_is_received_lets_lines_be_looked_at_at_once(
    shop: Shop, monkeypatch: Any, options: dict[str, Any], looks: bool
) -> None:
    """Else it would start up to a second after its period, or its rate, lets it: no end of a run tells."""
    rung: list[bool] = []
    monkeypatch.setattr(parking, "look_soon", lambda: rung.append(True))
    promote.install(shop.app, shop.store)
    task = shop.unique(body, **RUNNING_ONLY, **options)
    line.is_parked(KEY)
    with hold(task, 7, task_id="another"):
        for _ in range(2):
            task.delay(7)
            assert parking._park_received(task, CONSUMER, shop.message(), KEY)
    assert rung == [True] * looks


def test_a_line_takes_no_more_than_its_task_says_whether_they_are_received_or_refused(shop: Shop) -> None:
    """``lock_max_waiting``: what comes then goes by the clock, and nothing is lost."""
    promote.install(shop.app, shop.store)
    task = shop.unique(body, lock_max_waiting=1, **RUNNING_ONLY)
    with hold(task, 7, task_id="first"):
        for task_id in ("t1", "t2"):
            task.apply_async((7,), task_id=task_id)
            shop.run()
        again = shop.message()
        assert (again.headers["id"], again.headers["eta"] is None) == ("t2", False)
        task.apply_async((7,), task_id="t3")
        assert not parking._park_received(task, CONSUMER, shop.message(), KEY)
        assert [waiter.owner for waiter in task.lock_for(7).waiting()] == ["t1"]


def test_those_that_wait_for_a_run_of_their_own_id_take_no_place_of_each_other(shop: Shop) -> None:
    """``send_task`` with a fixed id, on RabbitMQ: each message is a job, and waits for the one before it."""
    promote.install(shop.app, shop.store)
    task = shop.unique(body, lock="until_executing", on_conflict="coalesce")
    for key in ("message:x", task.lock_for(7).key):
        shop.store.acquire(key, "x/run", 30.0, facts="{}")
        for _ in range(2):
            shop.app.send_task(task.name, (7,), task_id="x")
            received = shop.receive()
            assert parking.park_refused(received.delivery, received._message, key, received) is None
    assert [shop.store.waiting(key)[0] for key in ("message:x", task.lock_for(7).key)] == [2, 1]


@pytest.mark.parametrize("older", ["older", "with\0nul"])
def test_one_that_gave_way_is_marked_for_as_long_as_the_broker_may_bring_it_again(
    shop: Shop, older: str
) -> None:
    """Its copy would run later, with older arguments. What waits tells of the newest ones.

    Who waits for its result is told under its own id.
    """
    promote.install(shop.app, shop.store)
    shop.app.conf.broker_transport_options = {"visibility_timeout": 7200}
    task = shop.unique(body, lock_key=KEY, on_conflict="coalesce", lock_describe="{amount} EUR")
    shop.store.acquire(KEY, "runs/1", 30_000.0, facts="{}")
    for amount, task_id in enumerate((older, "newer")):
        shop.app.send_task(task.name, (7, amount), task_id=task_id)
        shop.run()
    assert [(waiter.owner, waiter.about) for waiter in task.lock_for(7).waiting()] == [("newer", "1 EUR")]
    assert shop.state(older) == "REVOKED"
    shop.store.let_pass(7200.0)
    assert [owner_of(message) for _, message in shop.store.marks()] == [older]


def test_that_a_line_is_full_is_said_once_a_minute_for_each_key(
    shop: Shop, monkeypatch: Any, caplog: Any
) -> None:
    """It names the key and its bound, and says what happens. Nothing is lost."""
    times = iter([0.0, 59.0, 61.0, 61.0])
    monkeypatch.setattr(log, "_told_at", {})
    monkeypatch.setattr(log, "monotonic", lambda: next(times))
    monkeypatch.setattr(shop.store, "park", lambda *_, **__: Parked("full"))
    promote.install(shop.app, shop.store)
    task = shop.unique(body, lock_max_waiting=3, lock_retry_delay=2, **RUNNING_ONLY)
    told: list[list[str]] = []
    for account in (7, 7, 7, 8):
        caplog.clear()
        with hold(task, account):
            task.delay(account)
            shop.run()
        assert carried(shop.message()).key == f"account:{account}"
        told.append([record.message for record in caplog.records if record.levelname == "WARNING"])

    assert [len(lines) for lines in told] == [1, 0, 1, 1]
    assert told[0][0].startswith(
        "'account:7' has lock_max_waiting messages in line (3): what comes now is tried again every 2 s"
    )


def test_what_waits_in_line_is_told_once_however_often_it_is_parked(shop: Shop, caplog: Any) -> None:
    """By the process that found its lock held; at its turn another one may have taken that."""
    caplog.set_level("DEBUG", "celery_redislock")
    promote.install(shop.app, shop.store)
    task = shop.unique(body, **RUNNING_ONLY)
    task.apply_async((7,), task_id="t0")
    in_hand = shop.receive()
    task.apply_async((7,), task_id="t1")
    assert parking._park_received(task, CONSUMER, shop.message(), KEY)
    shop.run(in_hand)
    message = shop.message()
    shop.store.leave(KEY, carried(message).token)
    with hold(task, 7, task_id="second"):
        shop.run(shop.receive(message))
    levels = [record.levelname for record in caplog.records if "[t1] waits: " in record.message]
    assert levels == ["INFO", "DEBUG"]


@pytest.mark.parametrize("scope", ["until_expired", "until_executing"])
def test_the_period_of_one_that_has_waited_begins_when_it_runs(shop: Shop, scope: str) -> None:
    """In scopes that hold nothing while they run. The claim that it was handed stands for no period."""
    promote.install(shop.app, shop.store)
    runs = shop.unique(body, name="runs", **RUNNING_ONLY)
    task = shop.unique(body, lock=scope, lock_key=KEY, lock_period=600.0)
    with hold(runs, 7, task_id="first"):
        task.apply_async((7,), task_id="t1", group_id="g")
        shop.run()
        assert [waiter.owner for waiter in task.lock_for(7).waiting()] == ["t1"]
    assert shop.run() == 7
    holder = task.lock_for(7).holder()
    assert holder is not None
    assert (holder.state, holder.remaining) == ("period", pytest.approx(600.0, abs=9.0))


def handed_on(shop: Shop, key: str = KEY) -> list[str]:
    """Who was handed a lock and has not started."""
    return [each.hold.owner for each in shop.store.waiting(key, handed_on=True)[1]]


@pytest.mark.parametrize("scope", ["while_executing", "until_executing", "until_executed"])
def test_one_acknowledged_early_whose_start_is_broken_off_is_sent_again(
    shop: Shop, monkeypatch: Any, scope: str
) -> None:
    """Law 8: nobody delivers it again, and it has waited for its lock; its worker was shut down coldly."""
    promote.install(shop.app, shop.store, lambda _app, _promotion: False)
    task = shop.unique(body, lock=scope, lock_key=KEY, on_conflict="wait", lock_ttl=1000.0)
    with hold(task, 7, task_id="first"):
        task.apply_async((7,), task_id="t1")
        shop.run()
    request = shop.receive()
    owed = debts(shop, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(shop.store, "error", lambda _verb: SystemExit(1))
        shop.store.failures = 1
        with pytest.raises(SystemExit):
            shop.run(request)
    for pay in owed:
        pay()
    assert handed_on(shop) == ["t1"]
    renewal.stop_renewing(request)  # its worker has ended

    let_pass(shop, monkeypatch, 120.0)

    assert shop.run(shop.receive(shop.message())) == 7
    assert (handed_on(shop), shop.held()) == ([], {})


def test_one_acknowledged_late_whose_start_is_broken_off_leaves_its_lock_to_the_next(
    shop: Shop, monkeypatch: Any
) -> None:
    """Law 4: its broker delivers it again, and it waits anew."""
    with parked(shop, acks_late=True):
        pass
    request = shop.receive()
    with monkeypatch.context() as patch:
        patch.setattr(shop.store, "error", lambda _verb: SystemExit(1))
        shop.store.failures = 1
        with pytest.raises(SystemExit):
            shop.run(request)
    assert (handed_on(shop), shop.held()) == ([], {})


@pytest.mark.parametrize("switch", ["task", "worker"])
def test_one_that_runs_without_its_lock_is_taken_out_of_its_line(shop: Shop, switch: str) -> None:
    """It was handed that before locking was switched off, and would be sent again."""
    with parked(shop) as task:
        pass
    promotion = shop.message()
    assert handed_on(shop) == ["t1"]
    switched = locks_off() if switch == "worker" else nullcontext()
    if switch == "task":
        shop.app.tasks.pop(task.name)
        shop.unique(body, lock=None)
    with switched:
        assert shop.run(shop.receive(promotion)) == 7
    assert (handed_on(shop), shop.held()) == ([], {})


def test_what_was_handed_its_claim_and_waits_elsewhere_keeps_it_and_is_not_sent_again(shop: Shop) -> None:
    """With two locks it waits in the line of the second one as any that has a claim."""
    queued = f"queued:{KEY}"
    task = shop.unique(body, lock_key=KEY, lock="until_and_while_executing", on_conflict="wait")
    with hold(task, 7, task_id="runs"):
        task.apply_async((7,), task_id="t1")
        message = shop.message()
        said = carried(message)._replace(parked_at=time.time())
        message.headers[HEADER] = said.dumps()
        entry = Entry("push", "celery", 30.0, '{"state":"queued","line":1}', "text")
        shop.store.park(queued, said.token, entry, nonce="n", how="refused")
        assert handed_on(shop, queued) == ["t1"]
        promote.install(shop.app, shop.store)

        assert isinstance(shop.run(shop.receive(message)), Ignore)

        assert [waiter.owner for waiter in task.lock_for(7).waiting()] == ["t1"]
        claim = shop.holder(queued)
        assert claim is not None
        assert (handed_on(shop, queued), claim.owner, claim.expires_in > 3000) == ([], "t1", True)
