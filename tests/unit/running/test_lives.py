"""The table of lives: scope by scope, what is left of a message, however it ends and whoever acts.

Every entry was written by hand, from the laws and from ``docs/killed.md``.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest
from celery.exceptions import Ignore, Reject

from celery_redislock.exceptions import DuplicateTask
from celery_redislock.testing import hold
from tests.unit.running.lives import (
    COUNTDOWN,
    ENDS,
    EXIT_IS_LOSS,
    KINDS,
    QUEUE_TTL,
    SCOPES,
    TWO_LOCKS,
    Life,
    raising,
)
from tests.unit.shop import KEY, Shop, body, carried, let_nobody_look, open_shop, revoke

#: Seconds after which a lease that nobody renews has expired, and so has the mark ``ending``.
TTL = 31

# What is held: nothing; the message's `claim`; a `lease` on its key, or, for its `copies`, on the message
# itself, `dying` where its ttl was shortened; the claim of the `retry`, or of the replacement, that has been
# published.
# Copies are kept out only where the broker may deliver the message once more.
#
# The period (`lock_period`) `stands` or `ends`; if the job has failed it ends unless it is kept (`fails`).
# `~`: the message did not start, so where nothing is claimed at publish none has begun.
#
# The mark tells copies that the message is `ending` or `done`. A copy `runs`, does `nothing`, or `waits`:
# then it runs when what it waits for has expired. Where no copy can come there is no mark; but one may tell
# the run that a retry follows (`?`) that this has been dropped.
#
# The broker was told so, `ack/-`: with early acknowledgement / with late; `again`: another message of this id
# was published. The state is the result backend's; FAILED: Celery before 5.7 leaves it PENDING.
#
# `all` rows are played with the usual kinds of message, `every` with all there are.
LIVES = """
what ends it                  | message              | acks                      | executed     | executing    | expired      | while        | period   | mark    | state    | broker     | copy
the body ends
returns                       | every                | both                      |              |              |              |              | stands   | done    | SUCCESS  | ack        | nothing
returns                       | unaware of its claim | both                      |              |              |              |              | stands   | done    | SUCCESS  | ack        | nothing
returns                       | not kept so long     | both                      |              |              |              |              | stands   | done    | SUCCESS  | ack        | nothing
returns                       | not so long, named   | both                      |              |              |              |              | stands   | done    | SUCCESS  | ack        | nothing
raises                        | all                  | both                      |              |              |              |              | fails    | done    | FAILURE  | ack        | nothing
returns what cannot be stored |                      | both                      |              |              |              |              | fails    | done    | FAILURE  | ack        | nothing
Ignore                        |                      | both                      |              |              |              |              | fails    | done    | PENDING  | ack        | nothing
DuplicateTask                 |                      | both                      |              |              |              |              | fails    | done    | FAILURE  | ack        | nothing
Reject                        |                      | early                     |              |              |              |              | fails    | done    | FAILED   | ack        | nothing
Reject                        |                      | late                      |              |              |              |              | fails    | done    | FAILED   | reject     | nothing
Reject, requeued              |                      | early                     |              |              |              |              | fails    | done    | PENDING  | ack        | nothing
GreenletExit                  |                      | early                     |              |              |              |              | fails    | -       | PENDING  | ack        | runs
SystemExit                    |                      | late                      |              |              |              |              | stands   | -       | PENDING  | -          | runs
KeyboardInterrupt             |                      | late                      |              |              |              |              | stands   | -       | PENDING  | -          | runs
a BaseException               |                      | both                      |              |              |              |              | stands   | -       | PENDING  | ack/-      | runs
SystemExit, told              |                      | both                      |              |              |              |              | fails    | -       | FAILURE  | ack        | runs
SystemExit, told              |                      | late, requeues lost       |              |              |              |              | stands   | -       | PENDING  | requeue    | runs
the job goes on in another message
Reject, requeued              | all                  | late                      | claim        |              |              | claim        | stands   | -       | PENDING  | requeue    | runs
retry                         | all                  | both                      | retry        | retry        |              | retry        | stands   | done    | RETRY    | ack again  | nothing
retry, returns                |                      | both                      | retry        | retry        |              | retry        | stands   | done    | SUCCESS  | ack again  | nothing
retry, raises                 |                      | both                      | retry        | retry        |              | retry        | stands   | done    | FAILURE  | ack again  | nothing
raises Retry                  |                      | both                      |              |              |              |              | stands   | done    | RETRY    | ack        | nothing
replaced by itself            |                      | both                      | retry        | retry        |              | retry        | stands   | done    | PENDING  | ack again  | nothing
replaced by another           |                      | both                      |              |              |              |              | stands   | done    | PENDING  | ack again  | nothing
the body does not begin
before_start raises           |                      | both                      |              |              |              |              | ~ends    | -       | FAILURE  | ack        | runs
before_start raises           | delivered again      | both                      |              |              |              |              | ~stands  | -       | FAILURE  | ack        | runs
before_start raises           | a retry              | early                     |              |              |              |              | fails    | ?       | FAILURE  | ack        |
before_start Ignore           |                      | both                      |              |              |              |              | ~ends    | -       | PENDING  | ack        | runs
before_start Reject           |                      | late                      |              |              |              |              | ~ends    | -       | FAILED   | reject     | runs
before_start requeues         |                      | early                     |              |              |              |              | ~ends    | -       | PENDING  | ack        |
before_start requeues         |                      | late                      | claim        | claim        |              |              | ~stands  | -       | PENDING  | requeue    | runs
before_start retries          |                      | both                      | claim        | claim        |              |              | ~stands  | -       | RETRY    | ack again  |
wrong options                 |                      | both                      |              |              |              |              | ~ends    | -       | FAILURE  | ack        |
locked no more                |                      | both                      |              |              |              |              | ~ends    | -       | SUCCESS  | ack        |
its child is killed, and the main process acts
killed in before_start        |                      | both                      |              |              |              |              | ~fails   | -       | FAILURE  | ack        | runs
killed in before_start        | delivered again      | both                      |              |              |              |              | ~stands  | -       | FAILURE  | ack        | runs
killed in its body            | all                  | both                      |              |              |              |              | fails    | -       | FAILURE  | ack        | runs
killed when it is over        |                      | both                      |              |              |              |              | stands   | done    | SUCCESS  | ack        | nothing
killed storing its result     |                      | both                      |              |              |              |              | fails    | ending  | FAILURE  | ack        | waits
exits in before_start         |                      | both                      |              |              |              |              | ~fails   | -       | FAILURE  | ack        | runs
killed in its body            |                      | early, requeues lost      |              |              |              |              | fails    | -       | FAILURE  | ack        |
killed in before_start        |                      | late, requeues lost       | claim        | claim        |              |              | ~stands  | -       | PENDING  | requeue    | runs
killed in its body            | all                  | late, requeues lost       | claim        |              |              | claim        | stands   | -       | PENDING  | requeue    | runs
killed in before_start        |                      | both, retries lost        | claim        | claim        |              |              | ~stands  | -       | RETRY    | ack again  |
killed in its body            |                      | both, retries lost        | retry        |              |              | retry        | stands   | -       | RETRY    | ack again  |
killed in its body            | sent by name         | both, retries lost        | claim        |              |              | claim        | stands   | -       | RETRY    | ack again  |
killed in its body            |                      | both, no more retries     |              |              |              |              | fails    | -       | FAILURE  | ack        |
lease lapsed, then killed     |                      | late, requeues lost       |              |              |              |              | stands   | -       | PENDING  | requeue    | runs
lease lapsed, then killed     |                      | late, retries lost        |              |              |              |              | stands   | -       | RETRY    | ack again  |
terminated in before_start    |                      | both                      |              |              |              |              | ~fails   | -       | REVOKED  | ack        | runs
terminated in its body        |                      | both                      |              |              |              |              | fails    | -       | REVOKED  | ack        | runs
cancelled                     |                      | late                      | claim        |              |              | claim        | stands   | -       | RETRY    | -          | runs
timed out in before_start     |                      | both                      |              |              |              |              | ~fails   | -       | FAILURE  | ack        | runs
timed out in before_start     | delivered again      | both                      |              |              |              |              | ~stands  | -       | FAILURE  | ack        | runs
timed out in its body         | all                  | both                      | dying lease  | dying copies | dying copies | dying lease  | fails    | -       | FAILURE  | ack        | waits
timed out in before_start     |                      | late, requeues timed out  | claim        | claim        |              |              | ~stands  | -       | FAILURE  | requeue    | runs
timed out in before_start     |                      | late, by the newer name   | claim        | claim        |              |              | ~stands  | -       | FAILURE  | requeue    | runs
timed out in its body         |                      | late, requeues timed out  | dying lease  | dying copies | dying copies | dying lease  | stands   | -       | FAILURE  | requeue    | waits
its message does not start
revoked                       |                      | both                      |              |              |              |              | ~ends    | -       | REVOKED  | ack        |
expired                       |                      | both                      |              |              |              |              | ~ends    | -       | REVOKED  | ack        |
revoked                       | delivered again      | both                      |              |              |              |              | ~stands  | -       | REVOKED  | ack        |
expired                       | delivered again      | both                      |              |              |              |              | ~stands  | -       | REVOKED  | ack        |
revoked                       | a retry              | early                     |              |              |              |              | fails    | ?       | REVOKED  | ack        |
revoked                       | waited before        | both                      |              |              |              |              | ~stands  | -       | REVOKED  | ack        |
revoked                       | unaware of its claim | both                      |              |              |              |              | ~ends    | -       | REVOKED  | ack        |
revoked, wrong options        |                      | both                      |              |              |              |              | ~ends    | -       | REVOKED  | ack        |
revoked, locked no more       |                      | both                      |              |              |              |              | ~ends    | -       | REVOKED  | ack        |
rejected by the worker        |                      | early                     |              |              |              |              | ~ends    | -       | FAILED   | reject     |
unreadable                    |                      | both                      |              |              |              |              | ~ends    | -       | PENDING  | -          |
given back                    |                      | both                      | claim        | claim        |              |              | ~stands  | -       | PENDING  | requeue    | runs
nobody acts: the ttl does
worker killed before_start    |                      | both                      | claim        | claim        |              |              | ~stands  | -       | PENDING  | ack/-      | runs
worker killed in its body     | all                  | both                      | lease        | copies       | copies       | lease        | stands   | -       | PENDING  | ack/-      | waits
trouble with the lock server, or a signal
server away                   |                      | early                     | claim        | .            | .            |              | ~stands  | -       | PENDING  | ack again  |
server away                   |                      | late                      | claim        | claim        |              |              | ~stands  | -       | PENDING  | ack again  |
server and broker away        |                      | early                     |              | .            | .            |              | ~ends    | -       | FAILURE  | ack        |
server and broker away        |                      | late                      | claim        | claim        |              |              | ~stands  | -       | PENDING  | requeue    | runs
start interrupted             |                      | early                     |              |              | .            |              | ~ends    | -       | PENDING  | ack        |
start interrupted             | unaware of its claim | early                     | .            | .            |              | .            | ~ends    | -       | PENDING  | ack        |
start interrupted             |                      | late                      | claim        | claim        |              |              | ~stands  | -       | PENDING  | -          | runs
start cut short               |                      | early                     |              |              | .            |              | ~ends    | -       | FAILURE  | ack        |
interrupted before its body   |                      | early                     |              | .            | .            | .            | ends     | -       | PENDING  | ack        |
interrupted before its body   |                      | late                      |              | .            | .            |              | stands   | -       | PENDING  | -          | runs
interrupted at its end        |                      | both                      |              | .            | .            |              | stands   | ending  | PENDING  | ack/-      | waits
interrupted storing           |                      | both                      |              |              |              |              | stands   | ending  | PENDING  | ack/-      | waits
unanswered release            |                      | both                      |              |              |              |              | stands   | done    | SUCCESS  | ack        | nothing
unanswered hand-over          |                      | both                      | retry        | retry        |              | retry        | stands   | done    | SUCCESS  | ack again  | nothing
unanswered mark               |                      | late                      |              |              |              |              | stands   | done    | SUCCESS  | ack        | nothing
unanswered death              |                      | both                      |              |              |              |              | fails    | -       | FAILURE  | ack        |
run without its lock          |                      | both                      |              |              |              |              | ~stands  | done    | SUCCESS  | ack        | nothing
run without its lock, retry   |                      | early                     |              | .            | .            |              | ~stands  | -       | SUCCESS  | ack again  |
unpublished retry             |                      | early                     |              |              |              |              | fails    | -       | FAILED   | ack        |
"""  # noqa: E501  a table

#: The scopes, in the order of the table.
COLUMNS = ("until_executed", "until_executing", "until_expired", "while_executing")

#: What the scope of two locks leaves where ``until_executed`` leaves nothing, as its claim is kept apart: a
#: message that comes again has its place yet, and the key is free for a retry.
OF_TWO_LOCKS_ALONE = {
    ("interrupted before its body", "late"): "place",
    ("run without its lock, retry", "early"): "retry",
}

#: What the scope of two locks leaves where ``until_executed`` leaves something: its `place` in the queue is
#: kept beside its key until the lease is granted. A message that runs again holds the key then, not that.
OF_TWO_LOCKS = {
    end: held
    for held, ends in {
        "place": (
            *("before_start requeues", "before_start retries", "given back", "worker killed before_start"),
            *("killed in before_start, requeues lost", "killed in before_start, retries lost"),
            *(
                "timed out in before_start, requeues timed out",
                "timed out in before_start, by the newer name",
            ),
            *("server away", "server and broker away", "start interrupted"),
        ),
        "claim": ("Reject, requeued", "killed in its body, requeues lost", "cancelled"),
        "retry": (
            *("retry", "retry, returns", "retry, raises", "replaced by itself", "unanswered hand-over"),
            "killed in its body, retries lost",
        ),
        "dying lease": ("timed out in its body", "timed out in its body, requeues timed out"),
        "lease": ("worker killed in its body",),
    }.items()
    for end in ends
}

#: What is held while a body runs; and where the broker may deliver its message once more (law 8).
WHILE_RUNNING = {
    "until_executed": ("lease", "lease"),
    "until_executing": ("", "copies"),
    "until_expired": ("", "copies"),
    "while_executing": ("lease", "lease"),
    TWO_LOCKS: ("lease", "lease"),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "requeues lost": {"reject_on_worker_lost": True},
    "retries lost": {"retry_on_worker_lost": True, "default_retry_delay": COUNTDOWN},
    "no more retries": {"retry_on_worker_lost": True, "max_retries": 0},
    "requeues timed out": {"acks_on_failure_or_timeout": False},
    "by the newer name": {"acks_on_timeout": False},
}

#: The kinds that rows name, because the broker brings these no copy.
NOT_EVERY = {"unaware of its claim", "not kept so long", "not so long, named"}

#: The kinds of message of one row or another.
MANY = {
    "all": ("published", "sent by name", "a tick", "a tick by name", "delivered again", "a retry"),
    "every": [kind for kind in KINDS if kind not in NOT_EVERY],
}

#: What Celery does not know before 5.7, or settles in another way.
SINCE_5_7 = {
    "retries lost", "no more retries", "SystemExit, told", "exits in before_start", "killed when it is over",
    "by the newer name",
}  # fmt: skip


#: What is settled when the outcome has been stored; elsewhere it is settled before (law 5).
SETTLED_LATER = {
    "before_start raises", "returns what cannot be stored", "rejected by the worker",
    "server and broker away", "unanswered release", "unanswered hand-over", "unanswered death",
    "run without its lock",
}  # fmt: skip


class Left(NamedTuple):
    """What a life has left."""

    held: str
    has_period: bool
    mark: str
    state: str
    broker: str
    when_stored: set[tuple[str, bool]]


class Row(NamedTuple):
    """One life, as the table tells it."""

    end: str
    option: str
    scope: str
    kind: str
    acks_late: bool
    held: str
    period: str
    mark: str
    state: str
    broker: str
    copy: str

    def __str__(self) -> str:
        """For the test's name."""
        acks = "late" if self.acks_late else "early"
        return "-".join(filter(None, (self.end, self.option, self.kind, acks)))

    @property
    def comes_again(self) -> bool:
        """Whether the broker may deliver the message once more."""
        return self.acks_late or KINDS[self.kind].comes_again

    def left(self, *, period: str | None) -> Left:
        """Return what is left, of a task whose period ends with a failure or is kept, or that has none."""
        kind = KINDS[self.kind]
        was_claimed = kind.is_retry or (SCOPES[self.scope]["lock"] != "while_executing" and not kind.by_name)
        stands = {"stands": True, "fails": period == "keep", "ends": False}[self.period.strip("~")]
        has_begun = was_claimed or not self.period.startswith("~")
        has_period = stands and has_begun and (period is not None or self.scope == "until_expired")
        state = {"FAILED": "FAILURE" if EXIT_IS_LOSS else "PENDING"}.get(self.state, self.state)
        if kind.is_retry and state == "PENDING":
            state = "RETRY"
        held = "" if "copies" in self.held and not self.comes_again else self.held
        mark = self.mark if self.comes_again else "-"
        return Left(held, has_period, mark, state, self.broker, {(held, has_period)})


