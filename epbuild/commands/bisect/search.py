"""Searches with few probes of a graph. They know no models and no EPs.

Nodes are numbers in topological order: a node's parents have smaller numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

Parents = Mapping[int, Sequence[int]]
"""Parents of each node, whose values the node reads."""


def get_max_compiles(nodes: int) -> int:
    """Return the maximum number of compiles in a search of a failing part: 12 for up to 256 nodes, and one more for each doubling."""
    return max(12, 4 + (nodes - 1).bit_length())


def find_failing_part(
    nodes: Sequence[int], parents: Parents, fails: Callable[[Sequence[int]], bool], may_probe: Callable[[], bool]
) -> tuple[list[int], bool]:
    """Return a small set of nodes that fails, given that all `nodes` fail together, and whether the search has finished.

    First find the last node of the failure: the smallest failing prefix of `nodes` ends with it. This needs at most ceil(log2(n)) calls
    of `fails` for n nodes, 8 for 200. Then add the nearest nodes to it (`find_smallest_failing`). The search ends early when `may_probe`
    returns False. With `get_max_compiles` less the compile of all nodes, at least 3 calls remain for the second part.

    `fails` need not be monotone: it has returned True for the returned nodes, unless they are all `nodes`. If it is monotone, a failure of
    one node is found with one call in the second part, and a failure of up to 8 nearest nodes is narrowed to at most 8 nodes with two.
    """
    passing, count = _narrow(0, len(nodes), lambda size: fails(nodes[:size]), may_probe)
    if count - passing > 1:
        return list(nodes[:count]), False
    nearest = list_nearest(nodes[count - 1], nodes[:count], parents)
    passing, size = find_smallest_failing(count, lambda size: fails(nearest[:size]), may_probe)
    return sorted(nearest[:size]), size - passing == 1


def find_smallest_failing(count: int, fails: Callable[[int], bool], may_probe: Callable[[], bool]) -> tuple[int, int]:
    """Return the largest passing and the smallest failing size that were found, given that `count` fails and 0 passes.

    Sizes of 1, 8, 64 and so on are tried before others, because most failures are small. The sizes differ by 1 unless `may_probe`
    returned False before.
    """
    low, high = 0, 1
    while high < count and may_probe():
        if fails(high):
            return _narrow(low, high, fails, may_probe)
        low, high = high, 8 * high
    return _narrow(low, count, fails, may_probe)


def _narrow(low: int, high: int, fails: Callable[[int], bool], may_probe: Callable[[], bool]) -> tuple[int, int]:
    """Halve the range between a passing and a failing size until they differ by 1, or until `may_probe` returns False."""
    while high - low > 1 and may_probe():
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return low, high


def find_origin(
    last: int,
    parents: Parents,
    measure: Callable[[Sequence[int]], Iterable[int]],
    width: int,
    may_probe: Callable[[], bool],
) -> int:
    """Return a bad node whose parents are all good, given that the node `last` is bad.

    `measure` returns the bad ones of at most `width` nodes. If `last` has at most `width` ancestors, one call is enough, and a path of
    bad nodes leads from the returned node to `last`. Bad nodes whose readers are all good do not matter.

    The search ends early when `may_probe` returns False. Then the returned node is bad, but its parents may be bad too.
    """
    known = {last: True}

    def measure_new(nodes: Sequence[int]) -> None:
        new = [node for node in nodes if node not in known]
        for begin in range(0, len(new), width):
            if not may_probe():
                return
            batch = new[begin : begin + width]
            bad = set(measure(batch))
            known.update((node, node in bad) for node in batch)

    while True:
        line = [*list_ancestors(last, parents)[::-1], last]
        low, high = -1, len(line) - 1
        while high - low - 1 > width:
            inner = _spread(low + 1, high, width)
            measure_new([line[place] for place in inner])
            low = max((place for place in inner if not known.get(line[place])), default=low)
            high = min((place for place in inner if place > low), default=high)
        measure_new(line[low + 1 : high])
        last = line[high]
        while bad := [parent for parent in parents[last] if known.get(parent)]:
            last = max(bad)
        measure_new(parents[last])
        bad = [parent for parent in parents[last] if known.get(parent)]
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
