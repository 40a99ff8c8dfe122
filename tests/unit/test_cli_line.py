"""``waiting`` and ``show`` on lines, without a server: who waits, moved, dropped, and sent to the queue."""

import json
import re
import secrets
import shlex
import time
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from celery import chord
from celery.exceptions import ChordError, Ignore, TaskRevokedError
from click.testing import CliRunner, Result

from celery_redislock.cli import main, redislock
from celery_redislock.exceptions import LockUnavailable
from celery_redislock.operating.server import LockServer
from celery_redislock.publishing import promote
from celery_redislock.store.store import Entry, Merge
from tests.clocks import AheadClock
from tests.unit.shop import KEY, Shop, body, carried, raising

LOCK = {"lock": "while_executing", "lock_key": "account:{account_id}"}


def call(shop: Shop, *words: str) -> Result:
    """Run a command as ``celery -A`` does."""
    return CliRunner().invoke(redislock, [*words], obj=SimpleNamespace(app=shop.app))


def answer(shop: Shop, *words: str) -> Any:
    """What a command answers as JSON, which asks nobody."""
    return json.loads(call(shop, *words, "--json").stdout)


def in_line(shop: Shop, key: str = KEY) -> list[str]:
    """The task ids that wait, in order."""
    return [waiter.hold.owner for waiter in shop.store.waiting(key)[1]]


def held(shop: Shop, key: str = KEY) -> None:
    """Let somebody hold a lock."""
    shop.store.acquire(key, "holder/1", 300.0, facts='{"state":"running","task":"shop.other"}')


def wait_by_hand(shop: Shop, key: str, owner: str) -> None:
    """Put an entry into the line of a lock that somebody holds."""
    held(shop, key)
    shop.store.park(key, f"{owner}/1", Entry("push", "celery", 30.0, "{}", ""), nonce=owner, how="refused")


def park(shop: Shop, task: Any, *task_ids: str, account: int = 7, **options: Any) -> None:
    """Call a task under these ids, and let a worker park its messages, whose runs are refused the lock.

    Its broker is not the lock server.
    """
    promote.install(shop.app, shop.store)
    for task_id in task_ids:
        task.apply_async((account,), task_id=task_id, **options)
        message = shop.message()
        message.accept = {"application/json", "application/x-python-serialize"}
        shop.run(shop.receive(message))


@pytest.fixture
def task(shop: Shop) -> Any:
    """A unique task, whose lock somebody holds, and four calls that wait for it."""
    task = shop.unique(body, **LOCK)
    held(shop)
    park(shop, task, "a", "b", "c", "d")
    assert in_line(shop) == ["a", "b", "c", "d"]
    return task


@pytest.fixture
def abandoned(shop: Shop, task: Any) -> None:
    """The holder has expired, and no worker is there to hand the lock on."""
    clock = AheadClock()
    shop.store._clock = clock
    clock.advance(301.0)