def table() -> Iterator[Row]:
    """Read the table: of a row for both, what comes again by itself is played early, other kinds late."""
    for line in LIVES.strip().splitlines()[1:]:
        end, *cells = (cell.strip() for cell in line.split("|"))
        if not cells:
            continue  # a heading
        kind, acks, *held, period, mark, state, broker, copy = cells
        acks, _, option = acks.partition(", ")
        by_scope = dict(zip(COLUMNS, held, strict=True))
        by_scope[TWO_LOCKS] = OF_TWO_LOCKS_ALONE.get((end, acks), held[0])
        if held[0] not in {"", "."} and kind != "sent by name":
            by_scope[TWO_LOCKS] = OF_TWO_LOCKS[f"{end}, {option}" if option else end]
        told = dict(zip(("early", "late"), broker.split("/") * 2, strict=False))
        for acknowledged in ("early", "late") if acks == "both" else (acks,):
            for scope in SCOPES:
                for one in MANY.get(kind) or (kind or "published",):
                    if (
                        acks == "both"
                        and one != "published"
                        and KINDS[one].comes_again == (acknowledged == "late")
                    ):
                        continue
                    if by_scope[scope] == ".":
                        continue
                    given = (end, option, scope, one, acknowledged == "late", by_scope[scope])
                    yield Row(*given, period, mark, state, told[acknowledged], copy)


