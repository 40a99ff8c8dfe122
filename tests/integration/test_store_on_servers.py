"""What only a server shows: raw keys, the index, foreign clients, wrong types."""

import re
from contextlib import closing

import pytest

from celery_redislock.exceptions import LockKeyError
from celery_redislock.locks import Lock, connect
from celery_redislock.store.store import Entry, Term
from tests.facts import wait_until
from tests.stores import RedisCase, granted, refused

A, B = "job-a/1", "job-b/1"


@pytest.fixture
def case(plain_case: RedisCase) -> RedisCase:
    """On a server only."""
    return plain_case


def test_a_lock_is_on_the_server_of_its_store_and_on_no_other(case: RedisCase, lone_case: RedisCase) -> None:
    """A client kept in a global is used for every server: what is locked excludes others than it should."""
    with closing(connect(lone_case.url, prefix=case.prefix)) as there:
        lock, namesake = Lock(case.redis, "n"), Lock(there, "n")
        assert lock.acquire(timeout=0)
        assert there.inspect("n") is None
        assert namesake.acquire(timeout=0)
        assert lock.release()
        namesake.check()
        assert case.keys() == []
        assert there.inspect("n") is not None
        assert namesake.release()


class TestForeignClients:
    def test_their_plain_lock_excludes_ours_and_is_shown(self, case: RedisCase) -> None:
        """Article-style and redis-py locks on the same key: a mixed fleet stays safe."""
        case.client.set(case.key(), "somebody", nx=True, px=30_000)
        hold = refused(case.take(A)).hold
        assert (hold.token, hold.owner, hold.facts) == ("somebody", "somebody", {})
        assert 25.0 < hold.expires_in <= 30.0
        assert case.store.renew([Term("n", "somebody", 99.0)]).renewed == [False]
        assert not case.store.release("n", "somebody").released

    def test_our_lock_excludes_theirs(self, case: RedisCase) -> None:
        case.take(A)
        assert case.client.set(case.key(), "somebody", nx=True, px=30_000) is None
        lock = case.client.lock(case.key(), timeout=5, blocking=False)
        assert not lock.acquire()

    def test_a_lock_without_an_end_is_shown_as_endless_and_left_alone(self, case: RedisCase) -> None:
        """Nobody but its owner, or an operator, may decide when it ends."""
        case.client.set(case.key(), "somebody")
        case.foreign = (case.key(),)
        assert refused(case.take(A)).hold.expires_in == float("inf")
        assert case.client.pttl(case.key()) == -1

    @pytest.mark.parametrize(
        "value", [b"somebody", b"", b"*", b"\xff\xfe", b"a\0not json", b'a\0["a list"]', b"\0"]
    )
    def test_any_value_is_some_holder(self, case: RedisCase, value: bytes) -> None:
        """And an operator takes the lock by the value it saw."""
        case.client.set(case.key(), value, px=30_000)
        assert refused(case.take(A)).hold.facts == {}
        hold = case.store.inspect("n")
        assert hold is not None
        for expected in ("someone else", "some"):
            assert not case.store.force_release("n", expected=expected).released
        expected = hold.token if value.isascii() else None
        assert case.store.force_release("n", expected=expected).released


class TestWrongTypes:
    @pytest.mark.parametrize("part", ["lock", "period"])
    def test_a_key_of_another_type_is_named(self, case: RedisCase, part: str) -> None:
        key = case.key(part=part)
        case.client.hset(key, "field", "value")
        case.client.pexpire(key, 30_000)
        with pytest.raises(LockKeyError) as caught:
            case.take(A, period=60.0)
        assert key in str(caught.value)
        assert caught.value.where == "n"
        assert case.client.type(case.key()) in (b"none", b"hash")

    def test_one_broken_key_does_not_cost_the_others_their_renewal(self, case: RedisCase) -> None:
        """One batch renews every lease of the process; and a refusal is an answer: the stream is in step."""
        case.client.hset(case.key("bad"), "field", "value")
        case.foreign = (case.key("bad"),)
        with pytest.raises(LockKeyError):
            case.take(A, name="bad")
        granted(case.take(A, 5.0, name="good"))
        answer = case.store.renew([Term("bad", A, 30.0), Term("good", A, 30.0)])
        assert answer.renewed == [False, True]
        assert (case.remaining("good") or 0.0) > 25.0

    @pytest.mark.parametrize("kind", ["string", "string that ends", "hash", "sorted set"])
    def test_another_programs_index_stops_nothing_and_is_left_as_it_is(
        self, case: RedisCase, kind: str
    ) -> None:
        """Laws 2 and 3: no accepted job is lost for a list, and no key that is not ours gets an end."""
        client, index = case.client, f"{case.prefix}:index"
        write = {
            "string": lambda: client.set(index, "theirs"),
            "string that ends": lambda: client.set(index, "theirs", px=30_000),
            "hash": lambda: client.hset(index, "theirs", "1"),
            "sorted set": lambda: client.zadd(index, {"theirs": 1}),
        }
        write[kind]()
        case.foreign = (index,)
        before = client.dump(index)

        granted(case.take(A, 5.0, period=60.0))
        assert case.store.renew([Term("n", A, 30.0), Term("gone", A, 30.0)]).renewed == [True, None]
        assert case.store.hand_on("n", A, B, 30.0, facts="{}").released
        assert granted(case.take(A, instead_of=B)).taken_over
        assert case.store.release("n", A, opened_by=A).released
        granted(case.take(A))
        assert case.store.force_release("n").released

        assert client.dump(index) == before
        left = client.pttl(index)
        assert 0 < left <= 30_000 if kind == "string that ends" else left == -1
        if kind != "sorted set":
            with pytest.raises(LockKeyError, match=f"WRONGTYPE .* {index} is another program's"):
                case.store.names()


