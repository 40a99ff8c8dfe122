"""What a worker had in hand when it died goes back to its queue: kombu's own channels, and no worker process.

A :class:`Hand` receives as a worker's main process does, runs nothing, and may begin a run by hand.
"""

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from celery import Celery
from celery.worker.state import active_requests
from kombu import Consumer, Exchange, Queue
from kombu.transport.pyamqp import Channel

from celery_redislock import SingletonTask
from celery_redislock.declaring.declaration import declaration_of
from celery_redislock.locks.lease import Lease
from celery_redislock.publishing.message import HEADER, Message
from celery_redislock.receiving import in_hand, restore
from celery_redislock.receiving.in_hand import InHand, WorkerName
from celery_redislock.running.delivery import IN_HAND_OF
from celery_redislock.wire.clock import boottime
from tests.facts import wait_until
from tests.pages import PAGES
from tests.servers import EmbeddedServer
from tests.stores import start_server
from tests.unit.shop import raising

#: Seconds of a name: so long that no thread renews it meanwhile; tests let it lapse by hand.
TERM = 600.0

#: Commands that receiving might take; kombu's own two are among them.
REQUESTS = ("eval", "evalsha", "get", "hget", "hset", "set", "zadd", "zrem", "zscore")

#: Commands of Celery and kombu on a Redis broker, as far as these tests go.
CELERYS = (
    *("+@connection", "+@transaction", "+@pubsub", "+info", "+sadd", "+srem", "+smembers", "+llen", "+brpop"),
    *("+lpush", "+rpush", "+hset", "+hget", "+hdel", "+zadd", "+zrem", "+zrevrangebyscore"),
)

SCOPES: Mapping[str, dict[str, Any]] = {
    "until_executed": {"lock": "until_executed"},
    "until_executing": {"lock": "until_executing"},
    "until_expired": {"lock": "until_expired", "lock_period": 500},
    "while_executing": {"lock": "while_executing"},
    "two_locks": {"lock": "until_and_while_executing"},
}


def _nothing(account: object) -> None:
    """What is never run here."""


def _plain() -> None:
    """Nor is this."""


class Yard:
    """An app on a Redis broker, with one task for each scope, and the hands its messages fall into."""

    def __init__(self, url: str, prefix: str, *, broker: str = "", **conf: Any) -> None:
        """``broker``: another way to the same server."""
        self.app = Celery(prefix, broker=broker or url, backend=url, set_as_current=False)
        options = {"global_keyprefix": f"{prefix}:", "priority_steps": [0, 6, 9], "master_name": "mine"}
        self.app.conf.update(
            broker_transport_options=options,
            result_backend_transport_options={"global_keyprefix": f"{prefix}:"},
            redislock_restore=TERM,
            **conf,
        )
        self.tasks = {}
        for scope, options in SCOPES.items():
            for acks_late in (False, True):
                name = f"{scope}{'_late' if acks_late else ''}"
                decorate = self.app.task(
                    base=SingletonTask, name=name, acks_late=acks_late, shared=False, **options
                )
                self.tasks[name] = decorate(_nothing)
        self.plain = self.app.task(name="plain", shared=False)(_plain)
        self.app.finalize()
        self.server = redis.Redis.from_url(url)
        self.prefix = f"{prefix}:"
        self._stack = ExitStack()

    def hand(self, *queues: Queue) -> "Hand":
        """Return a new worker's hand, its name renewed; it receives from these queues."""
        connection = self._stack.enter_context(self.app.connection_for_read())
        return Hand(self, connection, queues or (self.app.amqp.queues["celery"],))

    def unacked(self) -> dict[str, Any]:
        """Return what is in hand, by task id."""
        texts = self.server.hvals(f"{self.prefix}unacked")
        return {json.loads(text)[0]["headers"]["id"]: json.loads(text)[0] for text in texts}

    def queued(self, queue: str = "celery") -> list[Any]:
        """Return the messages in a list, the next one to be received first."""
        return [json.loads(text) for text in reversed(self.server.lrange(self.prefix + queue, 0, -1))]

    def ids(self, queue: str = "celery") -> list[str]:
        return [message["headers"]["id"] for message in self.queued(queue)]

    def blocked(self) -> int:
        """Return how many clients wait for a message to come."""
        return int(self.server.info("clients")["blocked_clients"])

    def let_lapse(self, hand: "Hand", name: str = "") -> None:
        """Let a name lapse, or one that was borne before, as it does when nobody renews it for its term."""
        self.server.zadd(f"{self.prefix}redislock:workers", {name or hand.worker.name: 0})

    def lose(self, number: int = 1) -> "Hand":
        """Let a worker receive so many messages, and its name lapse."""
        dead = self.hand()
        dead.receive(number)
        self.let_lapse(dead)
        return dead

    def give_again(self, hand: "Hand") -> None:
        """Let the time pass after which a taken name is given to the next worker."""
        self.server.zadd(f"{self.prefix}redislock:workers:taken", {hand.worker.name: 0})

    def close(self) -> None:
        self._stack.close()
        for key in self.server.scan_iter(f"{self.prefix}*"):
            self.server.delete(key)
        self.server.close()
        self.app.close()


