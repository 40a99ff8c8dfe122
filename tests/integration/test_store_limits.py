"""What every store promises where several may hold a lock: never more than the limit, each its own end."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest

from celery_redislock.embedded import EmbeddedServer
from celery_redislock.exceptions import LockKeyError
from celery_redislock.store.redisstore import SCRIPTS
from celery_redislock.store.store import Hold, Parked, Refusal, Term
from celery_redislock.wire.scripts import script
from tests import stores
from tests.faults import Fault, FaultyProxy
from tests.stores import JOBS, RedisCase, StoreCase, at_home, granted, in_line, line_up, look, refused

A, B, C, D, E, F = JOBS


def facts(limit: int | None, **more: object) -> str:
    """What a holder says, with the limit it knows, as the scripts look for it."""
    said = {"state": "running", **more} | ({} if limit is None else {"limit": limit})
    return json.dumps(said, separators=(",", ":"))


def take(case: StoreCase, token: str, limit: int | None = 3, ttl: float = 30.0, **options: Any) -> Any:
    """Acquire as a run does."""
    options = {"starts_run": True, **options}
    state = options.pop("state", "running")
    return case.store.acquire("n", token, ttl, facts=facts(limit, state=state), limit=limit, **options)


def park(case: StoreCase, id_: str, limit: int | None = 3) -> Parked:
    """Park a message that was refused."""
    return stores.park(case, id_, facts=facts(limit, state="queued", line=1), how="refused")


def take_all(case: StoreCase, *tokens: str) -> None:
    """Let each have a permit."""
    for token in tokens:
        granted(take(case, token))


def holders(case: StoreCase) -> set[str]:
    """Who holds it."""
    return {hold.token for hold in case.store.holders("n")}


def test_one_that_knows_of_no_limit_finds_such_a_lock_held(case: StoreCase) -> None:
    """It takes no permit, and none is granted beside it; whoever holds one is named as its holder."""
    take(case, A)
    assert refused(take(case, B, None)).hold.token == A
    assert refused(case.store.acquire("n", B, 30.0, facts="{}")).hold.token == A
    assert refused(case.store.look("n", B)).hold.token == A
    assert not case.store.release("n", B).released
    case.store.release("n", A)
    assert granted(take(case, B, None)).fence
    assert refused(take(case, A)).hold.token == B


@pytest.mark.parametrize("first", [2, 3])
def test_where_processes_disagree_the_least_limit_of_the_holders_counts(case: StoreCase, first: int) -> None:
    take(case, A, first)
    take(case, B, 5 - first)
    assert isinstance(take(case, C, 3), Refusal)
    assert isinstance(take(case, C, 2), Refusal)
    # The one that knew 2 has gone.
    case.store.release("n", A if first == 2 else B)
    granted(take(case, C, 3))
    granted(take(case, D, 3))
    assert isinstance(take(case, E, 3), Refusal)


def test_a_second_delivery_never_takes_a_second_permit(case: StoreCase) -> None:
    """Law 1: one task id is one holder, however often its message is delivered, and wherever it waits."""
    take(case, "job-a/1")
    refusal = refused(take(case, "job-a/2"))
    assert [hold.token for hold in refusal.holds] == ["job-a/1"]
    assert granted(take(case, "job-a/1")).repeated
    assert park(case, "job-a/2").word == "parked"
    # It does not bar those behind it, which find room.
    assert park(case, B).word == "woken"
    assert (in_line(case), holders(case)) == (["job-a/2"], {"job-a/1", B})
    case.store.release("n", "job-a/1")
    assert holders(case) == {"job-a/2", B}


def test_a_crashed_holders_permit_returns_after_its_own_ttl(case: StoreCase) -> None:
    """The others hold theirs meanwhile, and renew them."""
    take_all(case, A, B, C)
    case.expire_permit(B)
    renewed = case.store.renew([Term("n", token, 60.0) for token in (A, B, C, D)]).renewed
    assert list(renewed) == [True, None, True, None]
    granted(take(case, D))
    assert holders(case) == {A, C, D}
    assert not case.store.release("n", B).released
    assert all(hold.expires_in > 50.0 for hold in case.store.holders("n") if hold.token != D)


def test_an_exclusive_waiter_gets_its_turn_when_the_permits_have_drained(case: StoreCase) -> None:
    """Nobody overtakes it meanwhile, or a stream of others would starve it."""
    take(case, A)
    take(case, B)
    park(case, C, 1)
    park(case, D, 3)
    assert isinstance(take(case, E), Refusal)
    case.store.release("n", A)
    assert (case.pushed(), in_line(case)) == ([], [C, D])
    case.store.release("n", B)
    assert (case.pushed(), holders(case)) == ([C], {C})
    case.store.release("n", C)
    assert holders(case) == {D}


def test_a_limit_that_is_set_replaces_those_of_the_processes_until_its_end(case: StoreCase) -> None:
    """Larger or smaller. Who waits starts at once; nobody is ended."""
    for token in (A, B):
        take(case, token, 2)
    park(case, C, 2)
    park(case, D, 2)
    assert case.store.limit("n") is None

    found = case.store.limit("n", 3, ttl=60.0, facts='{"by":"somebody"}')
    assert found is not None
    assert (found.value, found.facts) == (3, {"by": "somebody"})
    assert 55.0 < found.expires_in <= 60.0
    assert (holders(case), in_line(case)) == ({A, B, C}, [D])
    case.store.limit("n", 1, ttl=60.0)
    for token in (A, B):
        case.store.release("n", token)
        assert in_line(case) == [D]
    case.store.release("n", C)
    assert holders(case) == {D}
    assert isinstance(take(case, E, 2), Refusal)
    # Taken back.
    assert case.store.limit("n", ttl=1.0) is None
    case.store.release("n", D)
    granted(take(case, A, 2))
    granted(take(case, B, 2))
    assert isinstance(take(case, C, 2), Refusal)


def test_a_period_counts_and_begins_for_each_that_is_accepted(case: StoreCase) -> None:
    granted(take(case, A, period=60.0))
    assert refused(take(case, B, period=60.0)).because == "period"
    granted(take(case, C))
    case.store.release("n", A, opened_by=A)
    granted(take(case, B, period=60.0))


def test_only_those_are_listed_that_hold(case: StoreCase) -> None:
    take(case, A)
    assert case.store.names() == ["n"]
    take(case, B)
    case.store.release("n", A)
    assert case.store.names() == ["n"]
    case.store.release("n", B)
    assert case.store.names() == []


def test_whoever_knows_only_strings_finds_the_lock_held(plain_case: RedisCase) -> None:
    """``GET``, and another program's ``SET NX`` on the same key."""
    take(plain_case, A)
    assert plain_case.client.get(plain_case.key()) == b'permits/3\0{"limit":3}'
    assert not plain_case.client.set(plain_case.key(), "theirs", nx=True, px=1000)
    assert isinstance(plain_case.store.inspect("n"), Hold)
    plain_case.store.release("n", A)
    assert plain_case.client.set(plain_case.key(), "theirs", nx=True, px=60_000)
    assert refused(take(plain_case, B)).hold.token == "theirs"


