"""The contract of the store, on a Cluster: what holds on one server holds there."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.integration import (
    test_lock_line,
    test_readwrite,
    test_semaphore,
    test_store_acts,
    test_store_contract,
    test_store_handed_on,
    test_store_homes,
    test_store_limits,
    test_store_lines,
    test_store_marks,
    test_store_periods,
    test_store_walks,
)
from tests.stores import ClusterCase

#: Half a second for an answer is little for the nodes of a Cluster on two busy cores: once more is allowed.
pytestmark = [pytest.mark.slow, pytest.mark.flaky(reruns=1), pytest.mark.xdist_group("cluster")]

_MODULES = (
    test_store_acts, test_store_contract, test_store_handed_on, test_store_homes, test_store_limits,
    test_store_lines, test_store_marks, test_store_periods, test_store_walks, test_lock_line, test_readwrite,
    test_semaphore,
)  # fmt: skip

_CASES = {"case", "plain_case", "strict_case"}

_ELSEWHERE = "the test has a queue in the slot of one lock, and none in that of the other"

_IN_SLOTS = "each slot has a list of its own, which is read in one piece"

_ITS_INDEX = "it names the index, of which each slot has one"

#: What differs on a Cluster, by the tests' names.
NOT_HERE: Mapping[str, str] = {
    "test_a_key_of_another_type_is_told_and_keeps_nobody_else": _ELSEWHERE,
    "test_it_tells_them_in_slices_soonest_to_end_first": "the order is that of slots",
    "test_names_are_read_in_pieces_and_each_is_there": _IN_SLOTS,
    "test_no_name_is_read_behind_the_last_one_that_is_wanted": _IN_SLOTS,
    "test_a_run_that_is_put_back_in_the_list_while_that_is_read_is_told": _IN_SLOTS,
    "test_a_look_tells_of_a_line_of_another_type_and_goes_on": _ELSEWHERE,
    "test_where_a_queue_takes_nothing_its_message_stays_in_line": "a slot is looked at soon after a parking",
    "test_who_gives_up_leaves_no_trace_and_costs_nobody": _ITS_INDEX,
    "test_a_run_is_late_by_its_own_end_not_by_the_time_that_a_walk_takes": _ITS_INDEX,
}


def _fixtures_of(test: Any) -> set[str]:
    methods = [method for name, method in vars(test).items() if name.startswith("test_")]
    return {name for each in methods or [test] for name in inspect.signature(each).parameters}


for _module in _MODULES:
    for _name, _test in vars(_module).items():
        if _name.lower().startswith("test") and callable(_test) and _fixtures_of(_test) & _CASES:
            assert globals().setdefault(_name, _test) is _test, f"another test is called {_name}"


@pytest.fixture
def case(request: pytest.FixtureRequest, cluster_case: ClusterCase) -> ClusterCase:
    """The store under test, which is a Cluster's."""
    if reason := NOT_HERE.get(request.node.originalname):
        pytest.skip(reason)
    return cluster_case


plain_case = case


@pytest.fixture
def strict_case(cluster: Cluster) -> Iterator[ClusterCase]:
    """One with strict fences."""
    with closing(ClusterCase(cluster, strict_fence=True)) as case:
        yield case