class Hand:
    """One worker, as far as receiving goes."""

    def __init__(self, yard: Yard, connection: Any, queues: tuple[Queue, ...]) -> None:
        settings = declaration_of(yard.tasks["until_executed"]).settings
        self._yard = yard
        self._connection = connection
        self.worker = WorkerName(yard.app, settings, node="celery@one")
        self.channel = connection.channel()
        if self.worker.begin(connection):
            self.channel.qos.append = partial(self.worker.write, self.channel.qos.append)
        self._got: list[Any] = []
        self._queues = queues

    def receive(self, number: int = 1) -> list[Any]:
        """Receive so many messages more, and acknowledge none."""
        self._got.clear()
        with Consumer(self.channel, self._queues, callbacks=[lambda _, message: self._got.append(message)]):
            while len(self._got) < number:
                self._connection.drain_events(timeout=10)
        return self._got[:]

    def connect_anew(self) -> str:
        """Do as a worker whose connection broke, and return the name it had."""
        name = self.worker.name
        self.worker.begin(self._connection)
        return name

    def begin(self, message: Any) -> Callable[[], object]:
        """Begin the run of a message as a child does, and return what ends it."""
        task = self._yard.tasks[message.headers["task"]]
        header = Message.loads(message.headers[HEADER])
        assert header is not None
        assert header.key is not None
        lock = declaration_of(task).task_lock((), {}, message.headers["id"], key=header.key)
        if header.stands_for_period:  # its claim stays; its copies are kept out beside it
            lock = lock.of_message(header.token)
        lease = lock.start(
            "run/1",
            claim=header.token,
            message=header.token,
            may_be_done=False,
            accepted=True,
            max_hold=None,
            on_lost=lambda _: None,
        )
        assert isinstance(lease, Lease)
        return partial(lock.finish, lease)

    def restoring(self, name: str, bearer: str = "") -> Any:
        """Restore what is under a name, step by step."""
        return self.worker._restorer.restore(self.channel, name, bearer)

    def look(self) -> None:
        """Renew the name, as one that was renewed in time for long, and restore what there is."""
        self.worker._steady_since = boottime() - 10 * TERM
        self.worker.look(self._connection.channel())


@pytest.fixture
def yard(tcp_server: EmbeddedServer, prefix: str) -> Iterator[Yard]:
    yard = Yard(tcp_server.url, prefix)
    yield yard
    yard.close()


