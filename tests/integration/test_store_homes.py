"""What every store promises about homes: who serves what waits beside another broker, and which are one."""

import pytest

from celery_redislock.store.home import KEPT
from tests.stores import A, B, C, MemoryCase, RedisCase, StoreCase, at_home, in_line, look, park

HERE, THERE, ELSEWHERE = "amqp:here", "amqp:there", "amqp:elsewhere"


def make_old(case: StoreCase, spelling: str, seconds: float) -> None:
    """Let so much time have passed since a spelling was proved."""
    if isinstance(case, MemoryCase):
        case.clock.advance(seconds)
        return
    assert isinstance(case, RedisCase)
    homes = f"{case.prefix}:homes"
    at, _, name = (case.client.hget(homes, spelling) or b"").partition(b"\0")  # type: ignore[union-attr]
    case.client.hset(homes, spelling, b"%d\0%b" % (int(at) - seconds * 1000, name))


class TestServed:
    @pytest.mark.parametrize("way", ["release", "drain", "who has waited for too long"])
    def test_what_is_for_another_spelling_is_given(self, case: StoreCase, way: str) -> None:
        given = at_home(case, f"{HERE}\n{THERE}")
        case.take(A)
        park(case, B, "give", to=THERE, within=30.0)
        park(case, C, "give", to=ELSEWHERE)
        if way == "release":
            assert [each.id for each in case.store.release("n", A).promoted] == [B]
        elif way == "drain":
            assert case.store.drain("n")[0] == 0
        else:
            case.make_late(B)
            look(case)
        assert [each.id for each in given] == [B]
        assert case.holder() == (B if way == "release" else A)

    def test_a_spelling_that_only_contains_it_is_another(self, case: StoreCase) -> None:
        """Of the host, the port or the virtual host."""
        given = at_home(case, f"x{ELSEWHERE}\n{ELSEWHERE}/x\n{HERE}")
        case.take(A)
        park(case, B, "give", to=ELSEWHERE)
        assert case.store.release("n", A).promoted == ()
        assert case.store.drain("n") == (0, ())
        assert (given, in_line(case)) == ([], [B])

    def test_a_look_tells_which_home_alone_can_serve_the_first(self, case: StoreCase) -> None:
        at_home(case)
        case.take(A)
        park(case, B, "give", to=ELSEWHERE)
        case.expire()
        assert look(case).elsewhere == (("n", ELSEWHERE),)


class TestProofs:
    def test_each_spelling_has_the_name_that_was_noted_of_it(self, case: StoreCase) -> None:
        assert case.store.homes() == {}
        case.store.homes(HERE, "x")
        case.store.homes(ELSEWHERE)
        proofs = case.store.homes(THERE, "x")
        assert {spelling: proof.name for spelling, proof in proofs.items()} == {
            HERE: "x",
            THERE: "x",
            ELSEWHERE: "",
        }
        assert case.store.homes().keys() == proofs.keys()
        assert max(proof.age for proof in proofs.values()) < 10.0

    def test_the_name_that_was_noted_last_counts(self, case: StoreCase) -> None:
        for name in ("", "x", "y"):
            assert case.store.homes(HERE, name)[HERE].name == name

    def test_a_proof_is_as_old_as_its_last_repetition(self, case: StoreCase) -> None:
        case.store.homes(HERE, "x")
        make_old(case, HERE, 100.0)
        old = case.store.homes()[HERE].age
        new = case.store.homes(HERE, "x")[HERE].age
        assert 99.0 < old < 110.0
        assert new < 10.0

    def test_what_nobody_has_proved_for_a_week_is_forgotten(self, case: StoreCase) -> None:
        """Else each spelling that ever was would be asked about for ever."""
        case.store.homes(HERE, "x")
        make_old(case, HERE, KEPT + 1)
        assert case.store.homes() == {}
        assert case.store.homes(THERE, "y").keys() == {THERE}
        assert case.store.homes(HERE, "z")[HERE].name == "z"
