"""Servers that restart, run out of memory, follow another one, or want a password."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import cast

import pytest
import redis

from celery_redislock.exceptions import LockUnavailable
from celery_redislock.locks import connect
from celery_redislock.store.redisstore import RedisStore
from celery_redislock.store.store import Grant, Mark, Marked, Term
from tests.facts import wait_until
from tests.faults import faulty_proxy
from tests.servers import EmbeddedServer
from tests.stores import ABOUT, RedisCase, granted, refused, server_names, start_server

A, B = "job-a/1", "job-b/1"

OWN = [name for name in server_names() if "://" not in name]


@pytest.fixture(scope="module", params=OWN, ids=[name.rpartition("/")[2] for name in OWN])
def own_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A server that only this module uses, of every kind there is."""
    server = start_server(request.param, port=0)
    yield server
    server.stop()


@pytest.fixture
def case(own_server: EmbeddedServer) -> Iterator[RedisCase]:
    """A store on it."""
    with closing(RedisCase(own_server.redis_url)) as case:
        yield case


def test_a_server_restarted_between_two_calls_costs_no_call(
    own_server: EmbeddedServer, case: RedisCase
) -> None:
    granted(case.take(A))
    own_server.restart()
    assert case.redis.renew([Term("n", A, 30.0)]).renewed == [None]
    granted(case.take(B))


class TestOutOfMemory:
    @pytest.fixture(autouse=True)
    def _full(self, case: RedisCase) -> Iterator[None]:
        """Two locks are held when the memory runs out, with the policy that evicts nothing."""
        case.take(A, 5.0)
        case.take(A, 5.0, name="other")
        case.client.config_set("maxmemory-policy", "noeviction")
        case.client.config_set("maxmemory", 1)
        yield
        case.client.config_set("maxmemory", 0)

    @pytest.mark.parametrize("instead_of", [None, "another's"])
    def test_nothing_more_is_granted_and_nothing_half_written(
        self, case: RedisCase, instead_of: str | None
    ) -> None:
        before = case.keys()
        with pytest.raises(LockUnavailable, match=r"OOM|maxmemory"):
            case.take(B, name="new", period=60.0, instead_of=instead_of)
        assert case.keys() == before

    def test_what_was_accepted_starts(self, case: RedisCase) -> None:
        """Law 2: a claim becomes a lease, and a message without one, or without a key, gets one."""
        assert granted(case.take(B, instead_of=A)).taken_over
        granted(case.take(B, name="new", period=60.0, starts_run=True))
        assert [case.holder(), case.holder("new"), case.holder("other")] == [B, B, A]
        assert sorted(case.store.names()) == ["n", "new", "other"]
        assert case.remaining("new", "period")

    def test_a_start_is_refused_by_a_holder_and_by_a_mark_as_ever(self, case: RedisCase) -> None:
        case.store.release("other", A, mark=Mark("message", 60.0))
        assert refused(case.take(B, starts_run=True)).hold.token == A
        assert isinstance(case.take(B, name="other", message="message", starts_run=True), Marked)

    def test_what_is_held_lives_on_until_it_is_released_or_taken_away(self, case: RedisCase) -> None:
        assert case.store.renew([Term("other", A, 30.0)]).renewed == [True]
        assert (case.remaining("other") or 0.0) > 25.0
        assert case.store.names() == ["n", "other"]
        assert case.store.force_release("n").released
        assert case.store.release("other", A, mark=Mark("message", 60.0)).released
        assert case.store.names() == []

    def test_a_retry_keeps_the_lock_and_every_mark_is_left(self, case: RedisCase) -> None:
        """Laws 7 and 8: also where the hold has gone meanwhile."""
        assert case.store.hand_on("n", A, B, 30.0, facts=ABOUT, mark=Mark("first", 60.0)).released
        assert case.store.hand_on("n", A, B, 30.0, facts=ABOUT, mark=Mark("first", 60.0)).released
        assert not case.store.release("gone", A, mark=Mark("second", 60.0, is_done=True)).released
        assert not case.store.hand_on("gone", A, B, 30.0, facts=ABOUT, mark=Mark("third", 60.0)).released
        assert (case.holder(), case.holder("gone")) == (B, None)
        assert case.remaining("n", "mark:first")
        assert case.remaining("gone", "mark:second")
        assert case.remaining("gone", "mark:third")

    def test_a_mark_that_is_refused_costs_the_next_request_nothing(self, case: RedisCase) -> None:
        """Its answer is read by the next request on its connection, and not taken for that one's."""
        case.store.mark_done("n", "message", 60.0)
        assert case.store.release("n", A).released
        assert not case.client.exists(case.key(part="mark:message"))