def lives() -> list[Any]:
    """Return what is played: in every scope; without a period, or with one, kept where that differs."""
    played: dict[str, list[tuple[Row, str | None]]] = {}
    for row in table():
        periods: list[str | None] = [None]
        if row.kind not in {"a tick", "a tick by name", "with an eta", "kept long", "kept long, named"}:
            is_enough = "stands" in row.period or not (row.acks_late or row.kind == "a retry")
            periods = ["release"] if is_enough else ["release", "keep"]
        played.setdefault(str(row), []).extend((row, period) for period in periods)
    return [pytest.param(rows, id=name) for name, rows in played.items()]


@pytest.mark.parametrize("rows", lives())
def test_what_a_message_leaves(rows: list[tuple[Row, str | None]]) -> None:
    """Laws 4, 5, 7 and 8: what is held, which period stands, and what is told to copies, callers and broker.

    Nothing more is held when the outcome is stored. What runs again runs once, and then nothing is held.
    """
    let_nobody_look()
    for row, period in rows:
        with open_shop() as shop, pytest.MonkeyPatch.context() as patch:
            _play(shop, patch, row, period)


def _play(shop: Shop, monkeypatch: pytest.MonkeyPatch, row: Row, period: str | None) -> None:
    if not EXIT_IS_LOSS and {row.option, row.end} & SINCE_5_7:
        pytest.skip("this Celery knows no such loss")
    options = {"acks_late": row.acks_late, **OPTIONS[row.option]}
    if period is not None:
        options.update(lock_period=50, lock_period_on_failure=period)
    life = Life(shop, monkeypatch, row.scope, row.kind, **options)

    ENDS[row.end](life)

    expected = row.left(period=period)
    broker = life.broker
    when_stored = expected.when_stored | (set() if row.end in SETTLED_LATER else life.when_stored)
    mark = "-" if row.mark == "?" else life.mark
    left = Left(life.held(), life.has_period, mark, shop.state(life.id), broker, when_stored)
    assert left == expected

    goes_on = "again" in broker and row.end != "replaced by another"
    is_delivered = row.copy and (row.comes_again or broker == "requeue")
    if is_delivered:
        assert life.deliver_again() == row.copy
        assert life.has_period == expected.has_period or row.copy == "runs"
    if row.copy == "waits" and is_delivered:
        shop.store.let_pass(TTL)
        goes_on = True
    if is_delivered or goes_on:
        assert (life.run_queue(), life.held()) == (int(goes_on), "")


