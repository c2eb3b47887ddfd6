"""Searches of `bisect`, without models: what they find, and how many probes they need."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from epbuild.commands.bisect.search import find_failing_part, find_origin, get_max_compiles, list_ancestors, list_nearest


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


def search(
    parents: dict[int, list[int]], fails: Callable[[frozenset[int]], bool]
) -> tuple[list[int], bool, list[frozenset[int]]]:
    """Search a graph whose nodes fail together. Return the part, whether it is the smallest, and the probes that failed."""
    nodes, probes, failed = list(parents), 1, [frozenset(parents)]

    def probe(part: Sequence[int]) -> bool:
        nonlocal probes
        probes += 1
        is_bad = fails(frozenset(part))
        if is_bad:
            failed.append(frozenset(part))
        return is_bad

    part, complete = find_failing_part(nodes, parents, probe, lambda: probes < get_max_compiles(len(nodes)))
    assert probes <= (12 if len(nodes) <= 256 else 4 + math.ceil(math.log2(len(nodes))))
    assert frozenset(part) == min(failed, key=len)
    return part, complete, failed


CHAIN = {node: [node - 1] if node else [] for node in range(200)}


@given(st.integers(1, 5000), st.data())
def test_a_failing_node_is_found_exactly(count: int, data: st.DataObject) -> None:
    planted = data.draw(st.integers(0, count - 1))
    part, complete, _ = search({node: [node - 1] if node else [] for node in range(count)}, lambda part: planted in part)
    assert (part, complete) == ([planted], True)


@given(st.integers(0, 192), st.integers(1, 8))
def test_a_short_pattern_is_narrowed_to_eight_nodes(begin: int, size: int) -> None:
    planted = set(range(begin, begin + size))
    part, complete, _ = search(CHAIN, planted.issubset)
    assert planted.issubset(part)
    assert len(part) <= 8
    assert not complete or set(part) == planted


@settings(max_examples=50)
@given(graphs(), st.sets(st.integers(0, 59), min_size=1, max_size=6), st.integers(0, 99))
def test_a_part_fails_and_contains_what_is_planted(parents: dict[int, list[int]], planted: set[int], seed: int) -> None:
    planted &= set(parents)
    part, complete, _ = search(parents, planted.issubset)
    assert planted.issubset(part)
    assert not complete or not planted or max(planted) == part[-1]
    # A failure that is not monotone: any set fails or passes, always in the same way.
    part, _, failed = search(parents, lambda part: hash((seed, part)) % 2 == 0)
    assert frozenset(part) in failed


@given(graphs(), st.sets(st.integers(0, 59), max_size=4), st.integers(1, 70))
def test_a_bad_node_with_only_good_parents_is_found(parents: dict[int, list[int]], planted: set[int], width: int) -> None:
    planted |= {len(parents) - 1}
    # A fault spreads to some descendants only, because operators such as Relu can hide it.
    bad = {node for node in parents if node in planted or (node % 3 and any(parent in planted for parent in parents[node]))}
    calls: list[int] = []

    def measure(nodes: Sequence[int]) -> list[int]:
        calls.append(len(nodes))
        return [node for node in nodes if node in bad]

    found = find_origin(len(parents) - 1, parents, measure, width, lambda: True)
    assert found in bad
    assert not bad.intersection(parents[found])
    assert max(calls, default=0) <= width
    if width >= len(parents):
        assert len(calls) <= 1
        assert is_on_bad_path(found, len(parents) - 1, parents, bad)
    limit = len(calls) // 2
    calls.clear()
    assert find_origin(len(parents) - 1, parents, measure, width, lambda: len(calls) < limit) in bad
    assert len(calls) <= limit


@given(st.integers(2, 3000), st.data())
def test_a_fault_in_a_chain_is_found_with_few_measurements(count: int, data: st.DataObject) -> None:
    planted, width = data.draw(st.integers(0, count - 1)), 16
    calls: list[int] = []

    def measure(nodes: Sequence[int]) -> list[int]:
        calls.append(len(nodes))
        return [node for node in nodes if node >= planted]

    parents = {node: [node - 1] if node else [] for node in range(count)}
    assert find_origin(count - 1, parents, measure, width, lambda: True) == planted
    assert len(calls) <= math.ceil(math.log(count, width + 1)) + 1


@given(graphs())
def test_the_nearest_nodes_begin_with_the_ancestors(parents: dict[int, list[int]]) -> None:
    last = len(parents) - 1
    found = list_nearest(last, list(parents), parents)
    ancestors = list_ancestors(last, parents)
    assert found[0] == last
    assert set(found[1 : 1 + len(ancestors)]) == set(ancestors)
    assert sorted(found) == list(parents)