class TestShown:
    """Who waits, and where."""

    def test_each_has_its_place_among_so_many_and_no_end(self, shop: Shop, task: Any) -> None:
        """What it will be handed has one, which says nothing of how long it waits."""
        document = answer(shop, "waiting", KEY)
        assert document["key"] == KEY
        told = [(each["owner"], each["place"], each["in_line"]) for each in document["waiting"]]
        assert told == [("a", 1, 4), ("b", 2, 4), ("c", 3, 4), ("d", 4, 4)]
        assert {each["task"] for each in document["waiting"]} == {"shop.sync"}
        row = call(shop, "waiting", KEY).stdout.splitlines()[3].split()
        assert row[:5] == [KEY, "3", "of", "4", "shop.sync"]
        explained = answer(shop, "explain", "--quick", "c")["waits"]
        assert {each["remaining"] for each in (*document["waiting"], *explained)} == {None}
        assert {each.remaining for each in task.lock_for(7).waiting()} == {inf}

    @pytest.mark.usefixtures("task")
    def test_who_was_handed_the_lock_and_has_not_started_comes_first(self, shop: Shop) -> None:
        """With how often its message was sent; a drain leaves it to its queue."""
        shop.store.release(KEY, "holder/1")
        line = answer(shop, "waiting", KEY)["waiting"]
        told = [(each["owner"], each["place"], each["in_line"], each["sent"]) for each in line]
        assert told == [("a", 0, 3, 1), ("b", 1, 3, 0), ("c", 2, 3, 0), ("d", 3, 3, 0)]
        assert f"{KEY}  handed on, sent 1x  shop.sync" in call(shop, "waiting", KEY).stdout
        explained = call(shop, "explain", KEY).stdout
        assert "handed on    a has not started" in explained
        assert answer(shop, "waiting", KEY, "--drain")["drained"] == 3

    def test_without_a_lock_the_heads_of_all_lines_are_shown(self, shop: Shop) -> None:
        """Or that there is none; then nobody is asked whether to drain them."""
        for words, nobody in ((), "nobody waits"), ((KEY,), f"nobody waits for {KEY}"):
            done = call(shop, "waiting", *words)
            assert (done.exit_code, done.stdout) == (1, f"{nobody} on memory\n")
        done = call(shop, "waiting", "--drain", "--all")
        assert (done.exit_code, done.stdout) == (1, "0 waiting messages are back in their queues\n")

        task = shop.unique(body, **LOCK)
        held(shop)
        park(shop, task, "a", "b")
        held(shop, "account:8")
        park(shop, task, "e", "f", account=8)

        heads = answer(shop, "waiting")["waiting"]

        told = {(each["key"], each["owner"], each["in_line"]) for each in heads}
        assert told == {(KEY, "a", 2), ("account:8", "e", 2)}
        assert call(shop, "waiting").exit_code == 0

    @pytest.mark.parametrize("about", ["{amount} EUR", None])
    def test_what_waits_is_told_where_its_task_describes_it(self, shop: Shop, about: str | None) -> None:
        """Of the call that is asked for, and not of the holder's."""
        task = shop.unique(body, **LOCK, lock_describe=about)
        held(shop)
        park(shop, task, "a", kwargs={"amount": 700})
        waiting = call(shop, "waiting", KEY).stdout
        explained = call(shop, "explain", "a").stdout
        assert ("ABOUT" in waiting, "700 EUR" in waiting) == (about is not None,) * 2
        said = ", 700 EUR, since " if about else ", since "
        assert f"call         shop.sync[a] waits{said}" in explained

    @pytest.mark.usefixtures("abandoned")
    def test_a_line_that_nobody_holds_is_told(self, shop: Shop, monkeypatch: Any) -> None:
        """It is a free lock, not an unknown one; without a worker nobody hands it on."""
        next_in = f"the first in line gets {KEY} when it is free and a worker looks, each second. "
        shop.store.homes(shop.store.home.partition("\n")[0], "x")  # a worker was there lately
        quick = call(shop, "explain", "--quick", KEY, "--json")
        explained = call(shop, "explain", KEY)
        assert (quick.exit_code, explained.exit_code) == (0, 0)
        assert f"next         {next_in}No worker answers: start one" in explained.stdout
        monkeypatch.setattr(
            "celery_redislock.cli.answer.server_of", lambda _ctx: LockServer(shop.store, "celery-redislock")
        )
        assert call(shop, "explain", KEY).stdout.count("each second. See that one runs\n") == 1
        document = json.loads(quick.stdout)
        assert (document["in_line"], document["locks"], document["next"]) == ({KEY: 4}, [], None)

    def test_one_that_is_put_off_is_told_when_it_is_due_and_how_many_were_merged_into_it(
        self, shop: Shop
    ) -> None:
        facts = '{"task":"shop.sync","state":"queued"}'
        for token in ("a/1", "b/1", "b/1", "c/1", "c/1"):  # each is told first that an older one gives way
            waits = shop.store.waiting(KEY)[1]
            merge = Merge(token, 4.2, number=ord(token[0]), instead_of=waits[0].id if waits else "")
            entry = Entry("push", "celery", 30.0, facts)
            shop.store.park(KEY, token, entry, nonce=secrets.token_hex(8), merge=merge)
        [place] = answer(shop, "waiting", KEY)["waiting"]
        assert (place["owner"], place["merged"]) == ("c", 2)
        assert 3.0 < place["due"] - time.time() <= 4.2
        for words in ["waiting", KEY], ["explain", KEY], ["explain", "--quick", "c"]:
            assert re.search(r", due in [34]\.\d s, merged 2 calls", call(shop, *words).stdout)

    @pytest.mark.parametrize("is_declared", [True, False])
    def test_a_rate_that_has_had_its_starts_is_told_with_the_next_place(
        self, shop: Shop, *, is_declared: bool
    ) -> None:
        """By the call's own facts, and by its task where nobody waits. Of two rates the one that is full."""
        task = shop.unique(body, **LOCK, lock_rate=["2/m", "100/h"], lock_limit=9)
        task.apply_async((7,))
        shop.run()
        assert answer(shop, "explain", "shop.sync", "7")["rates"] == {}
        task.apply_async((7,))
        shop.run()
        runs = '{"state":"running","task":"shop.other","limit":9}'
        shop.store.acquire(KEY, "runs/1", 300.0, facts=runs, limit=9, starts_run=True)  # beside it is room
        if not is_declared:
            park(shop, task, "a")
            entry = Entry("push", "celery", 30.0, "{}")  # of a call without a rate
            shop.store.park(KEY, "b/1", entry, nonce="b")
            assert shop.store.move(KEY, "b/1", "last")
            assert in_line(shop) == ["a", "b"]
        told = "2 of 2 in the last minute, the next place in "
        words = ["shop.sync", "7"] if is_declared else [KEY]
        assert f"rate         {KEY}: {told}" in call(shop, "explain", *words).stdout
        [rate] = answer(shop, "explain", *words)["rates"][KEY]
        assert (rate["starts"], rate["span_seconds"]) == (2, 60.0)
        assert 50.0 < rate["opens_in_seconds"] <= 60.0
        if not is_declared:
            assert f"{KEY}: {told}" in call(shop, "waiting", KEY).stdout
            assert [*answer(shop, "waiting", KEY)["rates"]] == [KEY]
            assert answer(shop, "waiting")["rates"] == {}, "of all lines it would be a request for each"
        else:
            shop.store.release(KEY, "runs/1")
            held(shop)
            assert answer(shop, "explain", *words)["rates"] == {}, "who holds it keeps others out"

    @pytest.mark.parametrize(
        ("span", "last"), [("s", "second"), ("m", "minute"), ("h", "hour"), ("d", "day"), ("90s", "90 s")]
    )
    def test_a_span_is_told_in_words(self, shop: Shop, span: str, last: str) -> None:
        task = shop.unique(body, **LOCK, lock_rate=f"1/{span}")
        task.apply_async((7,))
        shop.run()
        assert f"1 of 1 in the last {last}, " in call(shop, "explain", "shop.sync", "7").stdout

    def test_who_may_only_read_is_told_no_rate_and_all_else(self, shop: Shop, monkeypatch: Any) -> None:
        task = shop.unique(body, **LOCK, lock_rate="1/m")
        task.apply_async((7,))
        shop.run()
        park(shop, task, "a")
        monkeypatch.setattr(shop.store, "look", raising(LockUnavailable("memory", "look", "NOPERM")))
        assert answer(shop, "waiting", KEY)["rates"] == {}
        assert call(shop, "waiting", KEY).exit_code == 0

    def test_a_pattern_shows_each_line_whose_key_it_matches(self, shop: Shop, task: Any) -> None:
        """With those who wait to be a queued call. A key of that very name is meant before all others."""
        held(shop, "account:8")
        park(shop, task, "e", account=8)
        for key, owner in ("queued:account:8", "f"), ("order:1", "g"):
            wait_by_hand(shop, key, owner)
        told = [(each["key"], each["owner"]) for each in answer(shop, "waiting", "account:[89]")["waiting"]]
        everywhere = [each["owner"] for each in answer(shop, "waiting", "account:*")["waiting"]]
        wait_by_hand(shop, "account:*", "h")
        assert told == [("account:8", "e"), ("queued:account:8", "f")]
        assert everywhere == ["a", "b", "c", "d", "e", "f"]
        assert [each["owner"] for each in answer(shop, "waiting", "account:*")["waiting"]] == ["h"]
        assert call(shop, "waiting", "account:x*").stdout == "nobody waits for account:x* on memory\n"

    @pytest.mark.usefixtures("task")
    def test_explain_tells_the_place_of_a_task_id_and_the_length_behind_a_holder(self, shop: Shop) -> None:
        """A task id that waits holds nothing; it is found all the same."""
        shown = call(shop, "explain", "--quick", "c")
        document = answer(shop, "explain", "--quick", "c")
        of_key = answer(shop, "explain", "--quick", KEY)
        assert shown.exit_code == 0
        assert "number 3 of 4" in shown.stdout
        assert [(each["key"], each["place"]) for each in document["waits"]] == [(KEY, 3)]
        assert of_key["release_command"].endswith(KEY)
        assert [each["owner"] for each in of_key["locks"]] == ["holder"]
        assert (of_key["in_line"], of_key["waits"]) == ({KEY: 4}, [])
        assert "in line      4 wait for " in call(shop, "explain", "--quick", KEY).stdout


