"""Fallback nodes: those of a compiled model that its EPs left to others, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from epbuild.core.units import counted
from epbuild.plan.result import LeftNode, ModelResult

_SHOWN = 5
"""The most operators, and the most reasons, that a sentence names."""


class Outside(Struct, frozen=True):
    """All of those of one compiled model. `nodes` are fewer than `count` in results of releases that did not list them."""

    member: str
    count: int
    nodes: tuple[LeftNode, ...]

    @classmethod
    def of(cls, model: ModelResult) -> Outside:
        return cls(model.member, model.fallback_nodes, model.left)

    @property
    def operators(self) -> dict[str, int]:
        """How many nodes of each operator there are, most frequent first."""
        return _ranked(Counter(left.operator for left in self.nodes))

    @property
    def reasons(self) -> dict[str, int]:
        """How many nodes each reason is given for, most frequent first."""
        return _ranked(Counter(left.reason for left in self.nodes if left.reason is not None))

    @property
    def what(self) -> str:
        """Which operators they are: `3 Shape, 2 Range and 9 of 4 other operators`; empty where that is not known."""
        named = [(number, f"{number} {operator}") for operator, number in self.operators.items()]
        return _sentence_of(named, self.count, "of {} other operators")

    @property
    def why(self) -> str:
        """What an EP logged of them: `Cannot get shape (66 nodes)`; empty where none logged anything."""
        named = [(number, f"{reason} ({counted(number, 'node')})") for reason, number in self.reasons.items()]
        return _sentence_of(named, sum(self.reasons.values()), "nodes for {} other reasons", "; ")

    @property
    def groups(self) -> tuple[LeftGroup, ...]:
        """The nodes by operator and reason, most frequent first."""
        found: dict[tuple[str, str | None], list[str]] = {}
        for left in self.nodes:
            found.setdefault((left.operator, left.reason), []).append(left.node)
        listed = [LeftGroup(operator, reason, tuple(nodes)) for (operator, reason), nodes in found.items()]
        return tuple(sorted(listed, key=lambda group: (-len(group.nodes), group.operator, group.reason or "")))


class LeftGroup(Struct, frozen=True):
    """Nodes of one operator that stayed outside for one reason."""

    operator: str
    reason: str | None
    nodes: tuple[str, ...]


def _ranked(counts: Counter[Any]) -> dict[Any, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _sentence_of(named: Sequence[tuple[int, str]], total: int, others: str, between: str = ", ") -> str:
    """The first few of what is counted, and what the others come to; `others` takes how many kinds these are."""
    if len(named) <= _SHOWN:
        *most, last = [text for _, text in named] or [""]
        return f"{between.join(most)} and {last}" if most and between == ", " else between.join([*most, last])
    shown = named[: _SHOWN - 1]
    rest = total - sum(number for number, _ in shown)
    return f"{between.join(text for _, text in shown)} and {rest} {others.format(len(named) - len(shown))}"