@pytest.mark.parametrize("acks_late", [False, True])
@pytest.mark.parametrize("scope", SCOPES)
def test_what_had_not_begun_is_back_and_still_claimed(yard: Yard, scope: str, acks_late: bool) -> None:
    """Promise 4: it runs within the term of a name, and until then a call is its duplicate."""
    task = yard.tasks[scope + ("_late" if acks_late else "")]
    result = task.delay(7)
    dead = yard.hand()
    dead.receive()
    other = yard.tasks["until_executed"].delay(8)
    yard.let_lapse(dead)
    yard.hand().look()
    assert yard.ids() == [result.id, other.id]
    assert yard.queued()[0]["headers"]["redelivered"] is True
    assert yard.unacked() == {}
    assert yard.server.zcard(f"{yard.prefix}unacked_index") == 0
    assert task.delay(7).is_duplicate is (scope != "while_executing")


def test_they_run_in_the_order_in_which_they_were_received(yard: Yard) -> None:
    """As if no worker had died; before what has been published since."""
    ids = [yard.tasks["until_executed"].delay(number).id for number in range(20)]
    dead = yard.hand()
    dead.receive(20)
    ids.append(yard.tasks["until_executed"].delay(20).id)
    yard.let_lapse(dead)
    yard.hand().look()
    assert yard.ids() == ids


def test_an_idle_worker_receives_them_in_that_order_too(yard: Yard) -> None:
    """It waits at the queue while they come back to it."""
    ids = [yard.tasks["until_executed"].delay(number).id for number in range(20)]
    yard.lose(20)
    rescuer = yard.hand()
    idle = yard.hand()
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(idle.receive, 20)
        assert wait_until(lambda: yard.blocked() == 1, 10)
        rescuer.look()
        assert [message.headers["id"] for message in received.result(20)] == ids


def _of_the_living(yard: Yard) -> Any:
    """Never by age: only a name that has lapsed is searched for."""
    result = yard.tasks["until_executed"].delay(7)
    yard.hand().receive()
    return result


def _of_a_plain_task(yard: Yard) -> Any:
    """It has no mark that would keep its copy from running beside it."""
    result = yard.plain.delay()
    yard.lose()
    assert IN_HAND_OF not in yard.unacked()[result.id]["properties"]
    return result


def _of_another_that_names_the_dead(yard: Yard) -> Any:
    """A worker's name may stand in an argument, or be the beginning of another one."""
    dead = yard.hand()
    result = yard.tasks["until_executed"].delay(dead.worker.name)
    yard.hand().receive()
    yard.let_lapse(dead)
    return result


def _begun_and_acknowledged_early(yard: Yard) -> Any:
    """It runs at most once, as with plain Celery; its acknowledgement was on the way."""
    result = yard.tasks["until_executed"].delay(7)
    dead = yard.hand()
    dead.begin(*dead.receive())()
    yard.let_lapse(dead)
    return result


def _of_an_unknown_queue(yard: Yard) -> Any:
    """Such a message kombu would delete, and push nowhere (5.7.0)."""
    strange = Queue("strange", Exchange("strange", type="topic"), routing_key="*.x")
    options: Any = {"exchange": "strange", "routing_key": "a.x", "declare": [strange]}
    result = yard.tasks["until_executed"].apply_async((1,), **options)
    dead = yard.hand(strange)
    dead.receive()
    yard.let_lapse(dead)
    return result