def test_an_index_of_another_type_keeps_nobody_from_a_permit(plain_case: RedisCase) -> None:
    """It is somebody else's key."""
    index = f"{plain_case.prefix}:index"
    plain_case.client.set(index, "theirs", px=60_000)
    for number in range(40):  # by one in sixteen expired entries are taken off
        token = f"job-{number}/1"
        granted(take(plain_case, token))
        assert plain_case.store.renew([Term("n", token, 30.0)]).renewed == [True]
        assert plain_case.store.release("n", token).released


def test_nothing_is_left_when_nobody_holds_it(plain_case: RedisCase) -> None:
    take(plain_case, A)
    take(plain_case, B)
    plain_case.store.release("n", A)
    plain_case.store.release("n", B)
    assert plain_case.keys() == []


@pytest.mark.parametrize(
    ("running", "starting", "told"),
    [(3, None, None), (3, 1, None), (None, 3, None), (3, 3, 1)],
    ids=["it knows none", "it knows less", "the one that runs knows none", "one was set"],
)
def test_a_claim_made_under_another_limit_gives_its_place_up_where_as_many_run_as_may(
    case: StoreCase, running: int | None, starting: int | None, told: int | None
) -> None:
    """Law 1 in a deploy. It holds nothing that could keep those from ending for whom it waits now."""
    take(case, A, state="queued", starts_run=False)
    take(case, B, state="queued", starts_run=False)
    granted(take(case, "job-a/run", running, instead_of=A))
    case.store.limit("n", told, ttl=60.0)
    for _ in range(2):  # its answer may get lost
        assert refused(take(case, "job-b/run", starting, instead_of=B)).hold.token == "job-a/run"
        assert holders(case) == {"job-a/run"}
    park(case, B, starting)
    assert in_line(case) == [B]
    case.store.release("n", "job-a/run")
    assert (holders(case), case.pushed()) == ({B}, [B])
    granted(take(case, "job-b/run", starting, instead_of=B))