@pytest.mark.parametrize("scope", SCOPES)
def test_the_main_process_renews_what_a_child_holds_and_releases_it_when_that_is_dead(scope: str) -> None:
    """Laws 4 and 8: the two know the same of a message, whatever kind it is of."""
    let_nobody_look()
    for kind, acks_late in product(KINDS, (False, True)):
        with open_shop() as shop, pytest.MonkeyPatch.context() as patch:
            life = Life(shop, patch, scope, kind, acks_late=acks_late, time_limit=100)
            life.be_killed("body")

            assert life.held() == WHILE_RUNNING[scope][acks_late or KINDS[kind].comes_again], kind
            by_child = {hold.name: hold.token for hold in shop.held().values() if hold.state == "running"}
            by_main = shop.renewed()
            assert {lease.key: token for token, lease in by_main.items()} == by_child
            lasts = [(lease.term.ttl, lease.max_hold) for lease in by_main.values()]
            assert lasts == [(30, 110)] * len(by_child)
            life.tell()
            assert (life.held(), shop.renewed()) == ("", {}), kind


def test_one_message_may_be_queued_while_another_runs_and_keeps_its_place_while_it_waits(shop: Shop) -> None:
    """Law 1: one at a time of each; a duplicate of the queued one is skipped, and a run waits for its key."""
    task = shop.unique(body, lock=TWO_LOCKS, lock_key=KEY)
    running = shop.unique(body, name="shop.other", lock="while_executing", lock_key=KEY)
    place = f"queued:{KEY}"
    with hold(running, 7, task_id="running"):
        published = task.delay(7)
        claim = carried(message := shop.message()).token
        assert {name: one.owner for name, one in shop.held().items()} == {KEY: "running", place: published.id}
        assert task.delay(7).id == published.id
        for _ in range(2):
            assert isinstance(shop.run(shop.receive(message)), Ignore)
            message = shop.message()
            assert shop.held()[place].token == claim == carried(message).token
    assert list(shop.held()) == [place]

    assert shop.run(shop.receive(message)) == 7
    assert shop.held() == {}