#: Requests of a replica that knows of A's hold, and what each would be told by a primary.
ON_A_REPLICA: dict[Callable[[RedisStore], object], str] = {
    lambda store: store.acquire("free", B, 30.0, facts=ABOUT): "granted",
    lambda store: store.acquire("n", B, 30.0, facts=ABOUT, instead_of=A): "taken over",
    lambda store: store.acquire("n", B, 30.0, facts=ABOUT): "refused",
    lambda store: store.inspect("n", to_decide=True): "held",
    lambda store: store.renew([Term("n", A, 30.0)]): "renewed",
    lambda store: store.renew([Term("n", B, 30.0)]): "lost to another",
    lambda store: store.renew([Term("gone", A, 30.0), Term("n", A, 30.0)]): "lost",
    lambda store: store.hand_on("n", A, B, 30.0, facts=ABOUT): "handed on",
    lambda store: store.hand_on("gone", A, B, 30.0, facts=ABOUT): "nothing to hand on",
    lambda store: store.look("n", B): "looked at",
    lambda store: list(store.release_claims(["nobody"])): "claims of a task",
    lambda store: store.release("gone", A): "nothing to release",
}


class TestReplicas:
    @pytest.fixture
    def replica(self, own_server: EmbeddedServer) -> Iterator[EmbeddedServer]:
        """A second server that follows the first."""
        with ExitStack() as stack:
            primary = stack.enter_context(closing(RedisCase(own_server.redis_url))).client
            primary.config_set("repl-diskless-sync", "yes")
            primary.config_set("repl-diskless-sync-delay", 0)
            replica = EmbeddedServer(
                binary=own_server.binary, extra_args=["--replicaof", "127.0.0.1", str(own_server.port)]
            )
            stack.enter_context(replica)
            client = stack.enter_context(closing(RedisCase(replica.redis_url))).client
            assert wait_until(lambda: _replication(client)["master_link_status"] == "up", 20)
            # Online is not yet listening: without a disk the stream begins with the replica's first answer.
            primary.set("replicated", "yes", px=60_000)
            assert wait_until(lambda: primary.wait(1, 100) == 1, 20)
            yield replica

    def test_a_replica_decides_nothing(self, case: RedisCase, replica: EmbeddedServer) -> None:
        """Laws 2, 4 and 9: what it knows may be long past, and what it does not know may be there."""
        case.take(A)
        with closing(connect(replica.redis_url, prefix=case.prefix)) as store:
            assert wait_until(lambda: store.inspect("n") is not None, 10)
            for request_of, told in ON_A_REPLICA.items():
                with pytest.raises(LockUnavailable, match=r"(?i)read.?only"):
                    pytest.fail(f"{told}: {request_of(store)}")

    @pytest.mark.parametrize("deposed", ["replica", "left by its replicas"])
    def test_who_is_refused_by_a_deposed_primary_asks_for_the_present_one(
        self, own_server: EmbeddedServer, deposed: str
    ) -> None:
        """Laws 4 and 9: the connection to it lives, and would be refused for as long as it does."""
        with ExitStack() as stack:
            old, new = (
                stack.enter_context(EmbeddedServer(binary=own_server.binary, port=0)) for _ in range(2)
            )
            assert old.port is not None
            proxy = stack.enter_context(faulty_proxy(old.port))
            store = stack.enter_context(closing(connect(proxy.url)))
            assert isinstance(store.acquire("before", A, 30.0, facts=ABOUT), Grant)
            client = stack.enter_context(closing(RedisCase(old.redis_url))).client
            if deposed == "replica":
                client.execute_command("REPLICAOF", "127.0.0.1", str(new.port))  # type: ignore[no-untyped-call]
            else:
                client.config_set("min-replicas-to-write", 1)
            proxy.lead_to(new.port)

            granted(store.acquire("after", A, 30.0, facts=ABOUT))

            there = stack.enter_context(closing(connect(new.redis_url)))
            assert there.names() == ["after"]

    def test_a_lock_that_a_replica_must_confirm_is_granted_when_one_does(
        self, own_server: EmbeddedServer, replica: EmbeddedServer
    ) -> None:
        assert replica.is_running
        with closing(RedisCase(own_server.redis_url, min_replicas=1)) as careful:
            granted(careful.take(A))
            careful.client.script_flush()
            granted(careful.take(A))

    @pytest.fixture
    def unconfirmed(self, own_server: EmbeddedServer, case: RedisCase) -> Iterator[RedisStore]:
        """A store on the case's keys whose every acquire wants a replica there is none of."""
        assert wait_until(lambda: _replication(case.client)["connected_slaves"] == 0, 20)
        url, prefix = own_server.redis_url, case.prefix
        with closing(connect(url, prefix=prefix, min_replicas=1, socket_timeout=2.0)) as store:
            yield store

    def test_a_claim_whose_run_no_replica_confirms_is_released_with_it(
        self, case: RedisCase, unconfirmed: RedisStore
    ) -> None:
        """A stated limit of ``min_replicas``: what was there before the run is not put back."""
        case.redis.acquire("n", A, 3600.0, facts=ABOUT)
        for taken_over, token in ((A, "job-a/run"), (None, A)):
            with pytest.raises(LockUnavailable, match="0 of 1 replicas"):
                unconfirmed.acquire("n", token, 5.0, facts=ABOUT, instead_of=taken_over, period=60.0)
            assert case.keys() == []
        granted(case.take(B, period=60.0))

    def test_a_server_that_refuses_to_wait_confirms_nothing(
        self, own_server: EmbeddedServer, case: RedisCase
    ) -> None:
        """Law 9: a stated error, and the stream stays in step."""
        case.client.execute_command("ACL", "SETUSER", "hasty", "on", "nopass", "~*", "+@all", "-wait")  # type: ignore[no-untyped-call]
        url = own_server.redis_url.replace("://", "://hasty:x@", 1)
        with closing(connect(url, prefix=case.prefix, min_replicas=1)) as store:
            for _ in range(2):
                with pytest.raises(LockUnavailable, match="NOPERM"):
                    store.acquire("n", A, 30.0, facts=ABOUT)
            assert store.release("n", A).released

    def test_a_refusal_is_no_matter_of_replicas(self, case: RedisCase, unconfirmed: RedisStore) -> None:
        """Nothing was written, so nothing has to be confirmed, and the stream stays in step."""
        case.client.set(case.key(), "somebody", px=30_000)
        for _ in range(2):
            assert refused(unconfirmed.acquire("n", A, 30.0, facts=ABOUT)).hold.owner == "somebody"