def test_an_operators_release_of_one_ends_the_period_that_began_with_it(case: StoreCase) -> None:
    """Not another one's; and also where its claim has become a lease."""
    take(case, A, period=60.0)
    take(case, B)
    case.store.force_release("n", expected=B)
    assert refused(take(case, C, period=60.0)).because == "period"
    granted(take(case, "job-a/run", instead_of=A))
    case.store.force_release("n", expected="job-a/run")
    granted(take(case, C, period=60.0))


@pytest.mark.parametrize("limit", [None, 3])
def test_a_task_may_be_called_permits(case: StoreCase, limit: int | None) -> None:
    """Its token begins as the marker of a lock that several may hold."""
    granted(take(case, "permits/1", limit))
    assert holders(case) == {"permits/1"}
    assert isinstance(take(case, A, None), Refusal)
    assert isinstance(take(case, A, limit), Refusal) == (limit is None)
    assert case.store.renew([Term("n", "permits/1", 30.0)]).renewed == [True]
    park(case, B, None)
    assert case.store.release("n", "permits/1").released


def test_a_lock_whose_marker_was_deleted_by_hand_has_no_more_room_than_before(plain_case: RedisCase) -> None:
    """The permits are there still."""
    take(plain_case, A, 1)
    plain_case.client.delete(plain_case.key())
    assert isinstance(take(plain_case, B, 1), Refusal)
    assert isinstance(plain_case.store.acquire("n", B, 30.0, facts=facts(2), limit=2), Refusal)


def test_claims_of_several_owners_end_at_once_and_those_who_wait_know_other_limits(case: StoreCase) -> None:
    """What is granted while they are released counts when the next one is."""
    for token in (A, B):
        case.store.acquire("n", token, 30.0, facts=facts(3, state="queued"), limit=3)
    take(case, C)
    park(case, D, 2)
    park(case, E, 1)
    assert set(case.store.release_claims(["job-a", "job-b", "job-c"])) == {("n", A), ("n", B)}
    assert (holders(case), in_line(case)) == ({C, D}, [E]), "a run keeps its permit"
    assert isinstance(take(case, "job-x/1"), Refusal)


def test_a_lock_of_broken_holders_keeps_the_trouble_to_itself(plain_case: RedisCase) -> None:
    """Another program's key in their place: other lines are looked at, and other claims released."""
    take(plain_case, A)
    park(plain_case, B, 1)
    plain_case.store.acquire("m", C, 30.0, facts=facts(3, state="queued"), limit=3)
    plain_case.client.delete(plain_case.key(part="holders"))
    plain_case.client.set(plain_case.key(part="holders"), "theirs", px=60_000)
    sweep = look(plain_case)
    assert [name for name, _ in sweep.broken] == ["n"]
    assert "WRONGTYPE" in sweep.broken[0][1]
    assert set(plain_case.store.release_claims(["job-a", "job-c"])) == {("m", C)}