def test_the_place_is_free_as_soon_as_the_lease_is_granted(shop: Shop, monkeypatch: Any) -> None:
    """So that the next one can be queued while this one runs, and no second one after that."""
    life = Life(shop, monkeypatch, TWO_LOCKS)
    published: list[Any] = []

    def publish(task: Any) -> None:
        published.extend(task.apply_async((7,), task_id=name) for name in ("t2", "t3"))

    assert life.held() == "place"
    life.run(publish)
    assert [result.is_duplicate for result in published] == [False, True]
    assert {name: one.owner for name, one in shop.held().items()} == {f"queued:{KEY}": "t2"}
    assert life.run_queue() == 1
    assert life.held() == ""


@pytest.mark.parametrize(
    ("scope", "is_retry", "name"),
    [
        (TWO_LOCKS, False, f"queued:{KEY}"),
        (TWO_LOCKS, True, KEY),
        ("until_executed", True, KEY),
        ("while_executing", True, KEY),
    ],
)
def test_the_main_process_renews_a_place_and_a_retrys_claim(
    shop: Shop, monkeypatch: Any, scope: str, name: str, *, is_retry: bool
) -> None:
    """Laws 2 and 7: while the message waits in the worker, under the name each is kept by."""
    life = Life(shop, monkeypatch, scope)
    request = life.request
    if is_retry:
        life.run(lambda task: task.retry(countdown=COUNTDOWN))
        assert life.held() == "retry"
        request = shop.receive(life.queue.pop())
    ((token, lease),) = shop.renewed().items()
    assert (lease.key, token) == (name, carried(request.message).token)
    assert lease.term.ttl == pytest.approx(QUEUE_TTL + COUNTDOWN * is_retry, abs=5)