class TestMoved:
    """The order, changed by hand."""

    @pytest.mark.usefixtures("task")
    @pytest.mark.parametrize(
        ("words", "order"),
        [(["--first", "c"], "cabd"), (["--last", "b"], "acdb"), (["--first", "a"], "abcd")],
    )
    def test_one_goes_to_the_front_or_the_end(self, shop: Shop, caplog: Any, words: Any, order: str) -> None:
        done = call(shop, "waiting", KEY, *words, "--reason", "a customer waits", "--yes")
        assert done.exit_code == 0, done.output
        where = "front" if words[0] == "--first" else "end"
        told = f"moved {words[1]} (shop.sync) to the {where} of the line of {KEY}"
        assert done.stdout == f"{told}\n"
        assert "".join(in_line(shop)) == order
        assert f"{told} by hand: 'a customer waits'" in caplog.text

    @pytest.mark.usefixtures("task")
    @pytest.mark.parametrize("act", ["--first", "--last", "--drop"])
    def test_one_that_does_not_wait_there_is_named(self, shop: Shop, act: str) -> None:
        done = call(shop, "waiting", KEY, act, "x", "--yes", "--reason", "y")
        assert (done.exit_code, done.stdout) == (1, f"x does not wait for {KEY} on memory\n")

    def test_one_that_waits_twice_is_named_by_its_token(self, shop: Shop, task: Any) -> None:
        """Publishing a task id again is another message."""
        park(shop, task, "a")
        tokens = [waiter.id for waiter in shop.store.waiting(KEY)[1] if waiter.hold.owner == "a"]
        done = call(shop, "waiting", KEY, "--last", "a", "--yes")
        assert done.exit_code == 2
        assert f"a waits 2 times for {KEY}; give one of the tokens {tokens[0]}, {tokens[1]}" in done.output
        assert call(shop, "waiting", KEY, "--last", tokens[0], "--yes").exit_code == 0
        assert shop.store.waiting(KEY)[1][-1].id == tokens[0]