@pytest.mark.parametrize("end", ["release", "force_release"])
def test_a_period_of_another_type_refuses_the_whole_end_of_a_hold(plain_case: RedisCase, end: str) -> None:
    """And not a half of it: those who wait would not be served."""
    take(plain_case, A)
    plain_case.client.rpush(plain_case.key(part="period"), "theirs")
    plain_case.client.pexpire(plain_case.key(part="period"), 60_000)
    verb = getattr(plain_case.store, end)
    with pytest.raises(LockKeyError):
        verb("n", **{"release": {"token": A, "opened_by": A}, "force_release": {"expected": A}}[end])
    assert holders(plain_case) == {A}


def test_all_of_many_holders_are_told(case: StoreCase) -> None:
    for number in range(1200):
        take(case, f"job-{number}/1", 2000, 600.0)
    assert len(case.store.holders("n")) == 1200


@pytest.mark.parametrize("limit", [2**63 - 1, 10**30, 10**400], ids=["2**63 - 1", "10**30", "10**400"])
def test_a_limit_that_no_script_can_write_gives_every_place(case: StoreCase, limit: int) -> None:
    """As an old version may name one, or set one. Each holds the lock, and ends its hold."""
    for token in (A, B):
        granted(take(case, token, limit))
    case.store.limit("n", limit, ttl=60.0)
    granted(take(case, C, limit))
    assert holders(case) == {A, B, C}
    assert list(case.store.renew([Term("n", A, 30.0)]).renewed) == [True]
    for token in (A, B, C):
        assert case.store.release("n", token).released
    assert holders(case) == set()


def test_a_marker_whose_number_an_old_version_could_not_write_is_one(plain_case: RedisCase) -> None:
    """A number from 2**63 on was written below zero. Its holders are seen, and others get their places."""
    take(plain_case, A, 2**63 - 1)
    plain_case.client.set(plain_case.key(), f'permits/{-(2**63)}\0{{"limit":{-(2**63)}}}', px=30_000)
    assert holders(plain_case) == {A}
    granted(take(plain_case, B, 3))
    assert refused(take(plain_case, C, 2)).because == "run"
    assert plain_case.store.release("n", A).released
    assert holders(plain_case) == {B}


def letters(tokens: Iterable[str]) -> list[str]:
    """Whose tokens they are."""
    return [token.removeprefix("job-")[0].upper() for token in tokens]


def store_result(case: RedisCase) -> object:
    return case.redis.release_and_store("n", A, f"{case.prefix}:result", '{"status": "SUCCESS"}', 60)


def expired_and_swept(case: RedisCase) -> object:
    case.expire_permit(A)
    case.make_due()
    return case.redis.sweep()


#: What a request does to a lock that A, B and C hold, with D and E in line: how it is asked, who holds it
#: then, and who waits.
REQUESTS: dict[str, tuple[Callable[[RedisCase], object], str, str]] = {
    "acquire": (lambda case: take(case, F), "ABC", "DE"),
    "acquire, taken over": (lambda case: take(case, "job-a/2", instead_of=A), "ABC", "DE"),
    "acquire, under another limit": (lambda case: take(case, "job-a/2", None, instead_of=A), "BC", "DE"),
    "renew": (lambda case: case.redis.renew([Term("n", A, 30.0)]), "ABC", "DE"),
    "release": (lambda case: case.redis.release("n", A), "BCD", "E"),
    "release_and_store": (store_result, "BCD", "E"),
    "release_claims": (lambda case: list(case.redis.release_claims(["job-c"])), "ABD", "E"),
    "hand_on": (lambda case: case.redis.hand_on("n", A, "job-a/2", 30.0, facts=facts(3)), "ABC", "DE"),
    "force_release": (lambda case: case.redis.force_release("n", expected=B), "ACD", "E"),
    "look": (lambda case: case.redis.look("n", F, limit=3), "ABC", "DE"),
    "inspect": (lambda case: case.redis.holders("n"), "ABC", "DE"),
    "limit": (lambda case: case.redis.limit("n", 4, ttl=60.0), "ABCD", "E"),
    "park": (lambda case: park(case, F), "ABC", "DEF"),
    "leave": (lambda case: case.redis.leave("n", D), "ABC", "E"),
    "move": (lambda case: case.redis.move("n", E, "first"), "ABC", "ED"),
    "sweep": (expired_and_swept, "BCD", "E"),
}


