"""The contract tests, run against scripts that are broken on purpose: each mutant must be caught.

A checker that passes mutants is broken. Every mutant is one well-known mistake,
put into the shipped script's text; the named tests must then fail, and pass
with the script as it is.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from celery_redislock.locks.scripts import Script
from tests.integration import test_store_contract as contract
from tests.integration import test_store_interleavings as interleavings
from tests.integration import test_store_on_servers as on_servers
from tests.integration import test_store_windows as windows
from tests.stores import RedisCase

Check = Callable[[RedisCase], None]


@dataclass(frozen=True)
class Mutant:
    """One mistake: in which script, what text it replaces by what, and who must notice."""

    name: str
    script: str
    right: str
    wrong: str
    caught_by: tuple[Check, ...]


def _foreign(check: Callable[[on_servers.TestForeignClients, RedisCase], None]) -> Check:
    return lambda case: check(on_servers.TestForeignClients(), case)


MUTANTS = [
    Mutant(
        "a release without a token",
        "release",
        "return value and string.sub(value, 1, #prefix) == prefix",
        "return value",
        (
            contract.test_only_its_token_releases_a_hold,
            interleavings.test_a_late_release_does_not_free_the_next_holders_lock,
            interleavings.test_a_hold_that_ends_between_looking_and_releasing_is_not_taken_from_the_next,
        ),
    ),
    Mutant(
        "a release that compares the owner only",
        "release",
        "local prefix = token .. '\\0'",
        "local prefix = string.gsub(token, '/.*', '/')",
        (interleavings.test_one_object_s_old_hold_cannot_release_its_new_one,),
    ),
    Mutant(
        "a renewal that creates",
        "renew",
        "    answers[i] = 0\n",
        "    redis.call('SET', KEYS[i], token .. '\\0{}', 'PX', ttl)\n    answers[i] = 1\n",
        (
            contract.test_renewing_never_creates_a_lock,
            interleavings.test_a_renewal_on_its_way_while_the_hold_is_given_back_revives_nothing,
        ),
    ),
    Mutant(
        "a renewal without a token",
        "renew",
        "string.sub(value, 1, #token + 1) ~= token .. '\\0'",
        "false",
        (contract.test_only_its_token_renews_a_hold,),
    ),
    Mutant(
        "a renewal that adds up",
        "renew",
        "redis.call('PEXPIRE', KEYS[i], ttl)",
        "redis.call('PEXPIRE', KEYS[i], redis.call('PTTL', KEYS[i]) + ttl)",
        (contract.test_renewing_sets_the_full_ttl_and_never_adds_up,),
    ),
    Mutant(
        "SETNX, and EXPIRE left for later",
        "acquire",
        "redis.call('SET', lock, token .. '\\0' .. about, 'PX', ttl)",
        "redis.call('SET', lock, token .. '\\0' .. about)",
        (contract.test_a_free_lock_is_granted, contract.test_a_held_lock_is_refused_to_every_other_token),
    ),
    Mutant(
        "an acquire in whole seconds",
        "acquire",
        "redis.call('SET', lock, token .. '\\0' .. about, 'PX', ttl)",
        "redis.call('SET', lock, token .. '\\0' .. about, 'EX', math.max(1, math.floor(ttl / 1000)))",
        (lambda case: contract.test_a_ttl_is_kept_to_the_millisecond(case, 0.25),),
    ),
    Mutant(
        "an acquire that ignores the holder",
        "acquire",
        "if value and not kept then",
        "if false then",
        (
            contract.test_a_held_lock_is_refused_to_every_other_token,
            interleavings.test_an_acquire_repeated_after_the_next_holder_came_takes_nothing_from_it,
            _foreign(on_servers.TestForeignClients.test_their_plain_lock_excludes_ours_and_is_shown),
        ),
    ),
    Mutant(
        "an acquire that does not know its own token",
        "acquire",
        "value and belongs(value, token)",
        "false",
        (contract.test_acquiring_again_with_the_same_token_keeps_the_hold_and_starts_its_ttl_anew,),
    ),
    Mutant(
        "a repeated request that counts as a take-over",
        "acquire",
        "ours and 4 or kept and 2",
        "kept and 2",
        (
            contract.test_acquiring_again_with_the_same_token_keeps_the_hold_and_starts_its_ttl_anew,
            contract.test_a_transfer_can_be_repeated,
        ),
    ),
    Mutant(
        "a transfer from anybody",
        "acquire",
        "ours or belongs(value, from)",
        "ours or from ~= ''",
        (
            contract.test_a_transfer_is_refused_where_a_third_token_holds,
            interleavings.test_the_old_run_cannot_turn_the_new_ones_lease_back_into_a_claim,
        ),
    ),
    Mutant(
        "a refusal that heals the holder's end",
        "acquire",
        "  return refused({0, value, redis.call('PTTL', lock), 0})",
        "  redis.call('PEXPIRE', lock, ttl) return {0, value, redis.call('PTTL', lock), 0}",
        (lambda case: interleavings.test_waiters_never_touch_a_dead_holders_end(case, 1),),
    ),
    Mutant(
        "a fence that stands still",
        "acquire",
        "local fence = tonumber(time[1]) * 1000000 + tonumber(time[2])",
        "local fence = tonumber(time[1]) * 1000000",
        (lambda case: windows.TestFence().test_it_grows_with_every_grant(case),),
    ),
    Mutant(
        "a window that each refusal begins anew",
        "acquire",
        "    return refused({0, accepted, redis.call('PTTL', window), 1})",
        "      redis.call('PEXPIRE', window, period) return {0, accepted, redis.call('PTTL', window), 1}",
        (lambda case: windows.TestWindow().test_it_counts_from_the_acceptance_not_from_a_refusal(case),),
    ),
    Mutant(
        "a done mark nobody looks for",
        "acquire",
        "redis.call('EXISTS', done) == 1",
        "false",
        (lambda case: windows.TestDoneMark().test_it_refuses_a_late_copy_of_its_message(case),),
    ),
    Mutant(
        "an operator's delete without a comparison",
        "force_release",
        "if anybody ~= '1'",
        "if false",
        (contract.test_an_operator_does_not_hit_the_next_holder,),
    ),
    Mutant(
        "an index that is not told",
        "release",
        "redis.pcall('ZREM', index, name)",
        "",
        (lambda case: on_servers.TestIndex().test_nothing_is_left_when_everything_is_given_back(case),),
    ),
]


@pytest.fixture
def new_case(redis_url: str) -> Iterator[Callable[[], RedisCase]]:
    """Cases on the embedded server, each with a prefix of its own."""
    cases: list[RedisCase] = []

    def make() -> RedisCase:
        cases.append(RedisCase(redis_url))
        return cases[-1]

    yield make
    for case in cases:
        with closing(case):
            pass


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_script_is_caught(mutant: Mutant, new_case: Callable[[], RedisCase]) -> None:
    shipped = Script.load(mutant.script).text
    assert shipped.count(mutant.right) == 1
    broken = Script.of(shipped.replace(mutant.right, mutant.wrong))

    for check in mutant.caught_by:
        check(new_case())
        case = new_case()
        case.scripts[mutant.script] = broken
        with pytest.raises(AssertionError):
            check(case)