@pytest.mark.parametrize("part", ["lock", "line", "parked", "sent", "until"])
def test_a_key_of_another_type_is_among_those_that_are_named(case: RedisCase, part: str) -> None:
    """Also one that the request does not give."""
    case.take(A)
    key = case.key(part=part)
    case.foreign = (key,)
    case.client.delete(key)
    case.client.lpush(key, "theirs")
    with pytest.raises(LockKeyError, match=f"WRONGTYPE .* one of the keys .*{re.escape(key)}[ ,]"):
        case.store.park("n", B, Entry("ring", case.queue("bell"), 2.0, "{}"), nonce="1", within=2.0)


class TestIndex:
    def test_it_lists_what_is_held_soonest_to_end_first(self, case: RedisCase) -> None:
        """It follows a release, a renewal and a hand-over."""
        for name, ttl in (("later", 60.0), ("soon", 10.0), ("gone", 30.0)):
            case.take(A, ttl, name=name)
        case.store.release("gone", A)
        assert case.store.names() == ["soon", "later"]
        assert case.store.names(limit=1) == ["soon"]
        case.store.renew([Term("soon", A, 90.0)])
        assert case.store.names() == ["later", "soon"]
        case.store.hand_on("soon", A, B, 5.0, facts="{}")
        assert case.store.names() == ["soon", "later"]

    def test_expired_holds_are_not_listed_and_are_swept_now_and_then(self, case: RedisCase) -> None:
        """By about one acquire in sixteen: the chance that none of a thousand does is below 1e-28."""
        for number in range(5):
            case.take(A, 0.02, name=f"short{number}")
        case.take(A, 60.0, name="long")
        assert wait_until(lambda: case.store.names() == ["long"], 5)
        index = f"{case.prefix}:index"
        assert any(
            granted(case.take(A, 60.0, name="long")) and case.client.zcard(index) == 1 for _ in range(1000)
        )

    def test_a_sweep_is_bounded(self, case: RedisCase) -> None:
        """The first acquire after a quiet hour must not stall the server for all the others."""
        index = f"{case.prefix}:index"
        case.client.zadd(index, {f"dead{number}": number for number in range(1000)})
        case.client.pexpire(index, 30_000)
        sizes = {granted(case.take(A)) and case.client.zcard(index) for _ in range(200)}
        assert len(sizes) > 1
        assert sizes <= {1 + 100 * left for left in range(11)}

    @pytest.mark.parametrize("verb", ["renew", "hand_on"])
    def test_one_that_has_expired_is_made_anew_with_an_end(self, case: RedisCase, verb: str) -> None:
        """Law 4: it outlives the longest hold it lists, and ends, whoever puts that there."""
        index = f"{case.prefix}:index"
        case.take(A, 60.0)
        case.client.delete(index)
        if verb == "renew":
            assert case.store.renew([Term("n", A, 60.0)]).renewed == [True]
        else:
            assert case.store.hand_on("n", A, B, 60.0, facts="{}").released
        assert case.store.names() == ["n"]
        assert 60_000 < case.client.pttl(index) <= 120_000

    @pytest.mark.parametrize("verb", ["renew", "release", "hand_on"])
    def test_who_comes_late_does_not_take_the_present_holder_off_it(self, case: RedisCase, verb: str) -> None:
        """Law 3: its lease has expired, and the lock is another's."""
        case.take(B)
        if verb == "renew":
            assert case.store.renew([Term("n", A, 60.0)]).renewed == [False]
        elif verb == "release":
            assert not case.store.release("n", A, opened_by=A).released
        else:
            assert not case.store.hand_on("n", A, "job-a/2", 60.0, facts="{}").released
        assert case.store.names() == ["n"]

    def test_a_lock_found_missing_is_taken_off_it(self, case: RedisCase) -> None:
        """Deleted by hand or evicted: its entry would stay until its time is up."""
        for verb in (lambda: case.store.renew([Term("n", A, 30.0)]), lambda: case.store.release("n", A)):
            case.take(A)
            case.client.delete(case.key())
            assert case.store.names() == ["n"]
            verb()
            assert case.store.names() == []

    def test_nothing_is_left_when_everything_is_given_back(self, case: RedisCase) -> None:
        for number in range(3):
            case.take(A, name=f"n{number}")
        for number in range(3):
            case.store.release(f"n{number}", A)
        assert case.keys() == []

    def test_it_outlives_the_longest_period(self, case: RedisCase) -> None:
        index = f"{case.prefix}:index"
        case.take(A, 5.0, period=60.0)
        case.store.release("n", A)
        assert 60_000 <= case.client.pttl(index) <= 120_000
        assert set(case.keys()) == {index, case.key(part="period")}

    def test_nothing_is_left_when_everything_has_expired(self, case: RedisCase) -> None:
        """Law 4: the index lives at most twice as long as the longest hold it lists."""
        for number, ttl in enumerate((0.05, 0.2, 0.1)):
            case.take(A, ttl, name=f"n{number}", period=0.15)
        case.store.mark_done("n0", "message", 0.1)
        assert wait_until(lambda: case.keys() == [], 5)