@pytest.mark.usefixtures("task")
@pytest.mark.parametrize(
    "words", [["--first", "c"], ["--last", "a"], ["--drop", "a", "--reason", "x"], ["--drain"]], ids=repr
)
def test_where_nobody_can_be_asked_nothing_is_done(shop: Shop, words: list[str]) -> None:
    done = call(shop, "waiting", KEY, *words)
    assert done.exit_code == 2
    assert "add --yes" in done.output
    assert in_line(shop) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--first", "a"], "give a lock and one of --first ID, --last ID and --drop ID"),
        (["k", "--first", "a", "--last", "b"], "give a lock and one of"),
        (["k", "--drop", "a"], "--drop takes --reason"),
        (["k", "--drain", "--all"], "--drain takes one of a lock, --task NAME and --all"),
        (["k", "--drain", "--task", "t"], "--drain takes one of"),
        (["k", "--drain", "--first", "a"], "--drain takes one of"),
        (["--drain"], "--drain takes one of"),
        (["k", "--dry-run"], "go with --drain"),
        (["--all"], "go with --drain"),
        (["--task", "t"], "go with --drain"),
        (["k", "--reason", "x"], "--reason goes with --first, --last, --drop and --drain"),
    ],
)
def test_words_that_do_not_go_together_are_refused(words: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["--url", "redis://localhost:1", "waiting", *words])
    assert done.exit_code == 2
    assert said in done.output


