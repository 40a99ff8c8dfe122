"""Second copies of a message: they do nothing once the first one's outcome is recorded."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.exceptions import Ignore
from celery.signals import task_postrun

from celery_redislock import DuplicateTask, lock_acquired, lock_released
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.header import HEADER, Header, HolderSeen
from celery_redislock.locks.store import DoneMark
from celery_redislock.testing import hold
from tests.clocks import ManualClock
from tests.unit.shop import Shop, no_patience

KEY = "account:7"


def counting(shop: Shop, runs: list[int], **options: Any) -> Any:
    def sync(account_id: int) -> int:
        runs.append(account_id)
        return account_id

    return shop.unique(sync, **{"lock_key": KEY, "acks_late": True, **options})


def outcome(shop: Shop, state: str, *, at: float) -> None:
    """Record an outcome of t1, as if at that time."""
    backend = shop.app.backend
    backend.store_result("t1", "before" if state == "SUCCESS" else ValueError("x"), state)
    meta = backend.decode(backend.get(backend.get_key_for_task("t1")))
    meta["date_done"] = datetime.fromtimestamp(at, timezone.utc).isoformat()
    backend.set(backend.get_key_for_task("t1"), backend.encode(meta))


def copy(published_at: float | None = None) -> Header:
    return Header(KEY, "t1/m", claimed=True, published_at=published_at or time.time() - 100)


@pytest.mark.parametrize("state", ["SUCCESS", "FAILURE", "REVOKED"])
def test_a_copy_of_a_recorded_message_does_nothing(shop: Shop, state: str) -> None:
    """Law 8, seen or not as redelivered: beyond the visibility timeout the first copy can arrive last."""
    runs: list[int] = []
    task = counting(shop, runs)
    outcome(shop, state, at=time.time() - 50)
    written = shop.app.backend.get(shop.app.backend.get_key_for_task("t1"))
    heard = []

    def listen(**_: Any) -> None:
        heard.append("a lock of nobody's")

    lock_acquired.connect(listen, sender=task)
    lock_released.connect(listen, sender=task)

    for redelivered in (True, False):
        with (
            shop.running(task, header=copy(), delivery_info={"redelivered": redelivered}),
            pytest.raises(Ignore, match="has run already"),
        ):
            task(7)

    assert (runs, shop.held(), heard) == ([], {}, [])
    assert shop.app.backend.get(shop.app.backend.get_key_for_task("t1")) == written


@pytest.mark.parametrize("state", ["STARTED", "RETRY"])
def test_a_state_that_is_no_outcome_lets_a_copy_run(shop: Shop, state: str) -> None:
    runs: list[int] = []
    task = counting(shop, runs)
    shop.app.backend.store_result("t1", None, state)

    with shop.running(task, header=copy()):
        task(7)

    assert runs == [7]


@pytest.mark.parametrize(("age", "ran"), [(150, [7]), (103, [7]), (101, []), (50, [])])
def test_an_outcome_from_before_the_publish_is_an_earlier_jobs(
    shop: Shop, age: float, ran: list[int]
) -> None:
    """Publishing a task id again is a new job; two seconds of difference between clocks are forgiven."""
    runs: list[int] = []
    task = counting(shop, runs)
    now = time.time()
    outcome(shop, "SUCCESS", at=now - age)

    with shop.running(task, header=copy(now - 100)):
        if ran:
            task(7)
        else:
            with pytest.raises(Ignore):
                task(7)

    assert runs == ran


def test_a_message_with_its_claim_is_no_copy_and_asks_no_backend(shop: Shop, monkeypatch: Any) -> None:
    """Law 10: the question costs something, so it is asked on the rare path only."""
    runs: list[int] = []
    task = counting(shop, runs)
    shop.store.acquire(KEY, "t1/m", 30, about={})
    outcome(shop, "SUCCESS", at=time.time())
    asked = []
    monkeypatch.setattr(task.backend, "get_task_meta", lambda *a, **_: asked.append(a))

    with shop.running(task, header=copy(), delivery_info={"redelivered": True}):
        task(7)

    assert (runs, asked) == ([7], [])


def test_the_same_id_published_again_runs_again(shop: Shop) -> None:
    """A new job, also after the old one succeeded."""
    runs: list[int] = []
    task = counting(shop, runs, ignore_result=True)

    for _ in range(2):
        task.apply_async((7,), task_id="t1")
        shop.run()

    assert runs == [7, 7]


def test_a_copy_without_a_header_is_known_by_its_id_and_the_brokers_flag(shop: Shop) -> None:
    runs: list[int] = []
    task = counting(shop, runs)
    outcome(shop, "SUCCESS", at=time.time())

    with shop.running(task, delivery_info={"redelivered": True}), pytest.raises(Ignore):
        task(7)
    with shop.running(task):
        task(7)

    assert runs == [7]


@pytest.mark.parametrize(("age", "redelivered"), [(0, True), (4000, False)])
def test_a_message_that_may_be_a_copy_looks_twice_too(shop: Shop, age: float, *, redelivered: bool) -> None:
    """Law 8: two workers that kept it for one ETA start in the same instant, the first copy last perhaps."""
    runs: list[int] = []
    task = counting(shop, runs)
    task.apply_async((7,), task_id="t1")
    message = shop.message()
    header = Header.loads(message.headers[HEADER])
    assert header is not None
    message.headers[HEADER] = header._replace(published_at=time.time() - age).dumps()
    shop.store.force_release(KEY)

    first_look = shop.run(shop.receive(message, redelivered=redelivered))
    outcome(shop, "SUCCESS", at=time.time())
    second_look = shop.run()

    assert isinstance(first_look, Ignore)
    assert isinstance(second_look, Ignore)
    assert (runs, shop.held()) == ([], {})


def lose_answers(shop: Shop, monkeypatch: Any, count: int = 1) -> None:
    """Let the server carry out the next starts, and the answers get lost; the worker asks again at once."""
    no_patience(monkeypatch)
    acquire, lost = shop.store.acquire, [LockUnavailable("memory", "acquire", "no answer")] * count

    def unheard(*args: Any, **kwargs: Any) -> Any:
        answer = acquire(*args, **kwargs)
        if lost:
            raise lost.pop()
        return answer

    monkeypatch.setattr(shop.store, "acquire", unheard)


def test_a_copy_does_nothing_although_the_first_answer_to_its_start_got_lost(
    shop: Shop, monkeypatch: Any
) -> None:
    """Law 8: asked again, the server knows the run's token; that is no claim turned into a lease."""
    runs: list[int] = []
    counting(shop, runs).apply_async((7,), task_id="t1")
    message = shop.message()
    shop.run(shop.receive(message))
    lose_answers(shop, monkeypatch)

    assert isinstance(shop.run(shop.receive(message, redelivered=True)), Ignore)
    assert (runs, shop.held()) == ([7], {})


