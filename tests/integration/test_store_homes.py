"""What every store promises about homes: who serves what waits beside another broker, and which are one."""

from celery_redislock.store.home import KEPT
from tests.integration.test_store_lines import A, B, C, at_home, in_line, park
from tests.stores import MemoryCase, RedisCase, StoreCase

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
    """A process publishes what is for any of its homes."""

    def test_a_release_gives_what_is_for_another_spelling(self, case: StoreCase) -> None:
        given = at_home(case, f"{HERE}\n{THERE}")
        case.take(A)
        park(case, B, "give", to=THERE)

        answer = case.store.release("n", A)

        assert [each.id for each in answer.promoted] == [each.id for each in given] == [B]
        assert case.holder() == B

    def test_a_spelling_that_only_contains_it_is_another(self, case: StoreCase) -> None:
        """Of the host, the port or the virtual host."""
        given = at_home(case, f"x{ELSEWHERE}\n{ELSEWHERE}/x\n{HERE}")
        case.take(A)
        park(case, B, "give", to=ELSEWHERE)

        assert case.store.release("n", A).promoted == ()
        assert case.store.drain("n") == (0, ())
        assert (given, in_line(case)) == ([], [B])

    def test_a_drain_gives_it(self, case: StoreCase) -> None:
        at_home(case, f"{HERE}\n{THERE}")
        case.take(A)
        park(case, B, "give", to=THERE)
        park(case, C, "give", to=ELSEWHERE)

        count, promoted = case.store.drain("n")

        assert (count, [each.id for each in promoted]) == (0, [B])

    def test_who_has_waited_for_too_long_is_given_without_the_lock(self, case: StoreCase) -> None:
        given = at_home(case, f"{HERE}\n{THERE}")
        case.take(A)
        park(case, B, "give", to=THERE, within=30.0)
        case.make_late(B)
        case.make_due()

        case.store.sweep()

        assert [each.id for each in given] == [B]

    def test_a_look_tells_which_home_alone_can_serve_the_first(self, case: StoreCase) -> None:
        at_home(case)
        case.take(A)
        park(case, B, "give", to=ELSEWHERE)
        case.expire()
        case.make_due()

        assert case.store.sweep().elsewhere == (("n", ELSEWHERE),)


class TestProofs:
    """Which spellings were proved, by what, and when."""

    def test_nothing_is_proved_at_first(self, case: StoreCase) -> None:
        assert case.store.homes() == {}

    def test_each_spelling_has_the_name_that_was_noted_of_it(self, case: StoreCase) -> None:
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