class TestResults:
    def test_one_step_releases_a_hold_and_stores_a_result(self, case: RedisCase) -> None:
        """Law 5; the answer tells of both, and repeating the request changes nothing."""
        key, text = f"{case.key()}-result", '{"status": "SUCCESS", "result": "é"}'
        store, client = case.redis, case.client
        granted(case.take(A))
        answers = [store.release_and_store("n", A, key, text, 60) for _ in range(2)]
        told = [(answer.released, answer.held_by, is_stored) for answer, is_stored in answers]
        assert told == [(True, None, True), (False, None, True)]
        assert client.get(key) == text.encode()
        assert 50 < client.ttl(key) <= 60
        assert store.inspect("n") is None
        granted(case.take(B))
        answer, is_stored = store.release_and_store("n", A, key, text, 60)
        assert (answer.released, is_stored, case.holder()) == (False, True, B), "law 3"


class TestOtherPrefixes:
    """Under which others keep locks on the same server: for a check by an operator."""

    def test_only_those_under_which_a_lock_is_held_are_told(self, lone_case: RedisCase) -> None:
        """Neither our own, nor an index that is empty by now, nor another program's key of such a name."""
        lone_case.take(A)
        with (
            closing(connect(lone_case.url, prefix="a:b")) as held,
            closing(connect(lone_case.url, prefix="free")) as free,
        ):
            granted(free.acquire("n", A, 30.0))
            granted(held.acquire("n", A, 30.0, period=60.0))
            lone_case.client.delete("free:{n}:lock")
            lone_case.client.zadd("articles:index", {"n": 9e12})
            lone_case.client.set("cache:index", "another type")
            assert lone_case.redis.other_prefixes() == ["a:b"]
            held.force_release("n")
            assert lone_case.redis.other_prefixes() == []

    @pytest.mark.parametrize("name", ["n", "a*[b]?\\{c"])
    def test_those_are_told_under_which_one_lock_is_held_by_one_term(
        self, lone_case: RedisCase, name: str
    ) -> None:
        """That of a message whose claim is missing here. Its name is no pattern."""
        with (
            closing(connect(lone_case.url, prefix="a:b")) as one,
            closing(connect(lone_case.url, prefix="another")) as another,
        ):
            granted(one.acquire(name, A, 30.0))
            granted(another.acquire(name, B, 30.0))
            granted(another.acquire("more", A, 30.0))
            assert lone_case.redis.other_prefixes(name) == ["a:b", "another"]
            assert lone_case.redis.other_prefixes(name, A) == ["a:b"]
            assert lone_case.redis.other_prefixes(name, "t/nobodys") == []
            assert one.other_prefixes(name) == ["another"]
            assert one.other_prefixes("a") == []

    def test_they_are_found_among_thousands_of_keys_but_not_beyond_a_bound(
        self, lone_case: RedisCase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is asked for a thousand at a time, so that no request keeps the server for long."""
        lone_case.client.mset({f"key:{number}": 1 for number in range(5000)})
        with closing(connect(lone_case.url, prefix="another")) as store:
            granted(store.acquire("n", A, 30.0))
            assert lone_case.redis.other_prefixes() == ["another"]
        monkeypatch.setattr("celery_redislock.store.redisstore.SCANS", 0)
        assert lone_case.redis.other_prefixes() == []