@pytest.mark.parametrize("is_claim_gone", [False, True])
def test_a_lost_answer_to_a_start_is_no_sign_that_the_claim_was_gone(
    shop: Shop, monkeypatch: Any, caplog: Any, *, is_claim_gone: bool
) -> None:
    """Nobody knows what was there before, so nothing is told of it; the message runs, once."""
    runs: list[int] = []
    counting(shop, runs).apply_async((7,), task_id="t1")
    if is_claim_gone:
        shop.store.force_release(KEY)
    lose_answers(shop, monkeypatch)

    shop.run()

    assert (runs, shop.held()) == ([7], {})
    assert "was gone when it started" not in caplog.text


def put_off_copy(shop: Shop, task: Any) -> None:
    """Publish, and put a copy into the queue that has met its run alive, as a worker puts it off."""
    task.apply_async((7,), task_id="t1")
    message = shop.held()[KEY].token
    shop.store.acquire(KEY, "t1/run", 30, about={"message": message}, instead_of=message)
    with received(shop, task), pytest.raises(Ignore, match="put off"):
        task(7)
    shop.store.release(KEY, "t1/run")


@contextmanager
def received(shop: Shop, task: Any) -> Iterator[None]:
    """Take the message from the queue, stand where its body would begin, and end the run."""
    sent = shop.receive().request_dict
    with shop.running(task, header=Header.loads(sent[HEADER]), properties=sent["properties"]):
        try:
            yield
        finally:
            task_postrun.send(sender=task, task=task)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_copy_that_waited_looks_twice_before_it_runs(shop: Shop, *, recorded: bool) -> None:
    """Law 8: its run may live, between its release and its record.

    Timeline: the copy is put off, because its run is alive; the run releases; the copy is delivered, finds
    a free lock and no outcome; the run's result is stored.
    """
    runs: list[int] = []
    task = counting(shop, runs)
    put_off_copy(shop, task)

    first_look = shop.run()
    ran_at_once = list(runs)
    if recorded:
        outcome(shop, "SUCCESS", at=time.time())
    second_look = shop.run()

    assert isinstance(first_look, Ignore)
    assert ran_at_once == []
    assert runs == ([] if recorded else [7])
    assert isinstance(second_look, Ignore) == recorded
    assert shop.held() == {}