def hand_on_to_one_that_is_done(case: RedisCase) -> object:
    case.client.set(case.key(part=f"mark:{F}"), 1, px=60_000)
    return case.redis.hand_on("n", A, F, 30.0, facts=facts(None))


def alone_and_expired(case: RedisCase) -> object:
    case.expire()
    case.make_due()
    return case.redis.sweep()


#: The same of a lock that A holds alone. A force-release that means anybody takes the next one's too.
ALONE: dict[str, tuple[Callable[[RedisCase], object], str, str]] = {
    "release": (lambda case: case.redis.release("n", A), "D", "E"),
    "release_and_store": (store_result, "D", "E"),
    "force_release": (lambda case: case.redis.force_release("n", expected=A), "D", "E"),
    "leave, which it holds": (lambda case: case.redis.leave("n", A), "D", "E"),
    "leave": (lambda case: case.redis.leave("n", D), "A", "E"),
    "hand_on": (hand_on_to_one_that_is_done, "D", "E"),
    "park": (lambda case: park(case, F, None), "A", "DEF"),
    "sweep": (alone_and_expired, "D", "E"),
}


@pytest.fixture
def cut_off(proxy: FaultyProxy, tcp_server: EmbeddedServer) -> Iterator[RedisCase]:
    """A store whose answers get lost; its server knows its scripts."""
    url = tcp_server.redis_url
    with closing(RedisCase(proxy.url, client_url=url, socket_timeout=0.5)) as case:
        for name in SCRIPTS:
            case.client.script_load(script(name, "celery_redislock.store")[0])
        case.store.inspect("n")
        yield case


@pytest.mark.parametrize("fault", [Fault.REQUEST_LOST, Fault.REPLY_LOST], ids=lambda fault: fault.name)
@pytest.mark.parametrize(
    ("limit", "request_"), [*((3, each) for each in REQUESTS), *((None, each) for each in ALONE)]
)
def test_a_request_whose_answer_gets_lost_is_carried_out_once(
    proxy: FaultyProxy, cut_off: RedisCase, limit: int | None, request_: str, fault: Fault
) -> None:
    """Law 1: never a fourth holder, and none for two; those who wait are served once each, in order."""
    ask, held_by, line = (REQUESTS if limit else ALONE)[request_]
    for token in (A, B) if limit else (A,):
        take(cut_off, token, limit)
    if limit:
        cut_off.redis.acquire("n", C, 30.0, facts=facts(3, state="queued"), limit=3)
    for id_ in (D, E):
        park(cut_off, id_, limit)
    proxy.fail(fault)
    ask(cut_off)
    assert proxy.fired == 1
    assert sorted(letters(hold.token for hold in cut_off.redis.holders("n"))) == [*held_by]
    assert letters(in_line(cut_off)) == [*line]
    assert letters(cut_off.pushed()) == [each for each in held_by if each in "DE"]


def test_what_was_given_in_an_answer_that_got_lost_is_given_again_when_its_claim_has_run_out(
    proxy: FaultyProxy, cut_off: RedisCase
) -> None:
    given = at_home(cut_off)
    line_up(cut_off, B, kind="give")
    proxy.fail(Fault.REPLY_LOST, of="release")
    assert cut_off.store.release("n", A).promoted == ()
    assert (cut_off.holder(), given) == (B, [])
    cut_off.expire()
    look(cut_off)
    assert [each.id for each in given] == [B]