class TestDropped:
    """A message that will not run, and all who wait for it hear that."""

    def test_it_is_found_in_the_lines_that_a_pattern_names(self, shop: Shop, task: Any) -> None:
        """The answer names its line. An id that waits in two of them is not chosen between."""
        held(shop, "account:8")
        park(shop, task, "b", "e", account=8)
        in_two = call(shop, "waiting", "account:*", "--drop", "b", "--reason", "sent twice", "--yes")
        in_one = call(shop, "waiting", "account:*", "--drop", "e", "--reason", "sent twice", "--yes")
        assert in_two.exit_code == 2
        assert "b waits 2 times for account:*; give one of the tokens" in in_two.output
        assert in_one.stdout == "dropped e (shop.sync) from the line of account:8\n"
        assert (in_line(shop), in_line(shop, "account:8")) == (["a", "b", "c", "d"], ["b"])

    def test_it_ends_as_revoked_and_the_others_wait_on(self, shop: Shop, task: Any, caplog: Any) -> None:
        done = call(shop, "waiting", KEY, "--drop", "b", "--reason", "sent twice", "--yes")
        assert (done.exit_code, done.stdout) == (0, f"dropped b (shop.sync) from the line of {KEY}\n")
        with pytest.raises(TaskRevokedError, match=f"dropped from the line of {KEY}: sent twice"):
            task.AsyncResult("b").get(timeout=1)
        assert shop.state("b") == "REVOKED"
        assert f"dropped b (shop.sync) from the line of {KEY} by hand: 'sent twice'" in caplog.text
        assert in_line(shop) == ["a", "c", "d"]
        assert set(shop.held()) == {KEY}
        shop.store.release(KEY, "holder/1")
        assert [message.headers["id"] for message in shop.messages()] == ["a"]

    def test_a_copy_of_it_does_nothing(self, shop: Shop) -> None:
        """It was parked, and its worker died before it was acknowledged."""
        runs: list[str] = []
        task = shop.noting(runs, lambda task: task.request.id, **LOCK)
        held(shop)
        task.apply_async((7,), task_id="a")
        message = shop.message()
        promote.install(shop.app, shop.store)
        shop.run(shop.receive(message))
        assert call(shop, "waiting", KEY, "--drop", "a", "--reason", "x", "--yes").exit_code == 0
        shop.store.release(KEY, "holder/1")
        shop.run(shop.receive(message, redelivered=True))
        assert (runs, shop.state("a")) == ([], "REVOKED")

    def test_its_errbacks_and_the_rest_of_its_chain_hear_of_it(self, shop: Shop, task: Any) -> None:
        """Of a revoked message Celery tells neither; nobody else would."""
        heard: list[Any] = []

        def note(request: Any, error: Any, _traceback: Any) -> None:
            heard.append((request.id, error))

        errback = shop.unique(note, name="shop.note", lock=None)
        park(shop, task, "e", link_error=errback.s(), chain=[task.si(8).set(task_id="next")])
        assert call(shop, "waiting", KEY, "--drop", "e", "--reason", "x", "--yes").exit_code == 0

        assert [(id_, type(error)) for id_, error in heard] == [("e", TaskRevokedError)]
        assert (shop.state("e"), shop.state("next")) == ("REVOKED", "REVOKED")

    def test_a_task_that_ignores_results_gets_none(self, shop: Shop) -> None:
        task = shop.unique(body, ignore_result=True, **LOCK)
        held(shop)
        park(shop, task, "a")
        assert call(shop, "waiting", KEY, "--drop", "a", "--reason", "x", "--yes").exit_code == 0
        assert shop.state("a") == "PENDING"

    def test_its_chord_ends(self, shop: Shop, task: Any) -> None:
        """As with any part that fails: the parts that ran are done, and its result says why there is none."""
        last = shop.unique(body, name="shop.sum", lock=None)
        parts = [task.s(8).set(task_id="part-1"), task.s(7).set(task_id="part-2")]
        result = chord(parts, app=shop.app)(last.s())
        promote.install(shop.app, shop.store)
        for message in shop.messages():
            shop.run(shop.receive(message))
        assert in_line(shop)[-1] == "part-2"
        assert call(shop, "waiting", KEY, "--drop", "part-2", "--reason", "x", "--yes").exit_code == 0
        error = shop.meta(result.id)["result"]
        assert isinstance(error, ChordError)
        assert f"dropped from the line of {KEY}" in str(error)

    def test_a_call_that_was_queued_beside_a_run_makes_room_for_the_next(self, shop: Shop) -> None:
        """Its claim, under the key's second name, is released; else further calls would be its duplicates."""
        task = shop.unique(body, **{**LOCK, "lock": "until_and_while_executing"})
        held(shop)
        park(shop, task, "a")
        assert task.delay(7).is_duplicate
        assert call(shop, "waiting", KEY, "--drop", "a", "--reason", "x", "--yes").exit_code == 0
        assert set(shop.held()) == {KEY}
        assert not task.delay(7).is_duplicate

    @pytest.mark.parametrize("compression", [None, "zlib"])
    def test_an_unreadable_one_is_revoked_too(
        self, shop: Shop, task: Any, caplog: Any, compression: str | None
    ) -> None:
        """By whom its app does not accept it: pickle, most of all, is read nowhere else."""
        shop.app.conf.accept_content = ["json", "pickle"]
        park(shop, task, "e", serializer="pickle", compression=compression)
        shop.app.conf.accept_content = ["json"]
        assert call(shop, "waiting", KEY, "--drop", "e", "--reason", "x", "--yes").exit_code == 0
        assert shop.state("e") == "REVOKED"
        assert "not all who wait for e can be told that it was dropped" in caplog.text
        assert in_line(shop) == ["a", "b", "c", "d"]

    def test_one_is_revoked_though_the_server_goes_away(
        self, shop: Shop, task: Any, monkeypatch: Any
    ) -> None:
        """It has left the line: nobody would run it. Its errback hears of it."""
        seen: list[str] = []

        @shop.app.task(name="shop.errback", shared=False)
        def errback(_request: Any, _error: Any, _traceback: Any) -> None:
            seen.append("told")

        park(shop, task, "e", link_error=errback.s())
        monkeypatch.setattr(shop.store, "mark_done", raising(LockUnavailable("memory", "mark_done", "away")))

        assert call(shop, "waiting", KEY, "--drop", "e", "--reason", "x", "--yes").exit_code == 0

        assert (shop.state("e"), seen) == ("REVOKED", ["told"])

    def test_one_of_a_queue_of_the_lock_server_is_read_too(self, shop: Shop, task: Any, caplog: Any) -> None:
        """There the line has kombu's own text, and not this package's."""
        task.apply_async((7,), task_id="e")
        message = shop.message()
        token = carried(message).token
        facts = json.dumps({"state": "queued", "task": task.name, "line": 1})
        shop.store.park(KEY, token, Entry("push", "q", 60.0, facts, json.dumps(message._raw)), nonce="n")
        assert answer(shop, "waiting", KEY, "--drop", "e", "--reason", "x")["dropped"]["owner"] == "e"
        assert shop.state("e") == "REVOKED"
        assert "can be told" not in caplog.text

    @pytest.mark.usefixtures("task")
    def test_one_that_was_handed_the_lock_is_dropped_and_the_next_has_it(self, shop: Shop) -> None:
        """It is no holder: it has not started, and what of it lies in its queue does nothing.

        So ``explain`` tells this command: released, it would be handed the lock again.
        """
        assert " release --reason " in answer(shop, "explain", "--quick", KEY)["release_command"]
        shop.store.release(KEY, "holder/1")
        told = answer(shop, "explain", "--quick", KEY)["release_command"]
        assert shlex.split(told)[-6:] == ["waiting", KEY, "--drop", "a", "--reason", "TEXT"]

        done = call(shop, "waiting", KEY, "--drop", "a", "--reason", "x", "--yes")

        assert (done.exit_code, shop.state("a"), in_line(shop)) == (0, "REVOKED", ["c", "d"])
        assert [hold.owner for hold in shop.store.holders(KEY)] == ["b"]
        first, second = shop.messages()
        assert isinstance(shop.run(shop.receive(first)), Ignore)
        assert shop.run(shop.receive(second)) == 7

    @pytest.mark.usefixtures("task")
    def test_what_cannot_be_dropped_is_told_why(self, shop: Shop) -> None:
        """A Lock gives up by itself; of an id that runs no REVOKED is stored; without its task by nobody."""
        shop.store.park(KEY, "process/1", Entry("ring", "bell", 1.0, '{"state":"queued"}'), nonce="p")
        shop.store.hand_on(KEY, "holder/1", "d/2", 300.0, facts='{"state":"running"}')
        for id_, said in (
            ("process", "process is a Lock that waits, and no message: it can be moved, not dropped"),
            ("d", "d holds the lock already"),
            ("a", "its task shop.sync, which stores its result, is not known here"),
        ):
            if id_ == "a":
                shop.app.tasks.pop("shop.sync")
            done = call(shop, "waiting", KEY, "--drop", id_, "--reason", "x", "--yes")
            assert (done.exit_code, said in done.output) == (2, True)
        assert call(shop, "waiting", KEY, "--first", "process", "--yes").exit_code == 0
        assert (in_line(shop), shop.state("d")) == (["process", "a", "b", "c", "d"], "PENDING")

    @pytest.mark.usefixtures("task")
    def test_of_all_lines_one_is_shown_whose_only_message_has_not_started(self, shop: Shop) -> None:
        """It stands still where no worker receives that message."""
        shop.store.release(KEY, "holder/1")
        for waiter in shop.store.waiting(KEY)[1]:
            shop.store.leave(KEY, waiter.id)
        (place,) = answer(shop, "waiting")["waiting"]
        assert (place["owner"], place["place"]) == ("a", 0)

    @pytest.mark.usefixtures("task")
    def test_one_that_has_started_meanwhile_runs(self, shop: Shop, monkeypatch: Any) -> None:
        """Between the look and the act; it is told, and no result is stored."""
        leave = shop.store.leave

        def too_late(*args: Any, **more: Any) -> Any:
            shop.store.release(KEY, "holder/1")
            assert shop.run() == 7
            return leave(*args, **more)

        monkeypatch.setattr(shop.store, "leave", too_late)

        done = call(shop, "waiting", KEY, "--drop", "a", "--reason", "x", "--yes")

        assert (done.exit_code, done.stdout) == (
            1,
            f"a has left the line of {KEY} meanwhile: its turn has come, or it was dropped\n",
        )
        assert shop.state("a") == "SUCCESS"


