"""Advice on values that exceed the largest number of an EP's precision."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from epbuild.commands.bisect.case import Case
from epbuild.commands.bisect.search import list_ancestors
from epbuild.onnxfile.edit.excerpts import get_types
from epbuild.onnxfile.read.headers import read_header
from epbuild.recipe.splitting import SPLIT

if TYPE_CHECKING:
    from epbuild.commands.bisect.probing import Arrays

_MAX_NAMES = 12


def advise_overflow(case: Case, origin: int, values: Arrays, limit: float) -> list[str]:
    """Return sentences that name the nodes with values above `limit`, and say how to avoid those at the node `origin`."""
    graph = case.graph
    large = [
        index
        for index in graph.nodes
        if any(get_largest(values[name]) > limit for name in graph.get_results(index) if name in values)
    ]
    if not large:
        return []
    named = ", ".join(case.describe(index).node for index in large[:_MAX_NAMES])
    more = f" and {len(large) - _MAX_NAMES} more" if len(large) > _MAX_NAMES else ""
    text = f"Values above {limit:,.0f} on the CPU EP: {named}{more}. Rescale these values, or quantize the model."
    return [text, *(_advise_split(case, _find_region(case, origin, large), values) if origin in large else [])]


def _find_region(case: Case, origin: int, large: Collection[int]) -> set[int]:
    """Return a node with large values and all nodes that such values reach from it, up to those whose own values are small."""
    region = {origin}
    for index in case.graph.nodes:
        if any(parent in region and parent in large for parent in case.graph.parents[index]):
            region.add(index)
    return region


def _advise_split(case: Case, region: Collection[int], values: Arrays) -> list[str]:
    """Return a sentence that says how to split the model so that only these nodes run on the CPU, or nothing if no split does this."""
    graph, model = case.graph, case.prober.member.model
    if any(step.kind == SPLIT for step in model.prepare):
        return []  # a part of a split model cannot be split
    header = read_header(case.save(sorted(region), get_types(values)))
    before = {value.name: maker for value in header.inputs if (maker := graph.get_maker(value.name)) is not None}
    after = [value.name for value in header.outputs if value.name not in graph.outputs]
    earlier = {ancestor for maker in before.values() for ancestor in (maker, *list_ancestors(maker, graph.parents))}
    later = set(graph.nodes).difference(region, earlier)
    # A part cannot end at an output of the model, so later nodes would stay in the part of these nodes.
    holds_later = bool(later) and len(after) < len(header.outputs)
    ends = [names[0] if len(names) == 1 else names for names in (list(before), after) if names]
    if not ends or len(region) > _MAX_NAMES or earlier.intersection(region) or holds_later:
        return []
    parts = [f"`{model.name}_{number}`" for number in range(len(ends) + 1)]
    exact = 1 if before else 0
    parts[exact] = f"`{{model: {model.name}_{exact}, compile: none}}`"
    named = ", ".join(case.describe(index).node for index in sorted(region))
    listed = f"{', '.join(parts[:-1])} and {parts[-1]}"
    return [
        f"To run {named} on the CPU in float32, add `split: {{at: {json.dumps(ends)}}}` to the model, and list it in the group as {listed}."
    ]


def get_largest(value: Any) -> float:
    """Return the largest finite magnitude of numbers, or 0 for other values."""
    import numpy as np

    if value.dtype.kind not in "fiu" or not value.size:
        return 0.0
    return float(np.abs(value.astype(np.float64), where=np.isfinite(value), out=np.zeros(value.shape)).max())