@pytest.mark.parametrize(("backend", "looks"), [("rpc://", 2), ("disabled://", 1)])
def test_a_copy_looks_twice_only_where_a_record_may_still_come(backend: str, looks: int) -> None:
    """A mark that was written with the release is there as soon as the lock is free."""
    shop = Shop(result_backend=backend)
    runs: list[int] = []
    task = counting(shop, runs)
    put_off_copy(shop, task)

    looked = 0
    while not runs:
        looked += 1
        with received(shop, task), suppress(Ignore):
            task(7)

    assert looked == looks


def test_a_done_mark_stops_a_copy_whose_results_are_ignored(shop: Shop) -> None:
    runs: list[int] = []
    task = counting(shop, runs, ignore_result=True)
    task.delay(7)
    message = shop.message()
    shop.run(shop.receive(message))

    late = shop.run(shop.receive(message, redelivered=True))

    assert isinstance(late, Ignore)
    assert (runs, shop.held()) == ([7], {})


def test_a_done_mark_outlives_the_visibility_timeout() -> None:
    """Law 8: the copy comes when that has passed since the *receipt*, and somebody has looked.

    Timeline: received at 0; the body returns, and its worker is killed before it acknowledges, at 1;
    the broker delivers again at 10 (the timeout), 110 (kombu looks) or later (nobody was free).
    """
    shop = Shop(broker_transport_options={"visibility_timeout": 10})
    shop.store._clock = clock = ManualClock()
    runs: list[int] = []
    task = counting(shop, runs, ignore_result=True)

    with shop.running(task, header=copy()):
        task(7)
    clock.advance(10 + 600)
    with shop.running(task, header=copy()), pytest.raises(Ignore):
        task(7)

    assert runs == [7]


@pytest.mark.parametrize(("waited", "marks"), [(9, 0), (11, 1)])
def test_a_message_older_than_the_visibility_timeout_leaves_a_mark(waited: float, marks: int) -> None:
    """Law 8: it may have waited for its ETA in two workers, whenever it is acknowledged."""
    shop = Shop(broker_transport_options={"visibility_timeout": 10})
    task = counting(shop, [], ignore_result=True, acks_late=False)

    with shop.running(task, header=copy(time.time() - waited)):
        task(7)

    assert len(shop.store._done) == marks


def test_a_done_mark_is_of_one_message_only(shop: Shop) -> None:
    runs: list[int] = []
    task = counting(shop, runs, ignore_result=True)
    shop.store.mark_done(KEY, DoneMark("t1/other", 50))

    with shop.running(task, header=copy()):
        task(7)

    assert runs == [7]


@pytest.mark.parametrize("ignore_result", [False, True])
def test_a_copy_of_a_message_that_was_retried_does_nothing_after_the_end(
    shop: Shop, *, ignore_result: bool
) -> None:
    """Law 8: its retry has another identity, so what that came to does not tell of the first message.

    ::

    first message    runs, publishes its retry ... delivered again: put off ................ comes
    retry                                          waits with the claim ... runs to the end
    """
    runs: list[int] = []

    def sync(self: Any, account_id: int) -> None:
        runs.append(self.request.retries)
        if not self.request.retries:
            raise self.retry((account_id,), countdown=0)

    shop.unique(sync, bind=True, lock_key=KEY, acks_late=True, ignore_result=ignore_result).delay(7)
    first = shop.message()
    shop.run(shop.receive(first))
    retry = shop.message()
    shop.run(shop.receive(first, redelivered=True))
    again = shop.message()
    shop.run(shop.receive(retry))

    while again is not None:
        shop.run(shop.receive(again))
        again = next(iter(shop.messages()), None)

    assert runs == [0, 1]