def _replication(client: redis.Redis) -> dict[str, object]:
    return cast("dict[str, object]", client.info("replication"))


class TestPassword:
    SECRET = "s3cr3t-p4ss"

    @pytest.fixture
    def locked_server(self, own_server: EmbeddedServer) -> Iterator[EmbeddedServer]:
        """A server that wants a password."""
        with EmbeddedServer(binary=own_server.binary, port=0) as server:
            with closing(RedisCase(server.redis_url)) as case:
                case.client.config_set("requirepass", self.SECRET)
            yield server

    @pytest.mark.parametrize("password", ["wr0ng-p4ss", ""])
    def test_a_wrong_one_is_unavailable_and_never_told(
        self, locked_server: EmbeddedServer, password: str
    ) -> None:
        url = f"redis://:{password}@127.0.0.1:{locked_server.port}/0"
        with closing(connect(url)) as store, pytest.raises(LockUnavailable) as caught:
            store.acquire("n", A, 30.0, facts=ABOUT)
        error: BaseException | None = caught.value
        while error is not None:
            assert not password or password not in f"{error} {error!r} {error.args}"
            error = error.__cause__ or error.__context__

    def test_the_right_one_opens(self, locked_server: EmbeddedServer) -> None:
        with closing(RedisCase(f"redis://:{self.SECRET}@127.0.0.1:{locked_server.port}/0")) as case:
            granted(case.take(A))
            assert self.SECRET not in case.redis.server
