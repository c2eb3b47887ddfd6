"""Searches with few probes of a graph. They know no models and no EPs.

Nodes are numbers in topological order: a node's parents have smaller numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

Parents = Mapping[int, Sequence[int]]
"""Parents of each node, whose values the node reads."""


def find_first_failing(count: int, fails: Callable[[int], bool]) -> int:
    """Return the size of the smallest failing prefix, given that the prefix of size `count` fails.

    `fails` gets the size of a prefix. It is called at most ceil(log2(count)) times.
    """
    return _narrow(0, count, fails)


def find_smallest_failing(count: int, fails: Callable[[int], bool]) -> int:
    """Return the same size as `find_first_failing`, with fewer calls if the size is small: at most 2 * ceil(log2(size)) + 1 calls."""
    low, high = 0, 1
    while high < count and not fails(high):
        low, high = high, min(2 * high, count)
    return _narrow(low, high, fails)


def _narrow(low: int, high: int, fails: Callable[[int], bool]) -> int:
    """Return the smallest failing size, given that the size `high` fails and the size `low` does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return high


def find_origin(last: int, parents: Parents, measure: Callable[[Sequence[int]], Iterable[int]], width: int) -> int:
    """Return a bad node whose parents are all good, given that the node `last` is bad.

    `measure` returns the bad ones of at most `width` nodes. If `last` has at most `width` ancestors, one call is enough, and a path of
    bad nodes leads from the returned node to `last`. Bad nodes whose readers are all good do not matter.
    """
    known = {last: True}

    def measure_new(nodes: Sequence[int]) -> None:
        new = [node for node in nodes if node not in known]
        for begin in range(0, len(new), width):
            batch = new[begin : begin + width]
            bad = set(measure(batch))
            known.update((node, node in bad) for node in batch)

    while True:
        line = [*list_ancestors(last, parents)[::-1], last]
        low, high = -1, len(line) - 1
        while high - low - 1 > width:
            inner = _spread(low + 1, high, width)
            measure_new([line[place] for place in inner])
            low = max((place for place in inner if not known[line[place]]), default=low)
            high = min((place for place in inner if place > low), default=high)
        measure_new(line[low + 1 : high])
        last = line[high]
        while bad := [parent for parent in parents[last] if known.get(parent)]:
            last = max(bad)
        measure_new(parents[last])
        bad = [parent for parent in parents[last] if known[parent]]
        if not bad:
            return last
        last = max(bad)


def _spread(begin: int, end: int, width: int) -> list[int]:
    """Return `width` numbers of a longer range, at equal distances."""
    return [begin + (number + 1) * (end - begin) // (width + 1) for number in range(width)]


def list_ancestors(node: int, parents: Parents) -> list[int]:
    """Return the ancestors of a node, in descending order."""
    found: set[int] = set()
    waiting = list(parents[node])
    while waiting:
        if (parent := waiting.pop()) not in found:
            found.add(parent)
            waiting += parents[parent]
    return sorted(found, reverse=True)


def list_nearest(node: int, nodes: Sequence[int], parents: Parents) -> list[int]:
    """Return a node, its ancestors in descending order, and then the other `nodes` in descending order."""
    near = [node, *list_ancestors(node, parents)]
    return near + sorted(set(nodes) - set(near), reverse=True)