@pytest.mark.parametrize(("ignore_result", "marks"), [(False, 0), (True, 1)])
def test_a_retry_costs_a_mark_only_where_no_result_would_tell(
    shop: Shop, *, ignore_result: bool, marks: int
) -> None:
    """Law 10; and the mark comes after the retry's message: dead in between, the copy must run."""

    def sync(self: Any, account_id: int) -> None:
        shop.store.calls.clear()
        raise self.retry((account_id,), countdown=50)

    shop.unique(sync, bind=True, lock_key=KEY, acks_late=True, ignore_result=ignore_result).delay(7)

    shop.run()

    assert shop.store.calls == ["acquire"] + ["mark_done"] * marks


@pytest.mark.parametrize("is_put_off", [False, True])
def test_a_new_job_of_an_id_used_before_runs_without_a_header_too(shop: Shop, *, is_put_off: bool) -> None:
    """Law 2: it was published again on purpose; the mark of the first one stops copies, which come again."""
    runs: list[int] = []
    task = counting(shop, runs, ignore_result=True, lock="while_executing")
    shop.app.send_task(task.name, (7,), task_id="import-7")
    first = shop.message()
    shop.run(shop.receive(first))
    shop.app.send_task(task.name, (7,), task_id="import-7")
    if is_put_off:
        with hold(task, 7, task_id="other"):
            shop.run()

    shop.run()

    assert runs == [7, 7]
    assert isinstance(shop.run(shop.receive(first, redelivered=True)), Ignore)


def test_a_new_job_of_an_id_at_work_runs_after_that_without_a_header_too(shop: Shop) -> None:
    """Law 2: it is no copy of what it waits for, so that one's outcome is not its own."""
    runs: list[int] = []

    def sync(account_id: int) -> None:
        runs.append(account_id)
        if len(runs) == 1:
            shop.app.send_task("shop.sync", (8,), task_id="import-7")
            shop.run()  # another worker

    shop.unique(sync, lock_key=KEY, acks_late=True)
    shop.app.send_task("shop.sync", (7,), task_id="import-7")
    shop.run()

    shop.run()

    assert runs == [7, 8]


def test_a_copy_without_a_header_put_off_in_an_outage_does_nothing(shop: Shop, monkeypatch: Any) -> None:
    """Law 8: its first delivery's outcome was recorded before it got a header, and is its own."""
    no_patience(monkeypatch)
    runs: list[int] = []
    task = counting(shop, runs)
    shop.app.send_task(task.name, (7,), task_id="t1")
    first = shop.message()
    shop.run(shop.receive(first))
    outcome(shop, "SUCCESS", at=time.time() - 60)
    shop.store.failures = float("inf")
    shop.run(shop.receive(first, redelivered=True))
    shop.store.failures = 0

    again = shop.message()
    while again is not None:
        shop.run(shop.receive(again))
        again = next(iter(shop.messages()), None)

    assert runs == [7]


@pytest.mark.parametrize("backend", ["rpc://", "disabled://"])
def test_where_results_cannot_be_read_by_others_a_done_mark_is_left(backend: str) -> None:
    shop = Shop(result_backend=backend)
    runs: list[int] = []
    task = counting(shop, runs)

    with shop.running(task, header=copy()):
        task(7)
        task_postrun.send(sender=task, task=task)
    with shop.running(task, header=copy()), pytest.raises(Ignore):
        task(7)

    assert runs == [7]


@pytest.mark.parametrize("date", ["nonsense", None, 12])
def test_an_outcome_without_a_readable_date_counts(shop: Shop, date: object) -> None:
    """Better not twice than by a guess: every backend of Celery writes one."""
    runs: list[int] = []
    task = counting(shop, runs)
    backend = shop.app.backend
    backend.store_result("t1", "before", "SUCCESS")
    meta = backend.decode(backend.get(backend.get_key_for_task("t1")))
    backend.set(backend.get_key_for_task("t1"), backend.encode({**meta, "date_done": date}))

    with shop.running(task, header=copy()), pytest.raises(Ignore):
        task(7)

    assert runs == []