class TestDrained:
    """Sent to the ends of their queues, without the lock."""

    @pytest.fixture
    def two(self, shop: Shop, task: Any) -> None:
        """Another task of the same resource waits among the others, and in a line of its own."""
        other = shop.unique(body, name="shop.refund", **LOCK)
        park(shop, other, "r1")
        park(shop, task, "e")
        held(shop, "account:8")
        park(shop, other, "r2", account=8)

    @pytest.mark.usefixtures("two")
    @pytest.mark.parametrize(
        ("words", "gone"),
        [
            ([KEY], ["a", "b", "c", "d", "r1", "e"]),
            (["--task", "shop.refund"], ["r1", "r2"]),
            (["--all"], ["a", "b", "c", "d", "r1", "e", "r2"]),
            (["*:8"], ["r2"]),
        ],
        ids=repr,
    )
    def test_the_named_leave_in_order(self, shop: Shop, caplog: Any, words: Any, gone: Any) -> None:
        tried = answer(shop, "waiting", "--drain", "--dry-run", *words)
        assert [each["owner"] for each in tried["waiting"]] == gone
        assert len(in_line(shop)) + len(in_line(shop, "account:8")) == 7
        document = answer(shop, "waiting", "--drain", "--reason", "a rollback", *words)
        assert document == {"version": 1, "server": "memory", "drained": len(gone), "left": 0}
        assert [message.headers["id"] for message in shop.messages()] == gone
        assert len(in_line(shop)) + len(in_line(shop, "account:8")) == 7 - len(gone)
        assert f"by hand: {len(gone)} waiting messages are back in their queues: 'a rollback'" in caplog.text

    @pytest.mark.usefixtures("task")
    def test_what_could_not_be_published_is_not_counted(self, shop: Shop, monkeypatch: Any) -> None:
        """It waits on, and is published later."""
        put = promote._put

        def fail_once(producer: Any, said: Any) -> None:
            if said["headers"]["id"] == "b":
                message = "no such exchange"
                raise ValueError(message)
            put(producer, said)

        monkeypatch.setattr(promote, "_put", fail_once)

        done = call(shop, "waiting", KEY, "--drain", "--yes")

        assert done.exit_code == 0
        assert "3 waiting messages are back in their queues\n1 are not: they wait still" in done.stdout
        assert in_line(shop) == ["b"]

    @pytest.mark.usefixtures("task")
    @pytest.mark.parametrize("words", [["--all", "--yes"], [KEY, "--json"]])
    def test_without_an_app_messages_for_another_broker_stay(
        self, shop: Shop, monkeypatch: Any, words: list[str]
    ) -> None:
        """Only an app can publish them."""
        shop.store.home = ""
        server = LockServer(shop.store, "celery-redislock")
        monkeypatch.setattr("celery_redislock.cli.answer.server_of", lambda _ctx: server)
        done = call(shop, "waiting", "--drain", *words)
        assert (done.exit_code, in_line(shop)) == (1, ["a", "b", "c", "d"])
        assert done.stderr == (
            "without an app nobody can publish what belongs to another broker than the lock server: "
            "celery -A proj redislock waiting --drain …\n"
        )

    @pytest.mark.usefixtures("task")
    def test_a_task_that_neither_waits_nor_is_known_is_named(self, shop: Shop) -> None:
        """It may be misspelt. The messages of one that was removed can be sent all the same."""
        misspelt = call(shop, "waiting", "--drain", "--task", "shop.sink", "--yes")
        shop.unique(body, name="shop.idle")
        idle = call(shop, "waiting", "--drain", "--task", "shop.idle", "--yes")
        shop.app.tasks.pop("shop.sync")
        removed = call(shop, "waiting", "--drain", "--task", "shop.sync", "--yes")
        said = "no message of 'shop.sink' waits, and no such task is known here; did you mean 'shop.sync'?\n"
        assert (misspelt.exit_code, misspelt.stderr) == (1, said)
        assert (idle.exit_code, idle.stderr) == (1, "")
        assert (removed.exit_code, removed.stderr) == (0, "")
        assert len(shop.messages()) == 4