@pytest.mark.parametrize(
    ("in_hand_of", "said"),
    [
        (_of_the_living, ""),
        (_of_a_plain_task, ""),
        (_of_another_that_names_the_dead, ""),
        (_begun_and_acknowledged_early, ""),
        (_of_an_unknown_queue, "], which a lapsed worker has in hand, is left"),
    ],
)
def test_what_may_run_already_or_nowhere_stays_where_it_is(
    yard: Yard, in_hand_of: Callable[[Yard], Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing runs twice for a guess, and nothing is lost."""
    result = in_hand_of(yard)
    yard.hand().look()
    assert list(yard.unacked()) == [result.id]
    assert yard.queued() == []
    assert not said or f"{result.id}{said}" in caplog.text


def test_eta_expiry_and_priority_are_kept(yard: Yard) -> None:
    """A restored message is the one that was published."""
    eta = datetime.fromisoformat("2036-01-01T00:00:00+00:00")
    task = yard.tasks["until_executed"]
    task.apply_async((7,), eta=eta, expires=eta, priority=6)
    dead = yard.hand()
    (before,) = dead.receive()
    yard.let_lapse(dead)
    yard.hand().look()
    (after,) = yard.queued("celery\x06\x166")
    for name in ("id", "eta", "expires", HEADER):
        assert after["headers"][name] == before.headers[name]
    assert after["body"] == json.loads(json.dumps(before._raw["body"]))


def test_each_message_is_back_in_its_own_queue(yard: Yard) -> None:
    """A topic exchange too, whose type a fresh connection does not know."""
    first = Queue("first", Exchange("topics", type="topic"), routing_key="a.*")
    second = Queue("second", Exchange("topics", type="topic"), routing_key="b.#")
    for queue in (first, second):
        yard.app.amqp.queues.add(queue)
    task = yard.tasks["until_executed"]
    one = task.apply_async((1,), exchange="topics", routing_key="a.x", declare=[first, second])
    two = task.apply_async((2,), exchange="topics", routing_key="b.x.y")
    dead = yard.hand(first, second)
    dead.receive(2)
    yard.let_lapse(dead)
    yard.hand().look()
    assert (yard.ids("first"), yard.ids("second")) == ([one.id], [two.id])


def test_it_is_restored_on_redis_as_on_valkey(prefix: str) -> None:
    """The other tests' server is the one that comes with the package."""
    with start_server("redis-server", port=0) as server, closing(Yard(server.url, prefix)) as yard:
        _lose_and_restore(yard)


def test_it_is_restored_behind_a_sentinel(primary: EmbeddedServer, sentinel: str, prefix: str) -> None:
    """The thread asks the Sentinel as the worker does."""
    with closing(Yard(primary.url, prefix, broker=sentinel)) as yard:
        _lose_and_restore(yard)


def _lose_and_restore(yard: Yard) -> None:
    result = yard.tasks["until_executed"].delay(7)
    yard.lose()

    yard.hand().look()

    assert yard.ids() == [result.id]
    assert yard.unacked() == {}


def test_a_message_is_not_restored_while_its_run_goes_on(yard: Yard) -> None:
    """A main process may die alone: its child goes on, and holds the lease."""
    result = yard.tasks["until_executed_late"].delay(7)
    dead = yard.hand()
    (message,) = dead.receive()
    end = dead.begin(message)
    yard.let_lapse(dead)
    rescuer = yard.hand()
    rescuer.look()
    assert list(yard.unacked()) == [result.id]
    end()
    yard.give_again(dead)
    rescuer.look()
    assert yard.ids() == [result.id]


@pytest.mark.parametrize(("seconds", "is_restored"), [(-0.9 * TERM, True), (-TERM, False)])
def test_a_retry_whose_run_left_no_claim_is_restored(yard: Yard, seconds: float, is_restored: bool) -> None:
    """Without a claim, and not due while its worker lived: it had not begun. One that was due may have."""
    result = yard.tasks["until_executed"].apply_async((7,), countdown=TERM)
    dead = yard.hand()
    (message,) = dead.receive()
    dead.begin(message)()
    eta = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    (tag, text), *_ = yard.server.hgetall(f"{yard.prefix}unacked").items()
    text = text.replace(message.headers["eta"].encode(), eta.isoformat().encode())
    yard.server.hset(f"{yard.prefix}unacked", tag, text)
    yard.let_lapse(dead)
    yard.hand().look()
    assert yard.ids() == [result.id] * is_restored


@pytest.mark.parametrize("scope", ["until_executed", "until_expired", "while_executing"])
def test_a_message_that_kills_workers_is_left_after_the_third(yard: Yard, scope: str, caplog: Any) -> None:
    """A poison message; what waits behind it in the same hands is restored each time."""
    poison = yard.tasks[f"{scope}_late"].delay(7)
    neighbour = yard.tasks["until_executed"].delay(8)
    for _ in range(restore.MOST_DEATHS + 1):
        dead = yard.hand()
        for message in dead.receive(2):
            if message.headers["id"] == poison.id:
                dead.begin(message)()
        yard.let_lapse(dead)
        caplog.clear()
        yard.hand().look()

    assert yard.ids() == [neighbour.id]
    assert list(yard.unacked()) == [poison.id]
    assert f"{poison.id}] is left to the visibility timeout: 4 workers have died" in caplog.text


@pytest.mark.parametrize("bearer", ["known", "nonsense", "gone"])
def test_one_line_says_which_worker_gave_no_sign_of_life(yard: Yard, bearer: str, caplog: Any) -> None:
    """However many messages it had; what stands beside a name, as long as that, may be anything, or gone."""
    yard.tasks["until_executed"].delay(7)
    yard.tasks["until_executed"].delay(8)
    dead = yard.lose(2)
    bearers = f"{yard.prefix}redislock:workers:bearers"
    if bearer == "known":
        known = json.loads(yard.server.hget(bearers, dead.worker.name) or b"{}")
        assert {"host", "pid", "since"} < known.keys()
    elif bearer == "nonsense":
        yard.server.hset(bearers, dead.worker.name, "{")
    elif bearer == "gone":
        yard.server.delete(bearers)
    yard.hand().look()

    assert not yard.server.hexists(bearers, dead.worker.name)
    who = f"the worker celery@one (pid {os.getpid()} on " if bearer == "known" else "a worker for "
    (line,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert f"no sign of life of {who}" in line
    assert line.endswith(
        "for 600 s over the connection that it had: 2 messages that it had in hand are back in their queues; "
        "see whether it was killed, maybe for its memory, or cut off"
    )


def test_two_workers_that_restore_push_a_message_once(yard: Yard) -> None:
    """A name may be given to a second worker while the first is slow."""
    result = yard.tasks["until_executed"].delay(7)
    dead = yard.hand()
    dead.receive()
    steps = [yard.hand().restoring(dead.worker.name) for _ in range(2)]
    for each in steps:
        next(each)
    for each in steps:
        list(each)
    assert yard.ids() == [result.id]


def test_a_restored_message_is_not_taken_from_who_has_received_it_since(yard: Yard) -> None:
    """It keeps its tag: a slow worker, which had found it before, must see whose it is now."""
    result = yard.tasks["until_executed"].delay(7)
    dead = yard.hand()
    dead.receive()
    steps = yard.hand().restoring(dead.worker.name)
    next(steps)
    yard.let_lapse(dead)
    yard.hand().look()
    owner = yard.hand()
    owner.receive()
    list(steps)
    assert yard.queued() == []
    assert yard.unacked()[result.id]["properties"][IN_HAND_OF] == owner.worker.name


@pytest.mark.parametrize("steps", range(5))
def test_who_dies_while_it_restores_is_followed_by_the_next(yard: Yard, steps: int) -> None:
    """After each step: the name stays taken, and is given to another worker some seconds later."""
    ids = [yard.tasks["until_executed"].delay(account).id for account in range(2)]
    dead = yard.lose(2)
    dying = yard.hand()
    dying.worker._steady_since = boottime() - 10 * TERM
    ((name, bearer),) = dying.worker._renew(dying.channel, dying.worker.ttl / 6)
    restoring = dying.restoring(name, bearer)
    for _ in range(steps):
        next(restoring)
    restoring.close()
    rescuer = yard.hand()
    rescuer.look()
    yard.give_again(dead)
    rescuer.look()

    assert sorted(yard.ids()) == sorted(ids)
    assert yard.unacked() == {}


def test_an_acknowledgement_in_between_is_not_undone(yard: Yard) -> None:
    """A worker that only stood still may go on at any moment."""
    yard.tasks["until_executed"].delay(7)
    paused = yard.hand()
    (message,) = paused.receive()
    steps = yard.hand().restoring(paused.worker.name)
    next(steps)
    message.ack()
    list(steps)
    assert (yard.queued(), yard.unacked()) == ([], {})


def test_an_unreachable_lock_server_restores_nothing(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 9: nothing goes back unseen; the name is given again."""
    result = yard.tasks["until_executed"].delay(7)
    dead = yard.lose()
    store = declaration_of(yard.tasks["until_executed"]).store
    rescuer = yard.hand()
    with monkeypatch.context() as patch:
        patch.setattr(store, "holders", raising(ConnectionError))
        with pytest.raises(ConnectionError):
            rescuer.look()
    assert list(yard.unacked()) == [result.id]
    yard.give_again(dead)
    rescuer.look()
    assert yard.ids() == [result.id]


def test_after_an_outage_each_living_worker_keeps_its_name(yard: Yard) -> None:
    """The broker was away: all names have lapsed, and nobody takes one before all have had time to return.

    Nor does one that has just started: it cannot know whether the broker was away until now.
    """
    result = yard.tasks["until_executed"].delay(7)
    hands = [yard.hand(), yard.hand()]
    hands[0].receive()
    names = [hand.worker.name for hand in hands]
    for hand in hands:
        yard.let_lapse(hand)
    new = yard.hand()
    new.worker.look(new.channel)
    assert list(yard.unacked()) == [result.id]
    for hand in reversed(hands):
        hand.look()
        hand.worker.look(hand.channel)

    assert [hand.worker.name for hand in hands] == names
    assert list(yard.unacked()) == [result.id]


def test_a_worker_whose_name_was_taken_bears_another_one(yard: Yard) -> None:
    """It was paused: what it receives from now on must not be searched for under the old name."""
    paused = yard.hand()
    name = paused.worker.name
    yard.let_lapse(paused)
    yard.hand().look()
    paused.worker.look(paused.channel)
    yard.tasks["until_executed"].delay(7)
    (message,) = paused.receive()
    assert message.properties[IN_HAND_OF] == paused.worker.name != name


@pytest.mark.parametrize("connects_anew", [False, True])
@pytest.mark.parametrize("name", ["until_executed", "until_executed_late"])
def test_what_came_when_a_name_was_not_renewed_in_time_is_signed_with_the_next_renewal(
    yard: Yard, name: str, *, connects_anew: bool
) -> None:
    """As after a broker stood still: its worker may be killed before it has begun that, as any other one."""
    result = yard.tasks[name].delay(7)
    hand = yard.hand()
    hand.worker._renewed_at -= hand.worker.vouches
    hand.receive()
    unsigned = yard.unacked()[result.id]["properties"][IN_HAND_OF]
    if connects_anew:
        signed = hand.connect_anew()
    else:
        # First the broker was gone again: the thread tries again.
        with pytest.MonkeyPatch.context() as once:
            once.setattr(hand.worker, "_carry", raising(ConnectionError))
            with pytest.raises(ConnectionError):
                hand.look()
        hand.look()
        signed = hand.worker.name

    end = "+" if name.endswith("_late") else ""
    assert unsigned != yard.unacked()[result.id]["properties"][IN_HAND_OF] == signed + end
    yard.let_lapse(hand, signed)
    yard.hand().look()
    assert yard.ids() == [result.id]


def test_a_worker_that_has_not_renewed_in_time_signs_nothing_yet(yard: Yard) -> None:
    """And takes off the name of who had it before: that one would be searched for."""
    yard.tasks["until_executed"].delay(7)
    dead = yard.lose()
    yard.hand().look()
    late = yard.hand()
    late.worker._renewed_at -= late.worker.vouches
    late.receive()
    yard.give_again(dead)
    yard.hand().look()
    assert yard.ids() == []


def test_receiving_costs_no_request_more(yard: Yard) -> None:
    """The name travels in what kombu stores anyway."""
    for account in range(50):
        yard.tasks["until_executed"].delay(account)
    hand = yard.hand()

    def calls() -> Counter[str]:
        stats: Any = yard.server.info("commandstats")
        return Counter({name: stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in REQUESTS})

    before = calls()
    hand.receive(50)
    assert calls() - before == {"zadd": 50, "hset": 50}


@contextmanager
def running(*messages: Any) -> Iterator[None]:
    """Let the runs of these have begun in this worker, while the block runs."""
    requests = [Mock(message=message) for message in messages]
    active_requests.update(requests)
    yield
    active_requests.difference_update(requests)


def test_what_a_worker_has_not_begun_when_it_connects_anew_is_restored_by_itself(yard: Yard) -> None:
    """Celery has forgotten it. The worker lives, and nobody else is there."""
    results = [yard.tasks["until_executed"].delay(account) for account in range(3)]
    hand = yard.hand()
    hand.receive(3)
    name = hand.connect_anew()
    yard.let_lapse(hand, name)
    hand.look()
    assert hand.worker.name != name
    assert yard.ids() == [result.id for result in results]
    assert not yard.unacked()


@pytest.mark.parametrize("name", ["until_executed", "until_executed_late"])
def test_what_runs_when_a_worker_connects_anew_is_its_own(yard: Yard, name: str) -> None:
    """Its lease may be gone, and so may its claim: only the worker knows."""
    result = yard.tasks[name].delay(7)
    hand = yard.hand()
    (message,) = hand.receive()
    yard.plain.delay()
    (plain,) = hand.receive()
    hand.begin(message)()
    with running(message, plain):
        former = hand.connect_anew()
    yard.let_lapse(hand, former)
    hand.look()
    end = "+" if name.endswith("_late") else ""
    assert yard.unacked()[result.id]["properties"][IN_HAND_OF] == hand.worker.name + end
    assert IN_HAND_OF not in yard.unacked()[plain.headers["id"]]["properties"]
    assert yard.ids() == []

    yard.let_lapse(hand)
    yard.hand().look()
    assert yard.ids() == ([result.id] if end else [])


def test_what_was_acknowledged_meanwhile_does_not_come_back(yard: Yard) -> None:
    """A pool's thread acknowledges while the worker connects."""
    yard.tasks["until_executed_late"].delay(7)
    hand = yard.hand()
    (message,) = hand.receive()
    message.ack()
    with running(message):
        hand.connect_anew()
    assert not yard.unacked()


def test_a_worker_that_cannot_take_along_what_runs_keeps_its_name(yard: Yard, monkeypatch: Any) -> None:
    """The connection broke again: under the former name what runs must not lapse."""
    yard.tasks["until_executed_late"].delay(7)
    hand = yard.hand()
    (message,) = hand.receive()
    run = in_hand.run_script

    def carry_fails(channel: Any, name: str, *rest: Any) -> Any:
        if name == "carry":
            raise OSError
        return run(channel, name, *rest)

    monkeypatch.setattr(in_hand, "run_script", carry_fails)
    with running(message):
        name = hand.connect_anew()
    hand.worker.look(hand.channel)

    assert hand.worker.name == name


@pytest.mark.parametrize(
    "spoil",
    [
        lambda name: f"no JSON, {name}",
        lambda name: json.dumps([{"properties": {IN_HAND_OF: 7}, "x": name}, "", "q"]),
        lambda name: json.dumps([name]),
    ],
    ids=["no JSON", "a number for a name", "of another shape"],
)
def test_an_entry_that_cannot_be_read_is_left_alone_with_one_warning(
    yard: Yard, spoil: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """And its neighbours are restored."""
    result = yard.tasks["until_executed"].delay(7)
    dead = yard.hand()
    dead.receive()
    unacked = f"{yard.prefix}unacked"
    spoilt = spoil(dead.worker.name)
    yard.server.hset(unacked, "spoilt", spoilt)
    yard.let_lapse(dead)
    rescuer = yard.hand()
    rescuer.look()
    rescuer.look()

    assert yard.ids() == [result.id]
    assert yard.server.hgetall(unacked) == {b"spoilt": spoilt.encode()}
    assert caplog.text.count("cannot be read, and is left alone") == 1


def test_a_broker_without_scripts_works_too(tcp_server: EmbeddedServer, prefix: str, caplog: Any) -> None:
    """An ACL may forbid them: one line says what is missed."""
    caplog.set_level(logging.INFO, "celery_redislock")
    with EmbeddedServer(port=0) as server:
        client = redis.Redis.from_url(server.redis_url)
        client.acl_setuser("worker", enabled=True, passwords=["+pw"], commands=["+@all", "-eval"], keys=["*"])
        broker = f"redis://worker:pw@127.0.0.1:{server.port}/0"
        yard = Yard(broker, prefix, redislock_url=tcp_server.url)
        yard.tasks["until_executed"].delay(7)
        hand = yard.hand()
        (message,) = hand.receive()
        assert hand.worker.begin(hand._connection) is False
        yard.close()
        client.close()

    assert IN_HAND_OF not in message.properties
    lines = [record for record in caplog.records if "is not restored if it is killed" in record.message]
    assert [record.levelname for record in lines] == ["INFO"]


def test_the_page_names_every_key_and_command(tcp_server: EmbeddedServer) -> None:
    """Where the broker's user may not do all: these, beside what Celery itself sends."""
    page = PAGES["docs/server.md"]
    table = page.partition("On a broker that is Redis")[2]
    keys = dict(re.findall(r"^\| `redislock(:[^`]+)` \| (\w[\w ]*) \|", table, re.MULTILINE))
    (said,) = [line for line in page.splitlines() if line.startswith("The broker's user")]
    with EmbeddedServer(port=0) as server, closing(redis.Redis.from_url(server.redis_url)) as client:
        commands = ["-@all", *CELERYS, *re.findall(r"`(\+\w+)`", said)]
        client.acl_setuser("worker", enabled=True, passwords=["+pw"], commands=commands, keys=["*"])
        broker = f"redis://worker:pw@127.0.0.1:{server.port}/0"
        with closing(Yard(server.url, "here", broker=broker, redislock_url=tcp_server.url)) as yard:
            result = yard.tasks["while_executing_late"].delay(7)
            dead = yard.hand()
            dead.receive()
            yard.let_lapse(dead)
            given = Message.loads(yard.unacked()[result.id]["headers"][HEADER])
            assert given is not None
            rescuer = yard.hand()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(restore, "_push", raising(ConnectionError))
                with pytest.raises(ConnectionError):
                    rescuer.look()
            found = {
                key.decode().removeprefix("here:redislock").replace(given.token, "TOKEN"): client.type(key)
                for key in client.scan_iter("here:redislock:*")
            }
            expiries = [client.pttl(key) for key in client.scan_iter("here:redislock:*")]
            yard.give_again(dead)
            rescuer.look()

            assert yard.ids() == [result.id]
    kinds = {b"zset": "sorted set", b"string": "string", b"hash": "hash"}
    assert {key: kinds[kind] for key, kind in found.items()} == keys
    assert min(expiries) > 0


@pytest.mark.parametrize("broker", ["memory://", "a QoS of its own", "py-amqp's channel"])
def test_another_transport_is_left_alone(broker: str, celery_url: str) -> None:
    """Workers on RabbitMQ pay nothing: no thread, no key, no property."""
    app = Celery(broker=broker if "://" in broker else celery_url, set_as_current=False)
    with app.connection_for_read() as connection:
        channel: Any = object.__new__(Channel) if "amqp" in broker else connection.channel()
        if broker == "a QoS of its own":
            channel.QoS = type("Other", (channel.QoS,), {})
        step = object.__new__(InHand)
        step.obj = None
        InHand.start(step, Mock(task_consumer=Mock(channel=channel)))
        assert step.obj is None
        if "amqp" not in broker:
            assert channel.qos.append.__func__ is type(channel.qos).append