def test_the_backend_itself_is_asked_and_not_its_cache(shop: Shop) -> None:
    """Another process may have forgotten or replaced what this one has seen."""
    runs: list[int] = []
    task = counting(shop, runs)
    outcome(shop, "SUCCESS", at=time.time())
    task.backend.get_task_meta("t1")
    task.backend.delete(task.backend.get_key_for_task("t1"))

    with shop.running(task, header=copy()):
        task(7)

    assert runs == [7]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_a_date_without_a_zone_is_utc_wherever_the_worker_stands(
    shop: Shop, monkeypatch: Any, zone: str
) -> None:
    """Celery writes ``date_done`` so."""
    runs: list[int] = []
    task = counting(shop, runs)
    backend = shop.app.backend
    key = backend.get_key_for_task("t1")
    now = datetime.now(timezone.utc)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        for age, ran in ((150, [7]), (50, [7])):
            backend.store_result("t1", "before", "SUCCESS")
            date = (now - timedelta(seconds=age)).replace(tzinfo=None).isoformat()
            backend.set(key, backend.encode({**backend.decode(backend.get(key)), "date_done": date}))
            with shop.running(task, header=copy(now.timestamp() - 100)), suppress(Ignore):
                task(7)
            assert runs == ran
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_backend_that_cannot_be_asked_lets_the_copy_run(shop: Shop, monkeypatch: Any) -> None:
    """At least once: rather twice than a lost result."""
    runs: list[int] = []
    task = counting(shop, runs)

    def fail(*_: Any, **__: Any) -> None:
        message = "gone"
        raise OSError(message)

    monkeypatch.setattr(task.backend, "get_task_meta", fail)
    looked = copy().put_off_for(HolderSeen("t1", is_same_work=False, is_gone=True))

    with shop.running(task, header=looked, delivery_info={"redelivered": True}):
        task(7)

    assert runs == [7]


# --- put off, and delivered again ------------------------------------------------------------


def put_off_once(shop: Shop, task: Any) -> Any:
    """Publish t1 while somebody else is at work, and have it put off; return its own first delivery.

    Its worker dies after it has published the message again and before it has acknowledged the first one.
    """
    with hold(task, 7, task_id="first"):
        task.apply_async((7,), task_id="t1")
        delivery = shop.message()
        assert isinstance(shop.run(shop.receive(delivery)), Ignore)
    return delivery


@pytest.mark.parametrize("ignore_result", [False, True])
def test_a_message_put_off_does_nothing_when_its_first_delivery_has_run(
    shop: Shop, *, ignore_result: bool
) -> None:
    """Law 8. Neither redelivered nor claimed, it must be known by having been put off.

    ::

    first delivery   put off ...... (worker dies, unacknowledged) ...... again: runs, outcome recorded
    second message            published ........................................................ comes
    """
    runs: list[int] = []
    task = counting(shop, runs, lock="while_executing", ignore_result=ignore_result)
    delivery = put_off_once(shop, task)
    again = shop.message()
    if isinstance(shop.run(shop.receive(delivery, redelivered=True)), Ignore):
        shop.run()  # it has looked twice
    assert runs == [7]

    late = shop.run(shop.receive(again))

    assert isinstance(late, Ignore)
    assert (runs, shop.held()) == ([7], {})


@pytest.mark.parametrize("strategy", ["skip", "raise"])
def test_a_message_put_off_is_not_dropped_over_the_outcome_of_its_first_delivery(
    shop: Shop, monkeypatch: Any, strategy: str
) -> None:
    """Law 8: a redelivery writes no state for its own id, least of all over a failure somebody must see.

    ::

    first delivery   put off in an outage (worker dies) ... again: runs, fails
    second message           published ............................................. comes, and is refused
    another publish                                                   holds the key
    """
    no_patience(monkeypatch)

    def sync(account_id: int) -> None:
        raise ValueError(account_id)

    task = shop.unique(sync, lock_key=KEY, acks_late=True, on_conflict=strategy)
    task.apply_async((7,), task_id="t1")
    first = shop.message()
    shop.store.failures = float("inf")
    shop.run(shop.receive(first))
    shop.store.failures = 0
    again = shop.message()
    shop.run(shop.receive(first, redelivered=True))

    with hold(task, 7, task_id="t2"):
        shop.run(shop.receive(again))

    assert (shop.state("t1"), str(shop.meta("t1")["result"])) == ("FAILURE", "7")