@pytest.mark.skipif(not EXIT_IS_LOSS, reason="this Celery retries no lost run")
def test_a_lost_runs_retry_that_is_revoked_leaves_nothing(shop: Shop, monkeypatch: Any) -> None:
    """Law 4: its claim is where the run's lease was, and so is released there."""
    life = Life(shop, monkeypatch, TWO_LOCKS, retry_on_worker_lost=True, default_retry_delay=COUNTDOWN)
    life.be_killed("body").tell()
    assert life.held() == "retry"
    revoke(shop.receive(life.queue.pop()))
    assert shop.held() == {}


def test_a_requeued_message_that_dies_before_its_body_leaves_nothing(shop: Shop, monkeypatch: Any) -> None:
    """Law 4: requeued by its run it has its claim where that run's lease was, and not in its place."""
    life = Life(shop, monkeypatch, TWO_LOCKS, acks_late=True)
    life.run(raising(Reject("later", requeue=True)))
    assert life.held() == "claim"
    life.request = shop.receive(life.request.message, redelivered=True)
    life.be_killed("before_start").tell()
    assert shop.held() == {}


@pytest.mark.parametrize(("running", "is_run"), [(False, False), (True, True)])
def test_a_duplicate_of_two_locks_is_named_by_the_key(shop: Shop, *, running: bool, is_run: bool) -> None:
    """A test holds either lock; the error, the handle and eager mode mean the one a call is refused by."""
    task = shop.unique(body, lock=TWO_LOCKS, lock_key=KEY, on_conflict="raise")
    with hold(task, 7, task_id="other", running=running):
        assert list(shop.held()) == [KEY if is_run else f"queued:{KEY}"]
        if is_run:
            assert not task.delay(7).is_duplicate
            return
        with pytest.raises(DuplicateTask) as caught:
            task.delay(7)
        shop.app.conf.update(task_always_eager=True, redislock_eager=True)
        with pytest.raises(DuplicateTask):
            task.delay(7)
    assert caught.value.key == KEY
