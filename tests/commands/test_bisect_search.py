"""Searches of `bisect`, without models: what they find, and how many probes they need."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from epbuild.commands.bisect.search import find_first_failing, find_origin, find_smallest_failing, list_ancestors, list_nearest


@st.composite
def graphs(draw: st.DrawFn) -> dict[int, list[int]]:
    """Return the parents of each node of a graph."""
    count = draw(st.integers(1, 60))
    return {node: sorted(draw(st.sets(st.integers(0, node - 1), max_size=3))) if node else [] for node in range(count)}


def is_on_bad_path(node: int, last: int, parents: dict[int, list[int]], bad: set[int]) -> bool:
    """Return whether a path of bad nodes leads from a node to the last one."""
    reached, waiting = {last}, [last]
    while waiting:
        more = bad.intersection(parents[waiting.pop()]) - reached
        reached |= more
        waiting += more
    return node in reached


@given(st.integers(1, 5000), st.data())
def test_the_smallest_failing_prefix_is_found(count: int, data: st.DataObject) -> None:
    planted, probes = data.draw(st.integers(1, count)), []

    def fails(size: int) -> bool:
        probes.append(size)
        return size >= planted

    assert find_first_failing(count, fails) == planted
    assert len(probes) <= math.ceil(math.log2(count))
    probes.clear()
    assert find_smallest_failing(count, fails) == planted
    assert len(probes) <= 2 * math.ceil(math.log2(planted)) + 1


@given(graphs(), st.sets(st.integers(0, 59), max_size=4), st.integers(1, 70))
def test_a_bad_node_with_only_good_parents_is_found(parents: dict[int, list[int]], planted: set[int], width: int) -> None:
    planted |= {len(parents) - 1}
    # A fault spreads to some descendants only, because operators such as Relu can hide it.
    bad = {node for node in parents if node in planted or (node % 3 and any(parent in planted for parent in parents[node]))}
    calls: list[int] = []

    def measure(nodes: Sequence[int]) -> list[int]:
        calls.append(len(nodes))
        return [node for node in nodes if node in bad]

    found = find_origin(len(parents) - 1, parents, measure, width)
    assert found in bad
    assert not bad.intersection(parents[found])
    assert max(calls, default=0) <= width
    if width >= len(parents):
        assert len(calls) <= 1
        assert is_on_bad_path(found, len(parents) - 1, parents, bad)


@given(st.integers(2, 3000), st.data())
def test_a_fault_in_a_chain_is_found_with_few_measurements(count: int, data: st.DataObject) -> None:
    planted, width = data.draw(st.integers(0, count - 1)), 16
    calls: list[int] = []

    def measure(nodes: Sequence[int]) -> list[int]:
        calls.append(len(nodes))
        return [node for node in nodes if node >= planted]

    parents = {node: [node - 1] if node else [] for node in range(count)}
    assert find_origin(count - 1, parents, measure, width) == planted
    assert len(calls) <= math.ceil(math.log(count, width + 1)) + 1


@given(graphs())
def test_the_nearest_nodes_begin_with_the_ancestors(parents: dict[int, list[int]]) -> None:
    last = len(parents) - 1
    found = list_nearest(last, list(parents), parents)
    ancestors = list_ancestors(last, parents)
    assert found[0] == last
    assert set(found[1 : 1 + len(ancestors)]) == set(ancestors)
    assert sorted(found) == list(parents)