def test_a_message_put_off_without_a_header_does_nothing_then_either(shop: Shop) -> None:
    runs: list[int] = []
    task = counting(shop, runs, lock="while_executing")
    with hold(task, 7, task_id="first"):
        shop.app.send_task(task.name, (7,), task_id="t1")
        delivery = shop.message()
        shop.run(shop.receive(delivery))
    again = shop.message()
    shop.run(shop.receive(delivery, redelivered=True))

    shop.run(shop.receive(again))

    assert runs == [7]


@pytest.mark.filterwarnings("ignore:Results are not stored in backend:RuntimeWarning")
def test_in_place_nobody_looks_once_more(shop: Shop, monkeypatch: Any) -> None:
    """Its holder ends between the publisher's look and the run's: there is no message to be put off."""
    shop.app.conf.update(task_always_eager=True, redislock_eager=True)
    runs: list[int] = []
    task = counting(shop, runs)
    with hold(task, 7, task_id="first"):
        seen = shop.holder(KEY)
    looks = iter([seen])
    monkeypatch.setattr(shop.store, "inspect", lambda *_, **__: next(looks, None))

    assert task.apply_async((7,), link=task.si(8)).get() == 7
    assert runs[0] == 7


def test_a_workflows_member_put_off_hands_its_outcome_on_once(shop: Shop) -> None:
    """Its first delivery, delivered again, has run, and the holder it waited for left an outcome as well."""
    runs: list[int] = []
    task = counting(shop, runs)
    link = shop.unique(listen, name="shop.listen", lock=None)
    with hold(task, 7, task_id="first"):
        task.apply_async((7,), task_id="t1", link=link.s())
        delivery = shop.message()
        shop.run(shop.receive(delivery))
        again = shop.message()
    shop.run(shop.receive(delivery, redelivered=True))  # it looks for that outcome, and later once more
    assert shop.run() == 7
    assert shop.message().headers["task"] == link.name
    shop.app.backend.store_result("first", 21, "SUCCESS")

    shop.run(shop.receive(again))

    assert (runs, shop.messages()) == ([7], [])


def listen(outcome: int) -> int:
    return outcome


def test_a_new_job_that_waited_for_an_older_one_of_its_id_runs(shop: Shop) -> None:
    """Publishing a task id again is a new job: the first one's outcome is not its own."""
    runs: list[int] = []
    task = counting(shop, runs, lock="while_executing")
    with hold(task, 7, task_id="t1"):
        task.apply_async((7,), task_id="t1")
        shop.run()
    outcome(shop, "SUCCESS", at=time.time())

    shop.run()

    assert runs == [7]


@pytest.mark.parametrize("strategy", ["skip", "raise"])
def test_a_refused_publish_of_its_id_is_no_outcome(shop: Shop, strategy: str) -> None:
    """Law 2: under another key the id was refused, and is ready there; here its message is on its way."""
    runs: list[int] = []
    task = counting(shop, runs, lock="while_executing", lock_key=None)
    put_off_once(shop, task)
    other = shop.unique(listen, name="shop.listen", lock_key="other", on_conflict=strategy)
    with hold(other, 7, task_id="somebody"), suppress(DuplicateTask):
        other.apply_async((7,), task_id="t1")
    assert shop.state("t1") == ("REVOKED" if strategy == "skip" else "PENDING")

    shop.run()

    assert (runs, shop.state("t1")) == ([7], "SUCCESS")


def test_a_message_put_off_runs_where_nothing_else_has(shop: Shop) -> None:
    runs: list[int] = []
    task = counting(shop, runs, lock="while_executing")
    put_off_once(shop, task)

    assert shop.run() == 7
