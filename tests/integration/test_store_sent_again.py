"""What a store promises where it is the broker, too: what was handed the lock and is lost is sent again.

Nobody says that a message is lost. A look finds it neither in its queue nor in a worker's hands.
"""

import json
from typing import Any

import pytest

from celery_redislock.store.joined import joined
from celery_redislock.store.store import Term, Unstarted
from celery_redislock.wire.scripts import digested
from tests.integration.test_store_handed_on import hand_on, park, sends, start, text_of
from tests.stores import IN_LINE, A, B, C, RedisCase, granted, in_line, look


@pytest.fixture
def case(plain_case: RedisCase) -> RedisCase:
    """On a server only."""
    return plain_case


def doubt(case: RedisCase, id_: str = B, name: str = "n") -> None:
    """A second ago the message was nowhere."""
    field = f"{id_}\0gone"
    assert case.client.hexists(case.key(name, "parked"), field)
    case.client.hset(case.key(name, "parked"), field, 1)


class TestFused:
    """Where the lock server is the broker, the script looks for what was sent."""

    def test_found_nowhere_twice_it_is_sent_again_with_a_tag_of_its_own(self, case: RedisCase) -> None:
        """Under the same tag the acknowledgement of one copy would remove the other."""
        hand_on(case, C)
        case.client.delete(case.queue())  # popped, and lost
        assert 0.0 < look(case).next_in <= 1.0
        assert case.pushed() == []
        doubt(case)
        look(case)
        assert case.pushed() == [text_of(B).replace(f'"tag-{B}"', f'"tag-{B}~2"')]
        assert (case.holder(), in_line(case), sends(case)) == (B, [C], [2])
        assert granted(start(case)).sent_again

    def test_a_second_is_waited_for_between_the_two_looks(self, case: RedisCase) -> None:
        hand_on(case)
        case.client.delete(case.queue())
        for _ in range(3):
            look(case)
        assert case.pushed() == []

    def test_the_more_often_it_was_sent_the_longer_it_is_waited_for(self, case: RedisCase) -> None:
        """A worker without this package may have run it, and would run each copy."""
        hand_on(case, C)
        pauses = []
        for _ in range(3):
            case.client.delete(case.queue())
            pauses.append(look(case).next_in)
            doubt(case)
            look(case)
        assert [round(pause) for pause in pauses] == [1, 2, 4]

    @pytest.mark.parametrize("where", ["queue", "behind others", "in hand", "restored", "deep", "unknown"])
    def test_while_it_is_there_it_is_not_sent_again(self, case: RedisCase, where: str) -> None:
        """Nor where that cannot be asked."""
        client = case.client
        queue = case.queue()
        unacked = f"{case.prefix}:unacked"
        case.foreign = (unacked,)
        hand_on(case, facts=IN_LINE[:-1] + f',"unacked":"{unacked}"}}')
        if where == "behind others":
            client.rpush(queue, *[f"other {i}" for i in range(900)])
        elif where == "deep":
            client.rpush(queue, *[f"other {i}" for i in range(1100)])
        elif where != "queue":
            client.delete(queue)
        if where == "in hand":
            client.hset(unacked, f"tag-{B}", "its JSON")
        elif where == "restored":
            restored = json.loads(text_of(B))
            restored["headers"]["redelivered"] = True
            client.rpush(queue, json.dumps(restored), *["other"] * 90)
        elif where == "unknown":
            client.set(unacked, "of another type")
        length = client.llen(queue)

        for _ in range(2):
            look(case)
            if client.hexists(case.key("n", "parked"), f"{B}\0gone"):
                doubt(case)

        assert (client.llen(queue), sends(case)) == (length, [1])

    @pytest.mark.parametrize(("others", "each_look"), [("before it", [1, 2, 3]), ("behind it", [3, 3, 3])])
    def test_a_look_that_had_much_to_look_through_leaves_the_other_lines_to_the_next(
        self, case: RedisCase, others: str, each_look: list[int]
    ) -> None:
        """Else thousands of keys in one long queue keep the server for tens of milliseconds a look."""
        names = [f"n{number}" for number in range(3)]
        for name in names:
            case.take(A, name=name)
            park(case, B, name=name)
            case.store.release(name, A)
            case.expire(name)  # so it is sought in the whole queue before it is sent again
            case.make_due(name)
        push = case.client.rpush if others == "before it" else case.client.lpush
        push(case.queue(), *[f"other {i}" for i in range(2500)])
        for looked_at in each_look:
            case.store.sweep()
            assert sum(case.holder(name) == B for name in names) == looked_at
        assert len(case.pushed()) == 2503

    def test_a_look_at_several_in_a_long_queue_is_followed_by_another_at_once(self, case: RedisCase) -> None:
        """Each of those that were handed a place of one lock is found in its turn."""
        facts = IN_LINE[:-1] + ',"limit":3}'
        for id_ in (B, C):
            park(case, id_, facts=facts)
        case.client.rpush(case.queue(), *[f"other {i}" for i in range(2500)])
        permits = case.key(part="permits")
        ends: dict[Any, float] = dict(case.client.zscan_iter(permits))
        case.client.zadd(permits, {token: at - 26_000 for token, at in ends.items()})
        for extended in (1, 2):
            assert (look(case).next_in == 0.0) is (extended == 1)
            after = dict(case.client.zscan_iter(permits))
            assert sum(after[token] > at - 20_000 for token, at in ends.items()) == extended

    def test_one_whose_claim_its_worker_renews_is_in_its_hands(self, case: RedisCase) -> None:
        """Acknowledged early it is nowhere until its run has started, and that may take long."""
        hand_on(case)
        case.client.delete(case.queue())
        case.client.hset(case.key("n", "parked"), f"{B}\0at", 1)
        case.store.renew([Term("n", B, 30.0)])
        look(case)
        assert not case.client.hexists(case.key("n", "parked"), f"{B}\0gone")
        case.client.pexpire(case.key(), 14_000)  # nobody renews it any more
        look(case)
        doubt(case)
        look(case)
        assert sends(case) == [2]

    def test_a_server_that_forbids_the_question_sends_nothing_again(self, case: RedisCase) -> None:
        """As to a user who may not call LPOS: an error tells nothing."""
        script, _ = case.scripts["sweep"]
        case.scripts["sweep"] = digested(script.replace("'LPOS'", "'LPOSITION'"))
        hand_on(case)
        case.client.delete(case.queue())
        for _ in range(3):
            look(case)
        assert (case.pushed(), sends(case)) == ([], [1])

    def test_with_places_left_what_a_look_pushes_is_sought_soon(self, case: RedisCase) -> None:
        """The look at those that hold it already says nothing about that one."""
        facts = IN_LINE[:-1] + ',"limit":3}'
        old = '{"state":"running","since":1.0,"limit":3}'
        for id_ in (A, "job-y/1", "job-z/1"):
            case.store.acquire("n", id_, 300.0, facts=old, limit=3)
        park(case, B, facts=facts)
        for id_ in (A, "job-y/1"):
            case.expire_permit(id_)
        look(case)
        assert case.pushed() == [text_of(B)]
        assert case.store.sweep().next_in <= 2.0

    def test_a_message_without_a_tag_is_taken_for_there(self, case: RedisCase) -> None:
        """Nobody can tell whether a worker has it in hand."""
        hand_on(case, text="no tag")
        case.client.delete(case.queue())
        for _ in range(3):
            look(case)
        assert (case.pushed(), sends(case)) == ([], [1])

    def test_its_claim_is_extended_while_it_is_there_and_told_the_third_time(self, case: RedisCase) -> None:
        """A queue that nobody consumes keeps the key, and operators have to know."""
        hand_on(case, C)
        told = []
        for _ in range(4):
            case.client.pexpire(case.key(), 4000)
            told += look(case).unstarted
            assert (case.remaining() or 0) > 25.0
        queue = case.queue()
        assert told == [Unstarted("n", B, queue, times, False) for times in (3, 4)]
        assert (case.pushed(), in_line(case)) == ([text_of(B)], [C])

    def test_the_longer_it_lies_there_the_seldomer_it_is_looked_for(self, case: RedisCase) -> None:
        """But in time for its claim to be extended."""
        hand_on(case)
        pauses = []
        for left in (29_999, 20_000, 6_000, 4_000):
            case.client.pexpire(case.key(), left)
            pauses.append(look(case).next_in)
        assert 1.9 < pauses[0] <= 2.0
        assert 2.3 < pauses[1] <= 2.6
        assert pauses[2] <= 1.1
        assert 7.0 < pauses[3] <= 7.6

    def test_lost_three_times_it_goes_to_the_end_of_its_line_and_that_is_told(self, case: RedisCase) -> None:
        hand_on(case, C)
        for _ in range(3):
            case.client.delete(case.queue())
            look(case)
            doubt(case)
            sweep = look(case)
        queue = case.queue()
        assert sweep.unstarted == (Unstarted("n", B, queue, 3, True),)
        assert (case.holder(), in_line(case), case.pushed()) == (C, [B], [text_of(C)])

    def test_back_in_line_and_lost_it_is_sent_again_at_once(self, case: RedisCase) -> None:
        """Nobody looked until its claim had ended."""
        hand_on(case, C)
        case.client.delete(case.queue())
        case.expire()
        look(case)
        assert case.pushed() == [text_of(B).replace(f'"tag-{B}"', f'"tag-{B}~2"')]

    def test_whose_claim_another_program_replaced_is_back_in_its_place(self, case: RedisCase) -> None:
        hand_on(case, C)
        case.client.set(case.key(), "another program's", px=30_000)
        look(case)
        assert (in_line(case), in_line(case, handed_on=True)) == ([B, C], [])

    def test_a_large_message_is_looked_for_in_a_few_steps(self, case: RedisCase) -> None:
        """A restored one is found among the first 64 kB only; another copy does no harm."""
        hand_on(case)
        client = case.client
        client.delete(case.queue())
        restored = text_of(B).replace("a header's", "another")
        client.rpush(case.queue(), restored, "x" * 100_000)
        look(case)
        doubt(case)
        look(case)
        assert sends(case) == [2]

    def test_of_several_locks_one_copy_is_sent_and_it_comes_back_in_all_lines(self, case: RedisCase) -> None:
        both = joined(case.redis)
        facts = IN_LINE[:-1] + ',"names":["m","n"]}'
        both.acquire("m n", A, 30.0, facts=IN_LINE)
        park(case, B, store=both, name="m n", facts=facts)
        both.release("m n", A)
        assert [in_line(case, name, handed_on=True) for name in "mn"] == [[B], [B]]
        case.client.delete(case.queue())

        for name in "mnn":
            look(case, name)
        doubt(case, name="m")
        for name in "mn":
            look(case, name)
        assert len(case.pushed()) == 1
        for name in "mn":
            case.expire(name)
        look(case, "n")

        assert [case.holder(name) for name in "mn"] == [B, B]
        assert [in_line(case, name, handed_on=True) for name in "mn"] == [[B], [B]]

    def test_nobody_who_waits_for_several_locks_passes_it_in_one_of_them(self, case: RedisCase) -> None:
        both = joined(case.redis)
        case.take(A, name="m")
        park(case, B, name="m")
        case.take(A)
        park(case, C, store=both, name="m n", facts=IN_LINE[:-1] + ',"names":["m","n"]}')
        case.store.release("m", A)
        case.expire("m")
        case.store.release("n", A)
        assert [case.holder(name) for name in "mn"] == [None, None]
        look(case, "m")
        assert (case.holder("m"), case.holder()) == (B, None)

    def test_it_keeps_its_place_where_the_server_takes_nothing_more(self, lone_case: RedisCase) -> None:
        """Its hand-off ends while the server is full."""
        hand_on(lone_case)
        lone_case.expire()
        lone_case.client.config_set("maxmemory", 1)
        lone_case.store.settle("n", B, 30.0)
        lone_case.client.config_set("maxmemory", 0)
        look(lone_case)
        assert (lone_case.holder(), in_line(lone_case, handed_on=True)) == (B, [B])

    def test_an_entry_that_nobody_can_read_is_forgotten(self, case: RedisCase) -> None:
        """As of a version before this one, which forgets the text at the start."""
        hand_on(case)
        case.client.delete(case.key(part="parked"))
        look(case)
        assert in_line(case, handed_on=True) == []
