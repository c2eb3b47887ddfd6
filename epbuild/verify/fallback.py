"""Fallback nodes of a compiled model, and the EPs' reasons for not taking them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from epbuild.core.units import format_count
from epbuild.plan.result import FallbackNode, ModelResult

_MAX_SHOWN = 5
"""Maximum number of operators or reasons that a sentence names."""


class FallbackNodes(Struct, frozen=True):
    """Fallback nodes of one compiled model."""

    member: str
    """Name of the model."""
    count: int
    """Number of nodes."""
    nodes: tuple[FallbackNode, ...]
    """Fallback nodes. Results of old epbuild releases may list fewer nodes than `count`."""

    @classmethod
    def of(cls, model: ModelResult) -> FallbackNodes:
        return cls(model.member, model.fallback_nodes, model.left)

    @property
    def operators(self) -> dict[str, int]:
        """Number of nodes by operator, most frequent first."""
        return _rank(Counter(left.operator for left in self.nodes))

    @property
    def reasons(self) -> dict[str, int]:
        """Number of nodes by reason, most frequent first."""
        return _rank(Counter(left.reason for left in self.nodes if left.reason is not None))

    @property
    def what(self) -> str:
        """Numbers of nodes by operator, such as `3 Shape, 2 Range and 9 of 4 other operators`. Empty if the operators are unknown."""
        named = [(number, f"{number} {operator}") for operator, number in self.operators.items()]
        return _format_counts(named, self.count, "of {} other operators")

    @property
    def why(self) -> str:
        """Reasons that EPs logged, such as `Cannot get shape (66 nodes)`. Empty if EPs logged none."""
        named = [(number, f"{reason} ({format_count(number, 'node')})") for reason, number in self.reasons.items()]
        return _format_counts(named, sum(self.reasons.values()), "nodes for {} other reasons", "; ")

    @property
    def groups(self) -> tuple[FallbackGroup, ...]:
        """Nodes by operator and reason, largest group first."""
        found: dict[tuple[str, str | None], list[str]] = {}
        for left in self.nodes:
            found.setdefault((left.operator, left.reason), []).append(left.node)
        listed = [FallbackGroup(operator, reason, tuple(nodes)) for (operator, reason), nodes in found.items()]
        return tuple(sorted(listed, key=lambda group: (-len(group.nodes), group.operator, group.reason or "")))


class FallbackGroup(Struct, frozen=True):
    """Fallback nodes with the same operator and reason."""

    operator: str
    reason: str | None
    nodes: tuple[str, ...]


def _rank(counts: Counter[Any]) -> dict[Any, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _format_counts(named: Sequence[tuple[int, str]], total: int, others: str, between: str = ", ") -> str:
    """List the first few counts and the sum of the other counts. `others` is a format string for the number of unlisted kinds."""
    if len(named) <= _MAX_SHOWN:
        *most, last = [text for _, text in named] or [""]
        return f"{between.join(most)} and {last}" if most and between == ", " else between.join([*most, last])
    shown = named[: _MAX_SHOWN - 1]
    rest = total - sum(number for number, _ in shown)
    return f"{between.join(text for _, text in shown)} and {rest} {others.format(len(named) - len(shown))}"
